"""Java sources of the package, compiled in the driver."""

from __future__ import annotations

import threading
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from gpujoin.errors import GpuJoinError
from gpujoin.spark.jvm import compiled
from gpujoin.spark.jvm.compiled import compile_ahead, compiled_class, new_instance
from gpujoin.spark.jvm.gateway import JvmNames, gateway_of

pytestmark = pytest.mark.spark

ECHO = """package gpujoin;
public final class Echo {
    private final Object value;
    private final String name;
    public Echo(Object value, String name) { this.value = value; this.name = name; }
    public Object value() { return value; }
    public String name() { return name; }
}
"""


@pytest.fixture
def names(spark: SparkSession) -> JvmNames:
    """A view of the JVM for which nothing has been compiled."""
    return JvmNames(gateway_of(spark)._client)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The source ``Echo.java`` in the place of the package's."""
    monkeypatch.setattr(resources, "files", lambda package: tmp_path)
    path = tmp_path / "Echo.java"
    path.write_text(ECHO)
    return path


def test_every_source_of_the_package_compiles(names: JvmNames) -> None:
    sources = [file.name for file in resources.files(compiled.__package__).iterdir() if file.name.endswith(".java")]
    assert "PythonRule.java" in sources
    for file in sources:
        name = file.removesuffix(".java")
        assert compiled_class(names, name).getName() == f"gpujoin.{name}"


def test_what_the_first_query_needs_is_compiled_ahead(names: JvmNames) -> None:
    before = set(threading.enumerate())
    compile_ahead(names)
    (thread,) = set(threading.enumerate()) - before
    assert compiled_class(names, "PythonRule") is compiled._classes[names]["PythonRule"]
    thread.join(60)
    assert "PlanRewriter" in compiled._classes[names]
    compile_ahead(names)
    assert set(threading.enumerate()) <= before, "nothing is left to compile"


@pytest.mark.usefixtures("source")
def test_objects_are_made_of_any_arguments(names: JvmNames) -> None:
    echo = new_instance(names, "Echo", names.java.util.ArrayList(), "a")
    assert (echo.value().size(), echo.name()) == (0, "a")
    assert new_instance(names, "Echo", None, "b").value() is None


def test_a_class_is_compiled_once_by_several_threads(names: JvmNames, source: Path) -> None:
    classes: list[Any] = []
    threads = [threading.Thread(target=lambda: classes.append(compiled_class(names, "Echo"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    source.unlink()
    assert all(each.equals(compiled_class(names, "Echo")) for each in classes)
    assert len(classes) == 4


def test_an_error_names_the_source_that_janino_refuses(names: JvmNames, source: Path) -> None:
    source.write_text("package gpujoin; public final class Echo { int x = nothing(); }")
    with pytest.raises(GpuJoinError, match=r"(?s)Echo\.java.*nothing"):
        compiled_class(names, "Echo")
    source.write_text(ECHO)
    assert compiled_class(names, "Echo").getSimpleName() == "Echo"


def test_a_driver_without_janino_is_told_so(names: JvmNames) -> None:
    names.__dict__["org"] = JvmNames(names._client, "no.")
    with pytest.raises(GpuJoinError, match="janino"):
        compiled_class(names, "PythonRule")
