"""Functions of arrays and maps, one row at a time."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from gpujoin.errors import ExpressionEvaluationError
from gpujoin.model.expressions import Call, EvalMode, Function, Literal, Variable
from gpujoin.testing import Cell
from tests.cells import sort_key
from tests.oracle import nestedbytes
from tests.oracle.compiled import Compiled, Handler


def strict(compute: Callable[..., Cell]) -> Handler:
    """A function whose result is null where an operand is; it is given the call first."""

    def build(node: Call, operands: list[Compiled]) -> Compiled:
        def run(rows: Any) -> Cell:
            values = [operand.run(rows) for operand in operands]
            return None if None in values else compute(node, *values)

        assert node.type is not None
        return Compiled(node.type, run)

    return build


def _outside(node: Call) -> Cell:
    if node.mode is EvalMode.ANSI:
        raise ExpressionEvaluationError("no such element")
    return None


def _get_item(node: Call, values: tuple[Cell, ...], number: int) -> Cell:
    return values[number] if 0 <= number < len(values) else _outside(node)


def _element_at(node: Call, values: tuple[Cell, ...], number: int) -> Cell:
    if number == 0:
        raise ExpressionEvaluationError("element 0")
    return values[number - (number > 0)] if abs(number) <= len(values) else _outside(node)


def _places(values: tuple[Cell, ...], value: Cell) -> list[int]:
    return [n for n, item in enumerate(values) if item is not None and sort_key(item) == sort_key(value)]


def _contains(_node: Call, values: tuple[Cell, ...], value: Cell) -> Cell:
    if _places(values, value):
        return True
    return None if None in values else False


def _position(_node: Call, values: tuple[Cell, ...], value: Cell) -> Cell:
    return (_places(values, value) or [-1])[0] + 1


def _map_value(_node: Call, entries: tuple[tuple[Cell, Cell], ...], key: Cell) -> Cell:
    places = _places(tuple(name for name, _ in entries), key)
    return entries[places[0]][1] if places else None


def _get_fields(node: Call, values: tuple[Cell, ...], name: str) -> Cell:
    dtype = node.arguments[0].type
    assert dtype is not None
    index = dtype.value_type.get_field_index(name)
    return tuple(None if item is None else item[index] for item in values)


def _array(node: Call, operands: list[Compiled]) -> Compiled:
    assert node.type is not None
    return Compiled(node.type, lambda rows: tuple(operand.run(rows) for operand in operands))


def _split(node: Call, operands: list[Compiled]) -> Compiled:
    pattern = node.arguments[1]
    assert isinstance(pattern, Literal)
    separator = re.compile(str(pattern.value))
    most = node.arguments[2].value if len(node.arguments) > 2 else -1  # type: ignore[attr-defined]

    def run(rows: Any) -> Cell:
        text, start = operands[0].run(rows), 0
        parts: list[str] = []
        if text is None:
            return None
        for match in separator.finditer(text):
            if 0 < most <= len(parts) + 1:
                break
            parts.append(text[start : match.start()])
            start = match.end()
        return (*parts, text[start:])

    return Compiled(pa.list_(pa.string()), run)


def _sort_array(_node: Call, values: tuple[Cell, ...], ascending: bool = True) -> Cell:
    there = sorted((value for value in values if value is not None), key=sort_key, reverse=not ascending)
    absent = [None] * (len(values) - len(there))
    return (*absent, *there) if ascending else (*there, *absent)


def _array_sort(_node: Call, values: tuple[Cell, ...]) -> Cell:
    there = sorted((value for value in values if value is not None), key=sort_key)
    return (*there, *[None] * (len(values) - len(there)))


def _distinct(_node: Call, values: tuple[Cell, ...]) -> Cell:
    kept: dict[Any, Cell] = {}
    for value in values:
        kept.setdefault(None if value is None else (sort_key(value),), value)
    return tuple(kept.values())


def _extreme(choose: Callable[..., Cell]) -> Callable[..., Cell]:
    return lambda _node, values: choose((v for v in values if v is not None), key=sort_key, default=None)


def _join(_node: Call, values: tuple[Cell, ...], separator: str, replacement: str | None = None) -> Cell:
    parts = [replacement if value is None else value for value in values]
    return separator.join(part for part in parts if part is not None)


def _struct(node: Call, operands: list[Compiled]) -> Compiled:
    assert node.type is not None
    return Compiled(node.type, lambda rows: tuple(operand.run(rows) for operand in operands[1::2]))


def variable(rows: Any, name: str) -> Cell:
    """The value of a variable, which rows within a lambda have after the cells of both sides."""
    return rows[2][name]


def _of_elements(finish: Callable[[list[Cell], list[Cell]], Cell]) -> Handler:
    """A function of the elements of a list, and of the values of an expression for them."""

    def build(node: Call, operands: list[Compiled]) -> Compiled:
        array, body, *_ = operands
        names = [argument.name for argument in node.arguments[2:] if isinstance(argument, Variable)]

        def run(rows: Any) -> Cell:
            elements = array.run(rows)
            if elements is None:
                return None
            left, right, *outer = rows
            known = outer[0] if outer else {}
            bound = [known | dict(zip(names, (element, n), strict=False)) for n, element in enumerate(elements)]
            return finish(elements, [body.run((left, right, variables)) for variables in bound])

        assert node.type is not None
        return Compiled(node.type, run)

    return build


def _quantified(deciding: bool) -> Handler:
    def finish(_elements: list[Cell], values: list[Cell]) -> Cell:
        if deciding in [value for value in values if value is not None]:
            return deciding
        return None if None in values else not deciding

    return _of_elements(finish)


def _written(*, compared: bool) -> Handler:
    def compute(node: Call, value: Cell) -> Cell:
        dtype = node.arguments[0].type
        assert dtype is not None
        return nestedbytes.written(value, dtype, compared=compared)

    return strict(compute)


def _ranked(node: Call, value: Cell) -> Cell:
    dtype = node.arguments[0].type
    assert dtype is not None
    return b"".join(nestedbytes.written(value, dtype, compared=compared) for compared in (True, False))


def _read(node: Call, data: bytes) -> Cell:
    assert node.type is not None
    value, end = nestedbytes.read(data, node.type)
    return value if end == len(data) else nestedbytes.read(data, node.type, end)[0]


def _flatten(_node: Call, lists: tuple[Cell, ...]) -> Cell:
    return None if None in lists else tuple(item for each in lists for item in each)


def _slice(_node: Call, values: tuple[Cell, ...], start: int, length: int) -> Cell:
    if start == 0 or length < 0:
        raise ExpressionEvaluationError("no such part")
    begin = start - 1 if start > 0 else len(values) + start
    return values[begin : begin + length] if 0 <= begin < len(values) else ()


def _remove(_node: Call, values: tuple[Cell, ...], value: Cell) -> Cell:
    return tuple(item for item in values if item is None or sort_key(item) != sort_key(value))


def _repeat(node: Call, operands: list[Compiled]) -> Compiled:
    value, number = operands
    assert node.type is not None

    def run(rows: Any) -> Cell:
        count = number.run(rows)
        return None if count is None else (value.run(rows),) * count

    return Compiled(node.type, run)


def _added(*, last: bool) -> Handler:
    def build(node: Call, operands: list[Compiled]) -> Compiled:
        assert node.type is not None

        def run(rows: Any) -> Cell:
            values, value = (operand.run(rows) for operand in operands)
            if values is None:
                return None
            return (*values, value) if last else (value, *values)

        return Compiled(node.type, run)

    return build


def _keys(values: tuple[Cell, ...]) -> list[Any]:
    return [None if value is None else (sort_key(value),) for value in values]


def _union(node: Call, first: tuple[Cell, ...], second: tuple[Cell, ...]) -> Cell:
    return _distinct(node, first + second)


def _as_sets(*, both: bool) -> Callable[..., Cell]:
    def compute(node: Call, first: tuple[Cell, ...], second: tuple[Cell, ...]) -> Cell:
        others = _keys(second)
        return _distinct(node, tuple(v for v, key in zip(first, _keys(first), strict=True) if (key in others) == both))

    return compute


def _overlap(_node: Call, first: tuple[Cell, ...], second: tuple[Cell, ...]) -> Cell:
    if any(key is not None and key in _keys(second) for key in _keys(first)):
        return True
    return None if first and second and None in first + second else False


def _zipped(_node: Call, *lists: tuple[Cell, ...]) -> Cell:
    return tuple(itertools.zip_longest(*lists))


def _sequence(_node: Call, first: int, last: int, step: int | None = None) -> Cell:
    step = (1 if first <= last else -1) if step is None else step
    if (last - first) * step < 0 or (step == 0 and first != last):
        raise ExpressionEvaluationError("no way to the end")
    return (first,) if step == 0 else tuple(range(first, last + (1 if step > 0 else -1), step))


def _within(rows: Any, variables: dict[str, Cell]) -> Any:
    left, right, *outer = rows
    return left, right, (outer[0] if outer else {}) | variables


def _zip_with(node: Call, operands: list[Compiled]) -> Compiled:
    first, second, body, *_ = operands
    names = [argument.name for argument in node.arguments[3:] if isinstance(argument, Variable)]
    assert node.type is not None

    def run(rows: Any) -> Cell:
        lists = first.run(rows), second.run(rows)
        if None in lists:
            return None
        pairs = itertools.zip_longest(*lists)
        return tuple(body.run(_within(rows, dict(zip(names, pair, strict=True)))) for pair in pairs)

    return Compiled(node.type, run)


def _sort_by(node: Call, operands: list[Compiled]) -> Compiled:
    array, key, *_ = operands
    variable, *options = node.arguments[2:]
    assert isinstance(variable, Variable)
    descending, nulls = (option.value for option in options if isinstance(option, Literal))
    assert node.type is not None

    def run(rows: Any) -> Cell:
        elements = array.run(rows)
        if elements is None:
            return None
        keys = [key.run(_within(rows, {variable.name: element})) for element in elements]
        there = [n for n, value in enumerate(keys) if value is not None]
        absent = tuple(element for element, value in zip(elements, keys, strict=True) if value is None)
        there.sort(key=lambda n: sort_key(keys[n]), reverse=bool(descending))  # equal ones stay in order
        ordered = tuple(elements[n] for n in there)
        return (*absent, *ordered) if nulls == "first" else (*ordered, *absent)

    return Compiled(node.type, run)


def _map_zip_with(node: Call, operands: list[Compiled]) -> Compiled:
    first, second, body, *_ = operands
    names = [argument.name for argument in node.arguments[3:] if isinstance(argument, Variable)]
    assert node.type is not None

    def run(rows: Any) -> Cell:
        maps = first.run(rows), second.run(rows)
        if None in maps:
            return None
        found: dict[Any, list[Cell]] = {}
        for place, entries in enumerate(maps, 1):
            for key, value in entries:
                found.setdefault(sort_key(key), [key, None, None])[place] = value
        return tuple(
            (entry[0], body.run(_within(rows, dict(zip(names, entry, strict=True))))) for entry in found.values()
        )

    return Compiled(node.type, run)


def _of_entries(node: Call, operands: list[Compiled]) -> Compiled:
    source, body, *_ = operands
    names = [argument.name for argument in node.arguments[2:] if isinstance(argument, Variable)]
    assert node.type is not None

    def run(rows: Any) -> Cell:
        entries = source.run(rows)
        if entries is None:
            return None
        values = [body.run(_within(rows, dict(zip(names, entry, strict=True)))) for entry in entries]
        if node.function is Function.MAP_FILTER:
            return tuple(entry for entry, kept in zip(entries, values, strict=True) if kept)
        return tuple((key, value) for (key, _), value in zip(entries, values, strict=True))

    return Compiled(node.type, run)


def _aggregate(node: Call, operands: list[Compiled]) -> Compiled:
    array, zero, merge, _, _, finish, _ = operands
    so_far, element, last = (node.arguments[n].name for n in (3, 4, 6))  # type: ignore[attr-defined]
    assert node.type is not None

    def run(rows: Any) -> Cell:
        elements = array.run(rows)
        if elements is None:
            return None
        value = zero.run(rows)
        for each in elements:
            value = merge.run(_within(rows, {so_far: value, element: each}))
        return finish.run(_within(rows, {last: value}))

    return Compiled(node.type, run)


def _map_of(node: Call, entries: Iterable[tuple[Cell, Cell]]) -> Cell:
    last_counts = node.arguments[-1].value  # type: ignore[attr-defined]
    made: dict[Any, tuple[Cell, Cell]] = {}
    for key, value in entries:
        if key is None:
            raise ExpressionEvaluationError("a null key")
        identity = sort_key(key)
        if identity in made and not last_counts:
            raise ExpressionEvaluationError(f"{key} twice")
        made[identity] = (made.get(identity, (key,))[0], value)
    return tuple(made.values())


def _map_of_lists(node: Call, keys: tuple[Cell, ...], values: tuple[Cell, ...], _last_counts: bool) -> Cell:
    if len(keys) != len(values):
        raise ExpressionEvaluationError("not as many values as keys")
    return _map_of(node, zip(keys, values, strict=True))


def _map_of_entries(node: Call, entries: tuple[Any, ...], _last_counts: bool) -> Cell:
    return None if None in entries else _map_of(node, entries)


FUNCTIONS: dict[Function, Handler] = {
    Function.MAP_FROM_ARRAYS: strict(_map_of_lists),
    Function.MAP_FROM_ENTRIES: strict(_map_of_entries),
    Function.CONCAT_LISTS: strict(lambda _node, *lists: tuple(itertools.chain(*lists))),
    Function.FLATTEN: strict(_flatten),
    Function.REVERSE_LIST: strict(lambda _node, values: values[::-1]),
    Function.SLICE: strict(_slice),
    Function.ARRAY_REMOVE: strict(_remove),
    Function.ARRAY_REPEAT: _repeat,
    Function.ARRAY_APPEND: _added(last=True),
    Function.ARRAY_PREPEND: _added(last=False),
    Function.ARRAY_UNION: strict(_union),
    Function.ARRAY_INTERSECT: strict(_as_sets(both=True)),
    Function.ARRAY_EXCEPT: strict(_as_sets(both=False)),
    Function.ARRAYS_OVERLAP: strict(_overlap),
    Function.ARRAYS_ZIP: strict(_zipped),
    Function.MAP_ENTRIES: strict(lambda _node, entries: entries),
    Function.SEQUENCE: strict(_sequence),
    Function.ZIP_WITH: _zip_with,
    Function.ARRAY_SORT_BY: _sort_by,
    Function.MAP_ZIP_WITH: _map_zip_with,
    Function.MAP_FILTER: _of_entries,
    Function.TRANSFORM_VALUES: _of_entries,
    Function.AGGREGATE: _aggregate,
    Function.ORDER_BYTES: _written(compared=True),
    Function.VALUE_BYTES: _written(compared=False),
    Function.RANKED_BYTES: strict(_ranked),
    Function.OF_BYTES: strict(_read),
    Function.TRANSFORM: _of_elements(lambda _elements, values: tuple(values)),
    Function.FILTER: _of_elements(
        lambda elements, values: tuple(e for e, keep in zip(elements, values, strict=True) if keep)
    ),
    Function.EXISTS: _quantified(deciding=True),
    Function.FORALL: _quantified(deciding=False),
    Function.GET_ITEM: strict(_get_item),
    Function.ELEMENT_AT: strict(_element_at),
    Function.MAP_VALUE: strict(_map_value),
    Function.SIZE: strict(lambda _node, values: len(values)),
    Function.ARRAY: _array,
    Function.ARRAY_CONTAINS: strict(_contains),
    Function.ARRAY_POSITION: strict(_position),
    Function.MAP_KEYS: strict(lambda _node, entries: tuple(key for key, _ in entries)),
    Function.MAP_VALUES: strict(lambda _node, entries: tuple(value for _, value in entries)),
    Function.GET_FIELDS: strict(_get_fields),
    Function.SPLIT: _split,
    Function.SORT_ARRAY: strict(_sort_array),
    Function.ARRAY_SORT: strict(_array_sort),
    Function.ARRAY_MIN: strict(_extreme(min)),
    Function.ARRAY_MAX: strict(_extreme(max)),
    Function.ARRAY_DISTINCT: strict(_distinct),
    Function.ARRAY_JOIN: strict(_join),
    Function.NAMED_STRUCT: _struct,
}
