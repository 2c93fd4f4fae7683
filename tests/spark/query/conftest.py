from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from gpujoin import disable, enable
from gpujoin.plan import join_parts, parts
from gpujoin.spark.query import rule
from gpujoin.spark.query.accelerate import PlannedQuery, plan_query
from tests.spark.query.bulk import write_bulk
from tests.spark.query.queries import views, write_tables


@pytest.fixture(scope="session")
def table_files(spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tables as Parquet files, which no test changes."""
    folder = tmp_path_factory.mktemp("tables")
    write_tables(spark_session, folder)
    return folder


@pytest.fixture(scope="module")
def written(spark_session: SparkSession, table_files: Path) -> Iterator[None]:
    """Views of the tables."""
    with views(spark_session, table_files, dict.fromkeys(("sales", "items", "none"))):
        yield


@pytest.fixture
def enabled(tables: SparkSession) -> Iterator[SparkSession]:
    """The session of the tables, in which queries run here."""
    enable(tables)
    yield tables
    disable(tables)


@pytest.fixture(scope="session")
def bulk_files(spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory, seed: int) -> Path:
    """The table of many special values as Parquet files, which no test changes."""
    folder = tmp_path_factory.mktemp("bulk")
    write_bulk(spark_session, folder, seed)
    return folder


@pytest.fixture(scope="module")
def bulk(spark_session: SparkSession, bulk_files: Path, written: None) -> Iterator[None]:
    """A view of that table, beside the others."""
    with views(spark_session, bulk_files, {"bulk": None}):
        yield


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[PlannedQuery]:
    """What became of each query that the optimizer rule has asked about."""
    seen: list[PlannedQuery] = []

    def noted(*arguments: Any) -> PlannedQuery:
        seen.append(plan_query(*arguments))
        return seen[-1]

    monkeypatch.setattr(rule, "plan_query", noted)
    return seen


@pytest.fixture
def cheap_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans in which keys drop rows before they are exchanged wherever they may: to send keys costs nothing."""
    for name, price in {"WAITING": 0, "BUILDING": 0.0, "EXCHANGED": 0.0}.items():
        monkeypatch.setattr(join_parts, name, price)
    monkeypatch.setattr(parts, "EXCHANGED", 1e9)


@pytest.fixture
def tables(written: None, spark: SparkSession) -> SparkSession:
    """A session with the tables."""
    return spark
