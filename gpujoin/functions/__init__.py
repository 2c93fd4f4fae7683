"""Tables of the functions that expressions may call: a table for each family, a row for each function.

A row (:class:`~gpujoin.functions.spec.FunctionSpec`) says from which of Spark's expression classes a function is read,
which operands it takes and what type it gives, when it may raise, what it makes of nulls, and which evaluators lack it
and why. The evaluators are the backends' own; each keeps a table from function to implementation. A test holds the
tables together: every function is either implemented by an evaluator or declared as lacking, with a reason.

A function is a member of :class:`~gpujoin.model.expressions.Function`, a row in its family's table, an implementation
for each evaluator that is to have it, and one in the row-loop oracle of the tests. All of ``weekday``::

    WEEKDAY = "weekday"                                                   # model/expressions.py
    FunctionSpec(_F.WEEKDAY, ("WeekDay",), _PART),                        # functions/dates.py
    Function.WEEKDAY: of_arrays(weekday),                                 # backends/cpu/expressions/dates.py
    Function.WEEKDAY: _part(lambda date: date.dt.weekday() - 1, 0, 6),    # backends/cpu/pipeline/lowering
    Function.WEEKDAY: strict(lambda _, date: (_days(date) + 3) % 7),      # backends/cudf/expressions/dates.py
    Function.WEEKDAY: _of_day(lambda day: (day + 3) % 7),                 # tests/oracle/moments.py
"""

from __future__ import annotations

from gpujoin.errors import ConditionError
from gpujoin.functions import (
    arithmetic,
    arrays,
    bits,
    comparison,
    dates,
    encodings,
    hashes,
    logic,
    maths,
    rounding,
    structs,
    text,
)
from gpujoin.functions.casts import is_lossless
from gpujoin.functions.signatures import MANY, types_of
from gpujoin.functions.spec import FunctionSpec, SparkOnly
from gpujoin.model.expressions import Call, Cast, EvalMode, Expression

FAMILIES: dict[str, tuple[FunctionSpec, ...]] = {
    "Logic": logic.TABLE,
    "Comparison": comparison.TABLE,
    "Arithmetic": arithmetic.TABLE,
    "Rounding": rounding.TABLE,
    "Mathematics": maths.TABLE,
    "Bits": bits.TABLE,
    "Text": text.TABLE,
    "Hashes": hashes.TABLE,
    "Encodings": encodings.TABLE,
    "Dates and timestamps": dates.TABLE,
    "Structs": structs.TABLE,
    "Arrays and maps": arrays.TABLE,
}
SPARK_ONLY: tuple[SparkOnly, ...] = (*maths.SPARK_ONLY, *dates.SPARK_ONLY)

SPECS = {spec.function: spec for family in FAMILIES.values() for spec in family}
BY_CLASS = {name: spec for spec in SPECS.values() for name in spec.classes}
"""Functions by the classes of Spark's expressions that they are read from."""
SPARK_ONLY_BY_CLASS = {name: row for row in SPARK_ONLY for name in row.classes}


def coerce(node: Call) -> Expression:
    """Put Spark's implicit casts into a call whose arguments are typed, and fill its type.

    Raises ``ConditionError`` if the function cannot take arguments of these types, or of this number.
    """
    signature, name = SPECS[node.function].signature, node.function.value
    low, high = signature.arity
    if not low <= len(node.arguments) <= high:
        wanted = str(low) if low == high else f"{low} or more" if high == MANY else f"{low} to {high}"
        raise ConditionError(f"{node}: {name} takes {wanted} arguments, not {len(node.arguments)}")
    resolved = signature.resolve(node)
    if resolved is None:
        types = " and ".join(f"{a} ({a.type})" for a in node.arguments)
        raise ConditionError(f"{node}: {name} cannot be applied to {types}; cast the operands to fitting types")
    return resolved


def can_raise(tree: Expression) -> bool:
    """Whether evaluating a typed tree might raise, so that it must not be evaluated for more rows than in Spark."""
    return any(_may_raise(node) for node in tree.walk())


def _may_raise(node: Expression) -> bool:
    if isinstance(node, Cast):
        source = node.child.type
        return node.mode is EvalMode.ANSI and source is not None and not is_lossless(source, node.to)
    if not isinstance(node, Call):
        return False
    spec = SPECS[node.function]
    operand = types_of(node)[0] if node.arguments else None
    return spec.raises.may(node.mode, operand) and not (spec.safe is not None and spec.safe(node))
