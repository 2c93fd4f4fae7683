"""Functions that evaluate an expression for each element of lists or maps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from gpujoin.errors import UnsupportedValueError
from gpujoin.functions.elements import Lists, concatenated, equality_codes, order_codes, zipped
from gpujoin.functions.implementation import Evaluate, Lazy
from gpujoin.functions.kinds import has_floats, is_alike, is_written
from gpujoin.functions.lists import Gives, of_types, same_list
from gpujoin.functions.logic import is_false, is_true
from gpujoin.functions.maps import maps_of
from gpujoin.functions.rows import Rows, scatter
from gpujoin.functions.signatures import Signature, type_of, types_of
from gpujoin.functions.spec import FunctionSpec, Nulls, can_raise
from gpujoin.functions.vector import Vector, from_arrow, is_present, mask_and, nulls, to_arrow
from gpujoin.model.expressions import Call, Expression, Function, Literal, Variable
from gpujoin.model.types import is_list


def _with_lambda(
    gives: Gives, accepts: Callable[..., bool], variables: tuple[int, int], operands: int = 1
) -> Signature:
    """The signature of a function of operands, a lambda's body and its variables, by types of operands and body."""

    def accepts_call(node: Call) -> bool:
        named = all(isinstance(argument, Variable) for argument in node.arguments[operands + 1 :])
        return named and accepts(*types_of(node)[: operands + 1])

    low, high = (operands + 1 + count for count in variables)
    return Signature(of_types(lambda *types: gives(*types[: operands + 1])), accepts_call, (low, high))


def _is_condition(array: pa.DataType, body: pa.DataType) -> bool:
    return is_list(array) and pat.is_boolean(body)


def _have_like_keys(first: pa.DataType, second: pa.DataType, _body: pa.DataType) -> bool:
    if not pat.is_map(first) or not pat.is_map(second):
        return False
    key = first.key_type
    return is_alike(key, second.key_type) and is_written(key, compared=True) and not has_floats(key)


def _accepts_sort_key(node: Call) -> bool:
    array, key, *_ = types_of(node)
    element, *options = node.arguments[2:]
    constants = all(isinstance(option, Literal) for option in options)
    return is_list(array) and isinstance(element, Variable) and constants and is_written(key, compared=True)


def _accepts_fold(node: Call) -> bool:
    types = types_of(node)
    variables = (node.arguments[3], node.arguments[4], node.arguments[6])
    named = all(isinstance(variable, Variable) for variable in variables)
    return is_list(types[0]) and is_alike(types[1], types[2]) and named


_TRANSFORM = _with_lambda(
    lambda array, body: pa.list_(body) if is_list(array) else None, lambda array, _: is_list(array), (1, 2)
)
_FILTER = _with_lambda(lambda array, _: array if is_list(array) else None, _is_condition, (1, 2))
_QUANTIFIED = _with_lambda(lambda array, _: pa.bool_() if is_list(array) else None, _is_condition, (1, 1))
_ZIP_WITH = _with_lambda(
    lambda first, second, body: pa.list_(body) if is_list(first) and is_list(second) else None,
    lambda first, second, _: is_list(first) and is_list(second), (2, 2), operands=2,
)  # fmt: skip
_MAP_ZIP_WITH = _with_lambda(
    lambda first, second, body: pa.map_(first.key_type, body) if pat.is_map(first) and pat.is_map(second) else None,
    _have_like_keys, (3, 3), operands=2,
)  # fmt: skip
_MAP_FILTER = _with_lambda(
    lambda source, _: source if pat.is_map(source) else None,
    lambda source, body: pat.is_map(source) and pat.is_boolean(body), (2, 2),
)  # fmt: skip
_TRANSFORM_VALUES = _with_lambda(
    lambda source, body: pa.map_(source.key_type, body) if pat.is_map(source) else None,
    lambda source, _: pat.is_map(source), (2, 2),
)  # fmt: skip
_SORT_BY = Signature(same_list, _accepts_sort_key, (5, 5))
_FOLD = Signature(of_types(lambda *types: types[5] if is_list(types[0]) else None), _accepts_fold, (7, 7))


# -- NumPy and Arrow --------------------------------------------------------------------------------------------------


def _evaluated(node: Call, rows: Rows, evaluate: Evaluate) -> tuple[Lists, Vector]:
    """The lists of all rows, and the value of the body for each element."""
    array, body, *others = node.arguments
    variables = [variable for variable in others if isinstance(variable, Variable)]
    lists = Lists.from_vector(evaluate(array, rows).expand(rows.length))
    values = [from_arrow(lists.elements)]
    if len(variables) > 1:
        values.append(Vector(pa.int32(), lists.positions.astype(np.int32)))
    return lists, _values_of(body, rows.repeated(lists.rows, _bound(variables, values)), evaluate)


def _values_of(body: Expression, rows: Rows, evaluate: Evaluate) -> Vector:
    """Values of an expression; of no rows without evaluating it."""
    assert body.type is not None
    return evaluate(body, rows).expand(rows.length) if rows.length else nulls(body.type).expand(0)


def _bound(variables: Sequence[Expression], values: Iterable[Vector]) -> dict[str, Vector]:
    names = [variable.name for variable in variables if isinstance(variable, Variable)]
    return dict(zip(names, values, strict=True))


def _transform(node: Call, rows: Rows, evaluate: Evaluate) -> Vector:
    lists, results = _evaluated(node, rows, evaluate)
    elements = to_arrow(results, type_of(node).value_type, len(lists.elements))
    return Lists(lists.offsets, lists.valid, elements).to_vector(type_of(node))


def _filter(node: Call, rows: Rows, evaluate: Evaluate) -> Vector:
    lists, results = _evaluated(node, rows, evaluate)
    return lists.where(is_true(results)).to_vector(type_of(node))


def _quantified(*, deciding: bool) -> Callable[[Call, Rows, Evaluate], Vector]:
    """Whether the body is ``deciding`` for any element; else null if it is null for any, else not ``deciding``."""

    def run(node: Call, rows: Rows, evaluate: Evaluate) -> Vector:
        lists, results = _evaluated(node, rows, evaluate)
        decided, valid = lists.has(is_true(results) if deciding else is_false(results)), lists.valid
        if results.valid is not None:
            valid = mask_and(valid, decided | ~lists.has(~results.valid))
        return Vector(pa.bool_(), decided if deciding else ~decided, valid)

    return run


def _sort_by(node: Call, rows: Rows, evaluate: Evaluate) -> Vector:
    lists, results = _evaluated(node, rows, evaluate)
    descending, nulls = (option.value for option in node.arguments[3:] if isinstance(option, Literal))
    if nulls is None and not is_present(results.mask(), len(lists.elements))[lists.counts[lists.rows] > 1].all():
        raise UnsupportedValueError(f"{node}: where elements without a key go is left to Spark")
    keys = to_arrow(results, results.dtype, len(lists.elements))
    order = lists.order(order_codes(keys, ascending=not descending, nulls_first=nulls == "first"))
    return lists.take(order).to_vector(type_of(node))


def _zip_with(node: Call, rows: Rows, evaluate: Evaluate) -> Vector:
    first, second, body, *variables = node.arguments
    lists = [Lists.from_vector(evaluate(array, rows).expand(rows.length)) for array in (first, second)]
    together, elements = zipped(lists)
    bound = _bound(variables, map(from_arrow, elements))
    values = _values_of(body, rows.repeated(together.rows, bound), evaluate)
    results = to_arrow(values, type_of(node).value_type, len(together.elements))
    return Lists(together.offsets, together.valid, results).to_vector(type_of(node))


def _map_zip_with(node: Call, rows: Rows, evaluate: Evaluate) -> Vector:
    """Values of a map's key are null where the map lacks the key; keys of the first map come first.

    An example, ``map_zip_with(a, b, (k, x, y) -> …)``::

        a               b               entries for which the expression is evaluated
        {p: 1, q: 2}    {r: 5, q: 6}    p 1 null    q 2 6    r null 5
    """
    assert node.type is not None
    *sources, body = node.arguments[:3]
    variables = node.arguments[3:]
    maps = [evaluate(source, rows).expand(rows.length) for source in sources]
    valid = mask_and(maps[0].mask(), maps[1].mask())
    keys, items = (
        [Lists.from_vector(each, items=part).where_valid(valid) for each in maps] for part in (False, True)
    )  # fmt: skip
    both = concatenated(keys, node.type.key_type)
    first = both.first_equal(equality_codes(both.elements))
    members = first == np.arange(len(first))
    entries, of_second = both.where(members), both.positions >= np.repeat(keys[0].counts, both.counts)
    values = []
    for each, own in zip(items, (~of_second, of_second), strict=True):
        numbers = np.full(len(first), -1)
        numbers[first[own][::-1]] = np.arange(len(each.elements))[::-1]  # of equal keys the first counts
        places = numbers[members]
        values.append(from_arrow(each.elements.take(pa.array(np.maximum(places, 0), mask=places < 0))))
    bound = _bound(variables, (from_arrow(entries.elements), *values))
    results = _values_of(body, rows.repeated(entries.rows, bound), evaluate)
    return maps_of(node.type, entries, to_arrow(results, node.type.item_type, len(entries.elements)))


def _map_of_entries(node: Call, rows: Rows, evaluate: Evaluate) -> Vector:
    """``map_filter`` and ``transform_values``: the expression is evaluated for all entries."""
    assert node.type is not None
    source, body, *variables = node.arguments
    maps = evaluate(source, rows).expand(rows.length)
    keys, items = (Lists.from_vector(maps, items=items) for items in (False, True))
    bound = _bound(variables, (from_arrow(keys.elements), from_arrow(items.elements)))
    results = _values_of(body, rows.repeated(keys.rows, bound), evaluate)
    if node.function is Function.TRANSFORM_VALUES:
        return maps_of(node.type, keys, to_arrow(results, node.type.item_type, len(keys.elements)))
    passes = is_true(results)
    return maps_of(node.type, keys.where(passes), items.where(passes).elements)


def _aggregate(node: Call, rows: Rows, evaluate: Evaluate) -> Vector:
    """Go through the elements of all rows by their numbers: rows with most elements first, so that some end each time.

    An example, the sums of ``[1, 2]``, ``[]`` and ``[5]``::

        in order     start    + first    + second
        [1, 2]       0        1          3
        [5]          0        5
        []           0
    """
    assert node.type is not None
    array, zero, merge, of_value, of_element, finish, of_last = node.arguments
    source = Lists.from_vector(evaluate(array, rows).expand(rows.length))
    order = np.argsort(-source.counts, kind="stable")
    if source.valid is not None:
        order = order[source.valid[order]]
    counts, starts = source.counts[order], source.offsets[order]
    value = _values_of(zero, rows.repeated(order, {}), evaluate)
    finished: list[pa.Array] = []
    assert zero.type is not None
    ends = np.searchsorted(-counts, -np.arange(int(counts.max(initial=0))))  # rows with more elements than a number
    for number, left in enumerate(map(int, ends)):
        if left < len(value.values):
            finished.append(to_arrow(value.slice(left), zero.type, len(value.values) - left))
            value = value.slice(0, left)
        element = from_arrow(source.elements.take(pa.array(starts[:left] + number)))
        active = rows.repeated(order[:left], _bound((of_value, of_element), (value, element)))
        value = _values_of(merge, active, evaluate)
    finished.append(to_arrow(value, zero.type, len(value.values)))
    last = from_arrow(pa.concat_arrays(finished[::-1]))
    results = _values_of(finish, rows.repeated(order, _bound((of_last,), (last,))), evaluate)
    return scatter(results, order, rows.length)


def never_raises(node: Call) -> bool:
    """Whether the body cannot raise. Spark stops at the first element that decides; here all are evaluated."""
    return not can_raise(node.arguments[1])


TABLE = (
    FunctionSpec(Function.ARRAY_SORT_BY, (), _SORT_BY, nulls=Nulls.OWN_RULE, partial=True, numpy=Lazy(_sort_by)),
    FunctionSpec(Function.ZIP_WITH, ("ZipWith",), _ZIP_WITH, nulls=Nulls.OWN_RULE, numpy=Lazy(_zip_with)),
    FunctionSpec(
        Function.MAP_ZIP_WITH, ("MapZipWith",), _MAP_ZIP_WITH, nulls=Nulls.OWN_RULE, numpy=Lazy(_map_zip_with),
    ),
    FunctionSpec(Function.MAP_FILTER, ("MapFilter",), _MAP_FILTER, nulls=Nulls.OWN_RULE, numpy=Lazy(_map_of_entries)),
    FunctionSpec(
        Function.TRANSFORM_VALUES, ("TransformValues",), _TRANSFORM_VALUES,
        nulls=Nulls.OWN_RULE,
        numpy=Lazy(_map_of_entries),
    ),
    FunctionSpec(Function.AGGREGATE, ("ArrayAggregate",), _FOLD, nulls=Nulls.OWN_RULE, numpy=Lazy(_aggregate)),
    FunctionSpec(Function.TRANSFORM, ("ArrayTransform",), _TRANSFORM, nulls=Nulls.OWN_RULE, numpy=Lazy(_transform)),
    FunctionSpec(Function.FILTER, ("ArrayFilter",), _FILTER, nulls=Nulls.OWN_RULE, numpy=Lazy(_filter)),
    FunctionSpec(
        Function.EXISTS, ("ArrayExists",), _QUANTIFIED,
        nulls=Nulls.OWN_RULE,
        exact=never_raises, numpy=Lazy(_quantified(deciding=True)),
    ),
    FunctionSpec(
        Function.FORALL, ("ArrayForAll",), _QUANTIFIED,
        nulls=Nulls.OWN_RULE,
        exact=never_raises, numpy=Lazy(_quantified(deciding=False)),
    ),
)  # fmt: skip
