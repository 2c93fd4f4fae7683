"""Random joins of null-heavy tables of nasty values, each run in a random way and compared with the row loop."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from gpujoin.backends.cpu.backend import CpuBackend
from gpujoin.config import Options
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.errors import ExpressionEvaluationError
from gpujoin.model.expressions import Expression, left, right
from gpujoin.model.jointype import JoinType
from gpujoin.model.spec import JoinSpec
from gpujoin.testing import assert_same_rows
from tests.engine.support import CONDITIONS, WHOLE, build_sides, keyed, run_join
from tests.generate import KEY_TYPES, Generator, KeyShape, Mix
from tests.oracle.join import oracle_join

NASTY = Mix(nulls=0.3, special=0.5, invalid_text=0.25)
TABLE_SIZES = ((0, 9), (9, 0), (1, 1), (14, 11), (30, 4), (4, 30), (25, 20))
JOINS_PER_TABLES = 10
"""Making two tables takes as long as some joins of them."""
BATCH_ROWS = {1: 4, 3: 8, 16: 38, WHOLE: 50}
BATCH_BYTES = {1: 4, 100: 8, 2000: 18, 1 << 25: 70}
CANDIDATE_PAIRS = {1: 4, 7: 8, 100: 18, 1 << 20: 70}
COLUMN_BYTES = {1: 4, 64: 8, 1 << 20: 88}
BUDGETS = {1: 1, 300: 3, 2000: 12, 1 << 30: 84}
"""Values of options, and per cent of the joins that have them: the least ones take up to 50 times as long."""
PAYLOADS = {
    "text": pa.string(), "large text": pa.large_string(), "double": pa.float64(), "decimal": pa.decimal128(38, 10),
    "date": pa.date32(), "timestamp": pa.timestamp("us", "UTC"), "binary": pa.binary(), "list": pa.list_(pa.string()),
    "struct": pa.struct([("a", pa.int32()), ("b", pa.list_(pa.float64()))]), "map": pa.map_(pa.string(), pa.int64()),
}  # fmt: skip
RANGES: dict[str, Expression | None] = {
    "l.v <= r.v": left("v") <= right("v"),
    "l.row between r.row - 2 and r.row + 2": (left("row") <= right("row") + 2) & (left("row") >= right("row") - 2),
    "l.d > r.d": left("d") > right("d"),
    "l.t >= r.t": left("t") >= right("t"),
    "l.m < r.m and l.v <> r.v": (left("m") < right("m")) & (left("v") != right("v")),
}
CHOICES = {**CONDITIONS, **RANGES}
MIXED_KEYS = (
    ("int8", "int64"), ("int16", "int32"), ("float", "double"), ("int64", "double"), ("decimal_7_2", "decimal_38_10"),
    ("string", "large_string"), ("dictionary", "string"), ("binary", "large_binary"),
)  # fmt: skip
"""Types of keys that are compared with each other."""


@dataclass
class Tally:
    """What a sweep met.

    Attributes
    ----------
    joins : int
        Joins compared.
    rows : int
        Rows they returned.
    spilled : int
        Joins that spilled.
    kinds : Counter
        Joins by type.
    algorithms : Counter
        Build sides by algorithm.
    """

    joins: int = 0
    rows: int = 0
    spilled: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    algorithms: Counter[str] = field(default_factory=Counter)

    def add(self, other: Tally) -> None:
        """Add what another sweep met."""
        self.joins += other.joins
        self.rows += other.rows
        self.spilled += other.spilled
        self.kinds += other.kinds
        self.algorithms += other.algorithms


def check_joins(seed: int, folder: Path) -> Tally:
    """Compare :data:`JOINS_PER_TABLES` joins of the tables of a seed with the row loop.

    Raises
    ------
    AssertionError
        With the seed and the join, if rows differ, files are left behind, or only one of the two raises.
    """
    draw = random.Random(seed)
    count = draw.choice((0, 1, 1, 1, 2, 2, 3))
    left_table, right_table = _tables(draw, seed, count)
    tally = Tally()
    for number in range(JOINS_PER_TABLES):
        spec, name = _spec(draw, left_table, right_table, count)
        options = Options(
            batch_bytes=_drawn(draw, BATCH_BYTES), candidate_pairs=_drawn(draw, CANDIDATE_PAIRS),
            max_column_bytes=_drawn(draw, COLUMN_BYTES), memory_budget=_drawn(draw, BUDGETS),
            cpu_threads=_drawn(draw, {1: 92, 3: 8}), spill_dir=str(folder),
        )  # fmt: skip
        build_side, rows = draw.choice(build_sides(spec.join_type)), _drawn(draw, BATCH_ROWS)
        metrics = JoinMetrics()
        context = (
            f"GPUJOIN_TEST_SEED={seed} join {number}: {spec.join_type.value}, keys {spec.keys}, {name}, "
            f"build {build_side.value}, batches of {rows}, {_told(options)}"
        )
        try:
            expected = oracle_join(left_table, right_table, spec)
        except (ExpressionEvaluationError, ArithmeticError):
            continue
        try:
            actual = run_join(
                spec, left_table, right_table, backend=CpuBackend(options.cpu_threads or 1),
                build_side=build_side, options=options,
                batch_rows=rows, metrics=metrics,
            )  # fmt: skip
        except Exception as problem:
            raise AssertionError(f"{context}: {type(problem).__name__}: {problem}") from problem
        assert_same_rows(actual, expected, allow_empty=True, context=context)
        assert not any(folder.iterdir()), f"{context}: files are left in {folder}"
        tally.joins += 1
        tally.rows += expected.num_rows
        tally.spilled += metrics.spills > 0
        tally.kinds[spec.join_type.value] += 1
        tally.algorithms.update(metrics.algorithms)
    return tally


def _drawn(draw: random.Random, shares: dict[int, int]) -> int:
    return draw.choices(list(shares), list(shares.values()))[0]


def _told(options: Options) -> str:
    fields = ("batch_bytes", "candidate_pairs", "max_column_bytes", "memory_budget", "cpu_threads")
    return ", ".join(f"{name}={getattr(options, name)}" for name in fields)


def _tables(draw: random.Random, seed: int, count: int) -> tuple[pa.Table, pa.Table]:
    generator = Generator(seed, NASTY)
    rows = draw.choice(TABLE_SIZES)
    columns: tuple[dict[str, pa.Array], dict[str, pa.Array]] = ({}, {})
    for number in range(count):
        if draw.random() < 0.2:
            names = draw.choice(MIXED_KEYS)
            names = names if draw.random() < 0.5 else names[::-1]
            few = Generator(seed + number, Mix(nulls=0.2, special=0.4, spread=3, longest=1, invalid_text=0.25))
            pair = tuple(few.array(KEY_TYPES[name], size) for name, size in zip(names, rows, strict=True))
        else:
            dtype = KEY_TYPES[draw.choice(list(KEY_TYPES))]
            shape = draw.choice(list(KeyShape))
            pair = generator.keys(
                dtype,
                max(*rows, 1),
                shape,
                nulls=draw.choice((0.0, 0.1, 0.4)),
                distinct=draw.choice((2, 5, 30)),
            )
        for side in (0, 1):
            columns[side][f"k{number}"] = pair[side].slice(0, rows[side])
    extra = PAYLOADS[draw.choice(list(PAYLOADS))]
    for side in (0, 1):
        columns[side]["row"] = pa.array(range(rows[side]), pa.int32())
        for name, dtype in (("v", pa.float64()), ("d", pa.date32()), ("t", pa.string()), ("m", pa.decimal128(38, 10)),
                            ("x", extra)):  # fmt: skip
            columns[side][name] = generator.array(dtype, rows[side])
    return pa.table(columns[0]), pa.table(columns[1])


def _spec(draw: random.Random, left_table: pa.Table, right_table: pa.Table, count: int) -> tuple[JoinSpec, str]:
    kinds = [kind for kind in JoinType if count or not kind.null_aware]
    kind = draw.choices(kinds, [1 if kind is JoinType.CROSS else 4 for kind in kinds])[0]
    if kind is JoinType.CROSS:
        count = 0
    name = "no condition" if kind is JoinType.CROSS or draw.random() < 0.5 else draw.choice(list(CHOICES))
    equal = tuple(not kind.null_aware and draw.random() < 0.3 for _ in range(count))
    return keyed(kind, left_table, right_table, keys=count, equal=equal, condition=CHOICES[name]), name
