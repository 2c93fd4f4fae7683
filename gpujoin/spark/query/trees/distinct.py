"""Aggregations with distinct aggregates, in two steps, where their values are needed and not only partial results.

The first step groups by the keys and by what is distinct; the second counts, or adds, groups of the first. Aggregates
that are not distinct are computed in the first step and merged in the second. An example,
``select k, count(distinct x), sum(v) … group by k``::

    rows           first, by k and x       second, by k
    k  x  v        k  x  sum(v)            k  count(x)  sum(sum(v))
    a  1  5        a  1  7                 a  2         8
    a  1  2        a  2  1                 b  1         4
    a  2  1        b  1  4
    b  1  4
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pyarrow as pa

from gpujoin.model.aggregates import AggregateCall
from gpujoin.model.expressions import Expression
from gpujoin.model.relations import Output, PartialAggregate, Project, Relation, column
from gpujoin.model.sqltext import show_expression
from gpujoin.plan.merging import Merging, NotMergeableError
from gpujoin.plan.nested_groups import with_plain_values
from gpujoin.spark.catalyst.nodes import Node, NotTranslatableError
from gpujoin.spark.catalyst.translate import ExpressionReader
from gpujoin.spark.query.aggregates import ReadAggregate, identity, read_call, unique_calls


def in_two_steps(
    read: ReadAggregate, child: Relation, reader: ExpressionReader
) -> tuple[Relation, dict[int, AggregateCall]]:
    """Aggregate wholly: a relation of the keys and of all calls' buffers, and the calls by position.

    Raises ``NotTranslatableError`` if an aggregate that is not distinct cannot be merged.
    """
    calls = read.calls(reader)
    # Spark adds the digits of short decimals: these are different where the decimals are.
    columns = (column.children[0] if column.name == "UnscaledValue" else column for column in read.distinct_columns)
    keys = (*read.keys, *columns)
    outputs = tuple(Output(f"k{number}", reader(key)) for number, key in enumerate(keys))
    merged = unique_calls(calls)
    first = with_plain_values(PartialAggregate(child, outputs, merged, final=True))
    of_keys = _KeyReader(first.schema, keys, tuple(show_expression(output.expression) for output in outputs))
    distinct = {
        n: _shown_distinct(read_call(node, of_keys, f"a{n}"))
        for n, node in enumerate(read.aggregates)
        if n not in calls
    }
    try:
        merging = [Merging(call, first.schema) for call in merged]
    except NotMergeableError as problem:
        raise NotTranslatableError(f"{problem} beside an aggregate of distinct values") from problem
    grouped = tuple(Output(f"k{n}", of_keys.key(n)) for n in range(len(read.keys)))
    counted = unique_calls(distinct)
    summed = tuple(call for each in merging for call in each.calls)
    second = with_plain_values(PartialAggregate(first, grouped, (*summed, *counted), final=True))
    schema = second.schema
    finished = [output for each in merging for output in each.buffer(schema)]
    buffers = [field.name for call in counted for field in call.buffer]
    names = [*(f"k{n}" for n in range(len(read.keys))), *buffers]
    plain = {name: Output(name, column(schema, name)) for name in names}
    relation = Project(second, (*plain.values(), *finished))
    return relation, {**calls, **distinct}


class _KeyReader(ExpressionReader):
    """Translates what distinct aggregates read over the groups of the first step."""

    def __init__(self, schema: pa.Schema, keys: Sequence[Node], texts: Sequence[str]) -> None:
        self._schema = schema
        self._texts = texts
        self._places = {identity(key): place for place, key in enumerate(keys)}

    def __call__(self, node: Node) -> Expression:
        place = self._places.get(identity(node))
        return super().__call__(node) if place is None else self.key(place)

    def key(self, place: int) -> Expression:
        """The column of a key, shown as what it is of."""
        return dataclasses.replace(column(self._schema, place), written=self._texts[place])


def _shown_distinct(call: AggregateCall) -> AggregateCall:
    """The same call, shown as of distinct values; one of constants alone counts groups, and has no arguments."""
    if not call.arguments:
        return call
    first, *others = call.arguments
    first = dataclasses.replace(first, written=f"distinct {show_expression(first)}")
    return dataclasses.replace(call, arguments=(first, *others))
