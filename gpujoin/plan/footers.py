"""What the footers of several files tell of their columns together.

Files whose first column has the bounds (1, 5) and (0, 2) have (0, 5) together. If one of them does not tell the bounds
of a column, the bounds of the column are unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from gpujoin.model.files import Bounds, FileFooter
from gpujoin.plan.distinct import DistinctValues

T = TypeVar("T")


def merged_bounds(footers: Sequence[FileFooter]) -> tuple[Bounds | None, ...]:
    """Give the least and the greatest value of each column in several files; ``None`` where these cannot tell."""
    return _by_column((footer.bounds for footer in footers), _widest)


def different_values(footers: Sequence[FileFooter]) -> DistinctValues:
    """About how many different values each column of several files has; ``None`` where these cannot tell."""
    return _by_column((footer.different for footer in footers), max)


def _by_column(files: Iterable[tuple[T | None, ...]], merge: Callable[[Sequence[T]], T | None]) -> tuple[T | None, ...]:
    """Merge what each file tells of a column; ``None`` where a file tells nothing."""
    return tuple(
        merge([value for value in values if value is not None]) if None not in values else None
        for values in zip(*files, strict=False)
    )


def _widest(bounds: Sequence[tuple[Any, Any]]) -> Bounds | None:
    try:
        return min(low for low, _ in bounds), max(high for _, high in bounds)
    except TypeError:  # files may have moments with and without a zone
        return None
