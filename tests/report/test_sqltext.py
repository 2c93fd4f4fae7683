"""Expressions as explain shows them."""

from __future__ import annotations

import dataclasses
import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from gpujoin.model.expressions import Cast, Expression, Function, Variable, call, coalesce, left, lit, right, when
from gpujoin.model.sqltext import show_condition, show_expression, show_type, show_value
from gpujoin.report.stages import show_filters

A, B, C = left("a"), left("b"), left("c#12")
X, N = Variable(name="x#3"), Variable(name="n#4")
EXPRESSIONS: list[tuple[Expression, str]] = [
    (C, "c"),
    ((A + B) * C, "(a + b) * c"),
    (A + B * C, "a + b * c"),
    (A - (B - C), "a - (b - c)"),
    (A - B - C, "a - b - c"),
    (-(A + B), "-(a + b)"),
    ((A > 1) & ((B < 2) | (C == 3)), "a > 1 and (b < 2 or c = 3)"),
    (((A > 1) & (B < 2)) | (C == 3), "a > 1 and b < 2 or c = 3"),
    (~(A == 1), "a != 1"),
    (~A.like("x%"), "a not like 'x%'"),
    (~A.is_in([1, 2]), "a not in (1, 2)"),
    (~((A > 1) & (B > 1)), "not (a > 1 and b > 1)"),
    ((A == 1) == (B == 2), "(a = 1) = (b = 2)"),
    (A.is_null() == B.is_null(), "(a is null) = (b is null)"),
    (call(Function.IS_NOT_NULL, A + B), "a + b is not null"),
    (coalesce(A, B + 1), "coalesce(a, b + 1)"),
    (A.field("f").field("g"), "a.f.g"),
    ((A + B).field("f"), "(a + b).f"),
    (when(A > 1, B).when(A > 2, 0).else_(C), "case when a > 1 then b when a > 2 then 0 else c end"),
    (when(A > 1, B), "case when a > 1 then b end"),
    (A.cast(pa.decimal128(38, 4)), "cast(a as decimal(38,4))"),
    (Cast(child=A, to=pa.int64()) + 1, "a + 1"),
    ((Cast(child=A + B, to=pa.int64())) * 2, "(a + b) * 2"),
    (A == "x" * 200, f"a = '{'x' * 79}…'"),
    (A == b"x" * 200, f"a = x'{'78' * 39}7…'"),
    (call(Function.TRANSFORM, A, X + N, X, N), "transform(a, (x, n) -> x + n)"),
    (call(Function.EXISTS, A, X > B, X), "exists(a, x -> x > b)"),
    (dataclasses.replace(A + B, written="sum(x)") * 2, "sum(x) * 2"),
]


@pytest.mark.parametrize(("expression", "text"), EXPRESSIONS, ids=[text for _, text in EXPRESSIONS])
def test_expressions(expression: Expression, text: str) -> None:
    assert show_expression(expression) == text


def test_columns_of_two_sides() -> None:
    assert (
        show_condition((left("v#1") < right("v#2")) & (left("w") == lit("it's")))
        == r"left.v < right.v and left.w = 'it\'s'"
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (list(range(100)), f"{str(list(range(100))).replace('[', 'array(')[:79]}…"),
        (None, "null"), (True, "true"), (1, "1"), (1.5, "1.5"), (Decimal("0.05"), "0.05"), ("a", "'a'"),
        (b"\x00\xff", "x'00ff'"), (dt.date(2024, 2, 29), "date '2024-02-29'"),
        (dt.datetime(2024, 2, 29, 1, 2, 3, tzinfo=dt.UTC), "timestamp '2024-02-29 01:02:03+00:00'"),
        (dt.timedelta(hours=1), "interval 1 hour"), (dt.timedelta(0), "interval 0 seconds"),
        (-dt.timedelta(days=1, minutes=2, milliseconds=1500), "interval -1 day -2 minutes -1.5 seconds"),
        ([1, None], "array(1, null)"), ({"a": 1}, "map('a', 1)"),
    ],
)  # fmt: skip
def test_constants(value: object, text: str) -> None:
    assert show_value(value) == text


@pytest.mark.parametrize(
    ("dtype", "text"),
    [
        (pa.int8(), "tinyint"), (pa.large_string(), "string"), (pa.timestamp("us"), "timestamp_ntz"),
        (pa.timestamp("us", "UTC"), "timestamp"), (pa.list_(pa.int64()), "array<bigint>"),
    ],
)  # fmt: skip
def test_types(dtype: pa.DataType, text: str) -> None:
    assert show_type(dtype) == text


def test_tests_for_nulls_that_follow_from_other_conditions() -> None:
    known = [~C.is_null(), call(Function.IS_NOT_NULL, A), call(Function.IS_NOT_NULL, B), A > 3, (B == 1) | (B + 1 == C)]
    assert show_filters(known) == ("c is not null", "a > 3", "(b = 1 or b + 1 = c)")
    unknown = [call(Function.IS_NOT_NULL, A), coalesce(A, B) > 3, (A == 1) | (B == 2), A.equal_null_safe(1)]
    assert show_filters(unknown) == ("a is not null", "coalesce(a, b) > 3", "(a = 1 or b = 2)", "a <=> 1")
    twice = [call(Function.IS_NOT_NULL, A), call(Function.IS_NOT_NULL, A)]
    assert show_filters(twice) == ("a is not null", "a is not null")
