"""Whole joins of device columns by gpujoin's kernels.

The engine asks for pairs and gathers payload by maps, for all join types and in the order of the CPU backend. Where
neither matters, the output can be written in one pass over the matches: probe columns as they are, build columns from
packed rows. Output rows are then in no particular order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from gpujoin.errors import KernelArgumentError
from gpujoin.launch import csr, direct, expand, facts, hashset, rows, unique
from gpujoin.launch.device import Device
from gpujoin.launch.keys import KeyCodes, checked_keys
from gpujoin.launch.matches import Places, Ranges, UniqueMatches
from gpujoin.launch.rows import FieldColumn, check_columns

BATCH_ROWS = 1 << 27
"""Output rows that a many-to-many join makes at a time."""


class Kernel(Enum):
    """Kernels that join."""

    DIRECT = "direct"
    UNIQUE = "unique"
    CSR = "csr"


@dataclass(frozen=True)
class Side:
    """One side of a join, on the device.

    Attributes
    ----------
    keys : KeyCodes
        Codes of its keys.
    payload : tuple of FieldColumn
        Columns of the side that go to the output.
    """

    keys: KeyCodes
    payload: tuple[FieldColumn, ...]


@dataclass(frozen=True)
class Output:
    """Rows of the output."""

    length: int
    probe: tuple[FieldColumn, ...]
    build: tuple[FieldColumn, ...]
    """A column for each payload column of the side."""


def inner_join(
    device: Device, build: Side, probe: Side, kernel: Kernel, batch_rows: int = BATCH_ROWS
) -> Iterator[Output]:
    """Run an inner join.

    Parameters
    ----------
    build, probe : Side
        The two sides. Duplicate build keys are detected with ``DIRECT`` and ``UNIQUE`` too, and joined
        by the kernels for duplicates.
    kernel : Kernel
        Kernels to use.
    batch_rows : int
        Output rows that are made at a time, where keys have duplicates.

    Yields
    ------
    Output
        All output rows, in no particular order.

    Raises
    ------
    KernelArgumentError
        If an array is not as described, or direct address is asked for over too wide a range.
    """
    _check(build)
    _check(probe)
    matches = _unique_rows(device, build.keys, probe.keys, kernel)
    if matches is not None:
        yield _emitted(device, matches, probe.payload, _packed(device, build.payload))
        return
    yield from _many_to_many(device, build, probe, kernel, batch_rows)


def semi_join(device: Device, build: KeyCodes, probe: Side, kernel: Kernel, *, matched: bool = True) -> Output:
    """Run a semi join, or an anti join if ``matched`` is false. Build keys may have duplicates."""
    checked_keys(build)
    _check(probe)
    if kernel is Kernel.DIRECT:
        matches = direct.build_set(device, build, _range(device, build)).probe(device, probe.keys)
    else:
        matches = hashset.build(device, build).probe(device, probe.keys)
    kept, _ = rows.emit(device, matches, probe.payload, None, matched=matched)
    return Output(matches.pairs if matched else probe.keys.rows - matches.pairs, tuple(kept), ())


def _unique_rows(device: Device, build: KeyCodes, probe: KeyCodes, kernel: Kernel) -> UniqueMatches | None:
    """Find the build row of each probe row; ``None`` if a build key occurs twice."""
    if kernel is Kernel.DIRECT:
        addressed = direct.build_unique(device, build, _range(device, build))
        return None if addressed is None else addressed.probe(device, probe)
    if kernel is Kernel.UNIQUE:
        hashed = unique.build(device, build)
        return None if hashed is None else hashed.probe(device, probe)
    return None


def _many_to_many(device: Device, build: Side, probe: Side, kernel: Kernel, batch_rows: int) -> Iterator[Output]:
    """Join by compressed sparse rows. The build payload is packed in that order, so rows of a key are read in a run."""
    ranges, places = _ranges(device, build.keys, probe.keys, kernel)
    packed = None
    if build.payload:
        packed = rows.pack(device, build.payload, order=places.rows)
    of_probe = None if not probe.payload else rows.pack(device, probe.payload)
    running = expand.running_counts(device, ranges)
    for begin in range(0, ranges.pairs, batch_rows):
        length = min(batch_rows, ranges.pairs - begin)
        probe_row, place = expand.pairs(device, ranges, running, None, begin, length)
        sides = [
            () if p is None else tuple(rows.gather(device, p, at, may_miss=False))
            for p, at in ((of_probe, probe_row), (packed, place))
        ]
        yield Output(length, sides[0], sides[1])


def _ranges(device: Device, build: KeyCodes, probe: KeyCodes, kernel: Kernel) -> tuple[Ranges, Places]:
    if kernel is Kernel.DIRECT:
        addressed = direct.build_many(device, build, _range(device, build), ordered=False)
        return addressed.probe(device, probe), addressed.places
    table = csr.build(device, build, ordered=False)
    return table.probe(device, probe), table.places


def _range(device: Device, keys: KeyCodes) -> direct.Range:
    key_facts = facts.column_facts(device, keys)
    if key_facts.low is None or key_facts.high is None:
        return direct.Range(0, 1)
    return direct.Range(key_facts.low, key_facts.high - key_facts.low + 1)


def _packed(device: Device, payload: Sequence[FieldColumn]) -> rows.PackedRows | None:
    return rows.pack(device, payload) if payload else None


def _emitted(
    device: Device, matches: UniqueMatches, probe: Sequence[FieldColumn], build: rows.PackedRows | None
) -> Output:
    of_probe, of_build = rows.emit(device, matches, probe, build)
    return Output(matches.pairs, tuple(of_probe), tuple(of_build))


def _check(side: Side) -> None:
    checked_keys(side.keys)
    if side.payload and check_columns(side.payload) != side.keys.rows:
        raise KernelArgumentError(
            f"a side has {side.keys.rows} keys and {side.payload[0].rows} rows of payload; pass one of each"
        )
