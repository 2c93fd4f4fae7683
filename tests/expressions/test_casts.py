"""Every cast that is claimed, in every mode, against Spark."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pyarrow as pa
import pytest

from gpujoin.functions.kinds import can_cast
from gpujoin.functions.support import is_supported
from gpujoin.model.expressions import Cast, EvalMode, Expression, Function, call, left
from gpujoin.plan.resolve import resolve_value
from tests.brief import each_once
from tests.expressions.judge import Judge
from tests.expressions.values import VALUES

TARGETS = [
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.decimal128(4, 1),
    pa.decimal128(10, 0), pa.decimal128(18, 6), pa.decimal128(20, 2), pa.decimal128(38, 10), pa.decimal128(38, 38),
    pa.string(), pa.binary(), pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us"),
]  # fmt: skip
STRUCTS = [
    pa.struct([pa.field("x", pa.int64()), pa.field("y", pa.string())]),
    pa.struct([pa.field("x", pa.string()), pa.field("y", pa.int32())]),
]
KINDS = list(VALUES)
COUNTS = [1, 2, 3, 7, 8, 16, 32, 64, 125, 128, 160, 320, 500, 640, 1000, 3200, 6400, 20_000, 64_000]
MODES = [EvalMode.LEGACY, EvalMode.ANSI, EvalMode.TRY]


def _casts(judge: Judge, kind: str, mode: EvalMode) -> list[Expression]:
    source = VALUES[kind][0]
    trees: list[Expression] = []
    for target in [*TARGETS, *STRUCTS]:
        # Spark's analyzer knows of no try_cast that ANSI mode would not have.
        if can_cast(source, target, EvalMode.ANSI if mode is EvalMode.TRY else mode):
            tree = left(kind).cast(target, mode)
            if is_supported(judge.resolve(tree, mode)):
                trees.append(tree)
    return trees


@pytest.mark.parametrize(("kind", "name"), each_once(KINDS, [mode.value for mode in MODES]))
def test_casts(judge: Callable[..., Judge], kind: str, name: str) -> None:
    mode = EvalMode(name)
    j = judge(*KINDS, pairs=False)
    trees = _casts(j, kind, mode)
    assert trees
    j.check(trees, mode)


def test_text_to_numbers_is_claimed(judge: Callable[..., Judge]) -> None:
    trees = _casts(judge(*KINDS, pairs=False), "num_str", EvalMode.ANSI)
    targets = {t.to for t in trees if isinstance(t, Cast)}
    assert {pa.int8(), pa.int64(), pa.float64(), pa.decimal128(38, 10), pa.bool_(), pa.date32()} <= targets


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("mode", [EvalMode.LEGACY, EvalMode.ANSI], ids=lambda mode: mode.value)
def test_doubles_become_the_decimals_that_are_printed(
    asking_judge_of: Callable[[pa.Table], Judge], mode: EvalMode, seed: int
) -> None:
    """Averages of cents, as Spark computes them: of some numbers of rows half of them lie between two decimals."""
    generator = random.Random(seed)
    averages = [
        float(generator.randrange(-(10 ** generator.randrange(1, 13)), 10**12)) / generator.choice(COUNTS) / 100.0
        for _ in range(20_000)
    ]
    halves = [generator.randrange(-(10**8), 10**8) / 2e7 for _ in range(5_000)]
    values = pa.array([*averages, *halves, math.nan, math.inf, -0.0, 5e-324, None])
    table = pa.table({"id": range(len(values)), "left_f64": values, "right_f64": values})
    targets = [(15, 4), (15, 2), (15, 0)] if mode is EvalMode.ANSI else [(11, 6), (15, 14), (12, 1), (7, 7)]
    trees: list[Expression] = [left("f64").cast(pa.decimal128(*target), mode) for target in targets]
    j = asking_judge_of(table)
    assert all(is_supported(j.resolve(tree, mode)) for tree in trees)
    j.check(trees, mode)


def test_casts_of_doubles_to_more_digits_are_left_to_spark() -> None:
    schema = pa.schema([("f", pa.float64()), ("d", pa.decimal128(16, 0))])
    left_alone = resolve_value(left("f").cast(pa.decimal128(16, 6)), schema, schema)
    assert not is_supported(left_alone)
    whole = call(Function.ROUND, left("d"), 0).cast(pa.int32(), EvalMode.ANSI)
    assert is_supported(resolve_value(whole, schema, schema, mode=EvalMode.ANSI))
