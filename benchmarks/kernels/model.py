"""Predicts the time of each workload's kernels from the bytes that they move, and writes the page's table.

``python -m benchmarks.kernels.model`` writes the tables of ``README.md`` anew. A kernel takes as long as its slower part: the bytes
of device memory, or the accesses that stay in L2. An example, the search of 2^27 rows in a set of 2.1 GB, both in order
of the hash: 12 bytes a row and the set once are 3.8 GB at 4.3 TB/s, 0.9 ms; 1.14 sectors a row are 153 M lookups at 90 G/s,
1.7 ms; so 1.7 ms.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.kernels.joins import Kernel
from benchmarks.kernels.workloads import Join, Keys, Workload, named

COPY = 4.3e12
"""Bytes of device memory a second, of an H200."""
PASS = 3.4e12
"""Bytes a second of the pass that partitions rows; assumed."""
RANDOM = 28e9
"""Sectors a second at random places beyond L2; assumed."""
LOOKUPS = 90e9
"""Sectors a second that stay in L2; assumed."""
ATOMICS = 50e9
"""Atomic operations a second that stay in L2; assumed."""
L2_BYTES = 60 << 20

CUDF_MS = {"i": 55.0, "ii": 73.0, "iii": 57.0, "iii'": 20.0, "iv": 18.0, "v": 34.0, "vi": 16.0}
"""Predicted milliseconds of cuDF's join and gathers, by the first word of a workload's name."""

SLOT_BYTES = {8: 16, 16: 32}
HIT_SECTORS = {8: 1.18, 16: 1.50}
TAKEN_KEYS = {8: 0.7, 16: 0.5}
"""What a hash table of rows costs, by the bytes of a key: bytes of a slot, sectors of a search, keys read to compare."""
SET_HIT_SECTORS, SET_MISS_SECTORS = 1.05, 1.23
"""Sectors that a search of a set of 8-byte keys reads, where the key is there and where not."""
_ROW, _VALUE = 4, 8
_README = Path(__file__).with_name("README.md")
_BEGIN = "<!-- model -->\n"
_END = "<!-- end of model -->\n"


@dataclass(frozen=True)
class Step:
    """One kernel, or several that follow each other.

    Attributes
    ----------
    name : str
        What it does.
    moved : float
        Bytes of device memory, read or written in a row.
    random : float
        Sectors at random places beyond L2.
    lookups, atomics : float
        Accesses that stay in L2.
    rate : float
        Bytes a second of ``moved``.
    """

    name: str
    moved: float
    random: float = 0.0
    lookups: float = 0.0
    atomics: float = 0.0
    rate: float = COPY

    @property
    def nbytes(self) -> float:
        """Bytes of device memory."""
        return self.moved + 32 * self.random

    @property
    def milliseconds(self) -> float:
        """Predicted time."""
        memory = self.moved / self.rate + self.random / RANDOM
        return 1e3 * max(memory, self.lookups / LOOKUPS + self.atomics / ATOMICS)


def steps(workload: Workload) -> Iterator[Step]:
    """The kernels of a workload, by the planner's choice."""
    kernel = expected_kernel(workload)
    build, key, columns = 1 << workload.log_build, _key_bytes(workload), _VALUE * workload.columns
    if workload.keys is Keys.TEXT:
        yield Step("codes of texts", 2 * (1 << workload.log_probe) * (16 + 4 + 16))
    yield Step("facts", build * key)
    if kernel is Kernel.PARTITIONED:
        yield from _partitioned(workload, key, columns)
    elif kernel is Kernel.DIRECT:
        yield from _direct(workload, key, columns)
    else:
        yield from _many_to_many(workload, key, columns)


def expected_kernel(workload: Workload) -> Kernel:
    """What the planner chooses for a workload of the goal."""
    if workload.log_rows_per_key:
        return Kernel.CSR
    return Kernel.DIRECT if workload.keys is Keys.DENSE else Kernel.PARTITIONED


def _partitioned(workload: Workload, key: int, columns: int) -> Iterator[Step]:
    build, probe = 1 << workload.log_build, 1 << workload.log_probe
    inner = workload.join is Join.INNER
    yield from _partition("build", build, key, columns if inner else 0)
    table = 2 * build * (SLOT_BYTES[key] if inner else key)
    yield Step("empty the table", table)
    hit = HIT_SECTORS[key] if inner else SET_HIT_SECTORS
    looked = build * (hit + (TAKEN_KEYS[key] if inner else 0))
    yield Step("enter build rows", build * key + 2 * table, lookups=looked, atomics=build)
    if inner and workload.columns > 1:
        yield Step("pack build rows", 2 * build * columns)
    yield from _partition("probe", probe, key, columns)
    searched = hit if inner else SET_HIT_SECTORS * workload.match + SET_MISS_SECTORS * (1 - workload.match)
    yield Step("find probe rows", probe * (key + _ROW) + table, lookups=probe * searched)
    if inner:  # all of which match: probe columns stay as they are
        yield Step("gather build columns", probe * (_ROW + 2 * columns), lookups=probe * math.ceil(columns / 32))
    else:
        kept = probe * (workload.match if workload.join is Join.SEMI else 1 - workload.match)
        yield Step("count output", probe * _ROW)
        yield Step("write output", probe * _ROW + 2 * kept * (key + columns))


def _partition(side: str, rows: int, key: int, columns: int) -> Iterator[Step]:
    yield Step(f"count partitions of the {side} side", rows * key)
    yield Step(f"partition the {side} side", 2 * rows * (key + columns), rate=PASS)


def _direct(workload: Workload, key: int, columns: int) -> Iterator[Step]:
    build, probe = 1 << workload.log_build, 1 << workload.log_probe
    yield Step("enter build rows", build * (key + 2 * _ROW), **_accesses(_ROW * build, build, atomic=True))
    yield Step("find probe rows", probe * (key + _ROW), **_accesses(_ROW * build, probe))
    yield Step("gather build columns", probe * (_ROW + columns), **_accesses(columns * build, probe))


def _many_to_many(workload: Workload, key: int, columns: int) -> Iterator[Step]:
    build, probe = 1 << workload.log_build, 1 << workload.log_probe
    pairs = probe << workload.log_rows_per_key
    table, slots = 2 * build * SLOT_BYTES[key], 2 * build
    distinct = workload.distinct
    yield Step("empty the table", table + _ROW * slots)
    touched = 32 * distinct  # sectors of the table with a key
    yield Step("enter build rows", build * (key + _ROW), **_accesses(touched, build * HIT_SECTORS[key], atomic=True))
    yield Step("count and place rows", build * 4 * _ROW, **_accesses(touched, 2 * build, atomic=True))
    yield Step("first places", 4 * _ROW * slots)
    yield Step("pack build rows in order of keys", build * (_ROW + columns), random=build)
    yield Step("find probe rows", probe * (key + 2 * _ROW), **_accesses(touched, probe * (HIT_SECTORS[key] + 1)))
    yield Step("running counts", probe * 2 * (_ROW + 8))
    yield Step("pairs", pairs * 2 * _ROW + probe * (8 + 8), lookups=pairs / 8)
    yield Step("gather probe columns", pairs * (_ROW + columns + key) + probe * (columns + key), lookups=pairs / 8)
    # Rows of a key are neighbours: a run of 16 rows of 8 bytes touches some five sectors.
    yield Step("gather build columns", pairs * (_ROW + columns), random=probe * 5)


def _accesses(table: float, count: float, *, atomic: bool = False) -> dict[str, float]:
    """Accesses at random places of a table: what of it L2 holds stays there."""
    there = min(1.0, L2_BYTES / table)
    beyond = count * (1 - there)
    return {"random": beyond, "atomics" if atomic else "lookups": count - beyond}


def _key_bytes(workload: Workload) -> int:
    return 16 if workload.keys is Keys.TEXT else 8


def milliseconds(workload: Workload) -> float:
    """Predicted time of a workload."""
    return sum(step.milliseconds for step in steps(workload))


def ratio(workload: Workload) -> float:
    """Predicted time of cuDF over that of gpujoin's kernels."""
    return CUDF_MS[workload.name.split(":")[0]] / milliseconds(workload)


def mean_ratio() -> float:
    """Geometric mean of the ratios of the workloads of the goal."""
    ratios = [ratio(workload) for workload in named()]
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def page() -> str:
    """The tables of the page."""
    lines = ["| workload | kernel | GB | ms | cuDF, ms | ratio |", "|---|---|---|---|---|---|"]
    for workload in named():
        moved = sum(step.nbytes for step in steps(workload)) / 1e9
        cudf = CUDF_MS[workload.name.split(":")[0]]
        told = f"{moved:.1f} | {milliseconds(workload):.1f} | {cudf:g} | {ratio(workload):.1f}"
        lines.append(f"| {workload.name} | {expected_kernel(workload).value} | {told} |")
    lines += [f"| geometric mean | | | | | {mean_ratio():.1f} |", ""]
    for workload in named():
        parts = ", ".join(f"{step.name} {step.milliseconds:.1f}" for step in steps(workload))
        lines.append(f"- {workload.name}: {parts}.")
    return "\n".join(lines) + "\n"


def written() -> str:
    """The tables as the page has them."""
    _, _, rest = _README.read_text(encoding="utf-8").partition(_BEGIN)
    return rest.partition(_END)[0]


def main() -> None:
    """Write the tables anew."""
    head, begin, rest = _README.read_text(encoding="utf-8").partition(_BEGIN)
    _, end, after = rest.partition(_END)
    _README.write_text(head + begin + page() + end + after, encoding="utf-8")


if __name__ == "__main__":
    print(page())
    main()
