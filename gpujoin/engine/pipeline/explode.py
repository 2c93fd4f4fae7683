"""Makes rows of the elements of lists and maps, over Arrow data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from gpujoin.model.hostgather import take
from gpujoin.model.relations import Explode

_ROWS = 1 << 20
"""Rows made at a time; a row of the input with more elements gives more."""

_Integers = npt.NDArray[np.int64]


def exploded(batch: pa.RecordBatch, node: Explode) -> Iterator[pa.RecordBatch]:
    """Explode the rows of a batch."""
    starts, counts, elements = _elements(batch.column(node.column))
    repeats = np.maximum(counts, 1) if node.outer else counts
    ends = np.cumsum(repeats)
    first = 0
    while first < batch.num_rows:
        before = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + _ROWS, side="right")))
        rows = np.arange(first, last)
        yield _with_elements(batch, node, rows, starts[rows], counts[rows], repeats[rows], elements)
        first = last


def _with_elements(
    batch: pa.RecordBatch, node: Explode, rows: _Integers, starts: _Integers, counts: _Integers, repeats: _Integers,
    elements: Sequence[pa.Array],
) -> pa.RecordBatch:  # fmt: skip
    total = int(repeats.sum())
    positions = np.arange(total) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    absent = np.repeat(counts == 0, repeats) if node.outer else None
    parents = pa.array(np.repeat(rows, repeats))
    columns = [take(batch.column(i), parents) for i in node.passthrough]
    if node.positions:
        columns.append(pa.array(positions.astype(np.int32), mask=absent))
    places = pa.array(np.repeat(starts, repeats) + positions, mask=absent)
    columns += [take(values, places) for values in elements]
    return pa.RecordBatch.from_arrays(columns, schema=node.schema)


def _elements(values: pa.Array) -> tuple[_Integers, _Integers, list[pa.Array]]:
    """First index and number of the elements of each row, and the columns of the elements of all rows."""
    if pat.is_int64(values.type):
        counts: Any = np.maximum(values.fill_null(0).to_numpy(), 0)
        return np.zeros(len(values), np.int64), counts, []
    offsets = values.offsets.to_numpy().astype(np.int64)
    counts = np.diff(offsets)
    if values.null_count:
        counts = np.where(values.is_valid().to_numpy(zero_copy_only=False), counts, 0)
    elements = [values.keys, values.items] if pat.is_map(values.type) else [values.values]
    return offsets[:-1], counts, elements
