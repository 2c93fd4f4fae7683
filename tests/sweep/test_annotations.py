"""Columns whose annotation has fewer numbers than their physical type stores: Spark's results, whatever is stored.

A writer may annotate INT32 as UINT_8 and store 300. Columns without such numbers are read here, others left to Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from gpujoin.testing import row_counts
from tests.footers import (
    ChunkField,
    ElementField,
    Fields,
    FileField,
    MetadataField,
    RowGroupField,
    Whole,
    rewriting,
)
from tests.sweep.operations import Sessions, sessions_of

pytestmark = pytest.mark.spark

_BYTE = 3
"""Thrift's wire type of one byte, of which ``IntType`` has its width."""


@dataclass(frozen=True)
class Annotation:
    """An annotation of a stored column, and numbers that are and are not of it."""

    stored: pa.DataType
    fields: dict[ElementField, Any]
    """Fields of its schema element."""
    within: Sequence[Any]
    beyond: Sequence[Any] = ()
    here: bool = True
    """Whether the column is read here if all of its numbers are within."""


def integer(converted: int, bits: int, *, signed: bool) -> dict[ElementField, Any]:
    return {
        ElementField.CONVERTED: Whole(converted),
        ElementField.LOGICAL: Fields({10: Fields({1: Whole(bits, _BYTE), 2: signed})}),
    }


def decimal(precision: int, scale: int) -> dict[ElementField, Any]:
    return {
        ElementField.CONVERTED: Whole(5), ElementField.SCALE: Whole(scale), ElementField.PRECISION: Whole(precision),
        ElementField.LOGICAL: Fields({5: Fields({1: Whole(scale), 2: Whole(precision)})}),
    }  # fmt: skip


def moment(converted: int, kind: int) -> dict[ElementField, Any]:
    """A time or timestamp in milliseconds of UTC."""
    return {
        ElementField.CONVERTED: Whole(converted),
        ElementField.LOGICAL: Fields({kind: Fields({1: True, 2: Fields({1: Fields()})})}),
    }


def unscaled(*numbers: int) -> list[Decimal]:
    return [Decimal((number < 0, tuple(map(int, str(abs(number)))), -2)) for number in numbers]


_INT32, _INT64 = pa.int32(), pa.int64()
_INT_MIN, _INT_MAX, _LONG_MIN, _LONG_MAX = -(2**31), 2**31 - 1, -(2**63), 2**63 - 1
ANNOTATIONS = {
    "INT_8": Annotation(_INT32, integer(15, 8, signed=True), [-128, 0, 127], [-1, 300, 127, -129, 65536]),
    "INT_16": Annotation(_INT32, integer(16, 16, signed=True), [-32768, 0, 32767], [0, 32768, -32769, _INT_MAX]),
    "UINT_8": Annotation(_INT32, integer(11, 8, signed=False), [0, 127, 255], [-1, 300, 127, -129, 65536]),
    "UINT_8 of 256": Annotation(_INT32, integer(11, 8, signed=False), [0], [256]),
    "UINT_8 of -1": Annotation(_INT32, integer(11, 8, signed=False), [0], [-1]),
    "UINT_16": Annotation(_INT32, integer(12, 16, signed=False), [0, 255, 65535], [-1, 300, 127, -129, 65536]),
    "UINT_32": Annotation(_INT32, integer(13, 32, signed=False), [-1, _INT_MIN, 0, _INT_MAX]),
    "UINT_64": Annotation(_INT64, integer(14, 64, signed=False), [-1, _LONG_MIN, 0, _LONG_MAX]),
    "DATE": Annotation(_INT32, {ElementField.CONVERTED: Whole(6), ElementField.LOGICAL: Fields({6: Fields()})},
                       [0, -1, 2_932_896, -719_162], ()),
    "DATE beyond 9999": Annotation(
        _INT32, {ElementField.CONVERTED: Whole(6), ElementField.LOGICAL: Fields({6: Fields()})},
        [_INT_MIN, _INT_MAX]),
    "TIME": Annotation(_INT32, moment(7, 7), [0, 86_399_999, 86_400_000, -1], here=False),
    "TIMESTAMP": Annotation(_INT64, moment(9, 8), [0, 1_700_000_000_123, -1]),
    "DECIMAL of INT32": Annotation(_INT32, decimal(4, 2), [-9999, 0, 9999], [0, 10_000, _INT_MIN]),
    "DECIMAL of INT64": Annotation(_INT64, decimal(12, 2), [1 - 10**12, 0, 10**12 - 1], [0, 10**12, _LONG_MIN]),
    "DECIMAL of 16 bytes": Annotation(pa.decimal128(38, 2), decimal(20, 2), unscaled(1 - 10**20, 0, 10**20 - 1),
                                      unscaled(0, 10**20, -(10**32))),
    "short DECIMAL of 16 bytes": Annotation(pa.decimal128(38, 2), decimal(12, 2), unscaled(1 - 10**12, 0, 10**12 - 1),
                                            unscaled(0, 10**12, 2**64, -(10**32))),
    "BOOLEAN": Annotation(pa.bool_(), {}, [True, False]),
    "FLOAT16": Annotation(pa.binary(2), {ElementField.LOGICAL: Fields({15: Fields()})}, [b"\0\x3c"], here=False),
    "UNKNOWN": Annotation(_INT32, {ElementField.LOGICAL: Fields({11: Fields()})}, [0, 7], here=False),
    "list of INT_8": Annotation(pa.list_(_INT32), integer(15, 8, signed=True), [[-128], [0, 127]], [[0], [128, 1]]),
    "list of DECIMAL": Annotation(pa.list_(_INT64), decimal(12, 2), [[10**12 - 1]], [[0], [10**12]]),
    "struct of INT_16": Annotation(
        pa.struct([("x", _INT32)]), integer(16, 16, signed=True), [{"x": 32767}], [{"x": 32768}]),
    "list of UINT_8": Annotation(
        pa.list_(_INT32), integer(11, 8, signed=False), [[0, 255]], [[300]], here=False),
}  # fmt: skip
QUICK = ("UINT_8",)
"""Annotations of `make test`."""


def write(path: Path, annotation: Annotation, values: Sequence[Any], *, dictionary: bool, statistics: bool) -> None:
    rows = [*values, None, *values]
    table = pa.table({"id": range(len(rows)), "v": pa.array(rows, annotation.stored)})
    pq.write_table(table, path, store_schema=False, use_dictionary=dictionary)
    with rewriting(path) as footer:
        footer[FileField.SCHEMA][-1].update(annotation.fields)
        for group in footer[FileField.GROUPS]:
            if not statistics:
                group[RowGroupField.CHUNKS][-1][ChunkField.METADATA].pop(MetadataField.STATISTICS, None)


PROJECTION = "select a.id, {v} v from t a join t b on a.id = b.id"
CONDITIONS = ("= 300", "= 127", "= 44", "= -1", "> 1", "< 0", "in (255, 32768)")


def queries(frame: Any) -> Iterator[str]:
    kind = frame.schema["v"].dataType.typeName()
    # Arrow takes no decimal beyond its precision from Spark.
    text = "cast({} as string)" if kind == "decimal" else "{}"
    yield PROJECTION.format(v=text.format("b.v"))
    yield f"select {text.format('v')} v, count(*) n from t group by v"
    yield "select a.id x, b.id y from t a join t b on a.v = b.v"
    yield f"select {text.format('min(v)')} low, {text.format('max(v)')} high, count(v) n from t"
    if kind in ("byte", "short", "integer", "long", "decimal"):
        yield "select sum(v) s from t"
        yield " union all ".join(f"select '{each}' c, count(*) n from t where v {each}" for each in CONDITIONS)


def outcome(session: SparkSession, text: str) -> Any:
    """The rows of a query with their types, or the condition of its error."""
    try:
        rows = session.sql(text).toArrow()
    except PySparkException as problem:
        return problem.getCondition() or type(problem).__name__
    except Py4JJavaError as problem:  # rows that Spark does not convert to Arrow
        return str(problem.java_exception.getCause().getCause())[:80]
    return rows.schema.types, row_counts(rows)


@pytest.fixture(scope="module")
def sessions(spark_session: SparkSession) -> Iterator[Sessions]:
    with sessions_of(spark_session) as pair:
        yield pair


CASES = [
    pytest.param(name, beyond, marks=[] if name in QUICK else pytest.mark.extra, id=f"{name} {kind}")
    for name, annotation in ANNOTATIONS.items()
    for beyond, kind in ((False, "within"), (True, "beyond"))
    if annotation.beyond or not beyond
]


@pytest.mark.few
@pytest.mark.parametrize(("name", "beyond"), CASES)
@pytest.mark.parametrize("statistics", [True, False], ids=["statistics", "no statistics"])
@pytest.mark.parametrize(
    "dictionary", [True, pytest.param(False, marks=pytest.mark.extra)], ids=["dictionary", "plain"]
)
def test_numbers_within_an_annotation_are_read_here_and_others_by_spark(
    sessions: Sessions, tmp_path: Path, name: str, beyond: bool, dictionary: bool, statistics: bool
) -> None:
    annotation, path = ANNOTATIONS[name], tmp_path / "t.parquet"
    values = annotation.beyond if beyond else annotation.within
    write(path, annotation, values, dictionary=dictionary, statistics=statistics)
    try:
        frame = sessions.native.read.parquet(str(path))
    except PySparkException:
        assert not annotation.here
        return
    frame.createOrReplaceTempView("t")
    sessions.here.read.parquet(str(path)).createOrReplaceTempView("t")
    for text in queries(frame):
        sessions.planned.clear()
        sessions.returned.clear()
        assert outcome(sessions.here, text) == outcome(sessions.native, text), text
        if "b.v" in text and "id, " in text:
            told = "\n".join([*(str(each.explanation) for each in sessions.planned), *sessions.returned])
            assert beyond is ("stores numbers that its type in the file" in told) or not annotation.here, told
            assert ("rows from Spark" in told or bool(sessions.returned)) is (beyond or not annotation.here), told
            if name == "UNKNOWN":
                assert "is annotated as UNKNOWN" in told
