"""Windows: all rows of a partition are brought together, in memory or by way of the disk.

Rows are held as those of a build side are. Beyond their share of memory all go to disk, divided by the hash of their
partition, and the windows of each part are computed by themselves. A part that is still too large is divided again.
Rows of one partition cannot be divided; they are held whatever their size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from gpujoin.engine.memory import HostMemory
from gpujoin.engine.pipeline.opaque import OpaquePipeline
from gpujoin.engine.pipeline.placement import MixedPipeline
from gpujoin.engine.spill import SpillPart, SpillStore, divisible, part_by_part
from gpujoin.model.pipeline import FAN_OUT, AnyPipelineBackend, PipelineMetrics
from gpujoin.model.relations import Window

_Piece: TypeAlias = Any


@dataclass(frozen=True)
class WindowRun:
    """Computes a window over pieces."""

    node: Window
    backend: AnyPipelineBackend | MixedPipeline | OpaquePipeline
    memory: HostMemory
    metrics: PipelineMetrics
    batch_bytes: int
    """Size of the batches in which rows go to disk."""
    new_store: Callable[[], SpillStore]

    def pieces(self, source: Iterator[_Piece], divisions: int = 0, *, stuck: bool = False) -> Iterator[_Piece]:
        """Compute the window over all rows of a source, which has all rows of each partition it has rows of.

        ``divisions`` counts the divisions of the rows so far. ``stuck``: the last one did not make the parts smaller.
        """
        backend, schema = self.backend, self.node.child.schema
        may_divide = bool(self.node.partition) and divisible(divisions, stuck=stuck)
        budget = min(backend.budget(self.memory.build_bytes), self.memory.build_bytes)
        held, size = [], 0
        source = map(backend.collect, source)
        for piece in source:
            held.append(piece)
            size += backend.size(piece)[1]
            if may_divide and size > budget:
                yield from self._divided(held, source, divisions)
                return
        self.metrics.oversized_parts += size > budget
        if held:
            whole = backend.concat(held, schema, self.metrics)
            held.clear()
            self.metrics.windows += 1
            yield backend.window(whole, self.node)

    def _divided(self, held: list[_Piece], source: Iterator[_Piece], divisions: int) -> Iterator[_Piece]:
        schema = self.node.child.schema
        store = self.new_store()
        try:
            parts = store.new_parts(schema, FAN_OUT)
            while held:
                self._write(held.pop(0), parts, divisions)
            for piece in source:
                self._write(piece, parts, divisions)

            def computed(parts: Sequence[SpillPart], stuck: bool) -> Iterator[_Piece]:
                (part,) = parts
                batches = part.read()
                rows = (self.backend.take_in([batch], schema, self.metrics) for batch in batches)
                return self.pieces(rows, divisions + 1, stuck=stuck)

            yield from part_by_part((parts,), computed)
        finally:
            store.close()

    def _write(self, piece: _Piece, parts: Sequence[SpillPart], divisions: int) -> None:
        divided = self.backend.divide(piece, self.node.partition, divisions)
        for part, rows in zip(parts, divided, strict=True):
            for batch in self.backend.give_out(rows, self.node.child.schema, self.batch_bytes):
                part.append(batch)
