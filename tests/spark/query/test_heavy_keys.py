"""Heavy keys in the exchanges of islands: split and replicated rows join as all rows do; through Spark, too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.spec import JoinSpec, KeyPair, NullEquality
from gpujoin.model.stages import NullKeys, null_keys_of
from gpujoin.plan.distribution import DIVIDES
from gpujoin.spark.shuffle.blobrows import BlobFormat
from gpujoin.spark.shuffle.exchanges import HeavyRows, Outlet
from gpujoin.spark.shuffle.skew import Heavy, Sample, heavy_keys
from gpujoin.testing import assert_same_rows
from tests.brief import brief
from tests.oracle.join import oracle_join
from tests.spark.query.queries import check

LABELS = (0, 1, 2, 3)
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
KEYED = [kind for kind in JoinType if kind is not JoinType.CROSS and not kind.null_aware]
CASES = [(kind, side) for side in Side for kind in KEYED if kind in DIVIDES[side]]
SKEWED = {
    "spark.gpujoin.backend": "cpu",
    "spark.gpujoin.fallback": "raise",
    "spark.gpujoin.scan.oneTaskBytes": "1",
    "spark.gpujoin.scan.taskBytes": "1",
    "spark.gpujoin.broadcastThreshold": "1",
    "spark.gpujoin.exchange.partitions": "4",
    "spark.gpujoin.exchange.skew": "on",
    "spark.gpujoin.exchange.adaptive": "on",  # which leaves rows of heavy keys where they are
}
QUERIES = {
    "left": "select a.i, b.j from big a left join other b on a.k = b.k and a.i > b.j",
    "anti": "select i from big a where not exists (select 1 from other b where b.k = a.k and b.j <> a.i)",
    "existence": "select i from big where k in (select k from other) or i > 3990",
    "aggregate": "select b.j % 3 m, count(*), sum(a.i) from big a join other b on a.k = b.k group by b.j % 3",
}  # fmt: skip


def placed(outlet: Outlet, rows: pa.Table, mappers: int = 2) -> dict[int, pa.Table]:
    found: dict[int, list[pa.RecordBatch]] = {label: [] for label in LABELS}
    step = -(-rows.num_rows // mappers)
    for salt in range(mappers):
        for made in outlet.split(rows.slice(salt * step, step).to_batches(max_chunksize=50), salt):
            for label, data in zip(made.column(0).to_pylist(), made.column(2), strict=True):
                found[label].append(outlet.form.decode(data.as_buffer(), label))
    return {label: pa.Table.from_batches(batches, SCHEMA) for label, batches in found.items()}


@pytest.mark.few
@pytest.mark.parametrize("null_safe", [False, True], ids=["=", "<=>"])
@pytest.mark.parametrize(("kind", "split"), CASES, ids=lambda one: one.value)
def test_parts_join_as_the_whole(kind: JoinType, split: Side, null_safe: bool, rng: np.random.Generator) -> None:
    tables = {}
    for side, count, most in ((Side.LEFT, 300, 25), (Side.RIGHT, 200, 20)):
        keys = np.where(rng.random(count) < 0.4, 7, rng.integers(0, most, count))
        tables[side] = pa.table(
            [pa.array(keys, mask=rng.random(count) < 0.2), pa.array(rng.integers(0, 9, count))], schema=SCHEMA
        )
    nulls = NullEquality.EQUAL if null_safe else NullEquality.UNEQUAL
    spec = JoinSpec(kind, (KeyPair(0, 0, nulls),), None, (0, 1), () if kind.left_rows_only else (1,))
    plain = {side: _outlet(kind, side, null_safe) for side in Side}
    hashes = plain[split].hashes(pa.RecordBatch.from_pydict({"k": [7, 3], "v": [0, 0]}, schema=SCHEMA))
    heavy = Heavy(tuple(map(int, hashes)), split)
    parts = {side: placed(_outlet(kind, side, null_safe, heavy), tables[side]) for side in Side}
    sevens = {side: [pc.sum(pc.equal(one["k"], 7)).as_py() or 0 for one in parts[side].values()] for side in Side}
    assert len(set(sevens[split.other])) == 1, "heavy rows are in every partition"
    assert min(sevens[split]) > 0, "heavy rows were not split over all partitions"
    assert sum(sevens[split]) == pc.sum(pc.equal(tables[split]["k"], 7)).as_py()
    found = [oracle_join(parts[Side.LEFT][label], parts[Side.RIGHT][label], spec) for label in LABELS]
    assert_same_rows(pa.concat_tables(found), oracle_join(tables[Side.LEFT], tables[Side.RIGHT], spec))


def _outlet(kind: JoinType, side: Side, null_safe: bool, heavy: Heavy | None = None) -> Outlet:
    nulls = NullKeys.SPREAD if null_safe else null_keys_of(kind, side)
    rows = None if heavy is None else HeavyRows(heavy, side)
    return Outlet(BlobFormat(SCHEMA), (0,), (pa.int64(),), (null_safe,), nulls, frozenset(), LABELS, 1 << 12, rows)


def test_choosing_heavy_keys() -> None:
    def sample(rows_: int, **seen: int) -> Sample:
        made = Sample()
        made.add(None, rows_)
        for name, count in seen.items():
            made.add(int(name[1:]), count)
        return made

    sizes: dict[Side, float | None] = {Side.LEFT: 1000, Side.RIGHT: 1000}
    both = (Side.LEFT, Side.RIGHT)
    even = {side: sample(1000, k1=20, k2=20) for side in Side}
    assert heavy_keys({Side.LEFT: even[Side.LEFT], Side.RIGHT: sample(1000)}, sizes, both, 8) is None
    one = {Side.LEFT: sample(1000, k1=500), Side.RIGHT: sample(1000, k1=20)}
    assert heavy_keys(one, sizes, both, 8) == Heavy((1,), Side.LEFT)
    assert heavy_keys(one, sizes, (Side.RIGHT,), 8) is None, "replicating the larger side is no gain"
    pairs = {Side.LEFT: sample(1000, k1=100, k2=20), Side.RIGHT: sample(1000, k1=90, k2=16)}
    assert heavy_keys(pairs, sizes, both, 8) == Heavy((1,), Side.LEFT), "its pairs are nearly all"
    assert heavy_keys({side: sample(0) for side in Side}, sizes, both, 8) is None


@pytest.fixture(scope="module")
def skewed(spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Files of two sides of which half of the rows of one have one key."""
    folder: Path = tmp_path_factory.mktemp("skewed")
    number = np.arange(4000)
    keys = pa.array(np.where(number % 2 == 0, 7, number % 50), mask=number % 11 == 0)
    pq.write_table(pa.table({"k": keys, "i": number}), folder / "big.parquet", row_group_size=2000)
    number = np.arange(90)
    keys = pa.array(np.where(number % 20 == 0, 7, number * 2), mask=number % 13 == 0)
    pq.write_table(pa.table({"k": keys, "j": number}), folder / "other.parquet", row_group_size=45)
    for name in ("big", "other"):
        spark_session.read.parquet(str(folder / f"{name}.parquet")).createOrReplaceTempView(name)
    yield
    for name in ("big", "other"):
        spark_session.catalog.dropTempView(name)


@pytest.mark.spark
@pytest.mark.parametrize("spark", [SKEWED], indirect=True, ids=["cpu"])
@pytest.mark.parametrize("name", brief(QUERIES, "existence", "aggregate"))
def test_through_spark(skewed: None, spark: SparkSession, name: str) -> None:
    (island,) = check(spark.sql(QUERIES[name])).islands
    assert "a heavy key is split" in str(island)


@pytest.mark.spark
@pytest.mark.parametrize("spark", [SKEWED], indirect=True, ids=["cpu"])
@pytest.mark.parametrize("name", brief(("left", "anti"), "left"))
def test_rows_from_spark_are_looked_at_too(skewed: None, spark: SparkSession, name: str) -> None:
    spark.table("big").select("i", "k").cache().createOrReplaceTempView("big_rows")
    (island,) = check(spark.sql(QUERIES[name].replace("big a", "big_rows a"))).islands
    assert "a heavy key is split" in str(island)
    assert "rows from Spark" in str(island)
    spark.catalog.dropTempView("big_rows")


@pytest.mark.spark
@pytest.mark.parametrize("spark", [SKEWED], indirect=True, ids=["cpu"])
def test_heavy_keys_that_are_not_looked_for_or_not_split(skewed: None, spark: SparkSession) -> None:
    (island,) = check(spark.sql(QUERIES["left"].replace("left", "full"))).islands
    assert "heavy" not in str(island), "replicated rows without a match would come once from each task"
    spark.conf.set("spark.gpujoin.exchange.skew", "auto")
    (island,) = check(spark.sql(QUERIES["left"])).islands
    assert "heavy" not in str(island), "inputs as small as these are not looked at unasked"
