"""Derives every join type from pairs and marks.

A backend knows only which probe row matches which build row. What a join returns follows from three decisions, made
here once for each join type and build side:

- are the matching *pairs* returned;
- which of the probe rows are returned besides (the *rest*), once all their matches are known;
- which of the build rows are returned besides, once all probe rows have been seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from gpujoin.errors import JoinSpecError
from gpujoin.model.jointype import JoinType, Side


class Rest(Enum):
    """The rows of one side that are returned besides the pairs."""

    NOTHING = "nothing"
    UNMATCHED_PADDED = "unmatched, padded with nulls"
    MATCHED = "those with a match"
    UNMATCHED = "those without a match"
    FLAGGED = "all, with a flag"


@dataclass(frozen=True, slots=True)
class Derivation:
    """What a join type returns, in terms of pairs and marks."""

    pairs: bool
    """Whether matching pairs are returned."""
    probe_rest: Rest
    build_rest: Rest
    """Rows of each side that are returned besides the pairs."""


_LEFT_REST = {
    JoinType.LEFT_SEMI: Rest.MATCHED,
    JoinType.LEFT_ANTI: Rest.UNMATCHED,
    JoinType.NULL_AWARE_ANTI: Rest.UNMATCHED,
    JoinType.EXISTENCE: Rest.FLAGGED,
    JoinType.NULL_AWARE_EXISTENCE: Rest.FLAGGED,
}


def derive(join_type: JoinType, build_side: Side) -> Derivation:
    """Derive a join type from pairs and marks, given the build side.

    Raises ``JoinSpecError`` for a null-aware join with the left side built: whether a left row is returned depends on
    all right rows.
    """
    if join_type.null_aware and build_side is Side.LEFT:
        raise JoinSpecError(f"a {join_type.value} join builds its right side, not its left")
    rest = {side: Rest.UNMATCHED_PADDED if join_type.preserves(side) else Rest.NOTHING for side in Side}
    if join_type.left_rows_only:
        rest = {Side.LEFT: _LEFT_REST[join_type], Side.RIGHT: Rest.NOTHING}
    return Derivation(not join_type.left_rows_only, rest[build_side.other], rest[build_side])
