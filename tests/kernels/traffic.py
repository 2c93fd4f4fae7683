"""What each kernel asks of memory, counted by the emulator, as a table of ``benchmarks/kernels/README.md``.

``python -m tests.kernels.traffic`` writes the table anew; ``test_traffic.py`` compares it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.kernels import joins
from benchmarks.kernels.ordered import OrderedWorkload, Shape, ordered_engines
from gpujoin.launch import (
    candidates,
    csr,
    direct,
    expand,
    facts,
    hashset,
    normalise,
    ranges,
    residual,
    rows,
    unique,
)
from gpujoin.launch.keys import KeyCodes
from gpujoin.launch.matches import UniqueMatches
from gpujoin.launch.normalise import KeyColumn, Kind
from gpujoin.launch.residual import ConditionColumn
from gpujoin.launch.rows import FieldColumn
from tests.kernels.emulator import EmulatedDevice, EmulatorOptions
from tests.kernels.test_candidates import Case

README = Path(__file__).resolve().parents[2] / "benchmarks" / "kernels" / "README.md"
ROWS = 4096
SEED = 20260807
_COLUMNS = "| kernel | case | asked for, bytes | requests a warp | sectors, bytes |"
_ROW = re.compile(r"^\| `(\w+)` \| ([^|]*) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", re.MULTILINE)


@dataclass(frozen=True)
class Counted:
    """What a kernel asked for, for each item.

    Attributes
    ----------
    asked_bytes : float
        That threads load, store and change atomically.
    requests : float
        Of a warp for 32 items.
    sector_bytes : float
        Of the sectors of 32 bytes in which these lie; a sector counts once for what a warp asks for at a time, or once
        for what a thread asks for one after the other.
    """

    asked_bytes: float
    requests: float
    sector_bytes: float

    def is_near(self, other: Counted) -> bool:
        """Whether both say the same, but for the order in which threads happened to enter rows."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return all(abs(one - two) <= 0.03 * max(one, two) + 0.06 for one, two in pairs)


Table = dict[tuple[str, str], Counted]
Scenario = Callable[[EmulatedDevice, np.random.Generator], dict[str, int]]
"""Launches kernels; gives those that it is about, and the items of each."""


def keys_of(device: EmulatedDevice, numbers: np.ndarray, key_bytes: int) -> KeyCodes:
    """Key codes of a width."""
    if key_bytes == 16:
        return KeyCodes(device.upload(np.stack([numbers.astype(np.uint64), ~numbers.astype(np.uint64)], 1)), None)
    return KeyCodes(device.upload(numbers.astype(f"int{8 * key_bytes}")), None)


def _sparse(rng: np.random.Generator, count: int = ROWS) -> np.ndarray:
    return rng.permutation(1 << 20)[:count]


def _facts(device: EmulatedDevice, rng: np.random.Generator) -> dict[str, int]:
    keys = keys_of(device, _sparse(rng), 8)
    facts.column_facts(device, keys)
    facts.sample(device, keys, 256)
    return {"key_range": ROWS, "sample_keys": 256}


def _direct(device: EmulatedDevice, rng: np.random.Generator) -> dict[str, int]:
    build, probe = (keys_of(device, rng.permutation(ROWS), 8) for _ in range(2))
    span = direct.Range(0, ROWS)
    table = direct.build_unique(device, build, span, present=ROWS)
    assert table is not None
    table.probe(device, probe)
    direct.build_many(device, build, span).probe(device, probe)
    direct.build_set(device, build, span).probe(device, probe)
    table.with_payload(device, [FieldColumn(build.codes)]).fetch(device, probe)
    names = (
        "direct_insert", "direct_probe", "direct_slots", "direct_ranges", "direct_enter_bits", "direct_test_bits",
        "direct_fetch",
    )  # fmt: skip
    return dict.fromkeys(names, ROWS)


def _hashed(key_bytes: int, *, hit: bool) -> Scenario:
    def run(device: EmulatedDevice, rng: np.random.Generator) -> dict[str, int]:
        numbers = _sparse(rng, 2 * ROWS)
        table = unique.build(device, keys_of(device, numbers[:ROWS], key_bytes))
        assert table is not None
        table.probe(device, keys_of(device, rng.permutation(numbers[:ROWS] if hit else numbers[ROWS:]), key_bytes))
        payload = table.with_payload(device, [FieldColumn(device.upload(numbers[:ROWS]))])
        payload.fetch(device, keys_of(device, rng.permutation(numbers[:ROWS] if hit else numbers[ROWS:]), key_bytes))
        counted = dict.fromkeys(("unique_probe", "unique_fetch"), ROWS) | ({"unique_insert": ROWS} if hit else {})
        if key_bytes < 16:
            marks = hashset.build(device, keys_of(device, numbers[:ROWS], key_bytes))
            marks.probe(device, keys_of(device, rng.permutation(numbers[:ROWS] if hit else numbers[ROWS:]), key_bytes))
            counted |= {"set_probe": ROWS} | ({"set_insert": ROWS} if hit else {})
        return counted

    return run


def _csr(device: EmulatedDevice, rng: np.random.Generator) -> dict[str, int]:
    numbers = _sparse(rng, ROWS // 2)
    table = csr.build(device, keys_of(device, rng.permutation(np.repeat(numbers, 2)), 8))
    ranges = table.probe(device, keys_of(device, rng.permutation(np.repeat(numbers, 2)), 8))
    running = expand.running_counts(device, ranges)
    expand.pairs(device, ranges, running, table.places.rows, 0, ranges.pairs)
    names = ("csr_insert", "csr_count", "csr_place", "csr_order", "csr_ranges")
    slots = int(table.places.first.shape[0]) - 1
    return dict.fromkeys(names, ROWS) | {"expand_pairs": 2 * ROWS} | dict.fromkeys(("sum_tiles", "sum_counts"), slots)


def _runs(device: EmulatedDevice, rng: np.random.Generator) -> dict[str, int]:
    """Each probe row has 16 matches."""
    numbers = _sparse(rng, ROWS // 16)
    keys = [keys_of(device, rng.permutation(np.repeat(numbers, rows)), 8) for rows in (16, 1)]
    build, probe = (joins.Side(codes, (FieldColumn(codes.codes),)) for codes in keys)
    assert sum(output.length for output in joins.inner_join(device, build, probe, joins.Kernel.CSR)) == ROWS
    return {"emit_ranges": ROWS}


def _rows(device: EmulatedDevice, rng: np.random.Generator) -> dict[str, int]:
    build, probe = ([FieldColumn(device.upload(rng.integers(0, 99, ROWS))) for _ in range(2)] for _ in range(2))
    packed = rows.pack(device, build)
    rows.gather(device, packed, device.upload(rng.integers(0, ROWS, ROWS).astype(np.int32)), may_miss=False)
    row = np.where(np.arange(ROWS) % 2 == 0, rng.permutation(ROWS), -1).astype(np.int32)
    rows.emit(device, UniqueMatches(device.upload(row), ROWS // 2), probe, packed)
    return {"pack_rows": ROWS, "gather_rows": ROWS, "count_tiles": ROWS, "emit_matches": ROWS // 2}


def _numbers(device: EmulatedDevice, rng: np.random.Generator) -> dict[str, int]:
    columns = [KeyColumn(Kind.INTEGER, device.upload(rng.integers(0, 1 << 30, ROWS))) for _ in range(2)]
    layout = normalise.layout_of(device, columns)
    assert layout is not None
    normalise.pack(device, layout, columns)
    normalise.fingerprints(device, columns, 0)
    pairs = [device.upload(rng.permutation(ROWS).astype(np.int32)) for _ in range(2)]
    normalise.compare(device, columns, pairs[0], columns, pairs[1])
    return dict.fromkeys(("pack_values", "hash_values", "verify_values"), 2 * ROWS)


def _texts(lengths: np.ndarray) -> Scenario:
    def run(device: EmulatedDevice, rng: np.random.Generator) -> dict[str, int]:
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        data = device.upload(rng.integers(1, 256, int(offsets[-1]), np.uint8))
        columns = [KeyColumn(Kind.TEXT, data, None, device.upload(offsets))]
        layout = normalise.layout_of(device, columns)
        assert layout is not None
        normalise.pack(device, layout, columns)
        normalise.fingerprints(device, columns, 0)
        rows_of = device.upload(np.arange(ROWS, dtype=np.int32))
        normalise.compare(device, columns, rows_of, columns, rows_of)
        return dict.fromkeys(("text_facts", "pack_texts", "hash_texts", "verify_texts"), ROWS)

    return run


def _residual(device: EmulatedDevice, rng: np.random.Generator) -> dict[str, int]:
    text = "from_left(pair).column<i64>(0).lt(from_right(pair).column<i64>(1))"
    columns = [ConditionColumn(device.upload(rng.integers(0, 99, ROWS)), None) for _ in range(2)]
    residual.mask(device, text, columns, ROWS)
    matches = UniqueMatches(device.upload(rng.permutation(ROWS).astype(np.int32)), ROWS)
    residual.restrict(device, text, columns, matches, ROWS, probe_is_left=True)
    return {"residual_mask": ROWS, "residual_found": ROWS}


def _candidates(device: EmulatedDevice, rng: np.random.Generator) -> dict[str, int]:
    counts, low = np.full(ROWS, 8), rng.integers(0, 8, ROWS)
    case = Case(
        ranks=rng.integers(0, 16, ROWS), start=rng.integers(0, ROWS - 8, ROWS), count=counts, low=low,
        width=np.full(ROWS, 8), placed=rng.permutation(ROWS),
    )  # fmt: skip
    given, pairs = case.on(device), int(counts.sum())
    candidates.count(device, given)
    candidates.keep(device, given, device.upload(case.placed.astype(np.int32)), 0, pairs)
    return dict.fromkeys(("count_candidates", "tile_candidates", "keep_candidates"), pairs)


def _narrowed(device: EmulatedDevice, rng: np.random.Generator) -> dict[str, int]:
    begins = np.sort(rng.integers(0, 1 << 40, ROWS))
    width = 10 * (1 << 40) // ROWS
    low = rng.integers(0, 1 << 40, ROWS)
    first, second = (
        ranges.Bounds(device.upload(low + shift), device.upload(low + shift + width)) for shift in (0, width // 2)
    )
    stretches = ranges.find(device, ranges.ordered(device.upload(begins)), None, first)
    ranges.narrow(device, ranges.ordered(device.upload(begins + width // 2)), stretches, second)
    return {"narrow_stretches": ROWS}


def _ordered(shape: Shape, names: tuple[str, ...], log_groups: int = 0) -> Scenario:
    def run(device: EmulatedDevice, rng: np.random.Generator) -> dict[str, int]:
        del rng
        workload = OrderedWorkload("", shape, 12, log_groups=log_groups)
        engine = next(engine for engine in ordered_engines(device, workload) if engine.name == "auto")
        for _ in engine.run(engine.prepare(workload.inputs(device.xp))):
            pass
        return dict.fromkeys(names, ROWS)

    return run


SCENARIOS: dict[str, Scenario] = {
    "8-byte keys": _facts,
    "8-byte keys, as many slots as rows": _direct,
    "4-byte keys, all match": _hashed(4, hit=True),
    "4-byte keys, none matches": _hashed(4, hit=False),
    "8-byte keys, all match": _hashed(8, hit=True),
    "8-byte keys, none matches": _hashed(8, hit=False),
    "16-byte keys, all match": _hashed(16, hit=True),
    "16-byte keys, none matches": _hashed(16, hit=False),
    "8-byte keys, two rows a key": _csr,
    "a column of 8 bytes a side, 16 rows a key": _runs,
    "two columns of 8 bytes a side, half match": _rows,
    "8 bytes of two columns": _numbers,
    "texts of 16 bytes": _texts(np.full(ROWS, 16)),
    "texts of 9 to 16 bytes": _texts(np.arange(ROWS) % 8 + 9),
    "two columns of 8 bytes": _residual,
    "8 candidates a row, half match": _candidates,
    "10 matches a row": _narrowed,
    "5 matches a row": _ordered(Shape.BETWEEN, ("find_stretches",)),
    "overlap, 5 matches a row": _ordered(
        Shape.OVERLAP, ("wavelet_zeros", "wavelet_split", "wavelet_count", "wavelet_pairs")
    ),
    "groups of 16": _ordered(Shape.AS_OF, ("nearest_rows",), 8),
}


def counted(cache: Path | None = None) -> Iterator[tuple[tuple[str, str], Counted]]:
    """Run all scenarios; gives kernel and case, and what was counted. ``cache`` is the emulator's folder."""
    for case, scenario in SCENARIOS.items():
        device = EmulatedDevice(EmulatorOptions(seed=SEED, cache=cache, count_traffic=True))
        for name, items in scenario(device, np.random.default_rng(SEED)).items():
            launches = [launch for launch in device.counted if launch.name == name]
            assert launches, f"{name} was not launched: {[launch.name for launch in device.counted]}"
            asked = requests = sectors = 0
            for launch in launches:
                for arrays in launch.traffic.values():
                    for counts in (counts for traffic in arrays for counts in traffic.all):
                        asked += counts.bytes
                        requests += counts.requests
                        sectors += counts.sector_bytes
            yield (name, case), Counted(asked / items, requests / (items / 32), sectors / items)


def written() -> Table:
    """The table of the page."""
    found = _ROW.findall(README.read_text(encoding="utf-8"))
    return {(name, case): Counted(*map(float, numbers)) for name, case, *numbers in found}


def main() -> None:
    """Write the table anew."""
    text = README.read_text(encoding="utf-8")
    lines = [
        f"| `{name}` | {case} | {c.asked_bytes:.1f} | {c.requests:.1f} | {c.sector_bytes:.1f} |"
        for (name, case), c in sorted(counted())
    ]
    head, _, rest = text.partition(_COLUMNS)
    _, _, after = rest.partition("\n\n")
    README.write_text("\n".join([head + _COLUMNS, "|---|---|---|---|---|", *lines, "", after]), encoding="utf-8")


if __name__ == "__main__":
    main()
