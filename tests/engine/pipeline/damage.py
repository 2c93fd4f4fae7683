"""Reads damaged Parquet files in a process of its own, one after the other, and prints what became of each.

``python -m tests.engine.pipeline.damage FOLDER SEED FIRST LAST`` damages copies of the files that :func:`write_files`
has written to a folder. A line is printed before each file is read and one after: a process that dies, or hangs, is
known by the file that it was reading.
"""

from __future__ import annotations

import datetime as dt
import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gpujoin.engine import pipeline
from gpujoin.engine.pipeline.support import read_footers
from gpujoin.errors import ScanError
from gpujoin.model.relations import Scan
from tests.trees import file_slice

ROWS = 60
_HANG_SECONDS = 20.0


class Outcome(StrEnum):
    """What became of a damaged file."""

    EQUAL = "equal"
    """Its rows are those of the sound file: the damage is in nothing that counts."""
    REFUSED = "refused"
    """Planning leaves the file to Spark, or reading it fails with a :class:`ScanError`."""
    ALTERED = "altered"
    """Its rows are others, and PyArrow reads it without an error too: the damage makes a sound file of other rows."""
    SILENT = "silent"
    """Its rows are others, and PyArrow fails on it."""
    OTHER_ERROR = "other error"
    """Another error than those that users can catch."""
    DECODER_CRASH = "decoder crash"
    """The file was planned, and the process that decodes its pages dies, as Spark's workers may."""
    CRASH = "crash"
    """The process that plans dies."""
    HANG = "hang"


@dataclass
class Tally:
    """Outcomes of a sweep.

    Attributes
    ----------
    counts : Counter
        How many files had each outcome, by where the damage is and the outcome.
    bad : list of str
        What is to be looked at: the outcomes that must not be.
    """

    counts: Counter[tuple[str, Outcome]] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)

    def add(self, label: str, outcome: Outcome, detail: str) -> None:
        """Count an outcome."""
        self.counts[label.split()[1], outcome] += 1
        if outcome not in (Outcome.EQUAL, Outcome.REFUSED, Outcome.ALTERED):
            self.bad.append(f"{label}: {outcome}: {detail}")


def sound_tables() -> dict[str, tuple[pa.Table, dict[str, Any]]]:
    """Tables of the types that are read, and how each is written."""
    numbers = range(ROWS)
    flat = pa.table({
        "i": pa.array([None if n % 7 == 3 else n - 20 for n in numbers], pa.int64()),
        "j": pa.array(numbers, pa.int32()),
        "k": pa.array([n % 100 for n in numbers], pa.int8()),
        "s": pa.array([None if n % 5 == 2 else f"text {n % 9}" for n in numbers]),
        "b": pa.array([bytes([n]) * (n % 4) for n in numbers], pa.binary()),
        "f": pa.array([n / 4 for n in numbers], pa.float64()),
        "d": pa.array([dt.date(2024, 1, 1) + dt.timedelta(n) for n in numbers]),
        "m": pa.array([Decimal(n - 9).scaleb(-2) for n in numbers], pa.decimal128(20, 2)),
        "n": pa.array([Decimal(n - 9).scaleb(-2) for n in numbers], pa.decimal128(9, 2)),
        "t": pa.array([n * 1_000_003 for n in numbers], pa.timestamp("us", "UTC")),
        "o": pa.array([n % 3 == 0 for n in numbers]),
    })  # fmt: skip
    nested = flat.select(["i", "s"]).append_column("l", pa.array([[n, n + 1] for n in numbers]))
    stamps = flat.select(["i", "s", "t"])
    return {
        "default": (flat, {"compression": "snappy"}),
        "groups": (flat.select(["i", "s", "n"]), {"row_group_size": 9, "compression": "zstd"}),
        "plain": (flat, {"use_dictionary": False, "compression": "none", "store_decimal_as_integer": True}),
        "v2": (flat, {"data_page_version": "2.0", "compression": "gzip", "use_dictionary": ["s"]}),
        "bare": (flat, {"write_statistics": False, "store_schema": False, "version": "1.0"}),
        "nested": (nested, {"store_schema": False, "write_page_index": True}),
        "int96": (stamps, {"use_deprecated_int96_timestamps": True}),
        "checksums": (flat.select(["i", "s"]), {"write_page_checksum": True, "compression": "none"}),
    }  # fmt: skip


def write_files(folder: Path) -> None:
    """Write the sound files."""
    for name, (table, options) in sound_tables().items():
        pq.write_table(table, folder / f"{name}.parquet", **options)


def damaged(sound: dict[str, bytes], seed: int, number: int) -> tuple[str, str, bytes]:
    """Make one damaged file.

    Returns
    -------
    file, label : str
        Which file was damaged, and how: a sentence whose second word is the part of the file.
    content : bytes
        Of the damaged file.
    """
    rng = random.Random(f"{seed}/{number}")
    name = rng.choice(sorted(sound))
    content = bytearray(sound[name])
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    part = rng.choices(["footer", "data", "tail", "whole"], [12, 4, 1, 1])[0]
    first, last = {
        "footer": (footer, len(content) - 8), "data": (4, footer), "tail": (len(content) - 8, len(content)),
        "whole": (0, len(content)),
    }[part]  # fmt: skip
    at = rng.randrange(first, last)
    how = rng.choices(["bit", "byte", "insert", "delete", "truncate", "several"], [6, 6, 1, 1, 1, 1])[0]
    match how:
        case "bit":
            content[at] ^= 1 << rng.randrange(8)
        case "byte":
            content[at] = rng.choice((0, 255, 127, 128, rng.randrange(256)))
        case "insert":
            content[at:at] = rng.randbytes(rng.randrange(1, 9))
        case "delete":
            del content[at : min(last, at + rng.randrange(1, 9))]
        case "truncate":
            del content[at:]
        case _:
            for _ in range(rng.randrange(2, 9)):
                content[rng.randrange(first, last)] = rng.randrange(256)
    if how in ("insert", "delete") and part == "footer":
        content[-8:-4] = (len(content) - 8 - footer).to_bytes(4, "little")
    return name, f"{name}: {part} {how} at {at} (seed {seed}, number {number})", bytes(content)


def _read(path: Path, table: pa.Table) -> tuple[Outcome, str]:
    names = [name for name in table.column_names if not pa.types.is_nested(table.schema.field(name).type)]
    wanted = table.select(names)
    scan = Scan(wanted.schema)
    try:
        [footer] = read_footers(scan, [str(path)])
        if footer.obstacles:
            return Outcome.REFUSED, footer.obstacles[0]
        print(json.dumps({"planned": True}), flush=True)
        rows = pa.Table.from_batches(pipeline.run(Scan(wanted.schema, slices=(file_slice(path),))), wanted.schema)
    except ScanError as problem:
        return Outcome.REFUSED, str(problem)
    except BaseException as problem:  # noqa: BLE001 - a Polars panic is none of Exception
        return Outcome.OTHER_ERROR, f"{type(problem).__name__}: {problem}"
    if rows.equals(wanted):
        return Outcome.EQUAL, ""
    print(json.dumps({"reference": True}), flush=True)
    try:
        # Spark and we give nulls for a column whose name is another now.
        pq.ParquetFile(path).read(use_threads=False)
    except Exception as problem:  # noqa: BLE001 - whatever PyArrow raises
        return Outcome.SILENT, f"{rows.num_rows} rows; PyArrow: {problem}"
    return Outcome.ALTERED, f"{rows.num_rows} rows"


def _child(folder: Path, seed: int, first: int, last: int) -> None:
    tables = {name: table for name, (table, _) in sound_tables().items()}
    sound = {name: (folder / f"{name}.parquet").read_bytes() for name in tables}
    for number in range(first, last):
        name, label, content = damaged(sound, seed, number)
        path = folder / f"damaged-{seed}-{number}.parquet"
        path.write_bytes(content)
        print(json.dumps({"number": number, "label": label}), flush=True)
        outcome, detail = _read(path, tables[name])
        print(json.dumps({"outcome": outcome, "detail": detail[:300]}), flush=True)
        path.unlink()


def sweep(folder: Path, seed: int, count: int) -> Tally:
    """Read damaged files in child processes, a fresh one after each that dies."""
    tally = Tally()
    first = 0
    while first < count:
        first = _run(folder, seed, first, count, tally)
    return tally


def _run(folder: Path, seed: int, first: int, last: int, tally: Tally) -> int:
    command = [
        sys.executable,
        "-m",
        "tests.engine.pipeline.damage",
        str(folder),
        str(seed),
        str(first),
        str(last),
    ]
    log = folder / f"log-{seed}-{first}"
    hung = False
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL) as child:
        size = -1
        while child.poll() is None:
            try:
                child.wait(_HANG_SECONDS)
            except subprocess.TimeoutExpired:
                hung = log.stat().st_size == size
                size = log.stat().st_size
                if hung:
                    child.kill()
    label, number = "", first - 1
    reference = planned = False
    for entry in _entries(log):
        if "label" in entry:
            label, number = entry["label"], entry["number"]
            reference = planned = False
        elif "planned" in entry:
            planned = True
        elif "reference" in entry:
            reference = True
        else:
            tally.add(label, Outcome(entry["outcome"]), entry["detail"])
            label = ""
    if label and reference:
        tally.add(label, Outcome.SILENT, "PyArrow, asked for comparison, killed the process")
    elif label:
        died = Outcome.DECODER_CRASH if planned else Outcome.CRASH
        tally.add(label, Outcome.HANG if hung else died, f"exit status {child.returncode}")
    elif number + 1 < last:
        raise RuntimeError(f"{' '.join(command)} ended with {child.returncode} between two files")
    return number + 1


def _entries(log: Path) -> Iterator[dict[str, Any]]:
    for line in log.read_text().splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            return


if __name__ == "__main__":
    _child(Path(sys.argv[1]), *(int(text) for text in sys.argv[2:5]))
