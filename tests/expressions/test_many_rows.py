"""Functions of text, hashes, bits and floating-point numbers over 10,000 random rows of nasty values, against Spark."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from gpujoin.model.expressions import EvalMode, Expression, Function, call, left, lit, right
from tests.expressions.judge import Judge

pytestmark = [pytest.mark.spark, pytest.mark.extra]

ROWS = 10_000
TREES_OF_A_QUERY = 20
PIECES = [
    "", "a", "b", "ab", "abc", "A", "Z", "i", "I", " ", "  ", ",", ",,", "-", "1", "23", "é", "É", "e\u0301", "日",
    "本語", "😀", "👨\u200d👩\u200d👧", "🇩🇪", "\0", "\n", "\r\n", "\t", "ß", "ж", "Я", "שלום", "اب", "\u00a0", "\u200b",
    "\ufeff", "%", "_", "\\", "$1", "\U0010fffd", "\ue000", "long text, " * 20, "x" * 33,
]  # fmt: skip
INTEGERS = {
    bits: [
        0,
        1,
        -1,
        2,
        7,
        -8,
        31,
        32,
        33,
        63,
        64,
        100,
        -100,
        (1 << (bits - 1)) - 1,
        -(1 << (bits - 1)),
        1 << (bits // 2),
    ]
    for bits in (8, 16, 32, 64)
}
DOUBLES = [0.0, -0.0, 1.0, -1.0, 0.1, 1 / 3, math.pi, 1e-300, 5e-324, 1e300, -1.7976931348623157e308, math.nan,
           math.inf, -math.inf, 99.99999999999999, 100.0]  # fmt: skip
FLOATS = [0.0, -0.0, 1.0, -1.5, 1e-45, 3.4e38, math.nan, math.inf, -math.inf]


def columns(generator: random.Random) -> dict[str, Callable[[], Any]]:
    """A generator of values for each kind of column."""

    def text() -> str:
        return "".join(generator.choices(PIECES, k=generator.choice((0, 1, 1, 2, 3, 5))))

    def integer(bits: int) -> int:
        half = 1 << (bits - 1)
        return generator.choice((generator.choice(INTEGERS[bits]), generator.randrange(-half, half)))

    def double() -> float:
        return generator.choice((generator.choice(DOUBLES), generator.gauss(0, 1e3), generator.uniform(-1, 1)))

    def decimal(precision: int, scale: int) -> Decimal:
        digits = generator.choice((1, 3, precision))
        return Decimal(generator.randrange(1 - 10**digits, 10**digits)).scaleb(-scale)

    days, micros = dt.date.max.toordinal(), 250_000_000_000_000_000
    return {
        "str": text,
        "bin": lambda: generator.randbytes(generator.choice((0, 1, 3, 4, 7, 8, 31, 32, 33, 100))),
        "bool": lambda: generator.random() < 0.5,
        "small": lambda: generator.randrange(-5, 30),
        "i8": lambda: integer(8),
        "i16": lambda: integer(16),
        "i32": lambda: integer(32),
        "i64": lambda: integer(64),
        "f32": lambda: generator.choice((generator.choice(FLOATS), float(generator.randrange(-1000, 1000)) / 8)),
        "f64": double,
        "d9_2": lambda: decimal(9, 2),
        "d18_0": lambda: decimal(18, 0),
        "d38_10": lambda: decimal(38, 10),
        "date": lambda: dt.date.fromordinal(generator.randrange(1, days + 1)),
        "ts": lambda: generator.randrange(-62_135_596_800_000_000, micros),
        "ntz": lambda: generator.randrange(-62_135_596_800_000_000, micros),
    }


TYPES = {
    "str": pa.string(), "bin": pa.binary(), "bool": pa.bool_(), "small": pa.int32(), "i8": pa.int8(), "i16": pa.int16(),
    "i32": pa.int32(), "i64": pa.int64(), "f32": pa.float32(), "f64": pa.float64(), "d9_2": pa.decimal128(9, 2),
    "d18_0": pa.decimal128(18, 0), "d38_10": pa.decimal128(38, 10), "date": pa.date32(),
    "ts": pa.timestamp("us", "UTC"), "ntz": pa.timestamp("us"),
}  # fmt: skip


def random_rows(seed: int) -> pa.Table:
    """One value in ten is null."""
    generator = random.Random(seed)
    arrays: dict[str, pa.Array] = {"id": pa.array(range(ROWS), pa.int32())}
    for side in ("left", "right"):
        for kind, draw in columns(generator).items():
            values = [None if generator.random() < 0.1 else draw() for _ in range(ROWS)]
            arrays[f"{side}_{kind}"] = pa.array(values, TYPES[kind])
    return pa.table(arrays)


def trees() -> list[Expression]:
    """Calls of each function over columns, and over a column and constants."""
    f, text, other, number = Function, left("str"), right("str"), left("small")
    calls: list[tuple[Function, tuple[object, ...]]] = [
        *((g, (text, number, pad)) for g in (f.LPAD, f.RPAD) for pad in (other, "日😀", "")),
        *((g, (text, 6)) for g in (f.LPAD, f.RPAD)),
        *((g, (text, *rest)) for g in (f.TRIM, f.TRIM_LEFT, f.TRIM_RIGHT) for rest in ((), (" ,a😀",), (other,))),
        *((f.BIT_LENGTH, (left(kind),)) for kind in ("str", "bin")),
        *((f.BIN, (left(kind),)) for kind in ("i8", "i64")),
        (f.REPEAT, (text, right("small"))),
        *((f.REPLACE, (text, *rest)) for rest in (("a", "bb"), (other, "<>"), ("😀", ""), (" ", other))),
        *((f.TRANSLATE, (text, *rest)) for rest in (("ab,é😀", "bA"), (other, "xyz"), ("aa\0", "1\0"))),
        *((f.CONCAT_WS, arguments) for arguments in ((",", text, other), (other, text, number, left("date")), (text,))),
        *((f.SUBSTRING_INDEX, (text, *rest)) for rest in ((",", 1), (",", -2), (other, number), ("a", right("small")))),
        *((f.SPLIT_PART, (text, *rest)) for rest in ((",", 1), (",", -1), (other, 2), ("a", right("i8")))),
        *((f.LOCATE, rest) for rest in (("a", text), (other, text), ("b", text, 3), (other, text, 0))),
        *((f.INSTR, rest) for rest in ((text, "a"), (text, other))),
        *((g, (text,)) for g in (f.ASCII, f.UPPER, f.LOWER, f.HEX, f.MD5, f.SHA1, f.CRC32)),
        *((g, (left("bin"),)) for g in (f.HEX, f.MD5, f.SHA1, f.CRC32)),
        (f.INITCAP, (call(f.CONCAT, " a", call(f.REPLACE, text, "ß", "s")),)),
        *((f.CHR, (left(kind),)) for kind in ("i8", "small", "i64")),
        *((f.SHA2, (left("bin"), bits)) for bits in (0, 224, 256, 384, 512, 1)),
        *((f.HEX, (left(kind),)) for kind in ("i8", "i32", "i64")),
        *((g, (left(kind),)) for g in (f.HASH, f.XXHASH64) for kind in TYPES),
        *((g, tuple(left(kind) for kind in TYPES)) for g in (f.HASH, f.XXHASH64)),
        *((g, (right("d38_10"), text, lit(None, pa.int32()), other, 7)) for g in (f.HASH, f.XXHASH64)),
        *((g, (left(kind),)) for g in (f.SIGN, f.DEGREES, f.RADIANS) for kind in ("f64", "i32")),
        *((f.NANVL, (left(kind), right(kind))) for kind in ("f32", "f64")),
        *((f.WIDTH_BUCKET, (left("f64"), *rest)) for rest in ((-1.0, 1.0, 10), (100.0, 0.0, right("i64")))),
        (f.WIDTH_BUCKET, (left("f64"), right("f64"), 5.5, left("small"))),
        *((g, (left(k), right(k))) for g in (f.BIT_AND, f.BIT_OR, f.BIT_XOR) for k in ("i8", "i16", "i32", "i64")),
        *((g, (left(k),)) for g in (f.BIT_NOT, f.BIT_COUNT) for k in ("i8", "i16", "i32", "i64")),
        *(
            (g, (left(kind), right(shift)))
            for g in (f.SHIFT_LEFT, f.SHIFT_RIGHT, f.SHIFT_RIGHT_UNSIGNED)
            for kind in ("i8", "i32", "i64")
            for shift in ("small", "i32")
        ),
        *(
            (f.REGEXP_EXTRACT, (text, *rest))
            for rest in (("(a)(b?)", 2), (r"(\d+)", 1), ("([^,]*),(.)", 2), (".{2}", 0), ("^(.*?)é", 1), (r"(\w*)$", 1))
        ),
        *(
            (f.REGEXP_REPLACE, (text, *rest))
            for rest in (("a", ""), (r"(\w)(\s)", "$2$1"), ("[^a-z]", "."), ("日|本", r"\$"), (".", "$0$0"))
        ),
    ]  # fmt: skip
    return [call(function, *arguments) for function, arguments in calls]


@pytest.mark.parametrize("mode", [EvalMode.LEGACY, EvalMode.ANSI], ids=lambda m: m.value)
def test_many_rows(asking_judge_of: Callable[[pa.Table], Judge], mode: EvalMode, seed: int) -> None:
    print(f"seed {seed}")
    judge = asking_judge_of(random_rows(seed))
    listed = trees()
    for start in range(0, len(listed), TREES_OF_A_QUERY):
        judge.check(listed[start : start + TREES_OF_A_QUERY], mode)
