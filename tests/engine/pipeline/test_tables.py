"""Tables that are kept from run to run: when they are taken from there, and when they are read."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpujoin.config import Options
from gpujoin.engine.join.hash_join import HashJoin
from gpujoin.engine.memory import held_bytes
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.engine.pipeline import run
from gpujoin.engine.pipeline.resident import ResidentTables
from gpujoin.engine.pipeline.tables import BuiltTable, BuiltTables, TableCache, TableRows
from gpujoin.errors import ScanError
from gpujoin.model.expressions import left, right
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.pipeline import PipelineMetrics, Rung
from gpujoin.model.relations import ExchangeSource, FileSlice, Join, Relation, Scan
from gpujoin.model.spec import JoinSpec, KeyPair
from gpujoin.plan.resolve import resolve
from gpujoin.testing import assert_same_rows
from tests.deletions import inline

STREAM = pa.schema([("k", pa.int64()), ("v", pa.int64())])
TABLE = pa.schema([("kt", pa.int64()), ("lo", pa.int64())])
KINDS = [JoinType.INNER, JoinType.LEFT, JoinType.LEFT_SEMI, JoinType.LEFT_ANTI, JoinType.RIGHT]


def joined(kind: JoinType, *, ranged: bool) -> Relation:
    """Join source 0 with scan 0, which is built."""
    condition = resolve(left("v") >= right("lo"), STREAM, TABLE) if ranged else None
    output = () if kind in (JoinType.LEFT_SEMI, JoinType.LEFT_ANTI) else (0, 1)
    spec = JoinSpec(kind, (KeyPair(0, 0),), condition, (0, 1), output)
    return Join(ExchangeSource(0, STREAM), Scan(TABLE), spec, Side.RIGHT)


def written(path: Path, rows: int) -> FileSlice:
    """Write a table's file."""
    keys = [None if row % 7 == 0 else row % 5 for row in range(rows)]
    pq.write_table(pa.table([pa.array(keys, pa.int64()), pa.array(range(rows), pa.int64())], schema=TABLE), path)
    modified_ms = time.time_ns() // 1_000_000 | 1  # a whole second is what a file may be written again at
    os.utime(path, ns=(modified_ms * 1_000_000,) * 2)
    return FileSlice(str(path), path.stat().st_size, modified_ms)


def batch(first: int) -> pa.Table:
    keys = [None if row % 11 == 0 else row % 6 for row in range(first, first + 20)]
    return pa.table([pa.array(keys, pa.int64()), pa.array(range(20), pa.int64())], schema=STREAM)


def given(
    tree: Relation, rows: pa.Table, file: FileSlice, tables: BuiltTables | None, **named: object
) -> tuple[pa.Table, PipelineMetrics]:
    """Run a tree, and give what it has counted too."""
    metrics = PipelineMetrics()
    keeps = tables is not None
    batches = run(
        tree,
        {0: rows},
        {0: [file]},
        metrics=metrics,
        cache=TableCache(tables, stores_build_sides=keeps),
        **named,  # type: ignore[arg-type]
    )
    return pa.Table.from_batches(batches, tree.schema), metrics


@pytest.mark.parametrize("ranged", [False, True], ids=["keys", "keys and a range"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)
def test_kept_tables_give_the_same_rows(tmp_path: Path, kind: JoinType, ranged: bool) -> None:
    tables, tree, file = BuiltTables(), joined(kind, ranged=ranged), written(tmp_path / "0", 30)
    for number in range(3):
        expected, _ = given(tree, batch(number), file, None)
        result, metrics = given(tree, batch(number), file, tables)
        assert_same_rows(result, expected)
        assert (metrics.tables_kept, metrics.scanned_rows) == ((1, 0) if number else (0, 30))


def test_a_file_that_has_changed_is_read(tmp_path: Path) -> None:
    tables, tree = BuiltTables(), joined(JoinType.LEFT, ranged=True)
    given(tree, batch(0), written(tmp_path / "0", 30), tables)
    file = written(tmp_path / "0", 40)
    result, metrics = given(tree, batch(0), file, tables)
    assert (metrics.tables_kept, metrics.scanned_rows) == (0, 40)
    assert_same_rows(result, given(tree, batch(0), file, None)[0])
    os.utime(tmp_path / "0", (1, 1))
    _, metrics = given(tree, batch(0), FileSlice(file.path, file.size, 1000), tables)
    assert metrics.scanned_rows == 40


def test_other_joins_of_a_table_are_built_by_themselves(tmp_path: Path) -> None:
    tables, file = BuiltTables(), written(tmp_path / "0", 30)
    for kind, ranged in ((JoinType.LEFT, False), (JoinType.LEFT, True), (JoinType.INNER, False)):
        _, metrics = given(joined(kind, ranged=ranged), batch(0), file, tables)
        assert metrics.scanned_rows == 30


def test_tables_beyond_the_budget_are_not_kept(tmp_path: Path) -> None:
    tables, tree, file = (
        BuiltTables(),
        joined(JoinType.LEFT, ranged=False),
        written(tmp_path / "0", 1_000_000),
    )
    options = Options(memory_budget=32 << 20, spill_dir=str(tmp_path))
    before = held_bytes()
    for _ in range(2):
        _, metrics = given(tree, batch(0), file, tables, options=options)
        assert (metrics.tables_kept, metrics.scanned_rows) == (0, 1_000_000)
    assert held_bytes() == before


@pytest.mark.parametrize("keeps", [True, False])
def test_a_build_side_takes_the_room_of_the_least_recently_used_table(tmp_path: Path, keeps: bool) -> None:
    tables, tree = BuiltTables(), joined(JoinType.LEFT, ranged=False)
    options = Options(memory_budget=64 << 20, spill_dir=str(tmp_path))
    files = [written(tmp_path / str(number), 350_000 + number) for number in range(3)]
    for number in (0, 1, 0):
        given(tree, batch(0), files[number], tables, options=options)
    joins = JoinMetrics()
    result = run(
        tree,
        {0: batch(0)},
        {0: [files[2]]},
        options=options,
        join_metrics=joins,
        cache=TableCache(tables, stores_build_sides=keeps),
    )
    assert sum(part.num_rows for part in result) > 0
    assert joins.spills == 0
    kept = [given(tree, batch(0), files[n], tables, options=options)[1].tables_kept for n in (0, 1)]
    assert kept == [1, 0]


def test_a_task_that_failed_before_keeps_nothing(tmp_path: Path) -> None:
    tables, tree, file = BuiltTables(), joined(JoinType.LEFT, ranged=False), written(tmp_path / "0", 30)
    given(tree, batch(0), file, tables)
    assert given(tree, batch(0), file, tables)[1].tables_kept == 1
    assert given(tree, batch(0), file, tables, rung=Rung.CAREFUL)[1].tables_kept == 0
    assert given(tree, batch(0), file, tables)[1].tables_kept == 0


def read_by_all(tree: Relation, part: int, file: FileSlice, tables: BuiltTables, **named: object) -> PipelineMetrics:
    """Run one of the tasks that all read a file whole."""
    metrics = PipelineMetrics()
    batches = run(
        tree,
        {0: batch(part)},
        {0: [file]},
        metrics=metrics,
        cache=TableCache(tables, replicated=[0]),
        **named,  # type: ignore[arg-type]
    )
    expected, _ = given(tree, batch(part), file, None)
    assert_same_rows(pa.Table.from_batches(batches, tree.schema), expected)
    return metrics


def test_64_tasks_of_a_worker_read_a_small_table_once(tmp_path: Path) -> None:
    tables, tree, file = BuiltTables(), joined(JoinType.INNER, ranged=False), written(tmp_path / "0", 30)
    metrics = PipelineMetrics()
    for part in range(63):
        for _ in run(tree, {0: batch(part)}, {0: [file]}, metrics=metrics, cache=TableCache(tables, replicated=[0])):
            pass
    assert (metrics.scanned_rows, metrics.tables_kept) == (30, 62)
    assert read_by_all(tree, 63, file, tables).tables_kept == 1


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)
def test_rows_of_a_table_that_are_kept_give_the_same_joins(tmp_path: Path, kind: JoinType) -> None:
    tables, tree, file = BuiltTables(), joined(kind, ranged=True), written(tmp_path / "0", 30)
    assert [read_by_all(tree, part, file, tables).tables_kept for part in range(2)] == [0, 1]


def test_other_joins_take_the_rows_of_a_table_that_was_read(tmp_path: Path) -> None:
    tables, file = BuiltTables(), written(tmp_path / "0", 30)
    for number, tree in enumerate([joined(JoinType.LEFT, ranged=False), joined(JoinType.INNER, ranged=True)]):
        metrics = read_by_all(tree, number, file, tables)
        assert metrics.scanned_rows == (0 if number else 30)


def test_rows_of_another_file_or_of_other_columns_are_read(tmp_path: Path) -> None:
    tables, tree, file = BuiltTables(), joined(JoinType.INNER, ranged=False), written(tmp_path / "0", 30)
    read_by_all(tree, 0, file, tables)
    assert read_by_all(tree, 0, written(tmp_path / "1", 30), tables).tables_kept == 0
    assert read_by_all(tree, 0, written(tmp_path / "0", 40), tables).scanned_rows == 40
    unique = FileSlice(str(tmp_path / "0"), (tmp_path / "0").stat().st_size)
    assert [read_by_all(tree, 0, unique, tables).tables_kept for _ in range(2)] == [0, 1], "no other has its name"
    without = dataclasses.replace(unique, deletions=(inline([3]),))
    assert read_by_all(tree, 0, without, tables).tables_kept == 0


def test_rows_of_large_tables_and_of_a_task_that_failed_before_are_not_kept(tmp_path: Path) -> None:
    tables, tree, file = BuiltTables(), joined(JoinType.INNER, ranged=False), written(tmp_path / "0", 200_000)
    options = Options(memory_budget=32 << 20, spill_dir=str(tmp_path))
    before = held_bytes()
    metrics = PipelineMetrics()
    for _ in range(2):
        for _ in run(
            tree, {0: batch(0)}, {0: [file]}, options=options, metrics=metrics, cache=TableCache(tables, replicated=[0])
        ):
            pass
    assert (metrics.scanned_rows, metrics.tables_kept) == (400_000, 0)
    assert held_bytes() == before
    small = written(tmp_path / "1", 30)
    read_by_all(tree, 0, small, tables)
    assert read_by_all(tree, 0, small, tables).tables_kept == 1
    assert read_by_all(tree, 0, small, tables, rung=Rung.CAREFUL).tables_kept == 0
    assert read_by_all(tree, 0, small, tables).tables_kept == 0, "memory was short: nothing was kept"


def test_a_run_that_goes_on_on_the_cpu_uses_tables_of_the_cpu(tmp_path: Path) -> None:
    tables, tree, file = BuiltTables(), joined(JoinType.INNER, ranged=False), written(tmp_path / "0", 30)
    cache = TableCache(tables, ResidentTables(), replicated=[0])
    for kept in (0, 1):
        metrics = PipelineMetrics()
        list(run(tree, {0: batch(0)}, {0: [file]}, metrics=metrics, cache=cache, rung=Rung.FAST))
        assert metrics.tables_kept == kept


def test_a_run_that_ended_early_keeps_no_part_of_a_table(tmp_path: Path) -> None:
    tables, tree, file = BuiltTables(), joined(JoinType.INNER, ranged=False), written(tmp_path / "0", 30)
    rows = run(tree, {0: batch(0)}, {0: [file]}, cache=TableCache(tables, replicated=[0]))
    next(rows, None)
    rows.close()  # type: ignore[attr-defined]
    gone = FileSlice(str(tmp_path / "gone"), 10, 10)
    with pytest.raises(ScanError):
        list(run(tree, {0: batch(0)}, {0: [gone]}, cache=TableCache(tables, replicated=[0])))
    read_by_all(tree, 0, file, tables)
    assert read_by_all(tree, 1, file, tables).tables_kept == 1


def test_rows_that_a_run_with_lists_kept_are_taken_by_one_without(tmp_path: Path) -> None:
    tables, file = BuiltTables(), written(tmp_path / "0", 30)
    lists = pa.schema([*STREAM, ("l", pa.list_(pa.int64()))])
    spec = JoinSpec(JoinType.INNER, (KeyPair(0, 0),), None, (0, 1, 2), (0, 1))
    tree = Join(ExchangeSource(0, lists), Scan(TABLE), spec, Side.RIGHT)
    rows = batch(0).append_column("l", pa.array([[row] for row in range(20)], pa.list_(pa.int64())))
    for kept in (0, 1):
        metrics = PipelineMetrics()
        batches = run(tree, {0: rows}, {0: [file]}, metrics=metrics, cache=TableCache(tables, replicated=[0]))
        assert sum(part.num_rows for part in batches) > 0
        assert metrics.tables_kept == kept
    assert read_by_all(joined(JoinType.INNER, ranged=False), 0, file, tables).tables_kept == 1


@pytest.mark.parametrize("keeps", ["built side", "rows"])
def test_nothing_is_kept_of_a_file_that_may_be_written_again_at_the_same_time(tmp_path: Path, keeps: str) -> None:
    """Stores, and some file systems, have times in whole seconds."""
    tables, tree, path = BuiltTables(), joined(JoinType.INNER, ranged=False), tmp_path / "0"
    written(path, 30)

    def kept(modified_ms: int) -> list[int]:
        os.utime(path, ns=(modified_ms * 1_000_000,) * 2)
        file = FileSlice(str(path), path.stat().st_size, modified_ms)
        if keeps == "rows":
            return [read_by_all(tree, 0, file, tables).tables_kept for _ in range(2)]
        return [given(tree, batch(0), file, tables)[1].tables_kept for _ in range(2)]

    second = time.time_ns() // 1_000_000_000 * 1000
    assert kept(second) == [0, 0]
    assert kept(second + 7) == [0, 1], "by this clock the next version has another time"
    assert kept(second - 60_000) == [0, 1]


class Rows(TableRows):
    """Rows that are only counted."""

    def __post_init__(self) -> None:
        pass


def built(nbytes: int) -> BuiltTable:
    """A built side of some bytes."""
    table = pa.table({"k": pa.array([0] * (nbytes // 8), pa.int64())})
    spec = JoinSpec(JoinType.INNER, (KeyPair(0, 0),), None, (0,), (0,))
    join = HashJoin(spec, table.schema, table.schema, build_side=Side.RIGHT)
    join.build(table.to_batches())
    return BuiltTable(join, None, join.build_bytes)


def test_rows_that_queries_read_make_room_for_the_built_sides_of_a_stream() -> None:
    tables, limit = BuiltTables(), 1000
    tables.put("stream", built(600), limit)
    for number in range(4):
        tables.put(number, Rows((), 150), limit)
    assert tables.get("stream") is not None
    assert [tables.rows(number) is not None for number in range(4)] == [False, False, True, True]
    tables.put("too large", Rows((), 450), limit)
    assert tables.rows("too large") is None
    assert tables.rows(2) is not None
    tables.put("another stream", built(304), limit)
    assert tables.get("stream") is not None
    assert [tables.rows(number) is not None for number in (2, 3)] == [False, False]
    tables.put("a third one", built(200), limit)
    assert [tables.get(name) is not None for name in ("another stream", "stream")] == [False, True], "it was used last"


def test_rows_have_half_of_the_room_and_go_first() -> None:
    tables, limit = BuiltTables(), 1000
    for number in range(4):
        tables.put(number, Rows((), 200), limit)
    assert [tables.rows(number) is not None for number in range(4)] == [False, False, True, True]
    tables.put("stream", built(400), limit)
    assert [tables.drop() for _ in range(2)] == [True, True]
    assert tables.get("stream") is not None
    assert [tables.drop(), tables.drop()] == [True, False]
