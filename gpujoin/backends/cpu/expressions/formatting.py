"""Texts that are masked, quoted or checked, and numbers with commas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_EVEN, Context, Decimal

from gpujoin.backends.cpu.expressions.implementation import Run, of_python
from gpujoin.backends.cpu.expressions.vector import Vector, from_arrow, per_distinct
from gpujoin.backends.cpu.utf8 import check_utf8
from gpujoin.errors import UnsupportedValueError
from gpujoin.model.expressions import Call, Function, Literal

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
    given = [a.value for a in node.arguments[1:] if isinstance(a, Literal)]
    return from_arrow(per_distinct(text, _masker([*given, *_MASKS[len(given) :]]), text.type))


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
    """Round half to even, and write with commas; a negative number stays negative even where it rounds to zero."""
    if digits < 0:
        return None
    if digits > _MOST_DIGITS:
        raise UnsupportedValueError(f"format_number with {digits} digits is left to Spark")
    exact = Decimal(value)
    rounded = exact.copy_abs().quantize(Decimal(1).scaleb(-digits), ROUND_HALF_EVEN, _EXACT)
    return f"{'-' if exact < 0 else ''}{rounded:,f}"


FUNCTIONS: dict[Function, Run] = {
    Function.MASK: _mask,
    Function.LUHN_CHECK: of_python(_luhn_check),
    Function.QUOTE: of_python(lambda text: "'" + text.replace("'", "\\'") + "'"),
    Function.FORMAT_NUMBER: of_python(_format_number),
}
