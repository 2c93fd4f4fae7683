"""Taking a join condition apart: equality keys, filters of one side, and the residual condition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from gpujoin.errors import JoinSpecError, KeyTypeError
from gpujoin.model.expressions import Call, Expression, Function
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.reasons import Reason, ReasonKind
from gpujoin.model.spec import KeyPair, NullEquality
from gpujoin.plan.key_types import key_type
from gpujoin.spark.catalyst.columns import SideColumns, arrow_type
from gpujoin.spark.catalyst.joins import JoinNode
from gpujoin.spark.catalyst.nodes import Expanded, Node, expand
from gpujoin.spark.catalyst.traits import EQUALITIES, obstacles
from gpujoin.spark.catalyst.translate import NotTranslatableError, Translator

_FILTERED = {
    JoinType.INNER: (Side.LEFT, Side.RIGHT),
    JoinType.CROSS: (Side.LEFT, Side.RIGHT),
    JoinType.LEFT: (Side.RIGHT,),
    JoinType.RIGHT: (Side.LEFT,),
    JoinType.FULL: (),
    JoinType.LEFT_SEMI: (Side.LEFT, Side.RIGHT),
    JoinType.LEFT_ANTI: (Side.RIGHT,),
    JoinType.EXISTENCE: (Side.RIGHT,),
}
"""Sides on which a condition that reads one side alone may be applied before the join."""

NULL_AWARE = {
    JoinType.LEFT_ANTI: JoinType.NULL_AWARE_ANTI,
    JoinType.EXISTENCE: JoinType.NULL_AWARE_EXISTENCE,
}
"""Spark's joins by which ``NOT IN`` is computed, and what they are if their equalities may be unknown."""


@dataclass
class SplitCondition:
    """A join condition, taken apart.

    Attributes
    ----------
    columns : dict from Side to SideColumns
        Columns that keys and condition read.
    keys : list of KeyPair
        Equalities between the sides.
    key_nodes : list of (Node, Node)
        The left and right expression of each key.
    filters : dict from Side to list of Node
        What each side is filtered by before the join.
    residual : Expression or None
        The rest.
    null_aware : bool
        Whether an anti or existence join is ``NOT IN`` over the keys: a pair also matches where an equality is unknown.
    shown_keys, shown_residual : list of str
        The same for people, with the user's names.
    reasons : list of Reason
        Why parts could not be understood; if there are any, the rest is incomplete.
    """

    columns: dict[Side, SideColumns]
    keys: list[KeyPair] = field(default_factory=list)
    key_nodes: list[tuple[Node, Node]] = field(default_factory=list)
    filters: dict[Side, list[Node]] = field(default_factory=lambda: {side: [] for side in Side})
    residual: Expression | None = None
    null_aware: bool = False
    shown_keys: list[str] = field(default_factory=list)
    shown_residual: list[str] = field(default_factory=list)
    reasons: list[Reason] = field(default_factory=list)


def split_condition(join: JoinNode, columns: dict[Side, SideColumns], gateway: Any) -> SplitCondition:
    """Take a join's condition apart, as Spark's own planning does.

    Parameters
    ----------
    join : JoinNode
        The join.
    columns : dict from Side to SideColumns
        Columns to read from; more are added as they are needed.
    gateway : py4j JVM view
        ``spark._jvm``.
    """
    result = SplitCondition(columns)
    if join.condition is None:
        return result
    result.reasons += obstacles(join.condition)
    if result.reasons:
        return result
    ids = {side: frozenset(c.expr_id for c in join.columns(side)) for side in Side}
    splitter = _Splitter(join.join_type, Translator(ids, columns, gateway), result)
    parts = list(_conjuncts(expand(join.condition, gateway)))
    for part in splitter.not_in(parts) or parts:
        splitter.take(part)
    return result


def split_keys(
    join: JoinNode, parts: Sequence[Node], columns: dict[Side, SideColumns], gateway: Any
) -> SplitCondition:
    """Take equalities between the sides as keys.

    Parameters
    ----------
    join, columns, gateway
        See :func:`split_condition`.
    parts : sequence of Node
        Equalities, each with one operand of either side.
    """
    result = SplitCondition(columns)
    ids = {side: frozenset(c.expr_id for c in join.columns(side)) for side in Side}
    splitter = _Splitter(join.join_type, Translator(ids, columns, gateway), result)
    for part in parts:
        result.reasons += obstacles(part)
        if not result.reasons:
            splitter.take(expand(part, gateway))
    return result


class _Splitter:
    def __init__(self, join_type: JoinType, translate: Translator, result: SplitCondition) -> None:
        self._join_type = join_type
        self._translate = translate
        self._result = result

    def not_in(self, parts: list[Expanded]) -> list[Expanded] | None:
        """The conjuncts of a ``NOT IN``, its equalities without ``OR … IS NULL``; ``None`` if it is none.

        An equality of columns without nulls, of which the optimizer leaves nothing else, is one of the ``NOT IN`` in
        any case; one of columns that hold nulls may be a correlation, and is no match where it is unknown.
        """
        if self._join_type not in NULL_AWARE:
            return None
        equalities = [_null_aware_equality(part) for part in parts]
        if not any(e is not None and self._across(e) for e in equalities):
            return None
        found = [
            e if e is not None and self._across(e) else p for e, p in zip(equalities, parts, strict=True)
        ]
        plain = [p for p, e in zip(parts, equalities, strict=True) if e is None and p.name in EQUALITIES]
        if any(self._across(p) and not _certain(p) for p in plain):
            return None
        self._result.null_aware = True
        return found

    def _across(self, part: Expanded) -> bool:
        sides = [self._translate.side_of(child) for child in part.children]
        return None not in sides and sides[0] is not sides[1]

    def take(self, part: Expanded) -> None:
        """Put one conjunct where it belongs."""
        if part.name == "Literal" and part.fields.get("value") == "true":
            return
        side = self._translate.side_of(part)
        if side is not None and side in _FILTERED[self._join_type]:
            self._result.filters[side].append(part.source)
        elif not self._take_key(part):
            self._take_residual(part)

    def _take_key(self, part: Expanded) -> bool:
        if part.name not in EQUALITIES or not self._across(part):
            return False
        first = self._translate.side_of(part.children[0])
        one, two = part.children if first is Side.LEFT else reversed(part.children)
        refusal = _key_refusal(one.source, two.source)
        if refusal is not None:
            self._result.reasons.append(
                Reason(ReasonKind.UNSUPPORTED, f"key {len(self._result.keys) + 1}", f"{part}: {refusal}")
            )
            return True
        nulls = NullEquality.EQUAL if part.name == "EqualNullSafe" else NullEquality.UNEQUAL
        columns = self._result.columns
        pair = KeyPair(
            columns[Side.LEFT].index_of(one.source), columns[Side.RIGHT].index_of(two.source), nulls
        )
        if pair not in self._result.keys:
            self._result.keys.append(pair)
            self._result.key_nodes.append((one.source, two.source))
            self._result.shown_keys.append(_shown_key(part, one, two))
        return True

    def _take_residual(self, part: Expanded) -> None:
        try:
            translated = self._translate(part)
        except NotTranslatableError as problem:
            self._result.reasons.append(Reason(ReasonKind.UNSUPPORTED, "condition", str(problem)))
            return
        before = self._result.residual
        self._result.residual = (
            translated
            if before is None
            else Call(function=Function.AND, arguments=(before, translated), type=pa.bool_())
        )
        self._result.shown_residual.append(_bare(str(part)))


def _null_aware_equality(part: Expanded) -> Expanded | None:
    """The equality ``e`` of ``e OR e IS NULL``."""
    if part.name != "Or":
        return None
    equal, unknown = part.children
    if equal.name == "IsNull":
        equal, unknown = unknown, equal
    if equal.name != "EqualTo" or unknown.name != "IsNull" or unknown.children[0].name != "EqualTo":
        return None
    return equal if equal.source.jvm.semanticEquals(unknown.children[0].source.jvm) else None


def _certain(part: Expanded) -> bool:
    """Whether an equality is never unknown."""
    return not part.source.nullable


def _conjuncts(node: Expanded) -> Iterator[Expanded]:
    if node.name == "And":
        for child in node.children:
            yield from _conjuncts(child)
    else:
        yield node


def _key_refusal(one: Node, two: Node) -> str | None:
    for node in (one, two):
        if "collate" in node.type_name.lower():
            return f"its type is {node.type_name}; only strings compared by bytes are covered"
        if any(word in node.type_name for word in ("interval", "variant", "geometry", "geography", "time(")):
            return f"keys of type {node.type_name} are not covered"
    try:
        key_type(arrow_type(one.data_type), arrow_type(two.data_type))
    except (KeyTypeError, JoinSpecError) as problem:
        return str(problem)
    return None


def _shown_key(part: Expanded, one: Expanded, two: Expanded) -> str:
    if one.name == two.name == "AttributeReference" and str(one) == str(two):
        sign = "<=>" if part.name == "EqualNullSafe" else "="
        return f"left.{one} {sign} right.{two}"
    return _bare(str(part))


def _bare(text: str) -> str:
    """Without the outermost parentheses."""
    return text[1:-1] if text.startswith("(") and text.endswith(")") else text
