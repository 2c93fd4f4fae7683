"""Every function of the tables that has parameters, over columns of special values, against Spark."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpujoin.functions import FAMILIES
from gpujoin.functions.support import is_supported
from gpujoin.model.expressions import Call, EvalMode, Expression, Function, left, right
from tests.expressions.judge import Judge
from tests.expressions.values import VALUES
from tests.functions.calls import calls

KINDS = ["bool", "i8", "i32", "i64", "f64", "d9_2", "d38_18", "str", "bin", "date", "ts", "ntz"]
WITHOUT_SQL = {Function.UNSCALED_VALUE, Function.START_OF_DAY, Function.CAST_TIMESTAMP}
GIVEN_BACK = {
    Function.FORMAT_NUMBER, Function.LUHN_CHECK, Function.MASK, Function.SPACE, Function.UNBASE64, Function.URL_DECODE,
}  # fmt: skip
"""Functions that leave some of these values to Spark; tests of their own compare the others."""


@pytest.mark.few
@pytest.mark.parametrize("mode", [EvalMode.LEGACY, EvalMode.ANSI], ids=lambda m: m.value)
@pytest.mark.parametrize("family", FAMILIES)
def test_functions_are_sparks(judge: Callable[..., Judge], family: str, mode: EvalMode) -> None:
    kinds = {kind: VALUES[kind][0] for kind in KINDS}
    trees = [
        tree
        for spec in FAMILIES[family]
        if spec.function not in WITHOUT_SQL | GIVEN_BACK
        for tree in calls(spec, kinds, lambda kind, position: (right if position else left)(kind))
        if not _with_zone(tree)
    ]
    judge_of_kinds = judge(*KINDS)
    evaluated = [tree for tree in trees if is_supported(judge_of_kinds.resolve(tree, mode))]
    if evaluated:
        judge_of_kinds.check(evaluated, mode)


def _with_zone(tree: Expression) -> bool:
    """Whether a call has operands that it has in a session's time zone alone; such are compared with Spark there."""
    assert isinstance(tree, Call)
    return len(tree.arguments) > IN_ZONES.get(tree.function, len(tree.arguments))


IN_ZONES = {Function.TO_UTC_TIMESTAMP: 2, Function.MONTHS_BETWEEN: 3}
