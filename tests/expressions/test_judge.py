"""The judge itself: it must notice a wrong value, a wrong type, and an error that Spark does not have."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from gpujoin.errors import ExpressionEvaluationError
from gpujoin.functions.evaluate import evaluate_column
from gpujoin.model.expressions import EvalMode, Expression, left
from gpujoin.plan.resolve import resolve_value
from tests.expressions import judge as module
from tests.expressions.judge import Judge

KINDS = ["i32", "f64"]


def test_a_wrong_value_is_noticed(judge: Callable[..., Judge], monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(tree: Expression, one: pa.RecordBatch, two: pa.RecordBatch, length: int) -> pa.Array:
        values = evaluate_column(tree, one, two, length).to_pylist()
        return pa.array([*values[:-1], 12345], tree.type)

    monkeypatch.setattr(module, "evaluate_column", wrong)
    with pytest.raises(AssertionError, match="12345 here"):
        judge(*KINDS).check([left("i32")])


def test_the_sign_of_zero_is_noticed(judge: Callable[..., Judge], monkeypatch: pytest.MonkeyPatch) -> None:
    def unsigned(tree: Expression, one: pa.RecordBatch, two: pa.RecordBatch, length: int) -> pa.Array:
        values = evaluate_column(tree, one, two, length).to_pylist()
        return pa.array([abs(v) if v == 0 else v for v in values], tree.type)

    monkeypatch.setattr(module, "evaluate_column", unsigned)
    with pytest.raises(AssertionError, match=r"0\.0 here, -0\.0 in Spark"):
        judge(*KINDS).check([left("f64")])


def test_a_wrong_type_is_noticed(judge: Callable[..., Judge], monkeypatch: pytest.MonkeyPatch) -> None:
    def widened(judge: Judge, tree: Expression, mode: EvalMode) -> Expression:
        return resolve_value(tree.cast(pa.int64()), judge.left.schema, judge.right.schema, mode=mode)

    monkeypatch.setattr(Judge, "resolve", widened)
    with pytest.raises(AssertionError, match="type int64 here, int32 in Spark"):
        judge(*KINDS).check([left("i32")])


def test_an_error_of_our_own_is_noticed(judge: Callable[..., Judge], monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(tree: Expression, one: pa.RecordBatch, two: pa.RecordBatch, length: int) -> pa.Array:
        if 99 in one.column("i32").to_pylist():
            raise ExpressionEvaluationError("made up")
        return evaluate_column(tree, one, two, length)

    monkeypatch.setattr(module, "evaluate_column", fails)
    with pytest.raises(AssertionError, match="an error here, 99 in Spark"):
        judge(*KINDS).check([left("i32")])
