"""Spark as the judge of evaluation: the same expression, as SQL, over the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pat

from gpujoin.errors import ExpressionEvaluationError
from gpujoin.functions.evaluate import evaluate_column
from gpujoin.functions.support import is_supported
from gpujoin.model.expressions import Call, EvalMode, Expression, Function
from gpujoin.model.types import logical
from gpujoin.plan.resolve import resolve_value
from tests.expressions.sql import to_sql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SHOWN = 5
SINCE = {Function.QUOTE: "4.1"}
"""The first version of Spark that has a function, where it is not 4.0."""
_OPTIMIZER = "org.apache.spark.sql.catalyst.optimizer."
_REWRITES = (
    "ReorderAssociativeOperator", "BooleanSimplification", "ConstantFolding", "NullPropagation",
    "SimplifyConditionals", "SimplifyBinaryComparison", "OptimizeIn", "SimplifyCasts", "LikeSimplification",
    "UnwrapCastInBinaryComparison", "PushFoldableIntoBranches", "ReplaceNullWithFalseInPredicate",
)  # fmt: skip
AS_WRITTEN = {
    # Sharing a subexpression between columns evaluates it where one of the columns alone would not.
    "spark.sql.subexpressionElimination.enabled": "false",
    # Rewriting may drop or move an operand that raises.
    "spark.sql.optimizer.excludedRules": ",".join(_OPTIMIZER + r for r in _REWRITES),
}
"""Settings with which Spark evaluates an expression as it stands."""


@dataclass(frozen=True)
class Outcome:
    """What we computed: values of the rows that have one, and the rows that raised."""

    dtype: pa.DataType
    values: pa.Array
    raised: tuple[int, ...]


class Judge:
    """One table in Spark and here."""

    def __init__(self, spark: SparkSession, table: pa.Table, folder: Path) -> None:
        path = folder / f"table-{len(list(folder.iterdir()))}.parquet"
        # From Parquet: from local rows Spark interprets expressions, also where it generates code.
        pq.write_table(table, path)
        self._spark = spark
        self._frame: DataFrame = spark.read.parquet(str(path))
        self._table = table
        self._rows = table.num_rows
        sides = {}
        for side in ("left", "right"):
            names = [n for n in table.column_names if n.startswith(side)]
            batch = table.select(names).combine_chunks().to_batches()[0]
            sides[side] = batch.rename_columns([n.removeprefix(f"{side}_") for n in names])
        self.left, self.right = sides["left"], sides["right"]

    def resolve(self, expression: Expression, mode: EvalMode) -> Expression:
        return resolve_value(expression, self.left.schema, self.right.schema, mode=mode)

    def evaluate(self, resolved: Expression) -> Outcome:
        """Evaluate on all rows; of rows that raise together, on each half."""
        assert resolved.type is not None
        pieces, raised = [], []
        ranges = [range(self._rows)]
        while ranges:
            rows = ranges.pop()
            left, right = (side.slice(rows.start, len(rows)) for side in (self.left, self.right))
            try:
                pieces.append(evaluate_column(resolved, left, right, len(rows)))
            except ExpressionEvaluationError:
                half = len(rows) // 2
                if half:
                    ranges += [rows[half:], rows[:half]]
                else:
                    raised.append(rows.start)
                    pieces.append(pa.nulls(1, resolved.type))
        assert raised or len(pieces) == 1, f"{resolved} raises on all rows together but on none alone"
        return Outcome(resolved.type, pa.concat_arrays(pieces), tuple(raised))

    def check(self, expressions: Sequence[Expression], mode: EvalMode = EvalMode.LEGACY, *, errors: int = 2) -> None:
        """Assert that each expression has Spark's type and Spark's values, and that Spark raises too.

        Values are compared on all rows that do not raise here. Each error costs Spark a query, so only ``errors`` of
        them are tried. Functions that this version of Spark has not are left out.
        """
        expressions = [expression for expression in expressions if self._has(expression)]
        self._spark.conf.set("spark.sql.ansi.enabled", str(mode is EvalMode.ANSI).lower())
        for key, value in AS_WRITTEN.items():
            self._spark.conf.set(key, value)
        outcomes = []
        problems = []
        for expression in expressions:
            resolved = self.resolve(expression, mode)
            assert is_supported(resolved), f"cannot evaluate {resolved}"
            outcomes.append(self.evaluate(resolved))
            problems += self._of_few_rows(resolved, outcomes[-1])
        answers = self._ask([to_sql(e) for e in expressions], outcomes)
        for expression, outcome, column in zip(expressions, outcomes, answers.columns, strict=True):
            problems += self._differences(expression, outcome, column.combine_chunks())
        raising = [(e, o) for e, o in zip(expressions, outcomes, strict=True) if o.raised]
        for expression, outcome in raising[:: max(1, len(raising) // errors)][:errors]:
            problems += self._unraised(expression, outcome)
        assert not problems, f"{len(problems)} differences from Spark ({mode.value}):\n" + "\n".join(problems)

    def _has(self, expression: Expression) -> bool:
        """Whether this version of Spark has all functions of an expression."""
        called = (node.function for node in expression.walk() if isinstance(node, Call))
        return all(self._spark.version >= SINCE.get(function, "") for function in called)

    def _of_few_rows(self, resolved: Expression, outcome: Outcome) -> list[str]:
        """Values that depend on the rows beside them; some rows whose value is null, and some others, are tried."""
        fine = np.setdiff1d(np.arange(self._rows), outcome.raised)
        null = np.intersect1d(fine, np.flatnonzero(outcome.values.is_null().to_numpy(zero_copy_only=False)))
        problems = []
        for rows in (null[:: max(1, len(null) // 2)][:3], fine[:: max(1, len(fine) // 3)][:4]):
            taken = pa.array(rows)
            alone = evaluate_column(resolved, self.left.take(taken), self.right.take(taken), len(rows))
            if comparable(alone) != comparable(outcome.values.take(taken)):
                problems.append(f"{resolved} of rows {rows.tolist()} alone: {alone.to_pylist()}")
        return problems

    def _ask(self, sqls: list[str], outcomes: list[Outcome]) -> pa.Table:
        columns = []
        for i, (sql, outcome) in enumerate(zip(sqls, outcomes, strict=True)):
            guarded = sql
            if outcome.raised:
                # One literal for all rows: Spark takes long to plan a thousand of them.
                flags = "".join("x" if raises else "." for raises in np.isin(np.arange(self._rows), outcome.raised))
                guarded = f"CASE WHEN substring('{flags}', int(id) + 1, 1) = '.' THEN {sql} END"
            columns.append(f"{guarded} AS c{i}")
        answers = self._frame.selectExpr("id", *columns).toArrow()
        assert answers["id"].to_pylist() == list(range(self._rows)), "rows come in the order of the file"
        return answers.drop_columns(["id"])

    def _differences(self, expression: Expression, outcome: Outcome, judged: pa.Array) -> list[str]:
        if not _alike(judged.type, outcome.dtype):
            return [f"{expression}: type {outcome.dtype} here, {judged.type} in Spark"]
        computed, spark = comparable(outcome.values), comparable(judged)
        different = [i for i in range(self._rows) if computed[i] != spark[i]]
        return [
            f"{expression} at {self._row(expression, i)}: {computed[i]} here, {spark[i]} in Spark"
            for i in different[:_SHOWN]
        ]

    def _unraised(self, expression: Expression, outcome: Outcome) -> list[str]:
        from pyspark.errors import PySparkException

        problems = []
        for row in outcome.raised[len(outcome.raised) // 2 :][:1]:
            columns = {f"{c.side.value}_{c.name}" for c in expression.columns()} | {"id"}
            one_row = self._spark.createDataFrame(self._table.select(sorted(columns)).slice(row, 1))
            try:
                value = one_row.selectExpr(f"{to_sql(expression)} AS c").toArrow()
            except PySparkException:
                continue
            problems.append(
                f"{expression} at {self._row(expression, row)}: error here, {value.column(0).to_pylist()} in Spark"
            )
        return problems

    def _row(self, expression: Expression, row: int) -> str:
        sides = {"left": self.left, "right": self.right}
        return ", ".join(f"{c}={sides[c.side.value].column(c.name)[row].as_py()!r}" for c in expression.columns())


def comparable(values: pa.Array) -> list[Any]:
    """Values such that equal means the same, the sign of zero included; all NaN are one."""
    if pa.types.is_temporal(values.type):
        return values.cast(pa.int64() if values.type.bit_width == 64 else pa.int32()).to_pylist()
    return [repr(v) if isinstance(v, float) else v for v in values.to_pylist()]


def _alike(left: pa.DataType, right: pa.DataType) -> bool:
    """Whether types are the same to Spark's users; it alone names the elements of lists, and says that none is null."""
    if pat.is_list(left) and pat.is_list(right):
        return _alike(left.value_type, right.value_type)
    return logical(left) == logical(right)
