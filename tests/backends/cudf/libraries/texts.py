"""SQL's ``LIKE`` over Python's texts, for stand-ins of libraries that have it."""

from __future__ import annotations

import functools
import re


def like(text: str, pattern: str, escape: str = "\\") -> bool:
    """Whether a text matches: ``%`` is any run of characters, ``_`` one, the escape takes the next literally."""
    return _compiled(pattern, escape).fullmatch(text) is not None


@functools.lru_cache(maxsize=256)
def _compiled(pattern: str, escape: str) -> re.Pattern[str]:
    parts = []
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            following = next(characters, "")
            assert following in ("%", "_", escape), f"{pattern!r} is left to the CPU"
            parts.append(re.escape(following))
        else:
            parts.append({"%": ".*", "_": "."}.get(character, re.escape(character)))
    return re.compile("".join(parts), re.DOTALL)
