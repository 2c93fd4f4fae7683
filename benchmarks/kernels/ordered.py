"""Joins by order: ranges, overlaps and as-of joins, by own kernels, array operations, and what cuDF has for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from benchmarks.kernels import data
from benchmarks.kernels.engines import Batches, Engine
from gpujoin.backends.cudf.arrays import ArrayOps
from gpujoin.backends.cudf.ranges import DeviceRangeBuild
from gpujoin.backends.ordered.index import Points
from gpujoin.launch.device import Device
from gpujoin.model.backend import NearestTerms
from gpujoin.model.spec import Direction

PAIRS_AT_A_TIME = 1 << 26
MOST_LOOPED = 34
"""Of nested loops, so many pairs are looked at, as a power of two."""

_VALUE_BYTES = 8
_SPAN_BITS = 40
"""Points are spread over numbers of so many bits."""
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


class Shape(Enum):
    """What is compared."""

    BETWEEN = "a point between two values"
    OVERLAP = "intervals of any length that overlap"
    AS_OF = "the last point at or before, within groups"


@dataclass(frozen=True)
class OrderedWorkload:
    """One join by order.

    Attributes
    ----------
    name : str
        For people.
    shape : Shape
        What is compared.
    log_rows : int
        Rows of each side, as a power of two.
    matches : int
        Matches of a probe row, on average; of an as-of join at most one.
    log_groups : int
        Groups, as a power of two.
    """

    name: str
    shape: Shape
    log_rows: int
    matches: int = 5
    log_groups: int = 0

    def smaller(self, bits: int) -> OrderedWorkload:
        """The same with fewer rows a side, by that many powers of two."""
        rows = max(4, self.log_rows - bits)
        return replace(self, log_rows=rows, log_groups=max(0, min(self.log_groups, rows - 2)))

    @property
    def rows(self) -> int:
        """Of each side."""
        return 1 << self.log_rows

    def inputs(self, xp: Any) -> OrderedInputs:
        """Make the columns on the device."""
        points = [self._spread(xp, seed) for seed in (1, 2)]
        payload = tuple(data.payload(xp, self.rows, 0, seed) for seed in (1, 2))
        if self.shape is Shape.AS_OF:
            groups = tuple(
                self._numbers(xp, seed, self.log_groups) if self.log_groups else xp.zeros(self.rows, dtype=xp.int64)
                for seed in (3, 4)
            )
            return OrderedInputs((points[0],), (points[1],), payload, groups)
        width = max(1, self.matches * (1 << _SPAN_BITS) // self.rows)
        if self.shape is Shape.BETWEEN:
            return OrderedInputs((points[0],), (points[1], points[1] + xp.int64(width)), payload, None)
        # Two intervals overlap with the probability of the sum of their lengths in the span; lengths vary.
        ends = [start + self._spread(xp, seed) % xp.int64(width) for start, seed in zip(points, (5, 6), strict=True)]
        return OrderedInputs((points[0], ends[0]), (points[1], ends[1]), payload, None)

    def _spread(self, xp: Any, seed: int) -> Any:
        return self._numbers(xp, seed, _SPAN_BITS)

    def _numbers(self, xp: Any, seed: int, bits: int) -> Any:
        mixed = data.mixed(xp, data.numbers(xp, seed << 44, self.rows))
        return (mixed >> xp.uint64(64 - bits)).view(xp.int64)

    def floor_bytes(self, output_rows: int) -> int:
        """Bytes of reading every input once and writing the output once."""
        columns = {Shape.BETWEEN: 1 + 2, Shape.OVERLAP: 2 + 2, Shape.AS_OF: 2 + 2}[self.shape] + 2
        return self.rows * columns * _VALUE_BYTES + output_rows * 2 * _VALUE_BYTES


@dataclass(frozen=True)
class OrderedInputs:
    """Columns of the two sides, int64.

    Attributes
    ----------
    build : tuple of arrays
        Points, or begins and ends.
    probe : tuple of arrays
        Points; lowest and highest points that match; or begins and ends.
    payload : tuple of two arrays
        One column of the build side and one of the probe side.
    groups : tuple of two arrays or None
        Of the two sides.
    """

    build: tuple[Any, ...]
    probe: tuple[Any, ...]
    payload: tuple[Any, ...]
    groups: tuple[Any, ...] | None

    @property
    def nbytes(self) -> int:
        """Size of all columns."""
        columns = (*self.build, *self.probe, *self.payload, *(self.groups or ()))
        return sum(int(column.nbytes) for column in columns)


def ordered_workloads() -> Iterator[OrderedWorkload]:
    """What is measured."""
    yield OrderedWorkload("vii: between, 5 matches", Shape.BETWEEN, 24)
    yield OrderedWorkload("vii': between, few rows", Shape.BETWEEN, 17)
    yield OrderedWorkload("viii: overlap, 5 matches", Shape.OVERLAP, 22)
    yield OrderedWorkload("viii': overlap, few rows", Shape.OVERLAP, 17)
    yield OrderedWorkload("ix: as-of, 2^14 groups", Shape.AS_OF, 24, log_groups=14)
    yield OrderedWorkload("ix': as-of, one group", Shape.AS_OF, 24)


@dataclass(frozen=True)
class OrderEngine:
    """gpujoin's index by order, build and payload included; by kernels where ``ops`` has a device for them."""

    ops: ArrayOps
    workload: OrderedWorkload
    name: str

    def can(self, workload: OrderedWorkload) -> bool:
        del workload
        return True

    def prepare(self, inputs: OrderedInputs) -> OrderedInputs:
        return inputs

    def run(self, prepared: OrderedInputs) -> Batches:
        xp = self.ops.xp
        groups = [] if prepared.groups is None else [[Points(g, None)] for g in prepared.groups]
        build = DeviceRangeBuild(
            self.ops,
            _entered,
            [*(groups[0] if groups else []), *(Points(p, None) for p in prepared.build)],
            grouped=bool(groups),
        )
        of_build, of_probe = prepared.payload
        if self.workload.shape is Shape.AS_OF:
            (points,) = prepared.probe
            row = self._nearest(build, [*(groups[1] if groups else [])], points, prepared.build[0])
            some = xp.flatnonzero(row >= 0)
            yield int(some.shape[0]), [of_probe[some], of_build[row[some]]]
            return
        low, high = prepared.probe
        bounds = [low, high]
        if self.workload.shape is Shape.OVERLAP:
            rows = self.workload.rows
            bounds = [xp.full(rows, _LEAST, dtype=xp.int64), high, low, xp.full(rows, _MOST, dtype=xp.int64)]
        for part in build.probe_columns([Points(b, None) for b in bounds]).slices(PAIRS_AT_A_TIME):
            probe_row, build_row = (side.values for side in (part.probe, part.build))  # type: ignore[union-attr]
            yield part.length, [of_probe[probe_row], of_build[build_row]]

    def _nearest(self, build: DeviceRangeBuild, groups: list[Points], points: Any, codes: Any) -> Any:
        terms = NearestTerms(Direction.BACKWARD, True, 0, None)
        return build.nearest_columns([*groups, Points(points, None)], codes, terms).lookup().values


def _entered() -> AbstractContextManager[None]:
    return nullcontext()


class CudfOrderEngine:
    """pylibcudf: nested loops over a predicate for ranges; for as-of joins a sort and a search by group and point."""

    name = "cuDF"

    def __init__(self, workload: OrderedWorkload) -> None:
        self.workload = workload

    def can(self, workload: OrderedWorkload) -> bool:
        return workload.shape is Shape.AS_OF or 2 * workload.log_rows <= MOST_LOOPED

    def prepare(self, inputs: OrderedInputs) -> Any:
        import pylibcudf as plc

        def table(*columns: Any) -> Any:
            return plc.Table([plc.Column.from_cuda_array_interface(c) for c in columns])

        groups = inputs.groups or ((), ())
        keys = [
            table(*([group] if len(group) else []), *columns)
            for group, columns in zip(groups, (inputs.build, inputs.probe), strict=True)
        ]
        return keys, [table(column) for column in inputs.payload], inputs

    def run(self, prepared: Any) -> Batches:
        import pylibcudf as plc

        from gpujoin.backends.cudf.frames import as_array

        keys, payload, inputs = prepared
        unchecked = plc.copying.OutOfBoundsPolicy.DONT_CHECK
        if self.workload.shape is Shape.AS_OF:
            maps = self._as_of(plc, keys, inputs)
        else:
            maps = plc.join.conditional_inner_join(keys[1], keys[0], self._predicate(plc))
        columns = [
            as_array(plc.copying.gather(table, rows, unchecked).columns()[0])
            for table, rows in zip((payload[1], payload[0]), maps, strict=True)
        ]
        yield maps[0].size(), columns

    def _predicate(self, plc: Any) -> Any:
        parts = plc.expressions

        def compare(operator: Any, probe: int, build: int) -> Any:
            left = parts.ColumnReference(probe, parts.TableReference.LEFT)
            return parts.Operation(operator, left, parts.ColumnReference(build, parts.TableReference.RIGHT))

        at_most, at_least = parts.ASTOperator.LESS_EQUAL, parts.ASTOperator.GREATER_EQUAL
        if self.workload.shape is Shape.BETWEEN:
            one, two = compare(at_most, 0, 0), compare(at_least, 1, 0)
        else:
            one, two = compare(at_most, 0, 1), compare(at_least, 1, 0)
        return parts.Operation(parts.ASTOperator.LOGICAL_AND, one, two)

    def _as_of(self, plc: Any, keys: Any, inputs: OrderedInputs) -> tuple[Any, Any]:
        import cupy

        from gpujoin.backends.cudf.frames import as_array, as_column

        number = keys[0].num_columns()
        ascending, nulls = [plc.types.Order.ASCENDING] * number, [plc.types.NullOrder.AFTER] * number
        order = plc.sorting.stable_sorted_order(keys[0], ascending, nulls)
        ordered = plc.copying.gather(keys[0], order, plc.copying.OutOfBoundsPolicy.DONT_CHECK)
        before = as_array(plc.search.upper_bound(ordered, keys[1], ascending, nulls)) - 1
        there = before >= 0
        assert inputs.groups is not None
        there &= as_array(ordered.columns()[0])[cupy.maximum(before, 0)] == inputs.groups[1]
        some = cupy.flatnonzero(there).astype(cupy.int32)
        return as_column(some), as_column(as_array(order)[before[some]])


def ordered_engines(device: Device, workload: OrderedWorkload) -> Iterator[Engine]:
    """Kernels, as ``auto``, and array operations on the same device."""
    xp = device.xp

    def stable_argsort(values: Any) -> Any:
        return xp.argsort(values, kind="stable").astype(xp.int32)

    yield OrderEngine(ArrayOps(xp, stable_argsort, device), workload, "auto")
    yield OrderEngine(ArrayOps(xp, stable_argsort), workload, "arrays")
