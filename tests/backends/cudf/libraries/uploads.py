"""The copies of bits by which cuDF takes in an Arrow table that lies on the host.

cuDF copies bits from the byte in which the first one lies, into memory that is sized for the bits alone. So where the
first bit is not the first one of its byte, a copy may be a byte longer than its memory, which CUDA refuses. Of 30 rows
from row 30 on, 36 bits are copied: 5 bytes to a word of 4. (``from_arrow_host.cu`` of cuDF 26.10.)
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pat

REFUSED = (
    "CUDA error encountered at: /__w/cudf/cudf/cpp/src/interop/from_arrow_host.cu:195: 1 cudaErrorInvalidValue invalid"
    " argument"
)
_WORD, _MASK = 4, 64


def check(table: pa.Table | pa.RecordBatch) -> None:
    """Raise cuDF's error if a copy of bits is longer than its memory."""
    for batch in table.to_batches() if isinstance(table, pa.Table) else [table]:
        for array in batch.columns:
            _check(array, array.offset, len(array))


def _check(array: pa.Array, offset: int, length: int) -> None:
    dtype = array.type
    if length and array.buffers()[0] is not None:
        _copy(offset, length, _MASK)
    if pat.is_boolean(dtype):
        _copy(offset, length, _WORD)
    elif pat.is_struct(dtype):
        for index in range(dtype.num_fields):
            child = array.field(index)  # of the rows of the struct
            _check(child, child.offset, len(child))
    elif pat.is_list(dtype):
        first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
        _check(array.values, array.values.offset + first, last - first)


def _copy(offset: int, bits: int, piece: int) -> None:
    allocated = -(-bits // (8 * piece)) * piece
    if -(-(offset % 8 + bits) // 8) > allocated:
        raise RuntimeError(REFUSED)
