"""What is joined: the axes of the benchmark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Numbers = npt.NDArray[np.int64]
Keys = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One join.

    Attributes
    ----------
    name : str
        What it is called in results.
    how : str
        ``inner``, ``semi`` or ``anti``.
    keys : callable
        From a generator and the number of probe rows to the key columns of the left (larger) and right side.
    goal : float
        Speed wanted, as a multiple of the fastest other engine's.
    """

    name: str
    how: str
    keys: Callable[[np.random.Generator, int], tuple[Keys, Keys]]
    goal: float

    def tables(self, rows: int, payload: int) -> tuple[pa.Table, pa.Table]:
        """Left and right table: key columns ``k0, …`` and so many int64 columns ``a0, …`` and ``b0, …``."""
        rng = np.random.default_rng(20_240_607)
        left, right = self.keys(rng, rows)
        return _with_payload(rng, left, "a", payload), _with_payload(rng, right, "b", payload)


def _with_payload(rng: np.random.Generator, keys: Keys, prefix: str, payload: int) -> pa.Table:
    rows = len(next(iter(keys.values())))
    columns = {f"{prefix}{i}": rng.integers(0, 1 << 40, rows) for i in range(payload)}
    return pa.table({**keys, **columns})


def scattered(numbers: Numbers) -> Numbers:
    """Distinct int64 values all over their range for distinct numbers: a finalizer that is a bijection."""
    mixed = numbers.astype(np.uint64)
    for prime in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
        mixed ^= mixed >> np.uint64(31)
        mixed *= np.uint64(prime)
    return (mixed ^ mixed >> np.uint64(31)).view(np.int64)


def texts(numbers: Numbers, width: int = 16) -> pa.Array:
    """Strings of a fixed width, distinct for distinct numbers."""
    digits = (numbers[:, None] // 10 ** np.arange(width - 1, -1, -1, dtype=np.int64)) % 10
    data = (digits + ord("0")).astype(np.uint8)
    offsets = np.arange(len(numbers) + 1, dtype=np.int32) * width
    return pa.Array.from_buffers(
        pa.string(), len(numbers), [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    )


def varied_texts(numbers: Numbers) -> pa.Array:
    """Strings of 12 to 40 bytes."""
    import polars as pl

    text = pl.Series(numbers).cast(pl.String).str.zfill(12)
    tail = pl.Series(["-abcdefghijklmnopqrstuvwxyz0"[: n % 29] for n in range(29)]).gather(numbers % 29)
    return (text + tail).to_arrow(compat_level=pl.CompatLevel.oldest()).cast(pa.string())


def _foreign(rng: np.random.Generator, rows: int, distinct: int) -> Numbers:
    return rng.integers(0, distinct, rows)


def unique(share: int) -> Callable[[np.random.Generator, int], tuple[Keys, Keys]]:
    """Sparse unique right keys, one for every ``share`` left rows, each left row with a match."""

    def make(rng: np.random.Generator, rows: int) -> tuple[Keys, Keys]:
        distinct = rows // share
        left = rng.permutation(rows) if share == 1 else _foreign(rng, rows, distinct)
        return {"k0": scattered(left)}, {"k0": scattered(rng.permutation(distinct))}

    return make


def dense(share: int) -> Callable[[np.random.Generator, int], tuple[Keys, Keys]]:
    """A fact table and a shuffled dimension with keys 0, 1, …, a ``share``-th of its size."""

    def make(rng: np.random.Generator, rows: int) -> tuple[Keys, Keys]:
        distinct = max(1, rows // share)
        return {"k0": _foreign(rng, rows, distinct)}, {"k0": rng.permutation(distinct)}

    return make


def many_to_many(rng: np.random.Generator, rows: int) -> tuple[Keys, Keys]:
    """Sparse keys, each twice on the right and ten times on the left, on average."""
    return {"k0": scattered(_foreign(rng, rows, rows // 10))}, {"k0": scattered(_foreign(rng, rows // 5, rows // 10))}


def dense_many_to_many(rng: np.random.Generator, rows: int) -> tuple[Keys, Keys]:
    """The same with dense keys."""
    return {"k0": _foreign(rng, rows, rows // 10)}, {"k0": _foreign(rng, rows // 5, rows // 10)}


def strings(
    make_text: Callable[[Numbers], pa.Array],
) -> Callable[[np.random.Generator, int], tuple[Keys, Keys]]:
    """Unique right strings."""

    def make(rng: np.random.Generator, rows: int) -> tuple[Keys, Keys]:
        distinct = rows // 10
        return (
            {"k0": make_text(_foreign(rng, rows, distinct) * 977)},
            {"k0": make_text(rng.permutation(distinct) * 977)},
        )

    return make


def two_columns(rng: np.random.Generator, rows: int) -> tuple[Keys, Keys]:
    """Two sparse int64 columns that only together are unique."""
    distinct = rows // 10

    def pair(numbers: Numbers) -> Keys:
        return {"k0": scattered(numbers // 3), "k1": scattered(numbers * 5 % distinct)}

    return pair(_foreign(rng, rows, distinct)), pair(rng.permutation(distinct))


def two_small_columns(rng: np.random.Generator, rows: int) -> tuple[Keys, Keys]:
    """Two dense int64 columns."""
    distinct = rows // 10

    def pair(numbers: Numbers) -> Keys:
        return {"k0": numbers // 1000, "k1": numbers % 1000}

    return pair(_foreign(rng, rows, distinct)), pair(rng.permutation(distinct))


def half(rng: np.random.Generator, rows: int) -> tuple[Keys, Keys]:
    """Sparse unique right keys; half of the left rows have a match."""
    distinct = rows // 10
    return {"k0": scattered(_foreign(rng, rows, distinct))}, {"k0": scattered(rng.permutation(distinct)[::2])}


CASES = (
    Case("int64, unique, 1:10", "inner", unique(10), 1.0),
    Case("int64, unique, 1:1", "inner", unique(1), 1.0),
    Case("int64, many-to-many", "inner", many_to_many, 1.0),
    Case("int64, many-to-many, dense", "inner", dense_many_to_many, 1.0),
    Case("dimension 1:10", "inner", dense(10), 3.0),
    Case("dimension 1:100", "inner", dense(100), 3.0),
    Case("dimension 1:1000", "inner", dense(1000), 3.0),
    Case("string, 16 bytes", "inner", strings(texts), 0.8),
    Case("string, 12-40 bytes", "inner", strings(varied_texts), 0.8),
    Case("two int64, sparse", "inner", two_columns, 0.8),
    Case("two int64, dense", "inner", two_small_columns, 0.8),
    Case("int64, semi", "semi", half, 0.8),
    Case("int64, anti", "anti", half, 0.8),
)
