"""Chooses the values from which Spark estimates the number of distinct ones.

Spark's ``approx_count_distinct`` is HyperLogLog++: the first bits of a value's hash name a register, and a register
keeps the most zeros that follow in any hash. So of all values of a register the one with the least following bits is
enough: Spark's estimate from these values alone is that from all. Workers group by the register, too, and choose that
value of each group; there are 512 registers unless another error is asked for. With 4 registers and hashes of 6 bits::

    x   hash    register  following bits
    a   01 0110       1             0110
    b   01 0010       1             0010   the least of register 1
    c   11 1000       3             1000   the least of register 3
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from gpujoin.model.aggregates import AggregateCall, AggregateFunction
from gpujoin.model.expressions import Call, Case, Expression, Function, Literal
from gpujoin.spark.catalyst.nodes import NotTranslatableError
from gpujoin.spark.catalyst.translate import ExpressionReader
from gpujoin.spark.query.aggregates import ReadAggregate

_HASH_BITS = 64


@dataclass(frozen=True)
class Estimates:
    """What is computed for the estimates of an aggregation."""

    registers: tuple[Expression, ...]
    """What rows are grouped by besides: the register; nothing if there are no estimates."""
    calls: Mapping[int, AggregateCall]
    """Choices of values, by position among the aggregates."""

    @classmethod
    def of(cls, read: ReadAggregate, reader: ExpressionReader) -> Estimates:
        """Translate the estimates of an aggregation.

        Raises ``NotTranslatableError`` if their registers are not the same: groups would be products of registers.
        """
        registers: dict[object, Expression] = {}
        calls: dict[int, AggregateCall] = {}
        for number, node in read.estimates:
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
