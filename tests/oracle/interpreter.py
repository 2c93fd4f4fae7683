"""Expressions evaluated one pair of rows at a time, by Spark's rules and nobody's code but its own.

Slow, and kept apart from the backends' evaluation on purpose: it is what they are checked against.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal

import pyarrow as pa

from gpujoin.errors import ConditionError, did_you_mean
from gpujoin.model.expressions import Call, Case, Cast, ColumnRef, Expression, Function, Literal
from gpujoin.model.jointype import Side
from gpujoin.model.types import plain
from gpujoin.testing.cells import Cell, cells, sort_key
from tests.oracle import arithmetic, texts
from tests.oracle.casting import caster, local_micros
from tests.oracle.civil import MICROS_PER_DAY, civil, day_number
from tests.oracle.ordering import aligner, common_type

Rows = tuple[Sequence[Cell], Sequence[Cell]]
"""The cells of a left row and of a right row."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """An expression ready to run.

    Attributes
    ----------
    type : pyarrow.DataType
        Type of its values.
    run : callable
        From the cells of a left and of a right row to a cell.
    """

    type: pa.DataType
    run: Callable[[Rows], Cell]


def compile_expression(expression: Expression, left: pa.Schema, right: pa.Schema) -> Compiled:
    """Prepare an expression over pairs of rows.

    Resolved trees are taken at their word: types and casts as they stand. In unresolved trees columns are found by
    name and operands meet in a common type.

    Parameters
    ----------
    expression : Expression
        Any tree, resolved or not.
    left, right : pyarrow.Schema
        Columns of the two rows.

    Raises
    ------
    ConditionError
        If a column is unknown or operands cannot be compared.
    NotImplementedError
        If a function is not covered for the types it is given.
    """
    return _Compiler(left, right).node(expression)


def infer_literal_type(value: object) -> pa.DataType:
    """Type of a plain Python value, as Spark infers it.

    Raises
    ------
    ConditionError
        If Spark would not take the value.
    """
    match value:
        case None:
            return pa.null()
        case bool():
            return pa.bool_()
        case int():
            return pa.int32() if -(1 << 31) <= value < 1 << 31 else pa.int64()
        case float():
            return pa.float64()
        case Decimal():
            _, digits, exponent = value.as_tuple()
            assert isinstance(exponent, int)
            scale = max(-exponent, 0)
            return pa.decimal128(max(len(digits) + max(exponent, 0), scale, 1), scale)
        case str():
            return pa.string()
        case bytes():
            return pa.binary()
        case dt.datetime():
            return pa.timestamp("us", "UTC" if value.tzinfo else None)
        case dt.date():
            return pa.date32()
        case _:
            raise ConditionError(f"{value!r} of type {type(value).__name__} cannot be a literal")


class _Compiler:
    def __init__(self, left: pa.Schema, right: pa.Schema) -> None:
        self.schemas = {Side.LEFT: left, Side.RIGHT: right}

    def node(self, expression: Expression) -> Compiled:
        match expression:
            case ColumnRef():
                return self.column(expression)
            case Literal():
                return self.literal(expression)
            case Cast():
                child = self.node(expression.child)
                convert = caster(child.type, plain(expression.to), expression.mode)
                return Compiled(plain(expression.to), lambda rows: convert(child.run(rows)))
            case Case():
                return self.case(expression)
            case Call():
                arguments = [self.node(argument) for argument in expression.arguments]
                return FUNCTIONS[expression.function](expression, arguments)
            case _:
                raise NotImplementedError(f"the oracle does not know expressions of class {type(expression).__name__}")

    def column(self, reference: ColumnRef) -> Compiled:
        schema = self.schemas[reference.side]
        index = reference.index
        if index < 0:
            positions = schema.get_all_field_indices(reference.name)
            if len(positions) != 1:
                problem = "is ambiguous" if positions else "does not exist"
                raise ConditionError(f"column {reference} {problem}.{did_you_mean(reference.name, schema.names)}")
            index = positions[0]
        which = 0 if reference.side is Side.LEFT else 1
        return Compiled(plain(schema.field(index).type), lambda rows: rows[which][index])

    def literal(self, literal: Literal) -> Compiled:
        dtype = plain(literal.type) if literal.type is not None else infer_literal_type(literal.value)
        [value] = cells(pa.array([literal.value], dtype))
        return Compiled(dtype, lambda _rows: value)

    def case(self, case: Case) -> Compiled:
        conditions = [self.node(c) for c in case.conditions]
        values, dtype = _unified([self.node(v) for v in (*case.values, case.otherwise)], case.type)

        def run(rows: Rows) -> Cell:
            for condition, value in zip(conditions, values, strict=False):
                if condition.run(rows) is True:
                    return value(rows)
            return values[-1](rows)

        return Compiled(dtype, run)


_Handler = Callable[[Call, list[Compiled]], Compiled]
_INT = pa.int32()


def _unified(
    operands: Sequence[Compiled], dtype: pa.DataType | None = None
) -> tuple[list[Callable[[Rows], Cell]], pa.DataType]:
    """The operands in their common type, or in the type that is given."""
    common = pa.null() if dtype is None else plain(dtype)
    for operand in operands:
        common = common_type(common, operand.type)
    return [_chained(aligner(operand.type, common), operand.run) for operand in operands], common


def _chained(after: Callable[[Cell], Cell], run: Callable[[Rows], Cell]) -> Callable[[Rows], Cell]:
    return lambda rows: after(run(rows))


def _comparison(test: Callable[[object, object], bool]) -> _Handler:
    def handler(_node: Call, operands: list[Compiled]) -> Compiled:
        (left_run, right_run), _ = _unified(operands)

        def run(rows: Rows) -> Cell:
            a, b = left_run(rows), right_run(rows)
            return None if a is None or b is None else test(sort_key(a), sort_key(b))

        return Compiled(pa.bool_(), run)

    return handler


def _equal_null_safe(_node: Call, operands: list[Compiled]) -> Compiled:
    (left_run, right_run), _ = _unified(operands)

    def run(rows: Rows) -> Cell:
        a, b = left_run(rows), right_run(rows)
        return a is b if a is None or b is None else sort_key(a) == sort_key(b)

    return Compiled(pa.bool_(), run)


def _junction(*, absorbing: bool) -> _Handler:
    """AND, which false decides, or OR, which true decides; null if an operand is null and none decides."""

    def handler(_node: Call, operands: list[Compiled]) -> Compiled:
        def run(rows: Rows) -> Cell:
            unknown = False
            for operand in operands:
                value = operand.run(rows)
                if value is absorbing:
                    return absorbing
                unknown = unknown or value is None
            return None if unknown else not absorbing

        return Compiled(pa.bool_(), run)

    return handler


def _in(_node: Call, operands: list[Compiled]) -> Compiled:
    (wanted, *listed), _ = _unified(operands)

    def run(rows: Rows) -> Cell:
        value = wanted(rows)
        if value is None:
            return None if listed else False
        unknown = False
        for item in listed:
            other = item(rows)
            if other is None:
                unknown = True
            elif sort_key(other) == sort_key(value):
                return True
        return None if unknown else False

    return Compiled(pa.bool_(), run)


def _coalesce(node: Call, operands: list[Compiled]) -> Compiled:
    runs, dtype = _unified(operands, node.type)
    return Compiled(dtype, lambda rows: next((v for run in runs if (v := run(rows)) is not None), None))


def _extreme(pick: Callable[..., Cell]) -> _Handler:
    def handler(node: Call, operands: list[Compiled]) -> Compiled:
        runs, dtype = _unified(operands, node.type)

        def run(rows: Rows) -> Cell:
            values = [v for run in runs if (v := run(rows)) is not None]
            return pick(values, key=sort_key) if values else None

        return Compiled(dtype, run)

    return handler


def _strict(dtype: pa.DataType, function: Callable[..., Cell]) -> _Handler:
    """A function of cells that is null wherever an operand is."""

    def handler(_node: Call, operands: list[Compiled]) -> Compiled:
        def run(rows: Rows) -> Cell:
            values = [operand.run(rows) for operand in operands]
            return None if any(v is None for v in values) else function(*values)

        return Compiled(dtype, run)

    return handler


def _like_first(function: Callable[..., Cell]) -> _Handler:
    """A strict function whose result has its first operand's type."""
    return lambda node, operands: _strict(operands[0].type, function)(node, operands)


def _of_operands(function: Callable[[Cell], Cell], dtype: pa.DataType) -> _Handler:
    """A function of one operand that sees nulls too."""
    return lambda _node, operands: Compiled(dtype, lambda rows: function(operands[0].run(rows)))


def _of_day(compute: Callable[[int], int], dtype: pa.DataType = _INT) -> _Handler:
    """From the number of the day, of which 0 is Thursday, 1970-01-01."""

    def handler(node: Call, operands: list[Compiled]) -> Compiled:
        source = operands[0].type
        return _strict(dtype, lambda value: compute(local_micros(value, source) // MICROS_PER_DAY))(node, operands)

    return handler


def _date_part(part: Callable[[int, int, int], int]) -> _Handler:
    """From year, month and day."""
    return _of_day(lambda day: part(*civil(day)))


def _time_part(unit: int, modulus: int) -> _Handler:
    def handler(node: Call, operands: list[Compiled]) -> Compiled:
        dtype = operands[0].type
        return _strict(pa.int32(), lambda value: local_micros(value, dtype) // unit % modulus)(node, operands)

    return handler


def _last_day(day: int) -> int:
    year, month, _ = civil(day)
    return _number(year + month // 12, month % 12 + 1, 1) - 1


def _number(year: int, month: int, day: int) -> int:
    number = day_number(year, month, day)
    assert number is not None
    return number


def _date_shift(sign: int) -> _Handler:
    def handler(node: Call, operands: list[Compiled]) -> Compiled:
        dtype = operands[0].type
        return _strict(pa.date32(), lambda value, n: local_micros(value, dtype) // MICROS_PER_DAY + sign * n)(
            node, operands
        )

    return handler


def _date_diff(node: Call, operands: list[Compiled]) -> Compiled:
    end, start = operands[0].type, operands[1].type
    return _strict(
        pa.int32(),
        lambda e, s: local_micros(e, end) // MICROS_PER_DAY - local_micros(s, start) // MICROS_PER_DAY,
    )(node, operands)


def _timestamp_add(moment: int, shift: int) -> int:
    micros = moment + shift
    if not -(1 << 63) <= micros < 1 << 63:
        raise OverflowError(micros)
    return micros


def _length(node: Call, operands: list[Compiled]) -> Compiled:
    return _strict(pa.int32(), len)(node, operands)


def _unscaled_value(node: Call, operands: list[Compiled]) -> Compiled:
    scale = operands[0].type.scale
    return _strict(pa.int64(), lambda value: int(value.scaleb(scale)))(node, operands)


def _get_field(node: Call, operands: list[Compiled]) -> Compiled:
    struct, name = operands[0], node.arguments[1]
    assert isinstance(name, Literal)
    index = struct.type.get_field_index(name.value)
    if index < 0:
        raise ConditionError(f"struct {struct.type} has no field {name.value!r}")

    def run(rows: Rows) -> Cell:
        value = struct.run(rows)
        return None if value is None else value[index]

    return Compiled(plain(struct.type.field(index).type), run)


def _arithmetic(node: Call, operands: list[Compiled]) -> Compiled:
    """Numbers; the rules are in `tests.oracle.arithmetic`."""
    types = [operand.type for operand in operands]
    dtype = node.type if node.type is not None else arithmetic.result_type(node.function, types)
    function = arithmetic.operation(node.function, types, dtype, node.mode)

    def run(rows: Rows) -> Cell:
        values = [operand.run(rows) for operand in operands]
        return None if any(v is None for v in values) else function(*values)

    return Compiled(dtype, run)


FUNCTIONS: dict[Function, _Handler] = {
    Function.EQ: _comparison(lambda a, b: a == b),
    Function.NE: _comparison(lambda a, b: a != b),
    Function.LT: _comparison(lambda a, b: a < b),  # type: ignore[operator]
    Function.LE: _comparison(lambda a, b: a <= b),  # type: ignore[operator]
    Function.GT: _comparison(lambda a, b: a > b),  # type: ignore[operator]
    Function.GE: _comparison(lambda a, b: a >= b),  # type: ignore[operator]
    Function.EQ_NULL_SAFE: _equal_null_safe,
    Function.AND: _junction(absorbing=False),
    Function.OR: _junction(absorbing=True),
    Function.NOT: _strict(pa.bool_(), lambda value: not value),
    Function.IS_NULL: _of_operands(lambda value: value is None, pa.bool_()),
    Function.IS_NOT_NULL: _of_operands(lambda value: value is not None, pa.bool_()),
    Function.IS_NAN: _of_operands(lambda value: value is not None and value != value, pa.bool_()),
    Function.SQRT: _strict(pa.float64(), lambda value: math.sqrt(value) if not value < 0 else math.nan),
    Function.IN: _in,
    Function.COALESCE: _coalesce,
    Function.GREATEST: _extreme(max),
    Function.LEAST: _extreme(min),
    Function.LIKE: _strict(pa.bool_(), texts.like),
    Function.RLIKE: _strict(pa.bool_(), texts.rlike),
    Function.STARTS_WITH: _strict(pa.bool_(), lambda text, start: text.startswith(start)),
    Function.ENDS_WITH: _strict(pa.bool_(), lambda text, end: text.endswith(end)),
    Function.CONTAINS: _strict(pa.bool_(), lambda text, part: part in text),
    Function.LOWER: _like_first(str.lower),
    Function.UPPER: _like_first(str.upper),
    Function.TRIM: _like_first(lambda text: text.strip(" ")),
    Function.TRIM_LEFT: _like_first(lambda text: text.lstrip(" ")),
    Function.TRIM_RIGHT: _like_first(lambda text: text.rstrip(" ")),
    Function.LENGTH: _length,
    Function.OCTET_LENGTH: _strict(pa.int32(), lambda v: len(v.encode() if isinstance(v, str) else v)),
    Function.REVERSE: _like_first(lambda text: text[::-1]),
    Function.INSTR: _strict(pa.int32(), lambda text, part: text.find(part) + 1),
    Function.SUBSTRING: _like_first(texts.substring),
    Function.CONCAT: _like_first(lambda first, *rest: type(first)().join((first, *rest))),
    Function.YEAR: _date_part(lambda year, _month, _day: year),
    Function.QUARTER: _date_part(lambda _year, month, _day: (month - 1) // 3 + 1),
    Function.MONTH: _date_part(lambda _year, month, _day: month),
    Function.DAY: _date_part(lambda _year, _month, day: day),
    Function.DAY_OF_WEEK: _of_day(lambda day: (day + 4) % 7 + 1),
    Function.WEEKDAY: _of_day(lambda day: (day + 3) % 7),
    Function.LAST_DAY: _of_day(_last_day, pa.date32()),
    Function.DAY_OF_YEAR: _date_part(lambda y, m, d: _number(y, m, d) - _number(y, 1, 1) + 1),
    Function.HOUR: _time_part(3_600_000_000, 24),
    Function.MINUTE: _time_part(60_000_000, 60),
    Function.SECOND: _time_part(1_000_000, 60),
    Function.DATE_ADD: _date_shift(1),
    Function.DATE_SUB: _date_shift(-1),
    Function.DATE_DIFF: _date_diff,
    Function.TIMESTAMP_ADD: _like_first(_timestamp_add),
    Function.GET_FIELD: _get_field,
    Function.UNSCALED_VALUE: _unscaled_value,
} | dict.fromkeys(arithmetic.FUNCTIONS, _arithmetic)
