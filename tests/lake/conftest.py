"""Sessions with Delta or Iceberg; tests are skipped where their jars, or the PySpark that they are for, are missing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.lake.jars import why_missing
from tests.lake.sessions import session_settings
from tests.sessions import start_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip all tests of tables that cannot be made here."""
    missing = why_missing()
    for item in items:
        if missing is not None and item.get_closest_marker("lake") is not None:
            item.add_marker(pytest.mark.skip(reason=missing))


@pytest.fixture(scope="module")
def spark_session(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark with the format that a file of tests names: ``pytestmark = pytest.mark.lake("iceberg")``.

    Tables of Iceberg are in the catalog ``ice``, those of Delta in Spark's own; both are of this file alone.
    """
    (name,) = request.node.get_closest_marker("lake").args
    scratch = tmp_path_factory.mktemp(name)
    # A Java that runs already has the jars of its first session, and its settings as properties of the system.
    settings = session_settings(name)
    if name == "iceberg":
        settings["spark.sql.catalog.ice.warehouse"] = str(scratch / "ice")
    session = start_session(scratch, settings)
    jvm: Any = session._jvm
    system = jvm.System
    yield session
    session.stop()
    for key in settings:
        system.clearProperty(key)
