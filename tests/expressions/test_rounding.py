"""``round``, ``bround``, and ``ceil`` and ``floor`` of two arguments, against Spark."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

import pyarrow as pa
import pytest

from gpujoin.errors import ConditionError, ExpressionEvaluationError
from gpujoin.functions.evaluate import evaluate_column
from gpujoin.functions.spec import can_raise
from gpujoin.functions.support import is_supported
from gpujoin.model.expressions import EvalMode, Expression, Function, call, left, right
from gpujoin.plan.resolve import resolve_value
from tests.expressions.judge import Judge

MODES = [EvalMode.LEGACY, EvalMode.ANSI]
WHOLE = ["i8", "i16", "i32", "i64"]
FLOATS = ["f32", "f64"]
DECIMALS = ["d9_2", "d18_6", "d38_0", "d38_18", "d38_38"]
NEAREST = [Function.ROUND, Function.ROUND_EVEN]
DIRECTED = [Function.ROUND_CEIL, Function.ROUND_FLOOR]
SCHEMA = pa.schema([("i", pa.int32()), ("f", pa.float64()), ("d", pa.decimal128(38, 0)), ("p", pa.decimal128(9, 2))])


def _trees(functions: list[Function], kinds: list[str], scales: tuple[int, ...]) -> list[Expression]:
    return [call(f, left(kind), scale) for f in functions for kind in kinds for scale in scales]


@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
def test_integers(judge: Callable[..., Judge], mode: EvalMode) -> None:
    judge(*WHOLE, pairs=False).check(_trees(NEAREST, WHOLE, (2, 0, -1, -2, -3, -9, -10, -18, -19, -20, -40)), mode)


@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
def test_decimals(judge: Callable[..., Judge], mode: EvalMode) -> None:
    scales = (40, 6, 1, 0, -1, -5, -19, -37, -38)
    judge(*DECIMALS, pairs=False).check(_trees([*NEAREST, *DIRECTED], DECIMALS, scales), mode)


@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
def test_doubles(judge: Callable[..., Judge], mode: EvalMode) -> None:
    judge(*FLOATS, pairs=False).check(_trees(NEAREST, FLOATS, (0, 1, 2, 7, 15)), mode)


@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
def test_integers_upwards_and_downwards(judge: Callable[..., Judge], mode: EvalMode) -> None:
    judge(*WHOLE, pairs=False).check(_trees(DIRECTED, WHOLE, (1, 0, -1, -3)), mode)


@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
def test_floats_upwards_and_downwards(judge: Callable[..., Judge], mode: EvalMode) -> None:
    """Spark makes decimals of 14 digits of them."""
    judge(*FLOATS, pairs=False).check(_trees(DIRECTED, ["f32"], (1, 0, -1, -3)), mode)


@pytest.mark.parametrize(
    ("value", "digits", "rounded"),
    [(2.675, 2, 2.68), (1.005, 2, 1.01), (-0.5, 0, -1.0), (0.49999999999999994, 0, 0.0),
     (4503599627370495.5, 0, 2.0**52),
     (123456789012.34565, 4, 123456789012.3457), (1e300, 3, 1e300), (-0.04, 1, 0.0)],
)  # fmt: skip
def test_halves_of_doubles_are_those_of_what_is_printed(value: float, digits: int, rounded: float) -> None:
    batch = pa.record_batch({"f": [value]})
    tree = resolve_value(call(Function.ROUND, left("f"), digits), batch.schema, batch.schema)
    assert repr(evaluate_column(tree, batch, batch, 1)[0].as_py()) == repr(rounded)


@pytest.mark.parametrize(
    ("tree", "covered"),
    [
        (call(Function.ROUND, left("f"), 15), True),
        (call(Function.ROUND, left("f"), 16), False),
        (call(Function.ROUND, left("f"), -1), False),
        (call(Function.ROUND, left("i"), -1), True),
        (call(Function.ROUND_CEIL, left("f"), 1), False),
        (call(Function.ROUND, left("p"), 400), False),
    ],
)
def test_scales_that_are_left_to_spark(tree: Expression, covered: bool) -> None:
    assert is_supported(resolve_value(tree, SCHEMA, SCHEMA)) is covered


def test_the_scale_is_a_constant() -> None:
    with pytest.raises(ConditionError, match="cannot be applied"):
        resolve_value(call(Function.ROUND, left("i"), right("i")), SCHEMA, SCHEMA)


@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
def test_decimals_of_39_digits_are_an_error_in_every_mode(mode: EvalMode) -> None:
    batch = pa.record_batch({"d": pa.array([Decimal(10**38 - 1)], pa.decimal128(38, 0))})
    tree = resolve_value(call(Function.ROUND, left("d"), -1), batch.schema, batch.schema, mode=mode)
    assert can_raise(tree)
    with pytest.raises(ExpressionEvaluationError, match="does not fit"):
        evaluate_column(tree, batch, batch, 1)


def test_what_never_raises_is_known() -> None:
    raising = {
        str(tree): can_raise(resolve_value(tree, SCHEMA, SCHEMA, mode=EvalMode.ANSI))
        for tree in (
            call(Function.ROUND, left("p"), 1), call(Function.ROUND, left("p"), -30),
            call(Function.ROUND, left("d"), 0),
            call(Function.ROUND, left("i"), 0), call(Function.ROUND, left("i"), -1), call(Function.ROUND, left("f"), 1),
        )
    }  # fmt: skip
    assert list(raising.values()) == [False, False, False, False, True, False]
