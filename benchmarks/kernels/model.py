"""Predicts the time of each workload's kernels from the bytes that they move, and writes the page's table.

``python -m benchmarks.kernels.model`` writes the tables of ``README.md`` anew. A kernel takes as long as its slower
part: the bytes of device memory, or the accesses that stay in L2. Rates were measured on an H200. An example, the
search of 2^27 rows in a set of 2.1 GB: 12 bytes a row at 3.7 TB/s are 0.4 ms, 1.14 sectors a row at 40 G/s are 3.8 ms;
together 4.2 ms.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.kernels.joins import Kernel
from benchmarks.kernels.workloads import Join, Keys, Workload, named
from gpujoin.launch.rows import RowLayout
from gpujoin.model.gathering import HashFacts, SlotFacts
from gpujoin.plan.accesses import COPY, EXCHANGES, LOOKUPS, RANDOM, share_in_l2
from gpujoin.plan.fetching import choose_fetch

L2_BYTES = 60 << 20
"""L2 of an H200."""
FREE_BYTES = 100 << 30
"""Memory of an H200 that is free beside inputs and output, or more."""
FILLED = 2.7e12
"""Bytes a second of setting memory; assumed: CuPy's own kernel fills at 1.7e12."""
ATOMICS = 97e9
"""Atomic operations a second that stay in L2."""
ATOMICS_OF_ONE = 0.9e9
"""Atomic operations a second on one address: what counting the rows of iv took more than its accesses, 0.5 ms, for the
heaviest key, of which 88 % of the warps have rows."""
PAIRS, EXPANDED_ROWS = 104e9, 130e9
"""Pairs, and probe rows they are made of, a second, whose rows are searched for one step after the other; measured on i
and iv, of another kernel, which wrote pairs. It foretells 4.6 ms for iii and iii', which took 4.7, and 1.2 ms for v,
which took 1.2."""
SCANNED_ROWS = 110e9
"""Probe rows a second whose counts are summed up by CuPy; measured on i, iii and iv, of which each took another 0.8 ms
for launches and waits."""

CUDF_MS = {"i": 26.9, "ii": 30.7, "iii": 46.7, "iii'": 18.0, "iv": 17.4, "v": 33.1, "vi": 18.1}
"""Measured milliseconds of cuDF's join and gathers, by the first word of a workload's name. In i, ii and v build rows
were gathered nearly in their order, as they are not any more."""

SORT_PASSES = 4
"""Passes that CuPy's sort of 32-bit slots is assumed to take; each reads and writes a slot and an 8-byte number."""

SLOT_BYTES = 8
HIT_SECTORS = 1.06
"""Sectors of a hash table that a search for a key reads that is there."""
SET_HIT_SECTORS, SET_MISS_SECTORS = 1.06, 1.25
"""Sectors that a search of a set of 8-byte keys reads, where the key is there and where not."""
_ROW, _VALUE = 4, 8
_WARP = 32
_EULER = 0.577
"""What a sum of fractions 1/n exceeds the logarithm by."""
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
        Sectors read at random places beyond L2.
    exchanged : float
        Slots exchanged there.
    lookups, atomics : float
        Accesses that stay in L2.
    rate : float
        Bytes a second of ``moved``.
    least : float
        Seconds that it takes at least, whatever it moves.
    serial : float
        Atomic operations on one address.
    """

    name: str
    moved: float
    random: float = 0.0
    exchanged: float = 0.0
    lookups: float = 0.0
    atomics: float = 0.0
    rate: float = COPY
    least: float = 0.0
    serial: float = 0.0

    @property
    def nbytes(self) -> float:
        """Bytes of device memory."""
        return self.moved + 32 * self.random + 64 * self.exchanged

    @property
    def milliseconds(self) -> float:
        """Predicted time."""
        memory = self.moved / self.rate + self.random / RANDOM + self.exchanged / EXCHANGES
        within = self.lookups / LOOKUPS + self.atomics / ATOMICS
        return 1e3 * (max(memory, within, self.least) + self.serial / ATOMICS_OF_ONE)


def steps(workload: Workload) -> Iterator[Step]:
    """The kernels of a workload, by the planner's choice."""
    kernel = expected_kernel(workload)
    build, key, columns = 1 << workload.log_build, _key_bytes(workload), _VALUE * workload.columns
    if workload.keys is Keys.TEXT:
        yield Step("codes of texts", 2 * (1 << workload.log_probe) * (16 + 4 + 16))
    yield Step("facts", build * key)
    if kernel is Kernel.UNIQUE:
        yield from _unique(workload, key, columns)
    elif kernel is Kernel.DIRECT:
        yield from _direct(workload, key, columns)
    else:
        yield from _many_to_many(workload, key, columns)


def expected_kernel(workload: Workload) -> Kernel:
    """What the planner chooses for a workload of the goal."""
    if workload.log_rows_per_key:
        return Kernel.CSR
    return Kernel.DIRECT if workload.keys is Keys.DENSE else Kernel.UNIQUE


def _unique(workload: Workload, key: int, columns: int) -> Iterator[Step]:
    build, probe = 1 << workload.log_build, 1 << workload.log_probe
    inner = workload.join is Join.INNER
    table = 2 * build * (SLOT_BYTES if inner else key)
    yield Step("empty the table", table, rate=FILLED)
    yield Step("enter build rows", build * key, **_accesses(table, build, atomic=True))
    if inner:
        joint = RowLayout.of([_VALUE] * workload.columns + [key], nullable=False).row_bytes
        facts = HashFacts(
            rows=build, key_bytes=key, payload_bytes=columns, packed=workload.columns == 1, row_bytes=columns,
            joint_bytes=joint, there=False, probe_rows=probe, padded=False, free_bytes=FREE_BYTES, l2_bytes=L2_BYTES,
        )  # fmt: skip
        if choose_fetch(facts).fetched:
            yield Step("pack build rows", build * (key + columns + joint))
            # All match: of each row a slot and, with the key, the payload is read.
            read = _accesses(table, probe * HIT_SECTORS), _accesses(joint * build, probe * math.ceil(joint / 32))
            both = {kind: read[0][kind] + read[1][kind] for kind in read[0]}
            yield Step("fetch build columns", probe * (key + 1 + columns), **both)
            return
        if workload.columns > 1:
            yield Step("pack build rows", 2 * build * columns)
        # The key of the slot's row is compared; all match, so probe columns stay as they are.
        yield Step("find probe rows", probe * (key + _ROW), **_accesses(table, probe * (HIT_SECTORS + 1)))
        gathered = _accesses(columns * build, probe * math.ceil(columns / 32))
        yield Step("gather build columns", probe * (_ROW + columns), **gathered)
    else:
        searched = SET_HIT_SECTORS * workload.match + SET_MISS_SECTORS * (1 - workload.match)
        yield Step("find probe rows", probe * (key + _ROW), **_accesses(table, probe * searched))
        kept = probe * (workload.match if workload.join is Join.SEMI else 1 - workload.match)
        yield Step("count output", probe * _ROW)
        yield Step("write output", probe * _ROW + 2 * kept * (key + columns))


def _direct(workload: Workload, key: int, columns: int) -> Iterator[Step]:
    build, probe = 1 << workload.log_build, 1 << workload.log_probe
    facts = SlotFacts(
        rows=build, slots=build, payload_bytes=columns, row_bytes=columns, packed=workload.columns == 1, there=False,
        probe_rows=probe, padded=False, free_bytes=FREE_BYTES, l2_bytes=L2_BYTES,
    )  # fmt: skip
    if not choose_fetch(facts).fetched:
        yield from by_row_number(workload, key, columns)
        return
    yield _enter_row_numbers(build, key)
    yield Step("put build rows in slots", build * (_ROW + columns), **_accesses(columns * build, build))
    yield Step("fetch build columns", probe * (key + 1 + columns), **_accesses(columns * build, probe))


def by_row_number(workload: Workload, key: int = _VALUE, columns: int = _VALUE) -> Iterator[Step]:
    """Kernels of a direct-address table of row numbers, as they were measured, but for the facts."""
    build, probe = 1 << workload.log_build, 1 << workload.log_probe
    yield _enter_row_numbers(build, key)
    yield Step("find probe rows", probe * (key + _ROW), **_accesses(_ROW * build, probe))
    yield Step("gather build columns", probe * (_ROW + columns), **_accesses(columns * build, probe))


def _enter_row_numbers(build: int, key: int) -> Step:
    return Step("enter build rows", build * (key + 2 * _ROW), **_accesses(_ROW * build, build, atomic=True))


def _many_to_many(workload: Workload, key: int, columns: int) -> Iterator[Step]:
    build, probe = 1 << workload.log_build, 1 << workload.log_probe
    pairs = probe << workload.log_rows_per_key
    table, slots = 2 * build * SLOT_BYTES, 2 * build
    yield Step("empty the table", table + _ROW * slots, rate=FILLED)
    # Sectors with a key: of the table, of the keys of its rows, and of the first places.
    touched = 32 * workload.distinct
    yield Step("enter build rows", build * (key + _ROW), **_accesses(2 * touched, build * (HIT_SECTORS + 1)))
    yield Step("count rows", build * 2 * _ROW, exchanged=build, serial=_heaviest(workload))
    yield Step("sum up counts", 4 * _ROW * slots)
    # The heaviest key has too many rows to put them in order one by one.
    yield Step("sort rows by slot", build * (SORT_PASSES * 2 * (_ROW + 8) + 8 + _ROW))
    yield Step("put build rows in order", build * (_ROW + columns), random=build)
    yield Step("find probe rows", probe * (key + 2 * _ROW), **_accesses(3 * touched, probe * (HIT_SECTORS + 2)))
    yield Step("running counts", probe * 2 * (_ROW + 8), least=probe / SCANNED_ROWS)
    # Rows of a key are neighbours: a run of 16 rows of 8 bytes touches some five sectors.
    written, read = pairs * (key + 2 * columns), probe * (8 + _ROW + key + columns)
    searched = pairs / PAIRS + probe / EXPANDED_ROWS
    yield Step("write output", written + read, random=probe * 5, lookups=pairs / 8, least=searched)


def _heaviest(workload: Workload) -> float:
    """Warps that have a row of the heaviest key; lanes of one key add to its counter together.

    Every key occurs once; the others by their frequency, which falls with the rank as in Zipf's law with exponent 1.
    """
    build, distinct = 1 << workload.log_build, workload.distinct
    share = (build - distinct) / build / (math.log(distinct) + _EULER)
    return build / _WARP * (1 - (1 - share) ** _WARP)


def _accesses(table: float, count: float, *, atomic: bool = False) -> dict[str, float]:
    """Accesses at random places of a table: what of it L2 holds stays there."""
    beyond = count * (1 - share_in_l2(table, L2_BYTES))
    if atomic:
        return {"exchanged": beyond, "atomics": count - beyond}
    return {"random": beyond, "lookups": count - beyond}


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
