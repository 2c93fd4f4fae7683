"""What depends on how Spark lays rows out stays with Spark; and no run of a task sends a row elsewhere than another."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from gpujoin.model.stages import DeterminismLevel, NullKeys
from gpujoin.spark.jvm.gateway import gateway_of, optimized_plan
from gpujoin.spark.query import planner
from gpujoin.spark.query.plans import read_plan
from gpujoin.spark.shuffle.blobrows import BlobFormat
from gpujoin.spark.shuffle.exchanges import Outlet
from tests.spark.query.queries import check

FORCED = {"spark.gpujoin.backend": "cpu", "spark.gpujoin.fallback": "silent"}
cpu = pytest.mark.parametrize("spark", [FORCED], indirect=True, ids=["cpu"])

BY_LAYOUT = {
    "random numbers": "select a.id, b.item, rand(7) r from sales a join items b on a.k = b.k",
    "random filter": "select k, sum(price) from sales where rand(7) > 0.5 group by k",
    "sample": """select count(*), sum(id) from
        (select a.id from sales a join items b on a.k = b.k) tablesample (50 percent) repeatable (7)""",
    "file names": """select regexp_extract(input_file_name(), '[^/]*$', 0) f, count(*) from sales
        group by regexp_extract(input_file_name(), '[^/]*$', 0)""",
    "partition number": "select id, spark_partition_id() p from sales",
    "common table read twice": """with c as (select a.k, uuid() u from sales a join items b on a.k = b.k)
        select count(*), count(distinct x.u) from c x join c y on x.u = y.u""",
    "groups read twice": """with c as (select k, rand(7) r, count(*) n from sales group by k)
        select count(*), sum(x.n) from c x join c y on x.r = y.r and x.n <= y.n""",
}


LONG = frozenset({"random filter", "file names", "partition number", "groups read twice"})
"""What differs little from another one here: in the long sweeps."""


@pytest.mark.spark
@cpu
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in BY_LAYOUT])
def test_rows_that_depend_on_their_layout(tables: SparkSession, name: str) -> None:
    frame = tables.sql(BY_LAYOUT[name])
    found = check(frame)
    assert not found.islands
    assert not any(join.accelerated for join in found.joins)


@pytest.mark.spark
@cpu
def test_parts_beside_them_are_islands(tables: SparkSession) -> None:
    found = check(
        tables.sql("""select x.k, x.n, y.r from (select k, count(*) n from sales group by k) x
        join (select k, rand(7) r from items) y on x.k = y.k""")
    )
    assert len(found.islands) == 1
    assert "share a partition" in str(found.reasons[0])


@pytest.mark.spark
@cpu
def test_smaller_islands_below_one_that_cannot_be_shared_out(
    tables: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("scan.oneTaskBytes", "scan.taskBytes", "broadcastThreshold"):
        tables.conf.set(f"spark.gpujoin.{key}", "1")
    monkeypatch.setattr(planner, "is_local", lambda conf: False)
    found = check(
        tables.sql("""select id, item from (select a.id, b.item from sales a join items b on a.k = b.k) x
        where not exists (select 1 from items c where c.item < x.id + x.item)"""),
        allow_empty=True,
    )
    assert any("cannot be shared out" in str(reason) for reason in found.reasons)
    assert [len(island.joins) for island in found.islands] == [1]
    assert [join.join_type for join in found.joins] == ["left_anti", "inner"]


@pytest.mark.spark
@cpu
def test_what_cannot_be_shared_out_is_one_task_where_a_strategy_is_named(
    tables: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("scan.oneTaskBytes", "scan.taskBytes", "broadcastThreshold"):
        tables.conf.set(f"spark.gpujoin.{key}", "1")
    tables.conf.set("spark.gpujoin.strategy", "nested_loop")
    monkeypatch.setattr(planner, "is_local", lambda conf: False)
    found = check(tables.sql("select a.id, b.item from sales a full join items b on a.k < b.k"))
    assert [island.tasks for island in found.islands] == [1]


# -- where rows go -----------------------------------------------------------------------------------------------

ROWS = pa.schema([pa.field("k", pa.int64()), pa.field("total", pa.float64()), pa.field("name", pa.string())])


def summed(shift: float) -> pa.RecordBatch:
    """Rows without keys whose sums differ in their last digits from run to run."""
    totals = np.arange(500) * 0.1 + shift
    names = [str(n) for n in range(500)]
    return pa.RecordBatch.from_arrays([pa.nulls(500, pa.int64()), pa.array(totals), pa.array(names)], schema=ROWS)


def test_rows_without_keys_go_by_settled_columns() -> None:
    form = BlobFormat(ROWS, place=0)

    def homes(rows: pa.RecordBatch, indeterminate: frozenset[int], salt: int = 3) -> dict[str, int]:
        outlet = Outlet(form, (0,), (pa.int64(),), (False,), NullKeys.SPREAD, indeterminate, tuple(range(7)), 1 << 12)
        made = pa.Table.from_batches(outlet.split([rows], salt)).sort_by([("p", "ascending")]).to_batches()
        blobs = {}
        for batch in made:
            for label, data in zip(batch.column(0).to_pylist(), batch.column(2), strict=True):
                for name in form.decode(data.as_buffer(), label).column("name").to_pylist():
                    blobs[name] = label
        assert len(blobs) == rows.num_rows
        return blobs

    first, second = summed(0.0), summed(1e-13)
    assert homes(first, frozenset()) != homes(second, frozenset())
    assert homes(first, frozenset({1})) == homes(second, frozenset({1}))
    assert len(set(homes(first, frozenset({1})).values())) == 7
    assert set(homes(first, frozenset(range(3))).values()) == {3}


@pytest.mark.spark
def test_which_plans_give_the_same_rows_again(tables: SparkSession) -> None:
    made = tables.createDataFrame([(1, 2.0)], "k int, d double")
    sales = tables.table("sales")

    def known(frame: DataFrame, determinism: DeterminismLevel = DeterminismLevel.UNORDERED) -> bool:
        found = read_plan(optimized_plan(frame), gateway_of(frame.sparkSession), {}).level
        assert found in (determinism, DeterminismLevel.INDETERMINATE)
        return found is determinism

    cached = sales.where("k > 1").select("id", sf.col("price") * 2).cache()
    for frame in (cached, sales.where("k > 1").select("id", sf.col("price") * 2), made):
        assert known(frame, DeterminismLevel.DETERMINATE)
    cached.unpersist()
    assert known(sales.join(tables.table("items"), "k", "left"))
    assert known(sales.groupBy("k").agg(sf.sum("price"), sf.max("s"), sf.count("weight")))
    assert known(tables.range(3).union(tables.range(5)), DeterminismLevel.DETERMINATE)
    assert not known(sales.select(sf.rand(7)).cache())
    assert not known(sales.groupBy("k").agg(sf.sum("weight")))
    assert not known(sales.groupBy("k").agg(sf.first("s")))
    assert not known(sales.groupBy("k").agg(sf.avg("id")))
    assert not known(sales.limit(3))
    assert not known(sales.dropDuplicates(["k"]))
    assert not known(sales.selectExpr("row_number() over (partition by k order by s) r"))
    assert not known(sales.select(sf.rand(7)))
    assert not known(sales.sample(0.5, 7))
