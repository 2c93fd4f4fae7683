"""Spark's text functions, one value at a time."""

from __future__ import annotations

import functools
import re

from gpujoin.errors import ExpressionEvaluationError


def like(text: str, pattern: str, escape: str = "\\") -> bool:
    """SQL ``LIKE``: ``%`` any run of characters, ``_`` one, the escape takes the next of these literally."""
    return _like_pattern(pattern, escape).fullmatch(text) is not None


@functools.lru_cache(maxsize=256)
def _like_pattern(pattern: str, escape: str) -> re.Pattern[str]:
    parts = []
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            following = next(characters, None)
            if following is None or following not in ("%", "_", escape):
                raise ExpressionEvaluationError(
                    f"the LIKE pattern {pattern!r} has an escape {escape!r} before neither '%', '_' nor itself"
                )
            parts.append(re.escape(following))
        else:
            parts.append({"%": ".*", "_": "."}.get(character, re.escape(character)))
    return re.compile("".join(parts), re.DOTALL)


def rlike(text: str, pattern: str) -> bool:
    """Whether a regular expression is found; only for patterns that Java and Python read alike."""
    return re.search(pattern, text, re.ASCII) is not None


def substring(text: str | bytes, position: int, length: int = (1 << 31) - 1) -> str | bytes:
    """SQL ``substring``: positions count from 1, negative ones from the end, 0 is 1."""
    start = position - 1 if position > 0 else len(text) + position if position < 0 else 0
    return text[max(start, 0) : max(start + length, 0)]
