"""Compiles the Java sources of this package into a jar: ``python -m gpujoin.spark.jvm.archive [FOLDER]``.

A wheel has the jar, and a checkout once it was made there, in ``gpujoin/_java``. Its name is a hash of the sources, so
that a jar of other sources is not taken. Needs PySpark and a Java 17, no compiler of Java's: Spark ships Janino. Each
release of Spark 4 gives the same classes.
"""

from __future__ import annotations

import atexit
import hashlib
import shutil
import sys
import tempfile
import zipfile
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

_PACKAGE = Path(__file__).parents[2]
_JARS = "_java"
"""Folder of the package in which a jar lies."""
_SOURCES = "spark/jvm/java"


@cache
def source_folder() -> Path:
    """Give the root of the sources: that of ``gpujoin.Name`` is ``gpujoin/Name.java`` there."""
    return _unpacked(_SOURCES)


@cache
def jar_folder() -> Path:
    """Give the folder of the jar, if there is one."""
    return _unpacked(_JARS)


def _unpacked(name: str) -> Path:
    """Give a folder of the package, in which the JVM reads files; it is copied out of an archive of Python's."""
    folder = _PACKAGE / name
    packed = resources.files("gpujoin").joinpath(name)
    if folder.is_dir() or not packed.is_dir():
        return folder
    copy = Path(tempfile.mkdtemp(prefix="gpujoin-java-"))  # of the user alone
    atexit.register(shutil.rmtree, copy, ignore_errors=True)
    _copy(packed, copy)
    return copy


def _copy(packed: Traversable, folder: Path) -> None:
    for entry in packed.iterdir():
        target = folder / entry.name
        if entry.is_dir():
            target.mkdir()
            _copy(entry, target)
        else:
            target.write_bytes(entry.read_bytes())


@cache
def source_files() -> tuple[Path, ...]:
    """Give the paths of all sources."""
    return tuple(sorted(source_folder().rglob("*.java")))


@cache
def archive_name() -> str:
    """Give the name of the jar of these sources."""
    digest = hashlib.sha256()
    for path in source_files():
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\n".encode() + content)
    return f"gpujoin-{digest.hexdigest()[:16]}.jar"


def build(folder: Path) -> Path:
    """Compile the sources into a jar, and give its path; jars of other sources are removed.

    Raises ``py4j.protocol.Py4JJavaError`` if Janino refuses a source.
    """
    folder.mkdir(parents=True, exist_ok=True)
    jar = folder / archive_name()
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        classes = Path(temporary) / "classes"
        classes.mkdir()
        _compile(classes)
        whole = Path(temporary) / jar.name
        with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(classes.rglob("*.class")):
                # Without the time: the same sources give the same jar.
                entry = zipfile.ZipInfo(path.relative_to(classes).as_posix())
                archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
        whole.replace(jar)
    for other in folder.glob("gpujoin-*.jar"):
        if other != jar:
            other.unlink(missing_ok=True)
    return jar


def _compile(folder: Path) -> None:
    """Compile the sources, by the Janino of the installed PySpark, in a JVM of its own."""
    from pyspark import java_gateway

    gateway: Any = java_gateway.launch_gateway()  # type: ignore[no-untyped-call]
    try:
        java: Any = gateway.jvm
        janino, commons = java.org.codehaus.janino, java.org.codehaus.commons.compiler
        libraries = janino.ClassLoaderIClassLoader(java.java.lang.Thread.currentThread().getContextClassLoader())
        compiler = janino.Compiler(
            commons.util.resource.DirectoryResourceFinder(_file(java, source_folder())), libraries
        )
        compiler.setDestinationDirectory(_file(java, folder), False)
        files = gateway.new_array(java.java.io.File, len(source_files()))
        for place, path in enumerate(source_files()):
            files[place] = _file(java, path)
        compiler.compile(files)
    finally:
        gateway.shutdown()
        gateway.proc.stdin.close()  # the JVM ends when its input does


def _file(java: Any, path: Path) -> Any:
    return java.java.io.File(str(path.absolute()))


def main() -> None:
    """Build the jar, unless it is there."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else _PACKAGE / _JARS
    jar = folder / archive_name()
    sys.stdout.write(f"{jar if jar.is_file() else build(folder)}\n")


if __name__ == "__main__":
    main()
