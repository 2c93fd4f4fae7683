"""Reads which rows of a file are deleted, as positions in the whole file.

Tables of Delta and Iceberg name, beside a file, what tells its deleted rows: bitmaps, or Parquet files of positions. A
reader leaves those rows out before it looks at anything else of them::

    row groups of the file     rows 0 … 99 │ rows 100 … 149
    deleted                    7           │ 100, 149        a reader of the second row group leaves out rows 0 and 49

What cannot be read, or is not what the table says it is, is a :class:`ScanError` that names it.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gpujoin.backends.parquet.roaring import Numbers, RoaringError, numbers_in
from gpujoin.cache import Cache
from gpujoin.errors import ScanError
from gpujoin.model.files import DeletedRows, DeletionFormat, FileSlice
from gpujoin.storage.locations import open_binary

_DELTA_MAGIC = 1681511377
_PUFFIN_MAGIC = bytes([0xD1, 0xD3, 0x39, 0x64])
_WORD = 4
_PUFFIN_FRAME = 3 * _WORD
"""Bytes of a blob that are not its bitmap: length, magic, checksum."""
_PATH, _POSITION = "file_path", "pos"
NO_ROWS = np.zeros(0, np.int64)
_CACHED_BYTES = 64 << 20
_positions: Cache[tuple[DeletedRows, int], Numbers] = Cache(_CACHED_BYTES, lambda numbers: numbers.nbytes)
"""Positions that this process has read last, by where they are stored and how many rows their file has."""
_tables: Cache[tuple[str, int], dict[str, Numbers]] = Cache(
    _CACHED_BYTES, lambda by_file: sum(numbers.nbytes for numbers in by_file.values())
)
"""Parquet files of positions, each of which tells those of several files, by these."""


def deleted_positions(part: FileSlice, rows: int) -> Numbers:
    """Positions of the deleted rows of a file, ascending, counted in the whole file, which has ``rows`` rows.

    Raises ``ScanError`` if they cannot be read, contradict what is known of them, or are not all in the file.
    """
    each = [_read(deletion, part.path, rows) for deletion in part.deletions]
    if len(each) == 1:
        return each[0]
    return np.unique(np.concatenate(each)) if each else NO_ROWS


def positions_between(positions: Numbers, first: int, rows: int) -> Numbers:
    """Those of the positions that are in some rows of a file, counted from the first of these."""
    begin, end = np.searchsorted(positions, (first, first + rows))
    return positions[begin:end] - first


def _read(deletion: DeletedRows, data_file: str, rows: int) -> Numbers:
    positions = _positions.get((deletion, rows))
    if positions is not None:
        return positions
    try:
        positions = _decoded(deletion, rows)
    except ScanError:
        raise
    except (OSError, pa.ArrowException, RoaringError, ValueError) as problem:
        where = deletion.path or data_file
        raise ScanError(f"{where}: {deletion.format.value}, for {data_file}, cannot be read: {problem}") from problem
    _positions.put((deletion, rows), positions)
    return positions


def _decoded(deletion: DeletedRows, rows: int) -> Numbers:
    match deletion.format:
        case DeletionFormat.POSITIONS:
            positions = _in_table(deletion)
            if len(positions) and not 0 <= positions[0] <= positions[-1] < rows:
                raise RoaringError(f"it has positions {positions[0]} to {positions[-1]} of {rows} rows")
        case DeletionFormat.PUFFIN:
            positions = numbers_in(_puffin_bitmap(deletion), rows)
        case _:
            positions = numbers_in(_delta_bitmap(deletion), rows)
    if deletion.rows is not None and deletion.rows != len(positions):
        raise RoaringError(f"it has {len(positions)} rows, not {deletion.rows}")
    return positions


def _delta_bitmap(deletion: DeletedRows) -> bytes:
    data = deletion.data
    if deletion.format is DeletionFormat.DELTA:
        framed = _bytes_at(deletion, deletion.length + 2 * _WORD)
        (length,) = struct.unpack_from(">i", framed)
        if length != deletion.length:
            raise RoaringError(f"it is said to have {length} bytes, not {deletion.length}")
        data = framed[_WORD:-_WORD]
        _check(data, framed[-_WORD:])
    elif len(data) != deletion.length:
        raise RoaringError(f"it has {len(data)} bytes, not {deletion.length}")
    if len(data) < _WORD or struct.unpack_from("<i", data) != (_DELTA_MAGIC,):
        raise RoaringError(f"it begins with {data[:_WORD].hex(' ')}, which is no bitmap in the portable form")
    return data[_WORD:]


def _puffin_bitmap(deletion: DeletedRows) -> bytes:
    if deletion.length < _PUFFIN_FRAME:
        raise RoaringError(f"it has {deletion.length} bytes")
    framed = _bytes_at(deletion, deletion.length)
    (length,) = struct.unpack_from(">i", framed)
    data = framed[_WORD:-_WORD]
    if length != len(data):
        raise RoaringError(f"it is said to have {length} bytes, not {len(data)}")
    _check(data, framed[-_WORD:])
    if not data.startswith(_PUFFIN_MAGIC):
        raise RoaringError(f"it begins with {data[:_WORD].hex(' ')}, which is no bitmap")
    return data[_WORD:]


def _bytes_at(deletion: DeletedRows, count: int) -> bytes:
    with open_binary(deletion.path) as file:
        file.seek(deletion.offset)
        data: bytes = file.read(count)
    if len(data) < count:
        raise RoaringError(f"the file ends {count - len(data)} bytes before it does")
    return data


def _check(data: bytes, checksum: bytes) -> None:
    if struct.unpack(">I", checksum) != (zlib.crc32(data),):
        raise RoaringError("its checksum is that of other bytes")


def _in_table(deletion: DeletedRows) -> Numbers:
    """Positions that a Parquet file has of one file, ascending."""
    by_file = _tables.get((deletion.path, deletion.length))
    if by_file is None:
        with open_binary(deletion.path) as file:
            table = pq.read_table(file, columns=[_PATH, _POSITION], use_threads=False)
        by_file = _by_file(table)
        _tables.put((deletion.path, deletion.length), by_file)
    return by_file.get(deletion.data_file, NO_ROWS)


def _by_file(table: pa.Table) -> dict[str, Numbers]:
    if table.num_columns != 2 or any(column.null_count for column in table.columns):
        raise RoaringError(f"it lacks {_PATH} or {_POSITION}")
    if table.schema.field(_POSITION).type != pa.int64():
        raise RoaringError(f"its {_POSITION} is {table.schema.field(_POSITION).type}")
    paths = table[_PATH].cast(pa.string()).combine_chunks().dictionary_encode()
    files, positions = paths.indices.to_numpy(), table[_POSITION].to_numpy()
    order = np.lexsort((positions, files))
    ends = np.searchsorted(files[order], np.arange(1, len(paths.dictionary)))
    each = np.split(positions[order], ends)
    return {name: np.unique(part) for name, part in zip(paths.dictionary.to_pylist(), each, strict=False)}
