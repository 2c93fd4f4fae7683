"""Java sources of the package, compiled in the driver."""

from __future__ import annotations

import os
import threading
import zipfile
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from gpujoin.errors import GpuJoinError
from gpujoin.spark.jvm import compiled
from gpujoin.spark.jvm.classfiles import JAVA_CACHE_VARIABLE, jar_of, java_cache, keep
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


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of compiled Java, empty."""
    folder = tmp_path / "compiled"
    monkeypatch.setenv(JAVA_CACHE_VARIABLE, str(folder))
    return folder


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


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the classes that are compiled from now on."""
    compiled_names: list[str] = []
    original = compiled._compile

    def compile_noted(names: JvmNames, name: str, parent: Any) -> Any:
        compiled_names.append(name)
        return original(names, name, parent)

    monkeypatch.setattr(compiled, "_compile", compile_noted)
    return compiled_names


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
    names.org.__dict__["codehaus"] = JvmNames(names._client, "no.")
    with pytest.raises(GpuJoinError, match="janino"):
        compiled_class(names, "PythonRule")


def view(names: JvmNames) -> JvmNames:
    """Another view of the JVM for which nothing has been compiled, as a later program has one."""
    return JvmNames(names._client)


def test_a_later_program_loads_what_was_compiled(names: JvmNames, compilations: list[str], cache: Path) -> None:
    for each in (names, view(names)):
        reader = new_instance(each, "PlanReader")
        assert reader.getClass().getName() == "gpujoin.PlanReader"
        assert sorted(compilations) == ["Determinism", "GpuJoinHint", "PlanReader"], "once each"
    assert len(list(cache.glob("*.jar"))) == 3
    assert cache.stat().st_mode & 0o777 == 0o700


def test_a_changed_source_is_compiled_anew(names: JvmNames, source: Path, cache: Path, compilations: list[str]) -> None:
    compiled_class(names, "Echo")
    source.write_text(ECHO.replace("return name;", 'return name + "!";'))
    compiled_class(view(names), "Echo")
    assert compilations == ["Echo", "Echo"]
    assert len(list(cache.iterdir())) == 2


def test_a_jar_has_no_time_and_nobody_else_may_write_to_it(cache: Path) -> None:
    cache.mkdir()
    jars = [cache / "a.jar", cache / "b.jar"]
    before = os.umask(0)
    try:
        for jar in jars:
            keep(jar, {"gpujoin.A": b"class file"})
    finally:
        os.umask(before)
    assert jars[0].read_bytes() == jars[1].read_bytes()
    assert [jar.stat().st_mode & 0o777 for jar in jars] == [0o600, 0o600]
    with zipfile.ZipFile(jars[0]) as archive:
        assert [(entry.filename, entry.date_time[0]) for entry in archive.infolist()] == [("gpujoin/A.class", 1980)]


def test_the_folder_is_the_same_for_a_jvm_in_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(JAVA_CACHE_VARIABLE, "kept")
    assert java_cache() == tmp_path / "kept"


def test_the_jar_depends_on_the_sources_of_what_a_class_names(names: JvmNames) -> None:
    own, named = "class A {}", "class B {}"
    others = ([own], [own, named + " "], [own + named], [named, own])
    assert len({jar_of(names, sources) for sources in ([own, named], *others)}) == 5
    assert jar_of(names, [own, named]) == jar_of(view(names), [own, named])


@pytest.mark.usefixtures("source")
@pytest.mark.parametrize("content", [b"", b"no jar", None], ids=["empty", "no jar", "half"])
def test_a_broken_jar_is_compiled_anew(
    names: JvmNames, cache: Path, compilations: list[str], content: bytes | None
) -> None:
    compiled_class(names, "Echo")
    (jar,) = cache.iterdir()
    whole = jar.read_bytes()
    jar.write_bytes(whole[: len(whole) // 2] if content is None else content)
    assert compiled_class(view(names), "Echo").getName() == "gpujoin.Echo"
    assert compilations == ["Echo", "Echo"]
    assert [each.name for each in cache.iterdir()] == [jar.name]
    compiled_class(view(names), "Echo")
    assert compilations == ["Echo", "Echo"]


@pytest.mark.usefixtures("source")
def test_nothing_is_kept_where_others_may_write(names: JvmNames, cache: Path, compilations: list[str]) -> None:
    cache.mkdir()
    cache.chmod(0o777)
    for each in (names, view(names)):
        compiled_class(each, "Echo")
    assert compilations == ["Echo", "Echo"]
    assert list(cache.iterdir()) == []


@pytest.mark.usefixtures("source", "cache")
def test_nothing_is_kept_where_spark_does_not_tell_its_build(names: JvmNames) -> None:
    names.org.apache.__dict__["spark"] = JvmNames(names._client, "no.")
    assert jar_of(names, [ECHO]) is None
    assert compiled_class(names, "Echo").getName() == "gpujoin.Echo"


@pytest.mark.usefixtures("source")
def test_a_folder_that_cannot_be_made_is_no_obstacle(
    names: JvmNames, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.touch()
    assert java_cache() is None
    assert compiled_class(names, "Echo").getName() == "gpujoin.Echo"
    monkeypatch.delenv(JAVA_CACHE_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache.parent / "users"))
    assert java_cache() == cache.parent / "users" / "gpujoin" / "java"
