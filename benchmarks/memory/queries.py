"""Measure the memory of whole queries, by Spark itself and accelerated.

python -m benchmarks.memory.queries [--sf 10] [--queries 1,3,5] [--conf KEY=VALUE] [--out FOLDER]

Each way has a process of its own, which runs the queries of TPC-H one after another, each once. What is told is the
largest sum over that process and all its children, the JVM and Spark's workers among them, of the memory that is not
of files, pages that processes share counted once.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread

from benchmarks import machine
from benchmarks.queries.measure import open_session, warm_up
from benchmarks.tpch.answers import SUITE
from gpujoin.cli.session import key_value

_INTERVAL = 0.2
_WAYS = ("Spark", "here")


@dataclass
class _Peaks:
    """The most that a process and its children held.

    Attributes
    ----------
    queries : dict from int to int
        Bytes of each query, by its number; 0: before the first.
    current : int
        The query that runs.
    rows : dict from int to int
        Rows of each query's answer.
    """

    queries: dict[int, int] = field(default_factory=dict)
    current: int = 0
    rows: dict[int, int] = field(default_factory=dict)

    def saw(self, size: int) -> None:
        """Take note of the bytes held now."""
        self.queries[self.current] = max(size, self.queries.get(self.current, 0))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; the status is 1 where the ways' answers have unequal numbers of rows."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory.queries", description=__doc__.split("\n")[0])
    parser.add_argument("--sf", type=float, default=1.0, dest="scale", help="scale factor of TPC-H (default: 1)")
    parser.add_argument("--queries", default=",".join(map(str, SUITE.numbers)), metavar="1,3,5", help="only these")
    parser.add_argument("--master", default="local[*]", help="Spark master (default: local[*])")
    parser.add_argument(
        "--conf", action="append", default=[], type=key_value, metavar="KEY=VALUE", help="a Spark setting"
    )
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where to write NAME.md")
    parser.add_argument("--name", default="memory-tpch-cpu", help="name of that file")
    parser.add_argument("--way", choices=_WAYS, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    data = SUITE.at_scale(arguments.scale)
    numbers = [int(number) for number in arguments.queries.split(",")]
    if arguments.way:
        _run(arguments.way, data, numbers, arguments.master, dict(arguments.conf))
        return 0
    given = sys.argv[1:] if argv is None else list(argv)
    peaks = {way: _watched([*given, "--way", way]) for way in _WAYS}
    told = ["--sf", f"{arguments.scale:g}"]
    for key, value in arguments.conf:
        told += ["--conf", f"{key}={value}"]
    if numbers != list(SUITE.numbers):
        told += ["--queries", arguments.queries]
    page = _page(arguments.scale, told, peaks)
    print(page)
    if arguments.out is not None:
        (arguments.out / f"{arguments.name}.md").write_text(page)
    return int(peaks["Spark"].rows != peaks["here"].rows)


def _run(way: str, data: Path, numbers: Sequence[int], master: str, settings: dict[str, str]) -> None:
    """Run the queries one way, and say on the standard output which begins and how many rows came."""
    import gpujoin

    with SUITE.connect(data) as connection:
        texts = SUITE.texts(connection)
    spark = open_session(master, settings)
    try:
        tables = list(SUITE.register(spark, data).values())
        if way == "here":
            warm_up(spark, tables)
        for number in numbers:
            print(json.dumps({"begins": number}), flush=True)
            frame = spark.sql(texts[number])
            rows = (frame if way == "Spark" else gpujoin.accelerate(frame)).collect()
            print(json.dumps({"rows": len(rows)}), flush=True)
    finally:
        spark.stop()


def _watched(arguments: Sequence[str]) -> _Peaks:
    """Run this program one way in a process, and watch what it holds.

    Raises
    ------
    CalledProcessError
        It failed.
    """
    command = [sys.executable, "-m", "benchmarks.memory.queries", *arguments]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    peaks = _Peaks()
    listener = Thread(target=_listen, args=(child, peaks), daemon=True)
    listener.start()
    while child.poll() is None:
        peaks.saw(held_bytes(child.pid))
        time.sleep(_INTERVAL)
    listener.join()
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, command)
    return peaks


def _listen(child: subprocess.Popen[str], peaks: _Peaks) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        said = json.loads(line)
        if "begins" in said:
            peaks.current = said["begins"]
        else:
            peaks.rows[peaks.current] = said["rows"]


def held_bytes(process: int) -> int:
    """Bytes that a process and those that it started hold."""
    return _own_bytes(process) + sum(map(held_bytes, _started_by(process)))


def _started_by(process: int) -> Iterator[int]:
    for thread in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            yield from map(int, thread.read_text().split())


def _own_bytes(process: int) -> int:
    """A process's share of the memory that is not of files."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("Pss_Anon", "Pss_Shmem")))


def _page(scale: float, arguments: Sequence[str], peaks: Mapping[str, _Peaks]) -> str:
    facts = machine.describe()
    spark, here = (peaks[way].queries for way in _WAYS)
    most = {way: max(peaks[way].queries.values()) for way in _WAYS}
    told = (
        f"most: Spark {most['Spark'] >> 20:,} MiB, here {most['here'] >> 20:,} MiB,"
        f" {most['here'] / most['Spark']:.2f} times Spark's"
    )
    lines = [
        f"# TPC-H at scale {scale:g}: memory of whole queries, by Spark and accelerated",
        "",
        f"`python -m benchmarks.memory.queries {' '.join(arguments)}` at {facts['revision']}",
        "",
        f"{facts['processor']}, {facts['cores']} cores, {facts['memory']}; Python {facts['python']}, "
        + ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
        + ".",
        "",
        "MiB that all processes held at most, each way in processes of its own; pages of files are not counted.",
        "The JVM gives hardly anything back, so that a query holds what those before it took.",
        "",
        "| query | Spark | here | ratio |",
        "|---:|---:|---:|---:|",
        *(
            f"| {number or 'start'} | {spark[number] >> 20:,} | {here[number] >> 20:,} |"
            f" {here[number] / spark[number]:.2f} |"
            for number in sorted(spark.keys() & here.keys())
        ),
        "",
        told,
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    sys.exit(main())
