"""Run the benchmark: an ordinary PySpark program, plain and by ``python -m gpujoin``, unchanged.

python -m benchmarks.script --data FOLDER [--repeats 3] [--out benchmarks/results/script-cpu.json]

FOLDER holds TPC-H tables as Parquet files; without it, those of scale 1 are made. Both must print the same.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.data import tpch_directory
from benchmarks.machine import describe

APP = Path(__file__).with_name("app.py")
WAYS = {"python app.py": (), "python -m gpujoin app.py": ("-m", "gpujoin")}


def run(way: tuple[str, ...], folder: Path) -> tuple[str, float, float]:
    """Give what the program prints, and the seconds of the process and of the program's own work."""
    environment = {**os.environ, "PYTHONPATH": str(APP.parents[2])}
    environment.pop("PYSPARK_PYTHON", None)
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *way, str(APP), str(folder)],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    seconds = time.perf_counter() - start
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(way)}: status {done.returncode}\n{done.stderr}")
    return done.stdout, seconds, float(done.stderr.strip().splitlines()[-1])


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.script", description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    folder = arguments.data or tpch_directory(1)
    whole: dict[str, list[float]] = {name: [] for name in WAYS}
    work: dict[str, list[float]] = {name: [] for name in WAYS}
    printed: dict[str, str] = {}
    for _ in range(arguments.repeats):
        for name, way in WAYS.items():
            text, seconds, own = run(way, folder)
            if printed.setdefault(name, text) != next(iter(printed.values())):
                raise SystemExit(f"{name} printed something else:\n{text}\n{next(iter(printed.values()))}")
            whole[name].append(seconds)
            work[name].append(own)
    lines = ["| | the whole process, s | the program's work, s |", "|---|---:|---:|"]
    lines += [
        f"| `{name}` | {statistics.median(whole[name]):.1f} | {statistics.median(work[name]):.1f} |" for name in WAYS
    ]
    times = [statistics.median(work[name]) for name in WAYS]
    lines += ["", f"Both print the same. The work is done {times[0] / times[1]:.1f} times as fast."]
    page = "\n".join(lines)
    print(page)
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        found = {
            "machine": describe(),
            "process": whole,
            "work": work,
            "printed": next(iter(printed.values())),
        }
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")
        about = (
            f"`python -m benchmarks.script`: [an ordinary PySpark program](../script/app.py) of five joins over TPC-H "
            f"tables, local[2], medians of {arguments.repeats} processes each, in alternation"
        )
        arguments.out.with_suffix(".md").write_text(f"# An unchanged program\n\n{about}\n\n{page}\n")


if __name__ == "__main__":
    main()
