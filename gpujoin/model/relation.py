"""The base class of relational nodes, their output columns and sort keys, and checks that nodes share."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.errors import RelationError
from gpujoin.model.expressions import Attribute, ColumnRef, Expression
from gpujoin.model.jointype import Side
from gpujoin.model.trees import Structural, preorder
from gpujoin.model.types import logical


@dataclass(frozen=True, eq=False)
class Output(Structural):
    """A named expression."""

    name: str
    """Name of the output column."""
    expression: Expression
    """Expression that the column holds."""
    nullable: bool = True
    """Whether the column may hold nulls."""

    def __post_init__(self) -> None:
        check_typed(self.expression)

    @property
    def field(self) -> pa.Field:
        """The output column as a field of a schema."""
        return pa.field(self.name, self.expression.type, self.nullable)


@dataclass(frozen=True, eq=False)
class SortKey(Structural):
    """One key of an order."""

    expression: Expression
    """Over the child's output. NaN is the greatest value; text is ordered by bytes."""
    descending: bool = False
    nulls_first: bool = True
    """Direction, and where nulls stand."""

    def __post_init__(self) -> None:
        check_typed(self.expression)


@dataclass(frozen=True, eq=False)
class Relation(Structural):
    """A node of the tree."""

    @property
    def schema(self) -> pa.Schema:
        """Columns of the node's output."""
        raise NotImplementedError

    @property
    def children(self) -> tuple[Relation, ...]:
        """Inputs, in order."""
        return ()

    def with_children(self, children: Sequence[Relation]) -> Relation:
        """The same node over other inputs."""
        assert not children
        return self

    def expressions(self) -> tuple[Expression, ...]:
        """All expressions of this node."""
        return ()

    def walk(self) -> Iterator[Relation]:
        """The node and all below it, parents first."""
        return preorder(self)

    def _unchecked(self, **fields: object) -> Self:
        """A copy with other values of fields that no check of the node, and not its schema, depends on."""
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__, **fields)
        copied.__dict__.pop("structure", None)
        return copied


@dataclass(frozen=True, eq=False)
class OneInput(Relation):
    """A node over one input, with its columns unless it says otherwise."""

    child: Relation

    @property
    def schema(self) -> pa.Schema:
        return self.child.schema

    @property
    def children(self) -> tuple[Relation, ...]:
        return (self.child,)

    def with_children(self, children: Sequence[Relation]) -> Relation:
        (child,) = children
        if child is self.child:
            return self
        if child.schema is self.child.schema:
            return self._unchecked(child=child)
        return dataclasses.replace(self, child=child)


def column(schema: pa.Schema, at: int | str) -> ColumnRef:
    """Refer to a column of a relation's output, by position or unique name.

    Raises ``RelationError`` if there is no such column, or more than one.
    """
    if isinstance(at, str):
        positions = schema.get_all_field_indices(at)
        if len(positions) != 1:
            raise RelationError(f"{len(positions)} columns are named {at!r} among {schema.names}")
        at = int(positions[0])
    check_position(at, schema, "column")
    return ColumnRef(side=Side.LEFT, name=schema.field(at).name, index=at, type=logical(schema.field(at).type))


# -- checks; all raise RelationError -----------------------------------------------------------------------------


def check_unique(schema: pa.Schema) -> None:
    """Require column names to be unique."""
    repeated = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if repeated:
        raise RelationError(f"column names must be unique here; repeated: {', '.join(map(repr, repeated))}")


def check_position(position: int, schema: pa.Schema, what: str) -> None:
    """Require a column to exist; ``what`` names its use."""
    if not 0 <= position < len(schema):
        raise RelationError(f"{what} {position} does not exist: the input has {len(schema)} columns")


def check_typed(expression: Expression) -> None:
    """Require a type on every node of an expression, and a position of every column."""
    for node in expression.walk():
        if isinstance(node, Attribute):
            raise RelationError(f"{node.name} is known by its identity: bind it to a position")
        if node.type is None:
            raise RelationError(f"{expression}: {node} is not resolved: every node needs a type")


def check_over(
    expression: Expression, left: pa.Schema, right: pa.Schema | None = None, *, boolean: bool = False
) -> None:
    """Require an expression to be resolved over one input, or two, and boolean if so asked."""
    check_typed(expression)
    for ref in (node for node in expression.walk() if isinstance(node, ColumnRef)):
        schema = left if ref.side is Side.LEFT else right
        if schema is None:
            raise RelationError(f"{expression}: reads {ref} of the right side, but there is only one input")
        if not 0 <= ref.index < len(schema):  # the text of a long expression is made for errors alone
            raise RelationError(f"{expression}: column {ref.index} does not exist: the input has {len(schema)} columns")
        actual = logical(schema.field(ref.index).type)
        if actual != logical(ref.type) and not _zones_differ(actual, ref.type):
            raise RelationError(f"{expression}: takes {ref} for {ref.type}, but it is {actual}")
    if boolean and not pat.is_boolean(logical(expression.type)):
        raise RelationError(f"the condition {expression} is {expression.type}, not boolean")


def _zones_differ(first: pa.DataType, second: pa.DataType) -> bool:
    """Whether both are timestamps with a zone: a reference may say the session's zone, the data is the same."""
    return bool(
        pat.is_timestamp(first) and pat.is_timestamp(second) and first.tz is not None and second.tz is not None
        and first.unit == second.unit
    )  # fmt: skip
