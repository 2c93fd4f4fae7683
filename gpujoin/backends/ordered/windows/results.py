"""What a call of a window gives for each row, in the window's order: a number, or the place of a row with the value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from gpujoin.backends.ordered.ops import Array


@dataclass(frozen=True, eq=False)
class Numbers:
    """A number for each row."""

    data: Array
    """Values; unscaled ones of decimals, of which it may be the high 64 bits."""
    valid: Array | None = None
    """False where null; ``None``: nowhere."""
    low: Array | None = None
    """Low 64 bits of decimals, as uint64; ``None``: ``data`` is the whole number."""


@dataclass(frozen=True, eq=False)
class Places:
    """A place for each row, from which the value of the call's argument is taken."""

    at: Array
    """Places; they mean nothing where not valid."""
    valid: Array
    """False where there is no such place."""


Result: TypeAlias = Numbers | Places
