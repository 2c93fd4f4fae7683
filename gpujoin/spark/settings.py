"""Reading settings and the driver's view of GPUs from a Spark session, classic or Connect."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

from gpujoin.backends.registry import unavailable
from gpujoin.config import DISABLE_VARIABLE, PREFIX, Adaptive, BackendChoice, Options, is_switched_off, parse_bytes
from gpujoin.errors import BackendUnavailableError
from gpujoin.model.backend import BackendName
from gpujoin.model.reasons import Reason, ReasonKind
from gpujoin.plan.partition_sizes import Splitting
from gpujoin.spark.compat import is_connect
from gpujoin.spark.jvm.compiled import plan_reader
from gpujoin.spark.jvm.gateway import gateway_of, java_session, unpacked

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpujoin.config import Strategy

Number = TypeVar("Number", int, float)

SPARK_BROADCAST_THRESHOLD = 10 << 20
"""Default of ``spark.sql.autoBroadcastJoinThreshold``."""
_GPU_AMOUNTS = (
    "spark.executor.resource.gpu.amount",
    "spark.task.resource.gpu.amount",
    "spark.worker.resource.gpu.amount",
)
_BROADCAST = "spark.sql.autoBroadcastJoinThreshold"
_DEFAULTS = (
    _BROADCAST, "spark.sql.execution.arrow.maxBytesPerBatch", "spark.sql.execution.arrow.maxRecordsPerBatch",
    "spark.sql.ansi.enabled",
)  # fmt: skip
"""Settings of Spark's that planning depends on also where they are not set."""
CONNECT_PLUGIN = "org.apache.spark.sql.connect.SparkConnectPlugin"
"""What ``spark.plugins`` names where the driver runs a Spark Connect server."""
_MAX_BATCH_BYTES = 256 << 20
"""Spark's own default limit of an Arrow batch, up to which blobs of the wanted size are safe."""

_ENCRYPTED = "spark.io.encryption.enabled"
"""Spark's promise that what it keeps in local directories is encrypted: it holds for what is spilled here too."""


_ADAPTIVE = ("enabled", "coalescePartitions.enabled")
"""Settings of Spark's, without their prefix, by which it adapts the partitions of its own shuffles."""


class GpuOutlook(Enum):
    """Whether the driver expects a GPU where a query will run."""

    EXPECTED = "expected"
    ABSENT = "absent"
    UNKNOWN = "unknown"


def session_conf(spark: Any) -> Mapping[str, str]:
    """Give the session's configuration: that of ``--conf``, changed by ``spark.conf.set``.

    Of a classic session it has some defaults too, and ``spark.default.parallelism``: how many tasks run at once.
    """
    if is_connect(spark):
        return dict(spark.conf.getAll)
    settings: dict[str, str] = unpacked(
        plan_reader(gateway_of(spark)).settings(java_session(spark), ",".join(_DEFAULTS))
    )
    return settings


def join_options(
    conf: Mapping[str, str], strategy: Strategy | str | None, backend: BackendChoice | str | None
) -> Options:
    """Combine a session's settings with the arguments of one call.

    Raises ``ConfigurationError`` if a setting or an argument is not acceptable.
    """
    options = Options.from_conf({key: value for key, value in conf.items() if key.startswith(PREFIX)})
    arguments: dict[str, object] = {"strategy": strategy, "backend": backend}
    if conf.get(_ENCRYPTED, "false").lower() == "true":
        arguments["spill_encryption"] = True
    if is_switched_off():
        arguments["enabled"] = False
    return options.replace(**{name: value for name, value in arguments.items() if value is not None})


def disabled_reason() -> Reason:
    """Tell by what gpujoin is switched off, where ``Options.enabled`` is false."""
    if is_switched_off():
        why = f"the environment variable {DISABLE_VARIABLE} switches gpujoin off"
        return Reason(ReasonKind.CONFIGURED, "settings", why, DISABLE_VARIABLE)
    return Reason(ReasonKind.CONFIGURED, "settings", "gpujoin is switched off", "spark.gpujoin.enabled")


def broadcast_threshold(conf: Mapping[str, str], spark: Any) -> int:
    """Give Spark's own broadcast threshold, in bytes; negative: never."""
    text = conf[_BROADCAST] if _BROADCAST in conf else spark.conf.get(_BROADCAST, None)
    if text is None:
        return SPARK_BROADCAST_THRESHOLD
    return _spark_number(text, SPARK_BROADCAST_THRESHOLD, parse_bytes)


def gpu_outlook(conf: Mapping[str, str]) -> GpuOutlook:
    """Tell whether workers are expected to have a GPU.

    In local mode, where driver and workers share a machine, that is known. On a cluster Spark's own resource
    settings tell; where they do not, nothing is known: executors may hold what the driver lacks.
    """
    if any(_amount(conf.get(key)) > 0 for key in _GPU_AMOUNTS):
        return GpuOutlook.EXPECTED
    if is_local(conf):
        return GpuOutlook.EXPECTED if unavailable(BackendName.GPU) is None else GpuOutlook.ABSENT
    return GpuOutlook.UNKNOWN


def check_backend(conf: Mapping[str, str], options: Options) -> None:
    """Refuse a GPU that cannot be there.

    Raises ``BackendUnavailableError`` if ``backend`` is ``gpu``, the session runs on this machine alone, and this
    machine has no cuDF or no device.
    """
    if options.backend is not BackendChoice.GPU or not is_local(conf):
        return
    reason = unavailable(BackendName.GPU)
    if reason is not None:
        raise BackendUnavailableError(str(reason))


def is_local(conf: Mapping[str, str]) -> bool:
    """Tell whether driver and workers share one machine."""
    return conf.get("spark.master", "").startswith("local")


def serves_clients(conf: Mapping[str, str]) -> bool:
    """Tell whether the driver runs a Spark Connect server."""
    plugins = conf.get("spark.plugins", "").split(",")
    return any(name.strip() == CONNECT_PLUGIN for name in plugins)


def may_adapt(options: Options, conf: Mapping[str, str]) -> bool:
    """Tell whether tasks that read exchanged bytes may be made once sizes are known."""
    match options.exchange_adaptive:
        case Adaptive.OFF:
            return False
        case Adaptive.AUTO if options.exchange_partitions is not None:
            return False
    return all(conf.get(f"spark.sql.adaptive.{name}", "true").lower() == "true" for name in _ADAPTIVE)


def partition_splitting(conf: Mapping[str, str]) -> Splitting | None:
    """By which sizes heavy partitions of joins are split, as Spark's own settings say; ``None``: none is."""
    if conf.get("spark.sql.adaptive.skewJoin.enabled", "true").lower() != "true":
        return None
    default = Splitting()
    skewed = "spark.sql.adaptive.skewJoin.skewedPartition"
    return Splitting(
        _spark_number(conf.get(f"{skewed}Factor"), default.factor, float),
        _spark_number(conf.get(f"{skewed}ThresholdInBytes"), default.threshold, parse_bytes),
        _spark_number(conf.get("spark.sql.adaptive.advisoryPartitionSizeInBytes"), default.share_bytes, parse_bytes),
        _spark_number(conf.get("spark.shuffle.sort.bypassMergeThreshold"), default.unsorted_partitions, int),
    )


def blob_bytes(setting: Callable[[str], str | None], most: int) -> int:
    """Size of blobs such that an Arrow batch of them, cut as the session's settings say, stays below 1 GiB.

    Spark cuts by bytes (64 MiB or 256 MiB by default) and by rows, which are blobs here. Only where somebody has
    lifted the limit of bytes must blobs be small enough for the limit of rows.
    """
    limit = parse_bytes(setting("spark.sql.execution.arrow.maxBytesPerBatch") or 0)
    if 0 < limit <= _MAX_BATCH_BYTES:
        return most
    rows = int(setting("spark.sql.execution.arrow.maxRecordsPerBatch") or 0)
    return max(1 << 10, min(most, (1 << 30) // rows if rows > 0 else 1 << 16))


def _amount(text: str | None) -> float:
    try:
        return float(text or 0)
    except ValueError:
        return 0.0


def _spark_number(text: str | None, default: Number, parse: Callable[[str], Number]) -> Number:
    """Read a setting of Spark's; one that is unset, or written as Spark alone reads it, has the default."""
    try:
        return default if text is None else parse(text)
    except ValueError:
        return default
