"""Translates expressions to Polars expressions, where the result is exactly Spark's and is proven not to raise.

The bounds of columns prove the range of a result: an addition whose result always fits its type needs no check.

Polars has shortcuts for a *constant* (a literal, or a column with one value for all rows) that are not exact for
floats. With rows `x = -0.0, 7.0`:

- `x + lit(0.0)` is `x`, so `-0.0` where IEEE and Spark have `0.0`; so are `lit(0.0) + x`, and `lit(0.0) - x` is `-x`;
- `x / lit(3.0)` is `x * (1 / 3.0)`, which rounds twice.

These are not translated. A column of one value is known as that (``Column.constant``); one of floats is repeated for
each row as well (:func:`as_column`), which Polars may undo.
Where a proof fails, :class:`NotLowered` is raised, and the caller evaluates the expression with
`gpujoin.functions.evaluate`, which raises where Spark raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum

from gpujoin.functions.casts import lower_cast
from gpujoin.functions.libraries import pl
from gpujoin.functions.lowered import Column, Lowered, NotLowered, aligned, literal, result_type
from gpujoin.functions.spec import SPECS, Missing
from gpujoin.model.expressions import Call, Case, Cast, ColumnRef, Expression, Function, Literal
from gpujoin.model.types import logical


class Extent(Enum):
    """Which expressions become part of a Polars query. `gpujoin.functions.evaluate` evaluates the others."""

    ALL = "all that can be lowered"
    COLUMNS = "columns and constants"


def lower(node: Expression, columns: Sequence[Column], extent: Extent = Extent.ALL) -> Lowered:
    """Translate a resolved expression, as far as ``extent`` admits, to a Polars expression over a frame.

    Raises ``NotLowered`` if the translation would not be exact, or if the bounds do not prove that nothing raises;
    ``Unmeasured`` if a proof needs the bounds of a column whose values have not been read.
    """
    if extent is Extent.COLUMNS and not isinstance(node, (ColumnRef, Literal)):
        raise NotLowered("only columns and constants are asked for")
    return _Lowering(columns).lower(node)


class _Lowering:
    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns

    def lower(self, node: Expression) -> Lowered:
        assert node.type is not None, node
        match node:
            case ColumnRef():
                column = self._columns[node.index]
                return Lowered(pl.col(column.name), logical(node.type), column.bounds, column.wide, column.constant)
            case Literal():
                return replace(literal(node), constant=True)
            case Cast():
                child = self.lower(node.child)
                return replace(lower_cast(child, logical(node.to)), constant=child.constant)
            case Case():
                return self._case(node)
            case Call():
                rule = SPECS[node.function].polars
                if isinstance(rule, Missing):
                    raise NotLowered(node.function.value)
                arguments = [self.lower(a) for a in node.arguments]
                # A constant operand may make the result constant: false and …, coalesce(0.0, …).
                test = any if node.function in (Function.AND, Function.OR, Function.COALESCE) else all
                return replace(rule(node, arguments), constant=test(a.constant for a in arguments))
        raise NotLowered(type(node).__name__)

    def _case(self, node: Case) -> Lowered:
        values = [self.lower(v) for v in (*node.values, node.otherwise)]
        constant = any(value.constant for value in values)
        dtype = result_type(node)
        values, bounds, wide = aligned(values, dtype)
        result = values[-1].expr
        conditions = [self.lower(condition) for condition in node.conditions]
        for condition, value in zip(reversed(conditions), reversed(values[:-1]), strict=True):
            result = pl.when(condition.expr).then(value.expr).otherwise(result)
        # A constant condition takes one of the values.
        return Lowered(result, dtype, bounds, wide, constant and any(c.constant for c in conditions))
