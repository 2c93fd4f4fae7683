"""What expressions compute: a module for each family of functions, a row for each function.

A row (:class:`~gpujoin.functions.spec.FunctionSpec`) says from which of Spark's expression classes a function is read,
which operands it takes and what type it gives, when it may raise, what it makes of nulls, and which calls have Spark's
result; and it holds the implementations: ``numpy`` over NumPy and Arrow arrays, which every function has, ``polars``
as an expression of Polars, ``device`` over arrays of CuPy. Importing the rows loads neither Polars nor CuPy.

A function is a member of :class:`~gpujoin.model.expressions.Function` and a row with its implementations. All of
``weekday``, in ``functions/dates.py``::

    FunctionSpec(
        Function.WEEKDAY, ("WeekDay",), _PART,
        numpy=of_arrays(weekday), polars=_lower_part(lambda date: date.dt.weekday() - 1, 0, 6),
        device=of_either(weekday),
    ),

Three modules evaluate trees of calls: :mod:`.evaluate`, :mod:`.lower` and :mod:`.evaluate_device`.
"""

from __future__ import annotations

from gpujoin.errors import ConditionError
from gpujoin.functions import (
    arithmetic,
    bits,
    comparison,
    dates,
    encodings,
    formatting,
    hashes,
    lambdas,
    lists,
    logic,
    maps,
    maths,
    nestedbytes,
    rounding,
    splitting,
    structs,
    text,
    timetexts,
    zones,
)
from gpujoin.functions.signatures import MANY
from gpujoin.functions.spec import SPECS, FunctionSpec, SparkOnly
from gpujoin.model.expressions import Call, Expression

FAMILIES: dict[str, tuple[FunctionSpec, ...]] = {
    "Logic": logic.TABLE,
    "Comparison": comparison.TABLE,
    "Arithmetic": arithmetic.TABLE,
    "Rounding": rounding.TABLE,
    "Mathematics": maths.TABLE,
    "Bits": bits.TABLE,
    "Text": (*text.TABLE, *formatting.TABLE),
    "Hashes": hashes.TABLE,
    "Encodings": encodings.TABLE,
    "Dates and timestamps": (*dates.TABLE, *timetexts.TABLE, *zones.TABLE),
    "Structs": structs.TABLE,
    "Arrays and maps": (*lists.TABLE, *splitting.TABLE, *maps.TABLE, *lambdas.TABLE, *nestedbytes.TABLE),
}
SPARK_ONLY: tuple[SparkOnly, ...] = (*maths.SPARK_ONLY, *dates.SPARK_ONLY)

SPECS.update((spec.function, spec) for family in FAMILIES.values() for spec in family)
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
        arity = str(low) if low == high else f"{low} or more" if high == MANY else f"{low} to {high}"
        raise ConditionError(f"{node}: {name} takes {arity} arguments, not {len(node.arguments)}")
    resolved = signature.resolve(node)
    if resolved is None:
        types = " and ".join(f"{a} ({a.type})" for a in node.arguments)
        raise ConditionError(f"{node}: {name} cannot be applied to {types}; cast the operands to fitting types")
    return resolved
