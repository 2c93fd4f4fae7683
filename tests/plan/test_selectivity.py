"""Shares of rows that conditions are expected to keep."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

from gpujoin.model.expressions import Call, Expression, Function, Literal
from gpujoin.model.files import Bounds
from gpujoin.model.relations import Scan, column
from gpujoin.plan.estimates import Sizes
from gpujoin.plan.selectivity import kept_share

SCHEMA = pa.schema([("day", pa.date32()), ("n", pa.int64()), ("s", pa.string())])
DAYS: Bounds = (dt.date(1992, 1, 1), dt.date(1998, 8, 2))
BOUNDS: list[Bounds | None] = [DAYS, (0, 1000), (b"a", b"z")]
_TYPES = {dt.date: pa.date32(), int: pa.int64(), str: pa.string()}


def compared(function: Function, place: int, value: Any, *, mirrored: bool = False) -> Expression:
    dtype = SCHEMA.field(place).type
    arguments = (column(SCHEMA, place), Literal(value=value, type=dtype))
    return Call(function=function, arguments=arguments[::-1] if mirrored else arguments, type=pa.bool_())


def one_of(place: int, *values: Any) -> Expression:
    dtype = SCHEMA.field(place).type
    arguments = (column(SCHEMA, place), *(Literal(value=value, type=dtype) for value in values))
    return Call(function=Function.IN, arguments=arguments, type=pa.bool_())


def both(*conditions: Expression) -> Expression:
    return Call(function=Function.AND, arguments=conditions, type=pa.bool_())


YEAR = (compared(Function.GE, 0, dt.date(1994, 1, 1)), compared(Function.LT, 0, dt.date(1995, 1, 1)))


@pytest.mark.parametrize(
    ("conditions", "share"),
    [
        (YEAR, 365 / 2406),
        ([both(*YEAR)], 365 / 2406),
        ([*YEAR, compared(Function.GT, 1, 900)], 365 / 2406 * 100 / 1001),
        ([compared(Function.LE, 1, 250)], 251 / 1001),
        ([compared(Function.GT, 1, 250, mirrored=True)], 250 / 1001),
        ([compared(Function.LT, 1, 5000)], 1.0),
        ([compared(Function.GT, 1, 5000)], 0.001),
        ([compared(Function.LT, 1, 200), compared(Function.GT, 1, 800)], 0.001),
        ([compared(Function.EQ, 1, 7)], 0.1),
        ([compared(Function.GE, 1, 0)], 1.0),
        ([compared(Function.LT, 1, None)], 0.5),
        ([compared(Function.LT, 2, "k")], 0.5),
    ],
)
def test_a_range_holds_its_part_of_the_rows(conditions: list[Expression], share: float) -> None:
    assert kept_share(conditions, BOUNDS) == pytest.approx(share)


@pytest.mark.parametrize(
    ("condition", "share"),
    [
        (compared(Function.EQ, 2, "k"), 1 / 7),
        (compared(Function.EQ, 2, "k", mirrored=True), 1 / 7),
        (compared(Function.EQ_NULL_SAFE, 2, "k"), 1 / 7),
        (Call(function=Function.NOT, arguments=(compared(Function.EQ, 2, "k"),), type=pa.bool_()), 6 / 7),
        (one_of(2, "k", "m"), 2 / 7),
        (one_of(2, *"abcdefghi"), 1.0),
        (both(compared(Function.EQ, 2, "k"), compared(Function.LE, 1, 250)), 251 / 1001 / 7),
        (compared(Function.EQ, 1, 7), 0.001),  # of a million: values may be anything but even
        (compared(Function.EQ, 0, DAYS[0]), 0.1),  # of an unknown number
    ],
)
def test_each_value_of_a_column_has_its_part_of_the_rows(condition: Expression, share: float) -> None:
    assert kept_share([condition], BOUNDS, (None, 1e6, 7.0)) == pytest.approx(share)


@pytest.mark.parametrize("bounds", [[None] * 3, [], [(True, False)] * 3])
def test_without_bounds_comparisons_are_as_usual(bounds: list[Bounds | None]) -> None:
    assert kept_share(YEAR, bounds) == 0.25


def test_moments_with_and_without_a_zone() -> None:
    moments = [dt.datetime(2024, 1, day, tzinfo=zone) for day in (1, 6, 11) for zone in (dt.UTC, None)]
    for zoned, dtype in ((0, pa.timestamp("us", "UTC")), (1, pa.timestamp("us"))):
        low, middle, high = moments[zoned::2]
        schema = pa.schema([("t", dtype)])
        below = Call(
            function=Function.LT, arguments=(column(schema, 0), Literal(value=middle, type=dtype)), type=pa.bool_()
        )
        assert kept_share([below], [(low, high)]) == pytest.approx(0.5)


def test_scans_know_what_their_filters_keep() -> None:
    assert Sizes({0: 1000.0}).of(Scan(SCHEMA, filters=YEAR)).rows == 250
    assert Sizes({0: 1000.0}).of(Scan(SCHEMA, filters=YEAR, selectivity=0.15)).rows == 150
