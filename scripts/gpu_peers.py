#!/usr/bin/env python3
"""Run the 22 queries of TPC-H in gpujoin on a GPU and in its peers, over the same files, and compare answers and times.

Usage: ``python scripts/gpu_peers.py --sf 0.01 --ways cpu,spark,duckdb,polars --out FOLDER``. Each way is a process of
its own. It loads the tables, runs every query once (the *first* run, which pays for what is compiled and started) and
once more (the *warm* run), and appends a line of JSON for each run to a file, so that nothing is lost when time runs
out. All ways together end before ``--seconds``: each has an equal share of what is left, and what it leaves over goes
to those after it. The page and the JSON are written to ``--out`` as ``NAME.md`` and ``NAME.json``.

Exit status: 0 if all answers are equal, 1 if one differs or a query failed, 2 if no way can run here.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import importlib.util
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
Cell: TypeAlias = "str | int | float | bool | None"
Answer: TypeAlias = "list[list[Cell]]"
Execute: TypeAlias = Callable[[int], "Sequence[Sequence[Any]]"]
"""Runs a query by number, and gives its rows in host memory."""

GRACE_SECONDS = 5.0
"""Between the deadline of a way and its end: the query that it is at is given up then."""

QUERIES = tuple(range(1, 23))


class Way(Enum):
    """An engine, and what it computes on."""

    GPU = "gpu"
    CPU = "cpu"
    CUDF_POLARS = "cudf-polars"
    DUCKDB = "duckdb"
    POLARS = "polars"
    SPARK = "spark"

    @property
    def title(self) -> str:
        """As people call it."""
        return {
            Way.GPU: "gpujoin, GPU", Way.CPU: "gpujoin, CPU", Way.CUDF_POLARS: "Polars, GPU (cudf-polars)",
            Way.DUCKDB: "DuckDB", Way.POLARS: "Polars", Way.SPARK: "Spark",
        }[self]  # fmt: skip


class Run(Enum):
    """Which run of a query."""

    FIRST = "first"
    WARM = "warm"


@dataclass(frozen=True)
class Timing:
    """A run of a query.

    Attributes
    ----------
    way : Way
        By what.
    query : int
        Number of the query.
    run : Run
        Which run.
    seconds : float
        From the text, or the expression, of the query to its rows in host memory.
    rows : int
        Of the answer.
    checksum : float
        Sum of the numbers of the answer and of the lengths of its texts.
    problem : str
        Why there is no answer; empty if there is one.
    """

    way: Way
    query: int
    run: Run
    seconds: float
    rows: int = 0
    checksum: float = 0.0
    problem: str = ""

    def to_json(self) -> str:
        """The run as a line of JSON."""
        return json.dumps({**asdict(self), "way": self.way.value, "run": self.run.value})

    @classmethod
    def from_json(cls, line: str) -> Timing:
        """Read a line that :meth:`to_json` wrote."""
        record = json.loads(line)
        return cls(**{**record, "way": Way(record["way"]), "run": Run(record["run"])})


# -- one way, in a process of its own ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Order:
    """What a process of one way does.

    Attributes
    ----------
    way : Way
        By what.
    data : Path
        Folder with ``<table>.parquet``.
    queries : tuple of int
        Numbers of the queries, in order.
    work : Path
        Folder for the lines and the answers.
    until : float
        Reading of ``time.time()`` after which no query is begun.
    settings : mapping of str
        Settings of Spark for gpujoin's ways.
    """

    way: Way
    data: Path
    queries: tuple[int, ...]
    work: Path
    until: float
    settings: Mapping[str, str]

    @property
    def lines(self) -> Path:
        """File with a line for each run."""
        return self.work / f"{self.way.value}.jsonl"

    def answer(self, query: int) -> Path:
        """File with the rows of a query."""
        return answer_file(self.work, self.way, query)


def answer_file(work: Path, way: Way, query: int) -> Path:
    """File with the rows that a way has given for a query."""
    return work / f"{way.value}-{query}.json"


def run_way(order: Order) -> int:
    """Run the queries of a way, first all once, then all once more."""
    with contextlib.ExitStack() as stack, order.lines.open("a", encoding="utf-8") as lines:
        execute = stack.enter_context(OPENERS[order.way](order))
        for run in Run:
            for query in order.queries:
                if time.time() > order.until:
                    return 0
                start = time.perf_counter()
                try:
                    rows = execute(query)
                except Exception as problem:  # noqa: BLE001 - a peer may raise anything; the table tells it
                    message = (str(problem).strip() or type(problem).__name__).splitlines()[0]
                    timing = Timing(order.way, query, run, time.perf_counter() - start, problem=message)
                else:
                    seconds = time.perf_counter() - start
                    answer = [[plain(value) for value in row] for row in rows]
                    timing = Timing(order.way, query, run, seconds, len(answer), checksum(answer))
                    if run is Run.FIRST:
                        order.answer(query).write_text(json.dumps(answer), encoding="utf-8")
                lines.write(timing.to_json() + "\n")
                lines.flush()
    return 0


def plain(value: Any) -> Cell:
    """A value as JSON and every engine have it: decimals as doubles, dates as text."""
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, dt.date):
        return value.isoformat()[:10]
    cell: Cell = value
    return cell


def checksum(answer: Answer) -> float:
    """Sum of the numbers of an answer and of the lengths of its texts, whatever the order of rows."""
    cells = (cell for row in answer for cell in row if cell is not None)
    return math.fsum(len(cell) if isinstance(cell, str) else float(cell) for cell in cells)


@contextlib.contextmanager
def open_spark(order: Order) -> Iterator[Execute]:
    """Spark over all cores, with gpujoin unless the way is Spark itself."""
    import gpujoin
    from benchmarks.queries.measure import open_session
    from benchmarks.tpch.answers import SUITE

    texts = SUITE.texts(SUITE.connect(order.data))
    settings = {"spark.driver.memory": "8g", **order.settings}
    if order.way is Way.SPARK:
        settings = {key: value for key, value in settings.items() if not key.startswith("spark.gpujoin.")}
    else:
        settings = {"spark.gpujoin.backend": order.way.value, "spark.gpujoin.gpu.concurrentTasks": "1", **settings}
    spark = open_session("local[*]", settings)
    try:
        SUITE.register(spark, order.data)
        if order.way is not Way.SPARK:
            gpujoin.enable(spark)
        yield lambda query: spark.sql(texts[query]).collect()
    finally:
        spark.stop()


@contextlib.contextmanager
def open_duckdb(order: Order) -> Iterator[Execute]:
    """DuckDB over all cores, reading the files in each query."""
    from benchmarks.tpch.answers import SUITE

    with SUITE.connect(order.data) as connection:
        texts = SUITE.texts(connection)
        yield lambda query: connection.execute(texts[query]).fetchall()


@contextlib.contextmanager
def open_polars(order: Order) -> Iterator[Execute]:
    """Polars' streaming engine over all cores, or its engine on a GPU, which raises what it cannot compute."""
    # By its path: this Polars need not be one with which gpujoin's packages can be imported.
    path = ROOT / "benchmarks" / "tpch" / "polars_queries.py"
    spec = importlib.util.spec_from_file_location("polars_queries", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    import polars as pl

    engine: Any = "streaming"
    if order.way is Way.CUDF_POLARS:
        engine = pl.GPUEngine(executor="in-memory", raise_on_fail=True)
    tables = module.Tables(order.data)
    yield lambda query: module.QUERIES[query](tables).collect(engine=engine).rows()


OPENERS: dict[Way, Callable[[Order], contextlib.AbstractContextManager[Execute]]] = {
    Way.GPU: open_spark, Way.CPU: open_spark, Way.SPARK: open_spark, Way.DUCKDB: open_duckdb,
    Way.POLARS: open_polars, Way.CUDF_POLARS: open_polars,
}  # fmt: skip


# -- all ways ------------------------------------------------------------------------------------------------------

PACKAGES = {
    Way.GPU: ("pyspark", "pylibcudf", "cupy", "duckdb"), Way.CPU: ("pyspark", "duckdb"),
    Way.SPARK: ("pyspark", "duckdb"), Way.DUCKDB: ("duckdb",), Way.POLARS: ("polars",),
    Way.CUDF_POLARS: ("polars", "cudf_polars"),
}  # fmt: skip
"""What a way imports. DuckDB's extension has the texts of the queries."""


def skip_reason(way: Way, peer: Path | None) -> str | None:
    """Why a way cannot run here; ``None``: it can."""
    paths = [str(peer)] if way is Way.CUDF_POLARS and peer is not None else []
    for package in PACKAGES[way]:
        if importlib.machinery.PathFinder.find_spec(package, [*paths, *sys.path]) is None:
            return f"{package} is not installed"
    if way in (Way.GPU, Way.CUDF_POLARS):
        from gpujoin.backends import cudf

        reason = cudf.unavailable()
        return None if reason is None else str(reason)
    return None


@dataclass(frozen=True)
class Outcome:
    """What came of a way.

    Attributes
    ----------
    way : Way
        Which.
    timings : tuple of Timing
        Its runs.
    problem : str
        Why it did not come to its end; empty if it did.
    """

    way: Way
    timings: tuple[Timing, ...]
    problem: str = ""

    def seconds(self, run: Run) -> dict[int, float]:
        """Seconds of the queries that were answered, by number."""
        return {t.query: t.seconds for t in self.timings if t.run is run and not t.problem}


def supervise(order: Order, peer: Path | None, limit: float) -> Outcome:
    """Run a way in a process of its own, and end it with all that it started once its time is over."""
    command = [
        sys.executable, str(Path(__file__).resolve()), "--child", order.way.value, "--data", str(order.data),
        "--queries", ",".join(map(str, order.queries)), "--work", str(order.work), "--until", str(order.until),
        *(part for key, value in order.settings.items() for part in ("--conf", f"{key}={value}")),
    ]  # fmt: skip
    environment = dict(os.environ)
    if order.way is Way.CUDF_POLARS and peer is not None:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(peer), environment.get("PYTHONPATH")]))
    log = order.work / f"{order.way.value}.log"
    problem = ""
    with log.open("w", encoding="utf-8") as output:
        child = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status = child.wait(limit + GRACE_SECONDS)
            problem = f"ended with status {status}" if status else ""
        except subprocess.TimeoutExpired:
            problem = "its time was over"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    if problem.startswith("ended"):
        last = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()][-1:]
        problem = ": ".join([problem, *last])
    text = order.lines.read_text(encoding="utf-8") if order.lines.exists() else ""
    complete = text[: text.rfind("\n") + 1]  # the last line of a process that was ended may be cut
    return Outcome(order.way, tuple(map(Timing.from_json, complete.splitlines())), problem)


def differences(outcomes: Sequence[Outcome], work: Path) -> list[str]:
    """Compare the answers of all ways with those of the first that has them, and warm runs with first ones."""
    from benchmarks.answers import TOLERANCE, difference

    problems = []
    expected: dict[int, tuple[Way, Answer]] = {}
    for outcome in sorted(outcomes, key=lambda each: each.way is not Way.DUCKDB):
        for query in outcome.seconds(Run.FIRST):
            answer = json.loads(answer_file(work, outcome.way, query).read_text(encoding="utf-8"))
            reference, rows = expected.setdefault(query, (outcome.way, answer))
            told = difference(answer, rows, TOLERANCE)
            if told is not None:
                problems.append(f"query {query}: {outcome.way.title} is not as {reference.title}: {told}")
        problems += [f"query {query}: {outcome.way.title}: {told}" for query, told in _changes(outcome)]
    return problems


def _changes(outcome: Outcome) -> Iterator[tuple[int, str]]:
    """Queries of which the warm run gave another answer than the first, and what failed."""
    first = {t.query: t for t in outcome.timings if t.run is Run.FIRST}
    for timing in outcome.timings:
        if timing.problem:
            yield timing.query, f"the {timing.run.value} run failed: {timing.problem}"
        elif timing.run is Run.WARM and not first[timing.query].problem:
            before = first[timing.query]
            if timing.rows != before.rows or not math.isclose(timing.checksum, before.checksum, rel_tol=1e-6):
                yield timing.query, f"the warm run gave {timing.rows} rows, the first {before.rows}, or other values"


def mean_ratio(of: Mapping[int, float], to: Mapping[int, float]) -> float | None:
    """Geometric mean, over the queries that both answered, of how many times as fast ``of`` is."""
    common = of.keys() & to.keys()
    return statistics.geometric_mean(to[query] / of[query] for query in common) if common else None


def page(
    outcomes: Sequence[Outcome],
    skipped: Mapping[Way, str],
    problems: Sequence[str],
    scale: str,
    machine: Mapping[str, Any],
) -> str:
    """The results as Markdown: a table for the warm runs and one for the first runs."""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    devices = ", ".join(machine["gpus"]) or "no GPU"
    lines = [
        f"# TPC-H, {scale}: gpujoin on a GPU and its peers",
        "",
        f"`python scripts/gpu_peers.py` at {machine['revision']}",
        "",
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory']}; {devices};",
        f"Python {machine['python']}, {versions}.",
        "",
        "Seconds from the text of a query to its rows in host memory. Every way reads the same Parquet files in every",
        "run, from the page cache, on all cores, in a process of its own. *First runs* pay for what is started and",
        "compiled then, *warm runs* are the second ones.",
        "Polars reads decimals as doubles; the other ways compute with decimals.",
        "",
        "**All answers are equal.**" if not problems else "**Answers differ, or queries failed:**",
        *(f"- {problem}" for problem in problems),
        *(f"- {way.title} was left out: {reason}" for way, reason in skipped.items()),
        *(f"- {outcome.way.title}: {outcome.problem}" for outcome in outcomes if outcome.problem),
    ]
    for run in (Run.WARM, Run.FIRST):
        lines += ["", f"## {run.value.capitalize()} runs", "", *_table(outcomes, run)]
    return "\n".join(lines) + "\n"


def _table(outcomes: Sequence[Outcome], run: Run) -> Iterator[str]:
    taking_part = [outcome for outcome in outcomes if outcome.seconds(run)]
    if not taking_part:
        yield "There was no time for any."
        return
    yield "| query | " + " | ".join(outcome.way.title for outcome in taking_part) + " |"
    yield "|---:|" + "---:|" * len(taking_part)
    columns = [outcome.seconds(run) for outcome in taking_part]
    for query in sorted(set().union(*columns)):
        yield f"| {query} | " + " | ".join(f"{c[query]:.3f}" if query in c else "–" for c in columns) + " |"
    common = set(columns[0]).intersection(*columns[1:])
    yield (
        f"| sum of the {len(common)} that all answered | "
        + " | ".join(f"{math.fsum(column[query] for query in common):.2f}" for column in columns)
        + " |"
    )
    for base in taking_part:
        ratios = [mean_ratio(column, base.seconds(run)) for column in columns]
        shown = ["–" if ratio is None else f"{ratio:.2f}" for ratio in ratios]
        yield f"| times as fast as {base.way.title}, geometric mean | " + " | ".join(shown) + " |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program, or in a child process the queries of one way."""
    parser = argparse.ArgumentParser(prog="gpu_peers.py", description=__doc__.splitlines()[0])
    parser.add_argument("--sf", type=float, default=0.01, metavar="SF", help="scale, if the tables are to be generated")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="tables that are there already, as <table>.parquet")
    ways = ",".join(way.value for way in Way)
    parser.add_argument("--ways", type=_ways, default=tuple(Way), metavar=ways, help="in this order (default: all)")
    parser.add_argument("--queries", type=_queries, default=QUERIES, metavar="1,3,5", help="only these (default: all)")
    parser.add_argument("--seconds", type=float, default=280.0, help="for all ways together (default: 280)")
    parser.add_argument(
        "--peer", type=Path, metavar="FOLDER", help="site folder with cudf-polars and the Polars it needs"
    )
    parser.add_argument(
        "--conf", type=_setting, action="append", default=[], metavar="KEY=VALUE", help="for gpujoin's ways"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results", help="folder of the page")
    parser.add_argument("--name", default="peers-tpch", help="name of the page (default: peers-tpch)")
    for hidden, kind in (("--child", Way), ("--work", Path), ("--until", float)):
        parser.add_argument(hidden, type=kind, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    settings = dict(options.conf)
    if options.child is not None:
        return run_way(Order(options.child, options.data, options.queries, options.work, options.until, settings))
    deadline = time.time() + options.seconds
    skipped = {way: reason for way in options.ways if (reason := skip_reason(way, options.peer)) is not None}
    for way, reason in skipped.items():
        print(f"gpu_peers: {way.title} is left out: {reason}", file=sys.stderr)
    ways_here = [way for way in options.ways if way not in skipped]
    if not ways_here:
        return 2
    from benchmarks.machine import describe
    from benchmarks.tpch.answers import SUITE

    data = (options.data or SUITE.at_scale(options.sf)).resolve()
    scale = f"scale {options.sf:g}" if options.data is None else data.name
    options.out.mkdir(parents=True, exist_ok=True)
    outcomes: list[Outcome] = []
    problems: list[str] = []
    text = ""
    with tempfile.TemporaryDirectory() as work:
        for place, way in enumerate(ways_here):
            limit = (deadline - time.time()) / (len(ways_here) - place) - GRACE_SECONDS
            order = Order(way, data, options.queries, Path(work), time.time() + limit, settings)
            outcomes.append(supervise(order, options.peer, limit))
            problems = differences(outcomes, Path(work))
            machine = describe()
            text = page(outcomes, skipped, problems, scale, machine)
            (options.out / f"{options.name}.md").write_text(text, encoding="utf-8")
            runs = [json.loads(timing.to_json()) for outcome in outcomes for timing in outcome.timings]
            record = {"machine": machine, "scale": scale, "problems": problems, "runs": runs}
            (options.out / f"{options.name}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
            warm = outcomes[-1].seconds(Run.WARM)
            print(
                f"{way.title}: {len(warm)} warm runs, {math.fsum(warm.values()):.2f} s {outcomes[-1].problem}",
                flush=True,
            )
    print(text)
    return 1 if problems or any(outcome.problem for outcome in outcomes) else 0


def _ways(text: str) -> tuple[Way, ...]:
    try:
        return tuple(dict.fromkeys(Way(name.strip()) for name in text.split(",")))
    except ValueError as problem:
        raise argparse.ArgumentTypeError(f"{problem}; there are {', '.join(way.value for way in Way)}") from None


def _queries(text: str) -> tuple[int, ...]:
    numbers = tuple(int(number) for number in text.split(","))
    unknown = [number for number in numbers if number not in QUERIES]
    if unknown:
        raise argparse.ArgumentTypeError(f"no query {unknown[0]}; there are 1 to 22")
    return numbers


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


if __name__ == "__main__":
    sys.exit(main())
