"""Which conjuncts of a join's condition are keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import pyarrow as pa

from gpujoin.errors import KeyTypeError
from gpujoin.functions.kinds import has_lists, is_alike
from gpujoin.model.expressions import Call, Function
from gpujoin.model.jointype import Side
from gpujoin.model.relations import Filter, Output, Project
from gpujoin.model.spec import NullEquality
from gpujoin.plan.key_types import key_type
from gpujoin.plan.nested_groups import as_bytes
from gpujoin.plan.ranges import all_of
from gpujoin.report.parts import expression_name
from gpujoin.spark.catalyst.nodes import Node, NotTranslatableError
from gpujoin.spark.catalyst.traits import EQUALITIES, arrow_of
from gpujoin.spark.query.trees.builder import Fragment, TreeBuilder, passed_on

_NORMALIZED = frozenset({"KnownFloatingPointNormalized", "NormalizeNaNAndZero"})
_NO_KEYS = ("interval", "variant", "geometry", "geography", "time(")


Key: TypeAlias = tuple[Node, Node, NullEquality]
"""Left expression, right expression, and whether null equals null."""


def key_of(part: Node, sides: Mapping[Side, Fragment]) -> Key | None:
    """Read an equality between the sides; ``None`` if it is none."""
    if part.name not in EQUALITIES:
        return None
    nulls = NullEquality.EQUAL if part.name == "EqualNullSafe" else NullEquality.UNEQUAL
    first, second = (bare_key(child) for child in part.children)
    left, right = (sides[side].positions.keys() for side in Side)
    if first.attribute_ids and second.attribute_ids:
        if first.attribute_ids <= left and second.attribute_ids <= right:
            return first, second, nulls
        if first.attribute_ids <= right and second.attribute_ids <= left:
            return second, first, nulls
    return None


def check_keys(left: Node, right: Node, *, of_lists: bool = False) -> None:
    """Refuse keys that are not compared as in Spark; ``of_lists``: keys with lists are compared as bytes."""
    for node in (left, right):
        name = node.type_name.lower()
        if "collate" in name:
            raise NotTranslatableError(
                f"the type of {node} is {name}; only strings that are compared by bytes are joined here"
            )
        if any(word in name for word in _NO_KEYS):
            raise NotTranslatableError(f"{node} is of type {name}, by which nothing is joined here")
    try:
        types = arrow_of(left.data_type), arrow_of(right.data_type)
        if not (of_lists and has_lists(types[0]) and is_alike(*types)):
            key_type(*types)
    except KeyTypeError as problem:
        raise NotTranslatableError(f"{left} = {right}: {problem}") from None


def has_not_in_form(part: Node) -> bool:
    """Tell whether a conjunct has the form ``a = b OR (c = d) IS NULL``, as one of ``NOT IN`` has."""
    if part.name != "Or":
        return False
    equal, unknown = part.children
    return equal.name == "EqualTo" and unknown.name == "IsNull" and unknown.children[0].name == "EqualTo"


def null_aware(part: Node, sides: Mapping[Side, Fragment]) -> Key | None:
    """Read a key of ``NOT IN``: ``a = b OR (a = b) IS NULL``."""
    if not has_not_in_form(part):
        return None
    equal, unknown = part.children
    if not equal.jvm.semanticEquals(unknown.children[0].jvm):
        return None
    return key_of(equal, sides)


@dataclass
class NotIn:
    """The condition of ``NOT IN``, taken apart."""

    keys: list[Key] = field(default_factory=list)
    """Equalities that may also be unknown: those of the ``NOT IN``. And those that are never unknown, be it that the
    optimizer leaves nothing else of a ``NOT IN``, or correlations."""
    not_null: list[Node] = field(default_factory=list)
    """Right expressions without which a row matches nothing: those of correlations that may be unknown. These are keys
    whose nulls are equal, since there are none on the right. ::

        left   a    k     right   x    k      a not in (select x from right where right.k = left.k)
               1    null          1    null   known k alone: (null, 5)
               1    5             null 5      (1, null) is kept, (1, 5) agrees with (null, 5) on k: dropped
    """
    rest: list[Node] = field(default_factory=list)
    """Conditions that must be true."""

    @classmethod
    def from_parts(cls, parts: Sequence[tuple[Node, Key | None]], sides: Mapping[Side, Fragment]) -> NotIn:
        """Take apart conjuncts, of which each may be a key of the ``NOT IN``."""
        condition = cls()
        for part, key in parts:
            condition._add(part, key, sides)
        return condition

    def _add(self, part: Node, key: Key | None, sides: Mapping[Side, Fragment]) -> None:
        pair = key or key_of(part, sides)
        if pair is None:
            self.rest.append(part)
            return
        left, right, _ = pair
        if key is None and part.name == "EqualTo" and part.nullable:
            pair = left, right, NullEquality.EQUAL
            if right.nullable:
                self.not_null.append(right)
        if pair not in self.keys:
            self.keys.append(pair)


def known_rows(builder: TreeBuilder, below: Fragment, values: Sequence[Node]) -> Fragment:
    """Keep the rows for which none of some values is null."""
    reader = builder.reader(below)
    present = [Call(function=Function.IS_NOT_NULL, arguments=(reader(value),), type=pa.bool_()) for value in values]
    condition = all_of(present)
    return below if condition is None else below.under(Filter(below.relation, condition))


def with_keys(
    builder: TreeBuilder,
    below: Fragment,
    keys: Sequence[Node],
    required: frozenset[int],
    written: Callable[[pa.DataType], bool] = has_lists,
) -> tuple[Fragment, list[int]]:
    """Make a column of each key, and compute those that are not attributes.

    Keys of which ``written`` says so by their type are columns of their bytes.
    """
    reader = builder.reader(below)
    plain = [key.name == "AttributeReference" and not written(_type_in(below, key)) for key in keys]
    if all(plain):
        return below, [below.positions[key.expr_id] for key in keys]
    passed = passed_on(below, required)
    ids, outputs = list(passed), list(passed.values())
    places = []
    for number, key in enumerate(keys):
        if plain[number] and key.expr_id in ids:
            places.append(ids.index(key.expr_id))
        else:
            places.append(len(outputs))
            value = reader(key)
            if value.type is not None and written(value.type):
                value = as_bytes(Function.ORDER_BYTES, value)
            outputs.append(Output(f"{expression_name(key)}#0{number}", value))  # no id begins with 0
    relation = Project(below.relation, tuple(outputs))
    return Fragment.from_columns(relation, ids), places


def _type_in(below: Fragment, attribute: Node) -> pa.DataType:
    return below.relation.schema.field(below.positions[attribute.expr_id]).type


def bare_key(node: Node) -> Node:
    """Give a key without what Spark wraps around floating-point keys; keys are normalized here by themselves."""
    while node.name in _NORMALIZED or _normalizes_elements(node):
        node = node.children[0]
    return node


def _normalizes_elements(node: Node) -> bool:
    """Whether a key is an array with normalized elements."""
    if node.name != "ArrayTransform" or node.children[1].name != "LambdaFunction":
        return False
    body, *variables = node.children[1].children
    element = bare_key(body)
    return element is not body and element.name == "NamedLambdaVariable" and element.expr_id == variables[0].expr_id
