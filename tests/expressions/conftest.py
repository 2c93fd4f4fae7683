"""One judge for each table of values and test module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from tests.expressions.oracle import AS_WRITTEN, Judge
from tests.expressions.values import table

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

MakeJudge = Callable[..., Judge]


@pytest.fixture(scope="module")
def judge(judge_of: Callable[[pa.Table], Judge]) -> MakeJudge:
    """Makes a judge over columns of the named kinds."""
    made: dict[tuple[str | bool, ...], Judge] = {}

    def make(*names: str, pairs: bool = True) -> Judge:
        if (*names, pairs) not in made:
            made[(*names, pairs)] = judge_of(table(list(names), pairs=pairs))
        return made[(*names, pairs)]

    return make


@pytest.fixture(scope="module")
def judge_of(
    spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[pa.Table], Judge]]:
    """Makes a judge over a table with columns ``left_…``, ``right_…`` and ``id``; settings are put back at the end."""
    before = {key: spark_session.conf.get(key, None) for key in ("spark.sql.ansi.enabled", *AS_WRITTEN)}
    folder = tmp_path_factory.mktemp("expressions")
    yield lambda rows: Judge(spark_session, rows, folder)
    for key, value in before.items():
        if value is None:
            spark_session.conf.unset(key)
        else:
            spark_session.conf.set(key, value)
