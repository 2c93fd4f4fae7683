"""Every function of the tables that has parameters, fused by Polars, against its evaluation over arrays."""

from __future__ import annotations

import pytest

from gpujoin.functions import FAMILIES
from gpujoin.functions.spec import Evaluator, FunctionSpec
from gpujoin.model.expressions import EvalMode, left
from tests.engine.pipeline.test_lowering import DATA, SMALL, check
from tests.functions.calls import calls

SPECS = [spec for family in FAMILIES.values() for spec in family if Evaluator.POLARS not in spec.lacks]
KINDS = {kind: dtype for kind, (dtype, _) in SMALL.items()}


@pytest.mark.few
@pytest.mark.parametrize("mode", [EvalMode.LEGACY, EvalMode.ANSI], ids=lambda m: m.value)
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.function.name)
def test_a_fused_function_is_the_same(spec: FunctionSpec, mode: EvalMode) -> None:
    trees = list(calls(spec, KINDS, lambda kind, position: left(f"{'b' if position else 'a'}_{kind}")))
    for data in DATA.values():
        check(trees, data, mode)
    assert not trees or any(check([tree], DATA["small"], mode).evaluated == 0 for tree in trees)
