"""Joins of tables that stay on a device, as one build side and any number of probe tables.

All work is done by the same build sides and runs as for host tables, with frames going in and out
(:class:`~gpujoin.engine.join.sinks.FrameSink`). A table is one morsel: a probe that does not fit the device is halved,
and at last finished on the CPU, whose rows are copied back; a build side that does not fit raises
``DeviceMemoryError``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from gpujoin.config import Options
from gpujoin.engine.devicetables import DeviceTable, OpenedTable, adopt_each, concat, open_batches
from gpujoin.engine.join.build import BuiltSide
from gpujoin.engine.join.checks import check_frames, check_product
from gpujoin.engine.join.layout import JoinLayout, SideLayout
from gpujoin.engine.join.probe import Run, join_morsel, rest_of_build
from gpujoin.engine.join.sinks import FrameSink
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.errors import JoinSpecError
from gpujoin.model.pipeline import AnyDevicePipeline


def build_frames(
    layout: JoinLayout, tables: Sequence[DeviceTable], options: Options, metrics: JoinMetrics
) -> BuiltSide:
    """Build the side of a join whose tables lie on a device.

    Raises ``JoinSpecError`` for a join that the device does not compute, ``DeviceMemoryError`` if it does not fit.
    """
    device = tables[0].device
    check_frames(layout, device)
    sink = FrameSink.on_device(layout, device, options, device.budget(0))
    for table in tables:
        _check(table, layout.build, device)
    rows = concat(tables, layout.build.schema, device)
    metrics.build_rows += rows.num_rows
    metrics.build_bytes += rows.nbytes
    return BuiltSide(sink, rows.frame, metrics)


class FrameRun:
    """One pass of probe tables over a build side on a device."""

    can_stop = False

    def __init__(self, built: BuiltSide, metrics: JoinMetrics) -> None:
        assert isinstance(built.sink, FrameSink)
        self.metrics = metrics
        self._layout, self._device = built.layout, built.sink.device
        self._run = Run.start(built, metrics)
        self._probe_rows = 0
        self._kind: OpenedTable | None = None

    def probe(self, batches: Any) -> Iterator[Any]:
        """Join some probe rows: a table on a GPU, or several. Yields tables of the same kind.

        Raises ``JoinSpecError`` for rows on the host.
        """
        opened, batches = open_batches(batches)
        if opened is None:
            if not isinstance(batches, (list, tuple)) or batches:
                raise JoinSpecError("the build side is on a GPU, the probe side on the host; copy one of them")
            return
        for kind, table in adopt_each(opened, batches, self._device.backend):
            self._kind = kind
            for joined in self.probe_table(table):
                yield kind.to_same_kind(joined)

    def finish(self) -> Iterator[Any]:
        """Return the rows that can only be returned when all probe rows have been seen, in the kind of the probe's."""
        for joined in self.rest():
            yield joined if self._kind is None else self._kind.to_same_kind(joined)

    def probe_table(self, table: DeviceTable) -> Iterator[DeviceTable]:
        """Join the rows of a table."""
        metrics, built = self.metrics, self._run.built
        _check(table, self._layout.probe, self._device)
        metrics.probe_rows += table.num_rows
        metrics.probe_bytes += table.nbytes
        self._probe_rows += table.num_rows
        check_product(self._layout, built.options, built.num_rows, self._probe_rows)
        if table.num_rows:
            yield from map(self._out, join_morsel(self._run, table.frame))

    def rest(self) -> Iterator[DeviceTable]:
        """Build rows that the join returns when all probe rows have been seen."""
        yield from map(self._out, rest_of_build(self._run))

    def close(self) -> None:
        """Nothing to free: no rows were spilled."""

    def _out(self, rows: Any) -> DeviceTable:
        device, schema = self._device, self._layout.output_schema
        if isinstance(rows, pa.RecordBatch):  # finished on the CPU
            rows = device.take_in(pa.Table.from_batches([rows]), schema)
        table = DeviceTable(schema, rows, device)
        self.metrics.output_batches += 1
        self.metrics.output_rows += table.num_rows
        self.metrics.output_bytes += table.nbytes
        return table


def _check(table: DeviceTable, side: SideLayout, device: AnyDevicePipeline) -> None:
    if table.device.backend is not device.backend:
        raise JoinSpecError("the tables belong to two backends; take both in with the same backend=")
    if table.schema.types != side.schema.types:
        raise JoinSpecError(
            f"a {side.side.value} table has columns {table.schema.types} where the join was made for"
            f" {side.schema.types}; cast it first"
        )
