"""Finds what is written in a report and is no word of SQL, nor of the query."""

from __future__ import annotations

import re

_QUOTED = re.compile(r"'(?:\\.|[^'\\\n…])*['…]|(?<= )\S*/\S+|\[gpujoin_[0-9a-f]+\]")
"""Texts, of which a line may have the beginning only, paths and names of islands."""
_LEAKS = (
    r"datetime\.\w+", r"\b(?:Decimal|Timestamp|Literal|ColumnRef)\(", r"\w*#\d+\w*", r"\b[kw]\d+\b", r"\ba\d+\.\w+",
    r"\bmerged ", r"\b(?:None|True|False)\b", r"\bpythonUDF\d*", r"\b_\w+",
    r"\b(?:decimal128|large_\w+|date32|int64)\b", r"<\w+ object|<function", r"\b[A-Z][a-z]+[A-Z]\w+",
)  # fmt: skip


def leaks(report: str) -> list[str]:
    """Give what a report has of Python's, Arrow's or Catalyst's own, or of names that planning makes up."""
    text = _QUOTED.sub("''", report).replace("TiB", "").replace("GiB", "").replace("MiB", "").replace("KiB", "")
    return [found for leak in _LEAKS for found in re.findall(leak, text)]
