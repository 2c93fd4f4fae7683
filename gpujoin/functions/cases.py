"""``upper``, ``lower`` and ``initcap``, for characters that every version of Unicode since 13 maps alike.

Spark maps case by ICU, or by the JVM where ``spark.sql.icu.caseMappings.enabled`` is off; each brings its own version
of Unicode, and Python a third. ASCII text is mapped by a kernel. Other text is mapped by Python if each of its
characters has a *settled* case, and refused with ``UnsupportedValueError`` if not::

    Straße  upper  STRASSE     ß has been mapped so since Unicode 2
    ΟΔΟΣ    lower  refused     Σ becomes ς or σ, by rules for the characters around it
    ɤ       upper  refused     a small letter that had no capital before Unicode 16
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from functools import cache

import pyarrow as pa
import pyarrow.compute as pc

from gpujoin.errors import UnsupportedValueError
from gpujoin.functions.implementation import Run
from gpujoin.functions.utf8 import check_utf8
from gpujoin.functions.vector import Vector, from_arrow, per_distinct
from gpujoin.model.expressions import Call

_NOT_LOWERED = frozenset("\u03a3\u0130")
"""Capitals without one small letter: sigma's depends on its place in a word, the dotted i's has two characters."""
_CASED = ("Lu", "Ll", "Lt")


@cache
def is_settled(char: str) -> bool:
    """Whether all versions of Unicode from 13 on map a character to the same upper, lower and title case."""
    if char.isascii():
        return True
    category = unicodedata.category(char)
    if category == "Cn":
        return False
    if char.upper() == char.lower() == char.title():
        # A letter without its counterpart may be given one.
        return category not in _CASED
    return unicodedata.ucd_3_2_0.category(char) != "Cn"


@cache
def _has_one_title(char: str) -> bool:
    """Whether a character has one title case, a single character, from both of its cases."""
    title = char.title()
    if not (len(title) == 1 and title == char.upper() == char.lower().title()):
        return False
    # The JVM gives title case to units of UTF-16.
    return ord(char) < 1 << 16 or title == char == char.lower()


def _initcap(text: str) -> str | None:
    """Words divided by single spaces; ``None`` where their first characters have several title cases."""
    words = text.split(" ")
    if not all(_has_one_title(word[0]) for word in words if word):
        return None
    return " ".join(word[:1].title() + word[1:].lower() for word in words)


def _mapping(
    map_text: Callable[[str], str | None],
    kernel: Callable[[pa.Array], pa.Array] | None = None,
    refused: frozenset[str] = _NOT_LOWERED,
) -> Run:
    """Make an implementation from a function of texts, and a kernel for texts that are ASCII, if there is one."""

    def run(node: Call, operands: list[Vector], _length: int) -> Vector:
        (vector,) = operands
        text = vector.values
        check_utf8(text, node)

        def checked(value: str) -> str:
            settled = all(map(is_settled, value)) and refused.isdisjoint(value)
            mapped = map_text(value) if settled else None
            if mapped is None:
                raise UnsupportedValueError(
                    f"{node}: the case of a character of {value[:50]!r} depends on Spark's version of Unicode"
                )
            return mapped

        if kernel is None:
            return from_arrow(per_distinct(text, checked, text.type))
        mapped = kernel(text)
        other = pc.invert(pc.string_is_ascii(text).fill_null(True))
        if not pc.any(other).as_py():
            return from_arrow(mapped)
        return from_arrow(pc.replace_with_mask(mapped, other, per_distinct(text.filter(other), checked, text.type)))

    return run


upper = _mapping(str.upper, pc.ascii_upper, refused=frozenset())
lower = _mapping(str.lower, pc.ascii_lower)
initcap = _mapping(_initcap)
