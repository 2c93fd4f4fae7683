"""Reading a Join node of an analyzed plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.reasons import Reason, ReasonKind
from gpujoin.plan.distribution import Hint
from gpujoin.spark.catalyst.nodes import CATALYST, Node, read_expression, read_expressions

_LOGICAL = CATALYST + "plans.logical."
JOIN = _LOGICAL + "Join"

_TYPES = {
    "Inner": JoinType.INNER,
    "Cross": JoinType.CROSS,
    "LeftOuter": JoinType.LEFT,
    "RightOuter": JoinType.RIGHT,
    "FullOuter": JoinType.FULL,
    "LeftSemi": JoinType.LEFT_SEMI,
    "LeftAnti": JoinType.LEFT_ANTI,
}


@dataclass(frozen=True)
class JoinNode:
    """One Join, read.

    Attributes
    ----------
    join_type : JoinType
        What it returns.
    condition : Node or None
        The whole join condition.
    left, right : py4j object
        The children, resolved hints taken off.
    left_columns, right_columns : tuple of Node
        Attributes of the children.
    output : tuple of Node
        Attributes of the join itself: their nullability is the join's; the flag of an existence join is the last.
    left_hint, right_hint : Hint or None
        Strategy hints.
    """

    join_type: JoinType
    condition: Node | None
    left: Any
    right: Any
    left_columns: tuple[Node, ...]
    right_columns: tuple[Node, ...]
    output: tuple[Node, ...]
    left_hint: Hint | None
    right_hint: Hint | None

    def child(self, side: Side) -> Any:
        """Give the plan of one side."""
        return self.left if side is Side.LEFT else self.right

    def columns(self, side: Side) -> tuple[Node, ...]:
        """Give the attributes of one side."""
        return self.left_columns if side is Side.LEFT else self.right_columns


def read_join(gateway: Any, join: Any) -> JoinNode | Reason:
    """Read a Join, or say why it is none that is known here."""
    kind, _ = join_type_of(join)
    if kind is None:
        return Reason(ReasonKind.UNSUPPORTED, "join type", f"{join.joinType().toString()} is not covered")
    bare = gateway.org.apache.spark.sql.catalyst.optimizer.EliminateResolvedHint.apply(join)
    condition = join.condition()
    return JoinNode(
        join_type=kind,
        condition=read_expression(gateway, condition.get()) if condition.isDefined() else None,
        left=bare.left(),
        right=bare.right(),
        left_columns=read_expressions(gateway, bare.left().output()),
        right_columns=read_expressions(gateway, bare.right().output()),
        output=read_expressions(gateway, join.output()),
        left_hint=_hint(bare.hint().leftHint()),
        right_hint=_hint(bare.hint().rightHint()),
    )


def join_type_of(join: Any) -> tuple[JoinType | None, int | None]:
    """Give a Join's type, and the expression id of the column that an existence join adds; ``None``: not known here."""
    kind = join.joinType()
    name = str(kind.toString())
    if name.startswith("ExistenceJoin"):
        return JoinType.EXISTENCE, int(kind.exists().exprId().id())
    return _TYPES.get(name), None


def join_type_in(kind: Mapping[str, Any]) -> tuple[JoinType | None, int | None]:
    """The same of the JSON form of a Join's type."""
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


def _hint(info: Any) -> Hint | None:
    if info.isEmpty() or info.get().strategy().isEmpty():
        return None
    name = str(info.get().strategy().get().displayName())
    return next((hint for hint in Hint if hint.value == name), None)


def covered_join_types() -> tuple[str, ...]:
    """Name the join types that are covered, as Spark does."""
    return (*_TYPES, "ExistenceJoin")
