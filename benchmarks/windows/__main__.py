"""Run the benchmark: windows over events of users in Parquet files, accelerated and in Spark, taking turns.

python -m benchmarks.windows [--rows 5000000] [--repeats 3] [--out benchmarks/results/windows-cpu.json]

Answers are compared before anything is timed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import gpujoin
from benchmarks.machine import describe
from gpujoin.testing import assert_same_rows

_EVENTS_A_USER = 50
_DAYS = 30
_FILES = 4


@dataclass(frozen=True)
class Case:
    """A query, and how many times faster than Spark it should be."""

    name: str
    query: str
    goal: float = 3.0


CASES = (
    Case(
        "sessions",
        """
        select country, count(*) sessions, sum(events) events, sum(seconds) seconds, sum(spent) spent
        from (
            select user, session, count(*) events, max(unix_seconds(time)) - min(unix_seconds(time)) seconds,
                sum(amount) spent
            from (
                select *, sum(begins) over (partition by user order by time) session
                from (
                    select *, case when unix_seconds(time) - unix_seconds(lag(time) over (partition by user order by
                        time)) <= 1800 then 0 else 1 end begins
                    from events
                )
            )
            group by user, session
        ) join users on user = id
        group by country
        """,
    ),
    Case(
        "three largest of each user",
        """
        select country, sum(amount), max(n), count(*)
        from (select user, amount, row_number() over (partition by user order by amount desc) n from events)
        join users on user = id
        where n <= 3
        group by country
        """,
    ),
    Case(
        "moving sums and shares",
        """
        select country, max(recent), max(total), count(distinct cast(100 * amount / total as int))
        from (
            select user, amount, sum(amount) over (partition by user order by time, amount rows 9 preceding) recent,
                sum(amount) over (partition by user) total
            from events
        ) join users on user = id
        group by country
        """,
    ),
)


def tables(directory: Path, rows: int) -> dict[str, Path]:
    """Write events, in any order, and users, unless they are there."""
    users = max(1, rows // _EVENTS_A_USER)
    folder = directory / f"events-{rows}"
    if not folder.exists():
        rng = np.random.default_rng(7)
        events = pa.table(
            {
                "user": rng.integers(0, users, rows),
                "time": pa.array(rng.integers(0, _DAYS * 86_400, rows) * 1_000_000 + 1_700_000_000_000_000).cast(
                    pa.timestamp("us", "UTC")
                ),
                "amount": pa.array(rng.integers(0, 1_000_000, rows)).cast(pa.int64()),
                "kind": rng.integers(0, 20, rows).astype(np.int32),
            }
        )
        folder.mkdir(parents=True)
        for number in range(_FILES):
            part = events.slice(number * rows // _FILES, rows // _FILES)
            pq.write_table(part, folder / f"{number}.parquet")
        names = pa.array([f"country {i % 40}" for i in range(users)])
        pq.write_table(pa.table({"id": np.arange(users), "country": names}), directory / f"users-{rows}.parquet")
    return {"events": folder, "users": directory / f"users-{rows}.parquet"}


def measure(case: Case, session: SparkSession, directory: Path, repeats: int) -> dict[str, Any]:
    """Check and time one case over the tables in a directory."""
    frame = session.sql(case.query)
    accelerated = gpujoin.accelerate(frame)
    explanation = str(gpujoin.explain(accelerated))
    if "window" not in explanation:
        raise SystemExit(f"{case.name}: its windows are left to Spark\n{explanation}")
    assert_same_rows(accelerated.toArrow(), frame.toArrow())
    wall: dict[str, list[float]] = {"gpujoin": [], "Spark": []}
    for turn in range(repeats + 1):
        for name, seconds in wall.items():
            before = time.perf_counter()
            made: DataFrame = session.sql(case.query)
            (gpujoin.accelerate(made) if name == "gpujoin" else made).collect()
            if turn:  # the first warms up
                seconds.append(time.perf_counter() - before)
    medians = {name: statistics.median(times) for name, times in wall.items()}
    ratio = medians["Spark"] / medians["gpujoin"]
    print(f"{case.name}: {medians}, ratio {ratio:.2f}", file=sys.stderr, flush=True)
    return {
        "case": case.name, "goal": case.goal, "runs": wall, "seconds": medians, "ratio": ratio,
        "explanation": explanation.replace(f"{directory}/", ""),  # pages are of no machine's folders
    }  # fmt: skip


def page(results: list[dict[str, Any]]) -> str:
    """Results as Markdown."""
    lines = ["| what | gpujoin, s | Spark, s | times faster | goal |", "|---|---:|---:|---:|---:|"]
    lines += [
        f"| {result['case']} | {result['seconds']['gpujoin']:.2f} | {result['seconds']['Spark']:.2f} "
        f"| **{result['ratio']:.2f}** | {result['goal']} |"
        for result in results
    ]
    for result in results:
        lines += ["", f"## {result['case']}", "", "```", result["explanation"], "```"]
    return "\n".join(lines)


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.windows", description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "gpujoin-benchmark")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    session = (
        SparkSession.builder.master(f"local[{arguments.cores}]")
        .config("spark.driver.memory", "6g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", str(2 * arguments.cores))
        .config("spark.gpujoin.fallback", "raise")
        .config("spark.gpujoin.backend", "cpu")
        .getOrCreate()
    )
    for name, path in tables(arguments.data, arguments.rows).items():
        session.read.parquet(str(path)).createOrReplaceTempView(name)
    results = [measure(case, session, arguments.data, arguments.repeats) for case in CASES]
    text = page(results)
    print(text)
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps({"machine": describe(), "results": results}, indent=1) + "\n")
        run = f"`python -m benchmarks.windows`, {arguments.rows:,} events, local[{arguments.cores}], medians"
        arguments.out.with_suffix(".md").write_text(f"# Windows over Parquet files on Spark\n\n{run}\n\n{text}\n")
    session.stop()


if __name__ == "__main__":
    main()
