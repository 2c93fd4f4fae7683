"""Whole joins of device columns by gpujoin's kernels.

By the launchers that the engine uses, and its choices: payload is fetched with unique keys or emitted by what
a probe finds, and the output of keys that repeat is written from the counts of their matches. Rows come in the engine's
order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from gpujoin.backends.cudf.emission import OutputSide
from gpujoin.backends.cudf.fetching import fetch, fetching_table
from gpujoin.backends.cudf.packing import Fields, Packing
from gpujoin.errors import KernelArgumentError
from gpujoin.launch import csr, direct, expand, facts, hashset, rows, unique
from gpujoin.launch.device import Device
from gpujoin.launch.keys import KeyCodes, checked_keys
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
        All output rows, in the order of the probe rows.

    Raises
    ------
    KernelArgumentError
        If an array is not as described, or direct address is asked for over too wide a range.
    """
    _check(build)
    _check(probe)
    if kernel is Kernel.DIRECT:
        output = _addressed(device, build, probe)
    else:
        output = _hashed(device, build, probe) if kernel is Kernel.UNIQUE else None
    if output is not None:
        yield output
        return
    yield from _many_to_many(device, build, probe, kernel, batch_rows)


def semi_join(device: Device, build: KeyCodes, probe: Side, kernel: Kernel, *, matched: bool = True) -> Output:
    """Run a semi join, or an anti join if ``matched`` is false. Build keys may have duplicates."""
    checked_keys(build)
    _check(probe)
    if kernel is Kernel.DIRECT:
        matches = direct.build_set(device, build, _range(device, build)[0]).probe(device, probe.keys)
    else:
        matches = hashset.build(device, build).probe(device, probe.keys)
    kept, _ = rows.emit(device, matches, probe.payload, None, matched=matched)
    return Output(matches.pairs if matched else probe.keys.rows - matches.pairs, tuple(kept), ())


def _addressed(device: Device, build: Side, probe: Side) -> Output | None:
    """Join unique build keys by direct address; ``None`` if a key occurs twice."""
    keys, present = _range(device, build.keys)
    table = direct.build_unique(device, build.keys, keys, present=present)
    return None if table is None else _joined(device, table, build, probe)


def _hashed(device: Device, build: Side, probe: Side) -> Output | None:
    """Join unique build keys by hash; ``None`` if a key occurs twice."""
    table = unique.build(device, build.keys)
    return None if table is None else _joined(device, table, build, probe)


def _joined(device: Device, table: direct.UniqueTable | unique.HashTable, build: Side, probe: Side) -> Output:
    """Fetch the payload with the keys, or emit what a probe finds, as the engine does."""
    own, other = _output_side(probe), _output_side(build)
    fetching = fetching_table(device, table, probe.keys.rows, other, padded=False)
    if fetching is not None:
        made = fetch(device, fetching, probe.keys, own, other, padded=False)
        return Output(made.rows, probe.payload if made.probe is None else made.probe, made.build)
    packed = rows.pack(device, build.payload) if build.payload else None
    matches = table.probe(device, probe.keys)
    of_probe, of_build = rows.emit(device, matches, probe.payload, packed)
    return Output(matches.pairs, tuple(of_probe), tuple(of_build))


def _many_to_many(device: Device, build: Side, probe: Side, kernel: Kernel, batch_rows: int) -> Iterator[Output]:
    """Join by compressed sparse rows. The build payload is packed in that order, so rows of a key are read in a run."""
    table: csr.CsrTable | direct.ManyTable
    if kernel is Kernel.DIRECT:
        table = direct.build_many(device, build.keys, _range(device, build.keys)[0])
    else:
        table = csr.build(device, build.keys)
    packed = rows.reorder(device, rows.pack(device, build.payload), table.places.rows) if build.payload else None
    ranges = table.probe(device, probe.keys)
    running = expand.running_counts(device, ranges)
    for begin in range(0, ranges.pairs, batch_rows):
        length = min(batch_rows, ranges.pairs - begin)
        of_probe, of_build = rows.emit_ranges(device, ranges, running, probe.payload, packed, begin, length)
        yield Output(length, tuple(of_probe), tuple(of_build))


def _range(device: Device, keys: KeyCodes) -> tuple[direct.Range, int]:
    """The range of the keys, and how many they are."""
    key_facts = facts.column_facts(device, keys)
    if key_facts.low is None or key_facts.high is None:
        return direct.Range(0, 1), 0
    return direct.Range(key_facts.low, key_facts.high - key_facts.low + 1), key_facts.keys


def _output_side(side: Side) -> OutputSide:
    payload = side.payload
    fields = Fields(
        rows=side.keys.rows,
        widths=tuple(column.width for column in payload),
        nullable=tuple(column.valid is not None for column in payload),
        columns=lambda: payload,
    )
    return OutputSide(fields, True, Packing())


def _check(side: Side) -> None:
    checked_keys(side.keys)
    if side.payload and check_columns(side.payload) != side.keys.rows:
        raise KernelArgumentError(
            f"a side has {side.keys.rows} keys and {side.payload[0].rows} rows of payload; pass one of each"
        )
