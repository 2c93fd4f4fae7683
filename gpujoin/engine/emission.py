"""Output that a backend makes at once, without maps, where no probe row has two matches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from gpujoin.engine.built import Emitter, Run
from gpujoin.engine.layout import JoinLayout
from gpujoin.model.backend import AnyBackend, Probe
from gpujoin.model.jointype import Side
from gpujoin.model.maps import Span
from gpujoin.plan.gathering import emission_chooser


@dataclass(frozen=True)
class Emission:
    """Output rows on the backend.

    Attributes
    ----------
    layout : JoinLayout
        The join.
    backend : Backend
        Where they are.
    frames : mapping of Side to Frame
        The columns of either side; a side without an entry gives none.
    rows : int
        How many.
    """

    layout: JoinLayout
    backend: AnyBackend
    frames: Mapping[Side, Any]
    rows: int

    def batches(self, rows_per_batch: int) -> Iterator[pa.RecordBatch]:
        """The rows as batches of the join's output.

        Raises
        ------
        DeviceMemoryError
            If one does not fit on its way out; those before it were right.
        """
        for start in range(0, self.rows, rows_per_batch):
            length = min(rows_per_batch, self.rows - start)
            columns = {side: self._columns(side, start, length) for side in Side}
            yield self.layout.assemble(columns[Side.LEFT], columns[Side.RIGHT], ())

    def _columns(self, side: Side, start: int, length: int) -> list[pa.Array]:
        part = self.layout.build if side is self.layout.build.side else self.layout.probe
        if side not in self.frames or not part.output:
            return []
        some = self.backend.gather(self.frames[side], Span(start, length))
        return list(self.backend.to_arrow(some, part.output_schema).columns)


def emission(run: Run, emitter: Emitter, probe: Probe[Any], *, pairs: bool, matched: bool) -> Emission | None:
    """Output of a probe's rows, made at once.

    Parameters
    ----------
    run : Run
        The run they belong to.
    emitter : Emitter
        Knows their output columns.
    probe : Probe
        Their matches.
    pairs : bool
        Whether rows come with what they match; then no row may have two matches.
    matched : bool
        Whether those with a match are wanted, or those without.

    Returns
    -------
    Emission or None
        ``None``: the output is to be made by maps. So it is where columns stay on the host, too.

    Raises
    ------
    DeviceMemoryError
        If the columns of the probed rows do not fit.
    """
    built, layout = run.built, run.built.layout
    choose = emission_chooser(built.options.gpu_algorithm)
    sides = {layout.probe.side: emitter.payloads[layout.probe.side]}
    if pairs:
        sides[layout.build.side] = built.payload
    if choose is None or not layout.output_schema or any(payload.on_host for payload in sides.values()):
        return None
    own = sides[layout.probe.side].frame
    other = sides[layout.build.side].frame if pairs else None
    with run.metrics.timing("gather"):
        made = built.backend.emit(probe, own, other, choose, matched=matched)
    if made is None:
        return None
    frames = {layout.probe.side: made[0]}
    if pairs:
        frames[layout.build.side] = made[1]
    return Emission(layout, built.backend, frames, built.backend.frame_rows(made[0]))
