"""Expressions evaluated one pair of rows at a time, by Spark's rules and nobody's code but its own.

Slow, and kept apart from the backends' evaluation on purpose: it is what they are checked against.
"""

from __future__ import annotations

import binascii
import datetime as dt
import functools
import hashlib
import math
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

import pyarrow as pa

from gpujoin.errors import ConditionError, ExpressionEvaluationError, did_you_mean
from gpujoin.model.expressions import Call, Case, Cast, ColumnRef, EvalMode, Expression, Function, Literal, Variable
from gpujoin.model.jointype import Side
from gpujoin.model.types import plain
from gpujoin.testing.cells import Cell, cells, sort_key
from tests.oracle import arithmetic, hashes, lists, texts
from tests.oracle.casting import caster, failed, local_micros, wrap
from tests.oracle.civil import MICROS_PER_DAY, civil, day_number, parse_timestamp, start_of_day, to_utc, zone_offset
from tests.oracle.ordering import aligner, common_type

Rows = tuple[Sequence[Cell], Sequence[Cell]] | tuple[Sequence[Cell], Sequence[Cell], Mapping[str, Cell]]
"""The cells of a left row and of a right row; within a lambda also the values of its variables, by name."""


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


_MOST_KNOWN = 64
_known: dict[tuple[int, int, int], tuple[Compiled, tuple[object, ...]]] = {}
"""Compiled trees by the identities of tree and schemas, which are kept with them, so that nothing else takes those."""


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
    # Trees are compared by identity: `==` of two makes a third.
    key = id(expression), id(left), id(right)
    if key not in _known:
        if len(_known) == _MOST_KNOWN:
            _known.clear()
        _known[key] = _Compiler(left, right).node(expression), (expression, left, right)
    return _known[key][0]


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
            case Variable(name=name, type=dtype):
                assert dtype is not None
                return Compiled(plain(dtype), lambda rows: lists.variable(rows, name))
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
        dtype = plain(schema.field(index).type)
        if reference.side is Side.LEFT:
            return Compiled(dtype, lambda rows: rows[0][index])
        return Compiled(dtype, lambda rows: rows[1][index])

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


def _of_day(compute: Callable[[int], Cell], dtype: pa.DataType = _INT) -> _Handler:
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


_MONTH = 2_678_400
"""Seconds of 31 days."""
_DAY_NAMES = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTH_NAMES = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def _week_of_year(day: int) -> int:
    """Number of Thursdays that the year of this week's Thursday has had with it."""
    thursday = day - (day + 3) % 7 + 3
    return (thursday - _number(civil(thursday)[0], 1, 1)) // 7 + 1


def _date32(day: int) -> int:
    if not -(1 << 31) <= day < 1 << 31:
        raise ExpressionEvaluationError(f"day {day} does not fit 32 bits")
    return day


def _plus_months(day: int, months: int) -> int:
    year, month, of_month = civil(day)
    years, month = divmod(year * 12 + month - 1 + months, 12)
    fitting = next(n for n in range(of_month, 0, -1) if day_number(years, month + 1, n) is not None)
    return _date32(_number(years, month + 1, fitting))


def _add_months(node: Call, operands: list[Compiled]) -> Compiled:
    dtype = operands[0].type
    return _strict(pa.date32(), lambda value, n: _plus_months(local_micros(value, dtype) // MICROS_PER_DAY, n))(
        node, operands
    )


def _make_date(node: Call, operands: list[Compiled]) -> Compiled:
    def make(year: int, month: int, day: int) -> Cell:
        number = None if abs(year) > 999_999_999 else day_number(year, month, day)
        return failed(node.mode, f"no date {year}-{month}-{day}") if number is None else _date32(number)

    return _strict(pa.date32(), make)(node, operands)


def _clock_time(day: int, micros: int) -> int:
    if not -(1 << 63) <= day * MICROS_PER_DAY + micros < 1 << 63:
        raise OverflowError(day)
    return day * MICROS_PER_DAY + micros


def _timestamp_add_months(micros: int, months: int) -> int:
    day, rest = divmod(micros, MICROS_PER_DAY)
    shifted = _plus_months(day, months)
    assert isinstance(shifted, int)
    return _clock_time(shifted, rest)


_DIFFERENCE_UNITS = {
    "MICROSECOND": 1, "MILLISECOND": 10**3, "SECOND": 10**6, "MINUTE": 60 * 10**6, "HOUR": 3600 * 10**6,
    "DAY": MICROS_PER_DAY, "WEEK": 7 * MICROS_PER_DAY,
}  # fmt: skip
_DIFFERENCE_MONTHS = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}


def _timestamp_diff(unit: str, start: int, end: int) -> int:
    sign = 1 if end >= start else -1
    first, last = sorted((start, end))
    if unit.upper() in _DIFFERENCE_UNITS:
        return sign * ((last - first) // _DIFFERENCE_UNITS[unit.upper()])
    (day, time), (other, other_time) = divmod(start, MICROS_PER_DAY), divmod(end, MICROS_PER_DAY)
    if other > day and other_time < time:
        other -= 1
    elif other < day and other_time > time:
        other += 1
    (y1, m1, d1), (y2, m2, d2) = civil(day), civil(other)
    months = int((32 * (12 * (y2 - y1) + m2 - m1) + d2 - d1) / 32)
    return int(months / _DIFFERENCE_MONTHS[unit.upper()])


def _make_timestamp(node: Call, operands: list[Compiled]) -> Compiled:
    def make(year: int, month: int, day: int, hour: int, minute: int, second: Decimal) -> Cell:
        number = None if abs(year) > 999_999_999 else day_number(year, month, day)
        if number is None or not (0 <= hour < 24 and 0 <= minute < 60 and 0 <= second <= 60):
            return failed(node.mode, f"no time {year}-{month}-{day} {hour}:{minute}:{second}")
        return _clock_time(number, (hour * 60 + minute) * 60_000_000 + int(second * 10**6))

    return _strict(pa.timestamp("us", "UTC"), make)(node, operands)


def _parse_timestamp(node: Call, operands: list[Compiled]) -> Compiled:
    def parse(text: str, pattern: str) -> Cell:
        fields = {"yyyy": r"(?P<y>\d{4})", "MM": r"(?P<m>\d\d)", "dd": r"(?P<d>\d\d)", "HH": r"(?P<H>\d\d)",
                  "mm": r"(?P<M>\d\d)", "ss": r"(?P<S>\d\d)"}  # fmt: skip
        regex = re.escape(pattern.replace("'", ""))
        for name, group in fields.items():
            regex = regex.replace(name, group)
        match = re.fullmatch(regex, text, re.ASCII)
        number = {name: int(value) for name, value in match.groupdict().items()} if match else {}
        day = day_number(number["y"], number.get("m", 1), number.get("d", 1)) if match else None
        hour, minute, second = (number.get(name, 0) for name in "HMS")
        if day is None or hour > 23 or minute > 59 or second > 59:
            return failed(node.mode, f"{text!r} is not of the form {pattern}")
        return _clock_time(day, ((hour * 60 + minute) * 60 + second) * 1_000_000)

    return _strict(pa.timestamp("us", "UTC"), parse)(node, operands)


def _cast_timestamp(node: Call, operands: list[Compiled]) -> Compiled:
    def parse(text: str, zone: str) -> Cell:
        local = parse_timestamp(text)
        return failed(node.mode, f"{text!r} is no timestamp") if local is None else to_utc(local, zone)

    return _strict(pa.timestamp("us", "UTC"), parse)(node, operands)


def _second_with_fraction(node: Call, operands: list[Compiled]) -> Compiled:
    dtype = operands[0].type
    return _strict(pa.decimal128(8, 6), lambda value: Decimal(local_micros(value, dtype) % 60_000_000).scaleb(-6))(
        node, operands
    )


def _months_between(node: Call, operands: list[Compiled]) -> Compiled:
    later, earlier = operands[0].type, operands[1].type

    def split(micros: int, dtype: pa.DataType, zone: str | None) -> tuple[int, int]:
        """The local day, and the microseconds since it began."""
        if zone is None:
            return divmod(local_micros(micros, dtype), MICROS_PER_DAY)
        day = (micros + zone_offset(micros, zone)) // MICROS_PER_DAY
        return day, micros - start_of_day(day * MICROS_PER_DAY, zone)

    def between(a: int, b: int, rounded: bool, zone: str | None = None) -> float:
        (day, time), (other, other_time) = (split(*moment, zone) for moment in ((a, later), (b, earlier)))
        (y1, m1, d1), (y2, m2, d2) = civil(day), civil(other)
        months = float(12 * (y1 - y2) + m1 - m2)
        if d1 == d2 or (_last_day(day) == day and _last_day(other) == other):
            return months
        seconds = (d1 - d2) * 86_400 + time // 1_000_000 - other_time // 1_000_000
        exact = months + seconds / _MONTH
        return math.floor(Fraction(exact * 1e8) + Fraction(1, 2)) / 1e8 if rounded else exact

    return _strict(pa.float64(), between)(node, operands)


def _made(make: Callable[[int, str], int]) -> _Handler:
    """From what a clock shows to the instant, at the offset of another one if the clock shows it then."""

    def made(shown: int, zone: str, near: int | None = None) -> int:
        if near is not None:
            kept = shown - zone_offset(near, zone)
            if kept + zone_offset(kept, zone) == shown:
                return kept
        return make(shown, zone)

    return _like_first(made)


def _cut(unit: str, day: int) -> int:
    year, month, _ = civil(day)
    match unit.upper():
        case "WEEK":
            return day - (day + 3) % 7
        case "MON" | "MONTH" | "MM":
            return _number(year, month, 1)
        case "QUARTER":
            return _number(year, month - (month - 1) % 3, 1)
        case "YEAR" | "YYYY" | "YY":
            return _number(year, 1, 1)
    raise NotImplementedError(f"the oracle has no unit {unit}")


def _trunc(node: Call, operands: list[Compiled]) -> Compiled:
    dtype = operands[0].type
    return _strict(pa.date32(), lambda value, unit: _cut(unit, local_micros(value, dtype) // MICROS_PER_DAY))(
        node, operands
    )


_MICROS = {
    "MICROSECOND": 1, "MILLISECOND": 10**3, "SECOND": 10**6, "MINUTE": 60 * 10**6, "HOUR": 3600 * 10**6,
    "DAY": MICROS_PER_DAY, "DD": MICROS_PER_DAY,
}  # fmt: skip


def _date_trunc(node: Call, operands: list[Compiled]) -> Compiled:
    dtype = operands[1].type

    def cut(unit: str, value: int) -> int:
        clock = local_micros(value, dtype)
        micros = _MICROS.get(unit.upper())
        start = clock // micros * micros if micros else _cut(unit, clock // MICROS_PER_DAY) * MICROS_PER_DAY
        return to_utc(start, dtype.tz)

    return _strict(dtype, cut)(node, operands)


def _date_format(node: Call, operands: list[Compiled]) -> Compiled:
    dtype = operands[0].type

    def written(value: int, pattern: str) -> str:
        moment = local_micros(value, dtype) if pa.types.is_timestamp(dtype) else wrap(value * 10**6, 64)
        day, micros = divmod(moment, MICROS_PER_DAY)
        year, month, of_month = civil(day)
        text = f"{abs(year):04d}"
        text = f"-{text}" if year < 0 else f"+{text}" if year > 9999 else text
        for field, number in (
            ("MM", month), ("dd", of_month), ("HH", micros // 3_600_000_000), ("mm", micros // 60_000_000 % 60),
            ("ss", micros // 1_000_000 % 60),
        ):  # fmt: skip
            pattern = pattern.replace(field, f"{number:02d}")
        pattern = pattern.replace("SSSSSS", f"{micros % 1_000_000:06d}").replace("SSS", f"{micros % 1_000_000:06d}"[:3])
        return pattern.replace("yyyy", text).replace("'", "")

    return _strict(pa.string(), written)(node, operands)


def _next_day(node: Call, operands: list[Compiled]) -> Compiled:
    dtype = operands[0].type

    def following(value: int, name: str) -> int:
        day = local_micros(value, dtype) // MICROS_PER_DAY
        wanted = [n.upper()[:2] for n in _DAY_NAMES].index(name.upper()[:2])
        return next(d for d in range(day + 1, day + 8) if (d + 3) % 7 == wanted)

    return _strict(pa.date32(), following)(node, operands)


def _from_epoch(unit: int) -> _Handler:
    def instant(value: int) -> int:
        if not -(1 << 63) <= value * unit < 1 << 63:
            raise ExpressionEvaluationError(f"{value} overflows")
        return value * unit

    return _strict(pa.timestamp("us", "UTC"), instant)


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


def _nanvl(node: Call, operands: list[Compiled]) -> Compiled:
    (first, second), dtype = _unified(operands, node.type)

    def run(rows: Rows) -> Cell:
        value = first(rows)
        return second(rows) if value is not None and value != value else value

    return Compiled(dtype, run)


def _concat_ws(_node: Call, operands: list[Compiled]) -> Compiled:
    def run(rows: Rows) -> Cell:
        separator, *parts = (operand.run(rows) for operand in operands)
        return None if separator is None else separator.join(p for p in parts if p is not None)

    return Compiled(pa.string(), run)


def _hash(dtype: pa.DataType) -> _Handler:
    def handler(_node: Call, operands: list[Compiled]) -> Compiled:
        types = [operand.type for operand in operands]
        wide = dtype == pa.int64()
        return Compiled(dtype, lambda rows: hashes.chained([o.run(rows) for o in operands], types, wide=wide))

    return handler


def _integers(compute: Callable[..., int]) -> _Handler:
    """A function of integers whose result is cut to the bits of its first operand."""

    def handler(node: Call, operands: list[Compiled]) -> Compiled:
        dtype = operands[0].type
        for operand in operands[1:]:
            dtype = common_type(dtype, operand.type) if not node.function.value.startswith("shift") else dtype
        half = 1 << (dtype.bit_width - 1)

        def run(*values: int) -> int:
            return (compute(*values, dtype.bit_width) + half) % (2 * half) - half

        return _strict(dtype, run)(node, operands)

    return handler


def _bit_count(node: Call, operands: list[Compiled]) -> Compiled:
    return _strict(pa.int32(), lambda value: (int(value) % (1 << 64)).bit_count())(node, operands)


def _sign(value: float) -> float:
    return value if value == 0 or value != value else math.copysign(1.0, value)


def _width_bucket(value: float, first: float, last: float, count: int) -> int | None:
    if count <= 0 or count == (1 << 63) - 1 or value != value or first == last:
        return None
    if not (math.isfinite(first) and math.isfinite(last)):
        return None
    if first > last:
        value, first, last = -value, -first, -last
    if value < first:
        return 0
    if value >= last:
        return count + 1
    share = count * (value - first) / (last - first)
    bucket = 0 if share != share else min(int(min(share, 2.0**63)), (1 << 63) - 1)
    return bucket + 1 if bucket < (1 << 63) - 1 else -(1 << 63)


def _hex(value: int | str | bytes) -> str:
    if isinstance(value, int):
        return f"{value % (1 << 64):X}"
    return (value.encode() if isinstance(value, str) else value).hex().upper()


def _digest(name: str) -> _Handler:
    return _strict(pa.string(), lambda value: hashlib.new(name, value).hexdigest())


def _sha2(value: bytes, bits: int) -> str | None:
    names = {0: "sha256", 224: "sha224", 256: "sha256", 384: "sha384", 512: "sha512"}
    return hashlib.new(names[bits], value).hexdigest() if bits in names else None


def _double(compute: Callable[..., float], *domain: Callable[[float], bool]) -> _Handler:
    """A function of doubles, to a unit in the last place: it is C's, Spark's is fdlibm's. Null outside a domain."""

    def run(*values: float) -> float | None:
        if any(not test(value) for test in domain for value in values):
            return None
        try:
            return compute(*values)
        except ValueError:
            return math.nan
        except OverflowError:
            return math.inf

    return _strict(pa.float64(), run)


def _positive(value: float) -> bool:
    return not value <= 0


def _bit_get(node: Call, operands: list[Compiled]) -> Compiled:
    bits = operands[0].type.bit_width

    def bit(value: int, position: int) -> int:
        if not 0 <= position < bits:
            raise ExpressionEvaluationError(f"there is no bit {position}")
        return value >> position & 1

    return _strict(pa.int8(), bit)(node, operands)


def _mask(node: Call, operands: list[Compiled]) -> Compiled:
    text, *characters = operands

    def run(rows: Rows) -> Cell:
        value, given = text.run(rows), [c.run(rows) for c in characters]
        return None if value is None else texts.mask(value, *given)

    return Compiled(text.type, run)


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _decoded(value: bytes, _charset: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as problem:
        raise ExpressionEvaluationError(str(problem)) from None


FUNCTIONS: dict[Function, _Handler] = {
    Function.EXP: _double(math.exp),
    Function.EXPM1: _double(math.expm1),
    Function.LN: _double(math.log, _positive),
    Function.LOG2: _double(lambda x: math.log(x) / math.log(2), _positive),
    Function.LOG10: _double(math.log10, _positive),
    Function.LOG1P: _double(math.log1p, lambda x: not x <= -1),
    Function.LOG: _double(lambda base, x: math.log(x) / math.log(base), _positive),
    Function.POW: _double(math.pow),
    Function.CBRT: _double(math.cbrt),
    Function.HYPOT: _double(math.hypot),
    Function.ACOS: _double(math.acos),
    Function.ASIN: _double(math.asin),
    Function.ATAN: _double(math.atan),
    Function.ATAN2: _double(lambda y, x: math.atan2(y + 0.0, x + 0.0)),
    Function.SINH: _double(math.sinh),
    Function.COSH: _double(math.cosh),
    Function.TANH: _double(math.tanh),
    Function.ATANH: _double(math.atanh),
    Function.RINT: _strict(pa.float64(), lambda x: math.copysign(round(x), x) if math.isfinite(x) else x),
    Function.FACTORIAL: _strict(pa.int64(), lambda n: math.factorial(n) if 0 <= n <= 20 else None),
    Function.BIT_GET: _bit_get,
    Function.REGEXP_INSTR: _strict(pa.int32(), texts.regexp_instr),
    Function.OVERLAY: _like_first(texts.overlay),
    Function.SPACE: _strict(pa.string(), lambda length: " " * length),
    Function.FIND_IN_SET: _strict(
        pa.int32(), lambda word, words: ([*words.split(","), word].index(word) + 1) % (words.count(",") + 2)
    ),
    Function.CONV: lambda node, operands: _strict(
        pa.string(), functools.partial(texts.conv, ansi=node.mode is EvalMode.ANSI)
    )(node, operands),
    Function.REGEXP_EXTRACT_ALL: _strict(pa.list_(pa.string()), texts.regexp_extract_all),
    Function.SOUNDEX: _strict(pa.string(), texts.soundex),
    Function.LEVENSHTEIN: _strict(pa.int32(), texts.levenshtein),
    Function.MASK: _mask,
    Function.LUHN_CHECK: _strict(pa.bool_(), texts.luhn_check),
    Function.QUOTE: _strict(pa.string(), lambda text: "'" + "\\'".join(text.split("'")) + "'"),
    Function.FORMAT_NUMBER: _strict(pa.string(), texts.format_number),
    Function.UNHEX: _strict(pa.binary(), texts.unhex),
    Function.BASE64: _strict(
        pa.string(),
        lambda value: "\r\n".join(
            binascii.b2a_base64(_bytes(value)[at : at + 57]).decode().strip() for at in range(0, len(_bytes(value)), 57)
        ),
    ),
    Function.UNBASE64: _strict(pa.binary(), binascii.a2b_base64),
    Function.ENCODE: _strict(pa.binary(), lambda text, _charset: text.encode()),
    Function.DECODE: _strict(pa.string(), _decoded),
    Function.URL_ENCODE: _strict(pa.string(), texts.url_encode),
    Function.URL_DECODE: _strict(pa.string(), texts.url_decode),
    Function.NANVL: _nanvl,
    Function.SIGN: _strict(pa.float64(), _sign),
    Function.DEGREES: _strict(pa.float64(), lambda value: value * (180 / math.pi)),
    Function.RADIANS: _strict(pa.float64(), lambda value: value * (math.pi / 180)),
    Function.WIDTH_BUCKET: _strict(pa.int64(), _width_bucket),
    Function.BIT_AND: _integers(lambda a, b, _: a & b),
    Function.BIT_OR: _integers(lambda a, b, _: a | b),
    Function.BIT_XOR: _integers(lambda a, b, _: a ^ b),
    Function.BIT_NOT: _integers(lambda a, _: -a - 1),
    Function.SHIFT_LEFT: _integers(lambda a, n, bits: a << n % bits),
    Function.SHIFT_RIGHT: _integers(lambda a, n, bits: a >> n % bits),
    Function.SHIFT_RIGHT_UNSIGNED: _integers(lambda a, n, bits: a % (1 << bits) >> n % bits),
    Function.BIT_COUNT: _bit_count,
    Function.CONCAT_WS: _concat_ws,
    Function.INITCAP: _like_first(texts.initcap),
    Function.LPAD: _like_first(lambda text, n, pad=" ": texts.pad(text, n, pad, left=True)),
    Function.RPAD: _like_first(lambda text, n, pad=" ": texts.pad(text, n, pad, left=False)),
    Function.REPEAT: _like_first(lambda text, times: text * times),
    Function.REPLACE: _like_first(lambda text, search, by: by.join(text.split(search)) if search else text),
    Function.TRANSLATE: _like_first(texts.translate),
    Function.SUBSTRING_INDEX: _like_first(texts.substring_index),
    Function.SPLIT_PART: _like_first(texts.split_part),
    Function.LOCATE: _strict(pa.int32(), texts.locate),
    Function.ASCII: _strict(pa.int32(), lambda text: ord(text[:1] or "\0")),
    Function.CHR: _strict(pa.string(), lambda number: "" if number < 0 else chr(number % 256)),
    Function.REGEXP_EXTRACT: _like_first(texts.regexp_extract),
    Function.REGEXP_REPLACE: _like_first(texts.regexp_replace),
    Function.HEX: _strict(pa.string(), _hex),
    Function.BIN: _strict(pa.string(), lambda value: f"{value % (1 << 64):b}"),
    Function.MD5: _digest("md5"),
    Function.SHA1: _digest("sha1"),
    Function.SHA2: _strict(pa.string(), _sha2),
    Function.CRC32: _strict(pa.int64(), zlib.crc32),
    Function.HASH: _hash(pa.int32()),
    Function.XXHASH64: _hash(pa.int64()),
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
    Function.TRIM: _like_first(lambda text, chars=" ": text.strip(chars)),
    Function.TRIM_LEFT: _like_first(lambda text, chars=" ": text.lstrip(chars)),
    Function.TRIM_RIGHT: _like_first(lambda text, chars=" ": text.rstrip(chars)),
    Function.LENGTH: _length,
    Function.OCTET_LENGTH: _strict(pa.int32(), lambda v: len(v.encode() if isinstance(v, str) else v)),
    Function.BIT_LENGTH: _strict(pa.int32(), lambda v: 8 * len(v.encode() if isinstance(v, str) else v)),
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
    Function.WEEK_OF_YEAR: _of_day(_week_of_year),
    Function.DAY_NAME: _of_day(lambda day: _DAY_NAMES[(day + 3) % 7], pa.string()),
    Function.MONTH_NAME: _of_day(lambda day: _MONTH_NAMES[civil(day)[1] - 1], pa.string()),
    Function.NEXT_DAY: _next_day,
    Function.DATE_FORMAT: _date_format,
    Function.FROM_UNIXTIME: _date_format,
    Function.TRUNC: _trunc,
    Function.DATE_TRUNC: _date_trunc,
    Function.ADD_MONTHS: _add_months,
    Function.MONTHS_BETWEEN: _months_between,
    Function.MAKE_DATE: _make_date,
    Function.UNIX_DATE: _of_day(lambda day: day),
    Function.DATE_FROM_UNIX_DATE: _strict(pa.date32(), lambda day: day),
    Function.UNIX_TIMESTAMP: _strict(pa.int64(), lambda micros: abs(micros) // 10**6 * (1 if micros > 0 else -1)),
    Function.UNIX_SECONDS: _strict(pa.int64(), lambda micros: micros // 10**6),
    Function.UNIX_MILLIS: _strict(pa.int64(), lambda micros: micros // 10**3),
    Function.UNIX_MICROS: _strict(pa.int64(), lambda micros: micros),
    Function.TIMESTAMP_SECONDS: _from_epoch(10**6),
    Function.TIMESTAMP_MILLIS: _from_epoch(10**3),
    Function.TIMESTAMP_MICROS: _from_epoch(1),
    Function.HOUR: _time_part(3_600_000_000, 24),
    Function.MINUTE: _time_part(60_000_000, 60),
    Function.SECOND: _time_part(1_000_000, 60),
    Function.DATE_ADD: _date_shift(1),
    Function.DATE_SUB: _date_shift(-1),
    Function.DATE_DIFF: _date_diff,
    Function.TIMESTAMP_ADD_MONTHS: _like_first(_timestamp_add_months),
    Function.TIMESTAMP_DIFF: _strict(pa.int64(), _timestamp_diff),
    Function.MAKE_TIMESTAMP: _make_timestamp,
    Function.SECOND_WITH_FRACTION: _second_with_fraction,
    Function.PARSE_TIMESTAMP: _parse_timestamp,
    Function.CAST_TIMESTAMP: _cast_timestamp,
    Function.FROM_UTC_TIMESTAMP: _like_first(lambda micros, zone: micros + zone_offset(micros, zone)),
    Function.TO_UTC_TIMESTAMP: _made(to_utc),
    Function.START_OF_DAY: _made(start_of_day),
    Function.TIMESTAMP_ADD: _like_first(_timestamp_add),
    Function.GET_FIELD: _get_field,
    Function.UNSCALED_VALUE: _unscaled_value,
    **lists.FUNCTIONS,
} | dict.fromkeys(arithmetic.FUNCTIONS, _arithmetic)
