"""Counts distinct values: exactly in two steps, and by estimates.

Where the values of distinct aggregates are needed, and not only partial results, there are two steps. The first step
groups by the keys and by what is distinct; the second counts, or adds, groups of the first. Aggregates that are not
distinct are computed in the first step and merged in the second. An example, ``select k, count(distinct x), sum(v) …
group by k``::

    rows           first, by k and x       second, by k
    k  x  v        k  x  sum(v)            k  count(x)  sum(sum(v))
    a  1  5        a  1  7                 a  2         8
    a  1  2        a  2  1                 b  1         4
    a  2  1        b  1  4
    b  1  4

For estimates the values are chosen from which Spark makes them. Its ``approx_count_distinct`` is HyperLogLog++: the
first bits of a value's hash name a register, and a register keeps the most zeros that follow in any hash. So of all
values of a register the one with the least following bits is enough: Spark's estimate from these values alone is that
from all. Workers group by the register, too, and choose that value of each group; there are 512 registers unless
another error is asked for. With 4 registers and hashes of 6 bits::

    x   hash    register  following bits
    a   01 0110       1             0110
    b   01 0010       1             0010   the least of register 1
    c   11 1000       3             1000   the least of register 3
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from gpujoin.model.aggregates import AggregateCall, AggregateFunction
from gpujoin.model.expressions import Call, Case, Expression, Function, Literal
from gpujoin.model.relations import Output, PartialAggregate, Project, Relation, column
from gpujoin.model.sqltext import show_expression
from gpujoin.plan.merging import Merging, NotMergeableError
from gpujoin.plan.nested_groups import with_plain_values
from gpujoin.spark.catalyst.nodes import Node, NotTranslatableError
from gpujoin.spark.catalyst.translate import ExpressionReader
from gpujoin.spark.query.aggregates import ReadAggregate, identity, read_call, unique_calls


def in_two_steps(
    aggregation: ReadAggregate, child: Relation, reader: ExpressionReader
) -> tuple[Relation, dict[int, AggregateCall]]:
    """Aggregate wholly: a relation of the keys and of all calls' buffers, and the calls by position.

    Raises ``NotTranslatableError`` if an aggregate that is not distinct cannot be merged.
    """
    calls = aggregation.calls(reader)
    # Spark adds the digits of short decimals: these are different where the decimals are.
    columns = (
        column.children[0] if column.name == "UnscaledValue" else column for column in aggregation.distinct_columns
    )
    keys = (*aggregation.keys, *columns)
    outputs = tuple(Output(f"k{number}", reader(key)) for number, key in enumerate(keys))
    merged = unique_calls(calls)
    first = with_plain_values(PartialAggregate(child, outputs, merged, final=True))
    of_keys = _KeyReader(first.schema, keys, tuple(show_expression(output.expression) for output in outputs))
    distinct = {
        n: _shown_distinct(read_call(node, of_keys, f"a{n}"))
        for n, node in enumerate(aggregation.aggregates)
        if n not in calls
    }
    try:
        merging = [Merging(call, first.schema) for call in merged]
    except NotMergeableError as problem:
        raise NotTranslatableError(f"{problem} beside an aggregate of distinct values") from problem
    grouped = tuple(Output(f"k{n}", of_keys.key(n)) for n in range(len(aggregation.keys)))
    counted = unique_calls(distinct)
    summed = tuple(call for each in merging for call in each.calls)
    second = with_plain_values(PartialAggregate(first, grouped, (*summed, *counted), final=True))
    schema = second.schema
    finished = [output for each in merging for output in each.buffer(schema)]
    buffers = [field.name for call in counted for field in call.buffer]
    names = [*(f"k{n}" for n in range(len(aggregation.keys))), *buffers]
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


_HASH_BITS = 64


@dataclass(frozen=True)
class Estimates:
    """What is computed for the estimates of an aggregation."""

    registers: tuple[Expression, ...]
    """The register, as a further key; empty without estimates."""
    calls: Mapping[int, AggregateCall]
    """Choices of values, by position among the aggregates."""

    @classmethod
    def from_aggregation(cls, aggregation: ReadAggregate, reader: ExpressionReader) -> Estimates:
        """Translate the estimates of an aggregation.

        Raises ``NotTranslatableError`` if their registers are not the same: groups would be products of registers.
        """
        registers: dict[object, Expression] = {}
        calls: dict[int, AggregateCall] = {}
        for number, node in aggregation.estimates:
            function, *condition = node.children
            value = reader(function.children[0])
            hashed = Call(function=Function.XXHASH64, arguments=(value,), type=pa.int64())
            bits = math.ceil(2.0 * math.log(1.106 / float(function.fields["relativeSD"])) / math.log(2.0))
            register = _call(Function.SHIFT_RIGHT_UNSIGNED, hashed, Literal(value=_HASH_BITS - bits, type=pa.int32()))
            registers[register.structure] = register
            rest = Literal(value=(1 << (_HASH_BITS - bits)) - 1, type=pa.int64())
            following = Case(
                conditions=(Call(function=Function.IS_NULL, arguments=(value,), type=pa.bool_()),),
                values=(Literal(value=None, type=pa.int64()),),
                otherwise=_call(Function.BIT_AND, hashed, rest),
                type=pa.int64(),
            )
            calls[number] = AggregateCall(
                function=AggregateFunction.MIN_BY,
                arguments=(value, following),
                name=f"a{number}",
                filter=reader(condition[0]) if condition else None,
            )
        if len(registers) > 1:
            raise NotTranslatableError(
                "approx_count_distinct of several columns, or with several errors, is not computed here"
            )
        return cls(tuple(registers.values()), calls)


def _call(function: Function, *arguments: Expression) -> Call:
    return Call(function=function, arguments=arguments, type=pa.int64())
