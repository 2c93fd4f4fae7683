"""Calls of every function that takes nested values, over values of types that differ in names and nullability alone.

No function is listed: whatever of the tables takes structs, lists of them or maps is called, with each of its operands
in each of the types that are one to Spark.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.errors import ConditionError
from gpujoin.functions.spec import SPECS, FunctionSpec
from gpujoin.model.expressions import Call, Case, Cast, ColumnRef, Expression, Function, Literal, Variable, lit
from gpujoin.model.jointype import Side
from tests.functions.examples import example

_STRUCT = pa.struct([("a", pa.int32()), ("b", pa.string())])
_VALUES: list[Any] = [(1, "x"), (1, None), None, (2, "y"), (None, None), (3, "ü"), (0, ""), (1, "x")]


def _each(make: Callable[[int], Any]) -> list[Any]:
    return [make(row) for row in range(len(_VALUES))]


def _of(row: int) -> Any:
    return _VALUES[row % len(_VALUES)]


KINDS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "struct": (_STRUCT, _VALUES),
    "list": (
        pa.list_(_STRUCT),
        _each(lambda n: None if n == 4 else [_of(n + k) for k in range(int("01230122"[n]))]),
    ),
    "map": (
        pa.map_(pa.string(), _STRUCT),
        _each(lambda n: None if n == 5 else [("pqr"[k], _of(n + k)) for k in range(n % 4)]),
    ),
    "map of structs": (
        pa.map_(_STRUCT, pa.int32()), _each(lambda n: None if n == 3 else [((k, "k"), n) for k in range(n % 3)])
    ),
    "deep": (
        pa.struct([("x", _STRUCT), ("y", pa.list_(_STRUCT))]),
        _each(lambda n: None if n == 6 else (_of(n), [_of(n + 1), _of(n + 2)])),
    ),
    "lists": (
        pa.list_(pa.list_(_STRUCT)),
        _each(lambda n: None if n == 7 else [None if n == 1 else [_of(n), _of(n + 3)], []][: int("01201220"[n])]),
    ),
    "number": (pa.int32(), [0, 1, 2, None, 1, 0, 2, 1]),
    "text": (pa.string(), ["p", "q", None, "p", "r", "", "q", "p"]),
    "flag": (pa.bool_(), [True, False, None, True, False, True, False, None]),
}  # fmt: skip
"""Kinds of operands: a type, and a value of each row, structs as tuples and maps as pairs."""
NESTED = ("struct", "list", "map", "map of structs", "deep", "lists")


# -- types that are one to Spark -----------------------------------------------------------------------------


def changed(dtype: pa.DataType, name: Callable[[str], str], nullable: bool = True) -> pa.DataType:
    """A type with other names of fields, which may be null or not."""
    if pat.is_struct(dtype):
        fields = [pa.field(name(field.name), changed(field.type, name, nullable), nullable) for field in dtype]
        return pa.struct(fields)
    if pat.is_map(dtype):
        item = pa.field("value", changed(dtype.item_type, name, nullable), nullable)
        return pa.map_(pa.field("key", changed(dtype.key_type, name, nullable), False), item)
    if pat.is_list(dtype):
        return pa.list_(pa.field("element", changed(dtype.value_type, name, nullable), nullable))
    return dtype


_SWAPPED = {"a": "b", "b": "a", "x": "y", "y": "x"}


@dataclass(frozen=True)
class Variant:
    """A way in which types that are one to Spark differ."""

    name: Callable[[str], str]
    """What a field is called."""
    nullable: bool = True
    """Whether fields, elements and values may be null."""
    planned: bool = True
    """Whether the plan knows of the names, and not the values alone."""


VARIANTS: dict[str, Variant] = {
    "same": Variant(str),
    "other case": Variant(str.upper),
    "other names": Variant(lambda name: _SWAPPED[name]),
    "never null": Variant(str.upper, nullable=False),
    "not as planned": Variant(lambda name: _SWAPPED[name], planned=False),
}


def _whole(value: Any, dtype: pa.DataType) -> Any:
    """A value without nulls within, of one that may have some."""
    if pat.is_struct(dtype):
        parts = (None,) * dtype.num_fields if value is None else value
        return tuple(_whole(part, field.type) for part, field in zip(parts, dtype, strict=True))
    if pat.is_map(dtype):
        return [(key, _whole(item, dtype.item_type)) for key, item in value or ()]
    if pat.is_list(dtype):
        return [_whole(item, dtype.value_type) for item in value or ()]
    return value if value is not None else "" if pat.is_string(dtype) else 7


def array_of(values: Sequence[Any], dtype: pa.DataType) -> pa.Array:
    """Values of a type, told apart by position."""
    absent = pa.array([value is None for value in values])
    if pat.is_struct(dtype):
        parts = [[None if value is None else value[n] for value in values] for n in range(dtype.num_fields)]
        fields = [array_of(part, field.type) for part, field in zip(parts, dtype, strict=True)]
        return pa.StructArray.from_arrays(fields, fields=list(dtype), mask=absent)
    if not pat.is_map(dtype) and not pat.is_list(dtype):
        return pa.array(values, dtype)
    offsets = pa.array([0, *itertools.accumulate(len(value or ()) for value in values)], pa.int32())
    items = [item for value in values for item in value or ()]
    if pat.is_list(dtype):
        return pa.ListArray.from_arrays(offsets, array_of(items, dtype.value_type), dtype, mask=absent)
    keys, values_of = (
        array_of([item[n] for item in items], part) for n, part in enumerate((dtype.key_type, dtype.item_type))
    )
    return pa.MapArray.from_arrays(offsets, keys, values_of, dtype, mask=absent)


# -- calls ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Example:
    """A call of operands of some kinds, of which columns are ``{position} {kind}``."""

    node: Expression

    @property
    def operands(self) -> tuple[ColumnRef, ...]:
        """Columns of nested kinds."""
        return tuple(ref for ref in _columns(self.node) if pat.is_nested(ref.type))

    def __str__(self) -> str:
        return str(self.node)


def _columns(node: Expression) -> list[ColumnRef]:
    seen = {part.name: part for part in node.walk() if isinstance(part, ColumnRef)}
    return list(seen.values())


def _column(kind: str, position: int) -> ColumnRef:
    return ColumnRef(side=Side.LEFT, name=f"{position} {kind}", index=0, type=KINDS[kind][0])


BOUND: dict[Function, Callable[[list[pa.DataType]], list[pa.DataType]]] = {
    **dict.fromkeys(
        (Function.TRANSFORM, Function.FILTER, Function.EXISTS, Function.FORALL, Function.ARRAY_SORT_BY),
        lambda sources: [sources[0].value_type],
    ),
    Function.ZIP_WITH: lambda sources: [source.value_type for source in sources[:2]],
    Function.MAP_ZIP_WITH: lambda sources: [sources[0].key_type, *(source.item_type for source in sources[:2])],
    **dict.fromkeys(
        (Function.MAP_FILTER, Function.TRANSFORM_VALUES), lambda sources: [sources[0].key_type, sources[0].item_type]
    ),
    Function.AGGREGATE: lambda sources: [sources[1], sources[0].value_type, sources[1]],
}
"""The types of the variables of functions that evaluate an expression, given those of their other operands."""


def examples() -> Iterator[Example]:
    """Calls of every function with operands of kinds that it takes, one of them nested at least."""
    for spec in SPECS.values():
        for call in _calls(spec):
            if any(pat.is_nested(ref.type) for ref in _columns(call)):
                yield Example(call)
    for kind in NESTED:
        first, second, flag = _column(kind, 0), _column(kind, 1), _column("flag", 2)
        nothing = Literal(value=None, type=first.type)
        yield Example(Case(conditions=(flag,), values=(first,), otherwise=second, type=first.type))
        yield Example(Case(conditions=(flag, flag), values=(first, second), otherwise=nothing, type=first.type))
        yield Example(Cast(child=first, to=changed(first.type, str.upper), type=changed(first.type, str.upper)))


def _calls(spec: FunctionSpec) -> Iterator[Call]:
    shown = example(spec)
    if any(isinstance(operand, Variable) for operand in shown):
        yield from _with_lambdas(spec)
        return
    if spec.signature.parameters and not any(_takes_nested(spec, n) for n in range(len(spec.signature.parameters))):
        return
    pools = [list(KINDS) if operand is None else [None] for operand in shown]
    for kinds in itertools.product(*pools):
        operands = [
            _constant(operand) if kind is None else _column(kind, n)
            for n, (kind, operand) in enumerate(zip(kinds, shown, strict=True))
        ]
        yield from _typed(spec, operands)


def _takes_nested(spec: FunctionSpec, place: int) -> bool:
    return any(spec.signature.parameters[place].accepts(KINDS[kind][0]) for kind in NESTED)


def _constant(value: object) -> Expression:
    return value if isinstance(value, Expression) else lit(value, _LITERALS[type(value)])


_LITERALS: dict[type, pa.DataType] = {bool: pa.bool_(), int: pa.int32(), str: pa.string()}


def _typed(spec: FunctionSpec, operands: Sequence[Expression]) -> Iterator[Call]:
    node = Call(function=spec.function, arguments=tuple(operands))
    try:
        typed = spec.signature.resolve(node)
        if typed is None and spec.function is Function.OF_BYTES:
            return
        if isinstance(typed, Call) and _same(typed, node) and spec.signature.accepts(typed):
            yield typed
    except (ConditionError, AssertionError, AttributeError, ValueError, KeyError):
        return  # operands of kinds that the function does not take


def _same(typed: Call, node: Call) -> bool:
    """Whether a call took its operands as they are."""
    pairs = zip(typed.arguments, node.arguments, strict=True)
    return all(isinstance(given, Literal) or taken.same_as(given) for taken, given in pairs)


def _with_lambdas(spec: FunctionSpec) -> Iterator[Call]:
    """Calls whose lambdas give their variables, columns, or either; as true as they must be."""
    shown = example(spec)
    sources = list(itertools.takewhile(lambda operand: operand is None, shown))
    fold = spec.function is Function.AGGREGATE
    count = 2 if fold else len(sources)
    for kinds in itertools.product(KINDS, repeat=count):
        columns = [_column(kind, n) for n, kind in enumerate(kinds)]
        try:
            bound = BOUND[spec.function]([KINDS[kind][0] for kind in kinds])
        except AttributeError:
            continue  # neither a list nor a map
        variables = [Variable(name=f"v{n}", type=dtype) for n, dtype in enumerate(bound)]
        if fold:
            state, element, last = variables
            bodies = [_column(kinds[1], 2), *([element] if element.type == state.type else [])]
            for body in bodies:
                chosen = Case(conditions=(_column("flag", 3),), values=(state,), otherwise=body, type=state.type)
                for merge in (body, chosen):
                    yield from _typed(spec, [*columns, merge, state, element, last, last])
            continue
        rest = [_constant(operand) for operand in shown[count + 1 + len(variables) :]]
        flag = _column("flag", 7)
        united = [v for v in variables if v.type == variables[-1].type]
        both = Call(function=Function.COALESCE, arguments=tuple(united), type=variables[-1].type)
        for body in (flag, *variables, both, *(_column(kind, 7) for kind in NESTED)):
            yield from _typed(spec, [*columns, body, *variables, *rest])


# -- with other types ----------------------------------------------------------------------------------------


def batches(
    example: Example, variants: Mapping[str, str]
) -> tuple[Expression, pa.RecordBatch, Expression, pa.RecordBatch]:
    """A call over columns of one type, and the same call over the same values, each in the type of its variant.

    ``variants`` names that of each nested column.
    """
    columns = _columns(example.node)
    plain, other, planned = [], [], {}
    for column in columns:
        assert column.type is not None
        kind = column.name.partition(" ")[2]
        variant = VARIANTS[variants.get(column.name, "same")]
        dtype, values = KINDS[kind]
        shift = int(column.name[0])
        values = [*values[shift:], *values[:shift]]
        if not variant.nullable:
            values = [None if value is None else _whole(value, dtype) for value in values]
        own = changed(dtype, variant.name, variant.nullable) if pat.is_nested(dtype) else dtype
        plain.append(array_of(values, dtype))
        other.append(array_of(values, own))
        planned[column.name] = own if variant.planned else dtype
    names = [column.name for column in columns]
    places = {name: place for place, name in enumerate(names)}
    return (
        _placed(example.node, places, {}),
        pa.RecordBatch.from_arrays(plain, names),
        _placed(example.node, places, planned),
        pa.RecordBatch.from_arrays(other, names),
    )


def _placed(node: Expression, places: Mapping[str, int], types: Mapping[str, pa.DataType]) -> Expression:
    """A call over columns of other types; what it gives is of the type that was planned."""
    if isinstance(node, ColumnRef):
        return ColumnRef(side=node.side, name=node.name, index=places[node.name], type=types.get(node.name, node.type))
    if not node.children:
        return node
    children = [_placed(child, places, types) for child in node.children]
    if isinstance(node, Call) and node.function in (Function.GET_FIELD, Function.GET_FIELDS):
        struct, name = children
        assert isinstance(name, Literal)
        before, after = (_struct_in(each.type) for each in (node.arguments[0], struct))
        position = before.get_field_index(str(name.value))
        children = [struct, Literal(value=after.field(position).name, type=pa.string())]
    if isinstance(node, Call) and node.function in BOUND:
        children = _rebound(node, children)
    return node.with_children(children)


def _struct_in(dtype: pa.DataType | None) -> pa.DataType:
    assert dtype is not None
    return dtype.value_type if pat.is_list(dtype) else dtype


def _rebound(node: Call, children: list[Expression]) -> list[Expression]:
    """The operands of a lambda's function, with variables of the types that they have now."""
    before = BOUND[node.function]([child.type for child in node.arguments if child.type is not None])
    after = BOUND[node.function]([child.type for child in children if child.type is not None])
    names = {f"v{n}": dtype for n, dtype in enumerate(after)}
    assert len(before) == len(after)

    def typed(part: Expression) -> Expression:
        if isinstance(part, Variable):
            return Variable(name=part.name, type=names.get(part.name, part.type))
        return part.with_children([typed(child) for child in part.children]) if part.children else part

    return [typed(child) for child in children]


@cache
def all_examples() -> tuple[Example, ...]:
    """All of them, made once."""
    return tuple(examples())
