"""The columns that a prepared side of a join has: attributes of the child, and expressions that Spark computes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import DataType, StructField, StructType

from gpujoin.errors import JoinSpecError
from gpujoin.model.expressions import ColumnRef
from gpujoin.model.jointype import Side
from gpujoin.spark.compat import arrow_schema

if TYPE_CHECKING:
    from gpujoin.spark.catalyst.nodes import Node


@dataclass
class SideColumns:
    """Columns of one side, numbered as they are asked for; each attribute and each expression once.

    Attributes
    ----------
    side : Side
        Whose.
    expressions : list of Node
        What each column holds.
    """

    side: Side
    expressions: list[Node] = field(default_factory=list)
    _attributes: dict[int, int] = field(default_factory=dict)

    def index_of(self, expression: Node) -> int:
        """Give the position of the column that holds an expression, adding one where there is none."""
        if expression.name == "AttributeReference":
            found = self._attributes.get(expression.expr_id)
            if found is None:
                found = self._attributes[expression.expr_id] = self._add(expression)
            return found
        for position, known in enumerate(self.expressions):
            if known.name == expression.name and known.jvm.semanticEquals(expression.jvm):
                return position
        return self._add(expression)

    def name_of(self, position: int) -> str:
        """Give the generated name of a column."""
        return f"{self.side.value[0]}{position}"

    def reference(self, expression: Node) -> ColumnRef:
        """Refer to an expression's column in a residual condition, by position; its name is for messages."""
        position = self.index_of(expression)
        attribute = expression.name == "AttributeReference"
        name = str(expression.fields["name"]) if attribute else str(expression)
        return ColumnRef(side=self.side, name=name, index=position, type=arrow_type(expression.data_type))

    def _add(self, expression: Node) -> int:
        self.expressions.append(expression)
        return len(self.expressions) - 1


def arrow_type(dtype: DataType) -> pa.DataType:
    """Give the Arrow form of a Spark type.

    Raises
    ------
    JoinSpecError
        If there is none.
    """
    try:
        return arrow_schema(StructType([StructField("c", dtype)])).field(0).type
    except JoinSpecError:
        raise JoinSpecError(f"type {dtype.simpleString()} has no Arrow form") from None
