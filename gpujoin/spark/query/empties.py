"""Parts of a plan that have no rows, since their conditions contradict one another, as empty relations of Spark's.

Spark folds ``where false`` and what it can compute without rows. Conditions such as ``x = 1 and x = 2`` or ``x > 5 and
x < 3`` it evaluates for every row. Here they are found, and Spark's own rule then folds what is above them::

    Join inner                              Filter x > 5 and x < 3        LocalRelation
      Filter x > 5 and x < 3     ►            Relation a             ►
        Relation a
      Relation b
"""

from __future__ import annotations

from collections.abc import Sequence

from gpujoin.model.expressions import ColumnRef, Expression
from gpujoin.model.jointype import Side
from gpujoin.plan.contradictions import is_never_true
from gpujoin.spark.catalyst.joins import JOIN, JOINS, spark_type_name
from gpujoin.spark.catalyst.nodes import Node, NotTranslatableError
from gpujoin.spark.catalyst.traits import MayFail, arrow_of, may_fail
from gpujoin.spark.catalyst.translate import ExpressionReader
from gpujoin.spark.query.plans import PlanNode, conjuncts
from gpujoin.spark.query.trees.builder import check_column

_MATCHED_ONLY = frozenset({"Inner", "Cross", "LeftSemi"})
"""Joins without rows where their condition is true for none."""


def empty_parts(root: PlanNode) -> tuple[PlanNode, ...]:
    """Find the topmost parts of a plan whose conditions no row fulfils.

    None, where Spark might raise an error for a row that would not be looked at any more, or where values depend on
    which rows share a partition.
    """
    if not root.deterministic or root.streaming:
        return ()
    return _empty_below(root) or ()


def _empty_below(node: PlanNode) -> tuple[PlanNode, ...] | None:
    """Find the topmost empty parts; ``None`` if they must stay because a part beside or below them may fail."""
    if node.name == "Sample":
        return None
    if _is_empty(node):
        return (node,) if all(map(_never_fails, node.walk())) else None
    below = []
    for child in node.children:
        parts = _empty_below(child)
        if parts is None:
            return None
        below.append(parts)
    if node.class_name in JOINS and any(below):
        full = [child for child, parts in zip(node.children, below, strict=True) if not parts]
        if not all(_never_fails(part) for child in full for part in child.walk()):
            return None
    return tuple(part for parts in below for part in parts)


def condition_of(node: PlanNode) -> Node | None:
    """Give the condition without which a node has no row."""
    if node.name == "Filter":
        return node.expression("condition")
    if node.class_name == JOIN and spark_type_name(node.fields["joinType"]) in _MATCHED_ONLY:
        return node.condition
    return None


def _is_empty(node: PlanNode) -> bool:
    condition = condition_of(node)
    parts = () if condition is None else conjuncts(condition)
    if not _may_contradict(parts):
        return False
    return all(_is_safe(part) for part in parts) and is_never_true(_translated(parts))


def _may_contradict(parts: Sequence[Node]) -> bool:
    """Whether conditions test a column twice, not counting tests for null, or one may be false by itself."""
    compared = [part for part in parts if part.name != "IsNotNull"]
    if any(part.name in _ALONE for part in compared):
        return True
    ids = [node.expr_id for part in compared for node in part.walk() if node.name == "AttributeReference"]
    return len(ids) > len(set(ids))


def _translated(parts: Sequence[Node]) -> list[Expression]:
    reader, translated = _AttributeReader(), []
    for part in parts:
        try:
            translated.append(reader(part))
        except NotTranslatableError:  # the others may contradict one another all the same
            continue
    return translated


class _AttributeReader(ExpressionReader):
    """Translates conditions over attributes, whatever they are columns of."""

    def column(self, node: Node) -> Expression:
        """Translate an attribute reference."""
        check_column(node)
        return ColumnRef(side=Side.LEFT, name=node.fields["name"], index=node.expr_id, type=arrow_of(node.data_type))


def _never_fails(node: PlanNode) -> bool:
    return node.name not in _OF_PROGRAMS and all(map(_is_safe, node.own_trees()))


def _is_safe(expression: Node) -> bool:
    if expression.name in _PASSING_ON:
        return all(map(_is_safe, expression.children))
    return may_fail(expression) is MayFail.NEVER


_ALONE = frozenset({"Or", "IsNull", "Literal"})
"""Conditions that may be false of every row whatever other conditions say."""
_PASSING_ON = frozenset({"Alias", "AggregateExpression", "Count", "Min", "Max"})
"""Expressions, and parts of aggregate expressions, that fail only where their operands do."""
_OF_PROGRAMS = frozenset({"LogicalRDD", "ExternalRDD"})
"""Nodes whose rows a program's own code makes."""
