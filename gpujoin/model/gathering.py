"""Facts of a gather, and the ways to do it: what a backend tells, and what it is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias


class GatherMethod(Enum):
    """How fixed-width columns are gathered by a map."""

    COLUMNS = "columns"
    """One column after the other."""
    ROWS = "rows"
    """From rows that hold all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatherFacts:
    """What is known of a gather of fixed-width columns.

    Attributes
    ----------
    rows : int
        Rows gathered from.
    widths : tuple of int
        Bytes of a value of each column.
    row_bytes : int or None
        Bytes of a packed row; ``None``: the columns cannot be packed.
    entries : int
        Entries of this map and of all maps that these columns were gathered by before.
    ascending : bool
        Whether the map's rows ascend.
    packed : bool
        Whether packed rows are there already.
    l2_bytes : int
        The device's L2 cache.
    """

    rows: int
    widths: tuple[int, ...]
    row_bytes: int | None
    entries: int
    ascending: bool
    packed: bool
    l2_bytes: int


@dataclass(frozen=True, slots=True)
class GatherChoice:
    """A method, and why, in one line for people."""

    method: GatherMethod
    reason: str


ChooseGather: TypeAlias = Callable[[GatherFacts], GatherChoice]
"""Chooses a method by facts; made by the planner, asked by a backend."""
