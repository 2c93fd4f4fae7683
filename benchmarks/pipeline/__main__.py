"""Time pipelines on TPC-H beside DuckDB and hand-written Polars: one thread, runs interleaved, answers checked."""

from __future__ import annotations

import argparse
import os

for _name in ("POLARS_MAX_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"  # read when the libraries are imported

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from benchmarks.data import tpch_directory
from benchmarks.machine import describe
from benchmarks.pipeline import polars_queries
from benchmarks.pipeline.tpch import QUERIES, TABLES, finals_of_duckdb
from gpujoin.engine.pipeline import run
from gpujoin.model.pipeline import PipelineMetrics
from gpujoin.model.relations import PartialAggregate
from tests.oracle.aggregates import assert_same_groups, merged

TIMED = ["q1", "q3", "q5", "q6", "q10", "q12", "q14", "q18", "q19"]


def main() -> None:
    """Measure and print a table; with ``--out`` also a JSON file and a page."""
    arguments = _arguments()
    folder = arguments.data or tpch_directory(arguments.sf)
    pa.set_cpu_count(1)
    results = [_measured(name, folder, arguments.repeats) for name in arguments.queries]
    text = _table(results)
    print(text)
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        record = {"machine": describe(), "scale": arguments.sf, "results": results}
        arguments.out.write_text(json.dumps(record, indent=1) + "\n")
        arguments.out.with_suffix(".md").write_text(_page(text, arguments.sf))


def _measured(name: str, folder: Path, repeats: int) -> dict[str, Any]:
    query = QUERIES[name]
    tree = query.tree(folder).relation
    assert isinstance(tree, PartialAggregate)
    metrics = PipelineMetrics()
    partial = pa.Table.from_batches(run(tree, metrics=metrics), tree.schema)
    finals = merged(tree, partial)
    assert_same_groups(finals, finals_of_duckdb(folder, query.sql, tree), name)
    by_hand = polars_queries.QUERIES.get(name)
    if by_hand is not None:
        place = polars_queries.SUMS[name][3]
        expected = {group: values[place] for group, values in finals.items()}
        assert polars_queries.money(name, by_hand(folder).collect()) == expected, name
    with duckdb.connect(config={"threads": 1}) as duck:
        for table in TABLES:
            duck.execute(f"create view {table} as from '{folder}/{table}.parquet'")
        engines: dict[str, Callable[[], object]] = {
            "pipeline": lambda: list(run(tree)),
            "duckdb": lambda: duck.execute(query.sql).to_arrow_table(),
        }
        if by_hand is not None:
            engines["polars"] = lambda: by_hand(folder).collect()
        times: dict[str, list[float]] = {engine: [] for engine in engines}
        for _ in range(repeats):
            for engine, work in engines.items():
                start = time.perf_counter()
                work()
                times[engine].append(time.perf_counter() - start)
    print(f"{name}: {times}", file=sys.stderr, flush=True)
    return {
        "query": name, "groups": partial.num_rows, "evaluated": metrics.evaluated, "query_joins": metrics.query_joins,
        "gather_joins": metrics.gather_joins,
        "seconds": {engine: statistics.median(found) for engine, found in times.items()},
    }  # fmt: skip


def _table(results: list[dict[str, Any]]) -> str:
    lines = ["| query | groups | pipeline | DuckDB | Polars by hand |", "|---|---:|---:|---:|---:|"]
    for result in results:
        times = result["seconds"]
        polars = f"{times['polars']:.3f}" if "polars" in times else "–"
        ours = f"**{times['pipeline']:.3f}** | {times['duckdb']:.3f} | {polars}"
        lines.append(f"| {result['query']} | {result['groups']:,} | {ours} |")
    return "\n".join(lines)


def _page(text: str, scale: float) -> str:
    machine = describe()
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return (
        "# Pipelines on the CPU\n\n"
        f"TPC-H at scale {scale:g}, from Parquet to the partial aggregate, one thread, median seconds; answers equal to"
        f" DuckDB's.\n{machine['processor']}, {machine['memory']}; Python {machine['python']}, {versions}.\n\n{text}\n"
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline", description=__doc__)
    parser.add_argument("--sf", type=float, default=1.0, help="TPC-H scale factor")
    parser.add_argument("--data", type=Path, help="folder with the tables; otherwise they are written once")
    parser.add_argument("--repeats", type=int, default=5, help="timed runs of each engine")
    parser.add_argument("--queries", type=lambda text: text.split(","), default=TIMED, help="for example q1,q6")
    parser.add_argument("--out", type=Path, help="JSON file; a Markdown page is written beside it")
    return parser.parse_args()


if __name__ == "__main__":
    main()
