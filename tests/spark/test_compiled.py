"""Java classes of the package, from its jar or compiled in the driver."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from gpujoin.errors import GpuJoinError
from gpujoin.spark.jvm import archive, compiled
from gpujoin.spark.jvm.archive import archive_name, source_files
from gpujoin.spark.jvm.compiled import compiled_class, load_ahead, new_instance
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
ROOT = Path(__file__).parents[2]
NAMES = [path.stem for path in source_files()]


@pytest.fixture
def names(spark: SparkSession) -> JvmNames:
    """A view of the JVM for which nothing has been loaded."""
    return JvmNames(gateway_of(spark)._client)


@pytest.fixture
def no_jar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a checkout in which no jar was made."""
    monkeypatch.setattr(compiled, "jar_folder", lambda: tmp_path / "none")


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_jar: None) -> Path:
    """The source ``Echo.java`` in the place of the package's."""
    monkeypatch.setattr(compiled, "source_folder", lambda: tmp_path)
    path = tmp_path / "gpujoin" / "Echo.java"
    path.parent.mkdir()
    path.write_text(ECHO)
    return path


@pytest.fixture(scope="module")
def jar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The jar of the sources, made by this PySpark."""
    folder = tmp_path_factory.mktemp("java")
    (folder / "gpujoin-0.jar").touch()
    command = [sys.executable, "-m", "gpujoin.spark.jvm.archive", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    written = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.strip()
    assert Path(written.splitlines()[-1]) == folder / archive_name()
    assert list(folder.iterdir()) == [folder / archive_name()], "one of other sources is removed"
    return folder / archive_name()


def loader_of(loaded: Any) -> str:
    return str(loaded.getClassLoader().getClass().getSimpleName())


@pytest.mark.extra
def test_every_class_is_in_the_jar(names: JvmNames, jar: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "jar_folder", lambda: jar.parent)
    assert "PythonRule" in NAMES
    for name in NAMES:
        loaded = compiled_class(names, name)
        assert loaded.getName() == f"gpujoin.{name}"
        assert loader_of(loaded) == "URLClassLoader"


@pytest.mark.usefixtures("no_jar")
def test_without_a_jar_every_source_is_compiled(names: JvmNames) -> None:
    for name in NAMES:
        assert loader_of(compiled_class(names, name)) == "JavaSourceClassLoader"


def strings(classes: Path) -> dict[str, Counter[bytes]]:
    """The names that each class has, in any order: Janino orders methods that it adds by chance."""
    with zipfile.ZipFile(classes) as entries:
        return {name: Counter(re.findall(rb"[ -~]{4,}", entries.read(name))) for name in entries.namelist()}


@pytest.mark.extra
def test_other_releases_of_spark_give_the_classes_of_the_jar(jar: Path) -> None:
    """`make test-versions` and `make test-all` run it with other PySparks than the one that has made the jar."""
    made = archive.jar_folder() / archive_name()
    if not made.is_file():
        pytest.skip("no jar was made in this checkout: python -m gpujoin.spark.jvm.archive")
    assert strings(jar) == strings(made)


@pytest.mark.parametrize(
    ("facts", "apaches"),
    [
        (("4.0.0", "https://github.com/apache/spark"), True),
        (("4.3.0", "https://github.com/apache/spark.git"), True),
        (("4.0.0-amzn-1", "https://github.com/apache/spark"), False),
        (("4.0.0", "https://vendor.example/runtime"), False),
        (("4.9.0", "https://github.com/apache/spark"), False),
    ],
)
def test_classes_of_the_jar_are_for_releases_of_apache(
    names: JvmNames, facts: tuple[str, str], apaches: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Build:
        spark_version = staticmethod(lambda: facts[0])
        spark_repo_url = staticmethod(lambda: facts[1])

    names.org.apache.spark.__dict__["SparkBuildInfo"] = Build
    assert compiled._is_apaches(names) is apaches


def test_a_driver_that_does_not_tell_its_build_compiles(names: JvmNames) -> None:
    names.org.apache.__dict__["spark"] = JvmNames(names._client, "no.")
    assert loader_of(compiled_class(names, "GpuJoinHint")) == "JavaSourceClassLoader"


def test_what_the_first_query_needs_is_loaded_ahead(names: JvmNames) -> None:
    before = set(threading.enumerate())
    load_ahead(names)
    (thread,) = set(threading.enumerate()) - before
    assert compiled_class(names, "PythonRule").getName() == "gpujoin.PythonRule"
    thread.join(60)
    assert not thread.is_alive()
    load_ahead(names)
    assert set(threading.enumerate()) <= before, "once for a JVM"


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


@pytest.mark.usefixtures("no_jar")
def test_a_driver_without_janino_is_told_so(names: JvmNames) -> None:
    names.org.__dict__["codehaus"] = JvmNames(names._client, "no.")
    with pytest.raises(GpuJoinError, match="janino"):
        compiled_class(names, "PythonRule")


def test_a_package_in_an_archive_gives_its_files_to_the_jvm(tmp_path: Path) -> None:
    """As with ``--py-files gpujoin.zip``: the JVM reads no archive of Python's."""
    packed = tmp_path / "gpujoin.zip"
    with zipfile.ZipFile(packed, "w") as archived:
        for path in (ROOT / "gpujoin").rglob("*"):
            if path.suffix in (".py", ".java", ".jar"):
                archived.write(path, path.relative_to(ROOT))
    program = (
        "from gpujoin.spark.jvm.archive import archive_name, jar_folder, source_files, source_folder\n"
        "print(archive_name(), len(source_files()), jar_folder(), source_folder(), "
        "source_folder().stat().st_mode & 0o77)"
    )
    environment = {**os.environ, "PYTHONPATH": str(packed)}
    told = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=tmp_path, check=True, capture_output=True, text=True
    ).stdout.split()
    assert told[:2] == [archive_name(), str(len(source_files()))]
    assert told[4] == "0"
    assert not Path(told[3]).exists(), "it goes with the program"


def test_the_name_of_the_jar_is_that_of_its_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def name_of(*sources: str) -> str:
        for place, text in enumerate(sources):
            (tmp_path / f"{place}.java").write_text(text)
        files = tuple(tmp_path / f"{place}.java" for place in range(len(sources)))
        monkeypatch.setattr(archive, "source_files", lambda: files)
        return archive.archive_name.__wrapped__()

    cases = (("a", "b"), ("a", "b "), ("ab",), ("b", "a"), ("a",))
    assert len({name_of(*case) for case in cases}) == len(cases)
    assert name_of("a", "b") == name_of("a", "b")
