"""What Java is told when tests start Spark."""

from __future__ import annotations

import pytest

from tests.java import CODEGEN_VARIABLE, options


@pytest.mark.parametrize(("variable", "interprets"), [("", True), ("1", False)], ids=["unset", "set"])
def test_spark_generates_code_if_asked(monkeypatch: pytest.MonkeyPatch, variable: str, interprets: bool) -> None:
    monkeypatch.setenv(CODEGEN_VARIABLE, variable)
    assert ("-Dspark.sql.codegen.wholeStage=false" in options()) is interprets


@pytest.mark.spark
def test_the_session_is_what_the_options_say(spark: object) -> None:
    from pyspark.sql import SparkSession

    assert isinstance(spark, SparkSession)
    expected = "wholeStage=false" not in options()
    assert spark.conf.get("spark.sql.codegen.wholeStage") == str(expected).lower()
