r"""The symmetric join of two streams: each new row meets the kept rows of the other side, and is then kept itself.

The unit is a micro-batch. An example, ``l LEFT JOIN r ON l.k = r.k AND r.u BETWEEN l.t AND l.t + 5 s``, times in
seconds; the watermark counts in the micro-batch that it is given with for eviction, and in the next one for lateness::

    push  watermark   new left   new right    returned                     kept afterwards
    1     0           a 10       a 12         (a 10, a 12)                 left a 10 matched; right a 12
    2     10          b 11       a 14         (a 10, a 14)                 left a 10, b 11; right a 12, a 14
    3     17          c 9, c 18               (b 11, null); c 9 is late    left c 18

With the third push left rows at or before 17 - 5.001 s go, and right ones at or before 17 - 0.001 s.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpujoin.backends.cpu import column_evaluator
from gpujoin.backends.registry import BackendRequest, create
from gpujoin.config import Options
from gpujoin.engine.join.build import BuiltSide
from gpujoin.engine.join.checks import check_evaluable
from gpujoin.engine.join.derive import Rest
from gpujoin.engine.join.layout import JoinLayout
from gpujoin.engine.join.probe import Run, join_morsel
from gpujoin.engine.join.sinks import sink_of_batches
from gpujoin.engine.memory import HostMemory
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.errors import JoinSpecError, StreamStateError
from gpujoin.model.backend import AnyBackend, BackendName
from gpujoin.model.hostgather import one_batch, own_bytes
from gpujoin.model.jointype import Side
from gpujoin.model.layouts import nulls
from gpujoin.streams.format import ChunkStore, Manifest, Marks, MemoryStore, fingerprint
from gpujoin.streams.join import SemiOrder, StreamJoin
from gpujoin.streams.plan import MILLISECOND, plan_stream_join
from gpujoin.streams.state import (
    LiveRows,
    State,
    StateOptions,
    StreamMetrics,
    rows_at,
    span,
    up_to,
)

Batches = Iterable[pa.RecordBatch]


class SymmetricJoin:
    """A join of two streams, of one partition of their keys.

    Parameters
    ----------
    join : StreamJoin
        What is joined; its condition is resolved.
    store : ChunkStore or None
        Where the rows of the state are kept; ``None``: in this process.
    manifest : bytes or None
        Manifest of the state to go on from, as :meth:`.Manifest.to_bytes` gave it; ``None``: the state is empty.
    options : Options or None
        Batch sizes and memory budget.
    state_options : StateOptions or None
        Sizes of the state's chunks.
    backend : Backend or None
        Backend to run on; ``None``: the CPU backend with ``options.cpu_threads`` threads.
    metrics : JoinMetrics or None
        Counters of the joins of rows.

    Raises
    ------
    JoinSpecError, KeyTypeError, ConditionError
        If the specification does not fit the schemas.
    StreamStateError
        If the manifest is that of another join.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from gpujoin import JoinSpec, JoinType, KeyPair
    >>> from gpujoin.streams.symmetric import SymmetricJoin
    >>> from gpujoin.streams.join import StreamJoin
    >>> time = pa.timestamp("us", "UTC")
    >>> left, right = pa.schema([("k", pa.string()), ("t", time)]), pa.schema([("j", pa.string()), ("u", time)])
    >>> spec = JoinSpec(JoinType.LEFT, (KeyPair(0, 0), KeyPair(1, 1)), left_output=(0,), right_output=(0,))
    >>> join = SymmetricJoin(StreamJoin(spec, left, right, left_times=(1,), right_times=(1,)))
    >>> def rows(schema, second, *keys):
    ...     times = pa.array([second * 10**6] * len(keys), time)
    ...     return [pa.RecordBatch.from_arrays([pa.array(keys), times], schema=schema)]
    >>> for batch in join.push(rows(left, 7, "a", "b"), rows(right, 7, "a")):
    ...     print(batch.to_pylist())
    [{'k': 'a', 'j': 'a'}]
    >>> for batch in join.push([], [], watermark_ms=7000):
    ...     print(batch.to_pylist())
    [{'k': 'b', 'j': None}]
    """

    def __init__(
        self,
        join: StreamJoin,
        store: ChunkStore | None = None,
        manifest: bytes | None = None,
        *,
        options: Options | None = None,
        state_options: StateOptions | None = None,
        backend: AnyBackend | None = None,
        metrics: JoinMetrics | None = None,
    ) -> None:
        self.plan = plan_stream_join(join)
        self.options = options or Options()
        self.state_options = state_options or StateOptions()
        self.store: ChunkStore = MemoryStore() if store is None else store
        self.metrics = StreamMetrics()
        self.join_metrics = metrics if metrics is not None else JoinMetrics()
        self.backend = backend or create(BackendName.CPU, BackendRequest(threads=self.options.cpu_threads or 1))
        for condition in (*self.plan.filters.values(), self.plan.spec.condition):
            check_evaluable(condition)
        self._layouts = {side: JoinLayout.from_spec(self.plan.spec, join.left, join.right, side) for side in Side}
        self._manifest = _manifest(join, manifest)

    @property
    def output_schema(self) -> pa.Schema:
        """Schema of every batch returned."""
        return self._layouts[Side.LEFT].output_schema

    @property
    def manifest(self) -> Manifest:
        """The state to save after the last micro-batch that was taken as a whole."""
        return self._manifest

    def push(
        self, left: Batches, right: Batches, watermark_ms: int = 0, *, late_ms: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Join the new rows of a micro-batch with each other and with those before, then let go of old ones.

        The state changes, and the store is written to, when all batches have been taken.

        Parameters
        ----------
        left, right : iterable of RecordBatch
            New rows of both sides; both may be empty.
        watermark_ms : int
            Watermark of this micro-batch in milliseconds since 1970; a lower one than the last
            counts as the last.
        late_ms : int or None
            Rows at or before this time are late; ``None``: the watermark of the micro-batch before, as in Spark.

        Yields
        ------
        RecordBatch
            Rows of ``output_schema``, in batches near ``options.batch_bytes``.
        """
        state = self._state()
        watermark_ms = max(watermark_ms, self._manifest.watermark_ms)
        late_ms = self._manifest.watermark_ms if late_ms is None else late_ms
        yield from self._coalesced(self._pushed(state, left, right, watermark_ms, late_ms * MILLISECOND))
        self._manifest = state.commit(watermark_ms)

    def rows(self, side: Side) -> Iterator[pa.RecordBatch]:
        """Rows of a side that are in the state and may still match or be returned."""
        return self._state().rows(side)

    def _state(self) -> State:
        return State(self.plan, self._manifest, self.store, self.state_options, self.metrics)

    def _pushed(
        self, state: State, left: Batches, right: Batches, watermark_ms: int, late: int
    ) -> Iterator[pa.RecordBatch]:
        """Output of a micro-batch; rows at or before ``late``, in microseconds, are dropped."""
        new: dict[Side, _NewRows] = {}
        for side, batches in ((Side.LEFT, left), (Side.RIGHT, right)):
            new[side], failed = self._new_rows(side, batches, late)
            if self.plan.padded(side):
                yield self._padded(side, failed)
        thresholds = {side: self.plan.threshold(side, watermark_ms) for side in Side}
        if self.plan.ends_at_match and self.plan.join.semi_order is SemiOrder.RIGHT_FIRST:
            yield from self._matched_right_first(state, new, thresholds[Side.RIGHT])
        else:
            yield from self._matched(state, new)
        for side in Side:
            yield from self._evicted(state, side, new[side], thresholds[side])
            state.merge(side)

    # -- new rows ------------------------------------------------------------------------------------------

    def _new_rows(self, side: Side, batches: Batches, late: int) -> tuple[_NewRows, pa.RecordBatch]:
        """Split new rows into those that can match and those that fail the conjuncts of the side, without late ones."""
        schema = self.plan.join.schema(side)
        rows = one_batch([_checked(batch, schema, side) for batch in batches if batch.num_rows], schema)
        is_late = up_to(rows, self.plan.late[side], late)
        self.metrics.late_rows[side] += int(np.count_nonzero(is_late))
        rows = rows_at(rows, ~is_late)
        passes = self._passes(side, rows)
        failed = rows_at(rows, ~passes)
        if not self.plan.padded(side):
            null_keys = self._layouts[side].codec.null_mask(rows, side)
            passes = passes if null_keys is None else passes & ~null_keys
        rows = rows_at(rows, passes)
        self.metrics.new_rows[side] += rows.num_rows
        return _NewRows(rows, np.zeros(rows.num_rows, np.bool_)), failed

    def _passes(self, side: Side, rows: pa.RecordBatch) -> Marks:
        condition = self.plan.filters[side]
        if condition is None or not rows.num_rows:
            return np.ones(rows.num_rows, np.bool_)
        nothing = pa.RecordBatch.from_arrays([], names=[])
        left, right = (rows, nothing) if side is Side.LEFT else (nothing, rows)
        holds = column_evaluator()(condition, left, right, rows.num_rows)
        return pc.fill_null(holds, False).to_numpy(zero_copy_only=False)

    # -- matches -------------------------------------------------------------------------------------------

    def _matched(self, state: State, new: dict[Side, _NewRows]) -> Iterator[pa.RecordBatch]:
        """Rows that match: new left ones with kept right ones, then kept and new left ones with new right ones."""
        left, right = new[Side.LEFT], new[Side.RIGHT]
        for rows in self._in_budget(left):
            times = span(rows.rows, self.plan.times[Side.LEFT])
            yield from self._join(Side.LEFT, rows, state.live(Side.RIGHT, times))
        for rows in self._in_budget(right):
            times = span(rows.rows, self.plan.times[Side.RIGHT])
            yield from self._join(Side.RIGHT, rows, self._left_rows(state, left, times))

    def _matched_right_first(
        self, state: State, new: dict[Side, _NewRows], threshold: int | None
    ) -> Iterator[pa.RecordBatch]:
        """Find the left rows that match: old with new right rows, then new with old and staying new ones."""
        left, right = new[Side.LEFT], new[Side.RIGHT]
        for rows in self._in_budget(right):
            times = span(rows.rows, self.plan.times[Side.RIGHT])
            yield from self._join(Side.RIGHT, rows, state.live(Side.LEFT, times))
        staying = LiveRows(rows_at(right.rows, ~up_to(right.rows, self.plan.times[Side.RIGHT], threshold)), None)
        for rows in self._in_budget(left):
            times = span(rows.rows, self.plan.times[Side.LEFT])
            yield from self._join(Side.LEFT, rows, chain(state.live(Side.RIGHT, times), [staying]))

    def _in_budget(self, new: _NewRows) -> Iterator[_NewRows]:
        """New rows in slices, each of which may be built in memory."""
        length, limit = new.rows.num_rows, HostMemory(self.options.memory_budget).build_bytes
        slices = min(length, -(-own_bytes(new.rows) // limit)) or 1
        ends = [length * number // slices for number in range(slices + 1)]
        for start, end in pairwise(ends):
            if start < end:
                yield _NewRows(new.rows.slice(start, end - start), new.matched[start:end])

    def _left_rows(self, state: State, left: _NewRows, times: tuple[int, int] | None) -> Iterator[LiveRows]:
        yield from state.live(Side.LEFT, times)
        waiting = np.flatnonzero(~left.matched) if self.plan.ends_at_match else np.arange(len(left.matched))
        if len(waiting):
            yield LiveRows(rows_at(left.rows, waiting), left.matched, waiting)

    def _join(self, build_side: Side, new: _NewRows, parts: Iterable[LiveRows]) -> Iterator[pa.RecordBatch]:
        """Join new rows of one side, which are built, with probe rows of the other side, and mark the matches."""
        run: Run | None = None
        for part in parts:
            if run is None:
                sink = sink_of_batches(self._layouts[build_side], self.backend, self.options)
                built = BuiltSide.with_fallback(sink, new.rows, self.join_metrics)
                run = Run.start(built, self.join_metrics)
            matched = yield from self._probed(run, part.rows)
            if matched is None or not matched.any():
                continue
            part.mark(matched)
            if self.plan.ends_at_match:
                yield self._left_output(rows_at(part.rows, matched))
        if run is None or run.marks is None:
            return
        marks = run.marks.on_host
        new.matched[marks] = True
        if self.plan.ends_at_match:
            yield self._left_output(rows_at(new.rows, marks))

    def _probed(self, run: Run, rows: pa.RecordBatch) -> Generator[pa.RecordBatch, None, Marks | None]:
        """Probe with rows; returns the marks of those that matched, or ``None`` if they are not counted."""
        rest = run.built.layout.derivation.probe_rest
        matched = None if rest is Rest.NOTHING else np.zeros(rows.num_rows, np.bool_)
        most = run.built.backend.morsel_rows
        for start in range(0, rows.num_rows, most):
            marks = None if matched is None else matched[start : start + most]
            yield from join_morsel(run, rows.slice(start, most), marks)
        return matched

    # -- old rows ------------------------------------------------------------------------------------------

    def _evicted(self, state: State, side: Side, new: _NewRows, threshold: int | None) -> Iterator[pa.RecordBatch]:
        """Evict rows at or before a threshold, and return those that never matched; new rows stay."""
        for unmatched in state.evict(side, threshold):
            yield self._padded(side, unmatched)
        rows, matched = new.rows, new.matched
        gone = up_to(rows, self.plan.times[side], threshold)
        if self.plan.padded(side):
            yield self._padded(side, rows_at(rows, gone & ~matched))
        elif self.plan.ends_at_match and side is Side.LEFT:
            gone |= matched
        state.add(side, rows_at(rows, ~gone), matched[~gone])

    # -- output --------------------------------------------------------------------------------------------

    def _left_output(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        columns = [rows.column(position) for position in self.plan.spec.left_output]
        return self._batch(columns, rows.num_rows)

    def _padded(self, side: Side, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of one side with nulls in place of the other."""
        self.metrics.padded_rows += rows.num_rows
        columns = []
        for each in Side:
            schema = self.plan.join.schema(each)
            for position in self.plan.spec.output_of(each):
                absent = nulls(rows.num_rows, schema.field(position).type)
                columns.append(rows.column(position) if each is side else absent)
        return self._batch(columns, rows.num_rows)

    def _batch(self, columns: list[pa.Array], length: int) -> pa.RecordBatch:
        if not columns:
            return pa.record_batch({"rows": pa.nulls(length)}).select([])
        return pa.RecordBatch.from_arrays(columns, schema=self.output_schema)

    def _coalesced(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Concatenate small batches, and leave out empty ones."""
        waiting: list[pa.RecordBatch] = []
        size = 0
        for batch in batches:
            if not batch.num_rows:
                continue
            waiting.append(batch)
            size += batch.nbytes
            if size >= self.options.batch_bytes:
                yield one_batch(waiting, self.output_schema)
                waiting, size = [], 0
        if waiting:
            yield one_batch(waiting, self.output_schema)


@dataclass(frozen=True, slots=True)
class _NewRows:
    """New rows of one side, and which of them have matched."""

    rows: pa.RecordBatch
    matched: Marks


def _manifest(join: StreamJoin, saved: bytes | None) -> Manifest:
    expected = fingerprint(join)
    if saved is None:
        return Manifest(expected)
    manifest = Manifest.from_bytes(saved)
    if manifest.fingerprint != expected:
        raise StreamStateError(
            "the saved state is that of another join: its type, keys, condition, columns or watermarks differ; start"
            " the query from a new checkpoint"
        )
    return manifest


def _checked(batch: pa.RecordBatch, schema: pa.Schema, side: Side) -> pa.RecordBatch:
    """A batch under the names of the join's schema.

    Raises
    ------
    JoinSpecError
        If it has other columns.
    """
    if batch.schema.types != schema.types:
        raise JoinSpecError(
            f"a {side.value} batch has columns {batch.schema.types} where the join was made for {schema.types}; cast it"
            " first"
        )
    return pa.RecordBatch.from_arrays(batch.columns, schema=schema)
