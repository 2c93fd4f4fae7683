"""The GPU backend: implements the engine's protocol with pylibcudf, RMM and CuPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import cupy
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpujoin.backends.cudf import rowmaps
from gpujoin.backends.cudf.arrays import Array, ArrayOps
from gpujoin.backends.cudf.device import Device
from gpujoin.backends.cudf.frames import CudfFrame, as_array, assembled, device_ops, download, upload, validity
from gpujoin.backends.cudf.gathering import gather, gathered_bytes, output_at_once, output_by_keys
from gpujoin.backends.cudf.index import Index, IndexProbe
from gpujoin.backends.cudf.keys import FrameKeys
from gpujoin.backends.cudf.ranges import DeviceRangeBuild
from gpujoin.backends.cudf.storage import storage_type
from gpujoin.backends.cudf.text import evaluate, restrict
from gpujoin.backends.ordered.index import Points
from gpujoin.backends.ordered.nearest import LookupProbe
from gpujoin.backends.ordered.probe import OrderedProbe
from gpujoin.functions.support import device_obstacle
from gpujoin.model.algorithm import Algorithm
from gpujoin.model.backend import BackendName, JoinOutput, NearestTerms
from gpujoin.model.expressions import Expression
from gpujoin.model.jointype import Side
from gpujoin.model.maps import Indices, OutOfBounds, RowMap

P = ParamSpec("P")
R = TypeVar("R")

MORSEL_ROWS = 1 << 23
"""Probe rows of a morsel: enough that launching some fifty kernels takes little time compared with running them."""


def _on_device(method: Callable[Concatenate[CudfBackend, P], R]) -> Callable[Concatenate[CudfBackend, P], R]:
    @wraps(method)
    def entered(self: CudfBackend, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.device.entered():
            return method(self, *args, **kwargs)

    return cast("Callable[Concatenate[CudfBackend, P], R]", entered)


class CudfBuild(Index):
    """A build side on the device."""

    def probe(self, keys: CudfFrame) -> IndexProbe:
        with self.entered():
            return IndexProbe(self, FrameKeys(self.ops, keys))


class CudfRangeBuild(DeviceRangeBuild):
    """A build side on the device that is searched by order."""

    def __init__(self, device: Device, ops: ArrayOps, points: CudfFrame, *, grouped: bool) -> None:
        super().__init__(ops, device.entered, _points(points), grouped=grouped)
        self._device = device

    def probe(self, bounds: CudfFrame) -> OrderedProbe:
        with self._device.entered():
            return self.probe_columns(_points(bounds))

    def nearest(self, points: CudfFrame, codes: CudfFrame, terms: NearestTerms) -> LookupProbe:
        with self._device.entered():
            return self.nearest_columns(_points(points), _points(codes)[0].values, terms)


def _points(frame: CudfFrame) -> list[Points]:
    return [Points(as_array(column), validity(column)) for column in frame.table.columns()]


class CudfBackend:
    """Executes joins on one GPU. Masks and indices are CuPy arrays of bool and int32."""

    def __init__(self, device: Device, make_pipeline: Callable[[CudfBackend], Any]) -> None:
        self.device = device
        self._make_pipeline = make_pipeline
        with device.entered():
            self.ops = device_ops()

    @property
    def name(self) -> BackendName:
        return BackendName.GPU

    @property
    def threads(self) -> int:
        """1: a probe fills the device, and a second one would only double the memory in use."""
        return 1

    @property
    def pipeline(self) -> Any:
        return self._make_pipeline(self)

    @property
    def morsel_rows(self) -> int:
        return MORSEL_ROWS

    def can_gather(self, type: pa.DataType) -> bool:  # noqa: A002 - the protocol's name
        return storage_type(type) is not None

    def can_evaluate(self, condition: Expression) -> bool:
        return device_obstacle(condition) is None

    @_on_device
    def from_arrow(self, table: pa.Table) -> CudfFrame:
        return upload(table)

    def assemble(self, columns: Sequence[tuple[CudfFrame, int]]) -> CudfFrame:
        return assembled(columns)

    @_on_device
    def to_arrow(self, frame: CudfFrame, schema: pa.Schema) -> pa.RecordBatch:
        return download(frame, schema)

    def frame_rows(self, frame: CudfFrame) -> int:
        return frame.rows

    def frame_bytes(self, frame: CudfFrame) -> int:
        return frame.nbytes

    @_on_device
    def build(self, keys: CudfFrame, algorithm: Algorithm = Algorithm.CUDF, *, pairs: bool = True) -> CudfBuild:
        return CudfBuild(self.ops, FrameKeys(self.ops, keys), self.device.entered, algorithm, pairs=pairs)

    @_on_device
    def build_ranges(self, points: CudfFrame, *, grouped: bool, kernels: bool = True) -> CudfRangeBuild:
        ops = self.ops if kernels else replace(self.ops, kernels=None)
        return CudfRangeBuild(self.device, ops, points, grouped=grouped)

    @_on_device
    def gather(self, frame: CudfFrame, rows: RowMap, *, kernels: bool = False) -> CudfFrame:
        """Gather rows of a frame by a map; a span shares the frame's memory."""
        return gather(self.ops, frame, rows, kernels=kernels)

    @_on_device
    def emit(
        self, probe: IndexProbe, own: CudfFrame, other: CudfFrame | None, *, matched: bool = True
    ) -> JoinOutput[CudfFrame] | None:
        """Make join output without maps (:func:`gpujoin.backends.cudf.emission.write_output`)."""
        return output_at_once(self.ops, self.device.entered, probe, own, other, matched=matched)

    @_on_device
    def fetch(
        self, build: CudfBuild, keys: CudfFrame, own: CudfFrame, other: CudfFrame, *, padded: bool
    ) -> JoinOutput[CudfFrame] | None:
        """Make join output without a probe (:func:`gpujoin.backends.cudf.fetching.output_by_keys`)."""
        return output_by_keys(build, FrameKeys(self.ops, keys), own, other, padded=padded)

    @_on_device
    def gathered_bytes(self, frame: CudfFrame, rows: RowMap) -> tuple[int, ...]:
        return gathered_bytes(self.ops, frame, rows)

    @_on_device
    def evaluate(self, condition: Expression, left: CudfFrame, right: CudfFrame, length: int) -> Array:
        return evaluate(self.ops, condition, left, right, length)

    @_on_device
    def restrict(
        self, probe: IndexProbe, condition: Expression, own: CudfFrame, other: CudfFrame, probe_side: Side
    ) -> IndexProbe | None:
        return restrict(self.ops, condition, probe, {probe_side: own, probe_side.other: other}, probe_side)

    @_on_device
    def filter_map(self, rows: RowMap, mask: Array) -> RowMap:
        return rowmaps.filtered(self.ops, rows, mask)

    @_on_device
    def selection(self, mask: Array, value: bool) -> RowMap:
        return rowmaps.selected(self.ops, mask, value)

    @_on_device
    def marks(self, length: int) -> Array:
        return cupy.zeros(length, dtype=bool)

    @_on_device
    def mark(self, marks: Array, rows: RowMap) -> None:
        rowmaps.set_marks(self.ops, marks, rows)

    @_on_device
    def indices_to_host(self, rows: RowMap) -> npt.NDArray[np.int64]:
        return np.asarray(cupy.asnumpy(rowmaps.indices(self.ops, rows)), dtype=np.int64)

    @_on_device
    def indices_from_host(self, indices: npt.NDArray[np.int64], out_of_bounds: OutOfBounds) -> Indices:
        return Indices(cupy.asarray(indices.astype(np.int32)), len(indices), out_of_bounds)

    @_on_device
    def mask_to_host(self, mask: Array) -> npt.NDArray[np.bool_]:
        return np.asarray(cupy.asnumpy(mask), dtype=np.bool_)

    @_on_device
    def mask_from_host(self, mask: npt.NDArray[np.bool_]) -> Array:
        return cupy.asarray(mask)
