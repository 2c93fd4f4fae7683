"""Timestamps read from text: in the forms that a cast takes, and by a constant pattern.

Texts of a fixed form, such as ``2024-02-29 12:34:56``, are read as a matrix of characters, a column of which is checked
for all rows at once. What is left of a cast is parsed once for each distinct text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gpujoin.backends.cpu.expressions import parse
from gpujoin.backends.cpu.expressions.calendar import days_from_months
from gpujoin.backends.cpu.expressions.implementation import Run, null_or_raise
from gpujoin.backends.cpu.expressions.patterns import Fixed, Words, constant_pieces, pieces
from gpujoin.backends.cpu.expressions.vector import Array, Mask, Vector, bytes_layout
from gpujoin.backends.cpu.expressions.zones import instants, known_zone, rules_in
from gpujoin.backends.cpu.utf8 import check_utf8
from gpujoin.errors import UnsupportedValueError
from gpujoin.model.expressions import Call, Cast, Function
from gpujoin.model.zones import ZoneRules

_SECOND = 10**6
_FIELDS = ("yyyy", "MM", "dd", "HH", "mm", "ss")
_LIMITS = {"MM": (1, 12), "dd": (1, 31), "HH": (0, 23), "mm": (0, 59), "ss": (0, 59)}
_FORMS = tuple(
    tuple(piece for piece in pieces(f"yyyy-MM-dd{between}HH:mm:ss{fraction}") or () if not isinstance(piece, Words))
    for between in (" ", "'T'")
    for fraction in ("", ".SSS", ".SSSSSS")
)
"""Forms of casts that are read at once."""


@dataclass(eq=False)
class _Read:
    """Times of a clock, where ``done``; those that are no such time are left out."""

    micros: Array
    done: Mask


def _read(array: pa.Array, form: tuple[Fixed, ...]) -> _Read:
    """Read the texts that have a form exactly."""
    starts, data = bytes_layout(array)
    done = np.diff(starts) == sum(len(_name(piece)) for piece in form)
    if array.null_count:
        done &= array.is_valid().to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(done)
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
    done = np.zeros(len(array), np.bool_)
    done[rows] = True
    values = np.zeros(len(array), np.int64)
    values[rows] = micros[good & exists]
    return _Read(values, done)


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
    return ((first + day - 1) * 86_400 + seconds) * _SECOND + fraction, exists


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
        read = _read(array, form)
        local[read.done] = read.micros[read.done]
        clock |= read.done
    rest = np.flatnonzero(~clock if present is None else ~clock & present)
    if len(rest) == 0:
        return Vector(dtype, to_instants(local), present)
    encoded = array.take(pa.array(rest)).dictionary_encode()
    parsed = [parse.timestamp(text, zoned=zoned) for text in encoded.dictionary.to_pylist()]
    codes = encoded.indices.to_numpy()
    micros = np.array([0 if p is None else p[0] for p in parsed], np.int64)[codes]
    shown = np.array([p is not None and p[1] for p in parsed], np.bool_)[codes]
    bad = np.zeros(len(array), np.bool_)
    bad[rest] = np.array([p is None for p in parsed], np.bool_)[codes]
    local[rest] = micros
    values = to_instants(local)
    absolute = rest[~shown]
    values = np.array(values)
    values[absolute] = local[absolute]
    return Vector(dtype, values, null_or_raise(node, bad, present, f"a text is not a valid {dtype}"))


def _cast_in_zone(node: Call, operands: list[Vector], _length: int) -> Vector:
    rules: ZoneRules = rules_in(node)
    return cast_texts(node, operands[0].values, zoned=True, to_instants=lambda shown: instants(shown, None, rules))


def _parse(node: Call, operands: list[Vector], _length: int) -> Vector:
    """Read texts by the pattern of a call."""
    array, form = operands[0].values, _fixed(node)
    check_utf8(array, node)
    assert form is not None
    assert node.type is not None
    read = _read(array, form)
    present = array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else None
    bad = ~read.done if present is None else ~read.done & present
    if bad.any() and (_has_words(form) or pc.any(pc.match_substring_regex(array.filter(bad), _signed(form))).as_py()):
        raise UnsupportedValueError("years with a sign, and letters in the other case, are left to Spark")
    return Vector(node.type, read.micros, null_or_raise(node, bad, present, "a text is no such time"))


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
    """Whether a pattern has letters that stand for themselves, of which Java ignores the case."""
    return any(isinstance(piece, str) and any(map(str.isalpha, piece)) for piece in form)


def exact_pattern(node: Call) -> bool:
    """Whether the pattern is a constant of a year and the fields after it without a gap, each once, in any order."""
    form = _fixed(node)
    names = [piece.name for piece in form or () if not isinstance(piece, str)]
    return len(names) > 0 and set(names) == set(_FIELDS[: len(names)])


FUNCTIONS: dict[Function, Run] = {Function.PARSE_TIMESTAMP: _parse, Function.CAST_TIMESTAMP: _cast_in_zone}
EXACT = {Function.PARSE_TIMESTAMP: exact_pattern, Function.CAST_TIMESTAMP: known_zone}
