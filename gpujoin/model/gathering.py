"""Facts by which the planner chooses how a device gathers columns or writes join output, and the methods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeAlias, TypeVar

Frame = TypeVar("Frame")


class GatherMethod(Enum):
    """Methods to gather fixed-width columns by a map."""

    COLUMNS = "columns"
    """Each column by itself."""
    ROWS = "rows"
    """From packed rows, which hold all columns of a row side by side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatherFacts:
    """Facts of a gather of fixed-width columns."""

    rows: int
    """Rows gathered from."""
    widths: tuple[int, ...]
    """Bytes of a value of each column."""
    row_bytes: int | None
    """Bytes of a packed row; ``None``: the columns cannot be packed."""
    entries: int
    """Entries of this map and of all earlier maps of the same columns."""
    ascending: bool
    """Whether the map's rows ascend."""
    packed: bool
    """Whether packed rows are there already."""
    l2_bytes: int
    """The device's L2 cache."""


@dataclass(frozen=True, slots=True)
class GatherChoice:
    """The chosen method, and the reason in one line."""

    method: GatherMethod
    reason: str


ChooseGather: TypeAlias = Callable[[GatherFacts], GatherChoice]
"""Chooses a method by facts. The planner makes it, a backend calls it."""


class EmissionMethod(Enum):
    """Methods to make the output of a join."""

    MAPS = "maps"
    """Gather maps first, then a gather of each side, batch by batch."""
    FUSED = "fused"
    """Columns of both sides straight from the matches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmissionFacts:
    """Facts of the output before it is made."""

    probe_rows: int
    """Rows probed."""
    rows: int
    """Rows of the output."""
    probe_widths: tuple[int, ...] | None
    """Bytes of a value of each column of the probe side; ``None``: not all have one width."""
    build: GatherFacts | None
    """Facts of gathering the build side's columns; its entries include the output's rows. ``None``: there are none."""
    build_fixed: bool = True
    """Whether all of the build side's columns have values of one width."""
    unique: bool = True
    """Whether no probe row has two matches. Where some may, build rows are packed in the order of their keys."""
    ordered: bool = False
    """Whether rows packed in that order are there already."""


@dataclass(frozen=True, slots=True)
class EmissionChoice:
    """The chosen method, and the reason in one line."""

    method: EmissionMethod
    reason: str


ChooseEmission: TypeAlias = Callable[[EmissionFacts], EmissionChoice]
"""Chooses a method by facts. The planner makes it, a backend calls it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchFacts:
    """Facts of a join by unique keys, before it is probed, whose matches' payload could be read with the keys."""

    rows: int
    """Build rows."""
    payload_bytes: int
    """Bytes of the payload's columns."""
    row_bytes: int
    """Bytes of a packed row of the payload."""
    packed: bool
    """Whether packed rows are there already, or the payload is a single column, which is its own."""
    there: bool
    """Whether the table with the payload is there already."""
    probe_rows: int
    """Probe rows so far, these included, as far as they are known."""
    padded: bool
    """Whether rows without a match are returned. Otherwise they may have to be left out in another pass."""
    free_bytes: int
    """Memory of the device that is free."""
    l2_bytes: int
    """The device's L2 cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotFacts(FetchFacts):
    """Facts of a direct-address table, whose slots could have the payload in place of the numbers of its rows."""

    slots: int
    """Keys from the smallest to the largest."""

    @property
    def table_bytes(self) -> int:
        """Size of the slots with payload."""
        return self.slots * self.row_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class HashFacts(FetchFacts):
    """Facts of a hash table, beside whose keys the payload could be packed."""

    key_bytes: int
    joint_bytes: int
    """Bytes of a packed row of payload and key."""

    @property
    def table_bytes(self) -> int:
        """Size of the packed rows."""
        return self.rows * self.joint_bytes


@dataclass(frozen=True, slots=True)
class FetchChoice:
    """Whether payload is read with the keys, and the reason in one line."""

    fetched: bool
    reason: str


ChooseFetch: TypeAlias = Callable[[SlotFacts | HashFacts], FetchChoice]
"""Chooses by facts. The planner makes it, a backend calls it."""


@dataclass(frozen=True, slots=True)
class JoinOutput(Generic[Frame]):
    """Output of a join that a backend makes without gather maps."""

    rows: int
    """Rows of the output."""
    slice: Callable[[int, int], tuple[Frame, Frame | None]]
    """Makes the columns of the probe side and of the build side, if it has any, for a number of rows from a row on.

    Raises ``DeviceMemoryError`` if they do not fit, and leaves no trace then.
    """
