"""Three-valued logic, null tests and ``coalesce``."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.functions.comparison import alike, comparable
from gpujoin.functions.signatures import ANY, BOOLEAN, MANY, Signature, over, takes, type_of, types_of
from gpujoin.functions.spec import FunctionSpec, Nulls
from gpujoin.functions.widening import wider_of
from gpujoin.model.expressions import Call, Function


def _coalesce(node: Call) -> Call | None:
    return over(node, wider_of([type_of(a) for a in node.arguments], node.mode))


def _alike_values(node: Call) -> bool:
    types = types_of(node)
    return alike(types) and (comparable(types[0]) or pat.is_null(types[0]))


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
)
