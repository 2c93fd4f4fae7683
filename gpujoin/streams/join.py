"""Joins of two streams, and their columns that are event times under a watermark."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.errors import JoinSpecError
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.spec import JoinSpec

WINDOW_END = 1
"""Field of a window's struct that counts as its event time, as in Spark: its end."""

STREAMED = (JoinType.INNER, JoinType.LEFT, JoinType.RIGHT, JoinType.FULL, JoinType.LEFT_SEMI)
"""Types that Spark joins two streams by."""


class SemiOrder(Enum):
    """Whose new rows a left semi join looks at first; rows that come and go in one micro-batch show it."""

    RIGHT_FIRST = "right first"
    """New left rows do not meet new right rows that go in the same micro-batch. So it is in PySpark 4.3."""
    LEFT_FIRST = "left first"
    """New left rows meet all new right rows. So it was before."""


@dataclass(frozen=True, slots=True)
class TimeColumn:
    """Where the event time of a row is: in a column of timestamps, or in a field of a column of structs."""

    column: int
    """Position in the schema of a side."""
    field: int | None = None
    """Position of the field; ``None``: the column itself."""

    @classmethod
    def from_schema(cls, schema: pa.Schema, column: int) -> TimeColumn:
        """Read a column of timestamps, or of windows, whose ends count.

        Raises
        ------
        JoinSpecError
            If the column has no times in microseconds.
        """
        if not 0 <= column < len(schema):
            raise JoinSpecError(f"event-time column {column} of {len(schema)} does not exist")
        dtype = schema.field(column).type
        if _is_time(dtype):
            return cls(column)
        if pat.is_struct(dtype) and dtype.num_fields > WINDOW_END and _is_time(dtype.field(WINDOW_END).type):
            return cls(column, WINDOW_END)
        raise JoinSpecError(
            f"event-time column {schema.field(column).name!r} is of type {dtype}; it must hold timestamps in"
            " microseconds, or windows of these"
        )


def _is_time(dtype: pa.DataType) -> bool:
    return bool(pat.is_timestamp(dtype) and dtype.unit == "us")


@dataclass(frozen=True, slots=True)
class StreamJoin:
    """A join of two streams.

    Raises
    ------
    JoinSpecError
        If Spark has no such join of streams, or a column is no event time.
    """

    spec: JoinSpec
    """What is joined, with at least one equality; all of the join's ``ON`` but the equalities is in its condition."""
    left: pa.Schema
    right: pa.Schema
    """Columns of the two sides."""
    left_times: tuple[int, ...] = ()
    right_times: tuple[int, ...] = ()
    """Columns under a watermark, in the order of the schema; empty for a side without one."""
    semi_order: SemiOrder = SemiOrder.RIGHT_FIRST
    """Whose new rows a left semi join looks at first; of no meaning to other joins."""
    left_computed: tuple[tuple[int, str], ...] = ()
    right_computed: tuple[tuple[int, str], ...] = ()
    """Columns that stand for expressions of the ``ON``, and a text that tells the expression from others. A comparison
    with such a column says nothing of how long rows are kept."""

    def __post_init__(self) -> None:
        if self.spec.join_type not in STREAMED or self.spec.as_of is not None:
            names = ", ".join(kind.value for kind in STREAMED)
            raise JoinSpecError(f"streams are not joined by {self.spec.join_type.value} joins; there are {names}")
        if not self.spec.keys:
            raise JoinSpecError("a join of streams needs an equality of keys")
        for side in Side:
            for field in self.schema(side):
                if pat.is_dictionary(field.type):
                    raise JoinSpecError(
                        f"the {side.value} column {field.name!r} is dictionary-encoded; decode it first"
                    )
            for column in self.times(side):
                TimeColumn.from_schema(self.schema(side), column)

    def schema(self, side: Side) -> pa.Schema:
        """Columns of one side."""
        return self.left if side is Side.LEFT else self.right

    def times(self, side: Side) -> tuple[int, ...]:
        """Columns of one side that are under a watermark."""
        return self.left_times if side is Side.LEFT else self.right_times

    def computed(self, side: Side) -> tuple[tuple[int, str], ...]:
        """Give the columns of a side that stand for expressions, and what identifies these."""
        return self.left_computed if side is Side.LEFT else self.right_computed
