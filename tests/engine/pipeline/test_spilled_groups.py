"""Groups that must come once and do not fit memory: right or refused, and divided as often as is needed."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from gpujoin.config import Options
from gpujoin.engine import spill
from gpujoin.errors import CorruptBlobError, SpillError
from gpujoin.model.aggregates import AggregateFunction
from gpujoin.model.expressions import left
from gpujoin.model.pipeline import FAN_OUT, PipelineMetrics
from gpujoin.model.relations import PartialAggregate
from gpujoin.testing import assert_same_rows
from tests.disks import Mount, flip_bit, spill_files
from tests.engine.pipeline.places import everywhere, on_device, run
from tests.trees import Aggregate, Tree, count, total

ROWS = 3_000


@pytest.fixture
def table(rng: np.random.Generator) -> pa.Table:
    """Some 600 groups of a few rows each, of an integer and a text with nulls."""
    keys = rng.integers(0, 600, ROWS)
    return pa.table(
        {
            "k": keys,
            "t": pa.array([None if k % 7 == 0 else f"text {k % 2} of {k}" for k in keys]),
            "v": rng.integers(-(1 << 62), 1 << 62, ROWS),
            "d": pa.array([Decimal(int(v)).scaleb(-2) for v in rng.integers(-(1 << 60), 1 << 60, ROWS)]).cast(
                pa.decimal128(28, 2)
            ),
        }
    )


def grouped(table: pa.Table) -> PartialAggregate:
    tree = Tree.source(table.schema).group(
        "k", "t", n=count(), d=total(left("d")), m=Aggregate(AggregateFunction.MAX, (left("t"),)),
        least=Aggregate(AggregateFunction.MIN, (left("v"),)),
    )  # fmt: skip
    assert isinstance(tree.relation, PartialAggregate)
    return dataclasses.replace(tree.relation, final=True)


def computed(
    table: pa.Table,
    options: Options,
    metrics: PipelineMetrics | None = None,
    after: Callable[[], object] = list,
) -> pa.Table:
    """The groups; a function is called when all rows have been taken in."""
    node = grouped(table)

    def rows() -> Iterator[pa.RecordBatch]:
        yield from table.to_batches(max_chunksize=ROWS // 10)
        after()

    out = run(node, {0: rows()}, piece_bytes=1, options=options, metrics=metrics)
    return pa.Table.from_batches(out, node.schema)


def expected(table: pa.Table) -> pa.Table:
    query = "select k, t, count(*) as n, sum(d) as d, max(t) as m, min(v) as least from tab group by k, t"
    with duckdb.connect() as connection:
        connection.register("tab", table)
        return connection.execute(query).to_arrow_table()


def comparable(partial: pa.Table) -> pa.Table:
    names = [name for name in partial.column_names if not name.endswith("is_empty")]
    columns = partial.select(names)
    return columns.rename_columns(["k", "t", "n", "d", "m", "least"]).cast(
        pa.schema(
            [("k", pa.int64()), ("t", pa.string()), ("n", pa.int64()), ("d", pa.decimal128(38, 2)), ("m", pa.string()),
             ("least", pa.int64())]
        )
    )  # fmt: skip


@pytest.mark.few
@everywhere
@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
def test_groups_are_divided_until_they_fit(table: pa.Table, tmp_path: Path, encrypted: bool) -> None:
    table, metrics = table.slice(0, ROWS // 2), PipelineMetrics()
    budget = 4_000 if on_device() else 20_000  # places have other shares for groups
    options = Options(memory_budget=budget, spill_dir=str(tmp_path), spill_encryption=encrypted)
    actual = comparable(computed(table, options, metrics))
    assert_same_rows(actual, expected(table).cast(actual.schema))
    assert metrics.spills > 2 * FAN_OUT, "parts of parts"
    assert metrics.spill_bytes > 20_000
    assert metrics.oversized_parts == 0
    assert spill_files(tmp_path) == []


@everywhere
def test_groups_that_fit_are_not_spilled(table: pa.Table, tmp_path: Path) -> None:
    metrics = PipelineMetrics()
    computed(table, Options(spill_dir=str(tmp_path)), metrics)
    assert (metrics.spills, metrics.spill_bytes) == (0, 0)


@everywhere
def test_what_cannot_be_divided_further_is_merged_and_counted(
    table: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spill, "MAX_DIVISIONS", 1)
    metrics = PipelineMetrics()
    options = Options(memory_budget=500, spill_dir=str(tmp_path))
    actual = comparable(computed(table, options, metrics))
    assert_same_rows(actual, expected(table).cast(actual.schema))
    assert metrics.spills == FAN_OUT
    assert metrics.oversized_parts == FAN_OUT


@everywhere
def test_one_large_group_is_held_and_the_others_spilled(tmp_path: Path) -> None:
    texts = ["x" * 100_000, *(str(i) for i in range(1000))]
    table = pa.table({"t": texts * 2})
    tree = Tree.source(table.schema).group("t", n=count())
    assert isinstance(tree.relation, PartialAggregate)
    node = dataclasses.replace(tree.relation, final=True)
    metrics = PipelineMetrics()
    options = Options(memory_budget=20_000, spill_dir=str(tmp_path))
    out = run(node, {0: table.to_batches(max_chunksize=300)}, piece_bytes=1, options=options, metrics=metrics)
    counts = dict(zip(*pa.Table.from_batches(out, node.schema).to_pydict().values(), strict=True))
    assert counts == dict.fromkeys(texts, 2)
    assert metrics.spills >= FAN_OUT


def test_sums_beyond_64_bits_come_back_from_disk_as_they_were(tmp_path: Path) -> None:
    limit = Decimal(10) ** 36
    values = [limit - 1, -limit + 1, Decimal(-1), Decimal(0), Decimal(1 << 64), Decimal(-(1 << 64)), None]
    table = pa.table({"k": [*range(700)] * 2, "v": pa.array(values * 200, pa.decimal128(37, 0))})
    tree = Tree.source(table.schema).group("k", s=total(left("v")))
    assert isinstance(tree.relation, PartialAggregate)
    node = dataclasses.replace(tree.relation, final=True)
    metrics = PipelineMetrics()
    options = Options(memory_budget=12_000, spill_dir=str(tmp_path))
    batches = table.to_batches(max_chunksize=350)
    out = pa.Table.from_batches(run(node, {0: batches}, piece_bytes=1, options=options, metrics=metrics), node.schema)
    sums = dict(zip(out.column(0).to_pylist(), out.column(1).to_pylist(), strict=True))
    assert metrics.spills > FAN_OUT
    assert sums == {k: 2 * (values[k % 7] or 0) for k in range(700)}


def test_first_and_last_keep_the_order_of_rows(tmp_path: Path) -> None:
    table = pa.table({"k": [*range(200)] * 8, "v": range(1600)})
    tree = Tree.source(table.schema).group(
        "k", a=Aggregate(AggregateFunction.FIRST, (left("v"),)), z=Aggregate(AggregateFunction.LAST, (left("v"),))
    )  # fmt: skip
    assert isinstance(tree.relation, PartialAggregate)
    node = dataclasses.replace(tree.relation, final=True)
    metrics = PipelineMetrics()
    options = Options(memory_budget=2000, spill_dir=str(tmp_path))
    batches = table.to_batches(max_chunksize=160)
    out = pa.Table.from_batches(run(node, {0: batches}, piece_bytes=1, options=options, metrics=metrics), node.schema)
    assert metrics.spills > FAN_OUT
    k, a, _, z, _ = (column.to_pylist() for column in out.columns)
    assert dict(zip(k, zip(a, z, strict=True), strict=True)) == {k: (k, 1400 + k) for k in range(200)}


@everywhere
def test_one_bit_of_spilled_groups_never_gives_other_groups(
    table: pa.Table, tmp_path: Path, rng: np.random.Generator
) -> None:
    """A flipped bit of the file is found, wherever it is."""

    def flip() -> None:
        (file,) = spill_files(tmp_path)
        flip_bit(file, int(rng.integers(8 * os.fstat(file).st_size)))

    for _ in range(5):
        with pytest.raises(CorruptBlobError, match=str(tmp_path)):
            computed(table, Options(memory_budget=30_000, spill_dir=str(tmp_path)), after=flip)
        assert spill_files(tmp_path) == []


def test_groups_of_a_truncated_file_are_not_lost_without_a_word(
    table: pa.Table, tmp_path: Path, rng: np.random.Generator
) -> None:
    def truncate() -> None:
        (file,) = spill_files(tmp_path)
        os.ftruncate(file, int(rng.integers(os.fstat(file).st_size)))

    for _ in range(5):
        with pytest.raises(CorruptBlobError, match="truncated"):
            computed(table, Options(memory_budget=30_000, spill_dir=str(tmp_path)), after=truncate)


@everywhere
def test_a_full_disk_is_an_error_that_leaves_nothing(table: pa.Table, tmpfs: Mount) -> None:
    place = tmpfs("size=16k")
    free = os.statvfs(place).f_bfree
    with pytest.raises(SpillError, match=f"{place}: No space left on device"):
        computed(table, Options(memory_budget=5_000, spill_dir=str(place)))
    assert os.statvfs(place).f_bfree == free
