"""What Java is told when tests start Spark."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.java import CODEGEN_VARIABLE, archive_path, make_archive, options


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


def test_an_archive_is_of_one_java_and_one_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    paths = set()
    for version in ("17", "21"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "release").write_text(version)
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / version))
        paths.add(archive_path(tmp_path))
    assert len(paths - {None}) == 2
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert archive_path(tmp_path) is None


def test_an_archive_that_cannot_be_made_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired("python", 1)

    monkeypatch.setattr(subprocess, "run", fail)
    make_archive(tmp_path / "x.jsa")
    assert list(tmp_path.iterdir()) == []
