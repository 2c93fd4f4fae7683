"""One judge for each table of values."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from tests.expressions.answers import RECORD, RECORDED, VARIABLE, Answers, Asked, answers
from tests.expressions.judge import Judge
from tests.expressions.values import table

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

MakeJudge = Callable[..., Judge]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs Spark's answers as Spark's where they are not those of files; nothing else is recorded."""
    how = os.environ.get(VARIABLE, RECORDED)
    judged = [item for item in items if isinstance(item, pytest.Function) and "spark_answers" in item.fixturenames]
    if how != RECORDED:
        for item in judged:
            item.add_marker("spark")
    if how == RECORD:
        items[:] = judged


@pytest.fixture(scope="session")
def spark_answers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Answers]:
    """Spark's answers, recorded or asked."""
    session = lambda: request.getfixturevalue("spark_session")  # noqa: E731
    with answers(session, tmp_path_factory.mktemp("answers")) as source:
        yield source


@pytest.fixture(scope="session")
def judge(judge_of: Callable[[pa.Table], Judge]) -> MakeJudge:
    """Makes a judge over columns of the named kinds."""
    judges: dict[tuple[str | bool, ...], Judge] = {}

    def make(*names: str, pairs: bool = True) -> Judge:
        if (*names, pairs) not in judges:
            judges[(*names, pairs)] = judge_of(table(list(names), pairs=pairs))
        return judges[(*names, pairs)]

    return make


@pytest.fixture(scope="session")
def judge_of(spark_answers: Answers) -> Callable[[pa.Table], Judge]:
    """Makes a judge over a table with columns ``left_…``, ``right_…`` and ``id``, the same in each run."""
    return lambda rows: Judge(spark_answers, rows)


@pytest.fixture(scope="module")
def asking_judge_of(
    spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[pa.Table], Judge]:
    """The same over rows that are drawn: Spark is asked. For long tests."""
    asked = Asked(spark_session, tmp_path_factory.mktemp("drawn"))
    return lambda rows: Judge(asked, rows)


@pytest.fixture(scope="module")
def asking_judge(asking_judge_of: Callable[[pa.Table], Judge]) -> MakeJudge:
    """Makes a judge over columns of the named kinds that asks Spark."""
    return lambda *names, pairs=True: asking_judge_of(table(list(names), pairs=pairs))
