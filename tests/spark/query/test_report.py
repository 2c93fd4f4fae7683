"""The report of a query: explain before a run, and metrics after it, show the same operations."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
from pyspark.sql import SparkSession

import gpujoin
from gpujoin.report.explanation import Explanation, QueryReport
from gpujoin.report.operations import Note, NoteKind, Operation, OperationKind
from tests.spark.leaks import leaks
from tests.spark.query.queries import EXCHANGED, FORCED

pytestmark = pytest.mark.spark

QUERIES = {
    "joined groups": "select b.s, sum(a.price) p, count(*) from sales a join items b on a.k = b.k group by b.s",
    "computed groups": (
        "select a.k % 2 + 1 g, avg(cost), max(day) from sales a join items b using (k) "
        "where day > date'2020-01-01' group by a.k % 2 + 1 having count(*) * 2 > 1"
    ),
    "a subquery": "select k, count(*) from sales where price > (select min(cost) from items) group by k",
    "windows": "select id, rank() over (partition by a.k order by price desc) r from sales a join items b on a.k = b.k",
    "shares": (
        "select s, sum(price) * 100 - sum(sum(price)) over (partition by flag order by s) share from sales "
        "group by s, flag"
    ),
    "a union": "select k, count(*) from (select k from sales union all select k from items) group by k",
    "grouping sets": "select s, k, sum(price) from sales group by rollup(s, k)",
    "distinct": "select count(distinct s), sum(distinct k), count(*) from sales group by flag",
}


def planned(operation: Operation) -> Operation:
    """An operation as it is before a run, without its island's own name."""
    named = operation.operation.replace(f" [{operation.name}]", "")
    notes = tuple(note for note in operation.notes if note.kind is not NoteKind.MEASURED)
    return dataclasses.replace(
        operation, operation=named, name=None, measured=None, notes=notes, inputs=(), measured_as=()
    )


def as_planned(operation: str) -> str:
    """What is written of an operation before the value of its subquery is known."""
    return operation.replace("-1.500", "(a subquery)")


@pytest.mark.few
@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("conf", [FORCED, EXCHANGED], ids=["one task", "exchanged"])
def test_the_same_operations_with_the_same_numbers(enabled: SparkSession, conf: dict[str, str], query: str) -> None:
    for name, value in conf.items():
        enabled.conf.set(name, value)
    frame = enabled.sql(QUERIES[query])
    before = gpujoin.explain(frame).report
    rows = frame.collect()
    reports = gpujoin.metrics(frame)
    after = reports.report
    with_values = [planned(each) for each in after.walk()]
    assert [dataclasses.replace(each, operation=as_planned(each.operation)) for each in with_values] == [
        planned(each) for each in before.walk()
    ]
    assert after.has_run
    assert not before.has_run
    assert QueryReport.from_json(reports.to_json()).to_dict() == after.to_dict()
    island = next(after.walk())
    assert island.measured is not None
    assert island.measured.rows is not None
    assert island.measured.rows >= len(rows)
    assert island.measured.seconds is not None
    assert island.measured.seconds > 0
    run_here = [each for each in after.walk() if each.kind is not OperationKind.ISLAND]
    assert all(each.measured is not None for each in run_here)
    assert leaks(str(before)) == []
    assert leaks(str(after)) == []


def test_measured_rows_are_those_of_the_query(enabled: SparkSession) -> None:
    for name, value in EXCHANGED.items():
        enabled.conf.set(name, value)
    frame = enabled.sql(QUERIES["joined groups"])
    groups = len(frame.collect())
    counted: dict[OperationKind, list[float | None]] = {}
    for each in gpujoin.metrics(frame).report.walk():
        assert each.measured is not None
        counted.setdefault(each.kind, []).append(each.measured.rows)
    joined = enabled.sql("select a.id from sales a join items b on a.k = b.k")
    assert counted[OperationKind.JOIN] in ([joined.count()], [None])
    island_rows = counted[OperationKind.ISLAND][0]
    assert island_rows is not None
    assert island_rows >= groups
    keyed = {table: enabled.sql(f"select k from {table} where k is not null").count() for table in ("sales", "items")}
    (of_groups,) = (Counter(counted[OperationKind.EXCHANGE]) - Counter(keyed.values())).elements()
    assert of_groups is not None
    assert of_groups >= groups
    assert len(counted[OperationKind.EXCHANGE]) == 3


def test_a_subquery_is_named_before_its_value_is_known(enabled: SparkSession) -> None:
    """Where inputs are divided among tasks; an island of one task computes it itself."""
    for name, value in EXCHANGED.items():
        enabled.conf.set(name, value)
    frame = enabled.sql(QUERIES["a subquery"])
    assert "> (a subquery)" in str(gpujoin.explain(frame))
    frame.collect()
    assert "(a subquery)" not in str(gpujoin.metrics(frame))
    assert "-1.500" in str(gpujoin.metrics(frame))


def test_joins_of_spark_stay_in_the_report_after_a_run(enabled: SparkSession) -> None:
    enabled.conf.set("spark.gpujoin.backend", "cpu")
    enabled.conf.set("spark.gpujoin.fallback", "silent")
    text = "select a.id, c.n from sales a join (select s, collect_set(item) n from items group by s) c on a.s = c.s"
    frame = enabled.sql(f"select n, count(*) from ({text}) group by n")
    before = gpujoin.explain(frame).report
    frame.collect()
    after = gpujoin.metrics(frame).report
    assert list(map(planned, after.walk())) == list(map(planned, before.walk()))
    reasons = [note for each in before.walk() for note in each.notes if note.kind is NoteKind.LEFT_TO_SPARK]
    assert reasons or before.notes or "collect_set" in str(before)


def test_accelerated_queries_and_what_is_made_of_them(tables: SparkSession) -> None:
    tables.conf.set("spark.gpujoin.backend", "cpu")
    frame = gpujoin.accelerate(tables.sql(QUERIES["joined groups"]))
    before = gpujoin.explain(frame).report
    made = frame.where("p > 0")
    made.collect()
    assert list(map(planned, gpujoin.metrics(made).report.walk())) == list(map(planned, before.walk()))


def test_a_report_of_nothing(tables: SparkSession) -> None:
    reports = gpujoin.metrics(tables.range(3))
    assert len(reports) == 0
    assert reports.report == Explanation()
    assert str(reports).startswith("gpujoin has run nothing")
    assert reports._repr_html_().startswith("<pre>gpujoin has run nothing")
    assert reports.to_dict() == {"format": 1, "operations": [], "notes": []}


def test_notes_that_several_operations_share_are_written_once(enabled: SparkSession) -> None:
    enabled.conf.set("spark.gpujoin.costs", "query=100")
    report = gpujoin.explain(enabled.sql("select * from sales join items using (k) join items o using (k)")).report
    shared: set[Note] = set.intersection(*(set(each.notes) for each in report.walk()))
    assert any(note.kind is NoteKind.LEFT_TO_SPARK for note in shared)
    assert sum("left to Spark: it is predicted to be faster there" in line for line in str(report).splitlines()) == 1
