"""Files that claim of themselves what their bytes do not say, and files of odd names and types: Spark's rows, here."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.footers import StatisticsField, claim_arrow_schema, claim_sorting, rewriting, sorted_by, statistics
from tests.spark.query.queries import FORCED, check

pytestmark = [pytest.mark.spark, pytest.mark.parametrize("spark", [FORCED], indirect=True, ids=["cpu"])]


@pytest.fixture
def view(spark: SparkSession, tmp_path: Path) -> Iterator[Any]:
    """Makes a view ``t`` of a file, or of a folder."""

    def make(path: Path | str, name: str = "t") -> None:
        spark.read.parquet(str(path)).createOrReplaceTempView(name)

    yield make
    for name in ("t", "u"):
        spark.catalog.dropTempView(name)


def check_here(spark: SparkSession, *queries: str) -> None:
    """Check that queries run here, and give the rows that Spark gives."""
    for query in queries:
        explanation = check(spark.sql(query))
        assert explanation.islands, (query, explanation)


def test_a_claimed_order(spark: SparkSession, view: Any, tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"a": [1, 2, 3, 4, 5, 6], "b": [2, 1, 2, 1, 3, 2]}), path)
    claim_sorting(path, [sorted_by(1)])
    view(path)
    check_here(
        spark,
        "select max(b), min(b) from t",
        "select b, count(*), sum(a) from t group by b",
        "select t.a, u.a from t join t u on t.b = u.b where t.b = 3 or u.a > 5",
        "select a, row_number() over (order by b, a) from t",
        "select a, b from t where b = (select max(b) from t)",
    )


def test_claimed_types(spark: SparkSession, view: Any, tmp_path: Path) -> None:
    """Seconds over numbers, and ``date64``, by which Polars decodes milliseconds, over days."""
    seconds, days = pa.array([1_700_000_000, -2, 1_700_000_000], pa.int64()), pa.array([1, 20_000, None], pa.int32())
    table = pa.table({"n": [1, 2, 3], "t": seconds, "d": days.cast(pa.date32()), "s": ["a", "b", None]})
    claimed = {"n": pa.int64(), "t": pa.timestamp("s"), "d": pa.date64(), "s": pa.binary()}
    path = tmp_path / "f.parquet"
    pq.write_table(table, path)
    claim_arrow_schema(path, pa.schema(list(claimed.items())))
    view(path)
    check_here(
        spark,
        "select t, count(*), max(d), min(s) from t where t >= 0 group by t",
        "select t.n, u.n, t.t, t.d, t.s from t join t u on t.d = u.d",
        "select t.n, u.n from t join t u on t.t = u.t and t.s = u.s where t.n < 40",
    )


def test_lists_and_tensors_of_a_fixed_size(spark: SparkSession, view: Any, tmp_path: Path) -> None:
    lists = pa.array([[1.0, 2.0], None, [3.0, None]], pa.list_(pa.float32(), 2))
    tensor = pa.fixed_shape_tensor(pa.float32(), (1, 2))
    tensors = pa.ExtensionArray.from_storage(
        tensor, pa.array([[1.0, 2.0], [5.0, 6.0], [3.0, 4.0]], tensor.storage_type)
    )
    path = tmp_path / "f.parquet"
    try:
        pq.write_table(pa.table({"k": [1, 2, 3], "e": lists, "x": tensors}), path)
    except pa.ArrowNotImplementedError as problem:
        pytest.skip(f"PyArrow {pa.__version__} writes no null list of a fixed size: {problem}")
    view(path)
    check_here(
        spark,
        "select t.k, t.e, u.x from t left join t u on t.k = u.k and u.k > 1",
        "select v, count(*) from t lateral view explode(x) as v group by v",
        "select t.k, t.x[1] + 1 as y from t join t u on t.k = u.k where t.e[0] > 0",
    )


def test_a_void_column(spark: SparkSession, view: Any, tmp_path: Path) -> None:
    """Spark 4.3 writes such columns; earlier versions refuse to."""
    folder = tmp_path / "void"
    try:
        spark.sql("select id, id % 3 as k, null as v from range(10)").coalesce(1).write.parquet(str(folder))
    except Exception as problem:  # noqa: BLE001  # of any class, by the version
        pytest.skip(f"this Spark writes no void columns: {str(problem)[:80]}")
    view(folder)
    check_here(
        spark,
        "select k, count(*), sum(id) from t group by k",
        "select t.id, u.id from t join t u on t.k = u.id",
        "select t.id, t.v, u.v from t left join t u on t.k = u.id",
    )


NAMES = ["*", "^a.*$", "a.b", "`", "a b", "é", "日本", "a\nb", '"', "'", "a,b", "{x}", "[0]", "%41", "#", "?", "~",
         "\\", "a/b", "len", "😀", "a;b", "a=b", "(x)", "\t", "c0", "row", "İ", "ß", "a\u0000b"]  # fmt: skip


def test_names_of_every_character(spark: SparkSession, view: Any, tmp_path: Path) -> None:
    columns = {name: pa.array([n, n + 1, None, n], pa.int64()) for n, name in enumerate(NAMES)}
    pq.write_table(pa.table({**columns, "k": [1, 2, 1, 2]}), tmp_path / "f.parquet")
    view(tmp_path / "f.parquet")
    quoted = ["`" + name.replace("`", "``") + "`" for name in NAMES]
    calls = ", ".join(f"max({name}) as {name}" for name in quoted)
    filters = " and ".join(f"{name} >= 0" for name in quoted)
    check_here(
        spark,
        f"select k, {calls} from t where {filters} group by k",
        f"select {', '.join(f't.{name}' for name in quoted)} from t join t u on t.k = u.k and t.`^a.*$` = u.`*` + 1",
    )


def test_a_column_without_a_name(spark: SparkSession, view: Any, tmp_path: Path) -> None:
    table = pa.table({"": [1, 2, 3], "k": [1, 1, 2], "s": ["a", "b", "c"], "l": [[1], [], None]})
    pq.write_table(table, tmp_path / "f.parquet")
    view(tmp_path / "f.parquet")
    check_here(
        spark,
        "select k, max(s) from t group by k",
        "select * from t join t u on t.k = u.k",
    )


FOLDERS = ["data [v1]", "a*b", "a?b", "{x}", "a%20b", "a#b", "~", "é 日本 😀", " a ", "a;b", "q'q", "$HOME", "a+b&c=d"]


def test_folders_and_files_of_every_character(spark: SparkSession, tmp_path: Path) -> None:
    tables = []
    for number, name in enumerate(FOLDERS):
        folder = tmp_path / str(number) / name
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"a": [1, 2, number], "b": [1, 1, 2]}), folder / f"f {name}.parquet")
        escaped = "".join(f"\\{letter}" if letter in "\\*?{}[]" else letter for letter in str(folder))
        tables.append(spark.read.parquet(escaped))
    whole = reduce(DataFrame.union, tables).groupBy("b").sum("a")
    explanation = check(whole)
    assert explanation.islands
    assert not any("rows from Spark" in line for line in explanation.islands[0].tree)


def test_zones_by_offset(spark: SparkSession, view: Any, tmp_path: Path) -> None:
    stamps = pa.array([1_700_000_000_123_456, -5, None], pa.int64())
    zones = {"t": stamps.cast(pa.timestamp("us", "+05:30")), "u": stamps.cast(pa.timestamp("us", "-00:30"))}
    pq.write_table(pa.table({"k": [1, 2, 1], **zones}), tmp_path / "f.parquet")
    view(tmp_path / "f.parquet")
    check_here(
        spark,
        "select k, max(t), min(u) from t group by k",
        "select t.k, t.t from t join t u on t.t = u.u where t.t > timestamp'2000-01-01'",
    )


@contextlib.contextmanager
def setting(spark: SparkSession, key: str, value: str) -> Iterator[None]:
    spark.conf.set(key, value)
    try:
        yield
    finally:
        spark.conf.unset(key)


@pytest.mark.parametrize("pushed", ["true", "false"])
def test_statistics_are_used_where_spark_uses_them(pushed: str, spark: SparkSession, view: Any, tmp_path: Path) -> None:
    """Minimum and maximum that are wrong lose the same rows there and here, and none without pushdown."""
    pq.write_table(pa.table({"n": [1, 2, 3], "k": [1, 1, 2]}), tmp_path / "f.parquet")
    with rewriting(tmp_path / "f.parquet") as footer:
        for claim in statistics(footer, 0):
            for number in (StatisticsField.OLD_MIN, StatisticsField.MIN, StatisticsField.OLD_MAX, StatisticsField.MAX):
                claim[number] = (9).to_bytes(8, "little")
    view(tmp_path / "f.parquet")
    with setting(spark, "spark.sql.parquet.filterPushdown", pushed):
        query = "select count(*) as c, sum(k) from t where n < 3"
        (row,) = spark.sql(query).collect()
        assert row["c"] == (0 if pushed == "true" else 2)
        check_here(spark, query)
        if pushed == "false":
            check_here(spark, "select t.n, u.k from t join (select k, n from t where k = 1) u on t.n = u.k")
