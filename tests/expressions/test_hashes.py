"""Hashes and hexadecimal digits, against Spark."""

from __future__ import annotations

import random
from collections.abc import Callable

import pyarrow as pa
import pytest

from gpujoin.errors import ConditionError
from gpujoin.model.expressions import EvalMode, Expression, Function, call, left, lit, right
from gpujoin.plan.resolve import resolve_value
from tests.expressions.judge import Judge

KINDS = ["bool", "i8", "i16", "i32", "i64", "f32", "f64", "d9_2", "d18_6", "d38_0", "d38_18", "d38_38", "str", "bin",
         "date", "ts", "ntz"]  # fmt: skip
HASHES = (Function.HASH, Function.XXHASH64)


@pytest.mark.parametrize("mode", [EvalMode.LEGACY, EvalMode.ANSI], ids=lambda m: m.value)
def test_against_spark(judge: Callable[..., Judge], mode: EvalMode) -> None:
    text = left("str")
    trees: list[Expression] = [call(f, left(kind), right(kind)) for f in HASHES for kind in KINDS]
    trees += [call(f, *(left(kind) for kind in KINDS)) for f in HASHES]
    trees += [call(f, "日本", text, lit(7, pa.int64()), lit(1.5)) for f in HASHES]
    trees += [call(Function.HEX, left(kind)) for kind in ("i8", "i16", "i32", "i64", "str", "bin")]
    trees += [call(Function.BIN, left(kind)) for kind in ("i8", "i64")]
    for column in (text, left("bin")):
        trees += [call(f, column) for f in (Function.MD5, Function.SHA1, Function.CRC32)]
        trees += [call(Function.SHA2, column, bits) for bits in (0, 1, 224, 256, 384, 512, -256, None)]
        trees.append(call(Function.SHA2, column, right("i32")))
    judge(*KINDS).check(trees, mode)


@pytest.mark.parametrize("function", HASHES, ids=lambda f: f.value)
@pytest.mark.parametrize("lengths", [range(100), [0] * 40, [3] * 40 + [5000] * 3, [8192] * 20 + [1]], ids=str)
def test_texts_of_many_lengths(judge_of: Callable[[pa.Table], Judge], function: Function, lengths: list[int]) -> None:
    """Rows that are hashed together, and those that are left when the others have ended."""
    generator = random.Random(7)
    texts = [generator.randbytes(n) for n in lengths]
    generator.shuffle(texts)
    numbers = [1, None] * (len(texts) // 2) + [5] * (len(texts) % 2)
    rows = pa.array(range(len(texts)), pa.int32())
    judge_of(pa.table({"id": rows, "left_a": numbers, "left_b": texts})).check([call(function, left("a"), left("b"))])


@pytest.mark.parametrize("dtype", [pa.list_(pa.int32()), pa.struct([("x", pa.int32())]), pa.timestamp("ns")], ids=str)
def test_types_that_are_left_to_spark(dtype: pa.DataType) -> None:
    schema = pa.schema([("x", dtype)])
    for function in HASHES:
        with pytest.raises(ConditionError, match="cannot be applied"):
            resolve_value(call(function, left("x")), schema, schema)
