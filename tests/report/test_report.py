"""The report of a query: numbers, text, HTML and JSON."""

from __future__ import annotations

import dataclasses
import json
import re
from html.parser import HTMLParser

import pytest

from gpujoin.config import Strategy
from gpujoin.errors import GpuJoinError
from gpujoin.model.reasons import Reason, ReasonKind
from gpujoin.report.amounts import show_seconds
from gpujoin.report.explanation import Explanation, IslandExplanation, JoinExplanation, Measured, Operation
from gpujoin.report.notes import NoteKind
from gpujoin.report.operations import (
    Amounts,
    OperationKind,
    OperationReport,
    QueryReport,
    Runner,
    numbered,
)

SLOWER = Reason(ReasonKind.SLOWER, "cost", "2 s are predicted here, 1 s in Spark", "spark.gpujoin.backend=cpu")
SCAN = Operation(
    kind=OperationKind.SCAN, text="scan /data/<b>sales</b>", predicted=Amounts(rows=1000.4, bytes=8000.0, seconds=0.2),
    measured_as=(("i", "Scan"),),
)  # fmt: skip
SUM = Operation(
    kind=OperationKind.AGGREGATION, text="aggregate sum(v) by k", predicted=Amounts(rows=200.0, bytes=3200.0),
    measured_as=(("i", "PartialAggregate"), ("i", "Project")), inputs=(SCAN,),
)  # fmt: skip
ISLAND = IslandExplanation(
    island_id="i", backend="cpu", tasks=1, threads=2, operation=SUM, input_bytes=4096, notes=("one task",),
    predicted_seconds=0.5, predicted_spark_seconds=1.0,
)  # fmt: skip
BELOW = JoinExplanation(join_type="left", strategy=Strategy.SPARK, backend="spark", reasons=(SLOWER,))
JOIN = JoinExplanation(
    join_type="inner", strategy=Strategy.SPARK, backend="spark", condition="a.k = b.k", reasons=(SLOWER,),
    inputs=(BELOW,), left_bytes=2048,
)  # fmt: skip
OTHER = Reason(ReasonKind.UNSUPPORTED, "the Python UDF f(x)", "Spark runs Python UDFs")
EXPLANATION = Explanation((JOIN, ISLAND), (SLOWER, OTHER))
MEASURED = Measured(
    operations={
        ("i", "Scan"): Amounts(seconds=0.25),
        ("i", "PartialAggregate"): Amounts(rows=187, bytes=2992, seconds=0.1),
        ("i", "Project"): Amounts(rows=5, seconds=0.05),
    },
    notes={("i", "Scan"): "1,000 rows read from the files"},
    islands={"i": Amounts(rows=187, bytes=2992, seconds=0.75)},
    island_notes={"i": ("1 task on cpu",)},
)


def test_operations_are_numbered_before_their_inputs() -> None:
    assert [each.number for each in EXPLANATION.report.walk()] == [1, 2, 3, 4, 5]
    assert [each.kind for each in EXPLANATION.report.walk()] == [
        OperationKind.JOIN, OperationKind.JOIN, OperationKind.ISLAND, OperationKind.AGGREGATION, OperationKind.SCAN,
    ]  # fmt: skip


def test_a_run_adds_what_was_measured_and_changes_nothing_else() -> None:
    before, after = EXPLANATION.report, EXPLANATION.reported(MEASURED)
    assert not before.has_run
    assert after.has_run
    for planned, run in zip(before.walk(), after.walk(), strict=True):
        notes = tuple(note for note in run.notes if note.kind is not NoteKind.MEASURED)
        unmeasured = dataclasses.replace(run, measured=None, notes=notes, inputs=planned.inputs)
        assert unmeasured == planned
    aggregate = list(after.walk())[3]
    assert aggregate.measured is not None
    assert (aggregate.measured.rows, aggregate.measured.bytes) == (187, 2992)
    assert aggregate.measured.seconds == pytest.approx(0.15)


def test_the_text_has_predicted_and_measured_numbers_side_by_side() -> None:
    assert str(EXPLANATION.reported(MEASURED)).splitlines() == [
        "#  ~rows  rows    ~size     size   ~s     s  plan (~ predicted)",
        "1                                            inner join on a.k = b.k: left to Spark",
        "2                                              left join: left to Spark",
        "3    200   187  3.1 KiB  2.9 KiB  0.5  0.75  island: 1 task of 2 threads on cpu reading 4.0 KiB, ~1 s in Spark [i]",  # noqa: E501
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
    assert str(Explanation()) == "no joins"
    assert str(Explanation((), (OTHER,))) == "left to Spark: the Python UDF f(x): Spark runs Python UDFs"


class Checker(HTMLParser):
    """Checks that tags are closed in order, and keeps their names and the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not any(name.startswith("on") or name in ("src", "href") for name, _ in attrs)
        self.open.append(tag)
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("measured", [Measured(), MEASURED], ids=["before", "after"])
def test_html_is_whole_escaped_and_folds_without_scripts(measured: Measured) -> None:
    checker = Checker()
    checker.feed(EXPLANATION.reported(measured)._repr_html_())
    assert checker.open == []
    assert checker.tags == {"div", "style", "details", "summary", "span"}
    for text in ("scan /data/<b>sales</b>", "inner join on a.k = b.k", "change with spark.gpujoin.backend=cpu"):
        assert text in checker.text
    assert ("2.9 KiB" in checker.text) is bool(measured.islands)
    assert EXPLANATION._repr_html_() == EXPLANATION.report._repr_html_()
    assert "no joins" in QueryReport()._repr_html_()


@pytest.mark.parametrize("measured", [Measured(), MEASURED], ids=["before", "after"])
def test_json_is_read_back(measured: Measured) -> None:
    report = EXPLANATION.reported(measured)
    assert QueryReport.from_json(report.to_json()) == report
    assert QueryReport.from_dict(report.to_dict()) == report
    assert json.loads(EXPLANATION.to_json(indent=1)) == EXPLANATION.to_dict() == EXPLANATION.report.to_dict()


def test_every_operation_has_the_same_fields_in_json() -> None:
    def fields(operation: dict[str, object]) -> list[list[str]]:
        inputs = operation["inputs"]
        assert isinstance(inputs, list)
        return [list(operation), *(names for each in inputs for names in fields(each))]

    given = [names for each in EXPLANATION.reported(MEASURED).to_dict()["operations"] for names in fields(each)]
    assert given == [[field.name for field in dataclasses.fields(OperationReport)]] * 5


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


def test_long_chains_are_numbered() -> None:
    chain = OperationReport(number=0, kind=OperationKind.UNION, operation="union", runs_in=Runner.GPUJOIN)
    for _ in range(300):
        chain = dataclasses.replace(chain, inputs=(chain,))
    (root,) = numbered([chain])
    assert [each.number for each in root.walk()] == list(range(1, 302))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "<0.001"), (0.0004, "<0.001"), (0.001, "0.001"), (0.0456, "0.046"), (1.26, "1.3"), (12.4, "12")],
)
def test_seconds(seconds: float, text: str) -> None:
    assert show_seconds(seconds) == text
