"""Checks that relational nodes make of themselves; all raise `RelationError`."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.errors import RelationError
from gpujoin.model.expressions import ColumnRef, Expression
from gpujoin.model.jointype import Side
from gpujoin.model.types import logical


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
    """Require a type on every node of an expression."""
    for node in expression.walk():
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
        check_position(ref.index, schema, f"{expression}: column")
        held = logical(schema.field(ref.index).type)
        if held != logical(ref.type) and not _zones_differ(held, ref.type):
            raise RelationError(f"{expression}: takes {ref} for {ref.type}, but it is {held}")
    if boolean and not pat.is_boolean(logical(expression.type)):
        raise RelationError(f"the condition {expression} is {expression.type}, not boolean")


def _zones_differ(one: pa.DataType, two: pa.DataType) -> bool:
    """Whether both are timestamps with a zone: a reference may say the session's zone, the data is the same."""
    return bool(
        pat.is_timestamp(one) and pat.is_timestamp(two) and one.tz is not None and two.tz is not None
        and one.unit == two.unit
    )  # fmt: skip
