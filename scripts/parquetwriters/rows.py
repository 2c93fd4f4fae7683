"""The values that every writer writes, as lists of Python's own types; runs on Python 3.6."""

import datetime as dt
import sys
from decimal import Decimal
from typing import Any, List, Sequence  # noqa: UP035

COUNT = 24


def _cycle(values: Sequence[Any], step: int) -> List[Any]:  # noqa: UP006
    """Take every so many-th of some values, again and again."""
    return [values[n * step % len(values)] for n in range(COUNT)]


_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - of columns without a zone
NAN, INFINITY = float("nan"), float("inf")
COLUMNS: Any = {
    "id": list(range(COUNT)),
    "flag": _cycle([True, None, False, True, False], 1),
    "i8": _cycle([0, -128, 127, None, 1, -1, 5], 3),
    "i16": _cycle([0, -32768, 32767, None, 1], 2),
    "i32": _cycle([0, -(2**31), 2**31 - 1, None, 7, -7, 1], 4),
    "i64": _cycle([0, -(2**63), 2**63 - 1, None, 1700000000, 1, -1], 5),
    "u8": _cycle([0, 255, None, 128, 1], 1),
    "u16": _cycle([0, 65535, None, 32768, 1], 2),
    "u32": _cycle([0, 2**32 - 1, None, 2**31, 1], 3),
    "u64": _cycle([0, 2**64 - 1, None, 2**63, 1], 4),
    "f32": _cycle([0.0, -0.0, 1.5, NAN, None, INFINITY, -INFINITY], 2),
    "f64": _cycle([0.0, -0.0, 0.1, NAN, None, INFINITY, -INFINITY, 5e-324, 1e300], 2),
    "text": _cycle(["", "a", "b", None, "ü", "x" * 30, "a ", "名"], 3),
    "bytes": _cycle([b"", b"a", None, b"\xff\xfe", b"\x00", b"\x80" * 9], 5),
    "day": _cycle([dt.date(1970, 1, 1), dt.date(1969, 12, 31), None, dt.date(2024, 2, 29), dt.date(9999, 12, 31)], 2),
    "moment": _cycle(
        [
            _EPOCH, _EPOCH - dt.timedelta(milliseconds=1), None,
            _EPOCH + dt.timedelta(19782, 45015, 250000), _EPOCH + dt.timedelta(47117),
        ],
        3,
    ),
    "dec9": _cycle([Decimal("0.00"), Decimal("-9999999.99"), None, Decimal("9999999.99"), Decimal("1.25")], 1),
    "dec18": _cycle([Decimal("0.0000"), Decimal("-99999999999999.9999"), None, Decimal("1.2500")], 3),
    "dec38": _cycle([Decimal("0." + "0" * 10), Decimal("9" * 28 + "." + "9" * 10), None, Decimal("-1." + "5" * 10)], 1),
    "few": _cycle(["red", "green", None, "red", "blue"], 1),
    "ints": _cycle([[1, 2], [], None, [None], [3, None, 3]], 2),
    "point": _cycle([{"x": 1, "y": "a"}, {"x": None, "y": None}, None, {"x": 1, "y": "b"}], 3),
    "late": [None] * 20 + [1, 2, 3, 4],
    "nothing": [None] * COUNT,
}  # fmt: skip
"""Columns by name. The last one has no value, the one before none in most row groups."""
FOLDER = sys.argv[1] if len(sys.argv) > 1 else ""
