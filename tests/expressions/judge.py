"""The judge of evaluation: the same expression, by each evaluator and by Spark, over the same rows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from gpujoin.errors import ExpressionEvaluationError
from gpujoin.functions.evaluate import evaluate_column
from gpujoin.functions.support import is_supported
from gpujoin.model.expressions import Call, EvalMode, Expression, Function
from gpujoin.model.jointype import Side
from gpujoin.model.types import logical
from gpujoin.plan.resolve import resolve_value
from gpujoin.testing import cells
from tests.expressions.answers import Answer, Answers
from tests.expressions.evaluators import by_polars, wrong_on_device
from tests.expressions.sql import to_sql

_SHOWN = 5
_EQUAL_IF_THE_SAME = (pat.is_integer, pat.is_boolean, pat.is_decimal, pat.is_temporal, pat.is_string, pat.is_binary)
"""Types whose values are equal to Arrow only if they are the same."""
SINCE = {Function.QUOTE: "4.1"}
"""The first version of Spark that has a function, where it is not 4.0."""


@dataclass(frozen=True)
class Outcome:
    """What we computed: values of the rows that have one, and the rows that raised."""

    dtype: pa.DataType
    values: pa.Array
    raised: frozenset[int]


class Judge:
    """One table, here and in Spark: columns ``left_…`` and ``right_…``, and ``id``, the number of the row."""

    def __init__(self, answers: Answers, table: pa.Table) -> None:
        self._answers = answers
        self._table = table
        self._rows = table.num_rows
        self.left, self.right = (_side(table, side) for side in ("left", "right"))

    @property
    def version(self) -> str:
        """Version of Spark."""
        return self._answers.version

    def resolve(self, expression: Expression, mode: EvalMode) -> Expression:
        return resolve_value(expression, self.left.schema, self.right.schema, mode=mode)

    def evaluate(self, resolved: Expression, suspects: Collection[int] = ()) -> Outcome:
        """Evaluate on all rows, of which some may raise."""
        return evaluate_rows(resolved, self.left, self.right, suspects)

    def check(
        self, expressions: Sequence[Expression], mode: EvalMode = EvalMode.LEGACY, sqls: Sequence[str] | None = None
    ) -> None:
        """Assert that each expression has Spark's type and Spark's values, and raises on the rows on which Spark does.

        Functions that this version of Spark has not are left out. ``sqls`` are the expressions in SQL, where that does
        not follow from them alone.
        """
        expressions = [expression for expression in expressions if self._has(expression)]
        asked = [to_sql(expression) for expression in expressions] if sqls is None else sqls
        answers = self._answers.ask(self._table, asked, ansi=mode is EvalMode.ANSI)
        problems = []
        for expression, answer in zip(expressions, answers, strict=True):
            resolved = self.resolve(expression, mode)
            assert is_supported(resolved), f"cannot evaluate {resolved}"
            outcome = self.evaluate(resolved, answer.raises)
            problems += self._of_few_rows(resolved, outcome)
            problems += self._differences(expression, outcome, answer)
            problems += self._elsewhere(expression, resolved, mode, answer)
        assert not problems, f"{len(problems)} differences from Spark ({mode.value}):\n" + "\n".join(problems)

    def raises(self, expression: Expression, mode: EvalMode) -> bool:
        """Whether Spark raises on a row."""
        (answer,) = self._answers.ask(self._table, [to_sql(expression)], ansi=mode is EvalMode.ANSI)
        return bool(answer.raises)

    def _has(self, expression: Expression) -> bool:
        """Whether this version of Spark has all functions of an expression."""
        called = (node.function for node in expression.walk() if isinstance(node, Call))
        return all(self.version >= SINCE.get(function, "") for function in called)

    def _of_few_rows(self, resolved: Expression, outcome: Outcome) -> list[str]:
        """Values that depend on the rows beside them; some rows whose value is null, and some others, are tried."""
        fine = np.setdiff1d(np.arange(self._rows), [*outcome.raised])
        null = np.intersect1d(fine, np.flatnonzero(outcome.values.is_null().to_numpy(zero_copy_only=False)))
        problems = []
        for rows in (null[:: max(1, len(null) // 2)][:3], fine[:: max(1, len(fine) // 3)][:4]):
            taken = pa.array(rows)
            alone = evaluate_column(resolved, self.left.take(taken), self.right.take(taken), len(rows))
            if not same(alone, outcome.values.take(taken)):
                problems.append(f"{resolved} of rows {rows.tolist()} alone: {alone.to_pylist()}")
        return problems

    def _differences(self, expression: Expression, outcome: Outcome, answer: Answer) -> list[str]:
        if not alike(answer.values.type, outcome.dtype):
            return [f"{expression}: type {outcome.dtype} here, {answer.values.type} in Spark"]
        if outcome.raised == answer.raises and same(outcome.values, answer.values):
            return []
        here, spark = (
            [*map(lambda row, value: "an error" if row in raised else value, range(self._rows), comparable(values))]
            for values, raised in ((outcome.values, outcome.raised), (answer.values, answer.raises))
        )
        different = [row for row in range(self._rows) if here[row] != spark[row]]
        return [
            f"{expression} at {self._row(expression, row)}: {here[row]} here, {spark[row]} in Spark"
            for row in different[:_SHOWN]
        ]

    def _elsewhere(self, expression: Expression, resolved: Expression, mode: EvalMode, answer: Answer) -> list[str]:
        """What other evaluators, where they have the functions, give for the rows on which Spark does not raise."""
        left, right, spark = self.left, self.right, answer.values
        if answer.raises:
            fine = pa.array([row for row in range(self._rows) if row not in answer.raises], pa.int64())
            left, right, spark = left.take(fine), right.take(fine), spark.take(fine)
        problems = []
        polars = by_polars(resolved, left, right)
        if polars is not None and not same(polars, spark):
            problems.append(f"{expression} in a pipeline: {comparable(polars)}, {comparable(spark)} in Spark")
        wrong = wrong_on_device(expression, mode, left, right, spark)
        if wrong:
            problems.append(
                f"{expression} on the device: not {comparable(spark)[wrong[0]]} in row {wrong[0]} of {left}"
            )
        return problems

    def _row(self, expression: Expression, row: int) -> str:
        sides = {"left": self.left, "right": self.right}
        return ", ".join(f"{c}={cells(sides[c.side.value].column(c.name))[row]!r}" for c in expression.columns())


def evaluate_rows(
    resolved: Expression, left: pa.RecordBatch, right: pa.RecordBatch, suspects: Collection[int] = ()
) -> Outcome:
    """Evaluate on all rows; where that raises, find the rows that raise: of equal operands one row stands for all.

    Each suspect is evaluated alone, and all other rows together; where these raise too, halves of them are.
    """
    assert resolved.type is not None
    count = left.num_rows
    try:
        return Outcome(resolved.type, evaluate_column(resolved, left, right, count), frozenset())
    except ExpressionEvaluationError:
        groups = _rows_alike(resolved, left, right)
    left, right = _read_columns(resolved, left, Side.LEFT), _read_columns(resolved, right, Side.RIGHT)
    raised: set[int] = set()
    parts = [[row for row in sorted(groups) if row not in suspects], *([row] for row in groups if row in suspects)]
    while parts:
        if not (rows := parts.pop()):
            continue
        try:
            _evaluate_at(resolved, left, right, rows)
        except ExpressionEvaluationError:
            half = len(rows) // 2
            if half:
                parts += [rows[half:], rows[:half]]
            else:
                raised.update(groups[rows[0]])
    assert raised, f"{resolved} raises on all rows together but on none alone"
    fine = [row for row in range(count) if row not in raised]
    places = np.full(count, -1)
    places[fine] = np.arange(len(fine))
    values = _evaluate_at(resolved, left, right, fine).take(pa.array(places, mask=places < 0))
    return Outcome(resolved.type, values, frozenset(raised))


def _rows_alike(resolved: Expression, left: pa.RecordBatch, right: pa.RecordBatch) -> dict[int, list[int]]:
    """Rows in which the columns of an expression have the same values, by the first of them."""
    sides = {Side.LEFT: left, Side.RIGHT: right}
    read = {(column.side, column.index) for column in resolved.columns()}
    operands = [comparable(sides[side].column(index)) for side, index in read]
    groups: dict[tuple[Any, ...], list[int]] = {}
    for row in range(left.num_rows):
        groups.setdefault(tuple(operand[row] for operand in operands), []).append(row)
    return {rows[0]: rows for rows in groups.values()}


def _read_columns(resolved: Expression, rows: pa.RecordBatch, side: Side) -> pa.RecordBatch:
    """Rows of a side, with nulls in columns that an expression does not read."""
    read = {column.index for column in resolved.columns() if column.side is side}
    columns = [column if n in read else pa.nulls(rows.num_rows) for n, column in enumerate(rows.columns)]
    return pa.RecordBatch.from_arrays(columns, rows.schema.names)


def _evaluate_at(resolved: Expression, left: pa.RecordBatch, right: pa.RecordBatch, rows: Sequence[int]) -> pa.Array:
    at = pa.array(rows, pa.int64())
    return evaluate_column(resolved, left.take(at), right.take(at), len(rows))


def _side(table: pa.Table, side: str) -> pa.RecordBatch:
    names = [name for name in table.column_names if name.startswith(side)]
    columns = [table.column(name).combine_chunks() for name in names] or [table.column("id").combine_chunks()]
    return pa.RecordBatch.from_arrays(columns, [name.removeprefix(f"{side}_") for name in names] or ["id"])


def comparable(values: pa.Array) -> list[Any]:
    """Values such that equal means the same, the sign of zero included; all NaN are one."""
    return [*map(repr, cells(values))]


def same(values: pa.Array, others: pa.Array) -> bool:
    """Whether values are the same, as :func:`comparable` has them; most often Arrow can tell that they are."""
    bits = {pa.float32(): pa.int32(), pa.float64(): pa.int64()}.get(values.type, values.type)
    if values.type == others.type and any(has(bits) for has in _EQUAL_IF_THE_SAME):
        return bool(values.view(bits).equals(others.view(bits))) or comparable(values) == comparable(others)
    return comparable(values) == comparable(others)


def alike(left: pa.DataType, right: pa.DataType) -> bool:
    """Whether types are the same to Spark's users; it alone names elements and fields, and says that none is null."""
    if pat.is_list(left) and pat.is_list(right):
        return alike(left.value_type, right.value_type)
    if pat.is_map(left) and pat.is_map(right):
        return alike(left.key_type, right.key_type) and alike(left.item_type, right.item_type)
    if pat.is_struct(left) and pat.is_struct(right):
        return left.num_fields == right.num_fields and all(
            alike(own.type, other.type) for own, other in zip(left, right, strict=True)
        )
    return logical(left) == logical(right)
