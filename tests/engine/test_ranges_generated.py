"""Generated joins under ranges: types mixed, extremes, every join type, either side built, against the row loop."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from gpujoin.backends.cpu.backend import CpuBackend
from gpujoin.config import Options
from gpujoin.engine.join import build, early_stop
from gpujoin.engine.join.hash_join import HashJoin
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.errors import ConditionError, ExpressionEvaluationError
from gpujoin.model.expressions import EvalMode, Expression, Function, call, left, lit, right
from gpujoin.model.jointype import JoinType
from gpujoin.model.spec import JoinSpec, KeyPair
from gpujoin.plan.resolve import resolve
from gpujoin.testing import assert_same_rows
from tests.engine.support import KEYED, build_sides, keyed, run_join
from tests.oracle.join import oracle_join

NAN, INF = float("nan"), float("inf")
MOMENTS = [0, 1, -1, 5, 10**6, -(10**6), 86_400 * 10**6, None]
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "long": (pa.int64(), [-(1 << 63), -(1 << 63) + 5, -6, -1, 0, 3, 5, (1 << 63) - 6, (1 << 63) - 1, None]),
    "int": (pa.int32(), [-(1 << 31), -(1 << 31) + 3, -5, 0, 1, 5, (1 << 31) - 4, (1 << 31) - 1, None]),
    "byte": (pa.int8(), [-128, -5, 0, 3, 127, None]),
    "double": (pa.float64(), [NAN, INF, -INF, 0.0, -0.0, 1.5, -1.5, 3.0, 5e-324, 1e308, -1e308, 2.0**53, None]),
    "float": (pa.float32(), [NAN, INF, -INF, 0.0, -0.0, 1.5, -1.5, 3.0, 1e-45, 3e38, None]),
    "decimal": (pa.decimal128(7, 2), [*map(Decimal, ("0", "1.50", "-1.50", "99999.99", "3.00")), None]),
    "wide decimal": (pa.decimal128(38, 10), [*map(Decimal, ("0", "1.50", "9" * 28, "-" + "9" * 28, "1E-10")), None]),
    "date": (pa.date32(), [dt.date(1970, 1, 1), dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(1970, 1, 3), None]),
    "moment": (pa.timestamp("us"), MOMENTS), "seconds": (pa.timestamp("s"), MOMENTS),
    "zoned": (pa.timestamp("us", "UTC"), MOMENTS),
    "text": (pa.string(), ["", "a", "a\x00", "b", "é", "\U00010000", "\uffff", None]),
}  # fmt: skip
MIXES = [
    ("long", "int", "byte"), ("long", "double", "int"), ("float", "double"), ("int", "decimal", "wide decimal"),
    ("long", "wide decimal"), ("double", "decimal"), ("date",), ("date", "moment"), ("moment", "seconds"), ("zoned",),
    ("text",),
]  # fmt: skip
"""Types that are compared with each other."""
COMPARISONS = [Function.LT, Function.LE, Function.GT, Function.GE, Function.EQ]
REACHES = [lit(5), lit(0), lit(-1), lit(Decimal("1.5")), lit(1.5), lit(1 << 31)]


class Case:
    """One generated join.

    Parameters
    ----------
    seed : int
        Decides everything.
    """

    def __init__(self, seed: int) -> None:
        self.pick = random.Random(seed)
        self.rng = np.random.default_rng(seed)
        mix = self.pick.choice(MIXES)
        names = [self.pick.choice(mix) for _ in range(4)]
        rows = self.pick.choice([(0, 7), (7, 0), (1, 1), (12, 9), (25, 3), (3, 25)])
        keys = self.pick.choice([0, 0, 1, 2])
        self.left = self._table(names[:2], "ab", rows[0], keys)
        self.right = self._table(names[2:], "cd", rows[1], keys)
        self.mode = self.pick.choice([EvalMode.ANSI, EvalMode.LEGACY])
        self.adds = names[0] in ("long", "int", "float", "double")
        whole = self._part()
        self.parts = self.pick.choice([1, 1, 2, 3])
        for _ in range(self.parts - 1):
            whole &= self._part()
        how = self.pick.choice([kind for kind in KEYED if keys or not kind.null_aware])
        condition = resolve(whole, self.left.schema, self.right.schema, mode=self.mode)
        equal = tuple(self.pick.random() < 0.3 for _ in range(keys))
        self.spec = keyed(how, self.left, self.right, keys=keys, equal=equal, condition=condition)

    def _table(self, names: list[str], columns: str, rows: int, keys: int) -> pa.Table:
        data = {
            f"k{i}": pa.array(self.rng.integers(0, 2, rows), pa.int32(), mask=self.rng.random(rows) < 0.1)
            for i in range(keys)
        }
        for column, name in zip(columns, names, strict=True):
            dtype, values = VALUES[name]
            data[column] = pa.array([values[i] for i in self.rng.integers(0, len(values), rows)], dtype)
        return pa.table(data | {"row": pa.array(range(rows), pa.int32())})

    def _operand(self, column: str, side: Callable[[str], Expression]) -> Expression:
        operand = side(column)
        if self.adds and self.pick.random() < 0.25:
            return call(self.pick.choice([Function.ADD, Function.SUBTRACT]), operand, lit(5), mode=self.mode)
        return operand

    def _part(self) -> Expression:
        kind, pair = self.pick.random(), [self._operand(self.pick.choice("ab"), left)]
        pair.append(self._operand(self.pick.choice("cd"), right))
        if self.pick.random() < 0.3:
            pair.reverse()
        if kind < 0.15:
            return (left("row") + right("row")) % lit(3) == lit(0)
        if kind < 0.35 and self.adds:
            apart = call(Function.SUBTRACT, *pair, mode=self.mode)
            apart = call(Function.ABS, apart, mode=self.mode) if self.pick.random() < 0.6 else apart
            pair = [apart, self.pick.choice(REACHES)]
            if self.pick.random() < 0.3:
                pair.reverse()
        return call(self.pick.choice(COMPARISONS), *pair)

    def check(self, seed: int) -> tuple[int, set[str]]:
        """Compare with the row loop; rows expected, and the algorithms that were chosen."""
        expected = _result(lambda: oracle_join(self.left, self.right, self.spec))
        taken: set[str] = set()
        for side in build_sides(self.spec.join_type):
            metrics = JoinMetrics()
            options = Options(
                batch_bytes=self.pick.choice([200, 1 << 20]), candidate_pairs=self.pick.choice([1, 7, 1 << 20]),
                memory_budget=self.pick.choice([300, 1 << 20, 1 << 20]),
            )  # fmt: skip
            backend, rows = CpuBackend(threads=self.pick.choice([1, 2])), self.pick.choice([3, 1000])
            result = _result(
                lambda: run_join(
                    self.spec, self.left, self.right, backend=backend, build_side=side, batch_rows=rows,  # noqa: B023
                    options=options, metrics=metrics,  # noqa: B023
                )
            )  # fmt: skip
            context = f"case {seed}, {self.spec.join_type.value}, {self.spec.condition}, build {side.value}"
            # A pair without a value may not be looked at: after a row's first match, or where a range leaves it out.
            spared = self.spec.join_type.left_rows_only or self.parts > 1
            assert result is None or expected is not None or spared, context
            if expected is not None:
                assert result is not None, f"{context}: only this raises"
                assert_same_rows(result, expected, allow_empty=True, context=context)
            taken |= set(metrics.algorithms)
        return 0 if expected is None else expected.num_rows, taken


def _result(run: Callable[[], pa.Table]) -> pa.Table | None:
    """The rows; ``None`` where an expression has no value for some pair."""
    try:
        return run()
    except (ExpressionEvaluationError, ConditionError, ArithmeticError):
        return None


def sweep(first: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "LEAST_SPREAD", 1)
    monkeypatch.setattr(early_stop, "FIRST_ROWS", 2)
    rows = 0
    taken: set[str] = set()
    for seed in range(first, first + count):
        result, algorithms = Case(seed).check(seed)
        rows, taken = rows + result, taken | algorithms
    assert rows > count
    assert {"range", "range_pair"} <= taken


def test_generated(monkeypatch: pytest.MonkeyPatch) -> None:
    sweep(0, 80, monkeypatch)


@pytest.mark.slow
def test_many_generated(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    sweep(seed, 4000, monkeypatch)


def intervals(rng: np.random.Generator, names: str, rows: int) -> pa.Table:
    """Intervals of which some are points, some upside down, some without an end."""
    low = rng.integers(0, 300, rows)
    data = {}
    for name, values in zip(names, (low, low + rng.integers(-6, 7, rows)), strict=True):
        data[name] = pa.array(values, pa.int32(), mask=rng.random(rows) < 0.05)
    return pa.table(data | {"k": rng.integers(0, 3, rows), "row": np.arange(rows)})


OVERLAPS = {
    "closed": ((left("a") <= right("d")) & (right("c") <= left("b")), "a <= d and c <= b"),
    "open": ((left("a") < right("d")) & (right("c") < left("b")), "a < d and c < b"),
    "half open": ((left("a") < right("d")) & (right("c") <= left("b")), "a < d and c <= b"),
    "upside down allowed for": (
        (left("a") <= right("d")) & (right("c") <= left("b")) & (left("a") <= left("b")) & (right("c") < right("d")),
        "a <= d and c <= b and a <= b and c < d",
    ),
    "one side": ((left("a") < right("c")) & (left("b") > lit(250)), "a < c and b > 250"),
    "within keys": ((left("a") <= right("d")) & (right("c") <= left("b")), "l.k = r.k and a <= d and c <= b"),
}  # fmt: skip
SHAPES = {
    JoinType.INNER: "select l.row, r.row from l join r on {on}",
    JoinType.RIGHT: "select l.row, r.row from l right join r on {on}",
    JoinType.FULL: "select l.row, r.row from l full join r on {on}",
    JoinType.LEFT_ANTI: "select l.row from l anti join r on {on}",
    JoinType.EXISTENCE: "select l.row, exists (select 1 from r where {on}) from l",
}


@pytest.mark.parametrize("name", OVERLAPS)
def test_overlaps_against_duckdb(
    name: str, duck: duckdb.DuckDBPyConnection, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "LEAST_SPREAD", 1)
    condition, text = OVERLAPS[name]
    algorithm, right_table = intervals(rng, "ab", 250), intervals(rng, "cd", 200)
    duck.register("l", algorithm)
    duck.register("r", right_table)
    keys = (KeyPair(2, 2),) if "l.k" in text else ()
    for how, query in SHAPES.items():
        expected = duck.sql(query.format(on=text)).to_arrow_table()
        resolved = resolve(condition, algorithm.schema, right_table.schema)
        spec = JoinSpec(how, keys, resolved, (3,), () if how.left_rows_only else (3,))
        for side in build_sides(how):
            metrics = JoinMetrics()
            options = Options(batch_bytes=4000, candidate_pairs=500)
            result = run_join(
                spec,
                algorithm,
                right_table,
                backend=CpuBackend(),
                build_side=side,
                batch_rows=70,
                metrics=metrics,
                options=options,
            )
            assert_same_rows(result.rename_columns(expected.column_names), expected, check_types=False)
            assert all(algorithm.startswith("range") for algorithm in metrics.algorithms)


CONDITIONS = {
    "range": left("a") < right("c"),
    "overlap": (left("a") <= right("d")) & (left("b") >= right("c")),
    "free": (left("row") + right("row")) % lit(3) == lit(0),
    "always": None,
}


@pytest.mark.parametrize("condition", CONDITIONS)
def test_no_columns_are_asked_for(condition: str, rng: np.random.Generator) -> None:
    """As `count(*)` does: only how many rows there are counts, of inputs with and without columns."""
    left_table, right_table = intervals(rng, "ab", 23), intervals(rng, "cd", 17)
    given = CONDITIONS[condition]
    resolved = None if given is None else resolve(given, left_table.schema, right_table.schema)
    if given is None:
        left_table, right_table = left_table.select([]), right_table.select([])
    for how in KEYED:
        if how.null_aware:
            continue
        spec = JoinSpec(how, (), resolved)
        for rows in (
            (left_table, right_table),
            (left_table.slice(0, 0), right_table),
            (left_table, right_table.slice(0, 0)),
        ):
            expected = oracle_join(*rows, spec).num_rows
            for side in build_sides(how):
                result = run_join(spec, *rows, backend=CpuBackend(), build_side=side, batch_rows=5)
                assert result.num_rows == expected, (how, side)


@pytest.mark.parametrize("threads", [1, 2], ids=["1 thread", "2 threads"])
@pytest.mark.parametrize("condition", ["range", "free", "always"])
def test_taking_some_rows_looks_at_no_more(condition: str, threads: int, tmp_path: Path) -> None:
    """10⁵ × 10⁵ rows, of whose pairs the first thousand are asked for: as below a limit."""
    rows = 100_000
    table = pa.table({"a": np.arange(rows) % 1000, "c": np.arange(rows) % 1000, "row": np.arange(rows)})
    given = CONDITIONS[condition]
    resolved = None if given is None else resolve(given, table.schema, table.schema)
    spec = JoinSpec(JoinType.CROSS if given is None else JoinType.INNER, (), resolved, (0,), (1,))
    metrics, read = JoinMetrics(), []
    options = Options(batch_bytes=1 << 14, candidate_pairs=1 << 12, spill_dir=str(tmp_path))

    def counted() -> Any:
        for batch in table.to_batches(max_chunksize=1000):
            read.append(batch.num_rows)
            yield batch

    backend, taken = CpuBackend(threads), 0
    with HashJoin(spec, table.schema, table.schema, options=options, backend=backend, metrics=metrics) as join:
        join.build(table.to_batches())
        for batch in join.probe(counted()):
            taken += batch.num_rows
            if taken >= 1000:
                break
    # A thread more runs ahead by what may wait, and by what it is at.
    assert metrics.candidate_pairs <= (4 if threads == 1 else 200) * options.candidate_pairs
    assert sum(read) <= 3 * threads * backend.morsel_rows
    assert taken < 10_000
