"""The normal form of a join: type, keys, condition and output columns, as positions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from numbers import Integral
from typing import Any, Literal

import pyarrow as pa

from gpujoin.errors import JoinSpecError, did_you_mean
from gpujoin.model.expressions import Expression
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.trees import Structural

MOST_NULL_AWARE_KEYS = 62
"""Most columns of a ``NOT IN``. A set of its columns is one bit for each in a 64-bit integer."""


class NullEquality(Enum):
    """Whether a null key equals a null key."""

    UNEQUAL = "unequal"
    """SQL's ``=``: a null matches nothing."""
    EQUAL = "equal"
    """SQL's ``<=>``: a null matches a null."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """One equality between a left and a right column.

    Attributes
    ----------
    left, right : int
        Column positions in the two schemas.
    nulls : NullEquality
        How nulls compare.

    Raises
    ------
    JoinSpecError
        If a column is not given by position.
    """

    left: int
    right: int
    nulls: NullEquality = NullEquality.UNEQUAL

    def __post_init__(self) -> None:
        _check_positions("a key's columns", (self.left, self.right))
        if not isinstance(self.nulls, NullEquality):
            raise JoinSpecError(f"nulls must be NullEquality.EQUAL or NullEquality.UNEQUAL, got {self.nulls!r}")

    def of(self, side: Side) -> int:
        """The column position on one side."""
        return self.left if side is Side.LEFT else self.right


DirectionName = Literal["backward", "forward", "nearest"]
"""Values of :class:`Direction`, for type checkers."""


class Direction(Enum):
    """Direction in which an as-of join searches for a row."""

    BACKWARD = "backward"
    """The last row at or before the key."""
    FORWARD = "forward"
    """The first row at or after the key."""
    NEAREST = "nearest"
    """The nearer of the two; the earlier one if both are equally near."""

    @classmethod
    def parse(cls, value: str | Direction) -> Direction:
        """Read a direction.

        Raises
        ------
        JoinSpecError
            If it is none.
        """
        try:
            return cls(value)
        except ValueError:
            names = [direction.value for direction in cls]
            raise JoinSpecError(f"unknown direction {value!r}.{did_you_mean(str(value), names)}") from None


@dataclass(frozen=True, slots=True)
class AsOf:
    """Terms that make a left join an as-of join: each left row matches at most one of the right rows with equal keys.

    Of several right rows with the same order key, the last one is taken looking backward and the first one looking
    forward. Rows with a null or NaN order key match nothing.
    """

    left: int
    right: int
    """Positions of the order keys."""
    direction: Direction = Direction.BACKWARD
    """Whether to look backward, forward or both ways."""
    tolerance: Any = None
    """Largest distance, in terms of the keys' type; ``None``: any."""
    allow_exact: bool = True
    """Whether an equal key counts."""


@dataclass(frozen=True, eq=False)
class JoinSpec(Structural):
    """What a join computes, independent of how.

    Attributes
    ----------
    join_type : JoinType
        Type of the join.
    keys : tuple of KeyPair
        Equalities; empty for products and pure nested-loop joins.
    condition : Expression or None
        Residual condition, resolved; a pair of rows matches if its keys do and this is true.
    left_output, right_output : tuple of int
        Column positions to return, in order.
    existence_name : str
        Name of the boolean column of an existence join.
    as_of : AsOf or None
        Makes a left join an as-of join.

    Raises
    ------
    JoinSpecError
        If the parts contradict each other.
    """

    join_type: JoinType
    keys: tuple[KeyPair, ...] = ()
    condition: Expression | None = None
    left_output: tuple[int, ...] = ()
    right_output: tuple[int, ...] = ()
    existence_name: str = "exists"
    as_of: AsOf | None = None

    def __post_init__(self) -> None:
        kind = self.join_type
        if not isinstance(kind, JoinType):
            raise JoinSpecError(f"join_type must be a JoinType such as JoinType.LEFT, got {kind!r}")
        _check_keys(self.keys)
        if self.condition is not None and not isinstance(self.condition, Expression):
            raise JoinSpecError(
                f"condition must be an expression such as left('a') < right('b'), got {self.condition!r}"
            )
        if not isinstance(self.existence_name, str):
            raise JoinSpecError(f"existence_name must be a column's name, got {self.existence_name!r}")
        if self.as_of is not None and not isinstance(self.as_of, AsOf):
            raise JoinSpecError(f"as_of must be AsOf(...), got {self.as_of!r}")
        _check_positions("left_output", self.left_output)
        _check_positions("right_output", self.right_output)
        if self.as_of is not None and (kind is not JoinType.LEFT or self.condition is not None):
            raise JoinSpecError(f"an as-of join is a left join without condition, not {kind.value}")
        if kind is JoinType.CROSS and (self.keys or self.condition is not None):
            raise JoinSpecError("a cross join takes no keys and no condition; use an inner join")
        if kind.null_aware and not 1 <= len(self.keys) <= MOST_NULL_AWARE_KEYS:
            raise JoinSpecError(f"a {kind.value} join needs 1 to {MOST_NULL_AWARE_KEYS} keys, got {len(self.keys)}")
        if kind.left_rows_only and self.right_output:
            raise JoinSpecError(f"a {kind.value} join returns left columns only, not right {self.right_output}")

    def output_of(self, side: Side) -> tuple[int, ...]:
        """Positions of the columns returned from one side."""
        return self.left_output if side is Side.LEFT else self.right_output

    def output_schema(self, left: pa.Schema, right: pa.Schema) -> pa.Schema:
        """Schema of the result: left columns, right columns, or left columns and the existence flag.

        Columns of a side that may be missing from an output row become nullable.
        """
        fields = [
            _nullable(left.field(i), or_absent=self.join_type in (JoinType.RIGHT, JoinType.FULL))
            for i in self.left_output
        ]
        fields += [
            _nullable(right.field(i), or_absent=self.join_type in (JoinType.LEFT, JoinType.FULL))
            for i in self.right_output
        ]
        if self.join_type.flags_rows:
            fields.append(pa.field(self.existence_name, pa.bool_(), nullable=False))
        return pa.schema(fields)


def _check_keys(keys: Any) -> None:
    if not isinstance(keys, tuple) or not all(isinstance(key, KeyPair) for key in keys):
        raise JoinSpecError(f"keys must be KeyPair(left, right), in a tuple, got {keys!r}")


def _check_positions(what: str, positions: Any) -> None:
    if not isinstance(positions, tuple) or any(isinstance(p, bool) or not isinstance(p, Integral) for p in positions):
        raise JoinSpecError(f"{what} are given by position in the schema, as a tuple, got {positions!r}")


def _nullable(column: pa.Field, *, or_absent: bool) -> pa.Field:
    return column.with_nullable(True) if or_absent else column
