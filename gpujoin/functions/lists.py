"""Functions of lists, and of the keys and values of maps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from gpujoin.functions.comparison import compare
from gpujoin.functions.elements import (
    FIRST_CODE,
    LAST_CODE,
    Integers,
    Lists,
    check_count,
    concatenated,
    element_codes,
    equality_codes,
    mask_at,
    order_codes,
    ranges,
    zipped,
)
from gpujoin.functions.implementation import Run, fail, null_or_raise, operands_of, rows_of
from gpujoin.functions.kinds import alike, comparable, fits_as_bytes, has_floats, is_alike, is_written
from gpujoin.functions.logic import is_true
from gpujoin.functions.signatures import INT, MANY, Signature, cast_to, over, type_of, typed, types_of
from gpujoin.functions.spec import FunctionSpec, Nulls, Order, Raises
from gpujoin.functions.structs import field_position, structs_of
from gpujoin.functions.vector import Mask, Vector, from_arrow, is_present, mask_and, mask_and_not, to_arrow
from gpujoin.functions.widening import tightest, wider_of
from gpujoin.model.expressions import Call, EvalMode, Function, Literal
from gpujoin.model.types import is_float, is_list, is_text, is_whole, logical

Gives: TypeAlias = Callable[..., pa.DataType | None]
"""Gives the result type for types of operands; ``None`` for operands that the function does not take."""


def of_types(gives: Gives) -> Callable[[Call], Call | None]:
    """Type a call by the types of its operands, without casts."""

    def resolve(node: Call) -> Call | None:
        dtype = gives(*map(type_of, node.arguments))
        return None if dtype is None else typed(node, dtype)

    return resolve


def _signature(gives: Gives, accepts: Callable[..., bool], arity: tuple[int, int] = (2, 2)) -> Signature:
    """The signature of a function by the types of its operands alone."""
    return Signature(of_types(gives), lambda node: accepts(*types_of(node)), arity)


def _same(dtype: pa.DataType, *_: pa.DataType) -> pa.DataType | None:
    return dtype if is_list(dtype) else None


same_list = of_types(_same)
"""Types a function of a list that gives a list of the same type."""


def _has_elements(dtype: pa.DataType) -> bool:
    return is_list(dtype) or pat.is_map(dtype)


def _of_key(node: Call) -> Call | None:
    values, key = node.arguments
    dtype = type_of(values)
    if not pat.is_map(dtype):
        return None
    return typed(node, dtype.item_type, values, cast_to(key, dtype.key_type, node.mode))


def _accepts_key(dtype: pa.DataType, key: pa.DataType) -> bool:
    return pat.is_map(dtype) and comparable(logical(dtype.key_type)) and alike([logical(dtype.key_type), key])


def _resolve_search(node: Call) -> Call | None:
    values, value = node.arguments
    dtype = type_of(values)
    if not is_list(dtype):
        return None
    result = pa.bool_() if node.function is Function.ARRAY_CONTAINS else pa.int64()
    return typed(node, result, values, cast_to(value, dtype.value_type, node.mode))


def _accepts_value(node: Call) -> bool:
    dtype, value = types_of(node)
    if not is_list(dtype):
        return False
    element = logical(dtype.value_type)
    return fits_as_bytes([element, value]) or (comparable(element) and alike([element, value]))


def _resolve_array(node: Call) -> Call | None:
    common = _united([type_of(argument) for argument in node.arguments], node.mode)
    return None if common is None else over(node, common, pa.list_(common))


def _united(types: Sequence[pa.DataType], mode: EvalMode) -> pa.DataType | None:
    """Common type of types that differ only in nullability and in the case of field names; else ``None``."""
    common = wider_of(types, mode, tightest)
    return common if common is not None and all(is_alike(common, dtype) for dtype in types) else None


def _accepts_elements(node: Call) -> bool:
    return bool(node.arguments) and all(
        pat.is_null(dtype) or is_alike(dtype, logical(type_of(node).value_type)) for dtype in types_of(node)
    )


def _is_list_of_structs(dtype: pa.DataType, *_: pa.DataType) -> bool:
    return is_list(dtype) and pat.is_struct(dtype.value_type)


def _field_of_each(node: Call) -> Call | None:
    values, name = node.arguments
    dtype = type_of(values)
    if not _is_list_of_structs(dtype) or not isinstance(name, Literal):
        return None
    return typed(node, pa.list_(dtype.value_type.field(name.value).type))


def _resolve_concat(node: Call) -> Call | None:
    types = [type_of(argument) for argument in node.arguments]
    common = _united(types, node.mode) if all(map(is_list, types)) else None
    return over(node, common)


def _with_element(node: Call) -> Call | None:
    values, value = map(type_of, node.arguments)
    element = _united([values.value_type, value], node.mode) if is_list(values) else None
    return None if element is None else typed(node, pa.list_(element))


def _accepts_element(dtype: pa.DataType, value: pa.DataType) -> bool:
    return is_list(dtype) and is_alike(dtype.value_type, value)


def _accepts_ordered(node: Call) -> bool:
    dtype = types_of(node)[0]
    constants = all(isinstance(argument, Literal) and argument.value is not None for argument in node.arguments[1:])
    return is_list(dtype) and is_written(dtype.value_type, compared=True) and constants


def _accepts_told_apart(node: Call) -> bool:
    """As :func:`_accepts_ordered`, without floats: of zeros and NaNs Spark makes more than one thing."""
    dtype = types_of(node)[0]
    floats = has_floats if node.function is Function.ARRAY_DISTINCT else is_float
    return _accepts_ordered(node) and not floats(dtype.value_type)


def _accepts_texts(dtype: pa.DataType, *others: pa.DataType) -> bool:
    return is_list(dtype) and is_text(dtype.value_type) and all(map(is_text, others))


def _accepts_lists(dtype: pa.DataType, *others: pa.DataType) -> bool:
    return is_list(dtype) and all(is_alike(dtype, other) for other in others)


def _accepts_sets(node: Call) -> bool:
    dtype, other = types_of(node)
    return _accepts_lists(dtype, other) and is_written(dtype.value_type, compared=True) and not has_floats(dtype)


def _is_list_of_lists(dtype: pa.DataType) -> bool:
    return is_list(dtype) and is_list(dtype.value_type)


def _never_fails(node: Call) -> bool:
    """Whether the start and length of a ``slice`` are valid constants."""
    start, length = (a.value if isinstance(a, Literal) else None for a in node.arguments[1:])
    return isinstance(start, int) and isinstance(length, int) and start != 0 and length >= 0


def _are_lists(*types: pa.DataType) -> bool:
    return all(map(is_list, types))


def _zip_of(*types: pa.DataType) -> pa.DataType | None:
    if not _are_lists(*types):
        return None
    return pa.list_(pa.struct([(str(n), dtype.value_type) for n, dtype in enumerate(types)]))


def _accepts_range(first: pa.DataType, last: pa.DataType, *steps: pa.DataType) -> bool:
    if pat.is_date32(first):
        return first == last and all(map(pat.is_int32, steps))
    return is_whole(first) and all(dtype == first for dtype in (last, *steps))


_NUMBERED = _signature(
    lambda values, number: values.value_type if is_list(values) and is_whole(number) else None,
    lambda values, number: is_list(values) and INT.accepts(number),
)
_OF_KEY = Signature(_of_key, lambda node: _accepts_key(*types_of(node)))
_SEARCH = Signature(_resolve_search, _accepts_value)
_SIZE = _signature(lambda dtype: pa.int32() if _has_elements(dtype) else None, _has_elements, (1, 1))
_KEYS = _signature(lambda dtype: pa.list_(dtype.key_type) if pat.is_map(dtype) else None, pat.is_map, (1, 1))
_VALUES = _signature(lambda dtype: pa.list_(dtype.item_type) if pat.is_map(dtype) else None, pat.is_map, (1, 1))
_FIELDS = Signature(_field_of_each, lambda node: _is_list_of_structs(*types_of(node)))
_LEAST_OR_GREATEST = Signature(
    of_types(lambda dtype: dtype.value_type if is_list(dtype) else None), _accepts_ordered, (1, 1)
)
_JOIN = _signature(
    lambda dtype, *others: pa.string() if _accepts_texts(dtype, *others) else None, _accepts_texts, (2, 3)
)
_CONCAT = Signature(_resolve_concat, lambda node: _accepts_lists(*types_of(node)), (1, MANY))
_SETS = Signature(_resolve_concat, _accepts_sets)
_OVERLAP = Signature(of_types(lambda dtype, _: pa.bool_() if is_list(dtype) else None), _accepts_sets)
_FLATTEN = _signature(lambda dtype: dtype.value_type if _is_list_of_lists(dtype) else None, _is_list_of_lists, (1, 1))
_REVERSE = _signature(_same, is_list, (1, 1))
_SLICE = _signature(_same, lambda dtype, *numbers: is_list(dtype) and all(map(pat.is_int32, numbers)), (3, 3))
_REPEAT = _signature(
    lambda value, number: pa.list_(value) if is_whole(number) else None, lambda _, number: pat.is_int32(number)
)
_INSERT = Signature(_with_element, lambda node: _accepts_element(*types_of(node)))
_ZIP = _signature(_zip_of, _are_lists, (1, MANY))
_SEQUENCE = _signature(
    lambda dtype, *_: pa.list_(dtype) if is_whole(dtype) or pat.is_date32(dtype) else None, _accepts_range, (2, 3)
)


# -- values of elements ------------------------------------------------------------------------------------------------


def _get_item(node: Call, operands: list[Vector], length: int) -> Vector:
    values, numbers = operands_of(operands, length)
    lists = Lists.from_vector(values)
    return _element(node, lists, numbers.values.astype(np.int64), mask_and(lists.valid, numbers.mask()))


def _element_at(node: Call, operands: list[Vector], length: int) -> Vector:
    values, numbers = operands_of(operands, length)
    lists, positions = Lists.from_vector(values), numbers.values.astype(np.int64)
    valid = mask_and(lists.valid, numbers.mask())
    # Elements of the array that no position reaches are looked for before the position is.
    reached = np.abs(positions) <= lists.counts
    if (is_present(valid, len(positions)) & reached & (positions == 0)).any():
        fail(node, "there is no element number 0")
    return _element(node, lists, np.where(positions > 0, positions - 1, lists.counts + positions), valid)


def _element(node: Call, lists: Lists, positions: Integers, valid: Mask | None) -> Vector:
    outside = (positions < 0) | (positions >= lists.counts)
    return lists.at(
        positions, is_present(null_or_raise(node, outside, valid, "there is no such element"), len(outside))
    )


def _equal_elements(lists: Lists, value: Vector) -> Mask:
    """Elements that equal the value of their row."""
    if not len(lists.elements):
        return np.zeros(0, np.bool_)
    of_rows = value if value.constant else value.take(lists.rows)
    return is_true(compare(Function.EQ, from_arrow(lists.elements), of_rows))


def _contains(_node: Call, operands: list[Vector], length: int) -> Vector:
    values, value = operands
    lists = Lists.from_vector(values.expand(rows_of(operands, length)))
    contained = lists.has(_equal_elements(lists, value))
    valid = mask_and(lists.valid, value.mask())
    if lists.present is not None:
        valid = mask_and(valid, contained | ~lists.has(~lists.present))
    return Vector(pa.bool_(), contained, valid)


def _position(_node: Call, operands: list[Vector], length: int) -> Vector:
    values, value = operands
    lists = Lists.from_vector(values.expand(rows_of(operands, length)))
    return Vector(pa.int64(), lists.first(_equal_elements(lists, value)) + 1, mask_and(lists.valid, value.mask()))


def _map_value(_node: Call, operands: list[Vector], length: int) -> Vector:
    values, key = operands
    maps = values.expand(rows_of(operands, length))
    keys = Lists.from_vector(maps)
    positions = keys.first(_equal_elements(keys, key))
    return Lists.from_vector(maps, items=True).at(positions, positions >= 0)


def _size(_node: Call, operands: list[Vector], _length: int) -> Vector:
    values = operands[0].values
    return Vector(pa.int32(), np.diff(values.offsets.to_numpy()).astype(np.int32), operands[0].mask())


def _least_or_greatest(extreme: np.ufunc, last: int) -> Run:
    def run(_node: Call, operands: list[Vector], _length: int) -> Vector:
        lists = Lists.from_vector(operands[0])
        rows, codes = np.flatnonzero(lists.counts), element_codes(lists.elements, ordered=True)
        if lists.present is not None:
            codes = np.where(lists.present, codes, last)
        extremes = extreme.reduceat(codes, lists.offsets[rows]) if len(rows) else codes
        extremal = codes == np.repeat(extremes, lists.counts[rows])
        positions = lists.first(extremal if lists.present is None else extremal & lists.present)
        return lists.at(positions, positions >= 0)

    return run


def _join(_node: Call, operands: list[Vector], length: int) -> Vector:
    values, separator, *replacement = operands_of(operands, length)
    lists = Lists.from_vector(values)
    if replacement and lists.present is not None:
        texts = replacement[0].values.take(pa.array(lists.rows))
        lists = Lists(lists.offsets, lists.valid, pc.coalesce(lists.elements, texts))
    if lists.present is not None:
        lists = lists.where(lists.present)
    valid = reduce(mask_and, (operand.mask() for operand in (separator, *replacement)))
    texts = lists.to_vector(pa.list_(pa.string()), valid)
    return from_arrow(pc.binary_join(texts.values, separator.values.cast(pa.string())))


# -- lists of others ---------------------------------------------------------------------------------------------------


def _array(node: Call, operands: list[Vector], length: int) -> Vector:
    rows, count = rows_of(operands, length), len(operands)
    columns = pa.concat_arrays([to_arrow(operand, type_of(node).value_type, rows) for operand in operands])
    order = np.arange(rows * count).reshape(count, rows).T.ravel()
    return Lists.from_counts(np.full(rows, count), None, columns.take(pa.array(order))).to_vector(type_of(node))


def _map_part(*, items: bool) -> Run:
    def run(node: Call, operands: list[Vector], _length: int) -> Vector:
        return Lists.from_vector(operands[0], items=items).to_vector(type_of(node))

    return run


def _fields(node: Call, operands: list[Vector], _length: int) -> Vector:
    lists = Lists.from_vector(operands[0])
    position = field_position(node, type_of(node.arguments[0]).value_type)
    return Lists(lists.offsets, lists.valid, pc.struct_field(lists.elements, [position])).to_vector(type_of(node))


def _sort_array(node: Call, operands: list[Vector], _length: int) -> Vector:
    ascending = node.arguments[1] if len(node.arguments) > 1 else Literal(value=True)
    assert isinstance(ascending, Literal)
    return _sorted(node, operands[0], ascending=bool(ascending.value), nulls_first=bool(ascending.value))


def _array_sort(node: Call, operands: list[Vector], _length: int) -> Vector:
    return _sorted(node, operands[0], ascending=True, nulls_first=False)


def _sorted(node: Call, values: Vector, *, ascending: bool, nulls_first: bool) -> Vector:
    lists = Lists.from_vector(values)
    order = lists.order(order_codes(lists.elements, ascending=ascending, nulls_first=nulls_first))
    return lists.take(order).to_vector(type_of(node))


def _distinct(node: Call, operands: list[Vector], _length: int) -> Vector:
    lists = Lists.from_vector(operands[0])
    first = lists.first_equal(equality_codes(lists.elements))
    return lists.where(first == np.arange(len(first))).to_vector(type_of(node))


def _concat(node: Call, operands: list[Vector], length: int) -> Vector:
    lists = [Lists.from_vector(operand) for operand in operands_of(operands, length)]
    return concatenated(lists, type_of(node).value_type).to_vector(type_of(node))


def _flatten(node: Call, operands: list[Vector], _length: int) -> Vector:
    outer = Lists.from_vector(operands[0])
    inner = Lists.from_vector(from_arrow(outer.elements))
    valid = outer.valid if inner.valid is None else mask_and_not(outer.valid, outer.has(~inner.valid))
    return Lists(inner.offsets[outer.offsets], valid, inner.elements).to_vector(type_of(node))


def _reverse(node: Call, operands: list[Vector], _length: int) -> Vector:
    lists = Lists.from_vector(operands[0])
    mirrored = np.repeat(lists.offsets[:-1] + lists.offsets[1:] - 1, lists.counts) - np.arange(len(lists.elements))
    return lists.take(mirrored).to_vector(type_of(node))


def _slice(node: Call, operands: list[Vector], length: int) -> Vector:
    values, start, most = operands_of(operands, length)
    lists = Lists.from_vector(values)
    valid = reduce(mask_and, (operand.mask() for operand in (values, start, most)))
    first, count = (operand.values.astype(np.int64) for operand in (start, most))
    present = is_present(valid, len(first))
    if (present & (first == 0)).any():
        fail(node, "there is no element number 0")
    if (present & (count < 0)).any():
        fail(node, "the length is negative")
    begin = np.where(first < 0, first + lists.counts, first - 1)
    inside = present & (begin >= 0) & (begin < lists.counts)
    counts = np.where(inside, np.minimum(count, lists.counts - begin), 0)
    elements = lists.elements.take(pa.array(ranges(lists.offsets[:-1] + begin, counts)))
    return Lists.from_counts(counts, valid, elements).to_vector(type_of(node))


def _remove(node: Call, operands: list[Vector], length: int) -> Vector:
    values, value = operands
    lists = Lists.from_vector(values.expand(rows_of(operands, length)))
    return lists.where(~_equal_elements(lists, value)).to_vector(type_of(node), value.mask())


def _repeat(node: Call, operands: list[Vector], length: int) -> Vector:
    value, number = operands_of(operands, length)
    valid = number.mask()
    counts = np.maximum(number.values.astype(np.int64), 0)
    counts = counts if valid is None else np.where(valid, counts, 0)
    check_count(int(counts.sum()))
    rows = np.repeat(np.arange(len(counts)), counts)
    elements = to_arrow(value, type_of(node).value_type, len(counts)).take(pa.array(rows))
    return Lists.from_counts(counts, valid, elements).to_vector(type_of(node))


def _insert(*, last: bool) -> Run:
    """Lists with one more element, the last or the first."""

    def run(node: Call, operands: list[Vector], length: int) -> Vector:
        values, value = operands_of(operands, length)
        lists, element = Lists.from_vector(values), type_of(node).value_type
        rows = len(lists.counts)
        added = Lists.from_counts(np.ones(rows, np.int64), None, to_arrow(value, element, rows))
        return concatenated([lists, added] if last else [added, lists], element).to_vector(type_of(node))

    return run


def _set_operation(node: Call, operands: list[Vector], length: int) -> Vector:
    left, right = (Lists.from_vector(operand) for operand in operands_of(operands, length))
    both, members, in_right = _members(left, right, type_of(node).value_type)
    match node.function:
        case Function.ARRAY_INTERSECT:
            members = members & in_right & (both.positions < np.repeat(left.counts, both.counts))
        case Function.ARRAY_EXCEPT:
            members = members & ~in_right
    return both.where(members).to_vector(type_of(node))


def _members(left: Lists, right: Lists, element: pa.DataType) -> tuple[Lists, Mask, Mask]:
    """Elements of two lists of each row, and two masks: the first of equal ones, and those that the right list has."""
    both = concatenated([left, right], element)
    first = both.first_equal(equality_codes(both.elements))
    of_right = both.positions >= np.repeat(left.counts, both.counts)
    return both, first == np.arange(len(first)), mask_at(first[of_right], len(first))


def _overlap(_node: Call, operands: list[Vector], length: int) -> Vector:
    left, right = (Lists.from_vector(operand) for operand in operands_of(operands, length))
    both, _, in_right = _members(left, right, left.elements.type)
    shared = in_right & (both.positions < np.repeat(left.counts, both.counts))
    if both.present is None:
        return Vector(pa.bool_(), both.has(shared), both.valid)
    overlap = both.has(shared & both.present)
    unknown = both.has(~both.present) & (left.counts > 0) & (right.counts > 0)
    return Vector(pa.bool_(), overlap, mask_and(both.valid, overlap | ~unknown))


def _zip(node: Call, operands: list[Vector], length: int) -> Vector:
    together, elements = zipped([Lists.from_vector(operand) for operand in operands_of(operands, length)])
    structs = structs_of(elements, type_of(node).value_type)
    return Lists(together.offsets, together.valid, structs).to_vector(type_of(node))


def _sequence(node: Call, operands: list[Vector], length: int) -> Vector:
    start, stop, *steps = operands_of(operands, length)
    valid = reduce(mask_and, (operand.mask() for operand in (start, stop, *steps)))
    present = is_present(valid, len(start.values))
    first, last = (np.where(present, operand.values, 0).astype(np.int64) for operand in (start, stop))
    step = np.where(present, steps[0].values, 1).astype(np.int64) if steps else np.where(first <= last, 1, -1)
    fits = np.where(step > 0, first <= last, np.where(step < 0, first >= last, first == last))
    if not (fits | ~present).all():
        fail(node, "the step does not lead from the start to the end")
    # As unsigned integers: differences of 64-bit integers take one bit more.
    distance = np.maximum(first, last).view(np.uint64) - np.minimum(first, last).view(np.uint64)
    steps_taken = distance // np.where(step == 0, 1, np.abs(step)).view(np.uint64)
    check_count(int(steps_taken.max(initial=0)))
    counts = np.where(present, steps_taken.astype(np.int64) + 1, 0)
    check_count(int(counts.sum()))
    rows = np.repeat(np.arange(len(counts)), counts)
    values = first[rows] + step[rows] * ranges(np.zeros(len(counts), np.int64), counts)
    kind = type_of(node).value_type
    whole = values.astype(np.int32) if kind.bit_width == 32 else values
    return Lists.from_counts(counts, valid, pa.array(whole).cast(kind)).to_vector(type_of(node))


TABLE = (
    FunctionSpec(
        Function.GET_ITEM, ("GetArrayItem",), _NUMBERED,
        raises=Raises.ANSI,
        numpy=_get_item,
    ),
    FunctionSpec(
        Function.ELEMENT_AT, (), _NUMBERED,
        raises=Raises.ALWAYS,
        numpy=_element_at,
    ),
    FunctionSpec(Function.MAP_VALUE, ("GetMapValue",), _OF_KEY, numpy=_map_value),
    FunctionSpec(Function.SIZE, (), _SIZE, numpy=_size),
    FunctionSpec(
        Function.ARRAY, ("CreateArray",), Signature(_resolve_array, _accepts_elements, (1, MANY)),
        nulls=Nulls.OWN_RULE,
        numpy=_array,
    ),
    FunctionSpec(Function.ARRAY_CONTAINS, ("ArrayContains",), _SEARCH, numpy=_contains),
    FunctionSpec(Function.ARRAY_POSITION, ("ArrayPosition",), _SEARCH, numpy=_position),
    FunctionSpec(
        Function.SORT_ARRAY, ("SortArray",), Signature(same_list, _accepts_told_apart, (1, 2)), numpy=_sort_array,
    ),
    FunctionSpec(
        Function.ARRAY_SORT, ("ArraySort",), Signature(same_list, _accepts_ordered, (1, 1)), numpy=_array_sort,
    ),
    FunctionSpec(
        Function.ARRAY_MIN, ("ArrayMin",), _LEAST_OR_GREATEST, numpy=_least_or_greatest(np.minimum, LAST_CODE),
    ),
    FunctionSpec(
        Function.ARRAY_MAX, ("ArrayMax",), _LEAST_OR_GREATEST, numpy=_least_or_greatest(np.maximum, FIRST_CODE),
    ),
    FunctionSpec(
        Function.ARRAY_DISTINCT, ("ArrayDistinct",), Signature(same_list, _accepts_told_apart, (1, 1)),
        numpy=_distinct,
    ),
    FunctionSpec(Function.ARRAY_JOIN, ("ArrayJoin",), _JOIN, numpy=_join),
    FunctionSpec(Function.CONCAT_LISTS, (), _CONCAT, order=Order.ALL, numpy=_concat),
    FunctionSpec(Function.FLATTEN, ("Flatten",), _FLATTEN, numpy=_flatten),
    FunctionSpec(Function.REVERSE_LIST, (), _REVERSE, numpy=_reverse),
    FunctionSpec(
        Function.SLICE, ("Slice",), _SLICE,
        raises=Raises.ALWAYS, safe=_never_fails,
        numpy=_slice,
    ),
    FunctionSpec(Function.ARRAY_REMOVE, ("ArrayRemove",), Signature(same_list, _accepts_value), numpy=_remove),
    FunctionSpec(
        Function.ARRAY_REPEAT, ("ArrayRepeat",), _REPEAT,
        nulls=Nulls.OWN_RULE,
        numpy=_repeat,
    ),
    FunctionSpec(Function.ARRAY_APPEND, (), _INSERT, nulls=Nulls.OWN_RULE, numpy=_insert(last=True)),
    FunctionSpec(Function.ARRAY_PREPEND, (), _INSERT, nulls=Nulls.OWN_RULE, numpy=_insert(last=False)),
    FunctionSpec(Function.ARRAY_UNION, ("ArrayUnion",), _SETS, numpy=_set_operation),
    FunctionSpec(Function.ARRAY_INTERSECT, ("ArrayIntersect",), _SETS, numpy=_set_operation),
    FunctionSpec(Function.ARRAY_EXCEPT, ("ArrayExcept",), _SETS, numpy=_set_operation),
    FunctionSpec(Function.ARRAYS_OVERLAP, ("ArraysOverlap",), _OVERLAP, numpy=_overlap),
    FunctionSpec(
        Function.ARRAYS_ZIP, ("ArraysZip",), _ZIP,
        order=Order.ALL,
        numpy=_zip,
    ),
    FunctionSpec(
        Function.SEQUENCE, ("Sequence",), _SEQUENCE,
        raises=Raises.ALWAYS,
        numpy=_sequence,
    ),
    FunctionSpec(Function.MAP_KEYS, ("MapKeys",), _KEYS, numpy=_map_part(items=False)),
    FunctionSpec(Function.MAP_VALUES, ("MapValues",), _VALUES, numpy=_map_part(items=True)),
    FunctionSpec(Function.GET_FIELDS, ("GetArrayStructFields",), _FIELDS, numpy=_fields),
)  # fmt: skip
