"""Timestamps as text by a constant pattern of four-digit years and two-digit fields, such as ``yyyy-MM-dd HH:mm``.

All rows of such a pattern have one width, so that the text is a matrix of digits, a column of which is written for all
rows at once. Only years before 0 or after 9999, which Java writes with a sign, are written row by row.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from gpujoin.backends.cpu.expressions.dates import day_of_month, local, month_of, year_of, zone_offset
from gpujoin.backends.cpu.expressions.implementation import Run
from gpujoin.backends.cpu.expressions.vector import Array, Vector
from gpujoin.functions.signatures import type_of
from gpujoin.model.expressions import Call, Function, Literal

Field: TypeAlias = tuple[int, Callable[[Array, Array], Array]]
"""Digits of a field, and its values from days and microseconds of the day."""
Piece: TypeAlias = Field | str
"""A field, or what stands between fields."""

_FIELDS: dict[str, Field] = {
    "yyyy": (4, lambda days, _: year_of(days)),
    "MM": (2, lambda days, _: month_of(days)),
    "dd": (2, lambda days, _: day_of_month(days)),
    "HH": (2, lambda _, micros: micros // 3_600_000_000),
    "mm": (2, lambda _, micros: micros // 60_000_000 % 60),
    "ss": (2, lambda _, micros: micros // 1_000_000 % 60),
    **{"S" * n: (n, lambda _, micros, n=n: micros % 1_000_000 // 10 ** (6 - n)) for n in range(1, 7)},  # type: ignore[misc]
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
        if letters is not None and letters not in _FIELDS:
            return None
        parts.append(_FIELDS[letters] if letters is not None else token["quoted"] or token["between"])
        if token["quoted"] is not None and pattern.startswith("'", at):
            return None
    return tuple(parts)


def exact_pattern(node: Call) -> bool:
    """Whether the pattern is a constant that is known, and a timestamp's zone has one offset."""
    moment = type_of(node.arguments[0])
    known_zone = not pat.is_timestamp(moment) or zone_offset(moment) is not None
    return known_zone and _constant_pieces(node) is not None


def _constant_pieces(node: Call) -> tuple[Piece, ...] | None:
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
    parts = _constant_pieces(node)
    assert parts is not None
    text = _fixed_width(parts, days, ticks)
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


def _fixed_width(parts: tuple[Piece, ...], days: Array, micros: Array) -> pa.Array:
    """The text where years have four digits."""
    width = sum(len(part) if isinstance(part, str) else part[0] for part in parts)
    characters = np.empty((len(days), width), np.uint8)
    at = 0
    for part in parts:
        if isinstance(part, str):
            characters[:, at : at + len(part)] = np.frombuffer(part.encode(), np.uint8)
            at += len(part)
            continue
        digits, field = part
        number = field(days, micros).astype(np.int32)
        for place in range(at + digits - 1, at - 1, -1):
            number, last = np.divmod(number, 10)
            characters[:, place] = last + ord("0")
        at += digits
    offsets = np.arange(len(days) + 1, dtype=np.int64) * width
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(characters))]
    return pa.Array.from_buffers(pa.large_string(), len(days), buffers)


def _written(part: Piece, days: Array, micros: Array) -> str:
    """One row of a piece: years beyond four digits have a plus sign, those before 0 a minus sign."""
    if isinstance(part, str):
        return part
    digits, field = part
    number = int(field(days, micros)[0])
    sign = "-" if number < 0 else "+" if number >= 10**digits else ""
    return f"{sign}{abs(number):0{digits}d}"


FUNCTIONS: dict[Function, Run] = {Function.DATE_FORMAT: _date_format, Function.FROM_UNIXTIME: _from_unixtime}
