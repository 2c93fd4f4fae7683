"""Converts arrays between Arrow types of the same values: between layouts, and between names and nullability of fields.

Arrays are rebuilt child by child, and children are told apart by position, as Spark tells them apart: to it
``struct<a, b>`` and ``struct<A, B>`` are one type, and structs of any other names are brought together as well.
PyArrow's own `cast` looks fields up by name, and makes ``{A: null, B: null}`` of ``{a: 1, b: 5}``. It also
lacks run-end encoding within other types, and reads list views wrongly (26.0).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat


def in_known_layout(array: pa.Array) -> pa.Array:
    """Remove views of text or bytes, and run-end encoding, at any depth.

    Views become large strings and large binaries, runs are decoded, and an extension type over any of these becomes
    its storage. An array without any is returned as it is, as are unions.
    """
    dtype = array.type
    if isinstance(array, pa.ExtensionArray):
        storage = in_known_layout(array.storage)
        return array if storage.type == array.storage.type else storage
    if pat.is_run_end_encoded(dtype):
        return pc.run_end_decode(_with_children(array, [array.run_ends, in_known_layout(array.values)]))
    if pat.is_string_view(dtype):
        return array.cast(pa.large_string())
    if pat.is_binary_view(dtype):
        return array.cast(pa.large_binary())
    return _each_child(array, in_known_layout)


def in_type(array: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Convert an array to a type that differs in layout, and in names and nullability of fields, by position.

    Values within others are cast where their types differ otherwise. That a field which is not nullable has no nulls
    is taken for granted: Spark's types say so, and a null struct has null fields in any case. Raises
    ``pyarrow.ArrowInvalid`` if the values are too many for the 32-bit offsets of the type, or do not fit it.
    """
    if array.type == dtype:
        return array
    if pat.is_null(array.type):
        return nulls(len(array), dtype)
    if isinstance(dtype, pa.BaseExtensionType):
        storage = array.storage if isinstance(array, pa.ExtensionArray) else array
        return pa.ExtensionArray.from_storage(dtype, in_type(storage, dtype.storage_type))
    if pat.is_run_end_encoded(dtype):
        runs = (
            array if pat.is_run_end_encoded(array.type) else pc.run_end_encode(array, run_end_type=dtype.run_end_type)
        )
        return _with_children(runs, [runs.run_ends, in_type(runs.values, dtype.value_type)], dtype)
    if pat.is_run_end_encoded(array.type):
        return in_type(in_known_layout(array), dtype)
    if dtype.id == array.type.id:
        child_types = iter(_child_types(dtype))
        return _each_child(array, lambda child: in_type(child, next(child_types)), dtype)
    if _is_listed(dtype) and _is_listed(array.type):
        item = dtype.value_field
        listed = _each_child(array, lambda child: in_type(child, item.type), _with_item(array.type, item))
        return (
            _with_offsets(listed, dtype) if listed.type.id in _OFFSETS and dtype.id in _OFFSETS else listed.cast(dtype)
        )
    cast = array.cast(dtype)
    return _without_missing_buffers(cast) if pat.is_string_view(dtype) or pat.is_binary_view(dtype) else cast


def _without_missing_buffers(views: pa.Array) -> pa.Array:
    """Remove data buffers that are not there: PyArrow 24 and older cast short values to such, which crash readers."""
    fixed, data = views.buffers()[:2], views.buffers()[2:]
    present = [buffer for buffer in data if buffer is not None]
    if len(present) == len(data):
        return views
    return pa.Array.from_buffers(views.type, len(views), [*fixed, *present], views.null_count, views.offset)


def _with_offsets(array: Any, dtype: pa.DataType) -> pa.Array:
    """Give lists other offsets. PyArrow's `cast` refuses null structs of fields that are not nullable otherwise."""
    offsets = pa.array(array.offsets.to_numpy()).cast(_OFFSETS[dtype.id])
    kind = pa.ListArray if pat.is_list(dtype) else pa.LargeListArray
    return kind.from_arrays(offsets, array.values, dtype, mask=pc.is_null(array) if array.null_count else None)


_OFFSETS = {pa.lib.Type_LIST: pa.int32(), pa.lib.Type_LARGE_LIST: pa.int64()}
"""Types of the offsets of lists."""


def nulls(length: int, dtype: pa.DataType) -> pa.Array:
    """Array of nulls of any type, also of zero rows, which ``pa.nulls`` lacks for some nested types."""
    return in_type(pa.nulls(length, _known_layout(dtype)), dtype)


def _known_layout(dtype: pa.DataType) -> pa.DataType:
    """Type that :func:`in_known_layout` returns."""
    if isinstance(dtype, pa.BaseExtensionType):
        storage = _known_layout(dtype.storage_type)
        return dtype if storage == dtype.storage_type else storage
    if pat.is_run_end_encoded(dtype):
        return _known_layout(dtype.value_type)
    if pat.is_string_view(dtype):
        return pa.large_string()
    if pat.is_binary_view(dtype):
        return pa.large_binary()
    if pat.is_union(dtype) or not (pat.is_nested(dtype) or pat.is_dictionary(dtype)):
        return dtype
    return _of_types(dtype, [_known_layout(child) for child in _child_types(dtype)])


def _child_types(dtype: pa.DataType) -> list[pa.DataType]:
    if pat.is_dictionary(dtype):
        return [dtype.value_type]
    if pat.is_map(dtype):
        return [dtype.key_type, dtype.item_type]
    return [dtype.field(i).type for i in range(dtype.num_fields)]


def _each_child(array: Any, change: Callable[[pa.Array], pa.Array], target: pa.DataType | None = None) -> pa.Array:
    """Apply a function to the children of an array; returns the array itself if no child changes."""
    dtype = array.type
    if pat.is_dictionary(dtype):
        values = change(array.dictionary)
        if values.type == dtype.value_type:
            return array
        return pa.DictionaryArray.from_arrays(array.indices, values, ordered=dtype.ordered)
    if pat.is_struct(dtype):
        children = [array.field(i) for i in range(dtype.num_fields)]
    elif pat.is_map(dtype):
        children = [array.keys, array.items]
    elif pat.is_nested(dtype) and not pat.is_union(dtype):
        children = [array.values]
    else:
        return array if target is None else array.cast(target)
    changed = [change(child) for child in children]
    same = all(new.type == old.type for new, old in zip(changed, children, strict=True))
    return array if same and target is None else _with_children(array, changed, target)


def _with_children(array: Any, children: list[pa.Array], target: pa.DataType | None = None) -> pa.Array:
    """Replace the children of an array."""
    dtype = array.type
    types = [child.type for child in children]
    if pat.is_struct(dtype):
        # Children of a struct come without the offset of its own buffers.
        absent = pc.is_null(array) if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(target or _of_types(dtype, types)), mask=absent)
    new = target or _of_types(dtype, types)
    if pat.is_map(dtype):
        fields = [new.key_field, new.item_field]
        # PyArrow ends the process where a key is null; before 26 also where the nulls of keys are not counted yet.
        if children[0].null_count:
            raise pa.ArrowInvalid("a key of a map is null")
        children = [pa.StructArray.from_arrays(children, fields=fields)]
    own = array.buffers()[: _BUFFERS.get(dtype.id, 2)]
    return pa.Array.from_buffers(new, len(array), own, array.null_count, array.offset, children)


_BUFFERS = {
    pa.lib.Type_RUN_END_ENCODED: 1,
    pa.lib.Type_FIXED_SIZE_LIST: 1,
    pa.lib.Type_LIST_VIEW: 3,
    pa.lib.Type_LARGE_LIST_VIEW: 3,
}
"""Number of buffers of an array itself, without those of its children."""


def _of_types(dtype: pa.DataType, types: list[pa.DataType]) -> pa.DataType:
    """Replace the child types of a nested or dictionary type."""
    if pat.is_dictionary(dtype):
        return pa.dictionary(dtype.index_type, types[0], dtype.ordered)
    if pat.is_struct(dtype):
        return pa.struct([f.with_type(t) for f, t in zip(dtype, types, strict=True)])
    if pat.is_run_end_encoded(dtype):
        return pa.run_end_encoded(*types)
    if pat.is_map(dtype):
        key, item = dtype.key_field.with_type(types[0]), dtype.item_field.with_type(types[1])
        return pa.map_(key, item, keys_sorted=dtype.keys_sorted)
    return _with_item(dtype, dtype.value_field.with_type(types[0]))


def _is_listed(dtype: pa.DataType) -> bool:
    """Whether a type has lists of values, in any layout."""
    return pat.is_nested(dtype) and not (
        pat.is_struct(dtype) or pat.is_map(dtype) or pat.is_union(dtype) or pat.is_run_end_encoded(dtype)
    )


def _with_item(dtype: pa.DataType, item: pa.Field) -> pa.DataType:
    """Replace the field of the items of a list."""
    if pat.is_fixed_size_list(dtype):
        return pa.list_(item, dtype.list_size)
    if pat.is_list(dtype):
        return pa.list_(item)
    if pat.is_large_list(dtype):
        return pa.large_list(item)
    return pa.list_view(item) if pat.is_list_view(dtype) else pa.large_list_view(item)
