"""Three-valued logic, null tests and ``coalesce``."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.functions.comparison import alike, comparable, is_alike
from gpujoin.functions.signatures import ANY, BOOLEAN, FLOAT, MANY, Signature, over, takes, type_of, types_of
from gpujoin.functions.spec import NOT_FUSED, FunctionSpec, Nulls
from gpujoin.functions.widening import tightest, wider_of
from gpujoin.model.expressions import Call, Function


def _coalesce(node: Call) -> Call | None:
    return over(node, wider_of([type_of(a) for a in node.arguments], node.mode))


def _alike_values(node: Call) -> bool:
    types = types_of(node)
    if pat.is_nested(types[0]) and all(is_alike(types[0], dtype) for dtype in types):
        return True
    return alike(types) and (comparable(types[0]) or pat.is_null(types[0]))


def _nanvl(node: Call) -> Call | None:
    types = [FLOAT.convert(type_of(a), node.mode) for a in node.arguments]
    if types[0] is None or types[1] is None:
        return None
    return over(node, tightest(types[0], types[1], node.mode))


def _alike_floats(node: Call) -> bool:
    first, second = types_of(node)
    return FLOAT.accepts(first) and first == second


_CONNECTED = takes(BOOLEAN, BOOLEAN, gives=pa.bool_(), repeated=True)
_TESTED = takes(ANY, gives=pa.bool_())
_F = Function

TABLE = (
    FunctionSpec(_F.AND, ("And",), _CONNECTED, nulls=Nulls.READ),
    FunctionSpec(_F.OR, ("Or",), _CONNECTED, nulls=Nulls.READ),
    FunctionSpec(_F.NOT, ("Not",), takes(BOOLEAN, gives=pa.bool_())),
    FunctionSpec(_F.IS_NULL, ("IsNull",), _TESTED, nulls=Nulls.READ, selectivity=0.05),
    FunctionSpec(_F.IS_NOT_NULL, ("IsNotNull",), _TESTED, nulls=Nulls.READ, selectivity=1.0),
    FunctionSpec(_F.COALESCE, ("Coalesce",), Signature(_coalesce, _alike_values, (1, MANY)), nulls=Nulls.READ),
    FunctionSpec(
        _F.NANVL, ("NaNvl",), Signature(_nanvl, _alike_floats, parameters=(FLOAT, FLOAT)),
        nulls=Nulls.READ, lacks=NOT_FUSED,
    ),
)  # fmt: skip
