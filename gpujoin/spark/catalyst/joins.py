"""Types of joins, as Spark's plans write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpujoin.model.jointype import JoinType
from gpujoin.spark.catalyst.nodes import CATALYST

_LOGICAL = CATALYST + "plans.logical."
JOIN = _LOGICAL + "Join"
AS_OF_JOIN = "gpujoin.GpuAsOfJoin"
"""The class of `GpuAsOfJoin.java`."""
JOINS = frozenset({JOIN, AS_OF_JOIN})

_TYPES = {
    "Inner": JoinType.INNER,
    "Cross": JoinType.CROSS,
    "LeftOuter": JoinType.LEFT,
    "RightOuter": JoinType.RIGHT,
    "FullOuter": JoinType.FULL,
    "LeftSemi": JoinType.LEFT_SEMI,
    "LeftAnti": JoinType.LEFT_ANTI,
}


NULL_AWARE = {
    JoinType.LEFT_ANTI: JoinType.NULL_AWARE_ANTI,
    JoinType.EXISTENCE: JoinType.NULL_AWARE_EXISTENCE,
}
"""Spark's joins by which ``NOT IN`` is computed, and what they are if their equalities may be unknown."""


def join_type_in(kind: Mapping[str, Any]) -> tuple[JoinType | None, int | None]:
    """Give a join's type from its JSON form, and the expression id of the column that an existence join adds.

    The type is ``None`` if it is not known here.
    """
    if "exists" in kind:
        return JoinType.EXISTENCE, int(kind["exists"])
    return _TYPES.get(spark_type_name(kind)), None


def join_type_shown(kind: Mapping[str, Any]) -> str:
    """Name a join type, given in its JSON form, as :func:`join_type_name` does."""
    return join_type_called(spark_type_name(kind))


def spark_type_name(kind: Mapping[str, Any]) -> str:
    """Name a join type, given in its JSON form, as Spark's plans write it."""
    return str(kind["object"]).rpartition(".")[2].rstrip("$") if "object" in kind else "ExistenceJoin"


def join_type_name(join: Any) -> str:
    """Name the type of any Join as gpujoin spells it, or as Spark does where gpujoin has no word for it."""
    return join_type_called(str(join.joinType().toString()))


def join_type_called(kind: str) -> str:
    """Name a join type, given as Spark's plans write it, as gpujoin spells it."""
    if kind.startswith("ExistenceJoin"):
        return JoinType.EXISTENCE.value
    return _TYPES[kind].value if kind in _TYPES else kind


def class_name(plan: Any) -> str:
    """Give the Java class of a plan node."""
    return str(plan.getClass().getName())


def covered_join_types() -> tuple[str, ...]:
    """Name the join types that are covered, as Spark does."""
    return (*_TYPES, "ExistenceJoin")
