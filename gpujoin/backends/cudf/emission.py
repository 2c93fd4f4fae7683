"""Writes the output of a join with at most one match a probe row in one pass, where the planner chooses that.

Nothing here imports CuPy; see :mod:`gpujoin.backends.cudf.arrays`.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpujoin.backends.cudf.packing import Fields, Packing, packed_once, row_bytes
from gpujoin.errors import KernelCompileError
from gpujoin.launch import rows as packed_rows
from gpujoin.launch.device import Device
from gpujoin.launch.matches import UniqueMatches
from gpujoin.launch.rows import FieldColumn
from gpujoin.logs import log
from gpujoin.model.gathering import ChooseEmission, EmissionFacts, EmissionMethod, GatherFacts


@dataclass(frozen=True)
class Emitted:
    """The output columns of both sides."""

    rows: int
    probe: tuple[FieldColumn, ...]
    build: tuple[FieldColumn, ...]
    """Columns of each side. Values of null rows are arbitrary."""


@dataclass(frozen=True)
class EmittedSide:
    """The columns of one side that go to the output."""

    fields: Fields
    fixed: bool
    """Whether all columns have fixed width."""
    packing: Packing
    """Packed rows of the frame that the columns are from."""


def emitted(
    device: Device,
    matches: UniqueMatches,
    probe: EmittedSide,
    build: EmittedSide | None,
    choose: ChooseEmission,
    *,
    matched: bool = True,
) -> Emitted | None:
    """Write the probe rows with a match and their build rows, or the probe rows without a match, in their order.

    Without ``matched``, rows without a match are returned, and nothing of the build side. ``None``: gather maps must
    be used, because the planner chose them, the output does not fit the device in one piece, or kernels do not
    compile.
    """
    rows = matches.pairs if matched else int(matches.row.shape[0]) - matches.pairs
    facts = EmissionFacts(
        probe_rows=int(matches.row.shape[0]),
        rows=rows,
        probe_widths=probe.fields.widths if probe.fixed else None,
        build=None if build is None or not build.fields.widths else _build_facts(device, build, rows),
        build_fixed=build is None or build.fixed,
    )
    choice = choose(facts)
    log.debug("output by %s: %s", choice.method.value, choice.reason)
    if choice.method is EmissionMethod.MAPS:
        return None
    try:
        packed = None
        if build is not None and build.fields.widths:
            with build.packing.lock:
                packed = packed_once(device, build.packing, build.fields)
                if packed is None:
                    return None
                build.packing.entries += rows
        of_probe, of_build = packed_rows.emit(device, matches, probe.fields.columns(), packed, matched=matched)
    except KernelCompileError as problem:
        log.warning("a kernel does not compile, so cuDF gathers instead: %s", problem)
        return None
    except MemoryError as problem:
        log.debug("output does not fit in one piece: %s", problem)
        return None
    nullable = build.fields.nullable if build is not None else ()
    trimmed = [column if null else FieldColumn(column.values) for column, null in zip(of_build, nullable, strict=True)]
    return Emitted(rows, tuple(of_probe), tuple(trimmed))


def _build_facts(device: Device, build: EmittedSide, rows: int) -> GatherFacts:
    fields, packing = build.fields, build.packing
    return GatherFacts(
        rows=fields.rows,
        widths=fields.widths,
        row_bytes=row_bytes(fields),
        entries=packing.entries + rows,
        ascending=False,
        packed=packing.packed is not None,
        l2_bytes=device.properties.l2_bytes,
    )
