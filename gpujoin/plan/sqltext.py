"""Writes expressions, constants and types as queries do, for ``explain``.

``and(>(v, 3), in(k, 1, 2))`` is shown as ``v > 3 and k in (1, 2)``. The text is for people: it leaves out evaluation
modes, and conversions of constants.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from gpujoin.functions import SPECS
from gpujoin.functions.spec import Nulls
from gpujoin.model.aggregates import AggregateCall
from gpujoin.model.expressions import Call, Case, Cast, ColumnRef, Expression, Function, Literal, Variable
from gpujoin.model.jointype import Side

_NUMBER = re.compile(r"(#\d+)+$")

_OR, _AND, _NOT, _COMPARISON, _SUM, _PRODUCT, _SIGN, _ATOM = range(8)
"""How tightly the parts of a text are bound, from the loosest on."""
_INFIX = {
    Function.OR: _OR, Function.AND: _AND,
    Function.EQ: _COMPARISON, Function.NE: _COMPARISON, Function.LT: _COMPARISON, Function.LE: _COMPARISON,
    Function.GT: _COMPARISON, Function.GE: _COMPARISON, Function.EQ_NULL_SAFE: _COMPARISON,
    Function.LIKE: _COMPARISON, Function.RLIKE: _COMPARISON,
    Function.ADD: _SUM, Function.SUBTRACT: _SUM,
    Function.MULTIPLY: _PRODUCT, Function.DIVIDE: _PRODUCT, Function.INTEGRAL_DIVIDE: _PRODUCT,
    Function.REMAINDER: _PRODUCT,
}  # fmt: skip
_TYPES = {
    pa.bool_(): "boolean", pa.int8(): "tinyint", pa.int16(): "smallint", pa.int32(): "int", pa.int64(): "bigint",
    pa.float32(): "float", pa.float64(): "double", pa.string(): "string", pa.large_string(): "string",
    pa.binary(): "binary", pa.large_binary(): "binary", pa.date32(): "date",
}  # fmt: skip


def bare_name(name: str) -> str:
    """Give a column's name without the numbers that tell columns of one name apart."""
    return _NUMBER.sub("", name)


@dataclass(frozen=True, slots=True)
class ShownColumn:
    """How a column is written in the expressions that read it."""

    text: str
    binding: int = _ATOM
    """How tightly the parts of the text are bound."""
    is_buffer: bool = False
    """Whether the text is that of an aggregate call, of whose buffer this is a column."""


Columns: TypeAlias = Sequence[ShownColumn]
"""How the columns of an input are written, by position."""


def shown_column(expression: Expression, columns: Columns | None = None) -> ShownColumn:
    """Write a column by the expression that it is computed by."""
    return ShownColumn(*_Writer.of_one_input(columns).written(expression))


def show_expression(expression: Expression, columns: Columns | None = None) -> str:
    """Format an expression over a single input, with columns without a side.

    Columns are written by their names, or as ``columns`` says.
    """
    return _Writer.of_one_input(columns).at(expression, _OR)


def show_condition(expression: Expression, columns: Mapping[Side, Columns] | None = None) -> str:
    """Format an expression over the two inputs of a join, with the side of each column."""
    return _Writer(sided=True, columns=columns or {}).at(expression, _OR)


def show_call(call: AggregateCall, columns: Columns | None = None) -> str:
    """Format a call of an aggregate function, with columns without a side."""
    arguments = ", ".join(show_expression(argument, columns) for argument in call.arguments) or "*"
    condition = "" if call.filter is None else f" filter (where {show_expression(call.filter, columns)})"
    return f"{call.function.value}({arguments}){condition}"


def show_filters(conditions: Sequence[Expression], columns: Columns | None = None) -> tuple[str, ...]:
    """Format conditions that all hold, without tests for nulls that follow from the others.

    Spark adds ``v is not null`` to ``v > 3``.
    """
    writer = _Writer.of_one_input(columns)
    return tuple(
        writer.at(condition, _AND)
        for n, condition in enumerate(conditions)
        if not any(_follows(condition, other) for m, other in enumerate(conditions) if m != n)
    )


def show_value(value: object) -> str:
    """Format a constant."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case str():
            return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
        case bytes():
            return f"x'{value.hex()}'"
        case dt.date():
            return f"{'timestamp' if isinstance(value, dt.datetime) else 'date'} '{value}'"
        case dt.timedelta():
            return f"interval {_interval(value)}"
        case dict():
            return f"map({', '.join(f'{show_value(k)}, {show_value(v)}' for k, v in value.items())})"
        case list() | tuple():
            return f"array({', '.join(map(show_value, value))})"
    return str(value)


def _interval(length: dt.timedelta) -> str:
    """Write a length of time in the units of intervals: ``3 days 2 hours``."""
    minutes, seconds = divmod(abs(length), dt.timedelta(minutes=1))
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    amounts = {"day": days, "hour": hours, "minute": minutes, "second": seconds.total_seconds()}
    sign = "-" if length < dt.timedelta() else ""
    parts = [f"{sign}{n:g} {unit}{'' if n == 1 else 's'}" for unit, n in amounts.items() if n]
    return " ".join(parts) or "0 seconds"


def show_type(dtype: pa.DataType) -> str:
    """Name an Arrow type as Spark does: ``decimal(38,4)`` for ``decimal128(38, 4)``."""
    match dtype:
        case pa.Decimal128Type():
            return f"decimal({dtype.precision},{dtype.scale})"
        case pa.TimestampType():
            return "timestamp" if dtype.tz else "timestamp_ntz"
        case pa.ListType():
            return f"array<{show_type(dtype.value_type)}>"
    return _TYPES.get(dtype, str(dtype))


class _Writer:
    """Writes trees; ``sided`` says whether columns are shown with their side, ``columns`` how they are written."""

    def __init__(self, *, sided: bool, columns: Mapping[Side, Columns | None]) -> None:
        self._sided = sided
        self._columns = columns

    @classmethod
    def of_one_input(cls, columns: Columns | None) -> _Writer:
        """Write expressions over a single input."""
        return cls(sided=False, columns={Side.LEFT: columns} if columns else {})

    def at(self, node: Expression, binding: int) -> str:
        """Write a node where what is bound less tightly needs parentheses."""
        text, own = self.written(node)
        return f"({text})" if own < binding else text

    def _column(self, node: ColumnRef) -> tuple[str, int]:
        columns = self._columns.get(node.side)
        side = f"{node.side.value}." * self._sided
        if columns is None:
            return side + bare_name(node.name), _ATOM
        shown = columns[node.index]
        return (side + shown.text, _ATOM) if shown.binding == _ATOM else (shown.text, shown.binding)

    def _result_of_buffers(self, node: Expression) -> str | None:
        """Write what is computed of the buffer of one aggregate call as that call."""
        columns = self._columns.get(Side.LEFT)
        read = None if columns is None else {columns[ref.index] for ref in node.columns()}
        if not read or not all(column.is_buffer for column in read):
            return None
        texts = {column.text for column in read}
        return texts.pop() if len(texts) == 1 else None

    def written(self, node: Expression) -> tuple[str, int]:
        """Write a node; also how tightly its parts are bound."""
        match node:
            case ColumnRef() if self._columns.get(node.side) is not None:
                return self._column(node)
            case Expression(written=str(text)):
                return self._result_of_buffers(node) or text, _ATOM
            case ColumnRef():
                return self._column(node)
            case Variable():
                return bare_name(node.name), _ATOM
            case Literal():
                return show_value(node.value), _ATOM
            case Cast():
                return f"cast({self.at(node.child, _OR)} as {show_type(node.to)})", _ATOM
            case Case():
                return self._choice(node), _ATOM
            case Call():
                return self._call(node)
        return str(node), _ATOM

    def _choice(self, node: Case) -> str:
        pairs = zip(node.conditions, node.values, strict=True)
        branches = " ".join(f"when {self.at(c, _OR)} then {self.at(v, _OR)}" for c, v in pairs)
        null = isinstance(node.otherwise, Literal) and node.otherwise.value is None
        return f"case {branches}{'' if null else f' else {self.at(node.otherwise, _OR)}'} end"

    def _call(self, node: Call) -> tuple[str, int]:
        function, arguments = node.function, node.arguments
        binding = _INFIX.get(function)
        if binding is not None and len(arguments) > 1:
            # A pattern's third argument is its escape character, a backslash unless a query says another.
            operands = arguments if function in (Function.AND, Function.OR) else arguments[:2]
            first, *others = (self.at(a, binding + (n > 0 or binding == _COMPARISON)) for n, a in enumerate(operands))
            return f" {function.value} ".join((first, *others)), binding
        match function:
            case Function.NOT:
                return self._negated(arguments[0])
            case Function.NEGATE:
                return f"-{self.at(arguments[0], _SIGN)}", _SIGN
            case Function.IS_NULL | Function.IS_NOT_NULL:
                return f"{self.at(arguments[0], _SUM)} {function.value}", _COMPARISON
            case Function.IN:
                value, *options = arguments
                return f"{self.at(value, _SUM)} in ({', '.join(self.at(o, _OR) for o in options)})", _COMPARISON
            case Function.TRANSFORM | Function.FILTER | Function.EXISTS | Function.FORALL:
                array, body, *variables = (self.at(argument, _OR) for argument in arguments)
                named = variables[0] if len(variables) == 1 else f"({', '.join(variables)})"
                return f"{function.value}({array}, {named} -> {body})", _ATOM
            case Function.ZIP_WITH | Function.MAP_FILTER | Function.TRANSFORM_VALUES:
                *sources, body, first, second = (self.at(argument, _OR) for argument in arguments)
                return f"{function.value}({', '.join(sources)}, ({first}, {second}) -> {body})", _ATOM
            case Function.AGGREGATE:
                array, zero, merge, so_far, element, finish, last = (self.at(argument, _OR) for argument in arguments)
                return f"aggregate({array}, {zero}, ({so_far}, {element}) -> {merge}, {last} -> {finish})", _ATOM
            case Function.MAP_FROM_ARRAYS | Function.MAP_FROM_ENTRIES:
                # The last argument is of the session.
                return f"{function.value}({', '.join(self.at(a, _OR) for a in arguments[:-1])})", _ATOM
            case Function.CONCAT_LISTS | Function.REVERSE_LIST:
                name = function.value.partition("_")[0]
                return f"{name}({', '.join(self.at(a, _OR) for a in arguments)})", _ATOM
            case Function.GET_FIELD if isinstance(arguments[1], Literal):
                return f"{self.at(arguments[0], _ATOM)}.{arguments[1].value}", _ATOM
        return f"{function.value}({', '.join(self.at(a, _OR) for a in arguments)})", _ATOM

    def _negated(self, node: Expression) -> tuple[str, int]:
        function = node.function if isinstance(node, Call) and node.written is None else None
        value, *others = [self.at(child, _SUM) for child in node.children] or [""]
        match function:
            case Function.EQ:
                return f"{value} != {others[0]}", _COMPARISON
            case Function.LIKE:
                return f"{value} not like {others[0]}", _COMPARISON
            case Function.IN:
                return f"{value} not in ({', '.join(others)})", _COMPARISON
            case Function.IS_NULL:
                return f"{value} is not null", _COMPARISON
        return f"not {self.at(node, _NOT)}", _NOT


def _follows(condition: Expression, other: Expression) -> bool:
    """Whether a condition asks that a value be not null of which another one is not true."""
    if not isinstance(condition, Call) or condition.function is not Function.IS_NOT_NULL or condition.same_as(other):
        return False
    return _is_null_of(condition.arguments[0], other)


def _is_null_of(null: Expression, expression: Expression) -> bool:
    """Whether an expression is null, or false, where a part of it is null."""
    if expression.same_as(null):
        return True
    if not isinstance(expression, Call):
        return isinstance(expression, Cast) and _is_null_of(null, expression.child)
    if expression.function is Function.OR:
        return all(_is_null_of(null, argument) for argument in expression.arguments)
    if expression.function is Function.IN:
        return _is_null_of(null, expression.arguments[0])
    if expression.function is not Function.AND and SPECS[expression.function].nulls is not Nulls.PROPAGATE:
        return False
    return any(_is_null_of(null, argument) for argument in expression.arguments)
