"""Groups that are returned before all rows were read, where files are in the order of a key."""

from __future__ import annotations

import dataclasses
import datetime as dt
import struct
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpujoin.config import Options
from gpujoin.engine.pipeline import run
from gpujoin.errors import DecodeError, ExpressionEvaluationError
from gpujoin.model.aggregates import AggregateFunction
from gpujoin.model.expressions import left, lit
from gpujoin.model.pipeline import PipelineMetrics, Rung
from gpujoin.model.relations import Limit, PartialAggregate, Scan
from gpujoin.testing import assert_same_rows
from tests.trees import Aggregate, Tree, count, file_slice, total

GROUPS, GROUP_ROWS = 12, 100
ROWS = GROUPS * GROUP_ROWS
PIECE_BYTES = 1_000
"""Of pieces: each row group is one, since two are larger, and a row group is read at once up to four times the size."""


def lines(keys: np.ndarray, dtype: pa.DataType | None = None) -> pa.Table:
    """Rows of keys, of which some are null, with a value and a number of few values."""
    null = np.arange(len(keys)) % 97 == 5
    small = {name: pa.array(keys % most, pa.int32()) for name, most in {"v": 7, "g": 3}.items()}
    return pa.table({"k": pa.array(keys, mask=null).cast(dtype or pa.int64()), **small})


def grouped(rows: Tree, *keys: str, final: bool) -> PartialAggregate:
    node = rows.group(*keys, s=total(left("v")), n=count(), m=Aggregate(AggregateFunction.MAX, (left("g"),))).relation
    assert isinstance(node, PartialAggregate)
    return dataclasses.replace(node, final=final)


def check(paths: list[Path], table: pa.Table, *keys: str, final: bool = True, budget: int = 2 << 30) -> PipelineMetrics:
    """Group rows of files by keys, compare with the same over given rows, and assert that each group comes once."""
    node = grouped(Tree.scan(paths), *keys, final=final)
    metrics = PipelineMetrics()
    batches = run(node, metrics=metrics, piece_bytes=PIECE_BYTES, options=Options(memory_budget=budget))
    actual = pa.Table.from_batches(batches, node.schema)
    given = grouped(Tree.source(table.schema), *keys, final=True)
    assert_same_rows(actual, pa.Table.from_batches(run(given, {0: table}), given.schema))
    assert metrics.groups == actual.num_rows
    return metrics


def written(table: pa.Table, folder: Path, files: int = 1) -> list[Path]:
    """Write rows to files, in their order."""
    paths = [folder / f"{n:02}.parquet" for n in range(files)]
    for n, path in enumerate(paths):
        step = table.num_rows // files
        pq.write_table(table.slice(n * step, step), path, row_group_size=GROUP_ROWS)
    return paths


TYPES = [pa.int16(), pa.int32(), pa.int64(), pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")]


@pytest.mark.few
@pytest.mark.parametrize("final", [True, False])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("files", [1, 3])
def test_keys_in_the_order_of_files(files: int, dtype: pa.DataType, final: bool, tmp_path: Path) -> None:
    """Seven rows a key: keys go on from one row group, and one file, to the next. Nulls come with the last group."""
    numbers = np.arange(ROWS) // 7 - 40
    table = lines(numbers.astype(np.int32) if dtype == pa.date32() else numbers, dtype)
    metrics = check(written(table, tmp_path, files), table, "k", final=final)
    last = ROWS - GROUP_ROWS
    assert metrics.complete_groups == numbers[last] - numbers[0]
    assert metrics.early_groups == 0


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("lateness", [1, 30, 150, 400])
def test_rows_that_come_late(lateness: int, seed: int, tmp_path: Path) -> None:
    """Keys ascend but for rows that come later than others of greater keys, up to four row groups later."""
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    order = np.argsort(np.arange(ROWS) + rng.integers(0, lateness, ROWS), kind="stable")
    table = lines(order // 3)
    metrics = check(written(table, tmp_path), table, "k")
    assert 100 < metrics.complete_groups < ROWS // 3


def test_memory_for_few_groups_suffices(tmp_path: Path) -> None:
    """With room for some 150 groups, those of files in order are not written to disk; of others they are."""
    keys = np.arange(ROWS)
    metrics = check(written(lines(keys), tmp_path), lines(keys), "k", budget=30_000)
    assert (metrics.spills, metrics.complete_groups) == (
        0,
        ROWS - GROUP_ROWS - np.sum(np.arange(ROWS - GROUP_ROWS) % 97 == 5),
    )
    shuffled = lines(np.random.default_rng(3).permutation(keys))
    metrics = check(written(shuffled, tmp_path), shuffled, "k", budget=30_000)
    assert (metrics.spills > 0, metrics.complete_groups) == (True, 0)


def test_row_groups_in_slices(tmp_path: Path) -> None:
    """What is told of the rows after a row group holds once its last slice is read."""
    table = lines(np.arange(ROWS) // 5)
    node = grouped(Tree.scan(written(table, tmp_path)), "k", final=True)
    metrics = PipelineMetrics()
    assert sum(batch.num_rows for batch in run(node, metrics=metrics, piece_bytes=200)) == ROWS // 5 + 1
    assert metrics.complete_groups == (ROWS - GROUP_ROWS) // 5


@pytest.mark.parametrize("keys", [("g", "k"), ("k", "g"), ("v", "g", "k")])
def test_one_of_several_keys(keys: tuple[str, ...], tmp_path: Path) -> None:
    table = lines(np.arange(ROWS) // 5)
    assert check(written(table, tmp_path), table, *keys).complete_groups >= (ROWS - GROUP_ROWS) // 5


def test_no_order(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    descending = lines(np.arange(ROWS)[::-1] // 5)
    assert check(written(descending, tmp_path), descending, "k").complete_groups == 0
    random = lines(rng.integers(0, 300, ROWS))
    assert check(written(random, tmp_path), random, "k").complete_groups == 0
    assert check(written(random, tmp_path), random, "g", "v").complete_groups == 0


def test_files_in_another_order_than_their_rows(tmp_path: Path) -> None:
    """Rows of a later file have lesser keys."""
    table = lines(np.arange(ROWS) // 5)
    first, second, third = written(table, tmp_path, 3)
    for paths in ([second, third, first], [second, first, third]):
        assert 0 < check(paths, table, "k").complete_groups < ROWS // 5


def test_the_same_file_twice(tmp_path: Path) -> None:
    table = lines(np.arange(ROWS) // 5)
    [path] = written(table, tmp_path)
    check([path, path], pa.concat_tables([table, table]), "k")
    part = file_slice(path)
    node = grouped(Tree(Scan(table.schema, slices=(part, part))), "k", final=True)
    assert sum(batch.num_rows for batch in run(node, piece_bytes=PIECE_BYTES)) == ROWS // 5 + 1


def test_filters_and_projections_between(tmp_path: Path) -> None:
    table = lines(np.arange(ROWS) // 5)
    [path] = written(table, tmp_path)

    def tree(rows: Tree) -> PartialAggregate:
        return grouped(rows.where(left("v") > 2).select("g", "k", "v"), "k", final=True)

    metrics = PipelineMetrics()
    node, given = tree(Tree.scan(path)), tree(Tree.source(table.schema))
    actual = pa.Table.from_batches(run(node, metrics=metrics, piece_bytes=PIECE_BYTES), node.schema)
    assert_same_rows(actual, pa.Table.from_batches(run(given, {0: table}), given.schema))
    assert 0 < metrics.complete_groups < metrics.groups == actual.num_rows


def test_a_key_that_is_computed_has_no_floor(tmp_path: Path) -> None:
    table = lines(np.arange(ROWS) // 5)
    [path] = written(table, tmp_path)
    node = grouped(Tree.scan(path).select("v", "g", k=-left("k")), "k", final=True)
    metrics = PipelineMetrics()
    assert sum(batch.num_rows for batch in run(node, metrics=metrics, piece_bytes=PIECE_BYTES)) == ROWS // 5 + 1
    assert metrics.complete_groups == 0


def test_days_that_are_folders(tmp_path: Path) -> None:
    """The key is a constant of each file; one day has two files, another none but null."""
    table = lines(np.arange(ROWS))
    paths = written(table.drop_columns(["g"]), tmp_path, 6)
    day = dt.date(2024, 2, 28)
    days = [day, day, day + dt.timedelta(1), None, day + dt.timedelta(2), day + dt.timedelta(3)]
    schema = pa.schema([*table.drop_columns(["g"]).schema, pa.field("day", pa.date32())])
    slices = tuple(file_slice(path, constants=(each,)) for path, each in zip(paths, days, strict=True))
    node = Tree(Scan(schema, partition_columns=1, slices=slices)).group("day", n=count()).relation
    metrics = PipelineMetrics()
    out = pa.Table.from_batches(run(node, metrics=metrics, piece_bytes=PIECE_BYTES), node.schema).to_pydict()
    assert dict(zip(out["day"], out["n.count"], strict=True)) == {d: 200 * n for d, n in Counter(days).items()}
    assert (metrics.complete_groups, metrics.groups) == (3, 5)


def test_a_file_without_the_column_has_nulls(tmp_path: Path) -> None:
    table = lines(np.arange(ROWS) // 5)
    first, second, third = written(table, tmp_path, 3)
    pq.write_table(pq.read_table(second).drop_columns(["k"]), second)
    whole = pa.concat_tables([pq.read_table(path) for path in (first, second, third)], promote_options="default")
    assert 0 < check([first, second, third], whole, "k").complete_groups < ROWS // 5


def test_without_statistics(tmp_path: Path) -> None:
    table = lines(np.arange(ROWS) // 5)
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=GROUP_ROWS, write_statistics=False)
    assert check([tmp_path / "t.parquet"], table, "k").complete_groups == 0


def faulty(folder: Path) -> tuple[Path, pa.Table]:
    """A file whose statistics say that its last row group begins with 1150, where it begins with 1100."""
    table = pa.table({"k": np.arange(ROWS), "v": np.ones(ROWS, np.int32), "g": np.ones(ROWS, np.int32)})
    [path] = written(table, folder)
    data = path.read_bytes()
    footer = len(data) - 8 - struct.unpack("<I", data[-8:-4])[0]
    first, claimed = (struct.pack("<q", value) for value in (ROWS - GROUP_ROWS, ROWS - 50))
    assert data[footer:].count(first) >= 1
    path.write_bytes(data[:footer] + data[footer:].replace(first, claimed))
    return path, table


def test_statistics_that_are_wrong(tmp_path: Path) -> None:
    """What they made of the groups is not returned: the rows are read again without them."""
    path, table = faulty(tmp_path)
    node = grouped(Tree.scan(path), "k", final=True)
    metrics = PipelineMetrics()
    out = pa.Table.from_batches(run(node, metrics=metrics, piece_bytes=PIECE_BYTES), node.schema)
    assert sorted(out["k"].to_pylist()) == table["k"].to_pylist()
    assert list(metrics.recovered) == [f"computed again {Rung.ARROW_SCANS.value}, after DecodeError {Rung.FAST.value}"]


def test_wrong_statistics_after_rows_were_returned(tmp_path: Path) -> None:
    """The task fails then, and Spark's next attempt, on the lowest rung, looks at none."""
    path, table = faulty(tmp_path)
    node = grouped(Tree.scan(path), "k", final=True)
    with pytest.raises(DecodeError, match="less than 1150, the least of its column by the statistics"):
        list(run(node, piece_bytes=PIECE_BYTES, options=Options(batch_bytes=64)))
    out = pa.Table.from_batches(run(node, piece_bytes=PIECE_BYTES, rung=Rung.CAREFUL), node.schema)
    assert sorted(out["k"].to_pylist()) == table["k"].to_pylist()


def test_a_row_that_fails_does_though_a_limit_needs_it_not(tmp_path: Path) -> None:
    """The last row divides by zero: all rows are read before a group is given, as in Spark."""
    table = pa.table({"k": np.arange(ROWS), "d": np.append(np.ones(ROWS - 1, np.int64), 0)})
    [path] = written(table, tmp_path)
    failing = Tree.scan(path).group("k", s=total(lit(10) % left("d"))).relation
    assert isinstance(failing, PartialAggregate)
    for node in (Limit(dataclasses.replace(failing, final=True), 3), dataclasses.replace(failing, final=True)):
        metrics = PipelineMetrics()
        with pytest.raises(ExpressionEvaluationError, match="division by zero"):
            next(run(node, metrics=metrics, piece_bytes=PIECE_BYTES, options=Options(batch_bytes=64)))
        assert metrics.complete_groups == 0
    above = Tree(dataclasses.replace(failing, final=True)).group(n=count()).relation
    metrics = PipelineMetrics()
    with pytest.raises(ExpressionEvaluationError, match="division by zero"):
        list(run(above, metrics=metrics, piece_bytes=PIECE_BYTES))
    assert metrics.complete_groups > 0


def test_days_before_the_year_1(tmp_path: Path) -> None:
    """Python has no such dates."""
    days = np.concatenate([np.arange(-800_000, -800_000 + 300), np.arange(300, ROWS)]) // 2
    table = lines(days.astype(np.int32), pa.date32())
    assert check(written(table, tmp_path), table, "k").recovered == {}
