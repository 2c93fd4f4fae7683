"""What profile() gives, as text and for programs; and the comparison of rows."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="no PySpark: pip install gpujoin[spark]")

from gpujoin.report.explanation import QueryReport
from gpujoin.report.operations import Amounts, Operation, OperationKind
from gpujoin.report.profile import Activity, Equality, QueryProfile, compare

SCAN = Operation(kind=OperationKind.SCAN, operation="scan <sales>", backend="cpu", measured=Amounts(rows=5))
ACTIVITIES = {Activity.PLANNING: 0.1, Activity.READING: 0.25, Activity.JOINING: 0.0, Activity.SPARK: 0.15}


def profiled(*, report: QueryReport | None = None, difference: str | None = None) -> QueryProfile:
    return QueryProfile(
        rows=5, equality=Equality.DIFFERENT if difference else Equality.EQUAL, difference=difference,
        gpujoin_seconds=(0.9, 0.5, 0.6), spark_seconds=(1.8, 1.5, 1.5), activities=ACTIVITIES,
        report=QueryReport(operations=(SCAN,)) if report is None else report,
    )  # fmt: skip


def test_the_text_tells_times_rows_activities_and_operations() -> None:
    text = str(profiled())
    assert text.splitlines()[:2] == [
        "0.6 s with gpujoin, 1.5 s by Spark alone (medians of 3 runs): 2.5 times as fast", "rows: 5 rows, equal",
    ]  # fmt: skip
    assert "reading     0.25  ███████████████\n" in text
    assert "joining" not in text
    assert "scan <sales>" in text


def test_a_query_that_stays_in_spark_is_no_gain() -> None:
    text = str(profiled(report=QueryReport()))
    assert "gpujoin ran nothing of it" in text
    assert "times as" not in text


def test_a_difference_is_told() -> None:
    given = profiled(difference="missing: (1, '<b>')")
    assert "rows: 5 rows, different\n  missing: (1, '<b>')" in str(given)
    assert "missing: (1, &#x27;&lt;b&gt;&#x27;)" in given._repr_html_()


def test_the_form_for_programs() -> None:
    given = json.loads(profiled().to_json())
    assert given == profiled().to_dict()
    assert given["speedup"] == 2.5
    assert given["activities"] == {"planning": 0.1, "reading": 0.25, "joining": 0.0, "Spark": 0.15}
    assert QueryReport.from_dict(given["report"]) == profiled().report


TABLES: dict[str, tuple[dict[str, list[object]], dict[str, list[object]], Equality]] = {
    "another order": ({"k": [1, 2], "v": [0.1, None]}, {"k": [2, 1], "v": [None, 0.1]}, Equality.EQUAL),
    "last digits": ({"k": [1, 2], "v": [0.1 + 0.2, 1.0]}, {"k": [2, 1], "v": [1.0, 0.3]}, Equality.NEARLY),
    "another float": ({"k": [1, 2], "v": [0.31, 1.0]}, {"k": [2, 1], "v": [1.0, 0.3]}, Equality.DIFFERENT),
    "another key": ({"k": [1, 3], "v": [0.3, 1.0]}, {"k": [1, 2], "v": [0.3, 1.0]}, Equality.DIFFERENT),
    "a null for a float": ({"k": [1, 2], "v": [None, 1.0]}, {"k": [1, 2], "v": [0.3, 1.0]}, Equality.DIFFERENT),
    "a row twice": ({"k": [1, 1], "v": [0.3, 0.3]}, {"k": [1], "v": [0.3]}, Equality.DIFFERENT),
    "lists": ({"k": [[1], [2]], "v": [0.1 + 0.2, 1.0]}, {"k": [[1], [2]], "v": [0.3, 1.0]}, Equality.DIFFERENT),
    "no rows": ({"k": [], "v": []}, {"k": [], "v": []}, Equality.EQUAL),
}


@pytest.mark.parametrize("name", TABLES)
def test_rows_are_compared_in_any_order(name: str) -> None:
    here, spark, expected = TABLES[name]
    equality, difference = compare(pa.table(here), pa.table(spark))
    assert equality is expected
    assert (difference is not None) is (expected is Equality.DIFFERENT)
