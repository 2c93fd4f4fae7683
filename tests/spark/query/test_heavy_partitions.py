"""Heavy partitions of joins, computed by several tasks once their sizes are known: answers and paths."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

import gpujoin
from gpujoin.model.stages import Share
from tests.brief import brief
from tests.spark.query.queries import EXCHANGED, checked, views

FILES = 4
"""Of each table; a task reads each, so that a partition has as many divisions."""
SKEWED = EXCHANGED | {
    "spark.gpujoin.exchange.adaptive": "on",
    "spark.gpujoin.exchange.partitions": "6",
    "spark.sql.adaptive.skewJoin.skewedPartitionFactor": "2",
    "spark.sql.adaptive.skewJoin.skewedPartitionThresholdInBytes": "1k",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "1k",
}
pytestmark = [pytest.mark.spark, pytest.mark.parametrize("spark", [SKEWED], indirect=True, ids=["cpu"])]

SPLIT = "a heavy partition of a join is computed by several tasks"
LEFT, RIGHT = {Share.LEFT}, {Share.RIGHT}
NEAR = "a.k = b.k and a.i + b.j < 60"
FULL_LEFT, FULL_RIGHT = {Share.LEFT, Share.UNMATCHED_RIGHT}, {Share.RIGHT, Share.UNMATCHED_LEFT}
QUERIES: dict[str, tuple[str, Collection[Share]]] = {
    "inner join": ("select a.i, a.t, b.j from big a join other b on a.k = b.k", LEFT),
    "inner join, heavy on the right": ("select a.i, b.j from other b join big a on a.k = b.k and a.i > b.j", RIGHT),
    "inner join, heavy on both sides": (
        "select a.i, b.i j, b.t from big a join big b on a.k = b.k and a.i + b.i < 200", {Share.BOTH, Share.RIGHT}
    ),
    "left join": ("select a.i, a.t, b.j from big a left join other b on a.k = b.k and a.i > 40 * b.j", LEFT),
    "right join": ("select a.i, b.j, b.u from other b right join big a on a.k = b.k and a.i > 40 * b.j", RIGHT),
    "semi-join": ("select a.i, a.t from big a left semi join other b on a.k = b.k and a.i > 40 * b.j", LEFT),
    "anti-join": ("select a.i, a.t from big a left anti join other b on a.k = b.k and a.i > 40 * b.j", LEFT),
    "existence join": ("select i from big where k in (select k from other) or i > 3990", LEFT),
    "null-safe": ("select a.i, b.j from big a left join other b on a.k <=> b.k", LEFT),
    "full join": ("select a.i, a.t, b.j, b.u from big a full join other b on a.k = b.k", FULL_LEFT),
    "full join with a condition": (f"select a.i, a.t, b.j, b.u from big a full join other b on {NEAR}", FULL_LEFT),
    "full join, heavy on the right": (f"select b.j, b.u, a.i, a.t from other b full join big a on {NEAR}", FULL_RIGHT),
    "null-safe full join": ("select a.i, b.j from big a full join other b on a.k <=> b.k and a.i < b.j", FULL_LEFT),
    "groups by another column": (
        "select b.j % 3 m, count(*), sum(a.i) from big a join other b on a.k = b.k group by b.j % 3", LEFT
    ),
    "totals of a full join": (
        f"select count(*), count(a.i), count(b.j), sum(b.j) from big a full join other b on {NEAR}", FULL_LEFT
    ),
    "top": ("select a.i, b.j from big a join other b on a.k = b.k order by a.i desc, b.j limit 5", LEFT),
    "window above": (
        "select i, j, row_number() over (partition by u order by i, j) n from big a join other b on a.k = b.k", LEFT
    ),
    "second join": (
        "select a.i, b.j, c.v from big a join other b on a.k = b.k join other c on b.u = c.u and c.j < 30", LEFT
    ),
    "nested columns": (
        f"""select a.i, a.q, b.s, b.l from (select *, struct(i, t) q from big) a full join
        (select *, struct(j, u) s, array(j, k) l from other) b on {NEAR}""",
        FULL_LEFT,
    ),
}  # fmt: skip
TESTED = ("anti-join", "full join with a condition", "groups by another column")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables of several files each: half of the rows of one have one key."""
    folder = tmp_path_factory.mktemp("skewed")
    for name, count in (("big", 4000), ("other", 96)):
        number = np.arange(count)
        keys = pa.array(
            np.where(number % 2 == 0, 7, number % 50) if name == "big" else number % 60, mask=number % 11 == 0
        )
        columns = (
            {"k": keys, "i": number, "t": pa.array([f"t{n % 97}" for n in number])}
            if name == "big"
            else {"k": keys, "j": number, "u": pa.array([f"u{n % 5}" for n in number]), "v": number * 0.5}
        )
        rows = pa.table(columns)
        (folder / name).mkdir()
        for part in range(FILES):
            pq.write_table(rows.slice(part * count // FILES, count // FILES), folder / name / f"{part}.parquet")
    return folder


@pytest.fixture
def skewed(spark: SparkSession, files: Path) -> Iterator[SparkSession]:
    """A session with the tables."""
    with views(spark, files, {"big": None, "other": None}):
        yield spark


def shares_of(frame: DataFrame) -> dict[Share, int]:
    """How many tasks gave each kind of share."""
    notes: dict[str, int] = {}
    for stage in gpujoin.metrics(frame):
        notes |= stage.notes
    return {share: notes[share.value] for share in Share if share.value in notes}


@pytest.mark.parametrize("name", brief(QUERIES, *TESTED))
def test_heavy_partitions_are_split(skewed: SparkSession, name: str) -> None:
    text, expected = QUERIES[name]
    found = checked(skewed.sql(text))
    frame = found.frame
    assert SPLIT in str(found.explanation)
    shares = shares_of(frame)
    assert set(shares) == set(expected)
    divided = {share: tasks for share, tasks in shares.items() if share in (Share.LEFT, Share.RIGHT, Share.BOTH)}
    for share, tasks in divided.items():
        assert tasks > 1
        assert f"{tasks} tasks: {share.value}" in str(gpujoin.metrics(frame))
    unmatched = sum(shares.values()) - sum(divided.values())
    assert unmatched <= sum(divided.values()) // 2, "one task for each heavy partition"


STAY = {
    "groups by the key": ("select a.k, count(*), max(b.j) from big a join other b on a.k = b.k group by a.k", None),
    "window by the key": (
        "select i, j, sum(j) over (partition by a.k order by i) n from big a join other b on a.k = b.k", None
    ),
    "heavy rows of the side that is kept": ("select a.i, b.j from other b left join big a on a.k = b.k", None),
    "NOT IN": ("select i from big where (k, i) not in (select k, j from other where j < 20)", None),
    "Spark splits none": (QUERIES["inner join"][0], ("spark.sql.adaptive.skewJoin.enabled", "false")),
    "off": (QUERIES["inner join"][0], ("spark.gpujoin.exchange.adaptive", "off")),
    "rows": (QUERIES["inner join"][0], ("spark.gpujoin.exchange.transport", "rows")),
    "no partition is heavy enough": (
        QUERIES["full join"][0], ("spark.sql.adaptive.skewJoin.skewedPartitionFactor", "1000")
    ),
    "few bytes are estimated": (
        QUERIES["full join"][0], ("spark.sql.adaptive.skewJoin.skewedPartitionThresholdInBytes", "256m")
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", brief(STAY, "no partition is heavy enough"))
def test_partitions_are_not_split(skewed: SparkSession, name: str) -> None:
    text, setting = STAY[name]
    if setting is not None:
        skewed.conf.set(*setting)
    found = checked(skewed.sql(text))
    told = str(found.explanation)
    assert "exchange by" in told
    assert (SPLIT in told) is (name in ("no partition is heavy enough", "heavy rows of the side that is kept"))
    assert not shares_of(found.frame)
