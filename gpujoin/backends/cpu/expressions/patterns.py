"""Timestamps as text by a constant pattern of four-digit years, two-digit fields, such as ``yyyy-MM-dd``, and names.

Digits of a pattern have one width in all rows, so that they are a matrix, a column of which is written for all rows at
once. Only years before 0 or after 9999, which Java writes with a sign, are written row by row.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from gpujoin.backends.cpu.expressions.calendar import DAYS, MONTHS, day_of_month, month_of, weekday, year_of
from gpujoin.backends.cpu.expressions.dates import local, zone_offset
from gpujoin.backends.cpu.expressions.implementation import Run
from gpujoin.backends.cpu.expressions.vector import Array, Vector
from gpujoin.functions.signatures import type_of
from gpujoin.model.expressions import Call, Function, Literal


class Field(NamedTuple):
    """A field of a pattern, of as many digits as its name has letters."""

    name: str
    values: Callable[[Array, Array], Array]
    """Its values, from days and microseconds of the day."""

    @property
    def digits(self) -> int:
        """How many digits it is written with."""
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
    """Take a pattern apart; ``None`` if it has anything else than known fields, separators and quoted words."""
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
    """The pieces of the pattern of a call, its second argument; ``None`` if it is no constant that is known."""
    pattern = node.arguments[1]
    return pieces(pattern.value) if isinstance(pattern, Literal) and isinstance(pattern.value, str) else None


def _date_format(node: Call, operands: list[Vector], _length: int) -> Vector:
    moment = operands[0]
    values, _ = local(moment.values, type_of(node.arguments[0]))
    return _written_by(node, moment, values)


def _from_unixtime(node: Call, operands: list[Vector], _length: int) -> Vector:
    seconds = operands[0]
    with np.errstate(over="ignore"):
        # Seconds too large wrap, as in Spark.
        micros = np.asarray(seconds.values.astype(np.int64) * np.int64(10**6))
    return _written_by(node, seconds, micros)


def _written_by(node: Call, moment: Vector, micros: Array) -> Vector:
    """Write local microseconds by the constant pattern of a call."""
    days, ticks = np.divmod(micros, 86_400_000_000)
    parts = constant_pieces(node)
    assert parts is not None
    text = _joined(parts, days, ticks)
    years = year_of(days)
    valid = np.ones(len(days), np.bool_) if moment.valid is None else moment.valid
    unusual = valid & ((years < 0) | (years > 9999))
    if unusual.any():
        rows = text.to_pylist()
        for row in np.flatnonzero(unusual):
            rows[row] = "".join(_written(part, days[row : row + 1], ticks[row : row + 1]) for part in parts)
        text = pa.array(rows, text.type)
    if moment.valid is not None:
        text = text.take(pa.array(np.arange(len(text)), mask=~moment.valid))
    return Vector(pa.string(), text)


def _joined(parts: tuple[Piece, ...], days: Array, micros: Array) -> pa.Array:
    """The text where years have four digits."""
    columns = []
    for worded, run in itertools.groupby(parts, lambda part: isinstance(part, Words)):
        if worded:
            columns += [_worded(part, days, micros) for part in run if isinstance(part, Words)]
        else:
            columns.append(_fixed_width(tuple(part for part in run if not isinstance(part, Words)), days, micros))
    return columns[0] if len(columns) == 1 else pc.binary_join_element_wise(*columns, pa.scalar("", pa.large_string()))


def _worded(part: Words, days: Array, micros: Array) -> pa.Array:
    return pa.array(part.words, pa.large_string()).take(pa.array(part.position(days, micros), pa.int64()))


def _fixed_width(parts: tuple[Fixed, ...], days: Array, micros: Array) -> pa.Array:
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


def _written(part: Piece, days: Array, micros: Array) -> str:
    """One row of a piece: years beyond four digits have a plus sign, those before 0 a minus sign."""
    if isinstance(part, str):
        return part
    if isinstance(part, Words):
        return part.words[int(part.position(days, micros)[0])]
    number = int(part.values(days, micros)[0])
    sign = "-" if number < 0 else "+" if number >= 10**part.digits else ""
    return f"{sign}{abs(number):0{part.digits}d}"


FUNCTIONS: dict[Function, Run] = {Function.DATE_FORMAT: _date_format, Function.FROM_UNIXTIME: _from_unixtime}
