"""The report of a query: numbers, text and JSON."""

from __future__ import annotations

import json
import re
from html import unescape

import pytest

from gpujoin.errors import GpuJoinError
from gpujoin.model.reasons import Reason, ReasonKind
from gpujoin.report.amounts import show_seconds
from gpujoin.report.explanation import Explanation, QueryReport
from gpujoin.report.operations import (
    Amounts,
    IslandOperation,
    Measurement,
    NoteKind,
    Operation,
    OperationKind,
    notes_of,
    spark_join,
)

SLOWER = Reason(ReasonKind.SLOWER, "cost", "2 s are predicted here, 1 s in Spark", "spark.gpujoin.backend=cpu")
SCAN = Operation(
    kind=OperationKind.SCAN, operation="scan /data/<b>sales</b>", backend="cpu",
    predicted=Amounts(rows=1000.4, bytes=8000.0, seconds=0.2), measured_as=(("i", "Scan"),),
)  # fmt: skip
SUM = Operation(
    kind=OperationKind.AGGREGATION, operation="aggregate sum(v) by k", backend="cpu",
    predicted=Amounts(rows=200.0, bytes=3200.0), measured_as=(("i", "PartialAggregate"), ("i", "Project")),
    inputs=(SCAN,),
)  # fmt: skip
ISLAND = IslandOperation(
    operation="island: 1 task on cpu [i]", backend="cpu", name="i", tasks=1, predicted_spark_seconds=1.0,
    predicted=Amounts(rows=200.0, bytes=3200.0, seconds=0.5), notes=notes_of(NoteKind.DECISION, "one task"),
    inputs=(SUM,), measured_as=(("i", "island"),),
)  # fmt: skip
BELOW = spark_join("left", SLOWER)
JOIN = spark_join("inner", SLOWER, condition="a.k = b.k", inputs=(BELOW,), left_bytes=2048)
OTHER = Reason(ReasonKind.UNSUPPORTED, "the Python UDF f(x)", "Spark runs Python UDFs")
EXPLANATION = Explanation((JOIN, ISLAND), reasons=(SLOWER, OTHER))
AFTER = EXPLANATION.with_measurements({
    ("i", "Scan"): Measurement(Amounts(seconds=0.25), "1,000 rows read from the files"),
    ("i", "PartialAggregate"): Measurement(Amounts(rows=187, bytes=2992, seconds=0.1)),
    ("i", "Project"): Measurement(Amounts(rows=5, seconds=0.05)),
    ("i", "island"): Measurement(Amounts(rows=187, bytes=2992, seconds=0.75), "1 task on cpu"),
})  # fmt: skip


def test_operations_come_before_their_inputs() -> None:
    assert [each.kind for each in EXPLANATION.walk()] == [
        OperationKind.JOIN, OperationKind.JOIN, OperationKind.ISLAND, OperationKind.AGGREGATION, OperationKind.SCAN,
    ]  # fmt: skip
    assert EXPLANATION.joins == (JOIN, BELOW)
    assert EXPLANATION.islands == (ISLAND,)
    assert ISLAND.tree == ("aggregate sum(v) by k", "  scan /data/<b>sales</b>")


def test_a_run_adds_what_was_measured() -> None:
    assert not EXPLANATION.has_run
    assert AFTER.has_run
    assert [each.operation for each in AFTER.walk()] == [each.operation for each in EXPLANATION.walk()]
    assert [each.measured for each in AFTER.walk()] == [
        None, None, Amounts(rows=187, bytes=2992, seconds=0.75), Amounts(rows=187, bytes=2992, seconds=0.1 + 0.05),
        Amounts(seconds=0.25),
    ]  # fmt: skip
    assert not EXPLANATION.with_measurements({("other", "Scan"): Measurement(Amounts(rows=1))}).has_run


def test_the_text_has_predicted_and_measured_numbers_side_by_side() -> None:
    assert str(AFTER).splitlines() == [
        "#  ~rows  rows    ~size     size   ~s     s  plan (~ predicted)",
        "1                                            inner join on a.k = b.k: left to Spark",
        "2                                              left join: left to Spark",
        "3    200   187  3.1 KiB  2.9 KiB  0.5  0.75  island: 1 task on cpu [i]",
        "4    200   187  3.1 KiB  2.9 KiB       0.15    aggregate sum(v) by k",
        "5  1,000        7.8 KiB           0.2  0.25      scan /data/<b>sales</b>",
        "notes",
        "   1  estimated sizes: left 2.0 KiB, right unknown",
        "1, 2  left to Spark: it is predicted to be faster there: 2 s are predicted here, 1 s in Spark (change with spark.gpujoin.backend=cpu)",  # noqa: E501
        "   3  one task",
        "   3  1 task on cpu",
        "   5  1,000 rows read from the files",
        "      left to Spark: the Python UDF f(x): Spark runs Python UDFs",
    ]  # fmt: skip


def test_columns_without_numbers_are_left_out() -> None:
    assert str(Explanation((BELOW,))).splitlines()[0] == "#  plan"
    assert str(Explanation()) == "nothing to run here: neither a join nor an aggregation, nor first rows in an order"
    assert str(Explanation(reasons=(OTHER,))) == "left to Spark: the Python UDF f(x): Spark runs Python UDFs"


def test_notebooks_show_the_text() -> None:
    shown = AFTER._repr_html_()
    assert shown.startswith("<pre>#  ~rows")
    assert "<b>" not in shown
    assert unescape(shown.removeprefix("<pre>").removesuffix("</pre>")) == str(AFTER)


@pytest.mark.parametrize("report", [EXPLANATION, AFTER], ids=["before", "after"])
def test_json_is_read_back(report: Explanation) -> None:
    again = QueryReport.from_json(report.to_json(indent=1))
    assert again == QueryReport.from_dict(report.to_dict())
    assert again.to_dict() == report.to_dict()
    assert str(again) == str(report)


def test_every_operation_has_the_same_fields_in_json() -> None:
    operations = AFTER.to_dict()["operations"]
    for number in range(1, 6):
        operation = operations.pop(0)
        assert list(operation) == [
            "number", "kind", "operation", "runs_in", "backend", "name", "predicted", "measured",
            "predicted_spark_seconds", "notes", "inputs",
        ]  # fmt: skip
        assert operation["number"] == number
        assert (operation["runs_in"], operation["backend"]) == (("spark", None) if number < 3 else ("gpujoin", "cpu"))
        operations = [*operation["inputs"], *operations]
    assert not operations
    json.dumps(AFTER.to_dict(), allow_nan=False)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[]", "a JSON object is expected"),
        ("{", "this is no report"),
        ('{"format": 99}', re.escape("reports of format 1 are read, got 99")),
        ('{"format": 1, "operations": []}', "notes"),
        ('{"format": 1, "operations": [{"number": 1}], "notes": []}', "measured"),
    ],
    ids=["list", "broken", "other format", "no notes", "half an operation"],
)
def test_what_is_no_report_is_refused(text: str, why: str) -> None:
    with pytest.raises(GpuJoinError, match=why):
        QueryReport.from_json(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "<0.001"), (0.0004, "<0.001"), (0.001, "0.001"), (0.0456, "0.046"), (1.26, "1.3"), (12.4, "12")],
)
def test_seconds(seconds: float, text: str) -> None:
    assert show_seconds(seconds) == text
