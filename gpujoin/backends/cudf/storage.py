"""Converts Arrow types to the types in which columns are stored on the device, and back.

Payload is not computed with, only moved. So any fixed-width type is uploaded as an integer or decimal of its width,
bytes as text (libcudf neither validates nor changes text, and has no binary type), and maps as lists of structs. These
are the same Arrow buffers under another type, so nothing is copied. The exact type is restored when a frame is
downloaded.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.model.layouts import in_type
from gpujoin.model.types import is_list

_INTEGERS = {1: pa.int8(), 2: pa.int16(), 4: pa.int32(), 8: pa.int64()}
_WIDE = pa.decimal128(38, 0)
_UNCHANGED = frozenset(
    {pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(),
     pa.float32(), pa.float64(), pa.string(), pa.large_string()}
)  # fmt: skip
_VIEWS = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}


def storage_type(dtype: pa.DataType) -> pa.DataType | None:
    """Storage type of a column on the device; ``None`` if there is none.

    A dictionary-encoded column stores int32 codes; its values stay on the host. Dictionaries, extension types and
    string views are supported as whole columns only, not within a list or struct.
    """
    if pat.is_dictionary(dtype):
        return pa.int32()
    if isinstance(dtype, pa.BaseExtensionType):
        return storage_type(dtype.storage_type)
    return _inner_storage(_VIEWS.get(dtype, dtype))


def _inner_storage(dtype: pa.DataType) -> pa.DataType | None:
    if dtype in _UNCHANGED:
        return dtype
    if pat.is_null(dtype):
        return pa.int8()
    if pat.is_binary(dtype):
        return pa.string()
    if pat.is_large_binary(dtype):
        return pa.large_string()
    if is_list(dtype):
        item = _inner_storage(dtype.value_type)
        return None if item is None else pa.list_(item)
    if pat.is_map(dtype):
        return _inner_storage(pa.list_(_entries(dtype)))
    if pat.is_struct(dtype):
        fields = [_inner_storage(f.type) for f in dtype]
        # libcudf takes the number of rows of a struct from its first field.
        return pa.struct([(str(i), f) for i, f in enumerate(fields)]) if fields and None not in fields else None
    return _fixed_storage(dtype)


def _fixed_storage(dtype: pa.DataType) -> pa.DataType | None:
    if isinstance(dtype, pa.BaseExtensionType) or pat.is_dictionary(dtype) or pat.is_nested(dtype):
        return None
    try:
        bits = dtype.bit_width
    except ValueError:
        return None
    return _WIDE if bits == 128 else _INTEGERS.get(bits // 8)


def store(array: pa.Array) -> pa.Array:
    """Convert an array to its storage type. Buffers are shared where their layout allows.

    Dictionary-encoded arrays become codes; the caller must keep the values.
    """
    dtype = array.type
    if pat.is_dictionary(dtype):
        return array.indices.cast(pa.int32())
    if isinstance(dtype, pa.BaseExtensionType):
        return store(array.storage)
    if dtype in _VIEWS:
        array = array.cast(_VIEWS[dtype])
    target = storage_type(dtype)
    assert target is not None, f"{dtype} has no storage type"
    return _store(array, target)


def _store(array: pa.Array, target: pa.DataType) -> pa.Array:
    dtype = array.type
    if pat.is_struct(dtype):
        fields = [_store(array.field(i), target.field(i).type) for i in range(dtype.num_fields)]
        return _struct(fields, target, array)
    if pat.is_large_list(dtype):
        array = array.cast(pa.list_(dtype.value_field))
    if pat.is_map(dtype):
        array = _relabelled(array, pa.list_(_entries(dtype)), [_map_entries(array)])
    if pat.is_list(array.type):
        return _relabelled(array, target, [_store(array.values, target.value_type)])
    if pat.is_null(dtype):
        return pa.nulls(len(array), target)
    return array if array.type == target else _relabelled(array, target)


def copyable(table: pa.Table) -> pa.Table:
    """Replace arrays of storage types that cuDF fails to copy to the device.

    cuDF (26.10) copies bits from the byte that holds the first one, but allocates memory for the bits alone: 4 bytes
    for each 32 Booleans, 64 for each 512 rows of a validity mask. A slice that begins within a byte may need one byte
    more, and CUDA refuses that copy. Rows 30 to 59 begin at bit 6 of their byte, so they take 36 bits: 5 bytes, of
    which 4 are allocated. Such arrays are copied here, so that they begin at bit 0; all others are shared.
    """
    batches = table.to_batches()  # the parts that cuDF is given: a chunk of one column cuts the others
    columns = [[_at_bit_0(array) for array in batch.columns] for batch in batches]
    copied = [pa.RecordBatch.from_arrays(arrays, schema=table.schema) for arrays in columns]
    return pa.Table.from_batches(copied, table.schema)


def _at_bit_0(array: pa.Array) -> pa.Array:
    return pa.concat_arrays([array]) if _copy_overruns(array) else array


def _copy_overruns(array: Any) -> bool:
    """Whether cuDF would copy more bits of an array, or of a nested one, than it allocates."""
    dtype, bits = array.type, len(array)
    first = array.offset % 8
    if bits and array.buffers()[0] is not None and _bytes_of(first + bits, 1) > _bytes_of(bits, _MASK_UNIT):
        return True
    if pat.is_boolean(dtype):
        return _bytes_of(first + bits, 1) > _bytes_of(bits, _BOOLEANS_UNIT)
    if pat.is_struct(dtype):
        return any(_copy_overruns(array.field(i)) for i in range(dtype.num_fields))
    if pat.is_list(dtype):
        start, stop = array.offsets[0].as_py(), array.offsets[-1].as_py()
        return _copy_overruns(array.values.slice(start, stop - start))
    return False


def _bytes_of(bits: int, unit: int) -> int:
    """Bytes that bits take, in whole units of bytes."""
    return -(-bits // (8 * unit)) * unit


_MASK_UNIT, _BOOLEANS_UNIT = 64, 4
"""Unit, in bytes, of cuDF's allocations for validity masks and Booleans."""


def restore(array: pa.Array, dtype: pa.DataType, dictionary: pa.Array | None = None) -> pa.Array:
    """Convert an array from the device to the type that it stands for.

    Names, precision and offset width of a storage type may differ, which libcudf does not keep. Raises
    ``pyarrow.ArrowInvalid`` if text exceeds the 2 GiB of 32-bit offsets that ``dtype`` has.
    """
    if dictionary is not None:
        if not pat.is_dictionary(dtype):
            return in_type(dictionary.take(array), dtype)
        codes = array.cast(dtype.index_type)
        return pa.DictionaryArray.from_arrays(codes, dictionary, ordered=dtype.ordered)
    if isinstance(dtype, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(dtype, restore(array, dtype.storage_type))
    if dtype in _VIEWS:
        return in_type(_restore(array, _VIEWS[dtype]), dtype)
    return _restore(array, dtype)


def _restore(array: pa.Array, dtype: pa.DataType) -> pa.Array:
    if pat.is_null(dtype):
        return pa.nulls(len(array))
    if pat.is_struct(dtype):
        fields = [_restored_child(array.field(i), f) for i, f in enumerate(dtype)]
        return _struct(fields, dtype, array)
    if pat.is_large_list(dtype):
        small = pa.list_(dtype.value_field)
        return _restore(array, small).cast(dtype)
    if pat.is_list(dtype):
        return _relabelled(array, dtype, [_restored_child(array.values, dtype.value_field)])
    if pat.is_map(dtype):
        return _relabelled(array, dtype, [_restored_child(array.values, pa.field("entries", _entries(dtype), False))])
    if pat.is_string(dtype) or pat.is_binary(dtype):
        array = array.cast(pa.string())
    elif pat.is_large_string(dtype) or pat.is_large_binary(dtype):
        array = array.cast(pa.large_string())
    return array if array.type == dtype else _relabelled(array, dtype)


def _restored_child(array: pa.Array, field: pa.Field) -> pa.Array:
    """Restore a child column. If its field is not nullable, nulls that come from the parent are removed."""
    child = _restore(array, field.type)
    if field.nullable or child.null_count == 0 or pat.is_null(field.type):
        return child
    if pat.is_struct(field.type):
        return pa.StructArray.from_arrays(child.flatten(), fields=list(field.type))
    buffers = _own_buffers(child)
    return pa.Array.from_buffers(
        child.type,
        len(child),
        [None, *buffers[1:]],
        null_count=0,
        offset=child.offset,
        children=_children(child),
    )


def _relabelled(array: pa.Array, dtype: pa.DataType, children: list[pa.Array] | None = None) -> pa.Array:
    return pa.Array.from_buffers(
        dtype,
        len(array),
        _own_buffers(array),
        null_count=array.null_count,
        offset=array.offset,
        children=children,
    )


def _own_buffers(array: pa.Array) -> list[pa.Buffer | None]:
    """Buffers of the array itself, without those of its children."""
    buffers: list[pa.Buffer | None] = array.buffers()
    if is_list(array.type) or pat.is_map(array.type):
        return buffers[:2]
    return buffers


def _children(array: pa.Array) -> list[pa.Array] | None:
    if pat.is_map(array.type):
        return [_map_entries(array)]
    return [array.values] if is_list(array.type) else None


def _struct(fields: list[pa.Array], dtype: pa.DataType, like: pa.Array) -> pa.Array:
    mask = like.is_null() if like.null_count else None
    return pa.StructArray.from_arrays(fields, fields=list(dtype), mask=mask)


def _map_entries(array: Any) -> pa.Array:
    return pa.StructArray.from_arrays([array.keys, array.items], fields=list(_entries(array.type)))


def _entries(dtype: Any) -> pa.DataType:
    return pa.struct([dtype.key_field, dtype.item_field])
