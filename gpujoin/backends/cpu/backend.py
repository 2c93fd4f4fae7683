"""The CPU backend: implements the engine's protocol with NumPy and Arrow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpujoin.backends.cpu import frame as frames
from gpujoin.backends.cpu import gather as gathering
from gpujoin.backends.cpu.build import CpuBuild, make_build
from gpujoin.backends.cpu.frame import Frame
from gpujoin.backends.cpu.memory import memory_errors
from gpujoin.backends.cpu.ranges import CpuRangeBuild
from gpujoin.backends.cpu.rowmaps import Mask, as_indices, filtered, selected, set_marks
from gpujoin.model.algorithm import Algorithm
from gpujoin.model.backend import BackendName
from gpujoin.model.expressions import Expression
from gpujoin.model.maps import Indices, OutOfBounds, RowMap

MORSEL_ROWS = 1 << 19
"""Probe rows of a morsel; measured in `benchmarks/engine/README.md`, "morsels"."""


class CpuBackend:
    """Joins on the CPU.

    Every operation uses one thread, and releases the interpreter lock while NumPy and Arrow work. The engine runs
    ``threads`` probes at once.
    """

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads

    @property
    def name(self) -> BackendName:
        return BackendName.CPU

    @property
    def threads(self) -> int:
        return self._threads

    @property
    def pipeline(self) -> None:
        """``None``: there is no device."""
        return

    @property
    def morsel_rows(self) -> int:
        return MORSEL_ROWS

    # -- what it can do ------------------------------------------------------------------------------------

    def can_gather(self, dtype: pa.DataType) -> bool:
        return gathering.can_gather(dtype)

    def can_evaluate(self, condition: Expression) -> bool:
        from gpujoin.functions.support import is_supported

        return is_supported(condition)

    # -- tables --------------------------------------------------------------------------------------------

    @memory_errors
    def from_arrow(self, table: pa.Table) -> Frame:
        return frames.from_arrow(table)

    def assemble(self, columns: Sequence[tuple[Frame, int]]) -> Frame:
        return Frame(tuple(frame.columns[at] for frame, at in columns), columns[0][0].rows)

    @memory_errors
    def to_arrow(self, frame: Frame, schema: pa.Schema) -> pa.RecordBatch:
        return frames.to_batch(frame, schema)

    def frame_rows(self, frame: Frame) -> int:
        return frame.rows

    def frame_bytes(self, frame: Frame) -> int:
        return frame.nbytes

    # -- joining -------------------------------------------------------------------------------------------

    def build(self, keys: Frame, algorithm: Algorithm = Algorithm.CUDF, *, pairs: bool = True) -> CpuBuild:
        """Build a search structure over a key frame; ``algorithm`` and ``pairs`` are not used."""
        del algorithm, pairs
        return make_build(keys)

    def build_ranges(self, points: Frame, *, grouped: bool, kernels: bool = True) -> CpuRangeBuild:
        """Build a search structure over ordered points; ``kernels`` is not used."""
        del kernels
        return CpuRangeBuild(points, grouped=grouped)

    @memory_errors
    def gather(self, frame: Frame, rows: RowMap, *, kernels: bool = False) -> Frame:  # noqa: ARG002
        return gathering.gather(frame, rows)

    @memory_errors
    def gathered_bytes(self, frame: Frame, rows: RowMap) -> tuple[int, ...]:
        return gathering.gathered_bytes(frame, rows)

    @memory_errors
    def evaluate(self, condition: Expression, left: Frame, right: Frame, length: int) -> Mask:
        from gpujoin.functions.evaluate import evaluate

        return evaluate(condition, frames.anonymous_batch(left), frames.anonymous_batch(right), length)

    # -- vectors -------------------------------------------------------------------------------------------

    @memory_errors
    def filter_map(self, rows: RowMap, mask: Mask) -> RowMap:
        return filtered(rows, mask)

    @memory_errors
    def selection(self, mask: Mask, value: bool) -> RowMap:
        return selected(mask if value else ~mask)

    @memory_errors
    def marks(self, length: int) -> Mask:
        return np.zeros(length, np.bool_)

    @memory_errors
    def mark(self, marks: Mask, rows: RowMap) -> None:
        set_marks(marks, rows)

    @memory_errors
    def indices_to_host(self, rows: RowMap) -> npt.NDArray[np.int64]:
        return as_indices(rows).astype(np.int64, copy=False)

    def indices_from_host(self, indices: npt.NDArray[np.int64], out_of_bounds: OutOfBounds) -> Indices:
        return Indices(indices, len(indices), out_of_bounds)

    def mask_to_host(self, mask: Mask) -> npt.NDArray[np.bool_]:
        return mask

    def mask_from_host(self, mask: npt.NDArray[np.bool_]) -> Mask:
        return mask
