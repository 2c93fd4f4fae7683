"""Writes the output of a join without gather maps, if that is faster.

Nothing here imports CuPy; see :mod:`gpujoin.backends.cudf.arrays`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpujoin.backends.cudf.choices import EmissionFacts, GatherFacts, writes_at_once
from gpujoin.backends.cudf.index import IndexProbe
from gpujoin.backends.cudf.packing import Fields, Packing, order_once, pack_once, row_bytes
from gpujoin.errors import KernelCompileError
from gpujoin.launch import expand
from gpujoin.launch import rows as packed_rows
from gpujoin.launch.device import Array, Device
from gpujoin.launch.matches import Places, Ranges, UniqueMatches
from gpujoin.launch.rows import FieldColumn, PackedRows
from gpujoin.logs import log


@dataclass(frozen=True)
class OutputColumns:
    """The output columns of both sides."""

    rows: int
    probe: tuple[FieldColumn, ...] | None
    """Columns of the probe side; ``None``: all its rows, as they are."""
    build: tuple[FieldColumn, ...]
    """Columns of the build side. Values of null rows are arbitrary."""

    def slice(self, start: int, length: int) -> OutputColumns:
        """Rows ``start … start + length - 1``, in the same memory."""
        probe = None if self.probe is None else _cut(self.probe, start, length)
        return OutputColumns(length, probe, _cut(self.build, start, length))


@dataclass(frozen=True)
class OutputSide:
    """The columns of one side that go to the output."""

    fields: Fields
    fixed: bool
    """Whether all columns have fixed width."""
    packing: Packing
    """Packed rows of the frame that the columns are from."""


@dataclass(frozen=True)
class RunsOutput:
    """Output of a join whose probe rows have any number of matches each; rows are written when asked for."""

    device: Device
    ranges: Ranges
    running: Array
    """Running count of the matches."""
    probe: Sequence[FieldColumn]
    packed: PackedRows | None
    """The build side's columns in the order of the places; ``None``: there are none."""
    nullable: tuple[bool, ...]
    """Whether each of the build side's columns has nulls."""

    @property
    def rows(self) -> int:
        """Rows of the output."""
        return self.ranges.pairs

    def slice(self, start: int, length: int) -> OutputColumns:
        """Write output rows ``start … start + length - 1``, ascending by probe row, then by place."""
        of_probe, of_build = packed_rows.emit_ranges(
            self.device, self.ranges, self.running, self.probe, self.packed, start, length
        )
        return OutputColumns(length, tuple(of_probe), _without_validity(of_build, self.nullable))


def write_output(
    probe: IndexProbe, own: OutputSide, other: OutputSide | None, *, matched: bool
) -> OutputColumns | RunsOutput | None:
    """Make the output of a probe without maps, as :meth:`gpujoin.model.backend.Backend.emit` says."""
    device = probe.kernels
    if device is None:
        return None
    matches = probe.marked() if other is None else probe.single()
    if matches is not None:
        return write_matches(device, matches, own, other, matched=matched)
    assert other is not None
    return write_runs(device, *probe.ranges(), own, other)


def write_matches(
    device: Device,
    matches: UniqueMatches,
    probe: OutputSide,
    build: OutputSide | None,
    *,
    matched: bool = True,
) -> OutputColumns | None:
    """Write the probe rows with a match and their build rows, or the probe rows without a match, in their order.

    Without ``matched``, rows without a match are returned, and nothing of the build side. ``None``: gather maps must
    be used, because they are faster, the output does not fit the device in one piece, or kernels do not
    compile.
    """
    rows = matches.pairs if matched else int(matches.row.shape[0]) - matches.pairs
    facts = EmissionFacts(
        probe_rows=int(matches.row.shape[0]),
        rows=rows,
        probe_widths=probe.fields.widths if probe.fixed else None,
        build=_build_facts(device, build, rows),
        build_fixed=build is None or build.fixed,
    )
    if not _at_once(facts):
        return None
    try:
        packed = None
        if build is not None and build.fields.widths:
            with build.packing.lock:
                packed = pack_once(device, build.packing, build.fields)
                if packed is None:
                    return None
                build.packing.entries += rows
        of_probe, of_build = packed_rows.emit(device, matches, probe.fields.columns(), packed, matched=matched)
    except KernelCompileError as problem:
        _log_instead(problem)
        return None
    except MemoryError as problem:
        log.debug("output does not fit in one piece: %s", problem)
        return None
    return OutputColumns(
        rows, tuple(of_probe), () if build is None else _without_validity(of_build, build.fields.nullable)
    )


def write_runs(
    device: Device, ranges: Ranges, places: Places, probe: OutputSide, build: OutputSide
) -> RunsOutput | None:
    """Prepare the output of probe rows with any number of matches.

    ``None``: gather maps must be used, because they are faster, packed rows do not fit, or kernels do not
    compile. Raises ``DeviceMemoryError`` if the running count of the matches does not fit.
    """
    facts = EmissionFacts(
        probe_rows=int(ranges.count.shape[0]),
        rows=ranges.pairs,
        probe_widths=probe.fields.widths if probe.fixed else None,
        build=_build_facts(device, build, ranges.pairs),
        build_fixed=build.fixed,
        unique=False,
        ordered=build.packing.ordered_by(places.rows) is not None,
    )
    if not _at_once(facts):
        return None
    packed = None
    if build.fields.widths:
        with build.packing.lock:
            packed = order_once(device, build.packing, build.fields, places.rows)
            if packed is None:
                return None
            build.packing.entries += ranges.pairs
    try:
        packed_rows.compile_runs(device)
    except KernelCompileError as problem:
        _log_instead(problem)
        return None
    running = expand.running_counts(device, ranges)
    return RunsOutput(device, ranges, running, probe.fields.columns(), packed, build.fields.nullable)


def _cut(columns: Sequence[FieldColumn], start: int, length: int) -> tuple[FieldColumn, ...]:
    rows = slice(start, start + length)
    return tuple(FieldColumn(c.values[rows], None if c.valid is None else c.valid[rows]) for c in columns)


def _at_once(facts: EmissionFacts) -> bool:
    at_once = writes_at_once(facts)
    log.debug("output %s: %s", "at once" if at_once.yes else "by maps", at_once.reason)
    return at_once.yes


def _log_instead(problem: KernelCompileError) -> None:
    log.warning("a kernel does not compile, so cuDF gathers instead: %s", problem)


def _without_validity(columns: Sequence[FieldColumn], nullable: Sequence[bool]) -> tuple[FieldColumn, ...]:
    """Columns without validity where a column has no nulls."""
    return tuple(column if null else FieldColumn(column.values) for column, null in zip(columns, nullable, strict=True))


def _build_facts(device: Device, build: OutputSide | None, rows: int) -> GatherFacts | None:
    if build is None or not build.fields.widths:
        return None
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
