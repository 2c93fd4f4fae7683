"""Tables of special values: every left value meets every right value of its type."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa

SIDE = 22
"""Most values of a type; tables have this many squared rows."""

D = Decimal
_UTC = dt.UTC


def _integers(bits: int) -> list[int | None]:
    top = 1 << (bits - 1)
    return [
        None,
        0,
        1,
        -1,
        2,
        -2,
        3,
        7,
        -7,
        10,
        99,
        100,
        -100,
        top - 1,
        -top,
        top - 2,
        1 - top,
        top // 2,
        -top // 2,
    ]


VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "bool": (pa.bool_(), [None, True, False]),
    "i8": (pa.int8(), _integers(8)),
    "i16": (pa.int16(), _integers(16)),
    "i32": (pa.int32(), _integers(32)),
    "i64": (pa.int64(), [*_integers(64), (1 << 53) + 1, 3037000500, -3037000500]),
    "f32": (
        pa.float32(),
        [None, 0.0, -0.0, 1.0, -1.0, 1.5, -2.5, 0.1, 3.4e38, -3.4e38, 1e-45, math.nan, math.inf, -math.inf,
         2147483648.0, 9.223372036854775807e18, 127.9, -128.9, 16777217.0],
    ),
    "f64": (
        pa.float64(),
        [None, 0.0, -0.0, 1.0, -1.0, 1.5, -2.5, 0.1, 1e308, -1e308, 5e-324, math.nan, math.inf, -math.inf,
         2147483647.5, -2147483648.5, 9.223372036854775807e18, -9.3e18, 127.9, 9007199254740993.0, 3.0],
    ),
    "d9_2": (
        pa.decimal128(9, 2),
        [None, D("0.00"), D("1.00"), D("-1.00"), D("0.01"), D("-0.01"), D("1.50"), D("-2.50"), D("9999999.99"),
         D("-9999999.99"), D("3.33"), D("127.99"), D("100.00"), D("0.05")],
    ),
    "d18_6": (
        pa.decimal128(18, 6),
        [None, D("0"), D("1"), D("-1"), D("0.000001"), D("-0.000001"), D("0.000005"), D("999999999999.999999"),
         D("-999999999999.999999"), D("2.5"), D("-7.000001"), D("1234567.891011"), D("0.3")],
    ),
    "d38_0": (
        pa.decimal128(38, 0),
        [None, D(0), D(1), D(-1), D(2), D(10**37), D(10**38 - 1), D(1 - 10**38), D(2**63), D(-(2**63)),
         D(2**63 - 1), D(7), D(-3), D(2**31), D(12345678901234567890)],
    ),
    "d38_18": (
        pa.decimal128(38, 18),
        [None, D(0), D(1), D(-1), D("1E-18"), D("-1E-18"), D("99999999999999999999.999999999999999999"),
         D("-99999999999999999999.999999999999999999"), D("0.333333333333333333"), D("2.5"), D("1234567890.5"),
         D("9223372036854775807"), D("9223372036854775808.5"), D("0.000000000000000005")],
    ),
    "d38_38": (
        pa.decimal128(38, 38),
        [None, D(0), D("0.5"), D("-0.5"), D("1E-38"), D("3E-38"), D("0." + "9" * 38), D("-0." + "9" * 38),
         D("0." + "3" * 38)],
    ),
    "str": (
        pa.string(),
        [None, "", "a", "A", "b", "ab", "abc", "%", "_", "a%", "a_c", "é", "日本", "日本語", "😀", "😀x", " a ", "ba",
         "\n", "a\nb", "z" * 40],
    ),
    "bin": (pa.binary(), [None, b"", b"\x00", b"\x7f", b"\x80", b"\xff", b"\x00\x01", b"ab", b"abc", b"b"]),
    "date": (
        pa.date32(),
        [None, *(dt.date.fromisoformat(d) for d in (
            "1970-01-01", "1969-12-31", "1970-01-02", "2000-02-29", "1900-02-28", "1900-03-01", "0001-01-01",
            "9999-12-31", "1582-10-04", "1582-10-15", "2024-12-31", "2023-06-15", "2024-02-29", "1600-02-29",
        ))],
    ),
    "ts": (
        pa.timestamp("us", "UTC"),
        [None, *(dt.datetime.fromisoformat(t).replace(tzinfo=_UTC) for t in (
            "1970-01-01T00:00:00", "1969-12-31T23:59:59.999999", "1970-01-01T00:00:00.000001",
            "2000-02-29T12:34:56.789", "0001-01-01T00:00:00", "9999-12-31T23:59:59.999999", "1582-10-04T05:06:07",
            "2024-12-31T23:59:59", "2023-06-15T00:00:00", "2024-02-29T00:00:00.1",
        ))],
    ),
    "ntz": (
        pa.timestamp("us"),
        [None, *(dt.datetime.fromisoformat(t) for t in (
            "1970-01-01T00:00:00", "1969-12-31T23:59:59.999999", "1970-01-01T00:00:00.000001",
            "2000-02-29T12:34:56.789", "0001-01-01T00:00:00", "9999-12-31T23:59:59.999999", "2023-06-15T00:00:00",
        ))],
    ),
    "struct": (
        pa.struct([pa.field("x", pa.int32()), pa.field("y", pa.string())]),
        [None, {"x": 1, "y": "a"}, {"x": 1, "y": None}, {"x": None, "y": "a"}, {"x": None, "y": None},
         {"x": 1, "y": "b"}, {"x": 2, "y": "a"}, {"x": -1, "y": ""}],
    ),
    "num_str": (
        pa.string(),
        [None, "", " ", "0", "1", "-1", "+7", " 12 ", "1.5", ".5", "5.", ".", "-", "+", "1e3", "127", "128",
         "2147483648", "9223372036854775807", "9223372036854775808", "abc", "\t3\n"],
    ),
    "odd_str": (
        pa.string(),
        [None, "NaN", "nan", "inf", "-Infinity", "+inf", "1d", "1.5F", "0x10p2", "1e400", "-1e-400", "1_0", "١",
         "1e", "99999999999999999999999999999999999999", "0.000000000000000000000000000000000000005", "1E+38", "1E-50",
         "0E100", "\x0012\x7f", "1.", "-.5e1"],
    ),
    "word": (
        pa.string(),
        [None, "t", "TRUE", "True ", " y", "yes", "1", "0", "f", "False", "no", "N", "on", "", "tru", "2", "\ttrue\n"],
    ),
    "date_str": (
        pa.string(),
        [None, "2024-02-29", "2023-02-29", "2024-1-1", "2024", "2024-03", "2024-3 ", " 2024-12-31 ", "2024-12-31T1:2",
         "2024-12-31 junk", "12024-01-01", "-0001-01-01", "+2024-01-01", "0000-01-01", "24-01-01", "2024/01/01",
         "2024-13-01", "", "9999999-01-01", "2024-01-01-", "2024-001-01", "epoch"],
    ),
}  # fmt: skip


def table(names: list[str], *, pairs: bool = True) -> pa.Table:
    """The columns ``left_<type>`` and ``right_<type>``, and ``id``.

    Rows pair each value with each; or, without ``pairs``, with itself.
    """
    rows = SIDE * SIDE if pairs else SIDE
    step = SIDE if pairs else 1
    columns: dict[str, pa.Array] = {"id": pa.array(range(rows), pa.int32())}
    for name in names:
        dtype, values = VALUES[name]
        assert len(values) <= SIDE, (name, len(values))
        columns[f"left_{name}"] = pa.array([values[i // step % len(values)] for i in range(rows)], dtype)
        columns[f"right_{name}"] = pa.array([values[i % SIDE % len(values)] for i in range(rows)], dtype)
    return pa.table(columns)
