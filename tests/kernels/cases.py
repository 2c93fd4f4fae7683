"""Key columns for kernels, and what a join of them must find: row by row, in Python."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpujoin.launch.device import Array, Device
from gpujoin.launch.direct import matches_of
from gpujoin.launch.keys import KeyCodes
from gpujoin.launch.rows import FieldColumn, emit
from gpujoin.launch.source import kernel_source

SIZES = (0, 1, 31, 32, 33, 255, 256, 257, 1023, 1024, 1025, 2049)
"""Row counts around those of a warp, a block and a tile."""

DTYPES: dict[int, Any] = {4: np.int32, 8: np.int64, 16: np.uint64}


_MASK = (1 << 64) - 1


def mix(bits: int) -> int:
    """Mix a number as ``key.cuh`` does."""
    bits = (bits + 0x9E3779B97F4A7C15) & _MASK
    bits = ((bits ^ bits >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    bits = ((bits ^ bits >> 27) * 0x94D049BB133111EB) & _MASK
    return bits ^ bits >> 31


@dataclass(frozen=True)
class Side:
    """Key codes on the host; those of 16 bytes as rows of two words."""

    codes: npt.NDArray[Any]
    valid: npt.NDArray[np.bool_] | None = None

    @property
    def rows(self) -> int:
        return len(self.codes)

    def on(self, device: Device) -> KeyCodes:
        valid = None if self.valid is None else device.upload(self.valid)
        return KeyCodes(device.upload(self.codes), valid)

    def labels(self) -> list[Any]:
        """Hashable keys, ``None`` where a row matches nothing."""
        plain = [tuple(k) if isinstance(k, list) else k for k in self.codes.tolist()]
        if self.valid is None:
            return plain
        return [k if v else None for k, v in zip(plain, self.valid.tolist(), strict=True)]


def codes_of(numbers: npt.NDArray[np.int64], key_bytes: int) -> npt.NDArray[Any]:
    """Numbers as codes; wide ones differ sometimes in the low word alone, sometimes in the high one."""
    if key_bytes < 16:
        return numbers.astype(DTYPES[key_bytes])
    words = np.empty((len(numbers), 2), np.uint64)
    words[:, 0] = (numbers // 2).astype(np.uint64)
    words[:, 1] = (numbers % 2).astype(np.uint64)
    return words


def extremes(key_bytes: int) -> npt.NDArray[Any]:
    """The smallest and largest keys, zero, and all bits set."""
    if key_bytes == 16:
        top = (1 << 64) - 1
        return np.array([[0, 0], [top, top], [0, top], [top, 0], [1, 0], [1 << 63, 1 << 63]], np.uint64)
    info = np.iinfo(DTYPES[key_bytes])
    return np.array([info.min, info.min + 1, -1, 0, 1, info.max - 1, info.max], DTYPES[key_bytes])


def side(
    rng: np.random.Generator, shape: str, rows: int, key_bytes: int, *, spread: int = 1, nulls: float = 0.0
) -> Side:
    """A column of keys of a named distribution.

    ``unique``: each key once, in random order; ``some``: each about three times; ``one``: a single key;
    ``zipf``: a hot key and a long tail; ``extremes``: the ends of the type.
    """
    if shape == "unique":
        codes = codes_of(rng.permutation(rows).astype(np.int64) * spread, key_bytes)
    elif shape == "some":
        codes = codes_of(rng.integers(0, max(1, rows // 3), rows) * spread, key_bytes)
    elif shape == "one":
        codes = codes_of(np.full(rows, 7 * spread), key_bytes)
    elif shape == "zipf":
        codes = codes_of(np.minimum(rng.zipf(1.5, rows), 10_000) * spread, key_bytes)
    else:
        assert shape == "extremes"
        ends = extremes(key_bytes)
        codes = ends[rng.integers(0, len(ends), rows)]
    valid = rng.random(rows) >= nulls if nulls else None
    return Side(np.ascontiguousarray(codes), valid)


def matches(build: Side, probe: Side) -> list[list[int]]:
    """Build rows of each probe row, ascending."""
    rows_of: dict[Any, list[int]] = defaultdict(list)
    for row, key in enumerate(build.labels()):
        if key is not None:
            rows_of[key].append(row)
    return [[] if key is None else rows_of.get(key, []) for key in probe.labels()]


def one_of(matches: list[list[int]]) -> list[int]:
    """Matches of which there is at most one, −1 for none."""
    assert all(len(rows) < 2 for rows in matches)
    return [rows[0] if rows else -1 for rows in matches]


def payloads(device: Device, rows: int) -> list[list[FieldColumn]]:
    """Columns with the numbers of rows, from one: one of 16 bytes, and the same behind one of 2 bytes with nulls."""
    number = np.arange(1, rows + 1)
    narrow = FieldColumn(device.upload(number.astype(np.uint16)), device.upload(number % 3 != 0))
    wide = FieldColumn(device.upload(np.stack([number, -number], axis=1)))
    return [[narrow, wide], [wide]]


def check_fetched(device: Device, made: tuple[list[FieldColumn], Array, int], expected: list[list[int]]) -> None:
    """Columns of :func:`payloads` that were fetched for probe rows, against the build row of each, if it has one."""
    columns, marks, pairs = made
    assert device.download(marks).tolist() == [bool(rows) for rows in expected]
    assert pairs == sum(map(len, expected))
    number = np.array([rows[0] + 1 for rows in expected if rows], np.int64)
    kept, _ = emit(device, matches_of(device, marks, pairs), columns, None)
    assert (device.download(kept[-1].values) == np.stack([number, -number], axis=1)).all()
    if len(kept) == 2:
        assert (device.download(kept[0].values) == number.astype(np.uint16)).all()
        assert kept[0].valid is not None
        assert (device.download(kept[0].valid) == (number % 3 != 0)).all()


def colliding(bits: int, *names: str) -> dict[str, str]:
    """Sources in which hashes have only their first ``bits`` bits."""
    mask = ((1 << 64) - 1) ^ ((1 << (64 - bits)) - 1)
    changed = {}
    for name in names:
        text = kernel_source(name)
        assert "#define HASH_MASK 0xffffffffffffffffull" in text
        changed[name] = text.replace("#define HASH_MASK 0xffffffffffffffffull", f"#define HASH_MASK {mask:#x}ull")
    return changed
