"""Gives the Java classes of this package to Spark's driver.

They come from the jar of the wheel, or of a checkout that has made it (`archive`); without one, Spark's own Janino
compiles the sources in the driver, which takes a cold JVM some seconds. So it does for builds of Spark other than
Apache's releases, since their classes may differ. A source is ``java/gpujoin/Name.java``, and declares one public class
``Name``. Janino knows Java without generics and lambdas; Scala is called through the methods that Java sees. The
objects of a class are called like any other over py4j::

    rule = new_instance(gateway_of(spark), "PythonRule", callback)
    rule.apply(plan)
"""

from __future__ import annotations

import functools
import re
import threading
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark import InheritableThread

from gpujoin.cache import cached_by_life
from gpujoin.errors import GpuJoinError
from gpujoin.logs import log
from gpujoin.spark.jvm.archive import archive_name, jar_folder, source_folder

if TYPE_CHECKING:
    from gpujoin.spark.jvm.gateway import JvmNames

_APACHE = re.compile(r"4\.[0-3]\.\d+")
"""Versions of Spark whose Janino gives the classes that the jar has, from the same sources."""
_lock = threading.RLock()
_ahead: WeakSet[JvmNames] = WeakSet()
"""The JVMs in which the classes of a first query are loaded, or were."""
_OF_FIRST_QUERY = ("PythonRule", "PlanRewriter")
"""The rule of an enabled session, and what puts islands into plans."""


def compiled_class(names: JvmNames, name: str) -> Any:
    """Give a class of this package, by its simple name.

    Raises ``GpuJoinError`` if it must be compiled, and the driver has no Janino or Janino refuses the source, and
    ``py4j.protocol.Py4JNetworkError`` if the JVM is gone.
    """
    with _lock:
        return _class(names, name)


def load_ahead(names: JvmNames) -> None:
    """Do :func:`load_first` in another thread, once for a JVM, while this one goes on."""
    with _lock:
        if names in _ahead:
            return
        _ahead.add(names)
    # It ends its thread of the JVM when it ends.
    InheritableThread(functools.partial(load_first, names), daemon=True).start()


def load_first(names: JvmNames) -> None:
    """Load, or compile, what the first query needs.

    Whoever asks for a class before it is there waits for it. Errors are those of whoever asks.
    """
    for name in _OF_FIRST_QUERY:
        try:
            compiled_class(names, name)
        except (GpuJoinError, Py4JError, OSError):  # told when it is asked for
            log.debug("%s.java could not be loaded ahead", name, exc_info=True)
            return


def new_instance(names: JvmNames, name: str, *arguments: Any) -> Any:
    """Make an object of a class of this package by its only constructor.

    Python objects that implement a Java interface are welcome as arguments. Errors are those of
    :func:`compiled_class`.
    """
    constructor = compiled_class(names, name).getConstructors()[0]
    values = names.java.util.ArrayList()  # py4j puts no Python object into an array
    for argument in arguments:
        values.add(argument)
    return constructor.newInstance(values.toArray())


@cached_by_life
def shared_instance(names: JvmNames, name: str) -> Any:
    """Give the object of a class without state that this process uses in a JVM; its constructor has no arguments.

    Errors are those of :func:`compiled_class`.
    """
    return new_instance(names, name)


def plan_reader(names: JvmNames) -> Any:
    """Give the JVM's ``PlanReader``. Errors are those of :func:`compiled_class`."""
    return shared_instance(names, "PlanReader")


@cached_by_life
def byte_exchange(names: JvmNames) -> Any:
    """Give the JVM's ``ByteExchange``; ``None`` if this Spark lacks a class for it."""
    try:
        return new_instance(
            names, "ByteExchange", (source_folder() / "gpujoin" / "ArrowRows.java").read_text(encoding="utf-8")
        )
    except GpuJoinError:
        log.debug("stages exchange rows with a binary column: bytes cannot be had", exc_info=True)
        return None


@cached_by_life
def _class(names: JvmNames, name: str) -> Any:
    try:
        return _loader(names).loadClass(f"gpujoin.{name}")
    except Py4JJavaError as problem:
        cause = problem.java_exception.getCause() or problem.java_exception
        raise GpuJoinError(
            f"Spark's driver refuses gpujoin's {name}.java; is this release of Spark supported? {cause.getMessage()}"
        ) from problem


@cached_by_life
def _loader(names: JvmNames) -> Any:
    """Give the loader of the package's classes, below that of Spark's."""
    parent = names.java.lang.Thread.currentThread().getContextClassLoader()
    jar = jar_folder() / archive_name()
    if jar.is_file() and _is_apaches(names):
        urls = _array(names, "java.net.URL", names.java.io.File(str(jar)).toURI().toURL())
        return names.java.net.URLClassLoader(urls, parent)
    log.debug("gpujoin's Java is compiled in the driver: no %s, or another build of Spark", jar)
    try:
        folders = _array(names, "java.io.File", names.java.io.File(str(source_folder())))
        return names.org.codehaus.janino.JavaSourceClassLoader(parent, folders, "UTF-8")
    except Py4JNetworkError:
        raise
    except Py4JError as problem:
        raise GpuJoinError(
            "Spark's driver cannot compile gpujoin's Java: it has no org.codehaus.janino.JavaSourceClassLoader, which "
            f"comes with Spark (jars/janino-*.jar): {problem}"
        ) from problem


def _is_apaches(names: JvmNames) -> bool:
    """Tell whether the driver runs a release of Apache Spark, not of a vendor."""
    try:
        build = names.org.apache.spark.SparkBuildInfo
        return bool(_APACHE.fullmatch(build.spark_version())) and "apache/spark" in str(build.spark_repo_url())
    except Py4JError:
        return False


def _array(names: JvmNames, class_name: str, value: Any) -> Any:
    """Make an array of one object."""
    values = names.java.lang.reflect.Array.newInstance(names.java.lang.Class.forName(class_name), 1)
    values[0] = value
    return values
