"""Sessions (``session_window``): merged in islands as Spark merges them, also those of rows from Spark."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.brief import shared_out
from tests.spark.query.queries import EXCHANGED, FORCED, check, check_all, views

pytestmark = pytest.mark.spark
ROWS = 400
SESSION = "session_window(t, '10 minutes') w"
QUERIES = {
    "one key": f"select {SESSION}, k, count(*) n, sum(v) s, max(v) m from events group by 1, 2",
    "no more than the session": f"select {SESSION}, count(*) from events group by 1",
    "several keys": f"select {SESSION}, k, v % 3, s, count(*) from events group by all",
    "a struct as a key": f"select {SESSION}, st, count(*) from events group by 1, 2",
    "start and end": f"select w.start, w.end, k, n from (select {SESSION}, k, count(*) n from events group by 1, 2)",
    "distinct": f"select {SESSION}, k, count(distinct v % 5), count(*) from events group by 1, 2",
    "no function": f"select distinct {SESSION}, k from events group by 1, 2",
    "gaps of rows": """select session_window(t, case when k = 1 then '5 minutes' when k = 2 then '0 minutes'
        else '20 minutes' end) w, k, count(*) from events group by 1, 2""",
    "having": f"select {SESSION}, k, count(*) n from events group by 1, 2 having count(*) > 1",
    "joined": f"""select a.w, a.n, b.v from (select {SESSION}, k, count(*) n from events group by 1, 2) a
        join events b on a.k = b.v""",
    "of a join": f"select {SESSION}, a.k, count(*) from events a join items i on a.k = i.k group by 1, 2",
    "sessions of sessions": f"""select w, sum(n) from (select {SESSION}, k, count(*) n from events group by 1, 2)
        group by w""",
}


@pytest.fixture(scope="module")
def events(
    spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory, written: None, seed: int
) -> Iterator[None]:
    """Times of whole minutes, so that sessions touch at their ends and begin at the same time; some are null."""
    folder = tmp_path_factory.mktemp("events")
    rng = np.random.default_rng(seed)
    minutes = pa.array(rng.integers(0, 3_000, ROWS), mask=rng.random(ROWS) < 0.05)
    keys = pa.array(rng.integers(0, 4, ROWS), mask=rng.random(ROWS) < 0.1)
    table = pa.table({
        "t": pa.compute.multiply(minutes, 60_000_000).cast(pa.timestamp("us", "UTC")), "k": keys,
        "v": pa.array(range(ROWS)), "s": pa.array(rng.choice(["a", "ü", ""], ROWS)),
        "st": pa.StructArray.from_arrays([keys, pa.array(rng.choice(["x", "y"], ROWS))], ["a", "b"]),
    })  # fmt: skip
    (folder / "events").mkdir()
    pq.write_table(table.slice(0, 250), folder / "events" / "a.parquet")
    pq.write_table(table.slice(250), folder / "events" / "b.parquet")
    with views(spark_session, folder, {"events": None}):
        yield


WAYS = {"one task": FORCED, "exchanged": EXCHANGED}
ALIKE = ("one key", "no more than the session", "start and end", "no function", "having", "of a join")
"""Queries that are planned as others are."""


SHORT = [name for name in QUERIES if name not in ALIKE]


@pytest.mark.parametrize(("way", "names"), shared_out(QUERIES, SHORT, WAYS))
def test_sessions_are_merged(events: None, spark: SparkSession, way: str, names: tuple[str, ...]) -> None:
    for key, value in WAYS[way].items():
        spark.conf.set(key, value)
    for found in check_all({name: spark.sql(QUERIES[name]) for name in names}).values():
        assert found.islands
        assert "rows from Spark" not in str(found)


@pytest.mark.parametrize("spark", [FORCED | {"spark.gpujoin.fallback": "silent"}], indirect=True, ids=["silent"])
def test_sessions_of_rows_from_spark_are_merged(events: None, spark: SparkSession) -> None:
    """The gap is computed by Spark, and with it each row's own session; the island merges them."""
    gap = "make_interval(0, 0, 0, 0, 0, cast(k as int) * 5)"
    query = f"""select a.w, a.n, b.v from (select session_window(t, {gap}) w, k, count(*) n
        from (select * from events where k > 0) group by 1, 2) a join events b on a.k = b.v"""
    found = check(spark.sql(query))
    assert "rows from Spark" in str(found)
    assert found.islands
