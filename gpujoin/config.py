"""Settings: their names, defaults, meaning and validation. The settings page of the docs is generated from here."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, Self, TypeVar

from gpujoin.costs import Costs
from gpujoin.errors import ConfigurationError, did_you_mean
from gpujoin.logs import warn_once
from gpujoin.model.algorithm import Algorithm

PREFIX = "spark.gpujoin."

E = TypeVar("E", bound=Enum)

BackendChoiceName = Literal["auto", "gpu", "cpu"]
"""Values of :class:`BackendChoice`, for type checkers."""
StrategyName = Literal["auto", "broadcast", "shuffle", "nested_loop", "spark"]
"""Values of :class:`Strategy`, for type checkers."""


class BackendChoice(Enum):
    """Which backend may run a join."""

    AUTO = "auto"
    GPU = "gpu"
    CPU = "cpu"


class Strategy(Enum):
    """How matching rows of the two sides are brought to the same task."""

    AUTO = "auto"
    BROADCAST = "broadcast"
    SHUFFLE = "shuffle"
    NESTED_LOOP = "nested_loop"
    SPARK = "spark"
    """Leave the join to Spark."""


class FallbackMode(Enum):
    """How the user is told that a join is left to Spark."""

    WARN = "warn"
    SILENT = "silent"
    RAISE = "raise"


class ExplainMode(Enum):
    """What is logged while planning."""

    NONE = "none"
    FALLBACK = "fallback"
    ALL = "all"


class Compression(Enum):
    """Compression of exchanged and spilled Arrow buffers."""

    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"


class Transport(Enum):
    """How blobs go from worker to worker."""

    BYTES = "bytes"
    """As bytes, through Spark's RDD shuffle."""
    ROWS = "rows"
    """As rows with a binary column, through the shuffle of Spark's SQL."""


class Adaptive(Enum):
    """Whether tasks that read exchanged rows are made once sizes are known."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


_SCHEMES = ("file", "s3", "s3a", "s3n", "gs", "abfs", "abfss", "hdfs")
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"^\s*(-?[0-9]+)\s*([bkmgt]?)(?:i?b)?\s*$", re.IGNORECASE)


def parse_bytes(text: str | int) -> int:
    """Read a size in bytes as Spark writes them: ``"64m"``, ``"1g"``, ``1048576``.

    Raises
    ------
    ValueError
        If the text is no size.
    """
    if isinstance(text, bool) or not isinstance(text, (int, str)):
        raise ValueError(f"{text!r} is not a size such as 64m or 1g")
    if isinstance(text, int):
        return text
    match = _SIZE.match(text)
    if match is None:
        raise ValueError(f"{text!r} is not a size such as 64m or 1g")
    return int(match[1]) * _UNITS[match[2].lower()]


def _positive_bytes(value: Any) -> int:
    size = parse_bytes(value)
    if not 1 <= size < 1 << 50:
        raise ValueError(f"{value!r} must be between 1 byte and 1024 TiB")
    return size


def _threshold(value: Any) -> int:
    size = parse_bytes(value)
    if not -1 <= size < 1 << 50:
        raise ValueError(f"{value!r} must be -1 (never) or a size")
    return size


def _whole(low: int, high: int) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        try:
            number = None if isinstance(value, (bool, float)) else int(value)
        except (TypeError, ValueError):
            number = None
        if number is None:
            raise ValueError(f"{value!r} is not a whole number")
        if not low <= number <= high:
            raise ValueError(f"{value!r} must be between {low} and {high}")
        return number

    return parse


def _optional_whole(low: int, high: int) -> Callable[[Any], int | None]:
    inner = _whole(low, high)
    return lambda value: None if value is None else inner(value)


def _real(low: float, high: float) -> Callable[[Any], float]:
    def parse(value: Any) -> float:
        try:
            number = None if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            number = None
        if number is None:
            raise ValueError(f"{value!r} is not a number")
        if not low <= number <= high:
            raise ValueError(f"{value!r} must be between {low:g} and {high:g}")
        return number

    return parse


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    raise ValueError(f"{value!r} must be true or false")


def _one_of(enum: type[E]) -> Callable[[Any], E]:
    def parse(value: Any) -> E:
        if isinstance(value, enum):
            return value
        for member in enum:
            if isinstance(value, str) and member.value == value.strip().lower():
                return member
        raise ValueError(f"{value!r} must be one of {', '.join(m.value for m in enum)}")

    return parse


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise ValueError(f"{value!r} must be text")


def _schemes(value: Any) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    schemes = tuple(sorted({str(p).strip().lower() for p in parts} - {""}))
    unknown = [scheme for scheme in schemes if scheme not in _SCHEMES]
    if unknown:
        raise ValueError(f"{unknown[0]!r} is not covered; must be some of {', '.join(_SCHEMES)}")
    return schemes


def _class_names(value: Any) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    names = tuple(sorted({str(part).strip() for part in parts} - {""}))
    wrong = [name for name in names if not all(part.isidentifier() for part in name.replace("$", "_").split("."))]
    if wrong:
        raise ValueError(f"{wrong[0]!r} is no name of a class")
    return names


def _switches(value: Any) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    names = {str(part).strip() for part in parts} - {""}
    if not names:
        return ()
    from gpujoin.model.switches import SWITCHES, read_switch  # which needs PyArrow

    switches = {name: read_switch(name) for name in sorted(names)}
    for name, switch in switches.items():
        if switch not in SWITCHES:
            raise ValueError(f"{name!r} is nothing that can be switched off.{did_you_mean(switch, sorted(SWITCHES))}")
    return tuple(sorted(set(switches.values())))


def _setting(key: str, default: Any, parse: Callable[[Any], Any], doc: str) -> Any:
    return field(default=default, metadata={"key": PREFIX + key, "parse": parse, "doc": doc})


@dataclass(frozen=True, kw_only=True)
class Options:
    """All settings of one join, validated.

    Build one with keyword arguments, with :meth:`from_conf` from a mapping of Spark's configuration, or from another
    with :meth:`replace`. Values may be given as text.

    Raises
    ------
    ConfigurationError
        If a value is not acceptable; the message names the argument and what would be.
    """

    enabled: bool = _setting(
        "enabled", True, _flag,
        "Master switch; `false` leaves every join and query to Spark. A session made where it is set to `true` is "
        "[enabled](queries.md#by-configuration).",
    )  # fmt: skip
    backend: BackendChoice = _setting(
        "backend", BackendChoice.AUTO, _one_of(BackendChoice),
        "`gpu`, `cpu`, or `auto`: the GPU where a worker has one, else the CPU.",
    )  # fmt: skip
    disable: tuple[str, ...] = _setting(
        "disable", (), _switches,
        "What is left to Spark, separated by commas: operations, functions, types of joins and sources, by the names "
        "that `explain` prints, such as `window,round,left_join,iceberg` "
        "([all names](queries.md#switching-things-off)).",
    )  # fmt: skip
    require: bool = _setting(
        "require", False, _flag,
        "Whether an application fails (`RequirementError`) where nothing of it can run here: its workers lack gpujoin, "
        "or a GPU under `backend=gpu`. `false`: Spark runs its queries.",
    )  # fmt: skip
    strategy: Strategy = _setting(
        "strategy", Strategy.AUTO, _one_of(Strategy),
        "`broadcast`, `shuffle`, `nested_loop`, `spark` (leave joins and queries to Spark), or `auto`: by hints, "
        "else as costs the least.",
    )  # fmt: skip
    broadcast_threshold: int = _setting(
        "broadcastThreshold", 256 << 20, _threshold,
        "Largest input that every task may read, in compressed bytes of files, or be sent, in bytes of rows, unless a "
        "strategy is asked for; `-1`: none. Larger inputs are exchanged.",
    )  # fmt: skip
    batch_bytes: int = _setting(
        "batchBytes", 32 << 20, _positive_bytes, "Target size of an output batch."
    )  # fmt: skip
    max_column_bytes: int = _setting(
        "maxColumnBytes", (1 << 31) - 1, _positive_bytes,
        "Most bytes of variable-width data that one column of an output batch may hold (Arrow's own limit by default).",
    )  # fmt: skip
    candidate_pairs: int = _setting(
        "candidatePairs", 1 << 20, _whole(1, 1 << 30),
        "Most candidate pairs held at a time while a residual condition is evaluated.",
    )  # fmt: skip
    range_index: bool = _setting(
        "rangeIndex", True, _flag,
        "Search a sorted build side where a condition compares the sides by `<`, `<=`, `>`, `>=`; `false` looks at all "
        "pairs of rows with equal keys.",
    )  # fmt: skip
    max_product_rows: int | None = _setting(
        "maxProductRows", None, _optional_whole(0, 1 << 62),
        "A join that would look at more pairs of rows than this, having neither keys nor ranges, is refused before it "
        "starts (`ProductSizeError`). Unset: none is.",
    )  # fmt: skip
    warn_product_rows: int | None = _setting(
        "warnProductRows", 10**9, _optional_whole(0, 1 << 62),
        "From how many such pairs on, as estimated, `explain` and the log warn of a join.",
    )  # fmt: skip
    memory_budget: int = _setting(
        "memoryBudget", 2 << 30, _positive_bytes,
        "What a worker (one Python process, one task) may take beyond its interpreter and libraries: pieces of files, "
        "build sides, states and exchanges have shares of it. Build sides of more than a quarter of it, together, are "
        "partitioned and spilled to disk. Lower limits of the system count instead.",
    )  # fmt: skip
    spill_dir: str | None = _setting(
        "spillDir", None, _text,
        "Directories, separated by commas, that build sides and groups over the budget spill to; the next one is tried "
        "where one is full or cannot be written to. Unset: Spark's local directories, else the system's temporary one.",
    )  # fmt: skip
    spill_encryption: bool = _setting(
        "spillEncryption", False, _flag,
        "Encrypt what is spilled, by a key that is only in the worker's memory; needs the extra `encryption`. "
        "`spark.io.encryption.enabled` turns it on too.",
    )  # fmt: skip
    cpu_threads: int | None = _setting(
        "cpu.threads", None, _optional_whole(1, 4096),
        "Threads of the CPU backend. Unset: all cores outside of Spark and in an island of one task in local mode, "
        "else 1.",
    )  # fmt: skip
    fallback: FallbackMode = _setting(
        "fallback", FallbackMode.WARN, _one_of(FallbackMode),
        "How a join, or a part of a query, left to Spark at plan time is told: `warn` (log), `silent`, or `raise` "
        "(`FallbackError`, unless it is left because Spark is predicted to be faster). With `raise`, an error of a "
        "library in a task is raised too, in place of computing the part again.",
    )  # fmt: skip
    explain: ExplainMode = _setting(
        "explain", ExplainMode.NONE, _one_of(ExplainMode),
        "What is logged while planning: `none`, `fallback` (joins left to Spark), `all`.",
    )  # fmt: skip
    scan_schemes: tuple[str, ...] = _setting(
        "scan.schemes",
        ("file",),
        _schemes,
        "Where workers may read files by themselves, separated by commas: `file`; `s3a`, `s3`, `s3n` for stores that "
        "speak S3; `gs` for Google's; `abfs`, `abfss` for Azure's; `hdfs` where Hadoop's native library is installed. "
        "Workers are told the endpoint and the credentials that Hadoop was told, or find them as the store's own tools "
        "do.",
    )
    scan_parquet_formats: tuple[str, ...] = _setting(
        "scan.parquetFormats",
        (),
        _class_names,
        "Full names of classes, separated by commas: subclasses of Spark's `ParquetFileFormat` whose tables workers "
        "read by themselves. Their files must hold the rows and the columns of the table as Parquet files do. Delta's "
        "is read without being named here.",
    )
    scan_footers: int = _setting(
        "scan.footers", 500, _whole(1, 1 << 20),
        "How many files of a table the driver opens at most while planning. Of a table with more files a sample is "
        "opened, and sizes are estimated by it; workers check every file that they read.",
    )  # fmt: skip
    costs: Costs = _setting(
        "costs", Costs(), Costs.parse,
        "Seconds that parts of a query take, as `name=seconds` pairs separated by commas; "
        "`python -m benchmarks.calibrate` in a checkout measures them. A part of a query that is predicted to be "
        "slower here is left to Spark, unless a strategy or a backend is asked for. "
        "Names are those of `gpujoin.costs.Costs`.",
    )  # fmt: skip
    scan_one_task_bytes: int = _setting(
        "scan.oneTaskBytes", 4 << 30, _positive_bytes,
        "In local mode, a part of a query that reads up to this many compressed bytes runs as one task with a thread "
        "for each core, so that nothing is exchanged.",
    )  # fmt: skip
    scan_task_bytes: int = _setting(
        "scan.taskBytes", 128 << 20, _positive_bytes,
        "Compressed bytes that a task reads of the input that is divided among tasks.",
    )  # fmt: skip
    exchange_partitions: int | None = _setting(
        "exchange.partitions", None, _optional_whole(1, 1 << 20),
        "Partitions of a shuffled join. Unset: from the estimated sizes, between the cores and "
        "`spark.sql.shuffle.partitions`.",
    )  # fmt: skip
    exchange_blob_bytes: int = _setting(
        "exchange.blobBytes", 4 << 20, _positive_bytes, "Target size of an exchanged Arrow blob."
    )
    exchange_compression: Compression = _setting(
        "exchange.compression", Compression.NONE, _one_of(Compression),
        "Compression of exchanged and spilled Arrow buffers: `none`, `lz4`, `zstd` "
        "(Spark compresses its shuffle itself).",
    )  # fmt: skip
    exchange_transport: Transport = _setting(
        "exchange.transport", Transport.BYTES, _one_of(Transport),
        "How exchanged rows go from worker to worker: `bytes`, through Spark's RDD shuffle, or `rows`, through that of "
        "its SQL, which costs more. Parts of queries that take rows from Spark, and Spark Connect, use `rows`.",
    )  # fmt: skip
    exchange_adaptive: Adaptive = _setting(
        "exchange.adaptive", Adaptive.AUTO, _one_of(Adaptive),
        "Whether tasks are made once the sizes of exchanged rows are known: small partitions are coalesced, heavy ones "
        "of joins are split by the settings of `spark.sql.adaptive.skewJoin`, and an input of a join that proves small "
        "is sent to every task, in place of exchanging the other: `auto` (if `spark.gpujoin.exchange.partitions` is "
        "unset), `on`, `off`. With `spark.sql.adaptive.enabled` or "
        "`spark.sql.adaptive.coalescePartitions.enabled` set to `false`, or another transport than `bytes`, none is.",
    )  # fmt: skip
    gpu_algorithm: Algorithm = _setting(
        "gpu.algorithm", Algorithm.AUTO, _one_of(Algorithm),
        "How a GPU finds the matches of a key: `direct` (address), `unique` (hash table of unique keys), `csr` (rows "
        "side by side by key), `cudf` (without gpujoin's own kernels), or `auto`: by the facts of the keys.",
    )  # fmt: skip
    gpu_concurrent_tasks: int = _setting(
        "gpu.concurrentTasks", 2, _whole(1, 1024), "Tasks of one host on one GPU at a time."
    )
    gpu_slot_timeout: float = _setting(
        "gpu.slotTimeout",
        60.0,
        _real(0, 86400),
        "Seconds a task waits for a GPU slot before it runs on the CPU.",
    )
    gpu_memory_fraction: float = _setting(
        "gpu.memoryFraction",
        0.8,
        _real(0.01, 1.0),
        "Share of device memory to use, over all tasks of the GPU.",
    )
    gpu_context_bytes: int = _setting(
        "gpu.contextBytes", 512 << 20, _positive_bytes,
        "Device memory that a worker is taken to keep for its CUDA context as long as it lives, where NVML does not "
        "tell.",
    )  # fmt: skip

    def __new__(cls, **options: Any) -> Self:
        """Refuse unknown names before any value is looked at."""
        _check_names(options)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for setting in dataclasses.fields(self):
            object.__setattr__(self, setting.name, _parse(setting, getattr(self, setting.name), setting.name))

    @classmethod
    def from_conf(cls, conf: Mapping[str, str]) -> Options:
        """Read the ``spark.gpujoin.*`` entries of a Spark configuration; other entries are ignored.

        Raises
        ------
        ConfigurationError
            If a value is not acceptable, or a key under ``spark.gpujoin.`` is unknown (near names are suggested).
            A setting that earlier versions had is no error, unless it switched something off: a warning says what took
            its place.
        """
        by_key = {setting.metadata["key"]: setting for setting in dataclasses.fields(cls)}
        values: dict[str, Any] = {}
        for key, value in conf.items():
            if not key.startswith(PREFIX):
                continue
            if key in _REMOVED:
                warn_once(f"{key} is gone: {_REMOVED[key]}")
                continue
            if key in _REPLACED:
                raise ConfigurationError(f"{key} is gone: in the place of false, write {_REPLACED[key]}")
            if key not in by_key:
                raise ConfigurationError(f"unknown setting {key!r}.{did_you_mean(key, by_key, prefix=PREFIX)}")
            setting = by_key[key]
            values[setting.name] = _parse(setting, value, key)
        return cls(**values)

    def replace(self, **changes: Any) -> Options:
        """A copy with some fields changed, validated again."""
        _check_names(changes)
        return dataclasses.replace(self, **changes)


def _parse(setting: dataclasses.Field[Any], value: Any, name: str) -> Any:
    """Read a value, or raise ``ConfigurationError`` that calls the setting by the name that the user wrote."""
    try:
        return setting.metadata["parse"](value)
    except (ValueError, TypeError) as problem:
        raise ConfigurationError(f"{name}: {problem}") from None


def _check_names(options: Mapping[str, Any]) -> None:
    """Raise ``ConfigurationError`` if a name is no option's."""
    names = [setting.name for setting in dataclasses.fields(Options)]
    for name in options:
        if name not in names:
            raise ConfigurationError(f"unknown option {name!r}.{did_you_mean(name, names)}")


_REMOVED = {
    f"{PREFIX}exchange.skew": "partitions that prove heavy are split, whatever it says",
    f"{PREFIX}scan.repeatedBytes": f"{PREFIX}broadcastThreshold is the largest input that every task may read",
    f"{PREFIX}scan.smallestBytes": f"what a query takes is predicted instead, by {PREFIX}costs",
}
"""Settings of version 0.2.0 that are ignored, and what took their place."""
_REPLACED = {
    f"{PREFIX}scan.fuse": f"{PREFIX}disable=scan",
    f"{PREFIX}aggregate.fuse": f"{PREFIX}disable=aggregate",
    f"{PREFIX}streaming": f"{PREFIX}disable=streams",
}
"""Switches of version 0.2.0, and how the same is written."""
DISABLE_VARIABLE = "GPUJOIN_DISABLE"
"""Environment variable by which an operator switches gpujoin off in all programs of a machine."""


def is_switched_off() -> bool:
    """Tell whether :data:`DISABLE_VARIABLE` says that nothing is planned in this process."""
    return os.environ.get(DISABLE_VARIABLE, "").strip().lower() not in ("", "0", "false")


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the settings table."""

    key: str
    """Full name in the Spark configuration."""
    name: str
    default: Any
    """Default value, parsed."""
    doc: str
    """One or two sentences."""


SETTINGS: tuple[Setting, ...] = tuple(
    Setting(f.metadata["key"], f.name, f.default, f.metadata["doc"]) for f in dataclasses.fields(Options)
)
