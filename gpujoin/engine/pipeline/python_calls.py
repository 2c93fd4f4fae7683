"""Calls Python functions for the rows of a pipeline, in batches of the size that Spark gives them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gpujoin.errors import PythonFunctionError, RelationError

if TYPE_CHECKING:
    from gpujoin.model.pipeline import PipelineMetrics
    from gpujoin.model.python_calls import PythonCaller, PythonCalls


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
        self, node: PythonCalls, pieces: Iterator[Any], backend: Any, metrics: PipelineMetrics, piece_bytes: int
    ) -> Iterator[Any]:
        """Compute a node's rows from pieces of its input.

        The first piece has the rows of one batch, each further one twice as many: whoever wants few rows has few of
        them computed.
        """
        rows: deque[pa.RecordBatch] = deque()
        results = self._results(node, _batches(node, pieces, backend, piece_bytes, rows))
        batches: list[pa.RecordBatch] = []
        most, count, size = node.settings.batch_rows, 0, 0
        for result in results:
            for batch in _beside(node, rows, result):
                batches.append(batch)
                count, size = count + batch.num_rows, size + batch.nbytes
            if count >= most or size >= piece_bytes:
                yield backend.take_in(batches, node.schema, metrics)
                batches, most, count, size = [], 2 * most, 0, 0
        if batches:
            yield backend.take_in(batches, node.schema, metrics)

    def _results(self, node: PythonCalls, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Call the functions; an error of theirs is told apart from one in computing the rows that they are given."""
        if self._caller is None:
            raise RelationError("nothing was given to run() that calls Python functions")
        failed: list[BaseException] = []

        def watched() -> Iterator[pa.RecordBatch]:
            try:
                for batch in batches:
                    self._called = True
                    yield batch
            except GeneratorExit:
                raise
            except BaseException as problem:
                failed.append(problem)
                raise

        results: Iterator[pa.RecordBatch] | None = None
        while True:
            try:
                results = results or self._caller.results(node, watched())
                result = next(results, None)
            except (Exception, SystemExit) as problem:
                if not failed:
                    raise PythonFunctionError(problem) from problem
                result = None
            if failed:  # which a function may have caught
                raise failed[0]
            if result is None:
                return
            yield result


def _batches(
    node: PythonCalls, pieces: Iterator[Any], backend: Any, piece_bytes: int, rows: deque[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Give batches of what the functions take, and keep the rows that they are of."""
    expressions = [value.expression for value in node.with_inputs]
    width = len(node.child.schema)
    schema = pa.schema([*node.child.schema, *(value.field for value in node.with_inputs[width:])])
    for piece in pieces:
        for batch in backend.give_out(backend.project(piece, expressions), schema, piece_bytes):
            for part in _parts(batch, node.settings.batch_rows, node.settings.batch_bytes):
                rows.append(part.select(list(range(width))))
                yield part.select(list(node.input_places))


def _parts(batch: pa.RecordBatch, most_rows: int, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Cut a batch into slices of at most some rows, of about some bytes at most."""
    by_size = max(1, int(batch.num_rows * most_bytes / max(1, batch.nbytes)))
    length = min(most_rows, by_size)
    for start in range(0, batch.num_rows, length):
        yield batch.slice(start, length)


def _beside(node: PythonCalls, rows: deque[pa.RecordBatch], result: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Put results beside the next rows; a function of all batches may cut its results in other places."""
    start = 0
    while start < result.num_rows:
        own = rows.popleft()
        length = min(own.num_rows, result.num_rows - start)
        if length < own.num_rows:
            rows.appendleft(own.slice(length))
            own = own.slice(0, length)
        columns = [*own.columns, *result.slice(start, length).columns]
        yield pa.RecordBatch.from_arrays(columns, schema=node.schema)
        start += length
