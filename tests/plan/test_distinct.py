"""Numbers of different values of columns, and what follows for joins and groups."""

from __future__ import annotations

import dataclasses
import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from gpujoin.model.expressions import Call, Function, Literal
from gpujoin.model.files import Bounds
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.relations import Filter, Join, Output, PartialAggregate, Project, Relation, Scan, Union, column
from gpujoin.model.spec import JoinSpec, KeyPair
from gpujoin.plan.distinct import distinct_in_files
from gpujoin.plan.estimates import Sizes, build_side

SCHEMA = pa.schema([("item", pa.int32()), ("day", pa.date32()), ("price", pa.decimal128(7, 2)), ("name", pa.string())])
DAYS = (dt.date(2024, 1, 1), dt.date(2024, 12, 31))
ROWS = {0: 1_000_000.0, 1: 4_000_000.0, 2: 18_000.0}


def scan(index: int, distinct: tuple[float | None, ...] = (), kept: float | None = None) -> Scan:
    return Scan(SCHEMA, index=index, distinct=distinct, selectivity=kept)


def joined(how: JoinType, left: Relation, right: Relation, *keys: int, residual: bool = False) -> Join:
    condition = None
    if residual:
        other = dataclasses.replace(column(right.schema, 2), side=Side.RIGHT)
        compared = (column(left.schema, 2), other)
        condition = Call(function=Function.LT, arguments=compared, type=pa.bool_())
    positions = tuple(range(len(left.schema)))
    others = () if how.left_rows_only else (1,)
    return Join(left, right, JoinSpec(how, tuple(KeyPair(k, k) for k in keys), condition, positions, others))


def test_values_lie_between_the_least_and_the_greatest() -> None:
    bounds: list[Bounds] = [(1, 18_000), DAYS, (Decimal("0.01"), Decimal("9.99")), (b"a", b"z")]
    assert distinct_in_files(SCHEMA, bounds, 1e6, {}) == (18_000, 366, 999, None)
    assert distinct_in_files(SCHEMA, bounds, 500, {}) == (500, 366, 500, None)
    assert distinct_in_files(SCHEMA, bounds, 1e6, {"item": 9_000.0, "name": 7.0}) == (9_000, 366, 999, 7)
    assert distinct_in_files(SCHEMA, [None, None], 1e6, {}) == (None, None, None, None)


def test_what_a_file_tells_counts_where_the_bounds_tell_less() -> None:
    bounds: list[Bounds | None] = [(1, 20), DAYS, None, None]
    assert distinct_in_files(SCHEMA, bounds, 1e6, {}, (11.0, 12.0, 4.0, 7.0)) == (20, 12, 4, 7)
    assert distinct_in_files(SCHEMA, bounds, 1e6, {"name": 5.0}, (None, None, None, 7.0)) == (20, 366, None, 5)


@pytest.mark.parametrize("where", ["scan", "filter"])
def test_conditions_leave_the_values_that_they_ask_for(where: str) -> None:
    equal = [
        Call(
            function=Function.EQ,
            arguments=(column(SCHEMA, 1), Literal(value=DAYS[0], type=pa.date32())),
            type=pa.bool_(),
        ),
        Call(
            function=Function.IN,
            arguments=(column(SCHEMA, 3), *(Literal(value=name, type=pa.string()) for name in "ab")),
            type=pa.bool_(),
        ),
    ]
    distinct = (18_000.0, 366.0, None, None)
    filtered: Relation
    if where == "scan":
        filtered = dataclasses.replace(scan(0, distinct), filters=(equal[0], equal[1]))
    else:
        both = Call(function=Function.AND, arguments=(equal[0], equal[1]), type=pa.bool_())
        filtered = Filter(scan(0, distinct), both)
    assert Sizes(ROWS).of(filtered).distinct == (18_000, 1, None, 2)


SALES, STOCK, ITEMS = scan(0, (18_000.0, 366.0, None, None)), scan(1, (18_000.0, 52.0, None, None)), scan(2)


def test_a_join_by_keys_that_both_sides_repeat_finds_more_rows_than_either_has() -> None:
    pairs = 1e6 * 4e6 / 18_000
    for how in (JoinType.INNER, JoinType.LEFT, JoinType.RIGHT):
        assert Sizes(ROWS).of(joined(how, SALES, STOCK, 0)).rows == pytest.approx(pairs)
    assert Sizes(ROWS).of(joined(JoinType.INNER, SALES, STOCK, 0, residual=True)).rows == pytest.approx(pairs / 2)
    assert Sizes(ROWS).of(joined(JoinType.INNER, SALES, STOCK, 0, 1)).rows == pytest.approx(4e6)
    assert Sizes(ROWS).of(joined(JoinType.LEFT_SEMI, SALES, STOCK, 0)).rows == 1e6


def test_a_join_with_a_table_of_the_keys_finds_one_row_for_each() -> None:
    for items in (ITEMS, scan(2, (18_000.0, None, None, None))):
        assert Sizes(ROWS).of(joined(JoinType.INNER, SALES, items, 0)).rows == pytest.approx(1e6)
    few = scan(2, (18_000.0, None, None, None), kept=0.1)
    assert Sizes(ROWS).of(joined(JoinType.INNER, SALES, few, 0)).rows == pytest.approx(1e5)


def test_numbers_of_values_follow_columns() -> None:
    moved = Project(SALES, tuple(Output(f"c{i}", column(SCHEMA, i)) for i in (3, 0, 1)))
    assert Sizes(ROWS).of(moved).distinct == (None, 18_000, 366)
    both = joined(JoinType.INNER, moved, STOCK, 1)
    assert Sizes(ROWS).of(both).distinct == (None, 18_000, 366, 52)
    assert Sizes(ROWS).of(Union((SALES, STOCK))).distinct == (36_000, 418, None, None)


def test_there_are_no_more_groups_than_values_of_their_keys() -> None:
    for keys, rows in (((1,), 366), ((0, 1), 2e5), ((3,), 2e5), ((), 1)):
        outputs = tuple(Output(f"k{i}", column(SCHEMA, i)) for i in keys)
        calls = PartialAggregate(SALES, outputs) if keys else None
        assert calls is None or Sizes(ROWS).of(calls).rows == rows


def test_the_side_with_fewer_rows_is_built() -> None:
    pairs = joined(JoinType.INNER, SALES, STOCK, 0)
    large = scan(1, (18_000.0, None, None, None))
    assert build_side(JoinType.INNER, large, pairs, Sizes(ROWS)) is Side.LEFT


@pytest.mark.parametrize(
    ("kept", "found"),
    [
        (73 / 73_000, 73 / 366),  # days of the calendar that the sales may have, all of them
        (36_500 / 73_000, 0.5),  # more days than the sales have: not all of them are theirs
    ],
)
def test_keys_that_a_filter_leaves_are_taken_to_be_among_those_that_are_looked_up(kept: float, found: float) -> None:
    calendar = scan(3, (None, 73_000.0, None, None), kept=kept)
    sizes = Sizes({**ROWS, 3: 73_000.0})
    for how in (JoinType.INNER, JoinType.LEFT_SEMI):
        assert sizes.of(joined(how, SALES, calendar, 1)).rows == pytest.approx(1e6 * found)
    assert sizes.of(joined(JoinType.INNER, scan(0), calendar, 1)).rows == pytest.approx(1e6 * kept)
