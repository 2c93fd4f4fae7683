"""Resolution: names, literals, what is refused and how that is told. Coercion is tested against Spark elsewhere."""

from __future__ import annotations

import dataclasses
import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gpujoin.errors import ConditionError
from gpujoin.functions.evaluate import evaluate, evaluate_column
from gpujoin.functions.support import is_supported
from gpujoin.model.expressions import (
    Call,
    Cast,
    ColumnRef,
    EvalMode,
    Expression,
    Function,
    Literal,
    call,
    left,
    lit,
    right,
    when,
)  # fmt: skip
from gpujoin.model.jointype import Side
from gpujoin.plan.resolve import literal_type, resolve, resolve_value

LEFT = pa.schema(
    [
        ("price", pa.int32()), ("name", pa.string()), ("twin", pa.int8()), ("twin", pa.int8()),
        ("tags", pa.list_(pa.string())), ("day", pa.date32()), ("at", pa.timestamp("us", "UTC")),
        ("who", pa.struct([("id", pa.int64()), ("Name", pa.string())])), ("flag", pa.bool_()),
        ("big", pa.decimal256(60, 0)), ("blob", pa.binary()),
    ]
)  # fmt: skip
RIGHT = pa.schema([("limit", pa.int64()), ("name", pa.dictionary(pa.int8(), pa.string())), ("u", pa.uint8())])


def refused(tree: Expression, mode: EvalMode = EvalMode.LEGACY) -> str:
    with pytest.raises(ConditionError) as caught:
        resolve(tree, LEFT, RIGHT, mode=mode)
    return str(caught.value)


WRONG_TYPES: dict[str, tuple[Expression, list[str]]] = {
    "name of a function": (call("year", left("day")) == 1, ["gpujoin.Function", "'year'", "Did you mean 'YEAR'"]),  # type: ignore[arg-type]
    "number as function": (call(5).is_null(), ["gpujoin.Function", "got 5"]),  # type: ignore[arg-type]
    "name of a mode": (call(Function.YEAR, left("day"), mode="ansi") == 1, ["EvalMode.ANSI", "'ansi'"]),  # type: ignore[arg-type]
    "number as column": (left(5) > 1, ["by name", "got 5"]),  # type: ignore[arg-type]
    "name of a type": (left("name").cast("int") > 1, ["pyarrow.int32()", "'int'"]),
    "text as branch": (when("x", left("flag")).else_(True), ["'x' is no expression"]),  # type: ignore[arg-type]
}  # fmt: skip


@pytest.mark.parametrize(("tree", "parts"), WRONG_TYPES.values(), ids=WRONG_TYPES)
def test_arguments_of_wrong_types_are_refused(tree: Expression, parts: list[str]) -> None:
    message = refused(tree)
    assert all(p in message for p in parts), message


@pytest.mark.parametrize("values", [5, "abc", None], ids=repr)
def test_is_in_refuses_what_is_no_sequence_of_values(values: Any) -> None:
    with pytest.raises(ConditionError, match=f"sequence of values, got {values!r}"):
        left("name").is_in(values)


def test_columns_are_found_by_name() -> None:
    resolved = resolve(left("price") < right("limit"), LEFT, RIGHT)
    columns = resolved.columns()
    assert [(c.side, c.name, c.index, c.type) for c in columns] == [
        (Side.LEFT, "price", 0, pa.int32()),
        (Side.RIGHT, "limit", 0, pa.int64()),
    ]
    assert all(n.type is not None for n in resolved.walk())


@pytest.mark.parametrize(
    ("tree", "parts"),
    [
        (left("prise") > 1, ["'prise'", "left", "Did you mean 'price'"]),
        (right("price") > 1, ["'price'", "right", "left('price')"]),
        (left("twin") > 1, ["'twin'", "ambiguous", "2 columns"]),
        (left("price"), ["price", "int32", "not boolean"]),
        (left("price") + 1, ["int32", "not boolean"]),
        (left("tags") == left("name"), ["=", "list", "cast"]),
        (left("flag") > left("price"), ["bool", "int32"]),
        (left("price") & left("flag"), ["and", "price", "int32"]),
        (~left("name"), ["not", "name", "string"]),
        (left("day") - left("day") > 1, ["day - day", "date32"]),
        (left("who") == right("limit"), ["struct", "int64"]),
        (left("who").field("Nam") == "x", ["'Nam'", "Did you mean 'Name'"]),
        (left("price").like("a", "b").is_in([left("tags")]), ["in", "list"]),
        (left("price").cast(pa.list_(pa.int8())).is_null(), ["cannot be cast", "list"]),
        (left("day").cast(pa.int32(), EvalMode.ANSI) > 1, ["cannot be cast", "int32"]),
        (when(left("price"), 1).else_(2) == 1, ["condition price", "int32", "not boolean"]),
        (left("big") > 1, ["big", "decimal256", "38 digits"]),
        (lit([1]).is_null(), ["[1]", "list", "cannot be a literal"]),
        (lit(10**40).is_null(), ["41 digits"]),
        (lit(Decimal("NaN")).is_null(), ["finite"]),
        (lit("x", pa.int32()).is_null(), ["'x'", "int32"]),
        (call(Function.NOT, left("flag"), left("flag")), ["not", "takes 1", "not 2"]),
        (call(Function.SUBSTRING, left("name")).is_null(), ["substring", "2 to 3"]),
    ],
    ids=str,
)
def test_refusals_say_what_and_where(tree: Expression, parts: list[str]) -> None:
    message = refused(tree)
    assert all(p in message for p in parts), message


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, pa.null()), (True, pa.bool_()), (1, pa.int32()), (1 << 31, pa.int64()), (-(1 << 31), pa.int32()),
        (1 << 63, pa.decimal128(19, 0)), (1.5, pa.float64()), ("a", pa.string()), (b"a", pa.binary()),
        (Decimal("1.50"), pa.decimal128(3, 2)), (Decimal("0.001"), pa.decimal128(3, 3)),
        (Decimal("1E3"), pa.decimal128(4, 0)),
        (Decimal(0), pa.decimal128(1, 0)), (dt.date(2024, 1, 1), pa.date32()), (dt.time(1), pa.time64("us")),
        (dt.datetime(2024, 1, 1, tzinfo=dt.UTC), pa.timestamp("us", "UTC")),
        (dt.datetime(2024, 1, 1, tzinfo=dt.UTC).replace(tzinfo=None), pa.timestamp("us")),
    ],
    ids=str,
)  # fmt: skip
def test_literal_types(value: Any, expected: pa.DataType) -> None:
    assert literal_type(value) == expected


def test_numpy_scalars_are_literals() -> None:
    resolved = resolve_value(lit(np.int64(3)), LEFT, RIGHT)
    assert isinstance(resolved, Literal)
    assert resolved.type == pa.int32()


def test_modes_reach_calls_and_casts() -> None:
    tree = (left("price") + 1).cast(pa.int8()) > left("name").cast(pa.int8(), EvalMode.TRY)
    resolved = resolve(tree, LEFT, RIGHT, mode=EvalMode.ANSI)
    casts = [n for n in resolved.walk() if isinstance(n, Cast)]
    assert [c.mode for c in casts] == [EvalMode.ANSI, EvalMode.TRY]
    assert all(n.mode is EvalMode.ANSI for n in resolved.walk() if isinstance(n, Call))


def test_typed_trees_pass_unchanged() -> None:
    a = ColumnRef(side=Side.LEFT, name="price", type=pa.int32())
    b = ColumnRef(side=Side.RIGHT, name="limit", type=pa.int64())
    wide = Cast(child=a, to=pa.int64(), mode=EvalMode.ANSI, type=pa.int64())
    tree = Call(function=Function.LT, arguments=(wide, b), type=pa.bool_(), mode=EvalMode.LEGACY)
    resolved = resolve(tree, LEFT, RIGHT, mode=EvalMode.ANSI)
    placed = tree.with_children(
        [wide.with_children([dataclasses.replace(a, index=0)]), dataclasses.replace(b, index=0)]
    )
    assert resolved.same_as(placed)
    half = Call(function=Function.LT, arguments=(left("price"), b), type=pa.bool_())
    assert "type all nodes or none" in refused(half)
    far = Call(function=Function.IS_NULL, arguments=(dataclasses.replace(a, index=99),), type=pa.bool_())
    assert "column 99" in refused(far)


def test_typed_columns_may_share_a_name() -> None:
    twin = ColumnRef(side=Side.LEFT, name="twin", index=3, type=pa.int8())
    resolved = resolve(Call(function=Function.IS_NULL, arguments=(twin,), type=pa.bool_()), LEFT, RIGHT)
    assert resolved.columns()[0].index == 3


def test_layouts_of_columns_do_not_matter() -> None:
    texts = ["a", None, "é", "b"]
    plain = pa.array(texts)
    layouts = [
        plain, plain.cast(pa.large_string()), plain.cast(pa.string_view()), plain.dictionary_encode(),
        pa.RunEndEncodedArray.from_arrays([1, 2, 3, 4], plain), pa.concat_arrays([plain, plain]).slice(4, 4),
    ]  # fmt: skip
    for one in layouts:
        for two in layouts:
            a, b = pa.record_batch({"s": one}), pa.record_batch({"s": two})
            for tree in (
                left("s") == right("s"),
                right("s").contains(left("s")),
                left("s").startswith(right("s")),
            ):
                resolved = resolve(tree, a.schema, b.schema)
                assert is_supported(resolved)
                assert evaluate(resolved, a, b, 4).tolist() == [True, False, True, True], (
                    tree,
                    one.type,
                    two.type,
                )


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (pa.array([0, 255, None], pa.uint8()), [False, True, None]),
        (pa.array([0, 2**64 - 1, None], pa.uint64()), [False, True, None]),
        (pa.array([0.5, 65504.0, None], pa.float16()), [False, True, None]),
        (pa.array([Decimal(1), Decimal(300), None], pa.decimal32(5, 1)), [False, True, None]),
    ],
    ids=lambda x: str(x.type) if isinstance(x, pa.Array) else "",
)
def test_types_that_spark_lacks_are_widened(array: pa.Array, expected: list[bool | None]) -> None:
    batch = pa.record_batch({"x": array})
    resolved = resolve(left("x") > 100, batch.schema, batch.schema)
    assert is_supported(resolved)
    assert evaluate_column(resolved, batch, batch, 3).to_pylist() == expected


def test_sliced_columns_with_nulls() -> None:
    batch = pa.record_batch(
        {
            "i": pa.array([9, None, 3, None, 5], pa.int32()),
            "b": pa.array([True, None, False, True, None]),
            "d": pa.array([Decimal(9), None, Decimal(-3), None, Decimal(5)], pa.decimal128(38, 0)),
        }
    ).slice(1, 3)
    for tree, expected in [
        (left("i") == 3, [None, True, None]),
        (left("b"), [None, False, True]),
        (left("d") < 0, [None, True, None]),
        (left("d").cast(pa.string()), [None, "-3", None]),
    ]:
        resolved = resolve_value(tree, batch.schema, batch.schema)
        assert evaluate_column(resolved, batch, batch, 3).to_pylist() == expected
