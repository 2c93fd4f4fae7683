#!/usr/bin/env python3
"""Write the numbers of README.md and its plot from benchmarks/results, or check that they are up to date.

Usage: ``python scripts/gen_readme.py`` writes; with ``--check`` the exit status is 1 when a file would change. Either
way it is 1 when the benchmark that the first lines name was measured with another version than this one. Of other rows
the table says so.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from gpujoin._version import __version__  # noqa: E402 - it lies beside the package
from scripts.bars import Pair, bars_svg  # noqa: E402
from scripts.pages import write_or_check_all  # noqa: E402

README = ROOT / "README.md"
PLOT = ROOT / "docs" / "pictures" / "tpch.svg"
RESULTS = ROOT / "benchmarks" / "results"
PAGES = "benchmarks/results"
HEADLINE = "tpch-sf1-cpu"
"""The benchmark of the first lines and of the plot."""
_BLOCK = re.compile(r"(<!-- generated: ([a-z]+) -->\n)(?:(?!<!-- ).*\n)*(<!-- end -->\n)")


@dataclass(frozen=True)
class Origin:
    """Where a number was measured, and with what."""

    version: str
    """Version of gpujoin."""
    revision: str
    """Revision in its repository."""
    machine: str
    """Processor and cores, and GPUs where there are any."""

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Origin:
        """Read it from what a benchmark has written."""
        machine = record["machine"]
        version = record.get("version") or machine["versions"]["gpujoin"]
        processor = machine["processor"].replace("(R)", "").removesuffix(" Processor")
        parts = (*machine.get("gpus", ()), f"{processor}, {machine['cores']} cores")
        return cls(version, machine["revision"], "; ".join(parts))

    @property
    def is_current(self) -> bool:
        """Whether it is this version."""
        return self.version == __version__

    def __str__(self) -> str:
        return f"{self.version} ({self.revision}){'' if self.is_current else ', an earlier version'}"


@dataclass(frozen=True)
class Row:
    """A line of the table of numbers."""

    what: str
    page: str
    """Name of the page of the results."""
    spark: float
    here: float
    origin: Origin

    def __str__(self) -> str:
        ratio = self.spark / self.here
        cells = (
            f"[{self.what}]({PAGES}/{self.page}.md)", _seconds(self.spark), _seconds(self.here), _times(ratio),
            str(self.origin), self.origin.machine,
        )  # fmt: skip
        return f"| {' | '.join(cells)} |"


def _seconds(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds >= 10 else f"{seconds:.1f} s" if seconds >= 1 else f"{seconds:.2g} s"


def _times(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.1f}"


def record(name: str) -> dict[str, Any]:
    """What a benchmark has written; it must have compared its answers with Spark's."""
    read: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    wrong = [query["number"] for query in read.get("queries", ()) if query["differences"]]
    if wrong:
        raise SystemExit(f"gen_readme: {name} has wrong answers: queries {wrong}")
    return read


def rows() -> Iterator[Row]:
    """The lines of the table of numbers."""
    yield _suite("TPC-H, scale 1", HEADLINE)
    yield _suite("TPC-H, scale 1, planned as on a cluster", "tpch-sf1-cluster-cpu")
    yield _suite("TPC-H, scale 1, large inputs exchanged", "tpch-sf1-exchanged-cpu")
    yield _suite("TPC-H, scale 1, tables of Iceberg", "tpch-sf1-iceberg-cpu")
    yield _suite("TPC-H, scale 1, tables of Delta", "tpch-sf1-delta-cpu")
    yield _suite("TPC-H, scale 10", "tpch-sf10-cpu")
    yield _suite("TPC-H, scale 10, planned as on a cluster", "tpch-sf10-cluster-cpu")
    yield _suite("TPC-H, scale 10, large inputs exchanged", "tpch-sf10-exchanged-cpu")
    yield _suite("TPC-DS, scale 1", "tpcds-sf1-cpu")
    yield _suite("TPC-DS, scale 10", "tpcds-sf10-cpu")
    quadratic = record("quadratic-cpu")
    for case, what in {
        "range, inner, in Spark": "range join",
        "NOT IN, 2 columns, in Spark": "`NOT IN` over two columns",
    }.items():
        (measured,) = (given for given in quadratic["cases"] if given["case"] == case)
        sizes = f"{measured['rows']:,} × {measured['other_rows']:,} rows ¹"
        yield Row(
            f"{what}, {sizes}", "quadratic-cpu", measured["other_seconds"], measured["seconds"], Origin.of(quadratic)
        )
    streams = record("streams-spark-cpu")
    for case in streams["cases"]:
        seconds = {run["where"]: run["means"]["seconds"] for run in case["records"]}
        here = seconds.pop("here")
        kind = "left outer" if case["how"] == "left" else case["how"]
        what = f"{kind} join of two streams, {case['state_rows'] / 1e6:.1f} M rows kept ²"
        yield Row(what, "streams-spark-cpu", min(seconds.values()), here, Origin.of(streams))
    tables = record("streams-tables-cpu")
    here, spark = (_last_batches(tables["cases"]["equality"], where) for where in ("here", "spark"))
    yield Row("stream with a table of 5 M rows ²", "streams-tables-cpu", spark, here, Origin.of(tables))


def _suite(title: str, name: str) -> Row:
    read = record(name)
    totals, repeats = read["totals"], read["queries"][0].get("repeats")
    what = f"{title}, {len(read['queries'])} queries{', first runs' if repeats == 0 else ''}"
    return Row(what, name, totals["spark_seconds"], totals["accelerated_seconds"], Origin.of(read))


def _last_batches(records: list[dict[str, Any]], where: str) -> float:
    """Median seconds of the last micro-batches, as the page of the benchmark has it."""
    (run,) = (given for given in records if given["where"] == where)
    return statistics.median(batch["seconds"] for batch in run["batches"][-4:])


NOTES = """\
Median seconds, on the processor alone; every answer was compared with Spark's. ¹ Spark runs nested loops; they were
timed over a quarter of the left rows, and the time was multiplied. ² Seconds of a micro-batch; of Spark's two state
stores the faster one. How all of this was measured is [told here](docs/performance.md).

"""


def on_a_gpu() -> str:
    """What was measured on a GPU: first runs, which say nothing of warm ones, on a machine of its own."""
    row = _suite("TPC-H, scale 1", "tpch-sf1-gpu")
    here, spark = _seconds(row.here), _seconds(row.spark)
    return f"""\
On a GPU only *first runs* were measured, in which each query waits for kernels to be compiled: the 22 queries of TPC-H
at scale 1 took [{here}]({PAGES}/{row.page}.md), and Spark on the cores of that machine {spark}
({row.origin.machine}). Whether a GPU pays is [not known yet](docs/gpu.md#first-runs).
"""


def numbers() -> str:
    """The table of numbers."""
    head = "| | Spark | gpujoin | times faster | version | machine |\n|---|---|---|---|---|---|\n"
    return "".join([head, *(f"{row}\n" for row in rows()), "\n", NOTES, on_a_gpu()])


def summary() -> str:
    """The first sentences, with the number of the headline."""
    row = _suite("TPC-H", HEADLINE)
    times = _times(row.spark / row.here)
    return f"""\
gpujoin runs the joins and aggregations of your PySpark queries faster on the same machines (the queries of TPC-H
{times} times), with the same results. Your program does not change, and there is no JVM plugin. That was measured on
CPUs. It runs on GPUs too; whether they pay is [not known yet](docs/gpu.md#first-runs).
"""


def picture() -> str:
    """The plot, and what it shows."""
    read = record(HEADLINE)
    origin, machine = Origin.of(read), read["machine"]
    memory = int(machine["memory"].split()[0]) / (1 << 20)
    versions = machine["versions"]
    scale, python, spark = read["scale"], machine["python"], versions["pyspark"]
    return f"""\
![Seconds of the 22 queries of TPC-H in Spark and with gpujoin]({PLOT.relative_to(ROOT).as_posix()})

The 22 queries of TPC-H at scale {scale:g} on {origin.machine} and {memory:.0f} GiB of memory:
gpujoin {origin.version}, PySpark {spark}, Python {python}.
"""


def plot() -> str:
    """The plot of the headline."""
    read = record(HEADLINE)
    totals = read["totals"]
    pairs = [
        Pair(str(query["number"]), statistics.median(query["spark"]), statistics.median(query["accelerated"]))
        for query in read["queries"]
    ]
    title = (
        f"TPC-H, scale {read['scale']:g}: Spark {_seconds(totals['spark_seconds'])}, "
        f"gpujoin {_seconds(totals['accelerated_seconds'])}, {totals['ratio']:.1f} times faster"
    )
    origin = Origin.of(read)
    return bars_svg(title, f"seconds of each query; {origin.machine}; gpujoin {origin.version}", pairs, "query")


BLOCKS = {"summary": summary, "picture": picture, "numbers": numbers}


def page() -> str:
    """README.md with every generated block anew."""
    text = README.read_text(encoding="utf-8")
    blocks = {match[2] for match in _BLOCK.finditer(text)}
    if blocks != set(BLOCKS):
        raise SystemExit(f"gen_readme: README.md has the blocks {sorted(blocks)}, not {sorted(BLOCKS)}")
    return _BLOCK.sub(lambda match: f"{match[1]}{BLOCKS[match[2]]()}{match[3]}", text)


def main() -> int:
    """Write or check."""
    origin = Origin.of(record(HEADLINE))
    status = write_or_check_all({PLOT: plot, README: page}, __doc__)
    if not origin.is_current:
        again = "python -m benchmarks.tpch --repeats 2 --out benchmarks/results --name"
        print(f"gen_readme: {HEADLINE} is of version {origin.version}, not {__version__}: run {again} {HEADLINE}")
        return 1
    return status


if __name__ == "__main__":
    sys.exit(main())
