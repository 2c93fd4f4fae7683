"""Measure the seconds of the cost rule on this machine, and print the setting that follows, spark.gpujoin.costs.

python -m benchmarks.calibrate [--master local[*]] [--rows 4000000] [--write spark-defaults.conf]

Times small queries in Spark and here, taking turns, for a minute or two; nothing else should run. A constant follows
from two queries that differ in it, and in constants that are known by then. The cost rule itself tells how much of
either is in a query, for its predictions are sums of constants. ``value`` on two cores, with 2 M rows::

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
from typing import Any

from pyspark.sql import SparkSession

import gpujoin
from benchmarks.calibrate.probes import HELD_OUT, PROBES, QUERIES, VALUES, Probe, Query
from gpujoin.cli.session import open_session
from gpujoin.costs import Costs
from gpujoin.spark.query.accelerate import Purpose, rewrite

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
class Measurement:
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


def main(words: Sequence[str] | None = None) -> None:
    """Measure and print.

    Ends the program with a message where a query does not run here, or answers differ.
    """
    arguments = _arguments(words)
    spark = _session(arguments.master)
    with tempfile.TemporaryDirectory(prefix="gpujoin-calibrate-") as folder:
        cores = spark.sparkContext.defaultParallelism
        _tables(spark, Path(folder), arguments.rows or min(_CORE_ROWS * cores, _MOST_ROWS), cores)
        queries = {**QUERIES, **HELD_OUT}
        first, seconds = _time(spark, queries, arguments.repeats)

        def predict(name: str, costs: Costs) -> Seconds:
            return _predict(spark, queries[name], costs)

        costs, measurements = fit(PROBES, seconds, predict)
        predictions = {name: predict(name, costs) for name in HELD_OUT}
    measurements = (Measurement("start", first - seconds[_FIRST].here), *measurements)
    print("\n".join([*_constant_lines(measurements), *_prediction_lines(predictions, seconds)]))
    pairs = ",".join(f"{each.constant}={each.seconds:.3g}" for each in measurements if each.plausible)
    print(f"{SETTING} {pairs}")
    if arguments.write is not None:
        put(arguments.write, SETTING, pairs)


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.calibrate",
        description="Time small queries in Spark and here, taking turns, and print the setting that follows, "
        f"{SETTING}. Takes a minute or two; nothing else should run.",
    )
    parser.add_argument("--master", default="local[*]", help="Spark master (default: local[*])")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="timed runs of each (default: 5)")
    parser.add_argument("--rows", type=int, metavar="N", help="rows of the largest table (default: by cores)")
    parser.add_argument("--write", type=Path, metavar="FILE", help="also put the setting into this properties file")
    arguments = parser.parse_args(words)
    for name, least in {"repeats": 1, "rows": _LEAST_ROWS}.items():
        value = getattr(arguments, name)
        if value is not None and value < least:
            parser.error(f"--{name} is {value}; give at least {least}")
    if arguments.write is not None and not arguments.write.absolute().parent.is_dir():
        parser.error(f"--write {arguments.write}: its folder does not exist")
    return arguments


def fit(
    probes: Sequence[Probe], seconds: Mapping[str, Seconds], predict: Predict
) -> tuple[Costs, tuple[Measurement, ...]]:
    """Take each probe's constant from the difference that its queries were measured to have.

    Each probe needs only constants of those before it, or defaults.
    """
    costs, measurements = Costs(), []
    for probe in probes:
        name = probe.constant
        less = Seconds() if probe.less is None else seconds[probe.less]
        rest, with_second = (
            predict(probe.more, at).of(name) - (0.0 if probe.less is None else predict(probe.less, at).of(name))
            for at in (dataclasses.replace(costs, **{name: amount}) for amount in (0.0, 1.0))
        )
        share = with_second - rest
        difference = seconds[probe.more].of(name) - less.of(name) - rest
        measurements.append(Measurement(name, difference / share if share > 0 else math.nan))
        if measurements[-1].plausible:
            costs = dataclasses.replace(costs, **{name: measurements[-1].seconds})
    return costs, tuple(measurements)


def put(path: Path, key: str, value: str) -> None:
    """Set a key in a file of Spark properties, in the place where it is already, else at the end."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    others = [line for line in lines if not line.split() or line.replace("=", " ").split()[0] != key]
    path.write_text("\n".join([*others, f"{key} {value}", ""]), encoding="utf-8")


def _constant_lines(measurements: Sequence[Measurement]) -> Iterator[str]:
    for each in measurements:
        default = getattr(Costs(), each.constant)
        note = "" if each.plausible else "  implausible: the default is kept"
        yield f"{each.constant:18}  measured {each.seconds:9.2e} s  default {default:8.2e} s{note}"


def _prediction_lines(predicted: Mapping[str, Seconds], measured: Mapping[str, Seconds]) -> Iterator[str]:
    for name, seconds in predicted.items():
        here = f"here {seconds.here:.3f} s predicted, {measured[name].here:.3f} s measured"
        spark = f"Spark {seconds.spark:.3f} s predicted, {measured[name].spark:.3f} s measured"
        yield f"held out: {name:12}  {here};  {spark}"


def _session(master: str) -> SparkSession:
    """A session of its own, in which all that can be runs here, on the CPU."""
    settings = {"spark.log.level": "ERROR", "spark.sql.shuffle.partitions": "200"}
    spark = open_session("calibrate", master, settings).newSession()
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


def _time(spark: SparkSession, queries: Mapping[str, Query], repeats: int) -> tuple[float, dict[str, Seconds]]:
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
                raise SystemExit(f"the answers to {query.sql!r} differ; please report this")
    least = {way: min(seconds[1:]) for way, seconds in times.items()}
    return times[_FIRST, True][0], {name: Seconds(least[name, True], least[name, False]) for name in queries}


def _run(spark: SparkSession, query: Query, *, here: bool) -> tuple[float, list[Any]]:
    """Run a query from its text to its rows in the driver."""
    with _settings(spark, _settings_of(query, enabled="true" if here else "false")):
        start = time.perf_counter()
        frame = spark.sql(query.sql)
        if here:
            frame = gpujoin.accelerate(frame)
        rows = frame.collect()
        seconds = time.perf_counter() - start
        if here and not gpujoin.explain(frame).islands:
            raise SystemExit(f"{query.sql!r}, which is timed, does not run here; run `gpujoin doctor`")
    return seconds, rows


def _predict(spark: SparkSession, query: Query, costs: Costs) -> Seconds:
    with _settings(spark, _settings_of(query, enabled="true", costs=costs)):
        islands = rewrite(spark.sql(query.sql), Purpose.EXPLAIN).explanation.islands
    return Seconds(
        sum(island.predicted.seconds or 0.0 for island in islands),
        sum(island.predicted_spark_seconds or 0.0 for island in islands),
    )


if __name__ == "__main__":
    main()
