"""``gpujoin calibrate``: measures the seconds of the cost rule on this machine.

A constant follows from two queries that differ in it, and in constants that are known by then. The cost rule itself
tells how much of either is in a query, for its predictions are sums of constants. ``value`` on two cores, with
2 M rows::

    sums of eight columns    0.210 s measured    0.146 s predicted if values took no time    16 M values
    sum of a column          0.140 s             0.132 s                                      2 M values
    value                    (0.210 - 0.140 - 0.014) s / (14 M values / 2 cores) = 8e-9 s
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpujoin.cli.checks import import_check, require
from gpujoin.cli.checks.software import java
from gpujoin.cli.probes import HELD_OUT, PROBES, QUERIES, VALUES, Probe, Query
from gpujoin.cli.session import open_session
from gpujoin.costs import Costs
from gpujoin.errors import GpuJoinError, pip_install

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from pyspark.sql import SparkSession

SETTING = "spark.gpujoin.costs"
_CORE_ROWS, _MOST_ROWS = 2_000_000, 32_000_000
"""Rows of the largest table, for each core and at most: a million rows take tens of milliseconds of a core."""
_LEAST_ROWS = 20_000
"""With fewer, `part` would not be larger than `dimension`."""
_FIRST = next(iter(QUERIES))
_PLAUSIBLE = 20.0
"""A constant this many times larger or smaller than its default is taken for a disturbed measurement."""


@dataclass(frozen=True)
class Seconds:
    """Seconds of a query, measured or predicted."""

    here: float = 0.0
    spark: float = 0.0

    def of(self, constant: str) -> float:
        """Give those that a constant is part of."""
        return self.spark if constant.startswith("spark_") else self.here


@dataclass(frozen=True)
class Measured:
    """What was measured for a constant."""

    constant: str
    seconds: float

    @property
    def plausible(self) -> bool:
        """Whether it is used: it is positive, and not far from the default."""
        default = getattr(Costs(), self.constant)
        return bool(default / _PLAUSIBLE < self.seconds < default * _PLAUSIBLE)


Predict = Callable[[str, Costs], Seconds]
"""What the cost rule predicts for a query, by its name."""


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``calibrate`` to the command line."""
    parser = commands.add_parser(
        "calibrate",
        help="measure the seconds by which queries are taken or left to Spark",
        description="Time small queries by Spark itself and here, taking turns, and print the setting that follows, "
        f"{SETTING}. Takes a minute or two; nothing else should run.",
    )
    parser.add_argument("--master", default="local[*]", help="Spark master (default: local[*])")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="timed runs of each (default: 5)")
    parser.add_argument("--rows", type=int, metavar="N", help="rows of the largest table (default: by cores)")
    parser.add_argument("--write", type=Path, metavar="FILE", help="also put the setting into this properties file")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; PySpark is imported only here.

    Raises ``GpuJoinError`` if ``--repeats`` or ``--rows`` is too low, ``--write`` names a folder that does not
    exist, a query does not run here, or answers differ.
    """
    for name, least in {"repeats": 1, "rows": _LEAST_ROWS}.items():
        value = getattr(arguments, name)
        if value is not None and value < least:
            raise GpuJoinError(f"--{name} is {value}; give at least {least}")
    if arguments.write is not None and not arguments.write.absolute().parent.is_dir():
        raise GpuJoinError(f"--write {arguments.write}: its folder does not exist")
    require(import_check("pyspark", minimum="4.0", below="5", advice=pip_install("spark")), java())
    spark = _session(arguments.master)
    with tempfile.TemporaryDirectory(prefix="gpujoin-calibrate-") as folder:
        cores = spark.sparkContext.defaultParallelism
        _tables(spark, Path(folder), arguments.rows or min(_CORE_ROWS * cores, _MOST_ROWS), cores)
        queries = {**QUERIES, **HELD_OUT}
        first, seconds = _timed(spark, queries, arguments.repeats)

        def predict(name: str, costs: Costs) -> Seconds:
            return _predicted(spark, queries[name], costs)

        costs, measured = fitted(PROBES, seconds, predict)
        predicted = {name: predict(name, costs) for name in HELD_OUT}
    measured = (Measured("start", first - seconds[_FIRST].here), *measured)
    print("\n".join([*_constant_lines(measured), *_prediction_lines(predicted, seconds)]))
    pairs = ",".join(f"{constant.constant}={constant.seconds:.3g}" for constant in measured if constant.plausible)
    print(f"{SETTING} {pairs}")
    if arguments.write is not None:
        put(arguments.write, SETTING, pairs)
    return 0


def fitted(
    probes: Sequence[Probe], seconds: Mapping[str, Seconds], predict: Predict
) -> tuple[Costs, tuple[Measured, ...]]:
    """Take each probe's constant from the difference that its queries were measured to have.

    Each probe needs only constants of those before it, or defaults.
    """
    costs, measured = Costs(), []
    for probe in probes:
        name = probe.constant
        less = Seconds() if probe.less is None else seconds[probe.less]
        rest, with_second = (
            predict(probe.more, at).of(name) - (0.0 if probe.less is None else predict(probe.less, at).of(name))
            for at in (dataclasses.replace(costs, **{name: amount}) for amount in (0.0, 1.0))
        )
        share = with_second - rest
        difference = seconds[probe.more].of(name) - less.of(name) - rest
        measured.append(Measured(name, difference / share if share > 0 else math.nan))
        if measured[-1].plausible:
            costs = dataclasses.replace(costs, **{name: measured[-1].seconds})
    return costs, tuple(measured)


def put(path: Path, key: str, value: str) -> None:
    """Set a key in a file of Spark properties, in the place where it is already, else at the end."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    kept = [line for line in lines if not line.split() or line.replace("=", " ").split()[0] != key]
    path.write_text("\n".join([*kept, f"{key} {value}", ""]), encoding="utf-8")


def _constant_lines(measured: Sequence[Measured]) -> Iterator[str]:
    for constant in measured:
        default = getattr(Costs(), constant.constant)
        note = "" if constant.plausible else "  implausible: the default is kept"
        yield f"{constant.constant:18}  measured {constant.seconds:9.2e} s  default {default:8.2e} s{note}"


def _prediction_lines(predicted: Mapping[str, Seconds], measured: Mapping[str, Seconds]) -> Iterator[str]:
    for name, seconds in predicted.items():
        here = f"here {seconds.here:.3f} s predicted, {measured[name].here:.3f} s measured"
        spark = f"Spark {seconds.spark:.3f} s predicted, {measured[name].spark:.3f} s measured"
        yield f"held out: {name:12}  {here};  {spark}"


def _session(master: str) -> SparkSession:
    """A session of its own, in which all that can be runs here, on the CPU."""
    settings = {"spark.log.level": "ERROR", "spark.sql.shuffle.partitions": "200"}
    spark = open_session("gpujoin calibrate", master, settings).newSession()
    spark.conf.set("spark.gpujoin.backend", "cpu")
    spark.conf.set("spark.gpujoin.fallback", "silent")
    return spark


@contextmanager
def _settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    before = {key: spark.conf.get(key, None) for key in settings}
    for key, value in settings.items():
        spark.conf.set(key, value)
    yield
    for key, old in before.items():
        if old is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, old)


def _settings_of(query: Query, **more: object) -> dict[str, str]:
    """The settings under which a query is planned."""
    limits = ("scan.oneTaskBytes", "scan.taskBytes", "broadcastThreshold") if query.exchanged else ()
    settings = {**dict.fromkeys(limits, 1), **more}
    of_spark = {"spark.sql.autoBroadcastJoinThreshold": "-1"} if query.shuffled else {}
    return {f"spark.gpujoin.{name}": str(value) for name, value in settings.items()} | of_spark


def _tables(spark: SparkSession, folder: Path, rows: int, files: int) -> None:
    part = max(1, rows // 16)
    columns = ["id", "id * 7919 % 1000 as dimension_id", f"id * 7919 % {part} as part_id"]
    columns += [f"id % {prime} as {name}" for name, prime in VALUES.items()]
    columns += ["cast(id % 10007 as decimal(12, 2)) as price", "cast(id % 89 as decimal(12, 2)) as rate"]
    for name, count in {"tiny": 100, "dimension": 1000, "part": part, "fact": rows}.items():
        path = str(folder / name)
        spark.range(0, count, 1, files).selectExpr(*columns).write.parquet(path)
        spark.read.parquet(path).createOrReplaceTempView(name)
    wide = ["id", *(f"id % {prime} as {name}" for name, prime in VALUES.items())]
    spark.range(max(1, rows // 4)).selectExpr(*wide).createOrReplaceTempView("spark_rows")
    spark.range(100).createOrReplaceTempView("few_spark_rows")


def _timed(spark: SparkSession, queries: Mapping[str, Query], repeats: int) -> tuple[float, dict[str, Seconds]]:
    """Give the seconds of the very first run here, and the least seconds of each query.

    All queries run in each turn, so that they meet the JVM in the same state. Other work on the machine only adds to
    what a query takes, so the least seconds are nearest to its own. The first turn is not counted.
    """
    times: dict[tuple[str, bool], list[float]] = {(name, here): [] for name in queries for here in (False, True)}
    for turn in range(repeats + 1):
        for name, query in queries.items():
            rows: dict[bool, list[Any]] = {}
            for here in (False, True) if turn % 2 == 0 else (True, False):
                seconds, rows[here] = _run(spark, query, here=here)
                times[name, here].append(seconds)
            if sorted(rows[True]) != sorted(rows[False]):
                raise GpuJoinError(f"the answers to {query.sql!r} differ; please report this")
    least = {way: min(seconds[1:]) for way, seconds in times.items()}
    return times[_FIRST, True][0], {name: Seconds(least[name, True], least[name, False]) for name in queries}


def _run(spark: SparkSession, query: Query, *, here: bool) -> tuple[float, list[Any]]:
    """Run a query from its text to its rows in the driver."""
    import gpujoin

    with _settings(spark, _settings_of(query, enabled="true" if here else "false")):
        start = time.perf_counter()
        frame = spark.sql(query.sql)
        if here:
            frame = gpujoin.accelerate(frame)
        rows = frame.collect()
        seconds = time.perf_counter() - start
        if here and not gpujoin.explain(frame).islands:
            raise GpuJoinError(f"{query.sql!r}, which is timed, does not run here; run `gpujoin doctor`")
    return seconds, rows


def _predicted(spark: SparkSession, query: Query, costs: Costs) -> Seconds:
    from gpujoin.spark.query.accelerate import Purpose, rewrite

    with _settings(spark, _settings_of(query, enabled="true", costs=costs)):
        islands = rewrite(spark.sql(query.sql), Purpose.EXPLAIN).explanation.islands
    return Seconds(
        sum(island.predicted_seconds or 0.0 for island in islands),
        sum(island.predicted_spark_seconds or 0.0 for island in islands),
    )
