"""Functions that divide texts by regular expressions into lists of texts."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from gpujoin.errors import UnsupportedValueError
from gpujoin.functions.elements import Lists
from gpujoin.functions.regex import Groups, UnsupportedPatternError, java_to_groups, only_text, reads_alike
from gpujoin.functions.signatures import INT, TEXT, takes, type_of
from gpujoin.functions.spec import FunctionSpec, Raises
from gpujoin.functions.text import has_constants
from gpujoin.functions.utf8 import check_utf8
from gpujoin.functions.vector import Vector, from_arrow
from gpujoin.model.expressions import Call, Function, Literal

_MARKS = "\x00\x01\x02\x1e\x1f"
"""Characters by which matches are marked, the first that no text has."""
_MOST_GROUPS = 9
"""RE2's replacements name groups by one digit."""


def _split(node: Call, operands: list[Vector], _length: int) -> Vector:
    regex, most = _separator(node)
    text = operands[0].values
    check_utf8(text, node)
    literal = only_text(node.arguments[1].value) if isinstance(node.arguments[1], Literal) else None
    splits = most - 1 if most > 0 else None
    if literal is None:
        parts = pc.split_pattern_regex(text, regex, max_splits=splits)
    else:
        parts = pc.split_pattern(text, literal, max_splits=splits)
    return Vector(type_of(node), parts.cast(type_of(node)), constant=operands[0].constant)


def _separator(node: Call) -> tuple[str, int]:
    """RE2's pattern of a ``split``, and how many parts there are at most.

    Raises ``UnsupportedPatternError`` if they are no constants, or mean something else in Java.
    """
    pattern, most = (*node.arguments[1:], Literal(value=-1))[:2]
    if not isinstance(pattern, Literal) or not isinstance(most, Literal):
        raise UnsupportedPatternError(f"{pattern}: no constant")
    if not isinstance(pattern.value, str) or not isinstance(most.value, int):
        raise UnsupportedPatternError(f"{pattern}: no constant")
    groups = java_to_groups(pattern.value)
    if groups.least_width == 0 or groups.at_line_end:
        raise UnsupportedPatternError(f"{pattern}: a separator that may be empty")
    return groups.unnamed, most.value


def _extract_all(node: Call, operands: list[Vector], _length: int) -> Vector:
    """Give a group of each match: all matches are marked, and the texts divided at the marks.

    An example, ``regexp_extract_all('a1 b22', '([a-z])([0-9]+)', 2)`` with the mark ``|``::

        a1 b22      |1| |22|      "" 1 " " 22 ""      [1, 22]
    """
    pattern, group = _pattern_and_group(node)
    text = operands[0].values
    check_utf8(text, node)
    mark = _unused(text, node)
    marked = pc.replace_substring_regex(text, pattern.unnamed, rf"{mark}\{group}{mark}")
    parts = Lists.from_vector(from_arrow(pc.split_pattern(marked, mark)))
    matches = parts.where(parts.positions % 2 == 1).to_vector(type_of(node))
    return Vector(type_of(node), matches.values, constant=operands[0].constant)


def _unused(text: pa.Array, node: Call) -> str:
    """A character that is in none of some texts."""
    for mark in _MARKS:
        if not pc.any(pc.match_substring(text, mark)).as_py():
            return mark
    raise UnsupportedValueError(f"{node}: texts with control characters are left to Spark")


def _pattern_and_group(node: Call) -> tuple[Groups, int]:
    """The pattern of a ``regexp_extract_all``, and the group that is wanted.

    Raises ``UnsupportedPatternError`` if they are no constants, mean something else in Java, or may match nothing.
    """
    pattern, group = (*node.arguments[1:], Literal(value=1))[:2]
    values = [operand.value if isinstance(operand, Literal) else None for operand in (pattern, group)]
    if not isinstance(values[0], str) or not isinstance(values[1], int):
        raise UnsupportedPatternError(f"{pattern}: no constant")
    groups = java_to_groups(values[0])
    if groups.least_width == 0 or groups.at_line_end or not 0 <= values[1] <= min(groups.count, _MOST_GROUPS):
        raise UnsupportedPatternError(f"{pattern}: a match that may be empty, or a group that there is not")
    return groups, values[1]


_exact_separator = reads_alike(_separator)
"""Whether ``split`` has constants that mean the same in Java and RE2, and no empty separator."""
_exact_matches = reads_alike(_pattern_and_group)
"""Whether ``regexp_extract_all`` has constants that mean the same in Java and RE2, and no empty match."""


TABLE = (
    FunctionSpec(
        Function.REGEXP_EXTRACT_ALL, ("RegExpExtractAll",),
        takes(TEXT, TEXT, INT, gives=pa.list_(pa.string()), optional=1),
        raises=Raises.ALWAYS, safe=has_constants,
        exact=_exact_matches, partial=True, numpy=_extract_all,
    ),
    FunctionSpec(
        Function.SPLIT, ("StringSplit",), takes(TEXT, TEXT, INT, gives=pa.list_(pa.string()), optional=1),
        exact=_exact_separator, numpy=_split,
    ),
)  # fmt: skip
