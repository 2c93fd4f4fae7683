"""Conditions compiled into kernels (``residual.cu``), against the evaluator of the array backend."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gpujoin.backends.cudf import residual
from gpujoin.backends.cudf.residual import compiled_mask, write
from gpujoin.errors import ExpressionEvaluationError, KernelArgumentError
from gpujoin.functions.evaluate_device import DeviceEvaluator
from gpujoin.launch import residual as launcher
from gpujoin.launch.matches import UniqueMatches
from gpujoin.launch.residual import ConditionColumn
from gpujoin.model.algorithm import Algorithm
from gpujoin.model.expressions import EvalMode, Expression, left, lit, right
from gpujoin.model.jointype import JoinType, Side
from gpujoin.plan.resolve import resolve
from tests.backends.cudf.host import HostSource
from tests.kernels.conftest import MakeDevice
from tests.kernels.emulator import EmulatedDevice
from tests.kernels.test_engine import joined

SCHEMA = pa.schema(
    [("b", pa.bool_()), ("y", pa.int8()), ("h", pa.int16()), ("i", pa.int32()), ("l", pa.int64()), ("f", pa.float32()),
     ("d", pa.float64()), ("t", pa.date32()), ("m", pa.decimal128(12, 2)), ("s", pa.string())]
)  # fmt: skip
NAN = float("nan")
POOLS: dict[str, list[Any]] = {
    "b": [True, False], "y": [-128, 0, 1, 127], "h": [-(1 << 15), 0, 1, 300],
    "i": [-(1 << 31), -1, 0, 1, (1 << 31) - 1], "l": [-(1 << 63), -1, 0, 1, (1 << 63) - 1],
    "f": [NAN, 0.0, -0.0, 1.5, math.inf], "d": [NAN, 0.0, -0.0, 1.5, -math.inf, 0.1],
    "t": [datetime.date(1969, 12, 31), datetime.date(2024, 2, 29)],
    "m": [Decimal("1.50"), Decimal("-0.01"), Decimal("0.00")], "s": ["", "a"],
}  # fmt: skip


def table(rng: np.random.Generator, rows: int) -> pa.Table:
    columns = []
    for column in SCHEMA:
        pool = [*POOLS[column.name], None]
        columns.append(pa.array([pool[i] for i in rng.integers(0, len(pool), rows)], column.type))
    return pa.table(columns, schema=SCHEMA)


def every(*parts: Expression) -> Expression:
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.equal_null_safe(part)
    return whole


CONDITIONS: dict[str, Expression] = {
    "integers": every(
        left("i") < right("i"), left("y") <= right("h"), left("l") > right("i"), left("l") >= right("l"),
        left("h") == right("y"), left("i") != right("l"), left("i").equal_null_safe(right("i")),
        left("l") == lit(-(1 << 63)), left("i") < lit((1 << 31) - 1), left("y").is_in([0, 127]),
    ),
    "floats": every(
        left("f") < right("f"), left("d") == right("d"), left("d") <= right("f"), left("d").is_nan(),
        left("d").equal_null_safe(right("d")), left("d") + right("d") > left("d") * lit(0.1),
        left("d") - right("d") < lit(1.25), left("i") < right("d"),
    ),
    "logic": (left("b") & (left("i") < right("i"))) | ~(right("b") | (left("d") > right("d"))),
    "nulls": left("s").is_null() | (right("i").is_not_null() & (left("i") < right("i")).is_null()),
    "null of and": (left("b") & right("b")).is_null(),
    "null of or": (left("b") | right("b")).is_null(),
    "null of arithmetic": every(
        (left("d") + right("d") > lit(0.0)).is_null(), (left("d") - right("d") > lit(0.0)).is_null(),
        (left("d") * right("d") > lit(0.0)).is_null(),
    ),
    "dates and decimals": every(left("t") < right("t"), left("m") >= right("m"), left("m") == lit(Decimal("1.50")),
                                left("t") == lit(datetime.date(2024, 2, 29))),
    "no columns": lit(3).is_in([2, 3]) & lit(True),
}  # fmt: skip


def sources(left_table: pa.Table, right_table: pa.Table) -> HostSource:
    return HostSource({Side.LEFT: left_table, Side.RIGHT: right_table})


@pytest.mark.parametrize("name", CONDITIONS)
def test_as_the_evaluator(emulated: EmulatedDevice, rng: np.random.Generator, name: str) -> None:
    condition = resolve(CONDITIONS[name], SCHEMA, SCHEMA)
    for rows in (0, 1, 257, 900):
        source = sources(table(rng, rows), table(rng, rows))
        mask = compiled_mask(emulated, source, condition, rows)
        assert mask is not None
        expected = DeviceEvaluator(np, source).mask(condition, rows)
        assert emulated.download(mask).tolist() == expected.tolist()


@pytest.mark.parametrize("mode", EvalMode, ids=lambda m: m.value)
def test_overflow(emulated: EmulatedDevice, rng: np.random.Generator, mode: EvalMode) -> None:
    """Wrapped, null, or left to the evaluator, which alone knows whether Spark would have got that far."""
    condition = resolve(
        every(left("i") + right("i") > lit(0), left("l") - right("l") <= right("l") + left("i")),
        SCHEMA,
        SCHEMA,
        mode=mode,
    )
    source = sources(table(rng, 600), table(rng, 600))
    mask = compiled_mask(emulated, source, condition, 600)
    if mode is EvalMode.ANSI:
        assert mask is None
        with pytest.raises(ExpressionEvaluationError):
            DeviceEvaluator(np, source).mask(condition, 600)
        small = pa.table({c.name: [None] * 5 for c in SCHEMA}, schema=SCHEMA)
        calm = compiled_mask(emulated, sources(small, small), condition, 5)
        assert calm is not None
        return
    assert mask is not None
    assert emulated.download(mask).tolist() == DeviceEvaluator(np, source).mask(condition, 600).tolist()


@pytest.mark.parametrize(
    "condition",
    [
        left("s").startswith("a"),
        left("i") * right("i") > lit(3),
        left("i") % right("i") == lit(1),
        left("l").cast(pa.int8()) == right("y"),
    ],
    ids=["text", "integer product", "remainder", "narrowing cast"],
)
def test_what_is_not_written(condition: Expression) -> None:
    assert write(resolve(condition, SCHEMA, SCHEMA)) is None


def test_matches_are_restricted(emulated: EmulatedDevice, rng: np.random.Generator) -> None:
    probe, build = rng.integers(0, 10, 300), rng.integers(0, 10, 40)
    row = rng.integers(-1, 40, 300).astype(np.int32)
    text = "from_left(pair).column<i64>(0).lt(from_right(pair).column<i64>(1))"
    for probe_is_left in (True, False):
        given = (probe, build) if probe_is_left else (build, probe)
        columns = [ConditionColumn(emulated.upload(values), None) for values in given]
        before = UniqueMatches(emulated.upload(row), 0)
        restricted, failed = launcher.restrict(emulated, text, columns, before, 40, probe_is_left=probe_is_left)
        assert emulated.download(before.row).tolist() == row.tolist(), "another way may have to start from it"
        kept = (row >= 0) & ((probe < build[row]) if probe_is_left else (build[row] < probe))
        assert not failed
        assert restricted.pairs == kept.sum()
        assert emulated.download(restricted.row).tolist() == np.where(kept, row, -1).tolist()


def test_every_match_of_many_is_tried(emulated: EmulatedDevice, rng: np.random.Generator) -> None:
    """More rows than threads; overflows among them are told, wherever and however many, and only those."""
    count = 2100
    text = (
        "from_left(pair).column<i64>(0).add(from_right(pair).column<i64>(1)).checked<FAIL>(pair).lt(literal<i64>(10))"
    )
    row = rng.integers(-1, 40, count).astype(np.int32)
    row[[0, 767, 768, count - 1]] = 7
    build = rng.integers(0, 10, 40)
    build[7] = 1
    for overflows in ([], [0], [767], [768], [count - 1], [0, 767, 768, count - 1]):
        probe = rng.integers(0, 10, count)
        probe[overflows] = (1 << 63) - 1
        columns = [ConditionColumn(emulated.upload(values), None) for values in (probe, build)]
        restricted, failed = launcher.restrict(
            emulated, text, columns, UniqueMatches(emulated.upload(row), 0), 40, probe_is_left=True
        )
        kept = (row >= 0) & (probe + build[row] < 10)
        assert failed == bool(overflows)
        assert restricted.pairs == kept.sum()
        assert (emulated.download(restricted.row) == np.where(kept, row, -1)).all()


def test_rows_by_maps(emulated: EmulatedDevice, rng: np.random.Generator) -> None:
    left_table, right_table = rng.integers(0, 10, 30), rng.integers(0, 10, 50)
    left_row, right_row = rng.integers(0, 30, 200).astype(np.int32), rng.integers(0, 50, 200).astype(np.int32)
    columns = [ConditionColumn(emulated.upload(values), None) for values in (left_table, right_table)]
    mask, _ = launcher.mask(
        emulated, "from_left(pair).column<i64>(0).eq(from_right(pair).column<i64>(1))", columns, 200,
        emulated.upload(left_row), emulated.upload(right_row),
    )  # fmt: skip
    assert emulated.download(mask).tolist() == (left_table[left_row] == right_table[right_row]).tolist()
    with pytest.raises(KernelArgumentError, match="int32"):
        launcher.mask(emulated, "literal<bool>(true)", [], 3, emulated.zeros(3, np.int64))


def test_joins_under_a_compiled_condition(emulated: EmulatedDevice, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residual, "FEWEST_PAIRS", 0)
    for kind in (JoinType.FULL, JoinType.LEFT_ANTI):
        launched = joined(
            emulated, kind, Side.RIGHT, (pa.int16(),), seed, wanted=Algorithm.CSR,
            condition=left("n") < right("n"),
        )  # fmt: skip
        assert "residual_mask" in launched


def test_a_condition_that_does_not_compile_is_evaluated_otherwise(
    make_device: MakeDevice, caplog: pytest.LogCaptureFixture
) -> None:
    device = make_device({"residual.cu": "no program"})
    left_table = pa.table({c.name: [None] for c in SCHEMA}, schema=SCHEMA)
    with caplog.at_level("WARNING", "gpujoin"):
        assert (
            compiled_mask(device, sources(left_table, left_table), resolve(CONDITIONS["logic"], SCHEMA, SCHEMA), 1)
            is None
        )
    assert "residual.cu" in caplog.text


def test_conditions_that_differ_in_constants_are_one_module() -> None:
    texts = set()
    for limit, name in ((5, 1.5), (-(1 << 31), math.inf), (7, -math.inf)):
        written = write(resolve((left("i") < lit(limit)) & (left("d") > lit(name)), SCHEMA, SCHEMA))
        assert written is not None
        assert [value.item() for value in written.constants] == [limit, name]
        texts.add(written.text)
    assert len(texts) == 1
