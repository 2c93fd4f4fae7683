"""Join types and how their names are spelled."""

from __future__ import annotations

from enum import Enum
from typing import Literal

from gpujoin.errors import JoinSpecError, did_you_mean

SparkJoinName = Literal[
    "inner", "cross", "outer", "full", "fullouter", "full_outer", "left", "leftouter", "left_outer",
    "right", "rightouter", "right_outer", "semi", "leftsemi", "left_semi", "anti", "leftanti", "left_anti",
]  # fmt: skip
"""Spark's spellings of join types, for type checkers."""
JoinName = SparkJoinName | Literal["existence", "null_aware_anti", "null_aware_existence"]
"""Spellings of join types that the engine takes, for type checkers."""


class Side(Enum):
    """The left or the right input of a join, as the user wrote it."""

    LEFT = "left"
    RIGHT = "right"

    @property
    def other(self) -> Side:
        """The opposite side."""
        return Side.RIGHT if self is Side.LEFT else Side.LEFT


class JoinType(Enum):
    """Types of joins. Values are the canonical spellings."""

    INNER = "inner"
    CROSS = "cross"
    LEFT = "left"
    RIGHT = "right"
    FULL = "full"
    LEFT_SEMI = "left_semi"
    LEFT_ANTI = "left_anti"
    EXISTENCE = "existence"
    """All left rows, and a boolean column that says whether each has a match."""
    NULL_AWARE_ANTI = "null_aware_anti"
    """``NOT IN``: a left row stays unless its key equals, or by a null might equal, a right key."""
    NULL_AWARE_EXISTENCE = "null_aware_existence"
    """All left rows, and a boolean column that says whether ``NOT IN`` would drop the row."""

    @classmethod
    def parse(cls, how: str | JoinType) -> JoinType:
        """Read any of Spark's spellings, or this enum's own values.

        Case and underscores do not matter, as in Spark. Raises ``JoinSpecError`` if ``how`` is no known join type.
        """
        if isinstance(how, JoinType):
            return how
        if not isinstance(how, str):
            raise JoinSpecError(f"join type must be a string or JoinType, got {how!r} of type {type(how).__name__}")
        join_type = _SPELLINGS.get(how.strip().lower().replace("_", "").replace(" ", ""))
        if join_type is None:
            raise JoinSpecError(f"unknown join type {how!r}.{did_you_mean(how, _SUGGESTED)}")
        return join_type

    def preserves(self, side: Side) -> bool:
        """Whether every row of ``side`` appears in the output at least once."""
        if side is Side.LEFT:
            return self.flags_rows or self in (JoinType.LEFT, JoinType.FULL)
        return self in (JoinType.RIGHT, JoinType.FULL)

    @property
    def left_rows_only(self) -> bool:
        """Whether the output is made of left rows alone, each at most once."""
        return self in _LEFT_ONLY

    @property
    def null_aware(self) -> bool:
        """Whether a pair of rows also matches where the equality of their keys is unknown."""
        return self in (JoinType.NULL_AWARE_ANTI, JoinType.NULL_AWARE_EXISTENCE)

    @property
    def flags_rows(self) -> bool:
        """Whether the output is all left rows, with a boolean column that says whether each has a match."""
        return self in (JoinType.EXISTENCE, JoinType.NULL_AWARE_EXISTENCE)


_LEFT_ONLY = frozenset({
    JoinType.LEFT_SEMI, JoinType.LEFT_ANTI, JoinType.EXISTENCE, JoinType.NULL_AWARE_ANTI,
    JoinType.NULL_AWARE_EXISTENCE,
})  # fmt: skip
_SPELLINGS = {
    "inner": JoinType.INNER,
    "cross": JoinType.CROSS,
    "left": JoinType.LEFT,
    "leftouter": JoinType.LEFT,
    "right": JoinType.RIGHT,
    "rightouter": JoinType.RIGHT,
    "outer": JoinType.FULL,
    "full": JoinType.FULL,
    "fullouter": JoinType.FULL,
    "semi": JoinType.LEFT_SEMI,
    "leftsemi": JoinType.LEFT_SEMI,
    "anti": JoinType.LEFT_ANTI,
    "leftanti": JoinType.LEFT_ANTI,
    "existence": JoinType.EXISTENCE,
    "nullawareanti": JoinType.NULL_AWARE_ANTI,
    "nullawareexistence": JoinType.NULL_AWARE_EXISTENCE,
}
_SUGGESTED = (
    "inner", "cross", "left", "left_outer", "right", "right_outer", "full", "full_outer", "outer",
    "semi", "left_semi", "anti", "left_anti", "existence", "null_aware_anti",
    "null_aware_existence",
)  # fmt: skip
