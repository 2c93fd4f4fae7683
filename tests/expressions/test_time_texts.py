"""Timestamps and dates read from text, well-formed and malformed, against Spark."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from gpujoin.errors import UnsupportedValueError
from gpujoin.functions.evaluate import evaluate_column
from gpujoin.model.expressions import EvalMode, left
from gpujoin.plan.resolve import resolve_value
from tests.expressions.translated import SqlJudge

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEXTS = [
    "2024-02-29", "2023-02-29", "2024", "2024-2", "2024-2-3", "2024-02-29 12", "2024-02-29 12:34",
    "2024-02-29T12:34:56",
    "2024-02-29 1:2:3", "2024-02-29 12:34:56.", "2024-02-29 12:34:56.1", "2024-02-29 12:34:56.123456789",
    "2024-02-29 12:34:56.123", "2024-02-29 12:34:56.123456", "2024-02-29 12:34:56Z", "2024-02-29 12:34:56 UTC",
    "2024-02-29 12:34:56+01:00", "2024-02-29 12:34:56.5-9:30", "2024-02-29 12:34:56+1:5", "2024-02-29 12:34:56+18:01",
    "2024-02-29 12:34Z", "2024-02-29 12:34:56z", "2024-02-29 12:34:56 junk, and more", "2024-02-29 24:00:00",
    "2024-02-29 23:60:00", "2024-02-29 23:59:60", "2024-13-01", "2024-00-10", "2024-01-00", "2024-02-29 ",
    " 2024-02-29",
    "\t2024-02-29\n", "2024-02-29T", "2024-02-29  12:00:00", "2024/02/29", "20240229", "", " ", "abc", "24-02-29",
    "-0044-03-15", "+2024-02-29 01:02:03", "12024-02-29", "294247-01-10", "294248-01-01", "1234567-01-01",
    "0000-01-01", "0001-01-01 00:00:00", "9999-12-31 23:59:59.999999", "2024-02-29 12:34:56\u00e9", "２０２４-02-29",
    "2024-03-31 02:30:00", "2024-10-27 02:30:00", "1900-01-01 00:00:00", "2024-02-29 12:34:56..", "2024-02-29 12:",
    "2024-02-29-", "2024-02-29 123:00:00", "2024-002-29", "2024-02-29 12:34:56.5.6", "- 2024-02-29", "-", "+",
    "2024-02-29 12:34:56 +01:00 ", None,
]  # fmt: skip
BY_SPARK = (
    "12:00:00",
    "T12:00:00",
    "2024-02-29 12:00:00 Europe/Paris",
    "2024-02-29 12:00:00+01",
    "2024-02-29 12:00:00 PST",
)
"""Texts that are left to Spark: times of the current day, and names of zones."""
FORMATTED = [
    "2024-02-29 12:34:56", "2024-02-30 12:34:56", "2024-02-29 24:00:00", "2024-02-29 12:34:5", "2024-2-29 12:34:56",
    "2024-02-29  12:34:56", " 2024-02-29 12:34:56", "2024-02-29 12:34:56 ", "12024-02-29 12:34:56",
    "0000-01-01 00:00:00",
    "9999-12-31 23:59:59", "2024-10-27 02:30:00", "2024-03-31 02:30:00", "", "x", "２０２４-02-29 12:34:56", None,
    "20240229", "2024022", "202402290", "29/02/2024", "29-02-2024", "2024-02", "2024-2", "2024",
]  # fmt: skip
PATTERNS = ("yyyy-MM-dd HH:mm:ss", "yyyyMMdd", "dd/MM/yyyy", "yyyy-MM", "yyyy")
_PIECES = ["2024", "02", "29", "2", "-", ":", " ", "T", ".", "12", "34", "56", "5", "Z", "+", "x", "é"]


@pytest.fixture
def session(spark_session: SparkSession) -> Iterator[SparkSession]:
    """A session whose time zone and mode are put back."""
    names = ("spark.sql.session.timeZone", "spark.sql.ansi.enabled")
    before = {name: str(spark_session.conf.get(name)) for name in names}
    spark_session.conf.set("spark.sql.ansi.enabled", "false")
    yield spark_session
    for name, value in before.items():
        spark_session.conf.set(name, value)


@pytest.mark.spark
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_texts_are_read_as_spark_does(session: SparkSession, zone: str, tmp_path: Path) -> None:
    session.conf.set("spark.sql.session.timeZone", zone)
    rows = pa.table({"s": pa.array(TEXTS, pa.string())})
    SqlJudge(session, rows, tmp_path / "texts.parquet").check(
        [
            "cast(s as timestamp)",
            "cast(s as timestamp_ntz)",
            "try_cast(s as timestamp)",
            "to_timestamp(s)",
            "to_date(s)",
        ]
    )
    rows = pa.table({"s": pa.array(FORMATTED, pa.string())})
    functions = ("to_timestamp", "to_date", "unix_timestamp", "try_to_timestamp", "to_timestamp_ntz")
    SqlJudge(session, rows, tmp_path / "formatted.parquet").check(
        [f"{function}(s, '{pattern}')" for function in functions for pattern in PATTERNS]
    )


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_drawn_texts(session: SparkSession, zone: str, seed: int, tmp_path: Path) -> None:
    print(f"seed {seed}")
    session.conf.set("spark.sql.session.timeZone", zone)
    rng = random.Random(seed)
    texts = ["".join(rng.choices(_PIECES, k=rng.randrange(1, 14))) for _ in range(5_000)]
    for text, where in itertools.product([t for t in TEXTS if t], range(80)):
        at = where % (len(text) + 1)
        texts.append(text[:at] + rng.choice(_PIECES) + text[at + rng.randrange(3) :])
    rows = pa.table({"s": pa.array([t for t in texts if _is_decided(t)], pa.string())})
    assert rows.num_rows >= 8_000
    judge = SqlJudge(session, rows, tmp_path / "drawn.parquet")
    judge.check(["cast(s as timestamp)", "cast(s as timestamp_ntz)", "to_date(s)"])
    judge.check([f"{f}(s, '{p}')" for f in ("to_timestamp", "to_date") for p in PATTERNS if "-" in p])


def _is_decided(text: str) -> bool:
    try:
        _cast(text)
    except UnsupportedValueError:
        return False
    # At the end of the range a zone's offset decides.
    return not text.startswith(("+", "-")) and "29424" not in text


def _cast(text: str) -> pa.Array:
    batch = pa.record_batch({"s": pa.array([text])})
    tree = resolve_value(left("s").cast(pa.timestamp("us", "UTC")), batch.schema, batch.schema, mode=EvalMode.LEGACY)
    return evaluate_column(tree, batch, batch, 1)


@pytest.mark.parametrize("text", BY_SPARK)
def test_texts_that_are_left_to_spark(text: str) -> None:
    with pytest.raises(UnsupportedValueError):
        _cast(text)
