"""Conditions that are true for no row."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from gpujoin.model.expressions import Call, ColumnRef, Expression, Function, Literal
from gpujoin.model.jointype import Side
from gpujoin.plan.contradictions import is_never_true


def column(name: str, dtype: pa.DataType) -> ColumnRef:
    return ColumnRef(side=Side.LEFT, name=name, index=ord(name), type=dtype)


def of(function: Function, *arguments: Any) -> Call:
    typed = next((a.type for a in arguments if isinstance(a, Expression)), None)
    operands = tuple(a if isinstance(a, Expression) else Literal(value=a, type=typed) for a in arguments)
    return Call(function=function, arguments=operands, type=pa.bool_())


F = Function
X, Y = column("x", pa.int64()), column("y", pa.int64())
D, DAY, S = column("d", pa.float64()), column("a", pa.date32()), column("s", pa.string())
N, T, B = column("n", pa.decimal128(9, 2)), column("t", pa.timestamp("us", "UTC")), column("b", pa.bool_())
NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
SECOND = dt.timedelta(seconds=1)

NEVER: dict[str, list[Expression]] = {
    "two values": [of(F.EQ, X, 1), of(F.EQ, X, 2)],
    "within and": [of(F.AND, of(F.EQ, X, 1), of(F.EQ, 2, X))],
    "no range": [of(F.GT, X, 5), of(F.LT, X, 3)],
    "a value beyond a range": [of(F.EQ, X, 5), of(F.GT, X, 5)],
    "nothing between integers": [of(F.GT, X, 3), of(F.LT, X, 4)],
    "nothing between days": [of(F.GT, DAY, dt.date(2024, 1, 1)), of(F.GT, dt.date(2024, 1, 2), DAY)],
    "nothing between moments": [of(F.GE, T, NOON), of(F.LT, T, NOON)],
    "a point left out": [of(F.GE, N, Decimal("1.50")), of(F.LE, N, Decimal("1.50")), of(F.NE, N, Decimal("1.50"))],
    "texts": [of(F.GT, S, "b"), of(F.LT, S, "a\N{LATIN SMALL LETTER U WITH DIAERESIS}")],
    "below infinity and nan": [of(F.LT, D, math.inf), of(F.EQ, D, math.nan)],
    "null": [of(F.EQ, X, None)],
    "null and a value": [of(F.IS_NULL, X), of(F.GT, X, 1)],
    "null safe": [of(F.EQ_NULL_SAFE, X, None), of(F.IS_NOT_NULL, X)],
    "no member": [of(F.IN, X, 1, 2, None), of(F.GT, X, 2)],
    "other members": [of(F.IN, X, 1, 2), of(F.IN, X, 3, 4)],
    "excluded": [of(F.EQ, X, 1), of(F.NOT, of(F.EQ, X, 1))],
    "nothing": [of(F.IN, X, None)],
    "two columns": [of(F.LE, X, Y), of(F.GT, X, Y)],
    "two columns the other way": [of(F.LT, X, Y), of(F.LE, Y, X)],
    "itself": [of(F.LT, X, X)],
    "not itself": [of(F.LIKE, S, "a%", "!"), of(F.NOT, of(F.LIKE, S, "a%", "!"))],
    "flags": [B, of(F.NOT, B)],
    "false": [Literal(value=False, type=pa.bool_())],
    "every case": [of(F.OR, of(F.AND, of(F.GT, X, 1), of(F.LT, X, 0)), of(F.EQ, Y, None))],
}
PERHAPS: dict[str, list[Expression]] = {
    "nothing is said": [],
    "a range": [of(F.GT, X, 3), of(F.LT, X, 5)],
    "a point": [of(F.GE, X, 3), of(F.LE, X, 3)],
    "between decimals": [of(F.GT, N, Decimal(3)), of(F.LT, N, Decimal(4))],
    "between moments": [of(F.GT, T, NOON), of(F.LT, T, NOON + SECOND)],
    "zeros": [of(F.EQ, D, 0.0), of(F.EQ, D, -0.0)],
    "nan is above infinity": [of(F.GT, D, math.inf), of(F.EQ, D, math.nan)],
    "null safe": [of(F.EQ_NULL_SAFE, X, None), of(F.IS_NULL, X)],
    "two columns": [of(F.EQ, X, 1), of(F.EQ, Y, 2), of(F.LT, X, Y)],
    "as great as": [of(F.LE, X, Y), of(F.GE, X, Y)],
    "itself": [of(F.EQ, X, X), of(F.LE, X, X)],
    "one case": [of(F.OR, of(F.EQ, X, None), of(F.EQ, Y, 2))],
    "cases that are not looked at together": [of(F.OR, of(F.EQ, X, 1), of(F.EQ, X, 2)), of(F.EQ, X, 3)],
    "members": [of(F.IN, X, 1, 2, None), of(F.GE, X, 2)],
    "excluded": [of(F.NE, X, 1), of(F.GE, X, 1), of(F.LE, X, 2)],
    "true": [Literal(value=True, type=pa.bool_())],
}


@pytest.mark.parametrize("conditions", NEVER.values(), ids=list(NEVER))
def test_no_row_fulfils_what_contradicts_itself(conditions: list[Expression]) -> None:
    assert is_never_true(conditions)


@pytest.mark.parametrize("conditions", PERHAPS.values(), ids=list(PERHAPS))
def test_a_row_may_fulfil_anything_else(conditions: list[Expression]) -> None:
    assert not is_never_true(conditions)
