"""What all relational nodes have in common, and the expressions in them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from gpujoin.errors import RelationError
from gpujoin.model.aggregates import AggregateCall
from gpujoin.model.expressions import ColumnRef, Expression
from gpujoin.model.jointype import Side
from gpujoin.model.relation_checks import check_position, check_typed
from gpujoin.model.spec import JoinSpec
from gpujoin.model.types import logical


@dataclass(frozen=True)
class Output:
    """A named expression.

    Attributes
    ----------
    name : str
        Name of the output column.
    expression : Expression
        What it holds.
    nullable : bool
        Whether the column may hold nulls.
    """

    name: str
    expression: Expression
    nullable: bool = True

    def __post_init__(self) -> None:
        check_typed(self.expression)

    @property
    def field(self) -> pa.Field:
        """The column as a field."""
        return pa.field(self.name, self.expression.type, self.nullable)

    def signature(self) -> tuple[object, ...]:
        """A hashable value that is equal for outputs that are the same."""
        return (self.name, self.expression.signature(), self.nullable)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Output) and self.signature() == other.signature()

    def __hash__(self) -> int:
        return hash(self.signature())


@dataclass(frozen=True)
class SortKey:
    """One key of an order.

    Attributes
    ----------
    expression : Expression
        Over the child's output. NaN is the greatest value; text is ordered by bytes.
    descending, nulls_first : bool
        Direction, and where nulls stand.
    """

    expression: Expression
    descending: bool = False
    nulls_first: bool = True

    def __post_init__(self) -> None:
        check_typed(self.expression)

    def signature(self) -> tuple[object, ...]:
        """A hashable value that is equal for keys that are the same."""
        return (self.expression.signature(), self.descending, self.nulls_first)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SortKey) and self.signature() == other.signature()

    def __hash__(self) -> int:
        return hash(self.signature())


@dataclass(frozen=True, eq=False)
class Relation:
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
        yield self
        for child in self.children:
            yield from child.walk()

    def __getstate__(self) -> dict[str, object]:
        # A schema is kept by the nodes that compute it, but not sent with them.
        return {key: value for key, value in self.__dict__.items() if key != "schema"}

    def signature(self) -> tuple[object, ...]:
        """A hashable value that is equal for trees that say the same."""
        parts = (_signature_of(getattr(self, f.name)) for f in dataclasses.fields(self))
        return (type(self).__name__, *parts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Relation) and self.signature() == other.signature()

    def __hash__(self) -> int:
        return hash(self.signature())


def column(schema: pa.Schema, at: int | str) -> ColumnRef:
    """Refer to a column of a relation's output, by position or unique name.

    Raises
    ------
    RelationError
        If there is no such column, or more than one.
    """
    if isinstance(at, str):
        found = schema.get_all_field_indices(at)
        if len(found) != 1:
            raise RelationError(f"{len(found)} columns are named {at!r} among {schema.names}")
        at = int(found[0])
    check_position(at, schema, "column")
    return ColumnRef(
        side=Side.LEFT, name=schema.field(at).name, index=at, type=logical(schema.field(at).type)
    )


def _signature_of(value: object) -> object:
    if isinstance(value, (Relation, Output, SortKey, AggregateCall, Expression)):
        return value.signature()
    if isinstance(value, JoinSpec):
        return (value, None if value.condition is None else value.condition.signature())
    if isinstance(value, tuple):
        return tuple(_signature_of(item) for item in value)
    return value
