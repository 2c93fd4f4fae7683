"""Every cast that is claimed, in every mode, against Spark."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from gpujoin.backends.cpu.expressions.evaluate import can_evaluate
from gpujoin.functions.casts import can_cast
from gpujoin.model.expressions import Cast, EvalMode, Expression, left
from tests.brief import each_once
from tests.expressions.oracle import Judge
from tests.expressions.values import VALUES

pytestmark = pytest.mark.spark

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
MODES = [EvalMode.LEGACY, EvalMode.ANSI, EvalMode.TRY]


def _casts(judge: Judge, kind: str, mode: EvalMode) -> list[Expression]:
    source = VALUES[kind][0]
    trees: list[Expression] = []
    for target in [*TARGETS, *STRUCTS]:
        # Spark's analyzer knows of no try_cast that ANSI mode would not have.
        if can_cast(source, target, EvalMode.ANSI if mode is EvalMode.TRY else mode):
            tree = left(kind).cast(target, mode)
            if can_evaluate(judge.resolve(tree, mode)):
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
