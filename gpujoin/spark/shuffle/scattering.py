"""Rows on their way to partitions: rounds of a size worth splitting, and splitting them.

Spark may run a mapper again and mix what the two runs made, so a row must go to the same partition in both. That of its
key depends on the key; where a row may go anywhere, it depends on what is known of a second run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpujoin.engine.hashing import hash_rows
from gpujoin.engine.keys import KeyCodec
from gpujoin.errors import GpuJoinError, KeyTypeError
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.layouts import in_type
from gpujoin.model.spec import JoinSpec, KeyPair, NullEquality
from gpujoin.spark.shuffle.blobrows import BlobCounts, Carrier, Packer

ROUND_BYTES = 128 << 20
"""Most rows, in bytes, that a mapper buffers before it splits them."""
_SPREAD_COLUMNS = 4
_SPREAD_SEED = 0x5B


def scatter(
    rows: pa.RecordBatch, targets: npt.NDArray[np.int32], labels: Sequence[int], packer: Packer[Carrier]
) -> Iterator[Carrier]:
    """Pack rows by the number of each one's partition."""
    narrow = targets.astype(np.uint16) if len(labels) <= 1 << 16 else targets
    order = np.argsort(narrow, kind="stable")  # a radix sort on 16 bits
    bounds = np.searchsorted(narrow[order], np.arange(len(labels) + 1))
    ordered = rows.take(pa.array(order, pa.int64()))
    for target in np.flatnonzero(np.diff(bounds)).tolist():
        first, last = int(bounds[target]), int(bounds[target + 1])
        yield from packer.add(ordered.slice(first, last - first), labels[target])


def spread_codec(schema: pa.Schema, indeterminate: frozenset[int] = frozenset()) -> KeyCodec:
    """Make the codec of a few columns by which rows are spread over partitions.

    Indeterminate columns are not taken: a mapper that runs again may find other values there.
    """
    pairs: list[KeyPair] = []
    for index in (place for place in range(len(schema)) if place not in indeterminate):
        pair = KeyPair(index, index, NullEquality.EQUAL)
        try:
            KeyCodec.from_spec(JoinSpec(JoinType.INNER, (pair,)), schema, schema)
        except KeyTypeError:
            continue
        pairs.append(pair)
    # Keys come first in most schemas and are the null ones here: take the last columns.
    return KeyCodec.from_spec(JoinSpec(JoinType.INNER, tuple(pairs[-_SPREAD_COLUMNS:])), schema, schema)


def spread(rows: pa.RecordBatch, codec: KeyCodec, salt: int, partitions: int) -> npt.NDArray[np.int32]:
    """Partitions for rows that may go anywhere, by their content and the mapper's number alone."""
    codes = codec.codes(rows, Side.LEFT)
    hashes = hash_rows(codes, _SPREAD_SEED) if codes.num_columns else np.zeros(rows.num_rows, np.uint64)
    return ((hashes + np.uint64(salt)) % np.uint64(partitions)).astype(np.int32)


def rounds(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, limit: int, counts: BlobCounts
) -> Iterator[pa.RecordBatch]:
    """Batches joined into larger ones of some ``limit`` bytes, in the given schema."""
    pending: list[pa.RecordBatch] = []
    size = 0
    for source in batches:
        batch = conform(source, schema)
        if batch.num_rows == 0:
            continue
        counts.rows += batch.num_rows
        counts.nbytes += batch.nbytes
        if pending and size + batch.nbytes > limit:
            yield _together(pending)
            pending, size = [], 0
        pending.append(batch)
        size += batch.nbytes
    if pending:
        yield _together(pending)


def _together(pending: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(pending) == 1:
        return pending[0]
    return pa.Table.from_batches(pending).combine_chunks().to_batches()[0]


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A batch in exactly the given schema; Spark versions differ in names of nested fields, zones and nullability.

    Raises ``GpuJoinError`` if the number of columns differs.
    """
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    if batch.num_columns != len(schema):
        raise GpuJoinError(f"Spark handed over {batch.num_columns} columns where {schema.names} were expected")
    columns = [in_type(column, field.type) for column, field in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
