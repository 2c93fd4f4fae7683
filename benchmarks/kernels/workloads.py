"""What is joined: the workloads, their inputs, and the least memory traffic that each could take."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from benchmarks.kernels import data

SMALLER = int(os.environ.get("GPU_CHECK_SMALLER", "0"))
"""Powers of two by which workloads have fewer rows, unless a program is told otherwise: for rehearsals."""

KEY_BYTES = 8
TEXT_BYTES = 16
VALUE_BYTES = 8


class Join(Enum):
    """What is returned."""

    INNER = "inner"
    SEMI = "semi"
    ANTI = "anti"


class Keys(Enum):
    """How keys lie in their type."""

    DENSE = "dense"
    SPARSE = "sparse"
    TEXT = "16-byte text"


@dataclass(frozen=True)
class Workload:
    """One join.

    Attributes
    ----------
    name : str
        For people.
    log_build, log_probe : int
        Rows of the two sides, as powers of two.
    columns : int
        Payload columns a side besides the key.
    join : Join
        What is returned.
    keys : Keys
        How they lie.
    log_rows_per_key : int
        Build rows that share a key, on average, as a power of two.
    zipf : float
        Exponent of the frequencies of the keys, of build rows where they have duplicates, else of probe rows.
    match : float
        Share of probe rows that have a match.
    """

    name: str
    log_build: int
    log_probe: int
    columns: int = 1
    join: Join = Join.INNER
    keys: Keys = Keys.SPARSE
    log_rows_per_key: int = 0
    zipf: float = 0.0
    match: float = 1.0

    def smaller(self, bits: int) -> Workload:
        """The same with fewer rows a side, by that many powers of two."""
        distinct = max(2, self.log_build - self.log_rows_per_key - bits)
        return replace(
            self,
            log_build=distinct + self.log_rows_per_key,
            log_probe=max(2, self.log_probe - bits),
        )

    @property
    def distinct(self) -> int:
        """Keys of the build side."""
        return 1 << (self.log_build - self.log_rows_per_key)

    def inputs(self, xp: Any) -> Inputs:
        """See :func:`inputs`."""
        return inputs(xp, self)

    def floor_bytes(self, output_rows: int) -> int:
        """Bytes of reading every input once and writing the output once."""
        key = TEXT_BYTES if self.keys is Keys.TEXT else KEY_BYTES
        columns = self.columns * VALUE_BYTES
        build = (1 << self.log_build) * (key + (columns if self.join is Join.INNER else 0))
        out = key + columns * (2 if self.join is Join.INNER else 1)
        return build + (1 << self.log_probe) * (key + columns) + output_rows * out


def named() -> Iterator[Workload]:
    """The workloads that the goal is about."""
    yield Workload("i: unique, 1 payload", 27, 27)
    yield Workload("ii: unique, 4 payloads", 27, 27, columns=4)
    yield Workload("iii: dense dimension", 24, 28, keys=Keys.DENSE)
    yield Workload("iii': small dimension", 16, 28, keys=Keys.DENSE)
    yield Workload("iv: zipf 1, 16 rows a key", 24, 24, log_rows_per_key=4, zipf=1.0)
    yield Workload("v: 16-byte text", 26, 26, keys=Keys.TEXT)
    yield Workload("vi: semi, half match", 27, 27, join=Join.SEMI, match=0.5)
    yield Workload("vi: anti, half match", 27, 27, join=Join.ANTI, match=0.5)


def sweeps() -> Iterator[Workload]:
    """One axis at a time, on fewer rows; sizes of a small dimension against all of them."""
    rows = 25
    for log_build in (10, 20):
        yield Workload(f"iii': dimension of 2^{log_build}", log_build, 28, keys=Keys.DENSE)
    for match in (0.1, 0.5, 1.0):
        yield Workload(f"match {match:g}", rows, rows, match=match)
    for zipf in (0.0, 0.5, 1.0, 1.5):
        yield Workload(f"probe zipf {zipf:g}", rows, rows, zipf=zipf)
    for columns in (1, 4, 8):
        yield Workload(f"{columns} payloads", rows, rows, columns=columns)


@dataclass(frozen=True)
class Inputs:
    """Columns of the two sides: keys as int64, or for texts as two uint64 words, and payload."""

    build_keys: Any
    probe_keys: Any
    build_payload: tuple[Any, ...]
    probe_payload: tuple[Any, ...]

    @property
    def nbytes(self) -> int:
        """Size of all columns."""
        columns = (self.build_keys, self.probe_keys, *self.build_payload, *self.probe_payload)
        return sum(int(column.nbytes) for column in columns)


def inputs(xp: Any, workload: Workload) -> Inputs:
    """Make the columns of a workload on the device."""
    bits = workload.log_build - workload.log_rows_per_key
    build_rows, probe_rows = 1 << workload.log_build, 1 << workload.log_probe
    if workload.log_rows_per_key:
        # Every key occurs, whatever the skew: first all of them once, then by their frequency. With skew on both
        # sides the output would be of another order of magnitude, so the probe side is uniform.
        rest = build_rows - workload.distinct
        every = data.numbers(xp, 0, workload.distinct)
        more = data.random_ranks(xp, rest, workload.distinct, workload.zipf, 1)
        build = data.shuffled(xp, xp.concatenate([every, more]), bits)
        build = build[data.shuffled(xp, data.numbers(xp, 0, build_rows), workload.log_build).astype(xp.int64)]
        probe = data.random_ranks(xp, probe_rows, workload.distinct, 0.0, 2)
    else:
        build = data.shuffled(xp, data.numbers(xp, 0, build_rows), bits)
        if workload.zipf == 0 and probe_rows <= build_rows and workload.match == 1:
            # Another order than the build side's, or matches would lie row by row beside each other.
            probe = data.shuffled(xp, data.numbers(xp, 0, probe_rows), bits, seed=1)
        else:
            probe = data.random_ranks(xp, probe_rows, workload.distinct, workload.zipf, 2)
            probe = data.shuffled(xp, probe, bits)
    if workload.match < 1:
        turn = data.mixed(xp, data.numbers(xp, 1 << 50, probe_rows)) >> xp.uint64(44)
        missing = turn >= xp.uint64(int(workload.match * (1 << 20)))
        probe = xp.where(missing, probe + xp.uint64(workload.distinct), probe)
    sides = [
        _text(xp, keys)
        if workload.keys is Keys.TEXT
        else (keys.view(xp.int64) if workload.keys is Keys.DENSE else data.sparse(xp, keys))
        for keys in (build, probe)
    ]
    wanted = range(workload.columns)
    of_build = [data.payload(xp, build_rows, c, 1) for c in wanted] if workload.join is Join.INNER else []
    return Inputs(sides[0], sides[1], tuple(of_build), tuple(data.payload(xp, probe_rows, c, 2) for c in wanted))


def _text(xp: Any, keys: Any) -> Any:
    """16 bytes a key, none of them zero, as two words."""
    ones = xp.uint64(0x0101010101010101)
    words = xp.empty((int(keys.shape[0]), 2), dtype=xp.uint64)
    # Four bits of the key in each byte: 64 bits fill the 16 bytes.
    for word in range(2):
        half = (keys >> xp.uint64(32 * word)) & xp.uint64(0xFFFFFFFF)
        spread = xp.zeros_like(half)
        for nibble in range(8):
            spread |= ((half >> xp.uint64(4 * nibble)) & xp.uint64(0xF)) << xp.uint64(8 * nibble)
        words[:, word] = spread + ones * xp.uint64(ord("a"))
    return words
