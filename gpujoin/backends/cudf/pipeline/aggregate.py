"""Aggregates frames into states that stay on the device and can be merged exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.backends.cudf.arrays import Array
from gpujoin.backends.cudf.pipeline.columns import Columns, Frame, Reduce, Reduced, Reduction
from gpujoin.backends.cudf.pipeline.compute import (
    computed,
    inputs_of,
    plain_keys,
    values_of,
)
from gpujoin.backends.cudf.pipeline.deviations import DeviationState
from gpujoin.backends.cudf.pipeline.offers import carried
from gpujoin.backends.cudf.pipeline.states import (
    CountState,
    EndState,
    ExactSumState,
    ExtremeByState,
    ExtremeState,
    FloatSumState,
    Reducer,
    State,
)
from gpujoin.backends.ordered.reductions import total
from gpujoin.errors import DeviceMemoryError
from gpujoin.functions.signatures import type_of
from gpujoin.functions.values import Value
from gpujoin.model.aggregates import MOMENTS, AggregateCall, AggregateFunction
from gpujoin.model.maps import Span
from gpujoin.model.pipeline import FAN_OUT
from gpujoin.model.relations import PartialAggregate
from gpujoin.model.types import is_float, logical

_FAN_OUTS = (FAN_OUT, 17, 19, 23)
"""Parts of each division of states on disk.

libcudf has a single hash and divides by its remainder. The numbers have no common divisor, so the rows of a part are
divided evenly by the next number."""
_FEWEST = 1024
"""Pieces of at most so many rows are not halved if they do not fit."""


class FrameAggregation(Generic[Frame]):
    """Aggregates frames on the device."""

    merged_rows = 1 << 20

    def __init__(
        self,
        columns: Columns[Frame],
        node: PartialAggregate,
        entered: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._columns = columns
        self._node = node
        self._entered = entered
        self._states: list[State[Frame]] = [_state_of(call) for call in node.aggregates]

    def reduce(self, piece: Frame) -> list[Frame]:
        """Aggregate a piece into states: one, or several if it has to be halved to fit."""
        backend = self._columns.backend
        states: list[Frame] = []
        waiting = [piece] if backend.frame_rows(piece) else []
        with self._entered():
            while waiting:
                rows = waiting.pop()
                count = backend.frame_rows(rows)
                try:
                    with self._columns.memory_errors():
                        states.append(self._reduce(rows))
                except DeviceMemoryError:
                    if count <= _FEWEST:
                        raise
                    half = count // 2
                    waiting += [
                        backend.gather(rows, Span(half, count - half)), backend.gather(rows, Span(0, half))
                    ]  # fmt: skip
        return states

    def merge(self, states: Sequence[Frame]) -> Frame:
        with self._entered(), self._columns.memory_errors():
            return self._merge(states)

    def nothing(self) -> Frame:
        with self._entered():
            return self._columns.hstack([state.nothing(self._columns) for state in self._states])

    def finish(self, state: Frame) -> Frame:
        with self._entered():
            return self._finished(state)

    def size(self, state: Frame) -> tuple[int, int]:
        backend = self._columns.backend
        return backend.frame_rows(state), backend.frame_bytes(state)

    def slices(self, state: Frame) -> Iterator[Frame]:
        yield state

    def divide(self, state: Frame, division: int) -> list[pa.Table]:
        with self._entered():
            parts = self._columns.partition(state, len(self._node.keys), _FAN_OUTS[division])
            schema, to_arrow = self._schema, self._columns.backend.to_arrow
            return [pa.Table.from_batches([to_arrow(part, schema)]) for part in parts]

    def restore(self, batch: pa.RecordBatch) -> Frame:
        return self._columns.backend.from_arrow(pa.Table.from_batches([batch]))

    @property
    def _schema(self) -> pa.Schema:
        types = [*self._key_types, *(t for state in self._states for t in state.types)]
        return pa.schema([(f"s{i}", dtype) for i, dtype in enumerate(types)])

    # -- reducing ------------------------------------------------------------------------------------------

    @property
    def _key_types(self) -> list[pa.DataType]:
        """Types of the keys in a state; floats are kept as their bits."""
        kinds = [carried(type_of(key.expression)) for key in self._node.keys]
        bits = {32: pa.int32(), 64: pa.int64()}
        return [bits[kind.bit_width] if is_float(kind) else kind for kind in kinds]

    def _reduce(self, piece: Frame) -> Frame:
        expressions = [key.expression for key in self._node.keys]
        for call in self._node.aggregates:
            expressions += inputs_of(call)
        inputs = computed(self._columns, piece, expressions)
        width = len(self._node.keys)
        keys = plain_keys(self._columns, self._columns.select(inputs, range(width)))
        place = width

        def ask(rows: Reducer[Frame], state: State[Frame]) -> Callable[[], Frame]:
            nonlocal place
            at = range(place, place + len(state.call.arguments))
            place = at.stop
            mask: Array | None = None
            if state.call.filter is not None:
                passed = rows.value(place)
                mask = passed.data if passed.valid is None else passed.data & passed.valid
                place += 1
            return state.reduce(rows, at, mask)

        return self._state(inputs, keys, ask)

    def _merge(self, states: Sequence[Frame]) -> Frame:
        merged = self._columns.concat(states)
        width = len(self._node.keys)
        place = width

        def ask(rows: Reducer[Frame], state: State[Frame]) -> Callable[[], Frame]:
            nonlocal place
            at = range(place, place + len(state.types))
            place = at.stop
            return state.merge(rows, at)

        return self._state(merged, self._columns.select(merged, range(width)), ask)

    def _state(
        self, frame: Frame, keys: Frame, ask: Callable[[Reducer[Frame], State[Frame]], Callable[[], Frame]]
    ) -> Frame:
        columns = self._columns
        groups = _Groups(columns, keys, by_id=any(state.two_passes for state in self._states))
        rows = Reducer(columns, frame, groups.ids, groups.reduce)
        makers = [ask(rows, state) for state in self._states]
        rows.run()
        parts = [maker() for maker in makers]
        return columns.hstack([groups.keys, *parts]) if self._node.keys else columns.hstack(parts)

    def _finished(self, state: Frame) -> Frame:
        """Convert a state to keys and Spark's aggregation buffers."""
        columns, rows = self._columns, self._columns.backend.frame_rows(state)
        parts: list[Frame] = []
        for at, key in enumerate(self._node.keys):
            dtype = logical(type_of(key.expression))
            part = columns.select(state, (at,))
            if is_float(dtype):
                bits = values_of(columns, part, 0)
                value = Value(dtype, bits.data.view(f"float{dtype.bit_width}"), bits.valid)
                part = columns.frame([value], (dtype,), rows)
            parts.append(part)
        place = len(self._node.keys)
        for each in self._states:
            at_columns = range(place, place + len(each.types))
            parts.append(each.finish(columns, state, at_columns))
            place = at_columns.stop
        return columns.hstack(parts)


def _state_of(call: AggregateCall) -> State[Any]:
    """Make the state of a call."""
    match call.function:
        case AggregateFunction.COUNT:
            return CountState(call)
        case AggregateFunction.SUM if not is_float(call.dtype):
            return ExactSumState(call)
        case AggregateFunction.AVG if pat.is_decimal(call.dtype):
            return ExactSumState(call)
        case AggregateFunction.SUM | AggregateFunction.AVG:
            return FloatSumState(call)
        case AggregateFunction.MIN | AggregateFunction.MAX:
            return ExtremeState(call)
        case AggregateFunction.FIRST | AggregateFunction.LAST:
            return EndState(call)
        case AggregateFunction.MIN_BY | AggregateFunction.MAX_BY:
            return ExtremeByState(call)
        case _:
            assert call.function in MOMENTS
            return DeviationState(call)


class _Groups(Generic[Frame]):
    """The groups of rows, with reductions that all return the groups in the same order."""

    def __init__(self, columns: Columns[Frame], keys: Frame, *, by_id: bool) -> None:
        self._columns = columns
        self._by = keys
        self.keys = keys
        self.ids: Array | None = None
        self._one = not columns.types(keys)
        rows = columns.backend.frame_rows(keys)
        if self._one:
            self.ids = columns.ops.xp.zeros(rows, dtype="int32")
        elif by_id:
            self.keys, self.ids = columns.codes(keys)
            self._by = columns.frame([Value(pa.int32(), self.ids)], (pa.int32(),), rows)

    def reduce(self, reductions: Sequence[Reduction]) -> list[Reduced]:
        """Compute a value for each group, in the order of :attr:`keys`."""
        xp = self._columns.ops.xp
        if self._one:
            return [_whole(xp, reduction) for reduction in reductions]
        counting = reductions or [
            Reduction(Reduce.COUNT, xp.zeros(self._columns.backend.frame_rows(self._by), "int64"))
        ]
        keys, reduced = self._columns.grouped(self._by, counting)
        if self.ids is None:
            self.keys = keys
            return reduced
        order = xp.argsort(values_of(self._columns, keys, 0).data)
        return [
            Reduced(result.data[order], None if result.valid is None else result.valid[order]) for result in reduced
        ]


def _whole(xp: Any, reduction: Reduction) -> Reduced:
    """Reduce all rows to one value."""
    data, valid = reduction.data, reduction.valid
    if reduction.kind is Reduce.COUNT:
        count = len(data) if valid is None else total(valid)
        return Reduced(xp.full(1, count, dtype="int64"))
    if valid is not None:
        data = data[xp.broadcast_to(valid, data.shape)]
    if data.shape[0] == 0:
        return Reduced(xp.zeros(1, dtype=data.dtype), xp.zeros(1, dtype=bool))
    result = {Reduce.SUM: xp.sum, Reduce.MIN: xp.min, Reduce.MAX: xp.max}[reduction.kind](data)
    return Reduced(result.reshape(1).astype(data.dtype))
