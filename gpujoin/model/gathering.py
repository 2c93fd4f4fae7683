"""Facts of a gather, or of output made at once, and the ways to do it: what a backend tells, and what it is told."""

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


class EmissionMethod(Enum):
    """How the output of a join whose probe rows have at most one match each is made."""

    MAPS = "maps"
    """Maps of both sides first, then a gather by each, a batch at a time."""
    FUSED = "fused"
    """Columns of both sides in one pass over what was found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmissionFacts:
    """What is known of output before it is made.

    Attributes
    ----------
    probe_rows : int
        Rows probed.
    rows : int
        Rows of the output.
    probe_widths : tuple of int or None
        Bytes of a value of each column of the probe side; ``None``: not all have one width.
    build : GatherFacts or None
        Of the build side's columns, in no order, the output's rows among their entries; ``None``: none is wanted.
    build_fixed : bool
        Whether all of the build side's columns have values of one width.
    """

    probe_rows: int
    rows: int
    probe_widths: tuple[int, ...] | None
    build: GatherFacts | None
    build_fixed: bool = True


@dataclass(frozen=True, slots=True)
class EmissionChoice:
    """A method, and why, in one line for people."""

    method: EmissionMethod
    reason: str


ChooseEmission: TypeAlias = Callable[[EmissionFacts], EmissionChoice]
"""Chooses a method by facts; made by the planner, asked by a backend."""
