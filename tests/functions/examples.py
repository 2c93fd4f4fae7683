"""Operands of a call of each function: columns, and constants where a function takes, or is used with, these."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa

from gpujoin.functions.spec import FunctionSpec
from gpujoin.model.expressions import Function, Variable, lit
from gpujoin.model.zones import ZoneRules, zone_literal

_X = Variable(name="x", type=pa.int32())
_ZONE = zone_literal("+05:30", ZoneRules((), offsets=(19_800,)))
_GROUPED = "([a-z])b?"
_F = Function

_CONSTANTS: dict[Function, tuple[object, ...]] = {
    **dict.fromkeys((_F.ROUND, _F.ROUND_EVEN, _F.ROUND_CEIL, _F.ROUND_FLOOR), (None, lit(1, pa.int32()))),
    **dict.fromkeys((_F.FACTORIAL, _F.SPACE), (1,)),
    **dict.fromkeys(
        (
            _F.SHIFT_LEFT, _F.SHIFT_RIGHT, _F.SHIFT_RIGHT_UNSIGNED, _F.BIT_GET, _F.REPEAT, _F.FORMAT_NUMBER,
            _F.DATE_ADD, _F.DATE_SUB, _F.ADD_MONTHS, _F.TIMESTAMP_ADD_MONTHS, _F.ELEMENT_AT,
        ),
        (None, 1),
    ),
    **dict.fromkeys((_F.SUBSTRING, _F.CONV, _F.MAKE_DATE), (None, 1, 1)),
    **dict.fromkeys((_F.LPAD, _F.RPAD), (None, 1, None)),
    **dict.fromkeys((_F.SUBSTRING_INDEX, _F.SPLIT_PART, _F.LOCATE, _F.LEVENSHTEIN), (None, None, 1)),
    _F.OVERLAY: (None, None, 1, 1),
    _F.WIDTH_BUCKET: (None, -2.5, 100.0, 10),
    _F.SHA2: (None, 256),
    _F.PARSE_URL: (None, "QUERY", "x"),
    _F.FORMAT_STRING: ("%s", None),
    _F.LIKE: (None, "a", "!"),
    **dict.fromkeys((_F.RLIKE, _F.TRIM, _F.TRIM_LEFT, _F.TRIM_RIGHT, _F.GET_FIELD, _F.GET_FIELDS), (None, "a")),
    _F.SPLIT: (None, "a", 1),
    _F.MASK: (None, "a", "a", "a", "a"),
    **dict.fromkeys((_F.REGEXP_EXTRACT, _F.REGEXP_EXTRACT_ALL, _F.REGEXP_INSTR), (None, _GROUPED, 1)),
    _F.REGEXP_REPLACE: (None, _GROUPED, "<$1>", 1),
    **dict.fromkeys((_F.ENCODE, _F.DECODE), (None, "UTF-8")),
    _F.NEXT_DAY: (None, "monday"),
    _F.TRUNC: (None, "month"),
    _F.DATE_TRUNC: ("hour", None),
    _F.TIMESTAMP_DIFF: ("hour", None, None),
    **dict.fromkeys((_F.DATE_FORMAT, _F.FROM_UNIXTIME), (None, "yyyy-MM")),
    _F.PARSE_TIMESTAMP: (None, "yyyy-MM-dd"),
    _F.TIMESTAMP_ADD: (None, dt.timedelta(seconds=5)),
    _F.MONTHS_BETWEEN: (None, None, True, _ZONE),
    **dict.fromkeys((_F.CAST_TIMESTAMP, _F.FROM_UTC_TIMESTAMP), (None, _ZONE)),
    **dict.fromkeys((_F.TO_UTC_TIMESTAMP, _F.START_OF_DAY), (None, _ZONE, None)),
    _F.GET_ITEM: (None, 0),
    _F.SORT_ARRAY: (None,),
    _F.ARRAY_JOIN: (None, ","),
    _F.ARRAY_REPEAT: (None, 2),
    _F.SLICE: (None, 1, 2),
    _F.NAMED_STRUCT: ("a", None),
    _F.MAP_FROM_ARRAYS: (None, None, False),
    _F.MAP_FROM_ENTRIES: (None, False),
    **dict.fromkeys((_F.TRANSFORM, _F.FILTER, _F.EXISTS, _F.FORALL), (None, True, _X)),
    **dict.fromkeys((_F.MAP_FILTER, _F.TRANSFORM_VALUES), (None, True, _X, _X)),
    _F.ZIP_WITH: (None, None, True, _X, _X),
    _F.MAP_ZIP_WITH: (None, None, True, _X, _X, _X),
    _F.ARRAY_SORT_BY: (None, True, _X, False, "last"),
    _F.AGGREGATE: (None, 0, 0, _X, _X, 0, _X),
}  # fmt: skip
"""Operands of functions that are called with constants; ``None``: a column."""


def example(spec: FunctionSpec) -> tuple[object, ...]:
    """Operands of a call; ``None``: a column.

    Texts, flags and expressions stand where the function computes with constants alone.
    """
    columns = len(spec.signature.parameters) or min(2, spec.signature.arity[1])
    return _CONSTANTS.get(spec.function, (None,) * columns)
