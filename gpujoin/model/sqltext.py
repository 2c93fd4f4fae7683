"""Writes expressions, constants and types as queries do, for ``explain``, reasons and errors.

``and(>(v, 3), in(k, 1, 2))`` is shown as ``v > 3 and k in (1, 2)``. The text is for people: it leaves out evaluation
modes, conversions that nobody wrote, and the rest of long constants.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from gpujoin.model.expressions import Call, Case, Cast, ColumnRef, EvalMode, Expression, Function, Literal, Variable
from gpujoin.model.jointype import Side

if TYPE_CHECKING:
    from gpujoin.model.aggregates import AggregateCall

PLANNED = re.compile(r"(merged )?[acikw]\d+(\..*)?")
"""Names that planning gives to columns; those of a query's columns have a number."""
LONGEST_CONSTANT = 80
"""Characters of a constant that are shown: those of a line of a terminal."""
_NUMBER = re.compile(r"(#\d+)+$")

OR, AND, NOT, COMPARISON, SUM, PRODUCT, SIGN, ATOM = range(8)
"""How tightly the parts of a text are bound, from the loosest on."""
_INFIX = {
    Function.OR: OR, Function.AND: AND,
    Function.EQ: COMPARISON, Function.NE: COMPARISON, Function.LT: COMPARISON, Function.LE: COMPARISON,
    Function.GT: COMPARISON, Function.GE: COMPARISON, Function.EQ_NULL_SAFE: COMPARISON,
    Function.LIKE: COMPARISON, Function.RLIKE: COMPARISON,
    Function.ADD: SUM, Function.SUBTRACT: SUM,
    Function.MULTIPLY: PRODUCT, Function.DIVIDE: PRODUCT, Function.INTEGRAL_DIVIDE: PRODUCT,
    Function.REMAINDER: PRODUCT,
}  # fmt: skip
_TYPES = {
    pa.bool_(): "boolean", pa.int8(): "tinyint", pa.int16(): "smallint", pa.int32(): "int", pa.int64(): "bigint",
    pa.float32(): "float", pa.float64(): "double", pa.string(): "string", pa.large_string(): "string",
    pa.binary(): "binary", pa.large_binary(): "binary", pa.date32(): "date", pa.null(): "void",
}  # fmt: skip


def bare_name(name: str) -> str:
    """Give a column's name without the numbers that tell columns of one name apart."""
    return _NUMBER.sub("", name)


def value_name(field: pa.Field) -> str:
    """Name a column of a relation in a reason; one that planning has named, by its type alone."""
    name = "a value" if PLANNED.fullmatch(field.name) else bare_name(field.name)
    return f"{name} of type {show_type(field.type)}"


@dataclass(frozen=True, slots=True)
class ShownColumn:
    """How a column is written in the expressions that read it."""

    text: str
    binding: int = ATOM
    """How tightly the parts of the text are bound."""
    is_buffer: bool = False
    """Whether the text is that of an aggregate call, of whose buffer this is a column."""


Columns: TypeAlias = Sequence[ShownColumn]
"""How the columns of an input are written, by position."""


def shown_column(expression: Expression, columns: Columns | None = None) -> ShownColumn:
    """Write a column by the expression that it is computed by."""
    return ShownColumn(*Writer.of_one_input(columns).written(expression))


def show_expression(expression: Expression, columns: Columns | None = None) -> str:
    """Format an expression over a single input, with columns without a side.

    Columns are written by their names, or as ``columns`` says.
    """
    return Writer.of_one_input(columns).at(expression, OR)


def show_condition(expression: Expression, columns: Mapping[Side, Columns] | None = None) -> str:
    """Format an expression over the two inputs of a join, with the side of each column."""
    return Writer(sided=True, columns=columns or {}).at(expression, OR)


def show(expression: Expression) -> str:
    """Format an expression, with the side of each column where it reads those of both."""
    return Writer(sided=len(expression.sides()) > 1, columns={}).at(expression, OR)


def show_call(call: AggregateCall, columns: Columns | None = None) -> str:
    """Format a call of an aggregate function, with columns without a side."""
    arguments = ", ".join(show_expression(argument, columns) for argument in call.arguments) or "*"
    condition = "" if call.filter is None else f" filter (where {show_expression(call.filter, columns)})"
    return f"{call.function.value}({arguments}){condition}"


def show_value(value: object) -> str:
    """Format a constant."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case str():
            return "'" + shortened(value).replace("\\", "\\\\").replace("'", "\\'") + "'"
        case bytes():
            return f"x'{shortened(value.hex())}'"
        case dt.date():
            return f"{'timestamp' if isinstance(value, dt.datetime) else 'date'} '{value}'"
        case dt.timedelta():
            return f"interval {_interval(value)}"
        case dict():
            return shortened(f"map({', '.join(f'{show_value(k)}, {show_value(v)}' for k, v in value.items())})")
        case list() | tuple():
            return shortened(f"array({', '.join(map(show_value, value))})")
    return str(value)


def shortened(text: str, most: int = LONGEST_CONSTANT) -> str:
    """Cut a text that is longer than so many characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _interval(length: dt.timedelta) -> str:
    """Write a length of time in the units of intervals: ``3 days 2 hours``."""
    minutes, seconds = divmod(abs(length), dt.timedelta(minutes=1))
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    amounts = {"day": days, "hour": hours, "minute": minutes, "second": seconds.total_seconds()}
    sign = "-" if length < dt.timedelta() else ""
    parts = [f"{sign}{n:g} {unit}{'' if n == 1 else 's'}" for unit, n in amounts.items() if n]
    return " ".join(parts) or "0 seconds"


def show_type(dtype: pa.DataType | str) -> str:
    """Name an Arrow type as Spark does: ``decimal(38,4)`` for ``decimal128(38, 4)``; words stay as they are."""
    if isinstance(dtype, str):
        return dtype
    match dtype:
        case pa.Decimal128Type():
            return f"decimal({dtype.precision},{dtype.scale})"
        case pa.TimestampType():
            return "timestamp" if dtype.tz else "timestamp_ntz"
        case pa.ListType():
            return f"array<{show_type(dtype.value_type)}>"
        case pa.MapType():
            return f"map<{show_type(dtype.key_type)},{show_type(dtype.item_type)}>"
        case pa.StructType():
            return f"struct<{','.join(f'{field.name}:{show_type(field.type)}' for field in dtype)}>"
        case pa.DurationType():
            return "interval"
    return _TYPES.get(dtype, str(dtype))


def with_types(node: Expression) -> str:
    """Format an expression, with the types of its operands that are no constants."""
    operands = [child for child in node.children if child.type is not None and not isinstance(child, Literal)]
    if any(isinstance(child, Variable) for child in operands):
        del operands[1:]  # what is evaluated for each element, and its variables
    types = [child.type for child in operands if child.type is not None]
    shown = ", ".join(dict.fromkeys(map(show_type, types)))
    return f"{node} of {shown}" if shown else str(node)


class Writer:
    """Writes trees; ``sided`` says whether columns are shown with their side, ``columns`` how they are written."""

    def __init__(self, *, sided: bool, columns: Mapping[Side, Columns | None]) -> None:
        self._sided = sided
        self._columns = columns

    @classmethod
    def of_one_input(cls, columns: Columns | None) -> Writer:
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
            return side + bare_name(node.name), ATOM
        shown = columns[node.index]
        return (side + shown.text, ATOM) if shown.binding == ATOM else (shown.text, shown.binding)

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
                return self._result_of_buffers(node) or text, ATOM
            case ColumnRef():
                return self._column(node)
            case Variable():
                return bare_name(node.name), ATOM
            case Literal():
                return show_value(node.value), ATOM
            case Cast(explicit=False):
                return self.written(node.child)
            case Cast():
                name = "try_cast" if node.mode is EvalMode.TRY else "cast"
                return f"{name}({self.at(node.child, OR)} as {show_type(node.to)})", ATOM
            case Case():
                return self._choice(node), ATOM
            case Call():
                return self._call(node)
        return type(node).__name__.lower(), ATOM

    def _choice(self, node: Case) -> str:
        pairs = zip(node.conditions, node.values, strict=True)
        branches = " ".join(f"when {self.at(c, OR)} then {self.at(v, OR)}" for c, v in pairs)
        null = isinstance(node.otherwise, Literal) and node.otherwise.value is None
        return f"case {branches}{'' if null else f' else {self.at(node.otherwise, OR)}'} end"

    def _call(self, node: Call) -> tuple[str, int]:
        function, arguments = node.function, node.arguments
        binding = _INFIX.get(function)
        if binding is not None and len(arguments) > 1:
            # A pattern's third argument is its escape character, a backslash unless a query says another.
            operands = arguments if function in (Function.AND, Function.OR) else arguments[:2]
            first, *others = (self.at(a, binding + (n > 0 or binding == COMPARISON)) for n, a in enumerate(operands))
            return f" {function.value} ".join((first, *others)), binding
        match function:
            case Function.NOT:
                return self._negated(arguments[0])
            case Function.NEGATE:
                return f"-{self.at(arguments[0], SIGN)}", SIGN
            case Function.IS_NULL | Function.IS_NOT_NULL:
                return f"{self.at(arguments[0], SUM)} {function.value}", COMPARISON
            case Function.IN:
                value, *options = arguments
                return f"{self.at(value, SUM)} in ({', '.join(self.at(o, OR) for o in options)})", COMPARISON
            case Function.TRANSFORM | Function.FILTER | Function.EXISTS | Function.FORALL:
                array, body, *variables = (self.at(argument, OR) for argument in arguments)
                named = variables[0] if len(variables) == 1 else f"({', '.join(variables)})"
                return f"{function.value}({array}, {named} -> {body})", ATOM
            case Function.ZIP_WITH | Function.MAP_FILTER | Function.TRANSFORM_VALUES:
                *sources, body, first, second = (self.at(argument, OR) for argument in arguments)
                return f"{function.value}({', '.join(sources)}, ({first}, {second}) -> {body})", ATOM
            case Function.AGGREGATE:
                array, zero, merge, so_far, element, finish, last = (self.at(argument, OR) for argument in arguments)
                return f"aggregate({array}, {zero}, ({so_far}, {element}) -> {merge}, {last} -> {finish})", ATOM
            case Function.MAP_FROM_ARRAYS | Function.MAP_FROM_ENTRIES:
                # The last argument is of the session.
                return f"{function.value}({', '.join(self.at(a, OR) for a in arguments[:-1])})", ATOM
            case Function.CONCAT_LISTS | Function.REVERSE_LIST:
                name = function.value.partition("_")[0]
                return f"{name}({', '.join(self.at(a, OR) for a in arguments)})", ATOM
            case Function.GET_FIELD if isinstance(arguments[1], Literal):
                return f"{self.at(arguments[0], ATOM)}.{arguments[1].value}", ATOM
        return f"{function.value}({', '.join(self.at(a, OR) for a in arguments)})", ATOM

    def _negated(self, node: Expression) -> tuple[str, int]:
        function = node.function if isinstance(node, Call) and node.written is None else None
        value, *others = [self.at(child, SUM) for child in node.children] or [""]
        match function:
            case Function.EQ:
                return f"{value} != {others[0]}", COMPARISON
            case Function.LIKE:
                return f"{value} not like {others[0]}", COMPARISON
            case Function.IN:
                return f"{value} not in ({', '.join(others)})", COMPARISON
            case Function.IS_NULL:
                return f"{value} is not null", COMPARISON
        return f"not {self.at(node, NOT)}", NOT
