"""Rows that are to be spilled encrypted where the workers' Python cannot encrypt: Spark runs the query."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gpujoin import disable, enable

SETTINGS = {
    "spark.gpujoin.backend": "cpu",
    "spark.gpujoin.fallback": "warn",
    "spark.gpujoin.spillEncryption": "true",
    "spark.gpujoin.memoryBudget": "1",
}
pytestmark = [pytest.mark.spark, pytest.mark.parametrize("spark", [SETTINGS], indirect=True, ids=["cpu"])]


def test_workers_that_cannot_encrypt_give_the_query_back(
    tables: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    package = tmp_path / "cryptography"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('not installed')")
    groups = "select item, k, count(*) as n from items group by item, k"
    text = f"select a.id, b.item, b.n from sales a join ({groups}) b on a.k = b.k"
    expected = sorted(map(str, tables.sql(text).collect()))
    environment = tables.sparkContext.environment
    environment["PYTHONPATH"] = str(tmp_path)
    enable(tables)
    try:
        rows = sorted(map(str, tables.sql(text).collect()))
    finally:
        disable(tables)
        del environment["PYTHONPATH"]
    assert rows == expected
    assert "Run pip install" in caplog.text
