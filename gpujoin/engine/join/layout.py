"""The columns that a join needs of each side, derived once from its specification and schemas."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from gpujoin.engine.join.derive import Derivation, derive
from gpujoin.engine.keys import KeyCodec
from gpujoin.errors import ConditionError, JoinSpecError
from gpujoin.model.expressions import ColumnRef, Expression
from gpujoin.model.jointype import Side
from gpujoin.model.ranges import Axis
from gpujoin.model.spec import JoinSpec
from gpujoin.plan.asof import as_of_type
from gpujoin.plan.ranges import extract_ranges


@dataclass(frozen=True)
class SideLayout:
    """The columns that a join needs of one side."""

    side: Side
    schema: pa.Schema
    output: tuple[int, ...]
    """Columns returned."""
    condition: tuple[int, ...]
    """Columns the residual condition reads."""
    output_schema: pa.Schema
    """Fields of the returned columns in the result."""


@dataclass(frozen=True)
class JoinLayout:
    """Everything about a join that does not depend on its rows."""

    spec: JoinSpec
    build: SideLayout
    probe: SideLayout
    derivation: Derivation
    """What the join type returns, in terms of pairs and marks."""
    codec: KeyCodec
    """Turns keys into codes."""
    condition: Expression | None
    """Residual condition; its column references are positions within ``condition`` of each side."""
    output_schema: pa.Schema
    axes: tuple[Axis, ...] = ()
    """Ranges by which the build side is searched; ``condition`` does not include them."""
    ranged: JoinLayout | None = None
    """The same join with ranges, if its condition has any."""

    @classmethod
    def from_spec(cls, spec: JoinSpec, left: pa.Schema, right: pa.Schema, build_side: Side) -> JoinLayout:
        """Derive the layout of a join.

        Raises ``JoinSpecError`` or ``KeyTypeError`` or ``ConditionError`` if the specification does not fit the
        schemas, or the join type cannot be run with this side built.
        """
        for side, schema in ((Side.LEFT, left), (Side.RIGHT, right)):
            for position in spec.output_of(side):
                if not 0 <= position < len(schema):
                    raise JoinSpecError(f"{side.value} output column {position} of {len(schema)} does not exist")
        if spec.as_of is not None and build_side is not Side.RIGHT:
            raise JoinSpecError("an as-of join builds its right side, not its left")
        plain = cls._from_condition(spec, spec.condition, left, right, build_side)
        _ = plain.as_of_type  # raises where there is none
        ranged_condition = None
        if not spec.join_type.null_aware:
            ranged_condition = extract_ranges(spec.condition, build_side)
        if ranged_condition is None:
            return plain
        ranged = cls._from_condition(spec, ranged_condition.residual, left, right, build_side)
        return dataclasses.replace(plain, ranged=dataclasses.replace(ranged, axes=ranged_condition.axes))

    def derived_anew(self) -> JoinLayout:
        """The layout that :meth:`from_spec` makes of the same join: with ranges if its condition has any."""
        schemas = {side_layout.side: side_layout.schema for side_layout in (self.build, self.probe)}
        return JoinLayout.from_spec(self.spec, schemas[Side.LEFT], schemas[Side.RIGHT], self.build.side)

    @classmethod
    def _from_condition(
        cls, spec: JoinSpec, tested: Expression | None, left: pa.Schema, right: pa.Schema, build_side: Side
    ) -> JoinLayout:
        output = spec.output_schema(left, right)
        first_right = len(spec.left_output)
        columns_read = _columns_read(tested, {Side.LEFT: left, Side.RIGHT: right})
        sides = {
            Side.LEFT: SideLayout(
                Side.LEFT, left, spec.left_output, columns_read[Side.LEFT], pa.schema(list(output)[:first_right])
            ),
            Side.RIGHT: SideLayout(
                Side.RIGHT, right, spec.right_output, columns_read[Side.RIGHT],
                pa.schema(list(output)[first_right : first_right + len(spec.right_output)]),
            ),
        }  # fmt: skip
        condition = None if tested is None else _renumber(tested, columns_read)
        return cls(
            spec, sides[build_side], sides[build_side.other], derive(spec.join_type, build_side),
            KeyCodec.from_spec(spec, left, right), condition, output,
        )  # fmt: skip

    @cached_property
    def operands(self) -> Mapping[Side, tuple[int, ...]]:
        """Columns by which each side is searched, besides the equality keys: those of ranges, or an order key."""
        spec = self.spec
        if spec.as_of is not None:
            return {Side.LEFT: (spec.as_of.left,), Side.RIGHT: (spec.as_of.right,)}
        indices: dict[Side, set[int]] = {side: set() for side in Side}
        for axis in self.axes:
            for node in axis.expressions():
                for column in node.columns():
                    indices[column.side].add(column.index)
        return {side: tuple(sorted(positions)) for side, positions in indices.items()}

    @cached_property
    def axes_of_operands(self) -> tuple[Axis, ...]:
        """The ranges over frames of each side's equality keys, then its :attr:`operands`."""
        keys = len(self.spec.keys)
        places = {side: (*([-1] * keys), *positions) for side, positions in self.operands.items()}
        return tuple(axis.over(lambda node: _renumber(node, places)) for axis in self.axes)

    @cached_property
    def as_of_type(self) -> pa.DataType | None:
        """Common type of the order keys of an as-of join."""
        terms = self.spec.as_of
        if terms is None:
            return None
        left, right = self.side(Side.LEFT).schema, self.side(Side.RIGHT).schema
        return as_of_type(left.field(terms.left).type, right.field(terms.right).type, terms)

    def side(self, side: Side) -> SideLayout:
        """Layout of one side."""
        return self.build if side is self.build.side else self.probe


def _columns_read(condition: Expression | None, schemas: dict[Side, pa.Schema]) -> dict[Side, tuple[int, ...]]:
    positions: dict[Side, set[int]] = {Side.LEFT: set(), Side.RIGHT: set()}
    for column in condition.columns() if condition is not None else ():
        if not 0 <= column.index < len(schemas[column.side]):
            raise ConditionError(f"the condition's column {column} is not resolved; call gpujoin.plan.resolve first")
        positions[column.side].add(column.index)
    return {side: tuple(sorted(indices)) for side, indices in positions.items()}


def _renumber(node: Expression, columns_read: Mapping[Side, tuple[int, ...]]) -> Expression:
    if isinstance(node, ColumnRef):
        return dataclasses.replace(node, index=columns_read[node.side].index(node.index))
    if not node.children:
        return node
    return node.with_children([_renumber(child, columns_read) for child in node.children])
