"""Void columns, null literals, constant keys and the like: planning understands them, or says what it does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from gpujoin import enable, explain
from gpujoin.model.reasons import ReasonKind
from gpujoin.report.explanation import Explanation
from gpujoin.spark.query import planner
from gpujoin.spark.query.accelerate import rewrite
from tests.spark.query.queries import FORCED, check_all

SILENT = FORCED | {"spark.gpujoin.fallback": "silent"}
pytestmark = [pytest.mark.spark, pytest.mark.parametrize("spark", [SILENT], indirect=True, ids=["silent"])]

_VOID = "(select id, k, s, null v, array() nothing from sales)"
COMPUTED = {
    "count of distinct constants": "select k, count(distinct 1) from sales group by k",
    "count of several distinct constants": "select k, count(distinct 1, 'a'), count(*), sum(id) from sales group by k",
    "sum of a distinct constant": "select k, sum(distinct 2), max(id) from sales group by k",
    "count of no distinct value": "select k, count(distinct null), count(*) from sales group by k",
    "count of a distinct constant beside a column": "select k, count(distinct 1, s) from sales group by k",
    "void beside a join": f"select t.id, i.item, t.v from {_VOID} t join items i on t.k = i.k",
}
LEFT = {
    "list of voids": f"select k, collect_list(v) from {_VOID} group by k",
    "set of voids": f"select k, collect_set(v) from {_VOID} group by k",
    "set of nulls": "select k, collect_set(null) from sales group by k",
    "least void": f"select k, min(v), max_by(v, id), first(v) from {_VOID} group by k",
    "no percentage": "select k, percentile(id, array()) from sales group by k",
    "void key": f"select v, count(*) from {_VOID} group by v",
}


def test_queries_of_constants_run_here(tables: SparkSession) -> None:
    checked = check_all({name: tables.sql(text) for name, text in COMPUTED.items()})
    assert all(found.islands for found in checked.values())


@pytest.mark.parametrize("name", LEFT)
def test_voids_are_left_to_spark_with_a_reason(tables: SparkSession, name: str) -> None:
    frame = tables.sql(LEFT[name])
    found = rewrite(frame)
    assert sorted(map(str, found.frame.collect())) == sorted(map(str, frame.collect()))
    explanation = found.explanation
    assert not explanation.islands
    assert {reason.kind for reason in explanation.reasons} == {ReasonKind.UNSUPPORTED}


@pytest.mark.parametrize("how", ["left", "right", "full"])
def test_a_query_that_spark_cannot_plan_ends_with_its_error(tables: SparkSession, how: str) -> None:
    """It is not told as something that gpujoin did not understand."""
    tables.udf.register("of_python", lambda value: value, "int")
    condition = "s.k = i.k and of_python(s.id + i.item) > 3"
    frame = tables.sql(f"select s.id, i.item from sales s {how} join items i on {condition}")
    with pytest.raises(AnalysisException, match="PYTHON_UDF_IN_ON_CLAUSE"):
        rewrite(frame)
    enable(tables)
    for asks in (explain, type(frame).collect):
        with pytest.raises(AnalysisException, match="PYTHON_UDF_IN_ON_CLAUSE"):
            asks(frame)


@pytest.mark.plans_badly
def test_an_error_while_planning_is_noted(tables: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests import fallbacks

    def fails(*arguments: object, **named: object) -> None:
        raise ZeroDivisionError("of a test")

    monkeypatch.setattr(planner, "arrange", fails)
    explanation: Explanation = rewrite(tables.sql("select k, count(*) from sales group by k")).explanation
    assert [reason.kind for reason in explanation.reasons] == [ReasonKind.UNEXPECTED]
    (problem,) = fallbacks._problems
    assert "ZeroDivisionError: of a test" in problem
    assert Path(__file__).name in problem, "with the traceback"
