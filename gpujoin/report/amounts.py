"""Formats sizes, rows, seconds and tables of them for people, and names files by their folder."""

from __future__ import annotations

import os.path
from collections.abc import Iterator, Sequence

PREDICTED = "~"
"""The mark of predicted numbers."""
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def show_bytes(size: float | None) -> str:
    """Format a size: ``1.5 MiB``; ``unknown`` for ``None``."""
    if size is None:
        return "unknown"
    amount, unit = float(size), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.0f} {_UNITS[unit]}" if unit == 0 else f"{amount:.1f} {_UNITS[unit]}"


def show_about(size: float | None) -> str:
    """Format an estimated size: ``about 1.5 MiB``; ``size unknown`` for ``None``."""
    return "size unknown" if size is None else f"about {show_bytes(int(size))}"


def show_rows(rows: float) -> str:
    """Format a number of rows: ``1,500,000``."""
    return f"{rows:,.0f}"


def show_seconds(seconds: float) -> str:
    """Format seconds with two digits: ``1.3``, ``0.045``; less than a millisecond is ``<0.001``."""
    if seconds < 0.001:
        return "<0.001"
    return f"{seconds:.0f}" if seconds >= 10 else f"{float(f'{seconds:.2g}'):g}"


def show_paths(paths: Sequence[str]) -> str:
    """Name files by their one path, or by the folder that holds all of them."""
    if not paths:
        return "no files"
    store, scheme, _ = paths[0].rpartition("://")
    return store + scheme + os.path.commonpath([path.rpartition("://")[2] for path in (min(paths), max(paths))])


def align(rows: Sequence[Sequence[str]], numbers: int) -> Iterator[str]:
    """Format rows of cells as lines: the first cells, which are numbers, end below one another, the others begin so.

    The last cells are as long as they are.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
    for *cells, last in rows:
        padded = [
            cell.rjust(width) if place < numbers else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        yield "  ".join([*padded, last])
