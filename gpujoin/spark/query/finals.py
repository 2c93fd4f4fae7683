"""Finishing a partial aggregation by Spark's own aggregate functions, as expressions of the JVM.

An aggregate function of Spark says itself how its value follows from its buffers. Here only the merging of buffers is
written down, by functions of Spark's whose values are the merged buffers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow.types as pat

from gpujoin.model.aggregates import CENTRAL_MOMENTS, AggregateCall, AggregateFunction
from gpujoin.spark.query.aggregates import may_overflow, sums_unscaled
from gpujoin.spark.query.plans import items, to_map, to_seq

if TYPE_CHECKING:
    from gpujoin.spark.catalyst.nodes import Node


_PARTS = ("n", "avg", "m2")
_MERGED_MOMENTS = """
aggregate(
  collect_list(named_struct('n', gpujoin_n, 'avg', gpujoin_avg, 'm2', gpujoin_m2)),
  named_struct('n', 0D, 'avg', 0D, 'm2', 0D),
  (a, b) -> named_struct(
    'n', a.n + b.n,
    'avg', a.avg + if(a.n + b.n = 0D, 0D, (b.avg - a.avg) / (a.n + b.n)) * b.n,
    'm2', a.m2 + b.m2 + (b.avg - a.avg) * if(a.n + b.n = 0D, 0D, (b.avg - a.avg) / (a.n + b.n)) * a.n * b.n
  )
)"""
"""The merging of `org.apache.spark.sql.catalyst.expressions.aggregate.CentralMomentAgg`, as an expression."""


class FinalExpressions:
    """Makes, for an aggregate expression, the one over its partial results that has the same value.

    Parameters
    ----------
    gateway : py4j JVM view
        ``spark._jvm``.
    """

    def __init__(self, gateway: Any) -> None:
        self._gateway = gateway
        self._expressions = gateway.org.apache.spark.sql.catalyst.expressions
        self._types = gateway.org.apache.spark.sql.types.DataTypes
        self._nothing = gateway.scala.Option.empty()

    def of(self, node: Node, call: AggregateCall, buffers: list[Any]) -> Any:
        """Finish one aggregate.

        Parameters
        ----------
        node : Node
            The ``AggregateExpression``.
        call : AggregateCall
            What was computed.
        buffers : list of py4j objects
            Attributes of the partial results.
        """
        function = node.children[0].jvm
        if sums_unscaled(node):
            held = call.buffer[0].type
            total = self._cast(self._sum(buffers[0]), self._decimal(held.precision, held.scale))
            empty = self._all_empty(buffers[1])
            nothing = self._expressions.Literal.create(None, self._types.LongType)
            return self._expressions.If(empty, nothing, self._expressions.UnscaledValue(total))
        declared = items(function.aggBufferAttributes())
        merged = self._merged(function, call, buffers, [attribute.dataType() for attribute in declared])
        rule = to_map(self._gateway, list(zip(declared, merged, strict=True)))
        return function.evaluateExpression().transform(rule)

    def _merged(self, function: Any, call: AggregateCall, buffers: list[Any], types: list[Any]) -> list[Any]:
        match call.function:
            case AggregateFunction.COUNT:
                return [self._counted(buffers[0])]
            case AggregateFunction.AVG if pat.is_decimal(call.dtype):
                seen = self._expressions.GreaterThan(buffers[1], self._zero())
                return [self._total(call, buffers[0], seen, types[0]), self._counted(buffers[1])]
            case AggregateFunction.AVG:
                return [self._sum(buffers[0]), self._counted(buffers[1])]
            case AggregateFunction.SUM if pat.is_decimal(call.dtype):
                total = self._total(call, buffers[0], self._expressions.Not(buffers[1]), types[0])
                return [total, self._all_empty(buffers[1])]
            case AggregateFunction.FIRST | AggregateFunction.LAST:
                value, is_set = buffers
                taken = function.withNewChildren(to_seq(self._gateway, [value]))
                some = self._gateway.scala.Some(is_set)
                return [
                    taken.toAggregateExpression(False, some),
                    self._complete(self._expressions.aggregate.Max(is_set)),
                ]
            case _ if call.function in CENTRAL_MOMENTS:
                return self._moments(buffers)
            case _:
                return [self._complete(function.withNewChildren(to_seq(self._gateway, [buffers[0]])))]

    def _moments(self, buffers: list[Any]) -> list[Any]:
        """Count, mean and squared deviations, merged two by two as Spark merges them.

        Sums over all partial results would do but for rounding: squares of means would be subtracted from each other.
        """
        parser = self._gateway.org.apache.spark.sql.catalyst.parser.CatalystSqlParser()
        named = self._gateway.org.apache.spark.sql.catalyst.analysis.UnresolvedAttribute
        rule = to_map(
            self._gateway,
            [(named.quoted(f"gpujoin_{part}"), one) for part, one in zip(_PARTS, buffers, strict=True)],
        )
        merged = parser.parseExpression(_MERGED_MOMENTS).transform(rule)
        texts = self._expressions.Literal
        return [
            self._gateway.org.apache.spark.sql.catalyst.analysis.UnresolvedExtractValue(
                merged, texts.create(part, self._types.StringType)
            )
            for part in _PARTS
        ]

    def _complete(self, function: Any) -> Any:
        return function.toAggregateExpression()

    def _sum(self, value: Any) -> Any:
        return self._complete(self._expressions.aggregate.Sum(value))

    def _cast(self, value: Any, dtype: Any) -> Any:
        return self._expressions.Cast(value, dtype, self._nothing, self._expressions.EvalMode.LEGACY())

    def _decimal(self, precision: int, scale: int) -> Any:
        return self._gateway.org.apache.spark.sql.types.DecimalType(precision, scale)

    def _all_empty(self, is_empty: Any) -> Any:
        """Whether no partial result saw a value; there may be no partial result."""
        smallest = self._complete(self._expressions.aggregate.Min(is_empty))
        yes = self._expressions.Literal.create(True, self._types.BooleanType)
        return self._expressions.Coalesce(to_seq(self._gateway, [smallest, yes]))

    def _zero(self) -> Any:
        literal = self._expressions.Literal.create(0, self._types.IntegerType)
        return self._cast(literal, self._types.LongType)

    def _counted(self, count: Any) -> Any:
        return self._expressions.Coalesce(to_seq(self._gateway, [self._sum(count), self._zero()]))

    def _total(self, call: AggregateCall, total: Any, seen: Any, dtype: Any) -> Any:
        """A decimal sum; null if any partial sum is null although it had values."""
        merged = self._cast(self._sum(total), dtype)
        if not may_overflow(call):
            return merged
        overflowed = self._expressions.And(self._expressions.IsNull(total), seen)
        any_overflowed = self._complete(self._expressions.aggregate.Max(overflowed))
        nothing = self._expressions.Literal.create(None, dtype)
        return self._expressions.If(any_overflowed, nothing, merged)
