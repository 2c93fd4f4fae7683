"""Calls Python functions for the rows of a pipeline, in batches of the size that Spark gives them."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpujoin.engine.keys import KeyCodec
from gpujoin.errors import GpuJoinError, PythonFunctionError, RelationError
from gpujoin.model.hostgather import own_bytes, row_bytes, take_rows
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.python_calls import GroupedRows, PythonAggregate, PythonCogroups, PythonRows, PythonWindow
from gpujoin.model.spec import JoinSpec, KeyPair, NullEquality

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpujoin.model.pipeline import PipelineMetrics
    from gpujoin.model.python_calls import PythonCaller, PythonCalls, PythonSettings


_MOST_BYTES = 1 << 30
"""Bytes of rows that become one batch: 32-bit offsets of texts and lists reach to twice as many."""


class CallingRun:
    """Calls the functions of a run, and knows whether any was called."""

    def __init__(self, caller: PythonCaller | None) -> None:
        self._caller = caller
        self._called = False

    @property
    def repeatable(self) -> bool:
        """Whether no function was called yet: what one does besides giving a result is done once."""
        return not self._called

    def pieces(
        self,
        node: PythonCalls | PythonRows | PythonAggregate | PythonCogroups | PythonWindow,
        pieces: Iterator[Any],
        backend: Any,
        metrics: PipelineMetrics,
        piece_bytes: int,
    ) -> Iterator[Any]:
        """Compute a node's rows from pieces of its input.

        The first piece has the rows of one batch, each further one twice as many: whoever wants few rows has few of
        them computed.
        """
        if self._caller is None:
            raise RelationError("nothing was given to run() that calls Python functions")
        pending: deque[pa.RecordBatch] = deque()

        def groups(keys: tuple[int, ...], within: int | None = None) -> Iterator[GroupedRows]:
            return _groups(keys, node.child.schema, pieces, backend, piece_bytes, within)

        inputs: Iterator[Any]
        rows: Iterator[pa.RecordBatch]
        if isinstance(node, (PythonAggregate, PythonWindow)):
            if isinstance(node, PythonAggregate):
                inputs = _inputs_of_groups(node, groups(node.keys), pending)
            else:
                inputs = _inputs_of_windows(node, groups(node.keys, node.order), pending)
            results = self._results(partial(self._caller.of_inputs, node), inputs, node.settings, without_input=False)
            rows = (batch for result in results for batch in _beside(node, pending, result))
        elif isinstance(node, PythonCogroups):
            inputs = _cogroups(node, pieces, backend, piece_bytes)
            rows = self._results(partial(self._caller.of_cogroups, node), inputs, node.settings, without_input=False)
        elif isinstance(node, PythonRows) and node.keys is not None:
            inputs = groups(node.keys)
            rows = self._results(partial(self._caller.of_groups, node), inputs, node.settings, without_input=False)
        elif isinstance(node, PythonRows):
            inputs = _batches(node, pieces, backend, piece_bytes)
            rows = self._results(partial(self._caller.rows, node), inputs, node.settings)
        else:
            inputs = _inputs(node, pieces, backend, piece_bytes, pending)
            results = self._results(partial(self._caller.results, node), inputs, node.settings)
            rows = (batch for result in results for batch in _beside(node, pending, result))
        batches: list[pa.RecordBatch] = []
        most, count, size = node.settings.batch_rows, 0, 0
        for batch in rows:
            batches.append(batch)
            count, size = count + batch.num_rows, size + batch.nbytes
            if count >= most or size >= piece_bytes:
                yield backend.take_in(batches, node.schema, metrics)
                batches, most, count, size = [], 2 * most, 0, 0
        if batches:
            yield backend.take_in(batches, node.schema, metrics)

    def _results(
        self,
        call: Callable[[Iterator[Any]], Iterator[pa.RecordBatch]],
        inputs: Iterator[Any],
        settings: PythonSettings,
        *,
        without_input: bool = True,
    ) -> Iterator[pa.RecordBatch]:
        """Call functions; an error of theirs is told apart from one in computing the rows that they are given.

        The first rows are there before anything is called: what fails until then is tried again. ``without_input``:
        functions are called where there are none.
        """
        failed: list[BaseException] = []
        first = list(itertools.islice(inputs, 1))
        if not first and not without_input:
            return
        self._called = True

        def watched() -> Iterator[Any]:
            try:
                yield from first
                yield from inputs
            except GeneratorExit:
                raise
            except BaseException as problem:
                failed.append(problem)
                raise

        results: Iterator[pa.RecordBatch] | None = None
        while True:
            result = None
            try:
                results = results or call(watched())
                result = next(results, None)
            except GpuJoinError:
                if not failed:
                    raise
            except (Exception, SystemExit) as problem:  # the user's code raises whatever it likes
                if not failed:
                    raise PythonFunctionError(problem, simplified=settings.simplified_tracebacks) from problem
            if failed:  # which a function may have caught
                raise failed[0]
            if result is None:
                return
            yield result


def _batches(node: PythonRows, pieces: Iterator[Any], backend: Any, piece_bytes: int) -> Iterator[pa.RecordBatch]:
    """Give the rows of a node's input in batches of the size that Spark gives."""
    for piece in pieces:
        for batch in backend.give_out(piece, node.child.schema, piece_bytes):
            yield from _parts(batch, node.settings)


def _groups(
    keys: tuple[int, ...],
    schema: pa.Schema,
    pieces: Iterator[Any],
    backend: Any,
    piece_bytes: int,
    within: int | None = None,
) -> Iterator[GroupedRows]:
    """Give the rows of pieces that have whole groups, those of each group one after another, ordered ``within`` it."""
    for piece in pieces:
        rows = pa.Table.from_batches(list(backend.give_out(piece, schema, piece_bytes)), schema)
        if not rows.num_rows:
            continue
        order, bounds = _by_keys(keys, rows, within)
        is_small = own_bytes(rows) <= _MOST_BYTES
        batches = (rows.combine_chunks() if is_small else rows).to_batches()
        ranges = [(0, len(bounds) - 1)] if is_small else _ranges(batches, order, bounds)
        for first, last in ranges:
            own = bounds[first : last + 1]
            yield GroupedRows(_gather(batches, order[own[0] : own[-1]]), (own - own[0]).tolist())


def _cogroups(
    node: PythonCogroups, pieces: Iterator[Any], backend: Any, piece_bytes: int
) -> Iterator[tuple[GroupedRows, GroupedRows]]:
    """Give the rows of the left and of the right input, those of each group one after another."""
    for each in _groups(node.keys, node.child.schema, pieces, backend, piece_bytes):
        is_right = each.rows.column(node.side).to_numpy(zero_copy_only=False)
        bounds = np.array(each.bounds)
        right_before = np.concatenate([[0], np.cumsum(is_right)])[bounds]
        left = _gather([each.rows.select(list(node.left))], np.flatnonzero(~is_right))
        right = _gather([each.rows.select(list(node.right))], np.flatnonzero(is_right))
        yield GroupedRows(left, (bounds - right_before).tolist()), GroupedRows(right, right_before.tolist())


def _by_keys(
    keys: tuple[int, ...], rows: pa.Table, within: int | None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Sort rows by their keys, and those of a group by the column ``within``.

    Gives their order, and in it the place of each group's first row, and their number.
    """
    columns: dict[str, pa.ChunkedArray] = {}
    if keys:
        own = rows.select(list(keys))
        pairs = tuple(KeyPair(n, n, NullEquality.EQUAL) for n in range(len(keys)))
        codes = KeyCodec.from_spec(JoinSpec(JoinType.INNER, pairs), own.schema, own.schema).codes(own, Side.LEFT)
        columns = {f"k{n}": column for n, column in enumerate(codes.columns)}
    coded = list(columns.values())
    if within is not None:
        columns["within"] = rows.column(within)
    if not columns:
        return np.arange(rows.num_rows), np.array([0, rows.num_rows])
    order = pc.sort_indices(pa.table(columns), sort_keys=[(name, "ascending") for name in columns])
    is_first = np.zeros(len(order), np.bool_)
    is_first[0] = True
    for column in coded:
        values = pc.take(column, order).combine_chunks()
        same = pc.equal(values[:-1], values[1:]).to_numpy(zero_copy_only=False)
        is_first[1:] |= ~same
    return order.to_numpy().astype(np.int64), np.append(np.flatnonzero(is_first), len(order))


def _ranges(
    batches: list[pa.RecordBatch], order: npt.NDArray[np.int64], bounds: npt.NDArray[np.int64]
) -> Iterator[tuple[int, int]]:
    """Divide groups into ranges of about as many bytes as a batch may have, or of one group that is larger."""
    sizes = np.concatenate([_row_sizes(batch) for batch in batches])[order]
    before = np.concatenate([[0], np.cumsum(sizes)])[bounds]
    first = 0
    while first < len(bounds) - 1:
        last = max(first + 1, int(np.searchsorted(before, before[first] + _MOST_BYTES, "right")) - 1)
        yield first, last
        first = last


def _row_sizes(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    sizes = np.zeros(batch.num_rows, np.int64)
    for column in batch.columns:
        of_column = row_bytes(column)
        if of_column is not None:
            sizes += of_column
    return sizes


def _gather(batches: list[pa.RecordBatch], places: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """Gather rows of batches by their places in all of them."""
    if len(batches) == 1:
        return take_rows(batches[0], pa.array(places))
    starts = np.cumsum([0, *(batch.num_rows for batch in batches)])
    of_batch = np.searchsorted(starts, places, "right") - 1
    by_batch = np.argsort(of_batch, kind="stable")
    parts = [take_rows(batch, pa.array(places[of_batch == n] - starts[n])) for n, batch in enumerate(batches)]
    back = np.empty(len(places), np.int64)
    back[by_batch] = np.arange(len(places))
    columns = [pa.concat_arrays(each) for each in zip(*(part.columns for part in parts), strict=True)]
    return take_rows(pa.RecordBatch.from_arrays(columns, schema=batches[0].schema), pa.array(back))


def _inputs_of_groups(
    node: PythonAggregate, groups: Iterator[GroupedRows], pending: deque[pa.RecordBatch]
) -> Iterator[GroupedRows]:
    """Give what the functions of a node take, and keep the keys of the groups."""
    for each in groups:
        keys = each.rows.select(list(node.keys))
        first = pa.array(each.bounds[:-1], pa.int64())
        pending.append(take_rows(keys, first) if node.keys else keys.slice(0, len(first)))
        yield GroupedRows(each.rows.select(list(node.inputs)), each.bounds)


def _inputs_of_windows(
    node: PythonWindow, partitions: Iterator[GroupedRows], pending: deque[pa.RecordBatch]
) -> Iterator[GroupedRows]:
    """Give what the functions of a window take, and keep the rows that they are of."""
    for each in partitions:
        pending.append(each.rows)
        yield GroupedRows(each.rows.select(list(node.inputs)), each.bounds)


def _inputs(
    node: PythonCalls, pieces: Iterator[Any], backend: Any, piece_bytes: int, pending: deque[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Give batches of what the functions of a node take, and keep the rows that they are of."""
    expressions = [value.expression for value in node.with_inputs]
    width = len(node.child.schema)
    schema = pa.schema([*node.child.schema, *(value.field for value in node.with_inputs[width:])])
    for piece in pieces:
        for batch in backend.give_out(backend.project(piece, expressions), schema, piece_bytes):
            for part in _parts(batch, node.settings):
                pending.append(part.select(list(range(width))))
                yield part.select(list(node.input_places))


def _parts(batch: pa.RecordBatch, settings: PythonSettings) -> Iterator[pa.RecordBatch]:
    """Cut a batch into slices of at most some rows, of about some bytes at most."""
    length = settings.rows_at_a_time(batch)
    for start in range(0, batch.num_rows, length):
        yield batch.slice(start, length)


def _beside(
    node: PythonCalls | PythonAggregate | PythonWindow, pending: deque[pa.RecordBatch], result: pa.RecordBatch
) -> Iterator[pa.RecordBatch]:
    """Put results beside the next rows; a function of all batches may cut its results in other places."""
    start = 0
    while start < result.num_rows:
        own = pending.popleft()
        length = min(own.num_rows, result.num_rows - start)
        if length < own.num_rows:
            pending.appendleft(own.slice(length))
            own = own.slice(0, length)
        columns = [*own.columns, *result.slice(start, length).columns]
        yield pa.RecordBatch.from_arrays(columns, schema=node.schema)
        start += length
