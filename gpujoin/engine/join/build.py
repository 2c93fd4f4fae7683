"""The build side of a join in memory, with a search structure that all probes share."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpujoin.engine.join.as_of import AsOfBuild, nearest_terms
from gpujoin.engine.join.derive import Rest
from gpujoin.engine.join.layout import JoinLayout
from gpujoin.engine.join.not_in import NullPatterns
from gpujoin.engine.join.ranges import BuiltRanges
from gpujoin.engine.join.sinks import Sink
from gpujoin.engine.memory import hold
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.errors import DeviceValueError, OutOfMemoryError
from gpujoin.model.algorithm import ASKED_FOR, Algorithm
from gpujoin.model.backend import BackendName, Build, RangeBuild
from gpujoin.model.hostgather import take
from gpujoin.plan.ranges import LEAST_SPREAD


class BuiltSide:
    """The rows of the build side and a search structure over them; immutable, shared by all runs and threads.

    Rows are record batches, or have the form of the sink. Large string types are accepted in place of the schema's.
    Raises ``OutOfMemoryError`` if the build does not fit, ``DeviceValueError`` if the device does not compute a value.
    """

    def __init__(self, sink: Sink, rows: Any, metrics: JoinMetrics) -> None:
        self.backend = sink.backend
        self.options = sink.options
        self.rows = rows = sink.take_in(rows)
        self.num_rows = int(rows.num_rows)
        self.build: Build[Any, Any] | None = None
        self.ranges: BuiltRanges | None = None
        self.as_of: AsOfBuild | None = None
        self._twin: BuiltSide | None = None
        self._plain: BuiltSide | None = None
        self._twin_lock = threading.Lock()
        with metrics.timing("build"):
            self.layout = layout = self._search(sink)
            self.sink = sink = dataclasses.replace(sink, layout=layout)
            self._count(metrics)
            self.null_patterns: NullPatterns | None = None
            """Search of rows with null keys, for null-aware joins; ``None`` for other joins."""
            if layout.spec.join_type.null_aware:
                self.null_patterns = NullPatterns(sink, rows, pairs=_needs_pairs(layout))
            self.output = sink.output(rows, layout.build)
            if layout.build.output:
                _ = self.output.frame
            self.condition = sink.condition(rows, layout.build)
            if layout.build.condition:
                _ = self.condition.frame
            sink.release(rows)
        if not sink.resident:
            hold(self, self.nbytes)

    @classmethod
    def with_fallback(cls, sink: Sink, rows: Any, metrics: JoinMetrics) -> BuiltSide:
        """Build on the backend, or on the CPU if a device has no memory for it, or does not compute a value of it."""
        try:
            return cls(sink, rows, metrics)
        except (OutOfMemoryError, DeviceValueError) as problem:
            if sink.backend.name is BackendName.CPU:
                raise
            return cls.after(problem, sink, rows, metrics)

    @classmethod
    def after(
        cls, problem: OutOfMemoryError | DeviceValueError, sink: Sink, rows: Any, metrics: JoinMetrics
    ) -> BuiltSide:
        """Build on the CPU after a device has failed."""
        metrics.count_fallback(problem)
        host = sink.on_cpu()
        if isinstance(problem, DeviceValueError):
            host = dataclasses.replace(host, reason=str(problem))
        return cls(host, sink.to_host(rows), metrics)

    def _search(self, sink: Sink) -> JoinLayout:
        """Build the search structure. Returns the join's layout, with or without ranges, that it serves."""
        layout = sink.layout
        if layout.spec.as_of is not None:
            assert layout.as_of_type is not None
            terms = nearest_terms(layout.spec.as_of, layout.as_of_type)
            self.as_of = AsOfBuild.from_rows(sink.as_of(self.rows), terms, self.backend, kernels=sink.kernels)
            return layout
        if layout.axes:
            coded = sink.ranges(self.rows, layout)
            assert coded is not None, "its operands were computed before"
            self.ranges = BuiltRanges.from_rows(coded, self.backend, kernels=sink.kernels)
            return layout
        ranged = layout.ranged if self.options.range_index else None
        if layout.spec.keys:
            keys = sink.keys(self.rows, layout.build)
            self.build = self.backend.build(keys, self.options.gpu_algorithm, pairs=_needs_pairs(layout))
        if ranged is not None and (self.build is None or not self.build.unique):
            coded = sink.ranges(self.rows, ranged)
            if coded is not None and not (coded.grouped and coded.spread < LEAST_SPREAD):
                self.build, self.ranges = None, BuiltRanges.from_rows(coded, self.backend, kernels=sink.kernels)
                return ranged
        return dataclasses.replace(layout, ranged=None)

    def _count(self, metrics: JoinMetrics) -> None:
        """Add the algorithm of a search structure to the counters, and why it was taken, or why no device did."""
        search, name, reason = self._searched, "product", None
        if search is not None:
            name = search.algorithm
            metrics.algorithms[name] = metrics.algorithms.get(name, 0) + 1
            reason = self.build.reason if self.build is not None else self._order_reason
        if self.sink.reason is not None:
            reason = f"the CPU joins: {self.sink.reason}"
        if reason is not None:
            metrics.algorithm_reasons.setdefault(name, reason)

    @property
    def _order_reason(self) -> str | None:
        """Why a device searches by order in its way; ``None`` on the CPU."""
        if self.backend.name is BackendName.CPU:
            return None
        if self.sink.kernels:
            return "kernels: cuDF has no search by order that is not quadratic"
        return f"{Algorithm.CUDF.value}: {ASKED_FOR}"

    @property
    def _searched(self) -> Build[Any, Any] | RangeBuild[Any, Any] | AsOfBuild | None:
        if self.as_of is not None:
            return self.as_of
        return self.build if self.ranges is None else self.ranges.build

    @property
    def search_bytes(self) -> int:
        """Memory of the search structure."""
        return 0 if self._searched is None else self._searched.nbytes

    @property
    def nbytes(self) -> int:
        """Memory of the rows and of the search structure."""
        return self.search_bytes + self.sink.nbytes(self.rows)

    @property
    def counts_pairs(self) -> bool:
        """Whether the cost of marking build rows grows with the number of pairs, those of marked rows included."""
        if self.layout.condition is not None:
            return self.build is not None or self.ranges is not None
        return self.ranges is not None and len(self.layout.axes) > 1

    def on_cpu(self, metrics: JoinMetrics) -> BuiltSide:
        """The same side built on the CPU, for morsels that do not fit the device; made once."""
        with self._twin_lock:
            if self._twin is None:
                self._twin = BuiltSide(self.sink.on_cpu(), self.sink.to_host(self.rows), metrics)
            return self._twin

    def only(self, rows: npt.NDArray[np.int64], metrics: JoinMetrics) -> BuiltSide:
        """Build the same structure over some of the rows; on the CPU where it does not fit the device."""
        every, positions = self.sink.to_host(self.rows), pa.array(rows)
        columns = [take(column, positions) for column in every.columns]
        subset = pa.RecordBatch.from_arrays(columns, schema=every.schema)
        return BuiltSide.with_fallback(self.sink, subset, metrics)

    def without_ranges(self, metrics: JoinMetrics) -> BuiltSide:
        """The same side without ranges, where all of the condition is tested pair by pair; made once."""
        with self._twin_lock:
            if self._plain is None:
                layout = dataclasses.replace(self.layout.derived_anew(), ranged=None)
                plain = dataclasses.replace(self.sink, layout=layout)
                self._plain = BuiltSide(plain, self.rows, metrics)
            return self._plain


def _needs_pairs(layout: JoinLayout) -> bool:
    """Whether a join returns pairs, tests pairs or marks build rows."""
    derivation = layout.derivation
    return derivation.pairs or layout.condition is not None or derivation.build_rest is not Rest.NOTHING
