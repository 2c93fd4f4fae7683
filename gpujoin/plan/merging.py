"""Merges partial results of an aggregation by another aggregation, over their columns.

For ``select k, count(*), avg(v) … group by k`` over the partial results of two tasks::

    k  a0.count  a1.sum  a1.count         k  sum(a0.count)  sum(a1.sum)  sum(a1.count)
    a         2       7         2         a              3           12              3
    b         1       1         1         b              1            1              1
    a         1       5         1

A projection above gives the sums the names, types and, where nothing was summed, the zeros of the buffers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.model.aggregates import BITWISE, EXTREMES_BY, AggregateCall, AggregateFunction
from gpujoin.model.expressions import Call, Cast, EvalMode, Expression, Function, Literal
from gpujoin.model.relations import Output, PartialAggregate, Project, Relation, column

_OF_THEMSELVES = BITWISE | EXTREMES_BY | {AggregateFunction.MIN, AggregateFunction.MAX}
"""Functions that merge their own buffers."""
_ROWS_DIGITS = 10
"""Digits that Spark adds to a decimal's precision where it sums: enough for 10**10 rows."""


class NotMergeableError(Exception):
    """The buffer of a call is not merged by aggregate functions; the message says which, and why."""


def may_overflow(call: AggregateCall) -> bool:
    """Tell whether ten thousand million rows could fill the digits of a decimal sum."""
    return bool(call.buffer[0].type.precision - call.dtype.precision < _ROWS_DIGITS)


def raises_by_overflow(call: AggregateCall) -> bool:
    """Tell whether the sum of a group may be an error: of 64-bit integers, or of decimals without room for more digits.

    Sums of shorter integers take thousands of millions of rows to leave 64 bits.
    """
    if call.mode is not EvalMode.ANSI or call.function not in (AggregateFunction.SUM, AggregateFunction.AVG):
        return False
    if pat.is_decimal(call.dtype):
        return may_overflow(call)
    return call.function is AggregateFunction.SUM and pat.is_int64(call.dtype)


class Merging:
    """The merging of a call's buffers: calls over them, and the call's buffer from the results of these.

    Parameters
    ----------
    call : AggregateCall
        The call of the partial results.
    schema : pyarrow.Schema
        Their columns.

    Raises
    ------
    NotMergeableError
        If the function's buffer is not merged by aggregate functions.
    """

    def __init__(self, call: AggregateCall, schema: pa.Schema) -> None:
        self._call = call
        text = str(call)
        self._parts = [
            dataclasses.replace(column(schema, field.name), written=text + field.name.removeprefix(call.name))
            for field in call.buffer
        ]
        self.calls = tuple(self._merging())

    def _merging(self) -> list[AggregateCall]:
        call, function, parts = self._call, self._call.function, self._parts
        if function in _OF_THEMSELVES:
            return [self._merging_call(function, *parts)]
        if function in (AggregateFunction.FIRST, AggregateFunction.LAST):
            return [self._merging_call(function, parts[0], filter_=parts[1])]
        if function is AggregateFunction.COUNT:
            return [self._merging_call(AggregateFunction.SUM, parts[0])]
        if function in (AggregateFunction.SUM, AggregateFunction.AVG) and call.mode is not EvalMode.TRY:
            if pat.is_decimal(call.dtype) and may_overflow(call):
                raise NotMergeableError(f"{call}, which may overflow, is not computed here")
            if function is AggregateFunction.AVG:
                return [
                    self._merging_call(AggregateFunction.SUM, part, name=part.name, mode=call.mode) for part in parts
                ]
            # The decimal sum of nothing is a zero that is marked as empty.
            summed = Call(function=Function.NOT, arguments=(parts[1],), type=pa.bool_()) if len(parts) > 1 else None
            return [self._merging_call(function, parts[0], name=parts[0].name, filter_=summed, mode=call.mode)]
        raise NotMergeableError(f"{call} is not computed here")

    def _merging_call(
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
        """Give the call's own buffer, by its own names, over the results of :attr:`calls`."""
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
        return [
            Output(field.name, value, field.nullable) for field, value in zip(self._call.buffer, values, strict=True)
        ]


def merges(node: PartialAggregate) -> bool:
    """Tell whether a node's calls merge partial results."""
    return bool(node.aggregates) and all(call.name.startswith("merged ") for call in node.aggregates)


def merged(partial: Relation, node: PartialAggregate) -> Relation:
    """Merge partial results, whose columns the node has, to one row for each group.

    ``partial`` has the rows of partial results like those of ``node``. Raises ``NotMergeableError`` if a call's are
    not merged.
    """
    schema = partial.schema
    merging = [Merging(call, schema) for call in node.aggregates]
    keys = tuple(Output(key.name, column(schema, n)) for n, key in enumerate(node.keys))
    whole = PartialAggregate(partial, keys, tuple(call for each in merging for call in each.calls), final=True)
    outputs = [Output(key.name, column(whole.schema, n)) for n, key in enumerate(node.keys)]
    return Project(whole, (*outputs, *(output for each in merging for output in each.buffer(whole.schema))))


def is_mergeable(calls: Sequence[AggregateCall], schema: pa.Schema) -> bool:
    """Tell whether the buffers of all calls, columns of a schema, are merged by aggregate functions."""
    try:
        for call in calls:
            Merging(call, schema)
    except NotMergeableError:
        return False
    return True


def _cast(value: Expression, dtype: pa.DataType | None) -> Expression:
    return Cast(child=value, to=dtype, mode=EvalMode.LEGACY, type=dtype)


def _or_zero(value: Expression) -> Expression:
    zero: Expression = Literal(value=0, type=pa.int64())
    assert value.type is not None
    if not pat.is_int64(value.type):
        zero = _cast(zero, value.type)
    return Call(function=Function.COALESCE, arguments=(value, zero), type=value.type)
