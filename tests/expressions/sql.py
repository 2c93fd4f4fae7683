"""Expressions as Spark SQL text, so that Spark itself can be asked what they mean."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.model.expressions import Call, Case, Cast, ColumnRef, EvalMode, Expression, Function, Literal, Variable

_INFIX = {
    Function.EQ, Function.LT, Function.LE, Function.GT, Function.GE, Function.NE, Function.EQ_NULL_SAFE,
    Function.AND, Function.OR, Function.ADD, Function.SUBTRACT, Function.MULTIPLY, Function.DIVIDE,
    Function.INTEGRAL_DIVIDE, Function.REMAINDER, Function.RLIKE, Function.BIT_AND, Function.BIT_OR, Function.BIT_XOR,
}  # fmt: skip


def to_sql(node: Expression) -> str:
    """Write an untyped tree as SQL over columns named ``left_…`` and ``right_…``."""
    if isinstance(node, ColumnRef):
        return f"`{node.side.value}_{node.name}`"
    if isinstance(node, Variable):
        return node.name
    if isinstance(node, Literal):
        return _literal(node)
    if isinstance(node, Cast):
        name = "try_cast" if node.mode is EvalMode.TRY else "cast"
        return f"{name}({to_sql(node.child)} AS {type_sql(node.to)})"
    if isinstance(node, Case):
        branches = " ".join(
            f"WHEN {to_sql(c)} THEN {to_sql(v)}" for c, v in zip(node.conditions, node.values, strict=True)
        )
        return f"CASE {branches} ELSE {to_sql(node.otherwise)} END"
    assert isinstance(node, Call)
    return _call(node)


_TRY = {
    Function.ADD: "try_add", Function.SUBTRACT: "try_subtract", Function.MULTIPLY: "try_multiply",
    Function.DIVIDE: "try_divide", Function.REMAINDER: "try_mod",
}  # fmt: skip


def _call(node: Call) -> str:
    arguments = [to_sql(a) for a in node.arguments]
    if node.mode is EvalMode.TRY:
        return f"{_TRY[node.function]}({', '.join(arguments)})"
    match node.function:
        case f if f in _INFIX:
            return "(" + f" {f.value.upper()} ".join(arguments) + ")"
        case Function.NOT:
            return f"(NOT {arguments[0]})"
        case Function.BIT_NOT:
            return f"(~ {arguments[0]})"
        case Function.NEGATE:
            return f"negative({arguments[0]})"
        case Function.IS_NULL | Function.IS_NOT_NULL:
            return f"({arguments[0]} {node.function.value.upper()})"
        case Function.IN:
            return f"({arguments[0]} IN ({', '.join(arguments[1:])}))"
        case Function.LIKE:
            escape = f" ESCAPE {arguments[2]}" if len(arguments) > 2 else ""
            return f"({arguments[0]} LIKE {arguments[1]}{escape})"
        case Function.ROUND_CEIL | Function.ROUND_FLOOR:
            return f"{node.function.value.removeprefix('round_')}({', '.join(arguments)})"
        case Function.TRIM | Function.TRIM_LEFT | Function.TRIM_RIGHT if len(arguments) > 1:
            end = {Function.TRIM: "BOTH", Function.TRIM_LEFT: "LEADING", Function.TRIM_RIGHT: "TRAILING"}[node.function]
            return f"trim({end} {arguments[1]} FROM {arguments[0]})"
        case Function.GET_FIELD | Function.GET_FIELDS:
            name = node.arguments[1]
            assert isinstance(name, Literal)
            return f"{arguments[0]}.{name.value}"
    named = _NAMES.get(node.function, node.function.value)
    return _of_times(node, arguments) or _of_lists(node, arguments) or f"{named}({', '.join(arguments)})"


_NAMES = {Function.CONCAT_LISTS: "concat", Function.REVERSE_LIST: "reverse"}
_LAMBDAS = {
    Function.TRANSFORM: 1, Function.FILTER: 1, Function.EXISTS: 1, Function.FORALL: 1, Function.ZIP_WITH: 2,
    Function.MAP_FILTER: 1, Function.TRANSFORM_VALUES: 1, Function.MAP_ZIP_WITH: 2,
}  # fmt: skip
"""Functions of a lambda: how many operands stand before its body, which its variables follow."""


def _of_lists(node: Call, arguments: list[str]) -> str | None:
    match node.function:
        case Function.GET_ITEM | Function.MAP_VALUE:
            return f"{arguments[0]}[{arguments[1]}]"
        case Function.SIZE:
            return f"(CASE WHEN {arguments[0]} IS NOT NULL THEN size({arguments[0]}) END)"
        case Function.MAP_FROM_ARRAYS | Function.MAP_FROM_ENTRIES:
            return f"{node.function.value}({', '.join(arguments[:-1])})"
        case Function.AGGREGATE:
            source, zero, merge, state, element, finish, last = arguments
            return f"aggregate({source}, {zero}, ({state}, {element}) -> {merge}, {last} -> {finish})"
        case Function.ARRAY_SORT_BY:
            return _sorted_by(node)
        case function if function in _LAMBDAS:
            before = _LAMBDAS[function]
            sources, body, variables = arguments[:before], arguments[before], arguments[before + 1 :]
            named = f"({', '.join(variables)})" if len(variables) > 1 else variables[0]
            return f"{function.value}({', '.join(sources)}, {named} -> {body})"
        case Function.ARRAYS_ZIP:
            # Spark names the fields after columns, and Arrow takes no name twice.
            return f"arrays_zip({', '.join(f'coalesce({argument})' for argument in arguments)})"
    return None


def _sorted_by(node: Call) -> str:
    """A comparator that compares the keys of two elements."""
    source, key, element, descending, nulls = node.arguments
    assert isinstance(element, Variable)
    assert isinstance(descending, Literal)
    assert isinstance(nulls, Literal)
    key_a, key_b = (to_sql(renamed(key, element.name, name)) for name in ("sort_a", "sort_b"))
    first = -1 if nulls.value == "first" else 1
    less = 1 if descending.value else -1
    return (
        f"array_sort({to_sql(source)}, (sort_a, sort_b) -> CASE WHEN {key_a} IS NULL AND {key_b} IS NULL THEN 0 "
        f"WHEN {key_a} IS NULL THEN {first} WHEN {key_b} IS NULL THEN {-first} "
        f"WHEN {key_a} < {key_b} THEN {less} WHEN {key_a} > {key_b} THEN {-less} ELSE 0 END)"
    )


def renamed(node: Expression, before: str, after: str) -> Expression:
    """The same tree with another name for a variable."""
    if isinstance(node, Variable):
        return Variable(name=after, type=node.type) if node.name == before else node
    return node.with_children([renamed(child, before, after) for child in node.children]) if node.children else node


def _of_times(node: Call, arguments: list[str]) -> str | None:
    match node.function:
        case Function.TIMESTAMP_ADD:
            return f"({arguments[0]} + {arguments[1]})"
        case Function.TIMESTAMP_ADD_MONTHS:
            return f"({arguments[0]} + make_ym_interval(0, {arguments[1]}))"
        case Function.TIMESTAMP_DIFF:
            unit = node.arguments[0]
            assert isinstance(unit, Literal)
            return f"timestampdiff({unit.value}, {', '.join(arguments[1:])})"
        case Function.SECOND_WITH_FRACTION:
            return f"extract(second from {arguments[0]})"
    return None


def _literal(node: Literal) -> str:
    value = node.value
    if node.type is not None:
        return f"cast({_literal(Literal(value=value))} AS {type_sql(node.type)})"
    match value:
        case None:
            return "NULL"
        case bool():
            return str(value).upper()
        case float() if math.isnan(value) or math.isinf(value):
            return f"double('{value}')"
        case float():
            return f"{value!r}D"
        case int():
            return str(value)
        case Decimal():
            return f"{value:f}BD"
        case str():
            return _quoted(value)
        case bytes():
            return f"X'{value.hex()}'"
        case dt.timedelta():
            return f"make_dt_interval(0, 0, 0, {value // dt.timedelta(microseconds=1)} / 1000000BD)"
        case dt.datetime():
            name = "TIMESTAMP_NTZ" if value.tzinfo is None else "TIMESTAMP"
            return f"{name}'{value.isoformat(sep=' ')}'"
        case dt.date():
            return f"DATE'{value.isoformat()}'"
    raise AssertionError(value)


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def type_sql(dtype: pa.DataType) -> str:
    """Name an Arrow type in Spark SQL."""
    names = {
        pa.bool_(): "boolean", pa.int8(): "tinyint", pa.int16(): "smallint", pa.int32(): "int",
        pa.int64(): "bigint", pa.float32(): "float", pa.float64(): "double", pa.string(): "string",
        pa.binary(): "binary", pa.date32(): "date",
    }  # fmt: skip
    if pat.is_decimal(dtype):
        return f"decimal({dtype.precision}, {dtype.scale})"
    if pat.is_timestamp(dtype):
        return "timestamp_ntz" if dtype.tz is None else "timestamp"
    if pat.is_struct(dtype):
        return f"struct<{', '.join(f'{f.name}: {type_sql(f.type)}' for f in dtype)}>"
    if pat.is_list(dtype):
        return f"array<{type_sql(dtype.value_type)}>"
    if pat.is_map(dtype):
        return f"map<{type_sql(dtype.key_type)}, {type_sql(dtype.item_type)}>"
    return names[dtype]
