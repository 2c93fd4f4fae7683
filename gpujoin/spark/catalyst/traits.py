"""Traits of Catalyst expressions: which may be moved, and which never fail."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import pyarrow as pa
from pyspark.sql import types as t

from gpujoin.errors import JoinSpecError
from gpujoin.functions import BY_CLASS, SPARK_ONLY_BY_CLASS
from gpujoin.functions.kinds import is_lossless
from gpujoin.functions.spec import Raises
from gpujoin.model.expressions import EvalMode
from gpujoin.model.jointype import Side
from gpujoin.model.reasons import Reason, ReasonKind
from gpujoin.spark.catalyst.nodes import Node, NotTranslatableError
from gpujoin.spark.compat import arrow_type

EQUALITIES = ("EqualTo", "EqualNullSafe")
"""Classes of equalities, strict and null-safe."""


class MayFail(Enum):
    """Whether evaluating an expression on some row can raise an error."""

    NEVER = "never"
    PERHAPS = "perhaps"


def across(part: Node, ids: Mapping[Side, frozenset[int]]) -> bool:
    """Tell whether a conjunct is an equality between the two sides of a join.

    ``ids`` has the attributes of each side.
    """
    if part.name not in EQUALITIES:
        return False
    first, second = (child.attribute_ids for child in part.children)
    return any(first and second and first <= ids[side] and second <= ids[side.other] for side in Side)


def obstacles(node: Node) -> tuple[Reason, ...]:
    """Find what keeps a condition from being taken apart at all: subqueries, outer references, non-determinism."""
    reasons = []
    if not node.deterministic:
        reasons.append(_unsupported(f"{node} is not deterministic"))
    for part in node.walk():
        if part.name in _SUBQUERIES or "plan" in part.fields:
            reasons.append(_unsupported(f"{part} is not computed here"))
        elif part.name == "OuterReference":
            reasons.append(_unsupported(f"{part} refers to a query around the join"))
    return tuple(reasons)


def may_fail(node: Node) -> MayFail:
    """Tell whether an expression may fail on some row; unknown ones may.

    Dates and timestamps beyond the year 290,000, where shifting one overflows, do not count.
    """
    safe = _safe_itself(node) and all(may_fail(child) is MayFail.NEVER for child in node.children)
    return MayFail.NEVER if safe else MayFail.PERHAPS


def _safe_itself(node: Node) -> bool:
    if node.name in _SAFE:
        return True
    if node.name == "Cast":
        return node.eval_mode is not EvalMode.ANSI or _lossless(node.children[0].data_type, node.data_type)
    if node.name in ("UnixTimestamp", "ToUnixTimestamp"):
        return isinstance(node.children[0].data_type, _MOMENTS)
    row = BY_CLASS.get(node.name) or SPARK_ONLY_BY_CLASS.get(node.name)
    if row is None:
        return False
    match row.raises:
        case Raises.NEVER:
            return True
        case Raises.PATTERN | Raises.VARIABLE:
            return node.children[1].name == "Literal"
        case Raises.ANSI_OR_DECIMAL if node.name in _ROUNDINGS and _is_whole_number(node.children[1]):
            return True
        case Raises.OVERFLOW if _fits(node):
            return True
    return not row.raises.may(node.eval_mode, _arrow(node.children[0].data_type))


def _is_whole_number(node: Node) -> bool:
    """Whether a node is a constant integer of zero or more."""
    value = node.fields.get("@value") if node.name == "Literal" else None
    return value is not None and int(value) >= 0


_ROUNDINGS = frozenset({"Round", "BRound", "RoundCeil", "RoundFloor"})
_MOMENTS = (t.DateType, t.TimestampType, t.TimestampNTZType)


def _fits(node: Node) -> bool:
    """Whether a sum or a difference of integers is in its type whatever the rows hold."""
    own, sums = _RANGES.get(type(node.data_type)), _sum_of(node)
    return own is not None and sums is not None and own[0] <= sums[0] and sums[1] <= own[1]


def _sum_of(node: Node) -> tuple[int, int] | None:
    """Least and greatest value of a sum or difference of integers, if their type held it."""
    parts = [_range_of(child) for child in node.children]
    if len(parts) != 2 or parts[0] is None or parts[1] is None or node.name == "Multiply":
        return None
    (least, most), (low, high) = parts[0], parts[1]
    return (least + low, most + high) if node.name == "Add" else (least - high, most - low)


def _range_of(node: Node) -> tuple[int, int] | None:
    """Least and greatest value that an integer may have."""
    own = _RANGES.get(type(node.data_type))
    if own is None:
        return None
    if node.name == "Literal" and isinstance(node.fields.get("value"), str):
        return int(node.fields["value"]), int(node.fields["value"])
    if node.name == "Cast" and _lossless(node.children[0].data_type, node.data_type):
        return _range_of(node.children[0])
    return (_sum_of(node) or own) if node.name in ("Add", "Subtract") and _fits(node) else own


_RANGES: dict[type, tuple[int, int]] = {
    t.ByteType: (-(1 << 7), (1 << 7) - 1),
    t.ShortType: (-(1 << 15), (1 << 15) - 1),
    t.IntegerType: (-(1 << 31), (1 << 31) - 1),
    t.LongType: (-(1 << 63), (1 << 63) - 1),
}


def _lossless(source: t.DataType, target: t.DataType) -> bool:
    """Whether every value has an image, so that even an ANSI cast cannot fail."""
    if source == target:
        return True
    types = _arrow(source), _arrow(target)
    return types[0] is not None and types[1] is not None and is_lossless(types[0], types[1])


def _arrow(dtype: t.DataType) -> pa.DataType | None:
    try:
        return arrow_type(dtype)
    except JoinSpecError:
        return None


def _unsupported(why: str) -> Reason:
    return Reason(ReasonKind.UNSUPPORTED, "condition", why)


_SUBQUERIES = frozenset({
    "ScalarSubquery", "Exists", "ListQuery", "InSubquery", "LateralSubquery", "DynamicPruningSubquery",
})  # fmt: skip
_SAFE = frozenset({
    "AttributeReference", "Literal", "Alias", "CaseWhen", "If", "NullIfResult", "KnownNotNull", "KnownNullable",
    "KnownFloatingPointNormalized", "NormalizeNaNAndZero", "CreateNamedStruct", "NamedLambdaVariable",
})  # fmt: skip
"""Classes that are no functions and never fail."""


def arrow_of(dtype: t.DataType) -> pa.DataType:
    """Give the Arrow form of a Spark type. Raises ``NotTranslatableError`` if there is none."""
    try:
        return arrow_type(dtype)
    except JoinSpecError as problem:
        raise NotTranslatableError(str(problem)) from None
