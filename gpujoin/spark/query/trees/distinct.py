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

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.model.aggregates import BITWISE, EXTREMES_BY, AggregateCall, AggregateFunction
from gpujoin.model.expressions import Call, Cast, EvalMode, Expression, Function, Literal
from gpujoin.model.relations import Output, PartialAggregate, Project, Relation, column
from gpujoin.spark.catalyst.nodes import Node
from gpujoin.spark.catalyst.translate import ExpressionReader, NotTranslatableError
from gpujoin.spark.query.aggregates import ReadAggregate, identity, may_overflow, read_call, unique_calls

_SAME = BITWISE | EXTREMES_BY | {AggregateFunction.MIN, AggregateFunction.MAX}
"""Functions that merge their own buffers."""


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
    first = PartialAggregate(child, outputs, unique_calls(calls), once=True)
    of_keys = _KeyReader(first, keys)
    distinct = {n: read_call(node, of_keys, f"a{n}") for n, node in enumerate(read.aggregates) if n not in calls}
    merging = [_Merging(call, first) for call in first.aggregates]
    grouped = tuple(Output(f"k{n}", column(first.schema, n)) for n in range(len(read.keys)))
    counted = unique_calls(distinct)
    second = PartialAggregate(first, grouped, (*(call for each in merging for call in each.calls), *counted), once=True)
    schema = second.schema
    finished = [output for each in merging for output in each.buffer(schema)]
    buffers = [field.name for call in counted for field in call.buffer]
    names = [*(f"k{n}" for n in range(len(read.keys))), *buffers]
    plain = {name: Output(name, column(schema, name)) for name in names}
    relation = Project(second, (*plain.values(), *finished))
    return relation, {**calls, **distinct}


class _KeyReader(ExpressionReader):
    """Translates what distinct aggregates read over the groups of the first step."""

    def __init__(self, first: PartialAggregate, keys: Sequence[Node]) -> None:
        self._first = first
        self._places = {identity(key): place for place, key in enumerate(keys)}

    def __call__(self, node: Node) -> Expression:
        place = self._places.get(identity(node))
        return super().__call__(node) if place is None else column(self._first.schema, place)


class _Merging:
    """How the buffers of a call are merged: calls over them, and its buffer from what these give."""

    def __init__(self, call: AggregateCall, first: PartialAggregate) -> None:
        self._call = call
        self._parts = [column(first.schema, field.name) for field in call.buffer]
        self.calls = tuple(self._merging())

    def _merging(self) -> list[AggregateCall]:
        call, function, parts = self._call, self._call.function, self._parts
        if function in _SAME:
            return [self._made(function, *parts)]
        if function in (AggregateFunction.FIRST, AggregateFunction.LAST):
            return [self._made(function, parts[0], filter_=parts[1])]
        if function is AggregateFunction.COUNT:
            return [self._made(AggregateFunction.SUM, parts[0])]
        if function in (AggregateFunction.SUM, AggregateFunction.AVG) and call.mode is not EvalMode.TRY:
            if pat.is_decimal(call.dtype) and may_overflow(call):
                raise NotTranslatableError(f"{call} beside a distinct aggregate: Spark finds its overflow")
            summed = parts[:1] if function is AggregateFunction.SUM else parts
            return [self._made(AggregateFunction.SUM, part, name=part.name, mode=call.mode) for part in summed]
        raise NotTranslatableError(f"{call} beside a distinct aggregate")

    def _made(
        self,
        function: AggregateFunction,
        *arguments: Expression,
        name: str = "",
        filter_: Expression | None = None,
        mode: EvalMode = EvalMode.LEGACY,
    ) -> AggregateCall:
        return AggregateCall(
            function=function, arguments=arguments, name=f"merged {name or self._call.name}", filter=filter_, mode=mode
        )

    def buffer(self, schema: pa.Schema) -> list[Output]:
        """The call's own buffer, by the names that it has."""
        merged = [column(schema, field.name) for call in self.calls for field in call.buffer]
        function = self._call.function
        if function is AggregateFunction.COUNT:
            values: list[Expression] = [_or_zero(merged[0])]
        elif function is AggregateFunction.SUM and pat.is_decimal(self._call.dtype):
            total, is_empty = merged
            values = [_cast(total, self._parts[0].type), is_empty]
        elif function is AggregateFunction.AVG and pat.is_decimal(self._call.dtype):
            total, _, count = merged
            values = [_or_zero(_cast(total, self._parts[0].type)), _or_zero(count)]
        elif function is AggregateFunction.AVG:
            values = [_or_zero(part) for part in merged]
        else:
            values = list(merged)
        return [Output(field.name, value) for field, value in zip(self._call.buffer, values, strict=True)]


def _cast(value: Expression, dtype: pa.DataType | None) -> Expression:
    return Cast(child=value, to=dtype, mode=EvalMode.LEGACY, type=dtype)


def _or_zero(value: Expression) -> Expression:
    zero: Expression = Literal(value=0, type=pa.int64())
    assert value.type is not None
    if not pat.is_int64(value.type):
        zero = _cast(zero, value.type)
    return Call(function=Function.COALESCE, arguments=(value, zero), type=value.type)
