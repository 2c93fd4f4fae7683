"""Writes expressions, constants and types as queries do, for ``explain``, reasons and errors: the only writer of SQL.

``and(>(v, 3), in(k, 1, 2))`` is shown as ``v > 3 and k in (1, 2)``. The text is for people: it leaves out evaluation
modes, conversions that nobody wrote, and the rest of long constants.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from gpujoin.model.expressions import Call, Case, Cast, ColumnRef, EvalMode, Expression, Function, Literal, Variable
from gpujoin.model.jointype import Side

PLANNED = re.compile(r"(merged )?[acikw]\d+(\..*)?")
"""Names that planning gives to columns; those of a query's columns have a number."""
LONGEST_CONSTANT = 80
"""Characters of a constant that are shown: those of a line of a terminal."""
_NUMBER = re.compile(r"(#\d+)+$")

OR, AND, NOT, COMPARISON, SUM, PRODUCT, SIGN, ATOM = range(8)
"""How tightly the parts of a text are bound, from the loosest on."""
_BINDINGS = {
    "or": OR, "and": AND, "=": COMPARISON, "!=": COMPARISON, "<": COMPARISON, "<=": COMPARISON, ">": COMPARISON,
    ">=": COMPARISON, "<=>": COMPARISON, "like": COMPARISON, "rlike": COMPARISON, "+": SUM, "-": SUM, "*": PRODUCT,
    "/": PRODUCT, "div": PRODUCT, "%": PRODUCT,
}  # fmt: skip
_NEGATIONS = {"=": "!=", "like": "not like", "rlike": "not rlike"}
_TYPES = {
    pa.bool_(): "boolean", pa.int8(): "tinyint", pa.int16(): "smallint", pa.int32(): "int", pa.int64(): "bigint",
    pa.float32(): "float", pa.float64(): "double", pa.string(): "string", pa.large_string(): "string",
    pa.binary(): "binary", pa.large_binary(): "binary", pa.date32(): "date", pa.null(): "void",
    pa.uint8(): "unsigned tinyint", pa.uint16(): "unsigned smallint", pa.uint32(): "unsigned int",
    pa.uint64(): "unsigned bigint", pa.float16(): "half float", pa.date64(): "date(milliseconds)",
}  # fmt: skip


def bare_name(name: str) -> str:
    """Give a column's name without the numbers that tell columns of one name apart."""
    return _NUMBER.sub("", name)


def value_name(field: pa.Field) -> str:
    """Name a column of a relation in a reason; one that planning has named, by its type alone."""
    name = "a value" if PLANNED.fullmatch(field.name) else bare_name(field.name)
    return f"{name} of type {show_type(field.type)}"


@dataclass(frozen=True, slots=True)
class Words:
    """An expression in SQL."""

    text: str
    binding: int = ATOM
    """How tightly the parts of the text are bound."""
    negation: str | None = None
    """The opposite, bound as a comparison, where that is not written with ``not`` before it."""
    is_buffer: bool = False
    """Whether the text is that of an aggregate call, and stands for a column of its buffer."""

    def at(self, binding: int) -> str:
        """Give the text, in parentheses where what is bound less tightly needs them."""
        return f"({self.text})" if self.binding < binding else self.text

    @property
    def opposite(self) -> Words:
        """The negated expression."""
        return Words(f"not {self.at(NOT)}", NOT) if self.negation is None else Words(self.negation, COMPARISON)


Columns: TypeAlias = Sequence[Words]
"""How the columns of an input are written, by position."""


def infix(operator: str, *operands: Words) -> Words:
    """Write operands with an operator between them."""
    binding = _BINDINGS[operator]
    texts = [each.at(binding + (n > 0 or binding == COMPARISON)) for n, each in enumerate(operands)]
    negation = _NEGATIONS.get(operator)
    return Words(f" {operator} ".join(texts), binding, negation and f" {negation} ".join(texts))


def postfix(value: Words, words: str) -> Words:
    """Write a value before ``is null`` or ``is not null``."""
    return Words(f"{value.at(SUM)} {words}", COMPARISON, f"{value.at(SUM)} is not null" if words == "is null" else None)


def one_of(value: Words, options: Iterable[str]) -> Words:
    """Write a value that is one of some options."""
    within = f"in ({', '.join(options)})"
    return Words(f"{value.at(SUM)} {within}", COMPARISON, f"{value.at(SUM)} not {within}")


def function_call(name: str, arguments: Iterable[Words]) -> Words:
    """Write a call of a function."""
    return Words(f"{name}({', '.join(each.text for each in arguments)})")


def cast_to(value: Words, dtype: str, *, tries: bool) -> Words:
    """Write a conversion."""
    return Words(f"{'try_cast' if tries else 'cast'}({value.text} as {dtype})")


def case(branches: Iterable[tuple[Words, Words]], otherwise: Words | None) -> Words:
    """Write a choice between branches, each a condition and a value."""
    texts = " ".join(f"when {condition.text} then {value.text}" for condition, value in branches)
    return Words(f"case {texts}{'' if otherwise is None else f' else {otherwise.text}'} end")


def arrow(variables: Sequence[Words], body: Words) -> Words:
    """Write a function of variables: ``(x, y) -> x + y``."""
    names = ", ".join(each.text for each in variables)
    return Words(f"{names if len(variables) == 1 else f'({names})'} -> {body.text}", OR)


def column_words(expression: Expression, columns: Columns | None = None) -> Words:
    """Write a column by the expression that it is computed by."""
    return Writer.of_one_input(columns).words(expression)


def show_expression(expression: Expression, columns: Columns | None = None) -> str:
    """Format an expression over a single input, with columns without a side.

    Columns are written by their names, or as ``columns`` says.
    """
    return Writer.of_one_input(columns).words(expression).text


def show_condition(expression: Expression, columns: Mapping[Side, Columns] | None = None) -> str:
    """Format an expression over the two inputs of a join, with the side of each column."""
    return Writer(sided=True, columns=columns or {}).words(expression).text


def show(expression: Expression) -> str:
    """Format an expression, with the side of each column where it reads those of both."""
    return Writer(sided=len(expression.sides()) > 1, columns={}).words(expression).text


def show_value(value: object) -> str:
    """Format a constant."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case str():
            return "'" + shorten(value).replace("\\", "\\\\").replace("'", "\\'") + "'"
        case bytes():
            return f"x'{shorten(value.hex())}'"
        case dt.date():
            return f"{'timestamp' if isinstance(value, dt.datetime) else 'date'} '{value}'"
        case dt.timedelta():
            return f"interval {_interval(value)}"
        case dict():
            return shorten(f"map({', '.join(f'{show_value(k)}, {show_value(v)}' for k, v in value.items())})")
        case list() | tuple():
            return shorten(f"array({', '.join(map(show_value, value))})")
    return str(value)


def shorten(text: str, most: int = LONGEST_CONSTANT) -> str:
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


_UNITS = {"s": "seconds", "ms": "milliseconds", "ns": "nanoseconds"}


def show_type(dtype: pa.DataType | str) -> str:
    """Name an Arrow type as Spark does: ``decimal(38,4)`` for ``decimal128(38, 4)``; words stay as they are."""
    if isinstance(dtype, str):
        return dtype
    match dtype:
        case pa.Decimal128Type() | pa.Decimal256Type():
            return f"decimal({dtype.precision},{dtype.scale})"
        case pa.TimestampType():
            unit = "" if dtype.unit == "us" else f"({_UNITS[dtype.unit]})"  # a file's: Spark's are microseconds
            return f"timestamp{unit}" if dtype.tz else f"timestamp_ntz{unit}"
        case pa.ListType() | pa.LargeListType() | pa.FixedSizeListType():
            return f"array<{show_type(dtype.value_type)}>"
        case pa.MapType():
            return f"map<{show_type(dtype.key_type)},{show_type(dtype.item_type)}>"
        case pa.StructType():
            return f"struct<{','.join(f'{field.name}:{show_type(field.type)}' for field in dtype)}>"
        case pa.DurationType():
            return "interval"
        case pa.Time32Type() | pa.Time64Type():
            return "time"
        case pa.FixedSizeBinaryType():
            return f"binary({dtype.byte_width})"
    return _TYPES.get(dtype, str(dtype))


def with_types(node: Expression) -> str:
    """Format an expression, with the types of its operands that are no constants."""
    operands = [child for child in node.children if child.type is not None and not isinstance(child, Literal)]
    if any(isinstance(child, Variable) for child in operands):
        del operands[1:]  # what is evaluated for each element, and its variables
    types = [child.type for child in operands if child.type is not None]
    texts = ", ".join(dict.fromkeys(map(show_type, types)))
    return f"{node} of {texts}" if texts else str(node)


class Writer:
    """Writes trees; ``sided`` says whether columns are shown with their side, ``columns`` how they are written."""

    def __init__(self, *, sided: bool, columns: Mapping[Side, Columns | None]) -> None:
        self._sided = sided
        self._columns = columns

    @classmethod
    def of_one_input(cls, columns: Columns | None) -> Writer:
        """Write expressions over a single input."""
        return cls(sided=False, columns={Side.LEFT: columns} if columns else {})

    def words(self, node: Expression) -> Words:
        """Write a node."""
        match node:
            case ColumnRef() if self._columns.get(node.side) is not None:
                return self._column(node)
            case Expression(written=str(text)):
                return Words(self._result_of_buffers(node) or text)
            case ColumnRef():
                return self._column(node)
            case Variable():
                return Words(bare_name(node.name))
            case Literal():
                return Words(show_value(node.value))
            case Cast(explicit=False):
                return self.words(node.child)
            case Cast():
                return cast_to(self.words(node.child), show_type(node.to), tries=node.mode is EvalMode.TRY)
            case Case():
                branches = zip(map(self.words, node.conditions), map(self.words, node.values), strict=True)
                null = isinstance(node.otherwise, Literal) and node.otherwise.value is None
                return case(branches, None if null else self.words(node.otherwise))
            case Call():
                return self._call(node)
        return Words(type(node).__name__.lower())

    def _column(self, node: ColumnRef) -> Words:
        columns = self._columns.get(node.side)
        side = f"{node.side.value}." * self._sided
        if columns is None:
            return Words(side + bare_name(node.name))
        column = columns[node.index]
        return Words(side + column.text) if column.binding == ATOM else column

    def _result_of_buffers(self, node: Expression) -> str | None:
        """Write what is computed of the buffer of one aggregate call as that call."""
        columns = self._columns.get(Side.LEFT)
        columns_read = None if columns is None else {columns[ref.index] for ref in node.columns()}
        if not columns_read or not all(column.is_buffer for column in columns_read):
            return None
        texts = {column.text for column in columns_read}
        return texts.pop() if len(texts) == 1 else None

    def _call(self, node: Call) -> Words:
        function, operands = node.function, list(map(self.words, node.arguments))
        name = function.value
        if name in _BINDINGS and len(operands) > 1:
            # A pattern's third argument is its escape character, a backslash unless a query says another.
            return infix(name, *(operands if function in (Function.AND, Function.OR) else operands[:2]))
        match function:
            case Function.NOT:
                return operands[0].opposite
            case Function.NEGATE:
                return Words(f"-{operands[0].at(SIGN)}", SIGN)
            case Function.IS_NULL | Function.IS_NOT_NULL:
                return postfix(operands[0], name)
            case Function.IN:
                return one_of(operands[0], (option.text for option in operands[1:]))
            case Function.TRANSFORM | Function.FILTER | Function.EXISTS | Function.FORALL:
                array, body, *variables = operands
                operands = [array, arrow(variables, body)]
            case Function.ZIP_WITH | Function.MAP_FILTER | Function.TRANSFORM_VALUES:
                *sources, body, first, second = operands
                operands = [*sources, arrow([first, second], body)]
            case Function.AGGREGATE:
                array, zero, merge, so_far, element, finish, last = operands
                operands = [array, zero, arrow([so_far, element], merge), arrow([last], finish)]
            case Function.MAP_FROM_ARRAYS | Function.MAP_FROM_ENTRIES:
                operands.pop()  # it is of the session
            case Function.CONCAT_LISTS | Function.REVERSE_LIST:
                name = name.partition("_")[0]
            case Function.GET_FIELD if isinstance(node.arguments[1], Literal):
                return Words(f"{operands[0].at(ATOM)}.{node.arguments[1].value}")
        return function_call(name, operands)
