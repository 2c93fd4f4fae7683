"""Expressions by the other evaluators: in Polars' queries, and by the device's code on NumPy."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from gpujoin.engine.pipeline import run
from gpujoin.errors import ConditionError, DeviceValueError
from gpujoin.functions.evaluate_device import DeviceEvaluator
from gpujoin.functions.spec import SPECS, Missing
from gpujoin.functions.support import is_device_supported
from gpujoin.model.expressions import Call, ColumnRef, EvalMode, Expression, Function, call, right
from gpujoin.model.jointype import Side
from gpujoin.model.relations import ExchangeSource, Output, Project
from gpujoin.plan.resolve import resolve
from tests.backends.cudf.host import HostSource

_ANSWER = "spark_answer"


def by_polars(resolved: Expression, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.Array | None:
    """Values of an expression as a column of a pipeline; None where it has functions that no Polars query has."""
    if any(isinstance(SPECS[n.function].polars, Missing) for n in resolved.walk() if isinstance(n, Call)):
        return None
    sides = {Side.LEFT: left, Side.RIGHT: right}
    read = {(column.side, column.index): column for column in resolved.columns()}
    places = {key: place for place, key in enumerate(read)}
    columns = [sides[side].column(index) for side, index in read]
    if not columns:
        return None

    def beside(node: Expression) -> Expression:
        if isinstance(node, ColumnRef):
            place = places[node.side, node.index]
            return ColumnRef(side=Side.LEFT, name=f"c{place}", index=place, type=node.type)
        return node.with_children([beside(child) for child in node.children]) if node.children else node

    batch = pa.RecordBatch.from_arrays(columns, [f"c{place}" for place in range(len(columns))])
    project = Project(ExchangeSource(0, batch.schema), (Output("value", beside(resolved)),))
    table = pa.Table.from_batches(run(project, {0: [batch]}), project.schema)
    return table.column(0).combine_chunks()


def wrong_on_device(
    expression: Expression, mode: EvalMode, left: pa.RecordBatch, rows: pa.RecordBatch, answer: pa.Array
) -> list[int]:
    """Rows on which the device's code finds another value than the answer; none where it leaves it to the CPU."""
    if pat.is_nested(answer.type) or pat.is_null(answer.type):
        return []
    beside = rows.append_column(_ANSWER, answer)
    try:
        equal_here = call(Function.EQ_NULL_SAFE, expression, right(_ANSWER))
        condition = resolve(equal_here, left.schema, beside.schema, mode=mode)
    except ConditionError:
        return []
    if not is_device_supported(condition):
        return []
    tables = {Side.LEFT: pa.Table.from_batches([left]), Side.RIGHT: pa.Table.from_batches([beside])}
    try:
        with np.errstate(all="ignore"):
            equal = DeviceEvaluator(np, HostSource(tables)).mask(condition, left.num_rows)
    except DeviceValueError:
        return []
    return np.flatnonzero(~equal).tolist()
