"""Reads the payload of unique build keys together with the keys, if that is faster.

A probe of a table of row numbers finds the build row of each probe row, by which columns are gathered. Where all that
is wanted is the output of an inner or left join, a table that has the payload itself answers without numbers::

    build  k w    slots of w, keys 3 to 5      probe  k     fetched  w
           5 x    y  -  x                             5              x
           3 y                                        4              null, or left out
                                                      3              y

Nothing here imports CuPy; see :mod:`gpujoin.backends.cudf.arrays`.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from gpujoin.backends.cudf.choices import HashFacts, SlotFacts, fetches_payload
from gpujoin.backends.cudf.emission import OutputColumns, OutputSide
from gpujoin.backends.cudf.index import Index, Keys
from gpujoin.backends.cudf.kernels import UniqueMatcher
from gpujoin.backends.cudf.packing import FetchingTable, Fields, make_once, row_bytes, wait_for
from gpujoin.errors import KernelArgumentError, KernelCompileError
from gpujoin.launch import direct, unique
from gpujoin.launch import rows as packed_rows
from gpujoin.launch.device import Device
from gpujoin.launch.keys import KeyCodes
from gpujoin.launch.rows import FieldColumn, RowLayout
from gpujoin.logs import log

NumberTable: TypeAlias = direct.UniqueTable | unique.HashTable
"""A table of row numbers that a table with payload can be made of."""


def output_by_keys(
    index: Index, keys: Keys, own: OutputSide, other: OutputSide, *, padded: bool
) -> OutputColumns | None:
    """Make the output of an inner join, or with ``padded`` of a left one, without probing the index.

    ``None``: the index must be probed, because that is faster, keys repeat or are hashed, a column is not of
    fixed width, tables of payload do not fit, or kernels do not compile. Raises ``DeviceMemoryError`` if the codes of
    the keys do not fit.
    """
    device, matcher = index.kernels, index.matcher
    if device is None or not index.coding.exact or not isinstance(matcher, UniqueMatcher):
        return None
    if not isinstance(matcher.table, direct.UniqueTable | unique.HashTable) or not (own.fixed and other.fixed):
        return None
    table = fetching_table(device, matcher.table, len(keys), other, padded=padded)
    if table is None:
        return None
    codes = index.coding.codes(keys)
    try:
        return fetch(device, table, codes, own, other, padded=padded)
    except KernelCompileError as problem:
        log.warning("a kernel does not compile, so payload is gathered by row numbers: %s", problem)
        other.packing.refused = True
    except MemoryError as problem:
        log.debug("fetched columns do not fit: %s", problem)
    return None


def fetching_table(
    device: Device, numbers: NumberTable, probe_rows: int, build: OutputSide, *, padded: bool
) -> FetchingTable | None:
    """Make the table with the payload of a build side, once, when it pays.

    ``probe_rows`` are the rows that will be probed now; ``None`` as in :func:`output_by_keys`.
    """
    fields, packing = build.fields, build.packing
    packed_bytes = row_bytes(fields)
    if not fields.rows or not fields.widths or packed_bytes is None:
        return None
    with packing.lock:
        if packing.refused:
            return None
        packing.probed += probe_rows
        table = packing.fetching_of(numbers)
        common: dict[str, Any] = {
            "rows": fields.rows,
            "payload_bytes": sum(fields.widths),
            "row_bytes": packed_bytes,
            "packed": packing.packed is not None or (len(fields.widths) == 1 and not fields.nullable[0]),
            "there": table is not None,
            "probe_rows": packing.probed,
            "padded": padded,
            "free_bytes": device.free_bytes,
            "l2_bytes": device.properties.l2_bytes,
        }
        if isinstance(numbers, direct.UniqueTable):
            choice = fetches_payload(SlotFacts(**common, slots=numbers.keys.slots))
        else:
            joint = _joint_bytes(numbers, fields.widths, nullable=any(fields.nullable))
            if joint is None:
                return None
            choice = fetches_payload(HashFacts(**common, key_bytes=numbers.keys.key_bytes, joint_bytes=joint))
        log.debug("payload %s keys: %s", "with" if choice.yes else "apart from", choice.reason)
        if not choice.yes:
            return None
        if table is None:
            table = make_once(packing, lambda: _with_payload(device, numbers, fields))
            packing.fetching = None if table is None else (numbers, table)
        return table


def fetch(
    device: Device, table: FetchingTable, codes: KeyCodes, own: OutputSide, other: OutputSide, *, padded: bool
) -> OutputColumns:
    """Fetch the build columns of probe rows; those without a match are null or, unless ``padded``, left out."""
    columns, marks, pairs = table.fetch(device, codes)
    nullable = other.fields.nullable
    valid = marks if padded and pairs < codes.rows else None
    columns = [c if null else FieldColumn(c.values, valid) for c, null in zip(columns, nullable, strict=True)]
    if padded or pairs == codes.rows:
        return OutputColumns(codes.rows, None, tuple(columns))
    probe = own.fields.columns()
    emitted, _ = packed_rows.emit(device, direct.matches_of(device, marks, pairs), [*probe, *columns], None)
    return OutputColumns(pairs, tuple(emitted[: len(probe)]), tuple(emitted[len(probe) :]))


def _with_payload(device: Device, numbers: NumberTable, fields: Fields) -> FetchingTable:
    table = numbers.with_payload(device, fields.columns())
    wait_for(device, table.packed)
    return table


def _joint_bytes(numbers: unique.HashTable, widths: tuple[int, ...], *, nullable: bool) -> int | None:
    """Bytes of a packed row of payload and key; ``None`` if there are too many."""
    key = () if numbers.keys.key_bytes == unique.KEY_IN_SLOT else (numbers.keys.key_bytes,)
    try:
        return RowLayout.from_widths([*widths, *key], nullable=nullable).row_bytes
    except KernelArgumentError:
        return None
