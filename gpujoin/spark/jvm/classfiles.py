"""Keeps what Janino compiled, so that later programs load it.

To compile gpujoin's Java takes a cold JVM some seconds, and nearly all programs of a machine would compile the same.
The class files of a source are kept as a jar whose name is a hash of all that they depend on: the source, the sources
of the classes that it names, and the builds of Spark, Scala and Java. A jar is written whole under another name first,
so a program never reads half of one. Where no folder is the user's alone, nothing is kept.
"""

from __future__ import annotations

import hashlib
import io
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

from gpujoin.cache import cached_by_life
from gpujoin.logs import log
from gpujoin.storage.folders import tampering_risk, user_cache

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpujoin.spark.jvm.gateway import JvmNames

JAVA_CACHE_VARIABLE = "GPUJOIN_JAVA_CACHE_DIR"


def java_cache() -> Path | None:
    """Folder of compiled Java: ``$GPUJOIN_JAVA_CACHE_DIR``, else ``gpujoin/java`` in the user's cache.

    It is made if it is missing. ``None`` if there is none, or other users could change what is in it.
    """
    try:
        directory = user_cache(JAVA_CACHE_VARIABLE, "java").absolute()  # the JVM may be in another folder
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        risk = tampering_risk(directory)
    except (OSError, RuntimeError) as problem:  # no home, or one that may not be read
        log.debug("compiled Java is not kept: %s", problem)
        return None
    if risk is not None:
        log.debug("compiled Java is not kept in %s: %s", directory, risk)
        return None
    return directory


def jar_of(names: JvmNames, sources: Sequence[str]) -> Path | None:
    """Give the path of a source's jar; ``sources`` are the source and those of the classes that it names.

    ``None`` if it cannot be kept, or this Spark does not tell its build.
    """
    folder = java_cache()
    if folder is None:
        return None
    try:
        build = _build(names)
    except Py4JError:
        log.debug("compiled Java is not kept: the build of Spark is not known", exc_info=True)
        return None
    digest = hashlib.sha256()
    for part in (build, *sources):
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "little"))
        digest.update(encoded)
    return folder / f"{digest.hexdigest()}.jar"


def load(names: JvmNames, jar: Path, class_name: str, parent: Any) -> Any:
    """Load a class from a jar that was kept; ``None`` if it is not there, or cannot be read."""
    if not jar.is_file():
        return None
    try:
        urls = names.java.lang.reflect.Array.newInstance(names.java.lang.Class.forName("java.net.URL"), 1)
        urls[0] = names.java.io.File(str(jar)).toURI().toURL()
        return names.java.net.URLClassLoader(urls, parent).loadClass(class_name)
    except Py4JError:
        log.debug("%s is not used, its source is compiled anew", jar, exc_info=True)
        return None


def keep(jar: Path, classes: Mapping[str, bytes]) -> None:
    """Write class files, by the names of their classes, to a jar; where that fails, later programs compile again."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, data in classes.items():
            # Without the time, which no jar can hold if the clock of the machine is at 1970.
            archive.writestr(zipfile.ZipInfo(f"{name.replace('.', '/')}.class"), data)
    try:
        with tempfile.TemporaryDirectory(dir=jar.parent) as folder:
            whole = Path(folder) / jar.name
            whole.write_bytes(content.getvalue())
            whole.chmod(0o600)  # whatever the umask: who writes to it decides what the JVM runs
            whole.rename(jar)
    except OSError:
        log.debug("%s cannot be written", jar, exc_info=True)


@cached_by_life
def _build(names: JvmNames) -> str:
    """Describe the builds of Spark, Scala and Java that compiled classes depend on."""
    spark = names.org.apache.spark.SparkBuildInfo
    facts = (spark.spark_version(), spark.spark_revision(), spark.spark_build_date())
    system = names.java.lang.System
    java = (system.getProperty(name) for name in ("java.vendor.version", "java.vm.version"))
    scala = names.scala.util.Properties.versionNumberString()
    return " ".join(map(str, (*facts, scala, *java)))
