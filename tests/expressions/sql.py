"""Expressions as Spark SQL text, so that Spark itself can be asked what they mean."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.model.expressions import Call, Case, Cast, ColumnRef, EvalMode, Expression, Function, Literal

_INFIX = {
    Function.EQ, Function.LT, Function.LE, Function.GT, Function.GE, Function.NE, Function.EQ_NULL_SAFE,
    Function.AND, Function.OR, Function.ADD, Function.SUBTRACT, Function.MULTIPLY, Function.DIVIDE,
    Function.INTEGRAL_DIVIDE, Function.REMAINDER, Function.RLIKE, Function.BIT_AND, Function.BIT_OR, Function.BIT_XOR,
}  # fmt: skip


def to_sql(node: Expression) -> str:
    """Write an untyped tree as SQL over columns named ``left_…`` and ``right_…``."""
    if isinstance(node, ColumnRef):
        return f"`{node.side.value}_{node.name}`"
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
        case Function.GET_FIELD:
            name = node.arguments[1]
            assert isinstance(name, Literal)
            return f"{arguments[0]}.{name.value}"
    return _of_times(node, arguments) or f"{node.function.value}({', '.join(arguments)})"


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
    return names[dtype]
