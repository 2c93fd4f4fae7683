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
from gpujoin.launch.device import Array, Device
from gpujoin.launch.keys import KeyCodes, checked_keys
from gpujoin.launch.matches import Ranges, UniqueMatches
from gpujoin.launch.rows import FieldColumn, check_columns
from gpujoin.plan.algorithm import HashFacts, SlotFacts, payload_in_slots, payload_with_keys

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
    keys, there = _range(device, build.keys)
    if build.payload and payload_in_slots(_slot_facts(device, build, probe, keys, there)):
        table = direct.build_payload(device, build.keys, build.payload, keys)
        return None if table is None else _fetched(device, table, probe)
    addressed = direct.build_unique(device, build.keys, keys)
    if addressed is None:
        return None
    return _emitted(device, addressed.probe(device, probe.keys), probe.payload, _packed(device, build.payload))


def _slot_facts(device: Device, build: Side, probe: Side, keys: direct.Range, there: int) -> SlotFacts:
    return SlotFacts(
        slots=keys.slots,
        keys=there,
        row_bytes=rows.layout_of(build.payload).row_bytes,
        probe_rows=probe.keys.rows,
        l2_bytes=device.properties.l2_bytes,
    )


def _fetched(device: Device, table: direct.PayloadTable | unique.PayloadTable, probe: Side) -> Output:
    """Fetch build columns for all probe rows; where not all of these have a match, those that have one are kept."""
    columns, marks, pairs = table.fetch(device, probe.keys)
    kept = [*probe.payload, *columns]
    if pairs < probe.keys.rows:
        kept, _ = rows.emit(device, direct.marked(device, marks, pairs), kept, None)
    own = len(probe.payload)
    return Output(pairs, tuple(kept[:own]), tuple(kept[own:]))


def _hashed(device: Device, build: Side, probe: Side) -> Output | None:
    """Join unique build keys by hash; ``None`` if a key occurs twice."""
    if build.payload and payload_with_keys(_hash_facts(device, build, probe)):
        fetching = unique.build_payload(device, build.keys, build.payload)
        return None if fetching is None else _fetched(device, fetching, probe)
    table = unique.build(device, build.keys)
    if table is None:
        return None
    return _emitted(device, table.probe(device, probe.keys), probe.payload, _packed(device, build.payload))


def _hash_facts(device: Device, build: Side, probe: Side) -> HashFacts:
    try:
        joint = rows.layout_of([*build.payload, FieldColumn(build.keys.codes)]).row_bytes
    except KernelArgumentError:
        joint = None
    return HashFacts(
        rows=build.keys.rows,
        key_bytes=build.keys.key_bytes,
        payload_bytes=sum(column.width for column in build.payload),
        packed=len(build.payload) == 1 and build.payload[0].valid is None,
        row_bytes=rows.layout_of(build.payload).row_bytes,
        joint_bytes=joint,
        probe_rows=probe.keys.rows,
        l2_bytes=device.properties.l2_bytes,
    )


def _many_to_many(device: Device, build: Side, probe: Side, kernel: Kernel, batch_rows: int) -> Iterator[Output]:
    """Join by compressed sparse rows. The build payload is packed in that order, so rows of a key are read in a run."""
    ranges, place = _ranges(device, build.keys, probe.keys, kernel)
    packed = rows.pack(device, build.payload, place) if build.payload else None
    running = expand.running_counts(device, ranges)
    for begin in range(0, ranges.pairs, batch_rows):
        length = min(batch_rows, ranges.pairs - begin)
        of_probe, of_build = rows.emit_ranges(device, ranges, running, probe.payload, packed, begin, length)
        yield Output(length, tuple(of_probe), tuple(of_build))


def _ranges(device: Device, build: KeyCodes, probe: KeyCodes, kernel: Kernel) -> tuple[Ranges, Array]:
    """The matches of each probe row as places, and the place of each build row."""
    if kernel is Kernel.DIRECT:
        keys, _ = _range(device, build)
        places = csr.places_of_rows(device, direct.slots_of(device, build, keys), keys.slots)
        return direct.find_ranges(device, keys, places.first, probe), places.place
    table, slot_of = csr.enter(device, build)
    places = csr.places_of_rows(device, slot_of, int(table.shape[0]))
    return csr.find_ranges(device, build, table, places.first, probe), places.place


def _range(device: Device, keys: KeyCodes) -> tuple[direct.Range, int]:
    """The range of the keys, and how many they are."""
    key_facts = facts.column_facts(device, keys)
    if key_facts.low is None or key_facts.high is None:
        return direct.Range(0, 1), 0
    return direct.Range(key_facts.low, key_facts.high - key_facts.low + 1), key_facts.keys


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
