"""Row groups, files and rows that are left out as they are read, since a join above has no match for them."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpujoin.backends.cpu.pipeline.parquet import read
from gpujoin.backends.cpu.pipeline.piece import Piece
from gpujoin.backends.cpu.pipeline.valueranges import value_ranges
from gpujoin.errors import ExpressionEvaluationError
from gpujoin.model.expressions import EvalMode, Function, call, left, lit, right
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.pipeline import PIECE_BYTES, PipelineMetrics
from gpujoin.model.relations import Scan, Union
from gpujoin.model.spec import NullEquality
from gpujoin.model.windows import WindowFunction
from gpujoin.testing import assert_same_rows
from tests.engine.pipeline import places
from tests.engine.pipeline.places import everywhere
from tests.trees import Over, Tree, count, file_slice, total

GROUPS, GROUP_ROWS = 10, 100
ROWS = GROUPS * GROUP_ROWS
BUILT = pa.table({"b": [250, 260, 777, None], "w": [1, 2, 3, 4]})
"""Keys of two of the ten row groups."""


def numbers() -> pa.Table:
    """Keys that ascend, but for nulls, and a value."""
    keys = np.arange(ROWS)
    return pa.table({"k": pa.array(keys, mask=keys % 9 == 0), "v": pa.array(keys % 7)})


def scan(folder: Path, table: pa.Table) -> Tree:
    pq.write_table(table, folder / "t.parquet", row_group_size=GROUP_ROWS)
    return Tree.scan(folder / "t.parquet")


def joined(tree: Callable[[Tree], Tree], folder: Path, table: pa.Table, built: pa.Table) -> PipelineMetrics:
    """Run a tree over a file, compare with the same tree over rows that nothing can be left out of."""
    metrics = PipelineMetrics()
    scanned = tree(scan(folder, table)).relation
    actual = pa.Table.from_batches(places.run(scanned, {1: built}, metrics=metrics), scanned.schema)
    given = tree(Tree.source(table.schema, 0)).relation
    expected = pa.Table.from_batches(places.run(given, {0: table, 1: built}), given.schema)
    assert_same_rows(actual, expected, allow_empty=True)
    assert metrics.row_groups + metrics.skipped_row_groups == GROUPS
    return metrics


SKIPS = {
    (JoinType.INNER, Side.RIGHT), (JoinType.INNER, Side.LEFT), (JoinType.LEFT_SEMI, Side.RIGHT),
    (JoinType.RIGHT, Side.RIGHT),
}  # fmt: skip
"""Joins of a streamed left side without whose unmatched rows the result is the same."""


@everywhere
@pytest.mark.parametrize("how", list(JoinType), ids=lambda how: how.value)
def test_only_joins_that_drop_unmatched_rows_leave_row_groups_out(how: JoinType, tmp_path: Path) -> None:
    if how is JoinType.CROSS:
        pytest.skip("has no keys")
    metrics = joined(
        lambda rows: rows.join(Tree.source(BUILT.schema, 1), {"k": "b"}, how.value), tmp_path, numbers(), BUILT
    )
    assert metrics.skipped_row_groups == (8 if (how, Side.RIGHT) in SKIPS else 0)


@everywhere
@pytest.mark.parametrize("how", ["inner", "left", "right", "full", "left_semi", "left_anti"])
def test_a_streamed_right_side(how: str, tmp_path: Path) -> None:
    """Its rows without a match are returned by right and full joins alone."""
    metrics = joined(
        lambda rows: Tree.source(BUILT.schema, 1).join(rows, {"b": "k"}, how, build=Side.LEFT),
        tmp_path, numbers(), BUILT,
    )  # fmt: skip
    assert metrics.skipped_row_groups == (0 if how in ("right", "full") else 8)


def test_a_null_safe_key_leaves_nothing_out(tmp_path: Path) -> None:
    metrics = joined(
        lambda rows: rows.join(Tree.source(BUILT.schema, 1), {"k": "b"}, nulls=NullEquality.EQUAL),
        tmp_path, numbers(), BUILT,
    )  # fmt: skip
    assert metrics.skipped_row_groups == 0


def test_nested_payload_of_the_build_side(tmp_path: Path) -> None:
    built = BUILT.append_column("list", pa.array([[1], [], None, [2]]))
    metrics = joined(lambda rows: rows.join(Tree.source(built.schema, 1), {"k": "b"}), tmp_path, numbers(), built)
    assert metrics.skipped_row_groups == 8


@pytest.mark.parametrize("keys", [[], [None, None]], ids=["no rows", "nulls"])
def test_no_key_leaves_everything_out(keys: list[Any], tmp_path: Path) -> None:
    built = pa.table({"b": pa.array(keys, pa.int64()), "w": pa.array(range(len(keys)), pa.int64())})
    metrics = joined(lambda rows: rows.join(Tree.source(built.schema, 1), {"k": "b"}), tmp_path, numbers(), built)
    assert metrics.skipped_row_groups == GROUPS


@pytest.mark.parametrize(("count", "skipped"), [(2_000, 7), (300_000, 0)])
def test_of_many_keys_ranges_are_used(count: int, skipped: int, tmp_path: Path) -> None:
    """Two of 2,000 keys make a range, and only the ranges about 150 to 350 are wider; 300,000 keys are one range."""
    low, high = np.arange(count // 2) - count // 2 + 150, np.arange(count // 2) + 20_000
    built = pa.table({"b": np.concatenate([low, [350, 351], high]), "w": np.zeros(count + 2)})
    metrics = joined(lambda rows: rows.join(Tree.source(built.schema, 1), {"k": "b"}), tmp_path, numbers(), built)
    assert metrics.skipped_row_groups == skipped


DAY, MOMENT = dt.date(1999, 12, 31), dt.datetime(1999, 12, 31)  # noqa: DTZ001
KINDS: dict[str, tuple[pa.DataType, Callable[[int], Any]]] = {
    "int32": (pa.int32(), lambda i: i - 500),
    "date": (pa.date32(), lambda i: DAY + dt.timedelta(days=i)),
    "text": (pa.string(), lambda i: f"é{i:05d}"),
    "bytes": (pa.binary(), lambda i: b"\xff%05d" % i),
    "decimal": (pa.decimal128(9, 2), lambda i: Decimal(i).scaleb(-2)),
    "double": (pa.float64(), lambda i: i / 4),
    "timestamp": (pa.timestamp("us"), lambda i: MOMENT + dt.timedelta(hours=i)),
    "boolean": (pa.bool_(), lambda i: i > 500),
}


@pytest.mark.parametrize("kind", KINDS)
def test_types(kind: str, tmp_path: Path) -> None:
    dtype, value = KINDS[kind]
    table = pa.table({"k": pa.array([value(i) for i in range(ROWS)], dtype), "v": range(ROWS)})
    built = pa.table({"b": pa.array([value(i) for i in (250, 777)], dtype), "w": [1, 2]})
    metrics = joined(lambda rows: rows.join(Tree.source(built.schema, 1), {"k": "b"}), tmp_path, table, built)
    assert metrics.skipped_row_groups == (8 if kind in ("int32", "date", "text", "bytes") else 0)
    assert metrics.key_filters == (2 if kind in ("int32", "date") else 0)  # once for each row group that is left


def test_whole_numbers_of_two_widths(tmp_path: Path) -> None:
    """The planner casts one of them, below the join."""
    built = pa.table({"b": pa.array([250], pa.int32()), "w": [1]})
    metrics = joined(
        lambda rows: rows.join(Tree.source(built.schema, 1).select("w", b=left("b").cast(pa.int64())), {"k": "b"}),
        tmp_path, numbers(), built,
    )  # fmt: skip
    assert (metrics.skipped_row_groups, metrics.key_filters) == (9, 1)


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize(("wanted", "filtered"), [(range(0, ROWS, 2), True), (range(-50, ROWS - 100), False)])
def test_rows_are_left_out_unless_most_values_are_wanted(
    wanted: range, *, filtered: bool, statistics: bool, tmp_path: Path
) -> None:
    table = numbers()
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=ROWS, write_statistics=statistics)
    tree = Tree.scan(tmp_path / "t.parquet").where(left("v") > 0)
    built = pa.table({"b": pa.array(wanted, pa.int32())})
    build = Tree.source(built.schema, 1).select(b=left("b").cast(pa.int64()))
    metrics = PipelineMetrics()
    joined = tree.join(build, {"k": "b"}, "left_semi")
    actual = pa.Table.from_batches(places.run(joined.relation, {1: built}, metrics=metrics), joined.schema)
    expected = [(k, v) for k, v in zip(*table.to_pydict().values(), strict=True) if v and k in wanted]
    assert sorted(zip(*actual.to_pydict().values(), strict=True)) == expected
    assert metrics.key_filters == (1 if filtered or not statistics else 0)


@pytest.mark.parametrize(
    ("keys", "with_condition", "filters"),
    [(200_000, False, 1), (300_000, False, 0), (300_000, True, 1)],
    ids=["in order", "too many", "many, with a condition"],
)
def test_rows_are_left_out_by_many_keys(keys: int, *, with_condition: bool, filters: int, tmp_path: Path) -> None:
    """A join with a condition looks up more keys, as each of its rows costs more."""
    table = pa.table({"k": np.arange(ROWS) * 9_001, "v": np.arange(ROWS)})
    pq.write_table(table, tmp_path / "t.parquet")
    built = pa.table({"b": np.arange(keys) * 30, "w": np.arange(keys) % 2})
    condition = left("v") % 2 == right("w") if with_condition else None
    metrics = PipelineMetrics()
    joined = Tree.scan(tmp_path / "t.parquet").join(
        Tree.source(built.schema, 1), {"k": "b"}, "left_semi", condition=condition
    )
    actual = pa.Table.from_batches(places.run(joined.relation, {1: built}, metrics=metrics), joined.schema)
    expected = [
        v
        for v in range(ROWS)
        if v * 9_001 % 30 == 0 and v * 9_001 // 30 < keys and (not with_condition or v % 2 == v * 9_001 // 30 % 2)
    ]
    assert sorted(actual["v"].to_pylist()) == expected
    assert metrics.key_filters == filters


def test_values_that_the_column_cannot_have(tmp_path: Path) -> None:
    """A key of 64 bits beyond those of the column's 32 is no value of it."""
    table = pa.table({"k": pa.array([*range(ROWS - 1), 1 << 30], pa.int32()), "v": range(ROWS)})
    built = pa.table({"b": [7, (1 << 32) + 7, -(1 << 63), (1 << 63) - 1]})
    rows = scan(tmp_path, table).relation
    assert isinstance(rows, Scan)
    wanted = value_ranges(Piece.of_batches(built.to_batches(), built.schema, PipelineMetrics()), 0, built.num_rows)
    assert wanted is not None
    pieces = list(
        read(dataclasses.replace(rows, match_ranges=((0, wanted),)), PipelineMetrics(), piece_bytes=PIECE_BYTES)
    )
    assert [piece.eager().rows() for piece in pieces] == [[(7, 7)]]


@everywhere
def test_days_that_python_does_not_have(tmp_path: Path) -> None:
    """Days before the year 1 and after 9999 are keys as others are, of which statistics tell nothing."""
    days = np.concatenate([[-1_000_000, -800_000], np.arange(2, ROWS - 1), [3_000_000]])
    table = pa.table({"k": pa.array(days, pa.int32()).cast(pa.date32()), "v": range(ROWS)})
    built = pa.table({"b": pa.array([-1_000_000, -900_000, 3, 105], pa.int32()).cast(pa.date32())})
    metrics = joined(lambda rows: rows.join(Tree.source(built.schema, 1), {"k": "b"}), tmp_path, table, built)
    assert metrics.skipped_row_groups == 7, "the first has days before the year 1, the last one after 9999"
    assert not metrics.recovered
    piece = Piece.of_batches(built.to_batches(), built.schema, PipelineMetrics())
    of_many = value_ranges(piece, 0, built.num_rows - 1)
    assert of_many is not None
    assert (of_many.lows, of_many.highs) == ((dt.date.min,), (dt.date(1970, 4, 16),))


@everywhere
@pytest.mark.parametrize("place_of_it", ["scan", "filter", "argument", "grouping key", "partition", "another key"])
def test_a_row_without_a_match_still_raises(place_of_it: str, tmp_path: Path) -> None:
    """As in Spark, which has no other way to leave it out than to look at it."""
    table = numbers()
    quotient = call(Function.INTEGRAL_DIVIDE, 10, left("v") - lit(3), mode=EvalMode.ANSI)
    rows, keys = scan(tmp_path, table), {"k": "b"}
    match place_of_it:
        case "scan":
            rows = rows.where(quotient > 0)
        case "filter":
            rows = rows.select("v", "k").where(quotient > 0)
        case "argument":
            rows = rows.group("k", s=total(quotient))
        case "grouping key":
            rows = rows.select("k", q=quotient).group("k", "q", n=count())
        case "partition":
            rows = rows.select("k", "v", q=quotient)
            rows = rows.window(["k", "q"], [("v", False, True)], n=Over(WindowFunction.ROW_NUMBER))
        case "another key":
            rows, keys = rows.select("k", q=quotient), {"k": "b", "q": "w"}
    joined = rows.join(Tree.source(BUILT.schema, 1), keys)
    with pytest.raises(ExpressionEvaluationError, match="zero"):
        list(places.run(joined.relation, {1: BUILT}))


OTHER = pa.table({"o": range(0, ROWS, 3), "x": range(0, ROWS, 3)})
PATHS: dict[str, tuple[Callable[[Tree], Tree], int]] = {
    "filter": (lambda rows: rows.where(left("v") > 2), 8),
    "renamed": (lambda rows: rows.select("v", k=left("k")), 8),
    "computed": (lambda rows: rows.select("v", k=left("k") + 1), 0),
    "group by it": (lambda rows: rows.group("k", v=count(left("v"))), 8),
    "group by another": (lambda rows: rows.group("v", t=total(left("k"))).select("v", k=left("t.sum")), 0),
    "first ten": (lambda rows: rows.top(10, ("v", False), ("k", False)), 0),
    "window by it": (
        lambda rows: rows.window(["k"], [("v", False, True)], n=Over(WindowFunction.ROW_NUMBER)), 8,
    ),
    "window by another": (
        lambda rows: rows.window(["v"], [("k", False, True)], n=Over(WindowFunction.ROW_NUMBER)), 0,
    ),
    "left of an inner join": (lambda rows: rows.join(other(), {"v": "o"}, keep=["k", "v"]), 8),
    "left of a left join": (lambda rows: rows.join(other(), {"k": "o"}, "left", keep=["k", "v", "x"]), 8),
    "right of a left join": (lambda rows: other().join(rows, {"o": "k"}, "left", keep=["k", "v"]), 0),
    "left of an anti join": (lambda rows: rows.join(other(), {"k": "o"}, "left_anti"), 8),
    "left of a full join": (lambda rows: rows.join(other(), {"k": "o"}, "full", keep=["k", "v"]), 0),
}  # fmt: skip
"""What stands between the scan and the join, and how many row groups are left out."""


def other() -> Tree:
    return Tree.source(OTHER.schema, 2)


@everywhere
@pytest.mark.parametrize("path", PATHS)
def test_what_stands_between(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    between, skipped = PATHS[path]
    plain = places.run
    monkeypatch.setattr(places, "run", lambda tree, inputs, **options: plain(tree, {**inputs, 2: OTHER}, **options))
    metrics = joined(
        lambda rows: between(rows).join(Tree.source(BUILT.schema, 1), {"k": "b"}), tmp_path, numbers(), BUILT
    )
    assert metrics.skipped_row_groups == skipped


def test_joins_above_one_another_leave_out_what_any_has_no_match_for(tmp_path: Path) -> None:
    more = pa.table({"b": [5, 255, 999], "w": [0, 0, 0]})
    tree = scan(tmp_path, numbers()).join(Tree.source(more.schema, 2), {"k": "b"}, keep=["k", "v"])
    tree = tree.join(Tree.source(BUILT.schema, 1), {"k": "b"}, "left_semi")
    metrics = PipelineMetrics()
    rows = pa.Table.from_batches(places.run(tree.relation, {1: BUILT, 2: more}, metrics=metrics), tree.schema)
    assert rows.num_rows == 0
    assert metrics.skipped_row_groups == 9  # of those with 250, 260 and 777, the one with 255 is left


def test_a_scan_that_stands_twice_gives_all_rows(tmp_path: Path) -> None:
    """As one object, and as equal parts that are computed once."""
    rows = scan(tmp_path, numbers())
    small = rows.join(Tree.source(BUILT.schema, 1), {"k": "b"}, keep=["k", "v"])
    for other_rows in (rows, Tree(dataclasses.replace(rows.relation))):
        both = Union((small.relation, other_rows.relation))
        result = pa.Table.from_batches(places.run(both, {1: BUILT}), both.schema)
        assert result.num_rows == 3 + ROWS
    grouped = rows.group("k", v=total(left("v"))).relation
    again = Tree(grouped.with_children([dataclasses.replace(rows.relation)]))
    filtered = Tree(grouped).join(Tree.source(BUILT.schema, 1), {"k": "b"}, keep=grouped.schema.names)
    both = Union((filtered.relation, again.relation))
    result = pa.Table.from_batches(places.run(both, {1: BUILT}), both.schema)
    assert result.num_rows == 3 + len(numbers()["k"].unique())


def test_files_of_other_constants_are_not_opened(tmp_path: Path) -> None:
    table = pa.table({"v": range(10)})
    slices = []
    for day in (1, 2, None):
        path = tmp_path / f"day={day}.parquet"
        pq.write_table(table, path)
        slices.append(file_slice(path, constants=(day,)))
    schema = pa.schema([("v", pa.int64()), ("day", pa.int32())])
    built = pa.table({"b": pa.array([2, 7], pa.int32()), "w": [1, 2]})
    tree = Tree(Scan(schema, partition_columns=1, slices=tuple(slices)))
    tree = tree.join(Tree.source(built.schema, 1), {"day": "b"})
    (tmp_path / "day=1.parquet").unlink()
    metrics = PipelineMetrics()
    result = pa.Table.from_batches(places.run(tree.relation, {1: built}, metrics=metrics), tree.schema)
    assert result["day"].to_pylist() == [2] * 10
    assert (metrics.files, metrics.skipped_files) == (1, 2)


def test_random_joins(tmp_path: Path, rng: np.random.Generator, seed: int) -> None:
    """Over keys that ascend, descend, or are in no order, with nulls."""
    for turn in range(30):
        keys = np.sort(rng.integers(-50, 50, ROWS)) if turn % 3 else rng.integers(-50, 50, ROWS)
        keys = keys[::-1] if turn % 2 else keys
        table = pa.table({"k": pa.array(keys, mask=rng.random(ROWS) < rng.choice([0, 0.3, 1])), "v": range(ROWS)})
        some = rng.integers(-60, 60, rng.integers(0, 6))
        built = pa.table({"b": pa.array(some, mask=rng.random(len(some)) < 0.2), "w": range(len(some))})
        how = ["inner", "left_semi", "right", "left", "left_anti"][turn % 5]
        joined(lambda rows: rows.join(Tree.source(built.schema, 1), {"k": "b"}, how), tmp_path, table, built)  # noqa: B023
