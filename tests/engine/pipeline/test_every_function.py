"""Every function of the tables that has parameters, fused by Polars, against its evaluation over arrays."""

from __future__ import annotations

import pyarrow as pa
import pytest

from gpujoin.functions import FAMILIES
from gpujoin.functions.spec import Evaluator, FunctionSpec
from gpujoin.model.expressions import ColumnRef, EvalMode, left
from gpujoin.plan.resolve import resolve_value
from tests.engine.pipeline.test_lowering import DATA, SMALL, check
from tests.functions.calls import calls
from tests.functions.constants import calls_over_columns, with_constants

SPECS = [spec for family in FAMILIES.values() for spec in family if not spec.missing(Evaluator.POLARS)]
KINDS = {kind: dtype for kind, (dtype, _) in SMALL.items()}


@pytest.mark.few
@pytest.mark.parametrize("mode", [EvalMode.LEGACY, EvalMode.ANSI], ids=lambda m: m.value)
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.function.name)
def test_a_fused_function_is_the_same(spec: FunctionSpec, mode: EvalMode) -> None:
    trees = list(calls(spec, KINDS, lambda kind, position: left(f"{'b' if position else 'a'}_{kind}")))
    for data in DATA.values():
        check(trees, data, mode)
    assert not trees or any(check([tree], DATA["small"], mode).evaluated == 0 for tree in trees)


@pytest.mark.extra
@pytest.mark.parametrize("mode", [EvalMode.LEGACY, EvalMode.ANSI], ids=lambda m: m.value)
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.function.name)
def test_a_fused_function_of_constants_beside_columns_is_the_same(spec: FunctionSpec, mode: EvalMode) -> None:
    batch = DATA["small"].slice(0, 40)

    def value(column: ColumnRef) -> tuple[object, pa.DataType]:
        return batch.column(column.name)[33].as_py(), batch.schema.field(column.name).type

    trees = calls_over_columns(
        spec, KINDS, lambda kind, position: left(f"{'b' if position else 'a'}_{kind}"),
        lambda tree: resolve_value(tree, batch.schema, batch.schema, mode=mode),
    )  # fmt: skip
    check([made for tree in trees for made in with_constants(tree, value)], batch, mode)
