"""Inputs of unusual shape: many files, columns, partitions, long text, deep nesting, encryption, false statistics."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from gpujoin import explain
from tests.chaos.outcomes import Outcome, Outcomes
from tests.chaos.tables import Sessions

pytestmark = pytest.mark.spark

GIGABYTE = 1 << 30


def equal(sessions: Sessions, outcomes: Outcomes, text: str, context: str) -> Outcome | None:
    """Compare a query of an enabled session with Spark's own answer, with and without exchanges."""
    expected = sessions.native.sql(text).toArrow()
    return outcomes.judge_query(sessions.here, text, expected, context)


def ran_here(spark: SparkSession, text: str) -> bool:
    """Whether a part of a query is planned as an island."""
    return bool(explain(spark.sql(text)).islands)


@pytest.fixture(params=["exchanged", "one task"])
def way(request: pytest.FixtureRequest, sessions: Sessions) -> Any:
    """Small tables run as large ones do, or in one task."""
    keys = (
        "spark.gpujoin.scan.oneTaskBytes",
        "spark.gpujoin.scan.taskBytes",
        "spark.gpujoin.broadcastThreshold",
    )
    before = {key: sessions.here.conf.get(key) for key in keys}
    if request.param == "one task":
        for key in keys:
            sessions.here.conf.unset(key)
    yield request.param
    for key, value in before.items():
        sessions.here.conf.set(key, str(value))


def test_ten_thousand_files(sessions: Sessions, tmp_path: Path, outcomes: Outcomes) -> None:
    """The same forty files under many names."""
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(40):
        rows = pa.table({"k": [number * 10 + i for i in range(10)], "s": [f"text {i}" for i in range(10)]})
        pq.write_table(rows, folder / f"file{number:05d}.parquet")
        for copy in range(1, 250):
            os.link(folder / f"file{number:05d}.parquet", folder / f"file{number + 40 * copy:05d}.parquet")
    source = f"parquet.`{folder}`"
    # 10,000 files of 64 KiB a task would be 10,000 tasks.
    sessions.here.conf.set("spark.gpujoin.scan.taskBytes", "8m")
    text = f"""select x.k % 20 as g, count(*) as n, max(i.name) as last from {source} x join items i on x.k = i.k
        group by x.k % 20"""
    try:
        assert ran_here(sessions.here, text)
        assert equal(sessions, outcomes, text, "10,000 files") is Outcome.RECOVERED
    finally:
        sessions.here.conf.set("spark.gpujoin.scan.taskBytes", "64k")


def test_two_thousand_columns(sessions: Sessions, tmp_path: Path, way: str, outcomes: Outcomes) -> None:
    rows = 300
    path = tmp_path / "wide.parquet"
    wide = pa.table({f"c{n}": [None if (i + n) % 9 == 0 else i * n for i in range(rows)] for n in range(2000)})
    pq.write_table(wide, path)
    text = f"select x.* from parquet.`{path}` x join items i on x.c1 = i.k"
    assert equal(sessions, outcomes, text, f"2,000 columns, {way}")
    sums = ", ".join(f"sum(c{n}) as s{n}" for n in range(0, 2000, 5))
    assert equal(sessions, outcomes, f"select c3 % 3 as g, {sums} from parquet.`{path}` group by c3 % 3", "400 sums")


def test_a_thousand_partitions(sessions: Sessions, tmp_path: Path, outcomes: Outcomes) -> None:
    folder = tmp_path / "parts"
    for number in range(1000):
        part = folder / f"p={number}" if number % 10 else folder / "p=__HIVE_DEFAULT_PARTITION__" / f"q{number}"
        part = part if number % 10 else folder / "p=__HIVE_DEFAULT_PARTITION__"
        part.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"k": [number, number + 1, None]}), part / f"file{number}.parquet")
    source = f"parquet.`{folder}`"
    text = f"select x.p, count(*) as n, count(i.name) as m from {source} x left join items i on x.k = i.k group by x.p"
    assert equal(sessions, outcomes, text, "1,000 partitions")
    text = f"select x.p, x.k, i.name from {source} x join items i on x.k = i.k where x.p between 100 and 199"
    assert equal(sessions, outcomes, text, "1,000 partitions, pruned")


def test_text_of_one_and_a_half_gigabytes(sessions: Sessions, tmp_path: Path, way: str, outcomes: Outcomes) -> None:
    """Fifteen hundred values of a megabyte, which compress well, in a column that a join carries along."""
    path = tmp_path / "long.parquet"
    count, length = 1500, 1 << 20
    schema = pa.schema({"k": pa.int64(), "s": pa.large_string()})
    with pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=False) as writer:
        for first in range(0, count, 50):
            texts = [f"{n:08d}".ljust(length, "abcdefgh"[n % 8]) for n in range(first, first + 50)]
            writer.write_table(
                pa.table([pa.array(range(first, first + 50)), pa.array(texts, pa.large_string())], schema)
            )
    sessions.here.conf.set("spark.gpujoin.memoryBudget", "1g")
    # Spark's answers come from the numbers alone: it would broadcast what is small only in the file.
    keys = f"select x.k from parquet.`{path}` x join (select distinct k from items) i on x.k = i.k"
    expected = sessions.native.sql(
        f"""select count(*) as n, count(*) * {length} as total,
        max(concat(lpad(k, 8, '0'), substring('abcdefgh', int(k % 8) + 1, 1))) as last from ({keys})"""
    ).toArrow()
    try:
        text = (
            "select count(*) as n, sum(length(x.s)) as total, max(substring(x.s, 1, 9)) as last "
            f"from parquet.`{path}` x join (select distinct k from items) i on x.k = i.k"
        )
        outcomes.judge_query(sessions.here, text, expected, f"1.5 GB of text, {way}")
        text = f"select x.k, length(max(x.s)) as longest, count(*) as n from parquet.`{path}` x group by x.k"
        groups = pa.table(
            {
                "k": pa.array(range(count), pa.int64()),
                "longest": pa.array([length] * count, pa.int32()),
                "n": pa.array([1] * count, pa.int64()),
            }
        )
        outcomes.judge_query(sessions.here, text, groups, f"1.5 GB of text, grouped, {way}")
    finally:
        sessions.here.conf.unset("spark.gpujoin.memoryBudget")


def test_one_very_long_text(sessions: Sessions, tmp_path: Path, way: str, outcomes: Outcomes) -> None:
    """What is exchanged goes through Spark's shuffle in one piece, for which its heap of 1 GiB must do."""
    path = tmp_path / "one.parquet"
    length = (100 if way == "exchanged" else 300) << 20
    text_column = pa.array(["x" * length, None, "short"], pa.large_string())
    pq.write_table(pa.table({"k": [10, 13, 16], "s": text_column}), path, compression="zstd", use_dictionary=False,
                   write_statistics=False)  # fmt: skip
    text = f"select x.k, length(x.s) as n from parquet.`{path}` x join (select distinct k from items) i on x.k = i.k"
    expected = pa.table({"k": pa.array([10, 13, 16], pa.int64()), "n": pa.array([length, None, 5], pa.int32())})
    outcomes.judge_query(sessions.here, text, expected, f"one text of {length} bytes, {way}")


def test_deep_nesting(sessions: Sessions, tmp_path: Path, way: str, outcomes: Outcomes) -> None:
    dtype: pa.DataType = pa.int32()
    value: Any = 7
    for depth in range(40):
        if depth % 2:
            dtype, value = pa.list_(dtype), [value, None]
        else:
            dtype, value = pa.struct([("a", dtype), ("b", pa.string())]), {"a": value, "b": f"depth {depth}"}
    path = tmp_path / "deep.parquet"
    pq.write_table(pa.table({"k": [10, 13, 16, None], "v": pa.array([value, None, value, value], dtype)}), path)
    text = f"select x.k, x.v, i.name from parquet.`{path}` x join items i on x.k = i.k"
    assert equal(sessions, outcomes, text, f"nested 40 deep, {way}")
    text = f"select x.v from parquet.`{path}` x left join items i on x.k = i.k"
    assert equal(sessions, outcomes, text, f"nested, left, {way}")


class _Keys(pe.KmsClient):  # type: ignore[misc]
    """A key service that hides nothing, for files that only have to look encrypted."""

    def __init__(self, _config: Any) -> None:
        pe.KmsClient.__init__(self)

    def wrap_key(self, key: bytes, master: str) -> bytes:
        return base64.b64encode(key + master.encode())

    def unwrap_key(self, wrapped: bytes, master: str) -> bytes:
        return base64.b64decode(wrapped)[: -len(master)]


def error_condition(session: SparkSession, text: str) -> str:
    """Give the name of the condition of Spark's that a query fails with."""
    with pytest.raises(PySparkException) as raised:
        session.sql(text).toArrow()
    condition = raised.value.getCondition()
    assert condition is not None, raised.value
    return condition


@pytest.mark.parametrize("plain_footer", [False, True], ids=["footer", "columns under a plain footer"])
def test_encrypted_files(sessions: Sessions, tmp_path: Path, plain_footer: bool, outcomes: Outcomes) -> None:
    """What Spark cannot read without keys is refused here as there; columns in the clear give Spark's rows."""
    path = tmp_path / "secret.parquet"
    config = pe.EncryptionConfiguration(
        footer_key="footer", column_keys={"column": ["s"]}, plaintext_footer=plain_footer
    )
    factory = pe.CryptoFactory(_Keys)
    properties = factory.file_encryption_properties(pe.KmsConnectionConfig(), config)
    table = pa.table({"k": list(range(2000)), "s": [f"text {n}" for n in range(2000)]})
    with pq.ParquetWriter(path, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table, row_group_size=500)
    source = f"(select * from parquet.`{path}`)"
    if not plain_footer:
        outcomes.tried += 1
        text = f"select count(*) from {source} x join items i on x.k = i.k"
        assert error_condition(sessions.here, text) == error_condition(sessions.native, text)
        outcomes.refused += 1
        return
    queries: dict[str, Callable[[str], str]] = {
        "in the clear": lambda source: f"select count(*) as n, sum(x.k) as t from {source} x join items i on x.k = i.k",
        "encrypted": lambda source: f"select max(x.s) as n from {source} x join items i on x.k = i.k",
    }
    for name, query in queries.items():
        text = query(source)
        try:
            expected = sessions.native.sql(text).toArrow()
        except Exception:  # noqa: BLE001 - Spark has no keys
            outcomes.tried += 1
            with pytest.raises(Exception):  # noqa: B017, PT011 - Spark's own error, of a cause that differs by release
                sessions.here.sql(text).toArrow()
            outcomes.refused += 1
            continue
        outcomes.judge_query(sessions.here, text, expected, name)


@pytest.mark.parametrize("kind", ["too narrow", "upside down"])
def test_false_statistics(sessions: Sessions, tmp_path: Path, kind: str, outcomes: Outcomes) -> None:
    """Least and greatest values of a column are replaced in the footer; sums are right, or fail as Spark's do."""
    path, largest = tmp_path / "lying.parquet", (1 << 62) + 12345
    values = [largest, 1, 2, 3] * 500
    pq.write_table(
        pa.table({"k": [10, 13, 16, 19] * 500, "v": pa.array(values, pa.int64())}), path, use_dictionary=False,
        row_group_size=1000, compression="none",
    )  # fmt: skip
    data = path.read_bytes()
    length = int.from_bytes(data[-8:-4], "little")
    body, footer = data[: len(data) - 8 - length], data[len(data) - 8 - length :]
    true_most, true_least = largest.to_bytes(8, "little"), (1).to_bytes(8, "little")
    assert footer.count(true_most) >= 2
    if kind == "too narrow":
        footer = footer.replace(true_most, (3).to_bytes(8, "little"))
    else:
        footer = footer.replace(true_least, largest.to_bytes(8, "little")).replace(true_most, true_least, 1)
    path.write_bytes(body + footer)
    joined = f"parquet.`{path}` x join (select distinct k from items) i on x.k = i.k"
    queries = (
        f"select x.k, sum(x.v) as total, count(*) as n from {joined} group by x.k",
        f"select x.k, sum(x.v * 2) as total from parquet.`{path}` x group by x.k",
        f"select sum(x.v + x.v) as total from {joined}",
        f"select avg(x.v % 1000003) as mean, max(x.v) as most, min(x.v) as least from {joined}",
    )
    for ansi in ("true", "false"):
        for session in (sessions.here, sessions.native):
            session.conf.set("spark.sql.ansi.enabled", ansi)
            # What Spark pushes into its reader believes the same statistics.
            session.conf.set("spark.sql.parquet.filterPushdown", "false")
        for text in queries:
            context = f"statistics {kind}, ANSI {ansi}: {text}"
            try:
                expected = sessions.native.sql(text).toArrow()
            except Exception as problem:  # noqa: BLE001 - overflow, in ANSI mode
                outcomes.tried += 1
                try:
                    sessions.here.sql(text).toArrow()
                except Exception:  # noqa: BLE001 - as in Spark
                    outcomes.refused += 1
                else:
                    outcomes.problems.append(f"{context}: only Spark raises {type(problem).__name__}")
                continue
            outcomes.judge_query(sessions.here, text, expected, context)
    for session in (sessions.here, sessions.native):
        session.conf.unset("spark.sql.ansi.enabled")
        session.conf.unset("spark.sql.parquet.filterPushdown")
