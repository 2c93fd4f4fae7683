"""Compiles the Java sources of this package in the driver, with the Janino that Spark ships.

So gpujoin needs no jar that fits a build of Spark. What was compiled is kept for later programs (`classfiles`). A
source ``Name.java`` lies beside this module, declares ``package gpujoin`` and one public class ``Name``. Janino knows
Java without generics and lambdas; Scala is called through the methods that Java sees. The objects of a class are called
like any other over py4j::

    rule = new_instance(gateway_of(spark), "PythonRule", callback)
    rule.apply(plan)
"""

from __future__ import annotations

import functools
import threading
from importlib import resources
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark import InheritableThread

from gpujoin.cache import cached_by_life
from gpujoin.errors import GpuJoinError
from gpujoin.logs import log
from gpujoin.spark.jvm.classfiles import jar_of, keep, load

if TYPE_CHECKING:
    from gpujoin.spark.jvm.gateway import JvmNames

_lock = threading.Lock()
_classes: WeakKeyDictionary[JvmNames, dict[str, Any]] = WeakKeyDictionary()
"""Per JVM, what this process has compiled there."""
_SEES = {
    "GpuAsOfJoin": "GpuJoinHint",
    "GpuAsOfRule": "GpuAsOfJoin",
    "PythonRule": "GpuAsOfRule",
    "Determinism": "GpuJoinHint",
    "PlanReader": "Determinism",
    "SizedRows": "PlanReader",
    "PlanRewriter": "SizedRows",
    "PartitionShares": "PlanRewriter",
    "MapStages": "PartitionShares",
    "ByteExchange": "MapStages",
}
"""The class whose loader is the parent of a class's own, which so may name it, and all that it may name."""
_OF_FIRST_QUERY = ("PythonRule", "PlanRewriter")
"""The rule of an enabled session, and what puts islands into plans."""


def compiled_class(names: JvmNames, name: str) -> Any:
    """Give a class of this package, by its simple name; it is compiled, or loaded, when it is first asked for.

    Raises ``GpuJoinError`` if the driver has no Janino, or Janino refuses the source, and
    ``py4j.protocol.Py4JNetworkError`` if the JVM is gone.
    """
    with _lock:
        return _compiled(names, _classes.setdefault(names, {}), name)


def compile_ahead(names: JvmNames) -> None:
    """Do :func:`compile_first` in another thread, while this one goes on."""
    if not all(name in _classes.get(names, {}) for name in _OF_FIRST_QUERY):
        # It ends its thread of the JVM when it ends.
        InheritableThread(functools.partial(compile_first, names), daemon=True).start()


def compile_first(names: JvmNames) -> None:
    """Compile what the first query needs.

    Whoever asks for a class before it is there waits for it. Errors are those of whoever asks.
    """
    for name in _OF_FIRST_QUERY:
        try:
            compiled_class(names, name)
        except (GpuJoinError, Py4JError, OSError):  # compiled anew, and told, when it is asked for
            log.debug("%s.java could not be compiled ahead", name, exc_info=True)
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
    """Give the JVM's ``ByteExchange``, or ``None`` if this Spark lacks a class that it needs."""
    try:
        return new_instance(names, "ByteExchange", _source("ArrowRows"))
    except GpuJoinError:
        log.debug("stages exchange rows with a binary column: bytes cannot be had", exc_info=True)
        return None


def _compiled(names: JvmNames, classes: dict[str, Any], name: str) -> Any:
    if name not in classes:
        seen = _compiled(names, classes, _SEES[name]).getClassLoader() if name in _SEES else _context_loader(names)
        classes[name] = _loaded_or_compiled(names, name, seen)
    return classes[name]


def _context_loader(names: JvmNames) -> Any:
    return names.java.lang.Thread.currentThread().getContextClassLoader()


def _loaded_or_compiled(names: JvmNames, name: str, parent: Any) -> Any:
    """Load a class from the jar of an earlier program, or compile it and keep it for later ones.

    ``parent`` is the parent of its loader.
    """
    jar = jar_of(names, _sources(name))
    loaded = None if jar is None else load(names, jar, f"gpujoin.{name}", parent)
    if loaded is not None:
        return loaded
    compiler = _compile(names, name, parent)
    if jar is not None:
        keep(jar, dict(compiler.getBytecodes()))
    return compiler.getClassLoader().loadClass(f"gpujoin.{name}")


def _sources(name: str) -> list[str]:
    """Give the source of a class, and those of the classes that it may name."""
    following = _sources(_SEES[name]) if name in _SEES else []
    return [_source(name), *following]


def _source(name: str) -> str:
    return resources.files(__package__).joinpath(f"{name}.java").read_text(encoding="utf-8")


def _compile(names: JvmNames, name: str, parent: Any) -> Any:
    """Give Janino's compiler after it has compiled a source."""
    try:
        compiler = names.org.codehaus.janino.SimpleCompiler()
    except Py4JNetworkError:
        raise
    except Py4JError as problem:
        raise GpuJoinError(
            "Spark's driver cannot compile gpujoin's Java: it has no org.codehaus.janino.SimpleCompiler, which comes "
            f"with Spark (jars/janino-*.jar): {problem}"
        ) from problem
    compiler.setParentClassLoader(parent)
    try:
        compiler.cook(f"{name}.java", _source(name))
    except Py4JJavaError as problem:
        cause = problem.java_exception.getMessage()
        raise GpuJoinError(
            f"Spark's driver refuses gpujoin's {name}.java; is this release of Spark supported? {cause}"
        ) from problem
    return compiler
