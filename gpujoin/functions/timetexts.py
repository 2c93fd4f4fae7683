"""Timestamps as text by a pattern, and text as timestamps."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from gpujoin.errors import UnsupportedValueError
from gpujoin.functions import parse
from gpujoin.functions.calendar import DAYS, MONTHS, day_of_month, days_from_months, month_of, weekday, year_of
from gpujoin.functions.dates import UTC, WHOLE, local, zone_offset
from gpujoin.functions.implementation import null_or_raise
from gpujoin.functions.signatures import INSTANT, TEXT, Parameter, takes, to, type_of
from gpujoin.functions.spec import FunctionSpec, Raises
from gpujoin.functions.utf8 import check_utf8
from gpujoin.functions.vector import Array, Mask, Vector, bytes_layout, is_present
from gpujoin.functions.zones import has_rules, instants, rules_in
from gpujoin.model.expressions import Call, Cast, Function, Literal
from gpujoin.model.types import MICROS, is_text
from gpujoin.model.zones import ZoneRules

_TEXT_ONLY = Parameter(is_text, to(pa.string(), is_text))


def _writes_constantly(node: Call) -> bool:
    """Whether the pattern is a constant; evaluators take known ones alone."""
    return isinstance(node.arguments[1], Literal)


class Field(NamedTuple):
    """A field of a pattern, of as many digits as its name has letters."""

    name: str
    values: Callable[[Array, Array], Array]
    """Its values, from days and microseconds of the day."""

    @property
    def digits(self) -> int:
        """Number of digits."""
        return len(self.name)


class Words(NamedTuple):
    """A field that is written as one of some words: names of months and days, numbers without leading zeros."""

    name: str
    position: Callable[[Array, Array], Array]
    """Which word, from days and microseconds of the day."""
    words: tuple[str, ...]


Fixed: TypeAlias = Field | str
"""What has as many characters in every row."""
Piece: TypeAlias = Fixed | Words
"""A field, or what stands between fields."""

_VALUES: dict[str, Callable[[Array, Array], Array]] = {
    "yyyy": lambda days, _: year_of(days),
    "MM": lambda days, _: month_of(days),
    "dd": lambda days, _: day_of_month(days),
    "HH": lambda _, micros: micros // 3_600_000_000,
    "mm": lambda _, micros: micros // 60_000_000 % 60,
    "ss": lambda _, micros: micros // 1_000_000 % 60,
    **{"S" * n: lambda _, micros, n=n: micros % 1_000_000 // 10 ** (6 - n) for n in range(1, 7)},  # type: ignore[misc]
}
_HALF_HOUR = tuple(map(str, (12, *range(1, 12))))
_WORDS: dict[str, tuple[Callable[[Array, Array], Array], tuple[str, ...]]] = {
    "M": (lambda days, _: month_of(days) - 1, tuple(map(str, range(1, 13)))),
    "MMM": (lambda days, _: month_of(days) - 1, tuple(name[:3] for name in MONTHS)),
    "MMMM": (lambda days, _: month_of(days) - 1, MONTHS),
    "d": (lambda days, _: day_of_month(days) - 1, tuple(map(str, range(1, 32)))),
    **dict.fromkeys(("E", "EE", "EEE"), (lambda days, _: weekday(days), tuple(name[:3] for name in DAYS))),
    "EEEE": (lambda days, _: weekday(days), DAYS),
    "H": (lambda _, micros: micros // 3_600_000_000, tuple(map(str, range(24)))),
    "h": (lambda _, micros: micros // 3_600_000_000 % 12, _HALF_HOUR),
    "hh": (lambda _, micros: micros // 3_600_000_000 % 12, tuple(word.zfill(2) for word in _HALF_HOUR)),
    "m": (lambda _, micros: micros // 60_000_000 % 60, tuple(map(str, range(60)))),
    "s": (lambda _, micros: micros // 1_000_000 % 60, tuple(map(str, range(60)))),
    "a": (lambda _, micros: micros // 43_200_000_000, ("AM", "PM")),
}
_TOKEN = re.compile(r"(?P<letters>([A-Za-z])\2*)|'(?P<quoted>[A-Za-z ]+)'|(?P<between>[-/.:,;_ ])")


def pieces(pattern: str) -> tuple[Piece, ...] | None:
    """Split a pattern into known fields, separators and quoted words; ``None`` if it has anything else."""
    parts: list[Piece] = []
    at = 0
    while at < len(pattern):
        token = _TOKEN.match(pattern, at)
        if token is None or pattern.startswith("''", at):
            return None
        at = token.end()
        letters = token["letters"]
        if letters is None:
            parts.append(token["quoted"] or token["between"])
        elif letters in _VALUES:
            parts.append(Field(letters, _VALUES[letters]))
        elif letters in _WORDS:
            parts.append(Words(letters, *_WORDS[letters]))
        else:
            return None
        if token["quoted"] is not None and pattern.startswith("'", at):
            return None
    return tuple(parts)


def exact_pattern(node: Call) -> bool:
    """Whether the pattern is a constant that is known, and a timestamp's zone has one offset."""
    moment = type_of(node.arguments[0])
    known_zone = not pat.is_timestamp(moment) or zone_offset(moment) is not None
    return known_zone and constant_pieces(node) is not None


def constant_pieces(node: Call) -> tuple[Piece, ...] | None:
    """Pieces of the pattern of a call, its second argument; ``None`` unless that is a known constant."""
    pattern = node.arguments[1]
    return pieces(pattern.value) if isinstance(pattern, Literal) and isinstance(pattern.value, str) else None


def _date_format(node: Call, operands: list[Vector], _length: int) -> Vector:
    moment = operands[0]
    values, _ = local(moment.values, type_of(node.arguments[0]))
    return _write(node, moment, values)


def _from_unixtime(node: Call, operands: list[Vector], _length: int) -> Vector:
    seconds = operands[0]
    with np.errstate(over="ignore"):
        # Seconds too large wrap, as in Spark.
        micros = np.asarray(seconds.values.astype(np.int64) * np.int64(10**6))
    return _write(node, seconds, micros)


def _write(node: Call, moment: Vector, micros: Array) -> Vector:
    """Write local microseconds by the constant pattern of a call."""
    days, ticks = np.divmod(micros, 86_400_000_000)
    parts = constant_pieces(node)
    assert parts is not None
    text = _write_parts(parts, days, ticks)
    years = year_of(days)
    valid = is_present(moment.valid, len(days))
    unusual = valid & ((years < 0) | (years > 9999))
    if unusual.any():
        rows = text.to_pylist()
        for row in np.flatnonzero(unusual):
            rows[row] = "".join(_write_row(part, days[row : row + 1], ticks[row : row + 1]) for part in parts)
        text = pa.array(rows, text.type)
    if moment.valid is not None:
        text = text.take(pa.array(np.arange(len(text)), mask=~moment.valid))
    return Vector(pa.string(), text)


def _write_parts(parts: tuple[Piece, ...], days: Array, micros: Array) -> pa.Array:
    """The text where years have four digits."""
    columns = []
    for worded, run in itertools.groupby(parts, lambda part: isinstance(part, Words)):
        if worded:
            columns += [_write_words(part, days, micros) for part in run if isinstance(part, Words)]
        else:
            columns.append(_write_fixed_width(tuple(part for part in run if not isinstance(part, Words)), days, micros))
    return columns[0] if len(columns) == 1 else pc.binary_join_element_wise(*columns, pa.scalar("", pa.large_string()))


def _write_words(part: Words, days: Array, micros: Array) -> pa.Array:
    return pa.array(part.words, pa.large_string()).take(pa.array(part.position(days, micros), pa.int64()))


def _write_fixed_width(parts: tuple[Fixed, ...], days: Array, micros: Array) -> pa.Array:
    """The text of pieces of a fixed width."""
    width = sum(len(part) if isinstance(part, str) else part.digits for part in parts)
    characters = np.empty((len(days), width), np.uint8)
    at = 0
    for part in parts:
        if isinstance(part, str):
            characters[:, at : at + len(part)] = np.frombuffer(part.encode(), np.uint8)
            at += len(part)
            continue
        number = part.values(days, micros).astype(np.int32)
        for place in range(at + part.digits - 1, at - 1, -1):
            number, last = np.divmod(number, 10)
            characters[:, place] = last + ord("0")
        at += part.digits
    offsets = np.arange(len(days) + 1, dtype=np.int64) * width
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(characters))]
    return pa.Array.from_buffers(pa.large_string(), len(days), buffers)


def _write_row(part: Piece, days: Array, micros: Array) -> str:
    """One row of a piece: years beyond four digits have a plus sign, those before 0 a minus sign."""
    if isinstance(part, str):
        return part
    if isinstance(part, Words):
        return part.words[int(part.position(days, micros)[0])]
    number = int(part.values(days, micros)[0])
    sign = "-" if number < 0 else "+" if number >= 10**part.digits else ""
    return f"{sign}{abs(number):0{part.digits}d}"


_FIELDS = ("yyyy", "MM", "dd", "HH", "mm", "ss")
_LIMITS = {"MM": (1, 12), "dd": (1, 31), "HH": (0, 23), "mm": (0, 59), "ss": (0, 59)}
_FORMS = tuple(
    tuple(piece for piece in pieces(f"yyyy-MM-dd{between}HH:mm:ss{fraction}") or () if not isinstance(piece, Words))
    for between in (" ", "'T'")
    for fraction in ("", ".SSS", ".SSSSSS")
)
"""Forms of casts that are read at once."""


@dataclass(eq=False)
class _Times:
    """Times of a clock, as microseconds, and the mask of the texts that were read as such."""

    micros: Array
    is_read: Mask


def _read(array: pa.Array, form: tuple[Fixed, ...]) -> _Times:
    """Read the texts that have a form exactly."""
    starts, data = bytes_layout(array)
    is_read = np.diff(starts) == sum(len(_name(piece)) for piece in form)
    if array.null_count:
        is_read &= array.is_valid().to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(is_read)
    fields: dict[str, npt.NDArray[np.int64]] = {}
    good = np.ones(len(rows), np.bool_)
    at = starts[rows]
    for piece in form:
        if isinstance(piece, str):
            for place, character in enumerate(piece.encode()):
                good &= data[at + place] == character
        else:
            number = np.zeros(len(rows), np.int64)
            for place in range(piece.digits):
                digit = data[at + place] - np.uint8(ord("0"))
                good &= digit <= 9
                number = number * 10 + digit
            fields[piece.name] = number
        at = at + len(_name(piece))
    micros, exists = _micros(fields, len(rows))
    rows = rows[good & exists]
    is_read = np.zeros(len(array), np.bool_)
    is_read[rows] = True
    values = np.zeros(len(array), np.int64)
    values[rows] = micros[good & exists]
    return _Times(values, is_read)


def _micros(fields: dict[str, npt.NDArray[np.int64]], length: int) -> tuple[Array, Mask]:
    """Microseconds of the fields, and whether there is such a time."""
    zeros = np.zeros(length, np.int64)
    exists = np.ones(length, np.bool_)
    for name, (low, high) in _LIMITS.items():
        if name in fields:
            exists &= (fields[name] >= low) & (fields[name] <= high)
    months = (fields["yyyy"] - 1970) * 12 + np.where(exists, fields.get("MM", zeros + 1), 1) - 1
    first = days_from_months(months)
    day = fields.get("dd", zeros + 1)
    exists &= day <= days_from_months(months + 1) - first
    seconds = (fields.get("HH", zeros) * 60 + fields.get("mm", zeros)) * 60 + fields.get("ss", zeros)
    fraction = sum((fields[name] * 10 ** (6 - len(name)) for name in fields if name.startswith("S")), start=zeros)
    return ((first + day - 1) * 86_400 + seconds) * MICROS + fraction, exists


def cast_texts(node: Call | Cast, array: pa.Array, *, zoned: bool, to_instants: Callable[[Array], Array]) -> Vector:
    """Make timestamps of texts as a cast does; ``to_instants`` makes them of a clock's times.

    Raises ``UnsupportedValueError`` over texts with a time alone, or the name of a zone: Spark knows their meaning.
    """
    check_utf8(array, node)
    dtype = node.type
    assert dtype is not None
    present = array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else None
    local, clock = np.zeros(len(array), np.int64), np.zeros(len(array), np.bool_)
    for form in _FORMS:
        times = _read(array, form)
        local[times.is_read] = times.micros[times.is_read]
        clock |= times.is_read
    rest = np.flatnonzero(~clock if present is None else ~clock & present)
    if len(rest) == 0:
        return Vector(dtype, to_instants(local), present)
    encoded = array.take(pa.array(rest)).dictionary_encode()
    parsed = [parse.timestamp(text, zoned=zoned) for text in encoded.dictionary.to_pylist()]
    codes = encoded.indices.to_numpy()
    micros = np.array([0 if p is None else p[0] for p in parsed], np.int64)[codes]
    is_local = np.array([p is not None and p[1] for p in parsed], np.bool_)[codes]
    bad = np.zeros(len(array), np.bool_)
    bad[rest] = np.array([p is None for p in parsed], np.bool_)[codes]
    local[rest] = micros
    values = to_instants(local)
    absolute = rest[~is_local]
    values = np.array(values)
    values[absolute] = local[absolute]
    return Vector(dtype, values, null_or_raise(node, bad, present, f"a text is not a valid {dtype}"))


def _cast_in_zone(node: Call, operands: list[Vector], _length: int) -> Vector:
    rules: ZoneRules = rules_in(node)
    return cast_texts(node, operands[0].values, zoned=True, to_instants=lambda local: instants(local, None, rules))


def _parse(node: Call, operands: list[Vector], _length: int) -> Vector:
    """Read texts by the pattern of a call."""
    array, form = operands[0].values, _fixed(node)
    check_utf8(array, node)
    assert form is not None
    times = _read(array, form)
    present = array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else None
    bad = ~times.is_read if present is None else ~times.is_read & present
    if bad.any() and (_has_words(form) or pc.any(pc.match_substring_regex(array.filter(bad), _signed(form))).as_py()):
        raise UnsupportedValueError("years with a sign, and letters in the other case, are left to Spark")
    return Vector(type_of(node), times.micros, null_or_raise(node, bad, present, "a text is no such time"))


def _fixed(node: Call) -> tuple[Fixed, ...] | None:
    """The pieces of the constant pattern of a call, if they have one width."""
    form = constant_pieces(node) or ()
    fixed = tuple(piece for piece in form if not isinstance(piece, Words))
    return fixed if len(fixed) == len(form) else None


def _name(piece: Fixed) -> str:
    return piece if isinstance(piece, str) else piece.name


def _signed(form: tuple[Fixed, ...]) -> str:
    """Regular expression of the texts whose year has a sign."""
    parts = []
    for piece in form:
        if isinstance(piece, str):
            parts.append(re.escape(piece))
        else:
            parts.append("[+-][0-9]{4,}" if piece.name == "yyyy" else f"[0-9]{{{piece.digits}}}")
    return f"^{''.join(parts)}$"


def _has_words(form: tuple[Fixed, ...]) -> bool:
    """Whether a pattern has letters that stand for themselves: Java ignores their case."""
    return any(isinstance(piece, str) and any(map(str.isalpha, piece)) for piece in form)


def exact_input_pattern(node: Call) -> bool:
    """Whether the pattern is a constant of a year and the fields after it without a gap, each once, in any order."""
    form = _fixed(node)
    names = [piece.name for piece in form or () if not isinstance(piece, str)]
    return len(names) > 0 and set(names) == set(_FIELDS[: len(names)])


TABLE = (
    FunctionSpec(
        Function.DATE_FORMAT, ("DateFormatClass",), takes(INSTANT, TEXT, gives=pa.string()),
        raises=Raises.VARIABLE, safe=_writes_constantly, zoned=True,
        exact=exact_pattern, numpy=_date_format,
    ),
    FunctionSpec(
        Function.FROM_UNIXTIME, ("FromUnixTime",), takes(WHOLE, TEXT, gives=pa.string()),
        raises=Raises.VARIABLE, safe=_writes_constantly,
        exact=exact_pattern, numpy=_from_unixtime,
    ),
    FunctionSpec(
        Function.PARSE_TIMESTAMP, ("GetTimestamp",), takes(_TEXT_ONLY, TEXT, gives=UTC),
        raises=Raises.ANSI,
        exact=exact_input_pattern, partial=True, numpy=_parse,
    ),
    FunctionSpec(
        Function.CAST_TIMESTAMP, (), takes(_TEXT_ONLY, TEXT, gives=UTC),
        raises=Raises.ANSI,
        exact=has_rules, partial=True, numpy=_cast_in_zone,
    ),
)  # fmt: skip
