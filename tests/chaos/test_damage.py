"""Damage to files that are in use: bits, lengths and contents of what was spilled, and of Parquet files' footers."""

from __future__ import annotations

import os
import random
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.chaos.outcomes import Outcomes
from tests.chaos.tables import Sessions
from tests.chaos.works import WORKS
from tests.disks import spill_files

DAMAGES = ("flip a bit", "truncate", "empty", "zeros", "swap two pages", "append")
TRIES = 120


def spilled_files(folder: Path) -> list[Path]:
    """What this process has spilled to a folder, as paths by which files without a name can be opened."""
    files = [Path(f"/proc/self/fd/{descriptor}") for descriptor in spill_files(folder)]
    return [file for file in files if file.stat().st_size]


def damage(path: Path, how: str, dice: random.Random) -> str:
    """Damage a file; what was done."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        match how:
            case "flip a bit":
                place = dice.randrange(size)
                file.seek(place)
                (byte,) = file.read(1)
                file.seek(place)
                bit = dice.randrange(8)
                file.write(bytes([byte ^ 1 << bit]))
                return f"bit {bit} of byte {place} of {size}"
            case "truncate":
                length = dice.randrange(size)
                file.truncate(length)
                return f"{length} of {size} bytes"
            case "empty":
                file.truncate(0)
            case "zeros":
                start = dice.randrange(size)
                file.seek(start)
                file.write(bytes(min(64, size - start)))
            case "swap two pages":
                half = size // 2
                first, second = file.read(half), file.read(half)
                file.seek(0)
                file.write(second + first)
            case "append":
                file.seek(size)
                file.write(b"12345678")
    return how


@pytest.mark.parametrize("name", WORKS)
def test_spilled_files(name: str, tmp_path: Path, seed: int, dice: random.Random, outcomes: Outcomes) -> None:
    work = WORKS[name](seed)
    expected = work.run(tmp_path, lambda: None)
    for number in range(TRIES):
        how = DAMAGES[number % len(DAMAGES)]
        told: list[str] = []

        def hurt(how: str = how, told: list[str] = told) -> None:
            files = spilled_files(tmp_path)
            assert files, f"{name} has spilled nothing"
            told.append(damage(dice.choice(files), how, dice))

        outcomes.judge(partial(work.run, tmp_path, hurt), expected, f"seed {seed}: {name}, {how}, {told}")
    assert not list(tmp_path.iterdir())
    assert outcomes.refused > TRIES // 2


@pytest.mark.spark
def test_footers_of_files(sessions: Sessions, tmp_path: Path, dice: random.Random, outcomes: Outcomes) -> None:
    """A file with a damaged footer gives Spark's rows or is refused; the driver goes on.

    Spark refuses some files for what only it reads, such as statistics of encodings. If rows come of these, they are
    those of the undamaged file.
    """
    rows = 3000
    good = tmp_path / "good.parquet"
    table = pa.table({"k": list(range(rows)), "s": [None if i % 7 == 0 else f"text {i % 91}" for i in range(rows)]})
    pq.write_table(table, good, row_group_size=1000)
    data = good.read_bytes()
    length = int.from_bytes(data[-8:-4], "little")
    sessions.native.conf.set("spark.sql.files.ignoreCorruptFiles", "false")
    text = """select count(*) as n, sum(x.k) as total, max(x.s) as last
        from parquet.`{0}` x join parquet.`{0}` y on x.k = y.k"""
    undamaged = sessions.native.sql(text.format(good)).toArrow()
    for number in range(60):
        bad = tmp_path / f"bad{number}.parquet"
        place = len(data) - 8 - length + dice.randrange(length + 4)
        changed = bytearray(data)
        changed[place] ^= 1 << dice.randrange(8)
        bad.write_bytes(changed)
        os.utime(bad, (number, number))
        query = text.format(bad)
        try:
            expected = sessions.native.sql(query).toArrow()
        except Exception:  # noqa: BLE001 - Spark refuses the file
            expected = None
        context = f"byte {place} of {len(data)} altered; Spark {'reads' if expected else 'refuses'} the file"
        if expected is not None:
            outcomes.judge_query(sessions.here, query, expected, context)
            continue
        try:
            rows_here = sessions.here.sql(query).toArrow()
        except Exception:  # noqa: BLE001 - as Spark does
            outcomes.tried += 1
            outcomes.refused += 1
        else:
            outcomes.judge(lambda rows_here=rows_here: rows_here, undamaged, context)  # type: ignore[misc]
    assert sessions.here.range(5).count() == 5
