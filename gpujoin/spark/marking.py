"""Semi, anti and existence joins whose left side is broadcast: tasks mark left rows, one task returns them.

Each task meets a share of the right rows only, so what it finds is which left rows have a match *there*. A left row has
a match if any task says so; that is settled by one last task, which puts the marks together and returns left rows by
them. Left rows are numbered by their place in the broadcast, which all tasks read alike.
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpujoin.engine.hostgather import take
from gpujoin.engine.join.derive import Rest, derive
from gpujoin.engine.join.hash_join import HashJoin
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.spec import JoinSpec
from gpujoin.spark.blobrows import Role
from gpujoin.spark.broadcast import open_payload, read_payload
from gpujoin.spark.metrics import ExchangeMetrics, Part, TaskRecord
from gpujoin.spark.worker import Batches, JoinTerms, Task, borrowed, conformed, output_of, task_backend

MARKS_DDL = "marks binary"
_NUMBER = "gpujoin_row"
_MARKS: list[pa.Field[pa.DataType]] = [pa.field("marks", pa.binary())]
_MARKS_SCHEMA = pa.schema(_MARKS)


@dataclass(frozen=True)
class MarkBroadcast:
    """Finds the broadcast rows that have a match among the task's; gives a bit for each, in one value.

    Attributes
    ----------
    terms : JoinTerms
        The join, its left side built.
    key : str
        Names the broadcast.
    """

    terms: JoinTerms
    key: str

    def run(self, batches: Batches, task: Task) -> Iterator[pa.RecordBatch]:
        """Mark rows; without rows of its own the task gives nothing."""
        terms, metrics = self.terms, JoinMetrics()
        notes: tuple[str, ...] = ()
        source = (batch for batch in batches if batch.num_rows)
        first = next(source, None)
        if first is not None:
            with task_backend(terms, task, metrics) as chosen:
                notes = chosen.notes

                def make() -> HashJoin:
                    join = HashJoin(
                        _of_numbers(terms.spec, terms.left), numbered_schema(terms.left), terms.right,
                        build_side=Side.LEFT, options=terms.options, backend=chosen.backend, metrics=metrics,
                        probe_rows=terms.probe_rows,
                    )  # fmt: skip
                    try:
                        join.build(
                            _numbered(read_payload(open_payload(task.payload), terms.form(Role.BUILD)))
                        )
                    except BaseException:
                        join.close()
                        raise
                    return join

                with borrowed(terms, self.key, chosen, make) as join, closing(join.start(metrics)) as run:
                    bits = np.zeros(0, np.bool_)
                    for part in (run.probe(conformed(first, source, terms.right)), run.finish()):
                        for batch in part:
                            bits = _with(bits, batch.column(0).to_numpy())
                yield _packed(bits)
        # Spark writes all of its input to a task: what is left unread may fail it and costs a new worker.
        deque(source, maxlen=0)
        task.report(
            TaskRecord(terms.join_id, Part.JOIN, task.stage, task.partition, task.attempt, metrics, notes)
        )


@dataclass(frozen=True)
class ReturnMarked:
    """Puts the marks of all tasks together and returns broadcast rows by them.

    Attributes
    ----------
    terms : JoinTerms
        The join.
    """

    terms: JoinTerms

    def run(self, batches: Batches, task: Task) -> Iterator[pa.RecordBatch]:
        """Return rows; an input without marks says that none has a match."""
        terms, start = self.terms, time.perf_counter()
        bits, counts = np.zeros(0, np.bool_), ExchangeMetrics(tasks=1)
        for batch in batches:
            for value in batch.column(0):
                if value.is_valid:
                    bits = _merged(bits, np.unpackbits(np.frombuffer(value.as_buffer(), np.uint8)).view(bool))
                    counts.blobs += 1
                    counts.blob_bytes += value.as_buffer().size
        kind = derive(terms.spec.join_type, Side.LEFT).build_rest
        schema = terms.spec.output_schema(terms.left, terms.right)
        for rows in read_payload(open_payload(task.payload), terms.form(Role.BUILD)):
            own = _first(bits, rows.num_rows)
            bits = bits[rows.num_rows :]
            counts.rows += rows.num_rows
            counts.bytes += rows.nbytes
            yield from output_of(_returned(rows, own, kind, terms.spec, schema))
        counts.seconds = time.perf_counter() - start
        task.report(TaskRecord(terms.join_id, Part.MARKS, task.stage, task.partition, task.attempt, counts))


def numbered_schema(left: pa.Schema) -> pa.Schema:
    """Columns of the left side, and the number of each row."""
    return left.append(pa.field(_NUMBER, pa.int64(), nullable=False))


def _of_numbers(spec: JoinSpec, left: pa.Schema) -> JoinSpec:
    """The numbers of the left rows that have a match."""
    return dataclasses.replace(spec, join_type=JoinType.LEFT_SEMI, left_output=(len(left),))


def _numbered(batches: Batches) -> Iterator[pa.RecordBatch]:
    start = 0
    for batch in batches:
        numbers = pa.array(np.arange(start, start + batch.num_rows))
        yield pa.RecordBatch.from_arrays([*batch.columns, numbers], schema=numbered_schema(batch.schema))
        start += batch.num_rows


def _with(bits: npt.NDArray[np.bool_], rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    if not len(rows):
        return bits
    bits = _first(bits, max(len(bits), int(rows.max()) + 1))
    bits[rows] = True
    return bits


def _merged(one: npt.NDArray[np.bool_], two: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    most = max(len(one), len(two))
    return _first(one, most) | _first(two, most)


def _first(bits: npt.NDArray[np.bool_], rows: int) -> npt.NDArray[np.bool_]:
    """So many bits, those that are missing being false."""
    return bits[:rows] if len(bits) >= rows else np.concatenate([bits, np.zeros(rows - len(bits), np.bool_)])


def _packed(bits: npt.NDArray[np.bool_]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([np.packbits(bits).tobytes()], pa.binary())], schema=_MARKS_SCHEMA
    )


def _returned(
    rows: pa.RecordBatch, marks: npt.NDArray[np.bool_], kind: Rest, spec: JoinSpec, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    own = rows.select(list(spec.left_output))
    if kind is Rest.FLAGGED:
        yield pa.RecordBatch.from_arrays([*own.columns, pa.array(marks)], schema=schema)
        return
    kept = np.flatnonzero(marks if kind is Rest.MATCHED else ~marks)
    if not own.num_columns:
        yield own.slice(0, len(kept))
        return
    yield pa.RecordBatch.from_arrays([take(column, pa.array(kept)) for column in own.columns], schema=schema)
