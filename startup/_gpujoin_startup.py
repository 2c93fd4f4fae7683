"""Enables the Spark sessions whose configuration says ``spark.gpujoin.enabled=true``, with no line of code.

`_gpujoin_startup.pth` imports this module at every start of a Python that gpujoin is installed in. So it imports
nothing but ``sys`` and waits for PySpark, and what fails in it is left undone. What happens in
``spark-submit app.py``, for example::

    import site                      # the interpreter starts: a finder is put before the others
    from pyspark.sql import …        # the finder sees pyspark.sql.session, and wraps methods of it and of SparkContext
    builder.getOrCreate()            # before Spark's context starts, a wrapper reads the setting in the JVM; where it
                                     # is true, another thread begins to import gpujoin
                                     # the session's wrapper reads the setting; where it is not there, nothing happens
                                     # where it is true, gpujoin makes the session and enables it

Spark's Python workers import PySpark too, but make no session.
"""

import sys

TYPE_CHECKING = False  # that of typing would have to be imported
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

_MODULE = "pyspark.sql.session"
_SETTING = "spark.gpujoin.enabled"
_REQUIRE = "spark.gpujoin.require"
_DISABLE = "GPUJOIN_DISABLE"
"""Environment variable by which an operator switches gpujoin off."""


class Finder:
    """Finds PySpark's module of sessions where the other finders do, and nothing else."""

    def __init__(self) -> None:
        self._is_searching = False

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """Give the spec that the first other finder gives, with a loader that wraps the module's class."""
        if name != _MODULE or self._is_searching:
            return None
        self._is_searching = True  # a finder of another tool may ask all finders again
        try:
            for finder in sys.meta_path:
                find_spec = None if finder is self else getattr(finder, "find_spec", None)
                spec = None if find_spec is None else find_spec(name, path, target)
                if spec is not None:
                    if hasattr(spec.loader, "exec_module"):
                        spec.loader = Loader(spec.loader)
                    return spec
        finally:
            self._is_searching = False
        return None


class Loader:
    """Loads a module as another loader does, and wraps ``SparkSession.__init__`` in it.

    Parameters
    ----------
    loader : importlib.abc.Loader
        The other one. When the module is executed, it is the module's loader, as if this one had not been there.
    """

    def __init__(self, loader: "Any") -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> "Any":
        return getattr(self._loader, name)

    def exec_module(self, module: "ModuleType") -> None:
        """Execute the module."""
        from contextlib import suppress

        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        with suppress(Exception):  # PySpark is imported, whatever it is like
            wrap_sessions(module.SparkSession)
            wrap_contexts(sys.modules["pyspark"].SparkContext)


def wrap_sessions(session_class: "Any") -> None:
    """Have sessions enabled when they are made, where their configuration asks for it.

    Parameters
    ----------
    session_class : type
        The classic ``SparkSession``.
    """
    from contextlib import suppress
    from functools import wraps

    original = session_class.__init__

    @wraps(original)
    def initialize(self: "Any", sparkContext: "Any", *arguments: "Any", **named: "Any") -> None:  # noqa: N803
        def initialize_as_pyspark() -> None:
            original(self, sparkContext, *arguments, **named)

        conf = None
        with suppress(Exception):  # a context that is none: PySpark tells
            conf = _conf_if_asked_for(session_class, sparkContext, arguments, named)
        if conf is None:
            initialize_as_pyspark()
            return
        try:
            from gpujoin.spark.jvm.compiled import load_ahead
            from gpujoin.spark.jvm.gateway import names_of

            load_ahead(names_of(sparkContext._jsc))  # noqa: SLF001 - while the modules of the next line are imported
            from gpujoin.spark.query.hooks import make_enabled
        except Exception as problem:  # half uninstalled, or lacking a library
            if conf.get(_REQUIRE, "").strip().lower() == "true":
                raise
            import logging

            message = "gpujoin: %s is set, but gpujoin cannot be imported, so queries run as Spark's: %s"
            logging.getLogger("gpujoin").warning(message, _SETTING, problem)
            initialize_as_pyspark()
            return
        make_enabled(self, initialize_as_pyspark, conf)

    session_class.__init__ = initialize


def wrap_contexts(context_class: "Any") -> None:
    """Have gpujoin loaded while a context starts, where the configuration of the JVM enables its sessions.

    Parameters
    ----------
    context_class : type
        ``SparkContext``.
    """
    from contextlib import suppress
    from functools import wraps

    original = context_class._ensure_initialized  # noqa: SLF001

    @wraps(original)
    def ensure_initialized(cls: "Any", instance: "Any" = None, *arguments: "Any", **named: "Any") -> None:
        original(instance, *arguments, **named)
        if instance is None:
            return
        with suppress(Exception):  # the session tells what is lacking
            value = cls._jvm.java.lang.System.getProperty(_SETTING)
            is_asked_for = value is not None and value.strip().lower() == "true"
            if is_asked_for and not _is_switched_off():
                from gpujoin.spark.ahead import load_ahead

                load_ahead(cls._jvm)

    context_class._ensure_initialized = classmethod(ensure_initialized)  # noqa: SLF001


def _is_switched_off() -> bool:
    """Tell whether the environment says that nothing is planned here, as ``gpujoin.config`` reads it."""
    import os

    return os.environ.get(_DISABLE, "").strip().lower() not in ("", "0", "false")


def _conf_if_asked_for(
    session_class: "Any", context: "Any", arguments: "tuple[Any, ...]", named: "dict[str, Any]"
) -> "dict[str, str] | None":
    """Give the configuration of a new session that is to be enabled; ``None`` for any other.

    PySpark makes further objects of a session in ``getActiveSession`` and for the batches of ``foreachBatch``; whether
    it is enabled was decided when it was new. A session of ``newSession`` is enabled if its parent is.

    Parameters
    ----------
    session_class : type
        The classic ``SparkSession``.
    context : SparkContext
        The session's.
    arguments, named
        The further ones of ``__init__``: ``jsparkSession``, and ``options``, which only builders give.
    """
    options = named.get("options", arguments[1] if len(arguments) > 1 else None)
    latest = session_class._instantiatedSession  # noqa: SLF001
    is_first = latest is None or latest._sc._jsc is None  # noqa: SLF001
    if not is_first and options is None:
        return None
    value = (options or {}).get(_SETTING)
    if value is None:
        value = context._conf.get(_SETTING)  # noqa: SLF001
    # What is neither true nor false is refused by gpujoin.
    if not isinstance(value, str) or value.strip().lower() == "false":
        return None
    if _is_switched_off():
        import logging

        logging.getLogger("gpujoin").warning("gpujoin: %s is set, so Spark runs all queries", _DISABLE)
        return None
    return {**dict(context.getConf().getAll()), **(options or {})}


sys.meta_path.insert(0, Finder())
