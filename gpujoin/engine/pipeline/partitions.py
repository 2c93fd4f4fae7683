"""Brings all rows of a partition together, in memory or by way of the disk.

Rows are held as those of a build side are. Beyond their share of memory all go to disk, divided by the hash of their
partition, and each part is computed by itself. A part that is still too large is divided again. Rows of one partition
cannot be divided; they are held whatever their size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from gpujoin.engine.memory import HostMemory
from gpujoin.engine.pipeline.placement import MixedPipeline
from gpujoin.engine.spill import SpillPart, SpillStore, divisible, part_by_part
from gpujoin.model.pipeline import FAN_OUT, AnyPipelineBackend, PipelineMetrics

Piece: TypeAlias = Any


@dataclass(frozen=True)
class PartitionRun:
    """Gives pieces, each with all rows of its partitions."""

    schema: pa.Schema
    """Columns of the rows."""
    partition: tuple[int, ...]
    """Columns by whose values rows are divided into partitions; empty: one partition."""
    backend: AnyPipelineBackend | MixedPipeline
    memory: HostMemory
    metrics: PipelineMetrics
    batch_bytes: int
    """Size of batches on disk."""
    new_store: Callable[[], SpillStore]

    def pieces(self, source: Iterator[Piece], divisions: int = 0, *, stuck: bool = False) -> Iterator[Piece]:
        """Compute all rows of a source, which has whole partitions.

        ``divisions`` counts the divisions of the rows so far. ``stuck``: the last one did not make the parts smaller.
        """
        may_divide = bool(self.partition) and divisible(divisions, stuck=stuck)
        budget = min(self.backend.budget(self.memory.build_bytes), self.memory.build_bytes)
        buffered: list[Piece] = []
        rows, size, enough = 0, 0, self.first_shrunk
        source = map(self.backend.collect, source)
        for piece in source:
            buffered.append(piece)
            more_rows, more_bytes = self.backend.size(piece)
            rows, size = rows + more_rows, size + more_bytes
            if enough is not None and (rows >= enough or size > budget):
                buffered = [self.shrunk(buffered)]
                rows, size = self.backend.size(buffered[0])
                enough = max(self.first_shrunk or 0, 2 * rows)
            if may_divide and size > budget:
                yield from self._divided(buffered, source, divisions)
                return
        self.metrics.oversized_parts += size > budget
        if buffered:
            yield self.computed(buffered)

    @property
    def first_shrunk(self) -> int | None:
        """How many rows there are when they are first shrunk, and after that twice those left; ``None``: never."""
        return None

    def shrunk(self, buffered: list[Piece]) -> Piece:
        """The rows that are needed."""
        return self.backend.concat(buffered, self.schema, self.metrics)

    def computed(self, buffered: list[Piece]) -> Piece:
        """Compute whole partitions, and empty the list."""
        whole = self.backend.concat(buffered, self.schema, self.metrics)
        buffered.clear()
        return whole

    def _divided(self, buffered: list[Piece], source: Iterator[Piece], divisions: int) -> Iterator[Piece]:
        store = self.new_store()
        try:
            parts = store.new_parts(self.schema, FAN_OUT)
            while buffered:
                self._write(buffered.pop(0), parts, divisions)
            for piece in source:
                self._write(piece, parts, divisions)

            def computed(parts: Sequence[SpillPart], stuck: bool) -> Iterator[Piece]:
                (part,) = parts
                batches = part.read()
                rows = (self.backend.take_in([batch], self.schema, self.metrics) for batch in batches)
                return self.pieces(rows, divisions + 1, stuck=stuck)

            yield from part_by_part((parts,), computed)
        finally:
            store.close()

    def _write(self, piece: Piece, parts: Sequence[SpillPart], divisions: int) -> None:
        divided = self.backend.divide(piece, self.partition, divisions)
        for part, rows in zip(parts, divided, strict=True):
            for batch in self.backend.give_out(rows, self.schema, self.batch_bytes):
                part.append(batch)
