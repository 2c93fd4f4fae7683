"""The output of a join with at most one match a probe row, made in one pass where the planner's choice is that.

Nothing here imports CuPy; see :mod:`gpujoin.backends.cudf.arrays`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from gpujoin.backends.cudf.packing import Fields, Packing, packed_once, row_bytes
from gpujoin.errors import KernelCompileError
from gpujoin.launch import rows as packed_rows
from gpujoin.launch.device import Device
from gpujoin.launch.matches import UniqueMatches
from gpujoin.launch.rows import FieldColumn
from gpujoin.model.gathering import ChooseEmission, EmissionFacts, EmissionMethod, GatherFacts

_logger = logging.getLogger("gpujoin")


@dataclass(frozen=True)
class Emitted:
    """Output columns.

    Attributes
    ----------
    rows : int
        How many rows.
    probe, build : tuple of FieldColumn
        The columns of either side. Values of null rows are arbitrary.
    """

    rows: int
    probe: tuple[FieldColumn, ...]
    build: tuple[FieldColumn, ...]


@dataclass(frozen=True)
class EmittedSide:
    """The columns of one side that are to be output.

    Attributes
    ----------
    fields : Fields
        Those whose values have one width.
    fixed : bool
        Whether those are all.
    packing : Packing
        Packed rows of the frame that the columns are from.
    """

    fields: Fields
    fixed: bool
    packing: Packing


def emitted(
    device: Device,
    matches: UniqueMatches,
    probe: EmittedSide,
    build: EmittedSide | None,
    choose: ChooseEmission,
    *,
    matched: bool = True,
) -> Emitted | None:
    """The probe rows with a match, or those without one, and what they match.

    Parameters
    ----------
    device : Device
        Device that runs the kernels and holds the arrays.
    matches : UniqueMatches
        The build row of each probe row.
    probe : EmittedSide
        What is output of the probe side.
    build : EmittedSide or None
        What is output of the build side; ``None``: nothing.
    choose : callable
        The planner's choice.
    matched : bool
        False: the rows without a match, with nothing of the build side.

    Returns
    -------
    Emitted or None
        In the order of the probe rows. ``None``: to be made by maps, by the planner's choice, or since it does not fit
        the device in one piece, or its kernels do not compile.
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
    _logger.debug("output by %s: %s", choice.method.value, choice.reason)
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
        of_probe, of_build = packed_rows.emit(
            device, matches, probe.fields.columns(), packed, matched=matched
        )
    except KernelCompileError as problem:
        _logger.warning("a kernel does not compile, so cuDF gathers instead: %s", problem)
        return None
    except MemoryError as problem:
        _logger.debug("output does not fit in one piece: %s", problem)
        return None
    nullable = build.fields.nullable if build is not None else ()
    trimmed = [
        column if null else FieldColumn(column.values)
        for column, null in zip(of_build, nullable, strict=True)
    ]
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
