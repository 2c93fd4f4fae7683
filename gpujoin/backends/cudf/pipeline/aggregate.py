"""Partial aggregation, piece by piece, into states that stay on the device and merge exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic

import pyarrow as pa

from gpujoin.backends.cudf.arrays import Array
from gpujoin.backends.cudf.pipeline.columns import Columns, Frame, Reduce, Reduced, Reduction
from gpujoin.backends.cudf.pipeline.compute import (
    computed,
    guarded,
    plain_keys,
    values_of,
)
from gpujoin.backends.cudf.pipeline.offers import carried
from gpujoin.backends.cudf.pipeline.states import Reducer, State, state_of
from gpujoin.backends.cudf.values import Value
from gpujoin.errors import DeviceMemoryError
from gpujoin.model.aggregates import AggregateCall
from gpujoin.model.expressions import ColumnRef, Expression
from gpujoin.model.maps import Span
from gpujoin.model.pipeline import PipelineMetrics
from gpujoin.model.relations import PartialAggregate
from gpujoin.model.spilling import FAN_OUT, MAX_DIVISIONS, SpillPart, SpillStore
from gpujoin.model.types import is_float, logical

_MERGED_ROWS = 1 << 20
"""Rows of new states that are merged at least; beyond, as many as are merged already."""
_USELESS_ROWS = 1 << 21
_USELESS = 0.9
"""Where merging so many rows leaves more than this share, groups go out as they are."""
_FAN_OUTS = (FAN_OUT, 17, 19, 23)
"""Parts of each division of states on disk. libcudf divides by the remainder of one hash: that by a number without a
common divisor says nothing of the one before, so that rows of a part are divided anew."""
_FEWEST = 1024
"""A piece that does not fit is halved down to so many rows."""


class PartialAggregation(Generic[Frame]):
    """A partial aggregation in progress; see :class:`gpujoin.model.pipeline.Aggregation`.

    Parameters
    ----------
    columns : Columns
        The library.
    node : PartialAggregate
        What to compute.
    memory_budget : int
        Bytes that states may take on the device; beyond, groups go out early or, where each must come once, to disk.
    metrics : PipelineMetrics
        Counters to add to.
    new_store : callable
        Makes a place on disk.
    divisions : int
        How often the states to be merged were divided before.
    """

    def __init__(
        self,
        columns: Columns[Frame],
        node: PartialAggregate,
        memory_budget: int,
        metrics: PipelineMetrics,
        new_store: Callable[[], SpillStore],
        divisions: int = 0,
    ) -> None:
        self._columns = columns
        self._node = node
        self._budget = memory_budget
        self._metrics = metrics
        self._new_store = new_store
        self._store: SpillStore | None = None
        self._parts: tuple[SpillPart, ...] = ()
        self._divisions = divisions
        self._divisible = not node.once or (bool(node.keys) and divisions < MAX_DIVISIONS)
        self._states: list[State[Frame]] = [state_of(call) for call in node.aggregates]
        self._held: list[Frame] = []
        self._pending = 0
        self._merged_rows = 0

    # -- taking in -----------------------------------------------------------------------------------------

    def take(self, piece: Frame) -> None:
        """Take rows in; nothing is taken in if that fails.

        Raises
        ------
        DeviceMemoryError
            If not even a small part of them fits.
        """
        if not self._rows(piece):
            return
        for state in self._reduced(piece):
            self._hold(state)

    def _hold(self, state: Frame) -> None:
        self._held.append(state)
        self._pending += self._rows(state)

    def relieve(self) -> Iterator[Frame]:
        """Merge what was taken in, and give out groups where there are too many to hold.

        Raises
        ------
        DeviceMemoryError
            If groups that are to go out do not fit; the aggregation is then of no further use.
        """
        if not self._pending:
            return
        size = sum(map(self._columns.backend.frame_bytes, self._held))
        full = self._divisible and size > self._budget // 2
        if self._pending < max(_MERGED_ROWS, self._merged_rows) and not full:
            return
        merged = self._merged_where_it_fits()
        if merged is None:
            yield from self._given_up()
            return
        rows = self._rows(merged)
        # A single group has to be held, whatever its size.
        over = self._divisible and rows > 1 and self._columns.backend.frame_bytes(merged) > self._budget // 2
        before = self._merged_rows + self._pending
        useless = before >= _USELESS_ROWS and len(self._held) > 1 and rows > _USELESS * before
        self._held, self._pending, self._merged_rows = [merged], 0, rows
        if over or (useless and not self._node.once):
            yield from self._given_up()

    def finish(self) -> Iterator[Frame]:
        """Give out what is held: without keys one row, whatever was added."""
        if self._store is None:
            if not self._held and not self._node.keys:
                self._held = [self._nothing()]
            if not self._held:
                return
            merged = self._merged_where_it_fits() if self._divisible else self._merge(self._held)
            if merged is not None:
                self._held = []
                over = (
                    self._rows(merged) > 1 and self._columns.backend.frame_bytes(merged) > self._budget // 2
                )
                self._metrics.oversized_parts += over and not self._divisible
                yield self._finished(merged)
                return
            if not self._node.once:
                yield from self._given_up()
                return
        self._spill()
        assert self._store is not None
        try:
            for part in self._parts:
                yield from self._merged_part(part)
        finally:
            self._store.close()

    def _merged_part(self, part: SpillPart) -> Iterator[Frame]:
        """Merge a part by an aggregation of its own."""
        if not part.rows:
            return
        merger = PartialAggregation(
            self._columns, self._node, self._budget, self._metrics, self._new_store, self._divisions + 1
        )
        for batch in part.read():
            merger._hold(self._columns.backend.from_arrow(pa.Table.from_batches([batch])))
            yield from merger.relieve()
        yield from merger.finish()

    def _reduced(self, piece: Frame) -> list[Frame]:
        """States of a piece, of its halves where it does not fit; leaves no trace if it fails.

        Raises
        ------
        DeviceMemoryError
            If not even :data:`_FEWEST` rows fit.
        """
        backend, done = self._columns.backend, []
        left: list[Frame] = [piece]
        while left:
            rows = left.pop()
            count = self._rows(rows)
            try:
                with self._columns.memory_errors():
                    done.append(self._reduce(rows))
            except DeviceMemoryError:
                if count <= _FEWEST:
                    raise
                half = count // 2
                left += [
                    backend.gather(rows, Span(half, count - half)), backend.gather(rows, Span(0, half))
                ]  # fmt: skip
        return done

    def _merged_where_it_fits(self) -> Frame | None:
        try:
            with self._columns.memory_errors():
                return self._merge(self._held)
        except DeviceMemoryError:
            return None

    def _given_up(self) -> Iterator[Frame]:
        """Let go of what is held: to disk where each group must come once, else out."""
        if self._node.once:
            if self._divisible:
                self._spill()
            return
        held, self._held, self._pending, self._merged_rows = self._held, [], 0, 0
        for state in held:
            self._metrics.early_groups += self._rows(state)
            yield self._finished(state)

    # -- on disk -------------------------------------------------------------------------------------------

    @property
    def _state_schema(self) -> pa.Schema:
        types = [*self._key_types, *(t for state in self._states for t in state.types)]
        return pa.schema([(f"s{i}", dtype) for i, dtype in enumerate(types)])

    def _spill(self) -> None:
        """Write what is held to disk, divided by the hash of its keys."""
        count = _FAN_OUTS[self._divisions]
        if self._store is None:
            self._store = self._new_store()
            self._parts = self._store.new_parts(self._state_schema, count)
        while self._held:
            divided = self._columns.partition(self._held.pop(0), len(self._node.keys), count)
            for rows, part in zip(divided, self._parts, strict=True):
                if self._rows(rows):
                    part.append(self._columns.backend.to_arrow(rows, self._state_schema))
        self._pending, self._merged_rows = 0, 0

    # -- reducing ------------------------------------------------------------------------------------------

    def _rows(self, frame: Frame) -> int:
        return self._columns.backend.frame_rows(frame)

    @property
    def _key_types(self) -> list[pa.DataType]:
        """Types of the keys in a state: floats are their bits."""
        kinds = [carried(_typed(key.expression)) for key in self._node.keys]
        bits = {32: pa.int32(), 64: pa.int64()}
        return [bits[kind.bit_width] if is_float(kind) else kind for kind in kinds]

    def _reduce(self, piece: Frame) -> Frame:
        """The state of some rows."""
        expressions = [key.expression for key in self._node.keys]
        for call in self._node.aggregates:
            expressions += _inputs(call)
        taken = computed(self._columns, piece, expressions)
        width = len(self._node.keys)
        keys = plain_keys(self._columns, self._columns.select(taken, range(width)))
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

        return self._state(taken, keys, ask)

    def _merge(self, states: Sequence[Frame]) -> Frame:
        # What comes from disk may have a group several times; it counts as pending until it is merged.
        if len(states) == 1 and not (self._divisions and self._pending):
            return states[0]
        whole = self._columns.concat(states)
        width = len(self._node.keys)
        place = width

        def ask(rows: Reducer[Frame], state: State[Frame]) -> Callable[[], Frame]:
            nonlocal place
            at = range(place, place + len(state.types))
            place = at.stop
            return state.merge(rows, at)

        return self._state(whole, self._columns.select(whole, range(width)), ask)

    def _state(
        self, frame: Frame, keys: Frame, ask: Callable[[Reducer[Frame], State[Frame]], Callable[[], Frame]]
    ) -> Frame:
        """Reduce the rows of a frame by key."""
        columns = self._columns
        groups = _Groups(columns, keys, by_id=any(state.two_passes for state in self._states))
        rows = Reducer(columns, frame, groups.ids, groups.reduce)
        makers = [ask(rows, state) for state in self._states]
        rows.run()
        parts = [maker() for maker in makers]
        return columns.beside([groups.keys, *parts]) if self._node.keys else columns.beside(parts)

    def _nothing(self) -> Frame:
        return self._columns.beside([state.nothing(self._columns) for state in self._states])

    def _finished(self, state: Frame) -> Frame:
        """Spark's buffers of the groups of a state."""
        columns, rows = self._columns, self._rows(state)
        parts: list[Frame] = []
        for at, key in enumerate(self._node.keys):
            dtype = logical(_typed(key.expression))
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
        self._metrics.groups += rows
        return columns.beside(parts)


class _Groups(Generic[Frame]):
    """The groups of some rows, and reductions over them in one order of groups."""

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
        """One value for each group, in the order of :attr:`keys`."""
        xp = self._columns.ops.xp
        if self._one:
            return [_whole(xp, reduction) for reduction in reductions]
        counting = reductions or [
            Reduction(Reduce.COUNT, xp.zeros(self._columns.backend.frame_rows(self._by), "int64"))
        ]
        keys, found = self._columns.grouped(self._by, counting)
        if self.ids is None:
            self.keys = keys
            return found
        order = xp.argsort(values_of(self._columns, keys, 0).data)
        return [Reduced(one.data[order], None if one.valid is None else one.valid[order]) for one in found]


def _whole(xp: Any, reduction: Reduction) -> Reduced:
    """One reduction over all rows."""
    data, valid = reduction.data, reduction.valid
    if reduction.kind is Reduce.COUNT:
        count = len(data) if valid is None else int(xp.count_nonzero(valid))
        return Reduced(xp.full(1, count, dtype="int64"))
    if valid is not None:
        data = data[xp.broadcast_to(valid, data.shape)]
    if data.shape[0] == 0:
        return Reduced(xp.zeros(1, dtype=data.dtype), xp.zeros(1, dtype=bool))
    found = {Reduce.SUM: xp.sum, Reduce.MIN: xp.min, Reduce.MAX: xp.max}[reduction.kind](data)
    return Reduced(found.reshape(1).astype(data.dtype))


def _inputs(call: AggregateCall) -> list[Expression]:
    """Arguments, then the filter: where that is not true, an argument is not evaluated, and so does not raise."""
    condition = call.filter
    if condition is None:
        return list(call.arguments)
    # A column cannot fail, and need not be of a type that a case can give.
    held = [a if isinstance(a, ColumnRef) else guarded(a, condition) for a in call.arguments]
    return [*held, condition]


def _typed(node: Expression) -> pa.DataType:
    assert node.type is not None
    return node.type
