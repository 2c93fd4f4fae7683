"""gpujoin: joins and aggregations of PySpark queries, made faster on CPUs and GPUs.

The engine needs no Spark (:func:`join_tables`, :func:`gather_maps`, :class:`HashJoin`); :func:`gpu_join`,
:func:`explain` and :func:`metrics` work on Spark DataFrames and import PySpark when first used, as do
:func:`enable` and :func:`accelerate`, which take whole queries.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from gpujoin._version import __version__
from gpujoin.errors import BackendUnavailableError

if TYPE_CHECKING:
    from gpujoin.config import Options
    from gpujoin.engine.devicetables import DeviceTable
    from gpujoin.engine.gathermaps import GatherMaps, gather
    from gpujoin.engine.join.hash_join import HashJoin
    from gpujoin.engine.metrics import JoinMetrics
    from gpujoin.engine.tables import asof_join_tables, gather_maps, join_tables
    from gpujoin.errors import (
        ConditionError,
        ConfigurationError,
        CorruptBlobError,
        DeviceMemoryError,
        ExpressionEvaluationError,
        FallbackError,
        GpuJoinError,
        HostMemoryError,
        JoinSpecError,
        KeyTypeError,
        ProductSizeError,
        RequirementError,
    )
    from gpujoin.model.expressions import Function, call, coalesce, left, lit, right, when
    from gpujoin.model.jointype import JoinType, Side
    from gpujoin.model.reasons import Reason
    from gpujoin.model.spec import JoinSpec, KeyPair, NullEquality
    from gpujoin.report.explanation import Explanation, QueryReport
    from gpujoin.report.metrics import metrics
    from gpujoin.report.profile import QueryProfile, profile
    from gpujoin.report.summary import ApplicationSummary, summary
    from gpujoin.spark.api.asof import gpu_asof_join
    from gpujoin.spark.api.join import explain, gpu_join
    from gpujoin.spark.query.accelerate import accelerate
    from gpujoin.spark.query.hooks import disable, enable, load_ipython_extension, unload_ipython_extension

if sys.platform == "win32":
    raise ImportError("gpujoin runs on Linux; Python on Windows lacks fcntl and resource. Use WSL 2 or a container.")

_HOMES = {
    "gpujoin.config": ("Options",),
    "gpujoin.engine.devicetables": ("DeviceTable",),
    "gpujoin.engine.gathermaps": ("GatherMaps", "gather"),
    "gpujoin.engine.join.hash_join": ("HashJoin",),
    "gpujoin.engine.metrics": ("JoinMetrics",),
    "gpujoin.engine.tables": ("asof_join_tables", "gather_maps", "join_tables"),
    "gpujoin.errors": (
        "BackendUnavailableError", "ConditionError", "ConfigurationError", "CorruptBlobError", "DeviceMemoryError",
        "ExpressionEvaluationError", "FallbackError", "GpuJoinError", "HostMemoryError", "JoinSpecError",
        "KeyTypeError", "ProductSizeError", "RequirementError",
    ),
    "gpujoin.model.expressions": ("Function", "call", "coalesce", "left", "lit", "right", "when"),
    "gpujoin.model.jointype": ("JoinType", "Side"),
    "gpujoin.model.reasons": ("Reason",),
    "gpujoin.model.spec": ("JoinSpec", "KeyPair", "NullEquality"),
    "gpujoin.report.explanation": ("Explanation", "QueryReport"),
    "gpujoin.report.profile": ("QueryProfile", "profile"),
    "gpujoin.report.summary": ("ApplicationSummary", "summary"),
    "gpujoin.spark.api.asof": ("gpu_asof_join",),
    "gpujoin.spark.api.join": ("explain", "gpu_join"),
    "gpujoin.report.metrics": ("metrics",),
    "gpujoin.spark.query.accelerate": ("accelerate",),
    "gpujoin.spark.query.hooks": (
        "disable", "enable", "load_ipython_extension", "unload_ipython_extension",
    ),
}  # fmt: skip
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "ApplicationSummary", "BackendUnavailableError", "ConditionError", "ConfigurationError", "CorruptBlobError",
    "DeviceMemoryError", "DeviceTable", "Explanation", "ExpressionEvaluationError", "FallbackError", "Function",
    "GatherMaps", "GpuJoinError", "HashJoin", "HostMemoryError", "JoinMetrics", "JoinSpec", "JoinSpecError", "JoinType",
    "KeyPair", "KeyTypeError", "NullEquality", "Options", "ProductSizeError", "QueryProfile", "QueryReport", "Reason",
    "RequirementError", "Side",
    "__version__", "accelerate", "asof_join_tables", "call", "coalesce", "disable", "enable", "explain",
    "gather", "gather_maps", "gpu_asof_join", "gpu_join", "join_tables", "left", "lit", "load_ipython_extension",
    "metrics", "profile", "right", "summary", "unload_ipython_extension", "when",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a public name from its home when it is first used, so that the engine alone needs no PySpark."""
    home = _HOME_OF.get(name)
    if home is None:
        from gpujoin.errors import did_you_mean

        near = did_you_mean(name, () if name.startswith("_") else __all__)
        raise AttributeError(f"module 'gpujoin' has no attribute {name!r}.{near}")
    try:
        value = getattr(importlib.import_module(home), name)
    except ModuleNotFoundError as problem:
        if problem.name is None or problem.name.split(".")[0] != "pyspark":
            raise
        from gpujoin.errors import pip_install

        message = f"gpujoin.{name} needs PySpark, which is not installed: {pip_install('spark')}"
        raise BackendUnavailableError(message) from problem
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
