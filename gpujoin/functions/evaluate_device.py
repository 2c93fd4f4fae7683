"""Evaluates resolved expressions on the device, for the rows for which Spark would.

Fixed-width values are computed by CuPy, text by libcudf. In ANSI mode an operation may raise only for rows for which
Spark evaluates it: the right side of ``AND`` only where the left is not false, a branch of ``CASE`` only where it is
chosen, a right operand only where the left is not null. So each node gets the mask of its *active* rows.

Which expressions these are, :mod:`.support` tells, without a device. Where the result depends on values that the device
may not compute as Spark does, a function looks at them first, and raises ``DeviceValueError``: characters of text that
is no UTF-8, cases of characters other than ASCII, and halves of doubles with many digits.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow.types as pat

from gpujoin.errors import GpuJoinError
from gpujoin.functions import values as v
from gpujoin.functions.casts import device_cast
from gpujoin.functions.device import Active, Offer, Operands, Text
from gpujoin.functions.spec import SPECS
from gpujoin.functions.values import Value
from gpujoin.functions.vector import Array, mask_and, mask_and_not
from gpujoin.model.expressions import Call, Case, Cast, ColumnRef, Expression, Literal


@dataclass(frozen=True)
class DeviceEvaluator(Operands):
    """Evaluates the expressions that are supported on the device."""

    def mask(self, condition: Expression, length: int) -> Array:
        """Mask of the rows for which a condition is true."""
        true = self.true(self.fixed(condition, None))
        return self.xp.ascontiguousarray(self.xp.broadcast_to(true, (length,)))

    def any(self, node: Expression, active: Active) -> Value | Text:
        """Evaluate a node."""
        match node:
            case ColumnRef():
                return self.source.column(node)
            case Literal():
                assert node.type is not None
                is_text = pat.is_string(node.type)
                return self.source.text(node.value) if is_text else v.constant(self.xp, node.value, node.type)
            case Call():
                offer = SPECS[node.function].device
                assert isinstance(offer, Offer), node
                return offer.run(self, node, active)
            case Cast():
                return device_cast(self, node, active)
            case Case():
                return self._case(node, active)
        raise GpuJoinError(f"{node!r} cannot be evaluated on a GPU")

    def _case(self, node: Case, active: Active) -> Value | Text:
        left = active
        branches: list[tuple[Array, Value | Text]] = []
        for condition, branch in zip(node.conditions, node.values, strict=True):
            met = self.true(self.fixed(condition, left))
            branches.append((met, self.any(branch, mask_and(left, met))))
            left = mask_and_not(left, met)
        result = self.any(node.otherwise, left)
        for met, branch_value in reversed(branches):
            result = self.choose(met, branch_value, result)
        return result
