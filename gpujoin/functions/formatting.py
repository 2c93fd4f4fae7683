"""Texts by their form and by their sound: patterns, masks, check digits, quotes, commas, soundex, distances."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Context, Decimal
from functools import lru_cache, reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from gpujoin.errors import UnsupportedValueError
from gpujoin.functions.implementation import of_python, rows_of
from gpujoin.functions.rounding import MOST_DIGITS
from gpujoin.functions.signatures import INT, TEXT, Parameter, first, keep, takes, to, type_of
from gpujoin.functions.spec import FunctionSpec, Nulls
from gpujoin.functions.utf8 import check_utf8
from gpujoin.functions.vector import Vector, bytes_layout, from_arrow, mask_and, per_distinct, to_arrow
from gpujoin.model.expressions import Call, Function, Literal
from gpujoin.model.types import is_float, is_numeric, is_text, is_whole, logical


def _is_exact_number(dtype: pa.DataType) -> bool:
    return is_whole(dtype) or bool(pat.is_decimal128(dtype))


_EXACT_NUMBER = Parameter(_is_exact_number, keep(_is_exact_number, to(pa.float64(), is_numeric, is_text)))

_WRITTEN = Parameter(
    lambda dtype: is_text(dtype) or is_whole(dtype) or is_float(dtype) or bool(pat.is_boolean(dtype)),
    lambda source, _mode: source,
)

_MASKS = ("X", "x", "n", None)
_MOST_DIGITS = 340
"""Digits after the point; Java's ``DecimalFormat`` writes no more of them."""
_EXACT = Context(prec=_MOST_DIGITS + 80)


def _ascii(text: str, function: str) -> str:
    if not text.isascii():
        raise UnsupportedValueError(f"{function} of {text[:50]!r} depends on Java's version of Unicode; left to Spark")
    return text


def _masker(characters: Sequence[str | None]) -> Callable[[str], str]:
    """Make the function that puts characters in place of capitals, small letters, digits and others; ``None`` keeps."""
    table = {}
    for code in range(128):
        char = chr(code)
        kind = 0 if char.isupper() else 1 if char.islower() else 2 if char.isdigit() else 3
        table[code] = char if characters[kind] is None else characters[kind]
    return lambda text: _ascii(text, "mask").translate(table)


def _mask(node: Call, operands: list[Vector], _length: int) -> Vector:
    text = operands[0].values
    check_utf8(text, node)
    characters = [a.value for a in node.arguments[1:] if isinstance(a, Literal)]
    return from_arrow(per_distinct(text, _masker([*characters, *_MASKS[len(characters) :]]), text.type))


def constant_masks(node: Call) -> bool:
    """Whether the characters of a mask are constants, of one character each."""
    return all(isinstance(a, Literal) and (a.value is None or _is_ascii_char(a.value)) for a in node.arguments[1:])


def _is_ascii_char(value: object) -> bool:
    return isinstance(value, str) and len(value) == 1 and value.isascii()


def _luhn_check(text: str) -> bool:
    """Whether digits end with their check digit: every other one doubled, their digits add up to a multiple of 10."""
    if not text.isascii():
        raise UnsupportedValueError(f"luhn_check of {text[:50]!r} is left to Spark")
    if not text.isdigit():
        return False
    doubled = (int(digit) * 2 for digit in text[-2::-2])
    total = sum(map(int, text[-1::-2])) + sum(value // 10 + value % 10 for value in doubled)
    return total % 10 == 0


def _format_number(value: int | Decimal, digits: int) -> str | None:
    """Round half to even, and write with commas. A negative number keeps its sign if it rounds to zero."""
    if digits < 0:
        return None
    if digits > _MOST_DIGITS:
        raise UnsupportedValueError(f"format_number with {digits} digits is left to Spark")
    exact = Decimal(value)
    rounded = exact.copy_abs().quantize(Decimal(1).scaleb(-digits), ROUND_HALF_EVEN, _EXACT)
    return f"{'-' if exact < 0 else ''}{rounded:,f}"


_SOUNDS = "01230127022455012623017202"
"""Codes of the letters; 0 is a vowel, and 7 a letter that is passed over."""
_CELLS = 1 << 20
"""Most cells of the tables of edits that are computed at once."""


def _soundex(text: str) -> str:
    """Code of an English word: its first letter, and three digits for the consonants that follow."""
    if not text or not _is_letter(text[0]):
        return text
    first = text[0].upper()
    code, last = first, _sound(first)
    for char in text[1:]:
        if not _is_letter(char):
            last = "0"
            continue
        sound = _sound(char.upper())
        if sound == "7":
            continue
        if sound not in ("0", last):
            code += sound
            if len(code) == 4:
                break
        last = sound
    return code.ljust(4, "0")


def _is_letter(char: str) -> bool:
    return char.isascii() and char.isalpha()


def _sound(letter: str) -> str:
    return _SOUNDS[ord(letter) - ord("A")]


def _levenshtein(node: Call, operands: list[Vector], length: int) -> Vector:
    """Least number of characters to insert, remove or replace; -1 if it is more than a third operand.

    The tables of many pairs of texts are computed row by row together. In a row each cell is the least of what comes
    from the row above, and of the cell before it plus one; taking off the column's number makes the latter a running
    minimum::

        above    0 1 2 3      from above    1 1 2 3      less columns    1 0 0 0      minima    1 0 0 0
    """
    rows = rows_of(operands, length)
    expanded = [operand.expand(rows) for operand in operands]
    valid = reduce(mask_and, (operand.mask() for operand in expanded))
    for operand in expanded[:2]:
        check_utf8(operand.values, node)
    left, right = (_Texts.from_array(operand.values) for operand in expanded[:2])
    distances = np.zeros(rows, np.int32)
    for part in _parts(left.sizes, right.sizes):
        distances[part] = _distances(left, right, part)
    if len(operands) > 2:
        distances = np.where(distances <= expanded[2].values, distances, -1).astype(np.int32)
    return Vector(pa.int32(), distances, valid)


class _Texts:
    """Texts as the numbers of their characters."""

    def __init__(self, characters: npt.NDArray[np.uint32], sizes: npt.NDArray[np.int64]) -> None:
        self._characters = characters
        self._starts = np.cumsum(sizes) - sizes
        self.sizes = sizes

    @classmethod
    def from_array(cls, texts: pa.Array) -> _Texts:
        texts = pc.fill_null(texts, "")
        starts, data = bytes_layout(texts)
        whole = data[starts[0] : starts[-1]].tobytes().decode().encode("utf-32-le")
        sizes = pc.utf8_length(texts).to_numpy(zero_copy_only=False).astype(np.int64)
        return cls(np.frombuffer(whole, np.uint32), sizes)

    def table(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
        """Characters of texts, a row for each text, padded with a number that is no character."""
        sizes = self.sizes[rows]
        table = np.full((len(rows), int(sizes.max(initial=0))), np.iinfo(np.uint32).max, np.uint32)
        columns = np.arange(table.shape[1])
        present = columns < sizes[:, None]
        table[present] = self._characters[(self._starts[rows][:, None] + columns)[present]]
        return table


def _parts(left: npt.NDArray[np.int64], right: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.int64]]:
    """Divide the rows, texts of like lengths together, so that the tables of each part are small."""
    longest = np.maximum(left, right)
    order = np.argsort(longest, kind="stable")
    widths = longest[order] + 1
    start = 0
    while start < len(order):
        window = widths[start : start + max(1, _CELLS // int(widths[start]))]
        fitting = int(np.searchsorted(window * np.arange(1, len(window) + 1), _CELLS, side="right"))
        yield order[start : start + max(1, fitting)]
        start += max(1, fitting)


def _distances(left: _Texts, right: _Texts, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    first, second = left.table(rows), right.table(rows)
    lengths, ends = left.sizes[rows], right.sizes[rows]
    columns = np.arange(second.shape[1] + 1, dtype=np.int32)
    above = np.tile(columns, (len(rows), 1))
    every = np.arange(len(rows))
    result = above[every, ends]
    for number in range(first.shape[1]):
        cells = np.empty_like(above)
        cells[:, 0] = number + 1
        replaced = above[:, :-1] + (first[:, number, None] != second)
        np.minimum(above[:, 1:] + 1, replaced, out=cells[:, 1:])
        above = np.minimum.accumulate(cells - columns, axis=1) + columns
        ending = lengths == number + 1
        result[ending] = above[every[ending], ends[ending]]
    return result.astype(np.int32)


def constant_limit(node: Call) -> bool:
    """Whether the third operand of ``levenshtein``, if there is one, is a constant; Spark reads a null one as 0."""
    limit = node.arguments[2] if len(node.arguments) > 2 else Literal(value=0)
    return isinstance(limit, Literal) and limit.value is not None


@dataclass(frozen=True)
class _Directive:
    """One ``%…`` of a pattern of ``java.util.Formatter``."""

    argument: int
    """Number of its operand, from 0 on."""
    flags: str
    width: int
    precision: int | None
    conversion: str

    @property
    def plain(self) -> bool:
        """Whether it writes its operand as it is."""
        return not self.flags and not self.width and self.precision is None and self.conversion in "sd"

    def takes(self, dtype: pa.DataType) -> bool:
        """Whether it is supported for values of a type."""
        flags = frozenset(self.flags)
        padded = not flags & set("-0") or (self.width > 0 and not flags >= set("-0"))
        fits = padded and len(flags) == len(self.flags) and not flags >= set("+ ")
        match self.conversion:
            case "s":
                return fits and flags <= set("-") and (is_text(dtype) or is_whole(dtype) or pat.is_boolean(dtype))
            case "f":
                return fits and is_float(dtype) and (self.precision or 0) <= MOST_DIGITS
            case "d":
                return fits and is_whole(dtype) and self.precision is None
        return fits and flags <= set("-0") and is_whole(dtype) and self.precision is None

    def write(self, value: Any, dtype: pa.DataType) -> str:
        """Write a value of a type."""
        match value:
            case None:
                return self._justified(("NULL" if self.conversion == "X" else "null")[: self.precision])
            case bool() | str():
                return self._justified(self._shortened(str(value).lower() if isinstance(value, bool) else value))
            case float() if not math.isfinite(value):
                name = "NaN" if math.isnan(value) else "Infinity"
                return self._justified(name if name == "NaN" else self._sign(value) + name)
            case float():
                if abs(value) >= _WHOLE:
                    raise UnsupportedValueError(f"format_string of {value!r} depends on Java's version; left to Spark")
                places = Decimal((0, (1,), -(6 if self.precision is None else self.precision)))
                return self._number(
                    value, format(Decimal(repr(abs(value))).quantize(places, ROUND_HALF_UP, _EXACT), "f")
                )
        if self.conversion == "s":
            return self._justified(self._shortened(str(value)))
        if self.conversion in "xX":
            digits = format(value & ((1 << dtype.bit_width) - 1), self.conversion)
            return self._justified(digits.zfill(self.width) if "0" in self.flags else digits)
        return self._number(value, str(abs(value)))

    def _sign(self, value: float) -> str:
        return "-" if math.copysign(1, value) < 0 else "+" if "+" in self.flags else " " if " " in self.flags else ""

    def _number(self, value: float, digits: str) -> str:
        sign = self._sign(value)
        if "," in self.flags:
            whole, point, fraction = digits.partition(".")
            digits = f"{int(whole):,}{point}{fraction}"
        return self._justified(sign + (digits.zfill(self.width - len(sign)) if "0" in self.flags else digits))

    def _shortened(self, text: str) -> str:
        """Cut to the precision, which Java counts in units of UTF-16."""
        if self.precision is None or text.isascii():
            return text[: self.precision]
        try:
            return text.encode("utf-16-le")[: 2 * self.precision].decode("utf-16-le")
        except UnicodeDecodeError:
            raise UnsupportedValueError(
                f"format_string of a half of a character in {text[:50]!r} is left to Spark"
            ) from None

    def _justified(self, text: str) -> str:
        """Fill with spaces to the width, which Java counts in units of UTF-16."""
        spaces = " " * (self.width - len(text) - sum(char > _MOST_UTF16 for char in text))
        return text + spaces if "-" in self.flags else spaces + text


_MOST_UTF16 = "\uffff"
"""Greatest character that is one unit of UTF-16."""
_WHOLE = 2.0**53
"""Versions of Java write other digits of integers from here on."""
_DIRECTIVE = re.compile(r"%(?:(\d+)\$)?([-#+ 0,(<]*)([1-9]\d*)?(?:\.(\d+))?([a-zA-Z%])", re.ASCII)


@lru_cache
def _directives(pattern: str) -> tuple[str | _Directive, ...] | None:
    """Split a pattern into literal texts and directives. ``None`` for a pattern with directives of other kinds."""
    pieces: list[str | _Directive] = []
    end, ordinary = 0, 0
    for percent in re.finditer("%", pattern):
        if percent.start() < end:
            continue
        match = _DIRECTIVE.match(pattern, percent.start())
        if match is None or match[5] not in "sdxXf%" or not set(match[2]) <= set("-+ 0,"):
            return None
        pieces.append(pattern[end : match.start()])
        end = match.end()
        if match[5] == "%":
            if match[0] != "%%":
                return None
            pieces.append("%")
            continue
        if match[1] is None:
            ordinary += 1
        argument = (int(match[1]) if match[1] else ordinary) - 1
        precision = int(match[4]) if match[4] else None
        pieces.append(_Directive(argument, match[2], int(match[3] or 0), precision, match[5]))
    return (*pieces, pattern[end:])


def exact_directives(node: Call) -> bool:
    """Whether the pattern of a ``format_string`` is a constant that fits the operands, and is written here."""
    pattern, *arguments = node.arguments
    pieces = _directives(pattern.value) if isinstance(pattern, Literal) and isinstance(pattern.value, str) else None
    return pieces is not None and all(
        isinstance(piece, str)
        or (0 <= piece.argument < len(arguments) and piece.takes(logical(type_of(arguments[piece.argument]))))
        for piece in pieces
    )


def _format_string(node: Call, operands: list[Vector], length: int) -> Vector:
    """Write each directive as a column of texts, and put them together."""
    pattern = node.arguments[0]
    assert isinstance(pattern, Literal)
    pieces = _directives(pattern.value)
    assert pieces is not None
    rows = rows_of(operands, length)
    columns: list[pa.Array] = [pa.nulls(rows, pa.large_string()).fill_null("")]
    for piece in pieces:
        if isinstance(piece, str):
            columns.append(pa.scalar(piece, pa.large_string()))
            continue
        values = to_arrow(operands[1 + piece.argument], operands[1 + piece.argument].dtype, rows)
        check_utf8(values, node)
        if not piece.plain:
            dtype = values.type
            texts = [piece.write(value, dtype) for value in values.to_pylist()]
            values = pa.array(texts, pa.large_string())
        columns.append(values.cast(pa.large_string()))
    nothing = pa.scalar("", pa.large_string())
    return from_arrow(pc.binary_join_element_wise(*columns, nothing, null_handling="replace", null_replacement="null"))


TABLE = (
    FunctionSpec(
        Function.FORMAT_STRING, ("FormatString",), takes(TEXT, _WRITTEN, gives=pa.string(), optional=1, repeated=True),
        nulls=Nulls.OWN_RULE,
        exact=exact_directives, partial=True, numpy=_format_string,
    ),
    FunctionSpec(Function.SOUNDEX, ("SoundEx",), takes(TEXT, gives=pa.string()), numpy=of_python(_soundex)),
    FunctionSpec(
        Function.LEVENSHTEIN, ("Levenshtein",), takes(TEXT, TEXT, INT, gives=pa.int32(), optional=1),
        exact=constant_limit, numpy=_levenshtein,
    ),
    FunctionSpec(
        Function.MASK, ("Mask",), takes(TEXT, TEXT, TEXT, TEXT, TEXT, gives=first, optional=4),
        nulls=Nulls.OWN_RULE,
        exact=constant_masks, partial=True, numpy=_mask,
    ),
    FunctionSpec(Function.LUHN_CHECK, (), takes(TEXT, gives=pa.bool_()), partial=True, numpy=of_python(_luhn_check)),
    FunctionSpec(
        Function.QUOTE, (), takes(TEXT, gives=pa.string()),
        numpy=of_python(lambda text: "'" + text.replace("'", "\\'") + "'"),
    ),
    FunctionSpec(
        Function.FORMAT_NUMBER, ("FormatNumber",), takes(_EXACT_NUMBER, INT, gives=pa.string()),
        partial=True, numpy=of_python(_format_number),
    ),
)  # fmt: skip
