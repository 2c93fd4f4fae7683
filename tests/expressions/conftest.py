"""One judge for each table of values and test module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from tests.expressions.oracle import AS_WRITTEN, Judge
from tests.expressions.values import table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MakeJudge = Callable[..., Judge]


@pytest.fixture(scope="module")
def judge(spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeJudge]:
    """Makes a judge over columns of the named kinds; settings are put back at the end."""
    before = {key: spark_session.conf.get(key, None) for key in ("spark.sql.ansi.enabled", *AS_WRITTEN)}
    folder = tmp_path_factory.mktemp("expressions")
    made: dict[tuple[str | bool, ...], Judge] = {}

    def make(*names: str, pairs: bool = True) -> Judge:
        if (*names, pairs) not in made:
            made[(*names, pairs)] = Judge(spark_session, table(list(names), pairs=pairs), folder)
        return made[(*names, pairs)]

    yield make
    for key, value in before.items():
        if value is None:
            spark_session.conf.unset(key)
        else:
            spark_session.conf.set(key, value)
