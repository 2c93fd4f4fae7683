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
from gpujoin.model.hostgather import take
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.python_calls import GroupedRows, PythonAggregate, PythonCogroups, PythonRows, PythonWindow
from gpujoin.model.spec import JoinSpec, KeyPair, NullEquality

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpujoin.model.pipeline import PipelineMetrics
    from gpujoin.model.python_calls import PythonCaller, PythonCalls, PythonSettings


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
        inputs: Iterator[Any]
        rows: Iterator[pa.RecordBatch]
        if isinstance(node, PythonAggregate):
            inputs = _inputs_of_groups(node, _groups(node, node.keys, pieces, backend, piece_bytes), pending)
            results = self._results(partial(self._caller.of_inputs, node), inputs, node.settings)
            rows = (batch for result in results for batch in _beside(node, pending, result))
        elif isinstance(node, PythonWindow):
            inputs = _inputs_of_windows(node, pieces, backend, piece_bytes, pending)
            results = self._results(partial(self._caller.of_inputs, node), inputs, node.settings)
            rows = (batch for result in results for batch in _beside(node, pending, result))
        elif isinstance(node, PythonCogroups):
            inputs = _cogroups(node, pieces, backend, piece_bytes)
            rows = self._results(partial(self._caller.of_cogroups, node), inputs, node.settings)
        elif isinstance(node, PythonRows) and node.keys is not None:
            inputs = _groups(node, node.keys, pieces, backend, piece_bytes)
            rows = self._results(partial(self._caller.of_groups, node), inputs, node.settings)
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
    ) -> Iterator[pa.RecordBatch]:
        """Call functions; an error of theirs is told apart from one in computing the rows that they are given.

        The first rows are there before anything is called: what fails until then is tried again.
        """
        failed: list[BaseException] = []
        first = list(itertools.islice(inputs, 1))
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
    node: PythonRows | PythonAggregate, keys: tuple[int, ...], pieces: Iterator[Any], backend: Any, piece_bytes: int
) -> Iterator[GroupedRows]:
    """Give the rows of pieces that have whole groups, those of each group one after another."""
    for rows in _whole_groups(node.child.schema, pieces, backend, piece_bytes):
        if keys:
            order, bounds = _by_keys(keys, rows)
            yield GroupedRows(_ordered(rows, order), bounds.tolist())
        else:
            yield GroupedRows(rows, (0, rows.num_rows))


def _cogroups(
    node: PythonCogroups, pieces: Iterator[Any], backend: Any, piece_bytes: int
) -> Iterator[tuple[GroupedRows, GroupedRows]]:
    """Give the rows of both inputs, those of each group one after another."""
    for rows in _whole_groups(node.child.schema, pieces, backend, piece_bytes):
        order, bounds = _by_keys(node.keys, rows)
        is_right = rows.column(node.side).to_numpy(zero_copy_only=False)[order]
        right_before = np.concatenate([[0], np.cumsum(is_right)])[bounds]
        right = GroupedRows(_ordered(rows.select(list(node.right)), order[is_right]), right_before.tolist())
        left = GroupedRows(_ordered(rows.select(list(node.left)), order[~is_right]), (bounds - right_before).tolist())
        yield left, right


def _whole_groups(schema: pa.Schema, pieces: Iterator[Any], backend: Any, piece_bytes: int) -> Iterator[pa.RecordBatch]:
    for piece in pieces:
        rows = pa.Table.from_batches(list(backend.give_out(piece, schema, piece_bytes)), schema)
        batches = rows.combine_chunks().to_batches()
        if len(batches) > 1:  # a column of texts or bytes has more of them than 32-bit offsets reach
            raise GpuJoinError(
                f"{rows.num_rows:,} rows of groups that came together have more bytes than a batch holds"
            )
        yield from batches


def _inputs_of_windows(
    node: PythonWindow, pieces: Iterator[Any], backend: Any, piece_bytes: int, pending: deque[pa.RecordBatch]
) -> Iterator[GroupedRows]:
    """Give what the functions of a window take, and keep the rows that they are of."""
    for rows in _whole_groups(node.child.schema, pieces, backend, piece_bytes):
        if node.keys or node.order is not None:
            order, bounds = _by_keys(node.keys, rows, node.order)
            ordered, starts = _ordered(rows, order), bounds.tolist()
        else:
            ordered, starts = rows, [0, rows.num_rows]
        pending.append(ordered)
        yield GroupedRows(ordered.select(list(node.inputs)), starts)


def _by_keys(
    keys: tuple[int, ...], rows: pa.RecordBatch, within: int | None = None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Sort rows by their keys, and those of a group by the column ``within``.

    Gives their order, and in it the place of each group's first row, and their number.
    """
    codes = pa.table({})
    if keys:
        pairs = tuple(KeyPair(key, key, NullEquality.EQUAL) for key in keys)
        codec = KeyCodec.from_spec(JoinSpec(JoinType.INNER, pairs), rows.schema, rows.schema)
        codes = codec.codes(pa.Table.from_batches([rows]), Side.LEFT)
        codes = codes.rename_columns([f"k{n}" for n in range(codes.num_columns)])
    columns = dict(zip(codes.column_names, codes.columns, strict=True))
    if within is not None:
        columns["within"] = rows.column(within)
    order = pc.sort_indices(pa.table(columns), sort_keys=[(name, "ascending") for name in columns])
    is_first = np.zeros(len(order), np.bool_)
    is_first[:1] = True
    for column in codes.columns:
        values = pc.take(column, order).combine_chunks()
        same = pc.equal(values[:-1], values[1:]).to_numpy(zero_copy_only=False)
        is_first[1:] |= ~same
    return order.to_numpy().astype(np.int64), np.append(np.flatnonzero(is_first), len(order))


def _ordered(rows: pa.RecordBatch, order: npt.NDArray[np.int64]) -> pa.RecordBatch:
    places = pa.array(order)
    return pa.RecordBatch.from_arrays([take(column, places) for column in rows.columns], schema=rows.schema)


def _inputs_of_groups(
    node: PythonAggregate, groups: Iterator[GroupedRows], pending: deque[pa.RecordBatch]
) -> Iterator[GroupedRows]:
    """Give what the functions of a node take, and keep the keys of the groups."""
    for each in groups:
        first = pa.array(each.bounds[:-1], pa.int64())
        keys = each.rows.select(list(node.keys))
        if node.keys:
            keys = pa.RecordBatch.from_arrays([take(column, first) for column in keys.columns], schema=keys.schema)
        else:
            keys = keys.slice(0, len(first))
        pending.append(keys)
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
    by_size = max(1, int(batch.num_rows * settings.batch_bytes / max(1, batch.nbytes)))
    length = min(settings.batch_rows, by_size)
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
