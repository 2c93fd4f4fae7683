"""Joins in pipelines against the row-loop oracle, within the query and by the gather-map engine."""

from __future__ import annotations

import dataclasses
import itertools
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gpujoin import asof_join_tables
from gpujoin.config import Options
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.engine.pipeline import supports
from gpujoin.errors import CorruptBlobError, ProductSizeError, RelationError
from gpujoin.model.backend import BackendName
from gpujoin.model.expressions import EvalMode, Expression, Function, call, left, lit, right, when
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.pipeline import PipelineMetrics
from gpujoin.model.relations import ExchangeSource, Filter, Join, Relation
from gpujoin.model.spec import AsOf, Direction, JoinSpec, KeyPair, NullEquality
from gpujoin.plan.resolve import resolve
from gpujoin.testing import Zeros, assert_same_rows
from tests.brief import brief
from tests.engine.pipeline.places import everywhere, on_device, run
from tests.expressions.values import VALUES
from tests.oracle.join import oracle_join
from tests.trees import Tree, count, total

PAYLOAD = ("d9_2", "d38_18", "str", "bin", "f64", "ts", "ntz", "date", "bool")


def side_table(rng: np.random.Generator, kind: str, rows: int, *, unique: bool = False) -> pa.Table:
    """A key of special values, a number, and payload of every type."""
    dtype, values = VALUES[kind]
    keys = values if unique else [values[i] for i in rng.integers(0, len(values), rows)]
    columns: dict[str, Any] = {
        "k": pa.array(keys, dtype),
        "n": pa.array(rng.integers(0, 10, len(keys)), pa.int32()),
    }
    for name in PAYLOAD:
        other, pool = VALUES[name]
        columns[name] = pa.array([pool[i] for i in rng.integers(0, len(pool), len(keys))], other)
    return pa.table(columns)


def join_of(
    how: JoinType, left_table: pa.Table, right_table: pa.Table, build: Side, *,
    nulls: NullEquality = NullEquality.UNEQUAL,
    condition: Expression | None = None,
    keys: tuple[KeyPair, ...] | None = None,
) -> Join:  # fmt: skip
    resolved = (
        None if condition is None else resolve(condition, left_table.schema, right_table.schema, mode=EvalMode.ANSI)
    )
    spec = JoinSpec(
        how, (KeyPair(0, 0, nulls),) if keys is None else keys, condition=resolved,
        left_output=tuple(range(left_table.num_columns)),
        right_output=() if how.left_rows_only else tuple(range(right_table.num_columns)),
    )  # fmt: skip
    return Join(ExchangeSource(0, left_table.schema), ExchangeSource(1, right_table.schema), spec, build)


def check(node: Join, left_table: pa.Table, right_table: pa.Table, context: str, **kwargs: Any) -> PipelineMetrics:
    assert supports(node) == ()
    metrics = PipelineMetrics()
    inputs = {0: left_table.to_batches(max_chunksize=40), 1: right_table.to_batches(max_chunksize=40)}
    result = pa.Table.from_batches(run(node, inputs, metrics=metrics, piece_bytes=1, **kwargs), node.schema)
    expected = oracle_join(left_table, right_table, node.spec)
    assert_same_rows(result, expected.cast(node.schema), zeros=Zeros.SAME, allow_empty=True, context=context)
    return metrics


BUILDABLE = [
    (how, side)
    for how, side in itertools.product(JoinType, Side)
    if how is not JoinType.CROSS and not (side is Side.LEFT and how.null_aware)
]
KEYS = ("i32", "i64", "str", "d9_2", "d38_0", "date", "f64", "bool", "ts", "bin")


@pytest.mark.few
@everywhere
@pytest.mark.parametrize("unique", [True, False], ids=["unique", "repeated"])
@pytest.mark.parametrize(("how", "side"), BUILDABLE, ids=lambda v: v.value)
def test_every_join(how: JoinType, side: Side, unique: bool, rng: np.random.Generator, seed: int) -> None:
    for kind in ("i32", "str", "f64"):
        left_table = side_table(rng, kind, 90, unique=unique and side is Side.LEFT)
        right_table = side_table(rng, kind, 90, unique=unique and side is Side.RIGHT)
        metrics = check(
            join_of(how, left_table, right_table, side), left_table, right_table, f"seed {seed}, key {kind}"
        )
        if on_device():
            assert metrics.device_joins > 0
            continue
        if kind != "f64" and unique and how is JoinType.INNER:
            assert metrics.query_joins > 0
            assert metrics.gather_joins == 0
        if kind == "f64" or how is JoinType.FULL:
            assert metrics.query_joins == 0
            assert metrics.gather_joins > 0


@pytest.mark.few
@everywhere
@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("nulls", NullEquality)
def test_keys_of_every_type(kind: str, nulls: NullEquality, rng: np.random.Generator, seed: int) -> None:
    for how in (JoinType.INNER, JoinType.LEFT, JoinType.LEFT_SEMI, JoinType.LEFT_ANTI):
        left_table, right_table = side_table(rng, kind, 60), side_table(rng, kind, 0, unique=True)
        check(
            join_of(how, left_table, right_table, Side.RIGHT, nulls=nulls),
            left_table,
            right_table,
            f"seed {seed}, {how}",
        )


CONDITION = (left("n") < right("n")) | (left("d9_2") == right("d9_2"))


@pytest.mark.few
@everywhere
@pytest.mark.parametrize("unique", [True, False], ids=["unique", "repeated"])
@pytest.mark.parametrize("how", [JoinType.INNER, JoinType.LEFT, JoinType.FULL, JoinType.LEFT_SEMI, JoinType.EXISTENCE])
def test_residual_conditions(how: JoinType, unique: bool, rng: np.random.Generator, seed: int) -> None:
    left_table, right_table = side_table(rng, "i32", 80), side_table(rng, "i32", 80, unique=unique)
    metrics = check(
        join_of(how, left_table, right_table, Side.RIGHT, condition=CONDITION),
        left_table,
        right_table,
        f"seed {seed}",
    )
    if on_device():
        assert metrics.device_joins > 0
    else:
        assert (metrics.query_joins > 0) == (how is JoinType.INNER and unique)


@pytest.mark.few
@everywhere
@pytest.mark.parametrize(
    "condition", [None, left("n") != right("n"), CONDITION], ids=["all pairs", "unequal", "either"]
)
def test_joins_without_keys(condition: Expression | None, rng: np.random.Generator, seed: int) -> None:
    """On a device without a copy of rows to the host."""
    left_table, right_table = side_table(rng, "i32", 45), side_table(rng, "i32", 30)
    for how in (JoinType.INNER, JoinType.LEFT, JoinType.FULL, JoinType.LEFT_ANTI, JoinType.EXISTENCE):
        node = join_of(how, left_table, right_table, Side.RIGHT, condition=condition)
        node = dataclasses.replace(node, spec=dataclasses.replace(node.spec, keys=()))
        metrics = check(node, left_table, right_table, f"seed {seed}, {how}")
        if on_device():
            assert supports(node, BackendName.GPU) == ()
            assert metrics.device_joins > 0
            assert metrics.host_steps == 0


@everywhere
@pytest.mark.parametrize("condition", [None, left("n") < right("n")], ids=["every pair", "a condition"])
@pytest.mark.parametrize("how", [kind for kind in JoinType if kind.null_aware], ids=lambda kind: kind.value)
def test_not_in_of_several_columns(
    how: JoinType, condition: Expression | None, rng: np.random.Generator, seed: int
) -> None:
    """On a device without a copy of rows to the host."""
    left_table, right_table = side_table(rng, "str", 80), side_table(rng, "str", 30)
    at = left_table.schema.get_field_index("d9_2")
    for keys in ((KeyPair(0, 0), KeyPair(at, at)), (KeyPair(0, 0), KeyPair(at, at, NullEquality.EQUAL))):
        node = join_of(how, left_table, right_table, Side.RIGHT, condition=condition, keys=keys)
        metrics = check(node, left_table, right_table, f"seed {seed}, {how}")
        if on_device():
            assert supports(node, BackendName.GPU) == ()
            assert metrics.device_joins > 0
            assert metrics.host_steps == 0


DECIMAL_CONDITIONS = {
    "product": left("d9_2").cast(pa.decimal128(20, 4)) > Decimal("1.2") * right("d9_2"),
    "quotient": when(left("d9_2") > 0, right("d9_2") / left("d9_2")).else_(None) > lit(Decimal("0.5")),
    "difference": call(Function.ABS, left("d9_2") - right("d9_2")) < 5,
    "two scales": left("d9_2") + right("d9_2").cast(pa.decimal128(12, 4)) != right("d38_18").cast(pa.decimal128(30, 4)),
}


@pytest.mark.few
@everywhere
@pytest.mark.parametrize("name", DECIMAL_CONDITIONS)
def test_conditions_over_decimals(name: str, rng: np.random.Generator, seed: int) -> None:
    """Tested on a device, of frames and of rows that are copied there."""
    left_table, right_table = side_table(rng, "i32", 80), side_table(rng, "i32", 80)
    for how in (JoinType.INNER, JoinType.FULL):
        condition = resolve(DECIMAL_CONDITIONS[name], left_table.schema, right_table.schema)
        node = join_of(how, left_table, right_table, Side.RIGHT)
        node = dataclasses.replace(node, spec=dataclasses.replace(node.spec, condition=condition))
        metrics = check(node, left_table, right_table, f"seed {seed}, {how}")
        if on_device():
            assert supports(node, BackendName.GPU) == ()
            assert metrics.device_joins > 0 or name == "product", "the host searches ranges of over 18 digits"


@everywhere
def test_a_product_beyond_its_limit_is_refused(rng: np.random.Generator) -> None:
    left_table, right_table = side_table(rng, "i32", 45), side_table(rng, "i32", 30)
    node = join_of(JoinType.INNER, left_table, right_table, Side.RIGHT)
    node = dataclasses.replace(node, spec=dataclasses.replace(node.spec, keys=()))
    with pytest.raises(ProductSizeError):
        check(node, left_table, right_table, "", options=Options(max_product_rows=1000))


@everywhere
def test_a_condition_that_is_not_lowered(rng: np.random.Generator, seed: int) -> None:
    left_table, right_table = side_table(rng, "i32", 80), side_table(rng, "i32", 80, unique=True)
    condition = (right("n") != 0) & (left("n") % right("n") == 1)
    metrics = check(
        join_of(JoinType.INNER, left_table, right_table, Side.RIGHT, condition=condition),
        left_table,
        right_table,
        f"seed {seed}",
    )
    assert metrics.query_joins > 0
    assert metrics.evaluated > 0 or on_device()


@pytest.mark.few
@everywhere
@pytest.mark.parametrize("how", [JoinType.INNER, JoinType.LEFT, JoinType.FULL, JoinType.LEFT_ANTI])
def test_a_build_side_over_the_budget_is_spilled(
    how: JoinType, rng: np.random.Generator, seed: int, tmp_path: Path
) -> None:
    left_table, right_table = side_table(rng, "i64", 120), side_table(rng, "i64", 120)
    joins = JoinMetrics()
    options = Options(memory_budget=4000, spill_dir=str(tmp_path))
    metrics = check(
        join_of(how, left_table, right_table, Side.RIGHT),
        left_table,
        right_table,
        f"seed {seed}",
        options=options,
        join_metrics=joins,
    )
    assert metrics.gather_joins > 0
    assert joins.spills > 0
    assert list(tmp_path.iterdir()) == []


@everywhere
def test_decimal_keys_of_different_types(rng: np.random.Generator, seed: int) -> None:
    left_table = pa.table({"k": pa.array([None, 1, 2, 3], pa.int32()).cast(pa.decimal128(12, 2)), "n": [1, 2, 3, 4]})
    right_table = pa.table({"k": pa.array([None, 1, 3, 4], pa.int32()).cast(pa.decimal128(20, 4)), "n": [5, 6, 7, 8]})
    check(join_of(JoinType.FULL, left_table, right_table, Side.RIGHT), left_table, right_table, f"seed {seed}")


@everywhere
def test_empty_sides(rng: np.random.Generator) -> None:
    rows = side_table(rng, "i32", 20)
    none = rows.slice(0, 0)
    for how, side in BUILDABLE:
        check(join_of(how, rows, none, side), rows, none, "empty right")
        check(join_of(how, none, rows, side), none, rows, "empty left")


@everywhere
def test_one_relation_joined_twice(rng: np.random.Generator) -> None:
    """Columns of the same input must not be taken for one another."""
    table = pa.table({"a": [1, 2, 3], "b": [2, 3, 1], "v": [10, 20, 30]})
    source = Tree.source(table.schema)
    once = source.join(Tree.source(table.schema, 1), {"b": "a"})
    twice = Tree(Join(
        once.relation, ExchangeSource(2, table.schema),
        JoinSpec(JoinType.INNER, (KeyPair(4, 0),), left_output=(0, 2, 5), right_output=(2,)),
    ))  # fmt: skip
    result = pa.Table.from_batches(run(twice.relation, dict.fromkeys(range(3), table)), twice.schema)
    assert sorted(zip(*(c.to_pylist() for c in result.columns), strict=True)) == [
        (1, 10, 20, 30), (2, 20, 30, 10), (3, 30, 10, 20),
    ]  # fmt: skip


@everywhere
def test_a_chain_of_joins_under_an_aggregation(rng: np.random.Generator) -> None:
    facts = pa.table({"a": rng.integers(0, 50, 5000), "b": rng.integers(0, 20, 5000), "x": rng.integers(0, 9, 5000)})
    first = pa.table({"a2": np.arange(40), "g": np.arange(40) % 3})
    second = pa.table({"b2": np.arange(15), "y": np.arange(15)})
    tree = (
        Tree.source(facts.schema)
        .join(Tree.source(first.schema, 1), {"a": "a2"})
        .join(Tree.source(second.schema, 2), {"b": "b2"}, "left")
        .group("g", s=total(left("x") * left("y")))
    )
    metrics = PipelineMetrics()
    out = run(tree.relation, {0: facts, 1: first, 2: second}, metrics=metrics)
    result = {row["g"]: row["s.sum"] for row in pa.Table.from_batches(out, tree.schema).to_pylist()}
    expected: dict[int, int] = {}
    for a, b, x in zip(*(facts[c].to_pylist() for c in "abx"), strict=True):
        if a < 40 and b < 15:
            expected[a % 3] = expected.get(a % 3, 0) + x * b
    assert result == expected
    assert metrics.query_joins == 2


@everywhere
def test_feeds_read_arrow_files(tmp_path: Path) -> None:
    table = pa.table({"k": [1, 2, 3]})
    path = tmp_path / "rows.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    source = ExchangeSource(0, table.schema)
    assert pa.Table.from_batches(run(source, {0: path}), table.schema).equals(table)
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(CorruptBlobError, match=r"rows\.arrow"):
        list(run(source, {0: path}))
    with pytest.raises(CorruptBlobError, match="nowhere"):
        list(run(source, {0: tmp_path / "nowhere"}))


@everywhere
def test_inputs_that_do_not_fit_are_refused() -> None:
    source = ExchangeSource(3, pa.schema([("k", pa.int64())]))
    with pytest.raises(RelationError, match=r"source 3 has no input; inputs are \[0\]"):
        list(run(source, {0: pa.table({"k": [1]})}))
    with pytest.raises(RelationError, match="source 3 has 1 columns"):
        list(run(source, {3: pa.table({"k": [1], "j": [2]})}))


@everywhere
def test_expressions_that_are_not_exact_are_refused() -> None:
    schema = pa.schema([("s", pa.string())])
    tree: Relation = Tree.source(schema).where(left("s").rlike("a(?=b)")).relation
    assert isinstance(tree, Filter)
    [reason] = supports(tree)
    assert "s rlike " in str(reason)


def _rank(row: tuple[float | None, int]) -> tuple[bool, float, int]:
    """Descending keys with nulls last and NaN the greatest, then ascending numbers."""
    key, number = row
    if key is None:
        return True, 0.0, number
    return False, -math.inf if math.isnan(key) else -min(key, 1e308 * 1.5) + 0.0, number


@everywhere
def test_top_and_limit(rng: np.random.Generator, seed: int) -> None:
    table = side_table(rng, "f64", 200)
    for pieces in (1, 1 << 30):
        tree = Tree.source(table.schema).top(20, ("k", True), ("n", False)).relation
        batches = table.to_batches(max_chunksize=30)
        result = pa.Table.from_batches(run(tree, {0: batches}, piece_bytes=pieces), tree.schema)

        ranked = sorted(zip(table["k"].to_pylist(), table["n"].to_pylist(), strict=True), key=_rank)
        rows = sorted(zip(result["k"].to_pylist(), result["n"].to_pylist(), strict=True), key=_rank)
        assert list(map(_rank, rows)) == list(map(_rank, ranked[:20]))
        limited = Tree.source(table.schema).limit(45).relation
        metrics = PipelineMetrics()
        count = sum(b.num_rows for b in run(limited, {0: iter(batches)}, metrics=metrics, piece_bytes=pieces))
        assert count == 45
        if pieces == 1:
            assert metrics.source_rows < 100, "rows were read that the limit does not need"


@everywhere
def test_order_keys_of_two_scales_and_tolerances_of_decimals() -> None:
    """Within a pipeline decimals are integers: 1.50 and 1.500 are 150 and 1500."""
    moments = pa.table(
        {
            "t": pa.array([Decimal(text) for text in ("1.50", "2.75", "9.00", "-3.25")], pa.decimal128(10, 2)),
            "n": [0, 1, 2, 3],
        }
    )
    quotes = pa.table(
        {
            "t": pa.array([Decimal(text) for text in ("1.500", "1.125", "4.001", "-9.999")], pa.decimal128(12, 3)),
            "m": [0, 1, 2, 3],
        }
    )
    for tolerance, expected in ((Decimal("1.25"), [0, 0, None, None]), (None, [0, 0, 2, 3])):
        for searched in (
            quotes,
            quotes.set_column(0, "t", quotes["t"].cast(pa.decimal128(10, 2), safe=False)),
        ):
            terms = AsOf(0, 0, Direction.BACKWARD, tolerance)
            spec = JoinSpec(JoinType.LEFT, left_output=(1,), right_output=(1,), as_of=terms)
            node = Join(ExchangeSource(0, moments.schema), ExchangeSource(1, searched.schema), spec, Side.RIGHT)
            inputs = {0: moments.to_batches(), 1: searched.to_batches()}
            result = pa.Table.from_batches(run(node, inputs), node.schema).sort_by("n")
            assert result["m"].to_pylist() == expected, (searched.schema, tolerance)


@everywhere
@pytest.mark.parametrize("by", [False, True], ids=["all", "by text"])
@pytest.mark.parametrize(
    ("kind", "direction"),
    [
        *(("date", direction) for direction in Direction),
        *((kind, way) for kind in ("d38_18", "bin") for way in (Direction.BACKWARD, Direction.FORWARD)),
    ],
)
def test_as_of_joins(kind: str, direction: Direction, by: bool, rng: np.random.Generator) -> None:
    names = np.array(["a", "b", "c", None])

    def order_keys(rows: int) -> pa.Array:
        if kind == "date":
            return pa.array(rng.integers(0, 50, rows), pa.int32(), mask=rng.random(rows) < 0.1).cast(pa.date32())
        dtype, pool = VALUES[kind]
        return pa.array([pool[i] for i in rng.integers(0, len(pool), rows)], dtype)

    left_table, right_table = (
        pa.table(
            {
                "t": order_keys(rows),
                "s": pa.array(names[rng.integers(0, 4, rows)].tolist(), pa.string()),
                "n": np.arange(rows),
            }
        )
        for rows in (80, 60)
    )
    keys = (KeyPair(1, 1),) if by else ()
    spec = JoinSpec(JoinType.LEFT, keys, left_output=(0, 2), right_output=(0, 2), as_of=AsOf(0, 0, direction))
    node = Join(ExchangeSource(0, left_table.schema), ExchangeSource(1, right_table.schema), spec, Side.RIGHT)
    metrics = PipelineMetrics()
    inputs = {0: left_table.to_batches(max_chunksize=30), 1: right_table.to_batches()}
    result = pa.Table.from_batches(run(node, inputs, metrics=metrics, piece_bytes=1), node.schema)
    wanted = asof_join_tables(
        left_table, right_table, on="t", by="s" if by else None, direction=direction, backend="cpu",
    )  # fmt: skip
    pairs = zip(result.column(1).to_pylist(), result.column(3).to_pylist(), strict=True)
    assert dict(pairs) == dict(zip(wanted["n"].to_pylist(), wanted["n_right"].to_pylist(), strict=True))
    if on_device():
        assert metrics.device_joins > 0
        assert metrics.host_steps == 0


@pytest.mark.few
@pytest.mark.parametrize("side", Side, ids=lambda side: f"build {side.value}")
@pytest.mark.parametrize("kind", brief(VALUES, "str", "d38_18", "f64", "ts"))
def test_joins_with_one_row_become_constants(kind: str, side: Side, rng: np.random.Generator, seed: int) -> None:
    """Whatever its values are, null among them, with and without a condition, which may be null."""
    many = side_table(rng, kind, 40)
    for value in [*VALUES[kind][1][:6], None]:
        one = side_table(rng, kind, 1)
        one = one.set_column(0, "k", pa.array([value], VALUES[kind][0]))
        left_table, right_table = (many, one) if side is Side.RIGHT else (one, many)
        for condition in (None, left("k") <= right("k"), (left("n") > right("n")) | (left("k") == right("k"))):
            how = JoinType.CROSS if condition is None else JoinType.INNER
            node = join_of(how, left_table, right_table, side, condition=condition, keys=())
            metrics = check(node, left_table, right_table, f"seed {seed}, {value!r}, {condition}")
            assert (metrics.gather_joins, metrics.query_joins > 0) == (0, True)


@pytest.mark.parametrize("rows", [0, 2])
def test_joins_without_keys_with_no_row_or_two_are_no_constants(rows: int, rng: np.random.Generator) -> None:
    many, few = side_table(rng, "i32", 90), side_table(rng, "i32", 2).slice(0, rows)
    node = join_of(JoinType.INNER, many, few, Side.RIGHT, condition=left("k") <= right("k"), keys=())
    assert check(node, many, few, "no row or two").query_joins == 0
    counted = Tree(join_of(JoinType.CROSS, many, few, Side.RIGHT, keys=())).group(n=count()).relation
    result = pa.Table.from_batches(run(counted, {0: many, 1: few}), counted.schema)
    assert result["n.count"].to_pylist() == [90 * rows]


def test_numbers_of_one_row_are_no_constants_to_polars(rng: np.random.Generator) -> None:
    """It would multiply by the inverse of a constant, and leave out a zero that is added: other last bits and signs."""
    many = pa.table({"d": rng.random(1000) * 7, "n": pa.array([-0.0] * 1000), "i": rng.integers(1, 99, 1000)})
    one = pa.table({"m": [0.37 * 7], "z": [0.0], "w": pa.array([3])})
    node = join_of(JoinType.CROSS, many, one, Side.RIGHT, keys=())
    tree = Tree(node, EvalMode.LEGACY).select(
        q=left("d") / left("m"), a=left("n") + left("z"), s=left("z") - left("n"), w=left("d") / left("w"),
    ).relation  # fmt: skip
    out = pa.Table.from_batches(run(tree, {0: many, 1: one}), tree.schema)
    d, n = many["d"].to_numpy(), many["n"].to_numpy()
    for name, wanted in {"q": d / (0.37 * 7), "a": n + 0.0, "s": 0.0 - n, "w": d / 3.0}.items():
        assert out[name].to_numpy().tobytes() == wanted.tobytes(), name


@pytest.mark.parametrize("kind", ["date", "ts", "ntz"])
def test_one_row_of_a_day_before_the_year_1(kind: str) -> None:
    dtype = VALUES[kind][0]
    early = pa.array([-800_000], pa.int32()).cast(dtype) if kind == "date" else pa.array([-(10**17)]).cast(dtype)
    many, one = pa.table({"i": [1, 2]}), pa.table({"t": early})
    node = join_of(JoinType.CROSS, many, one, Side.RIGHT, keys=())
    metrics = PipelineMetrics()
    out = pa.Table.from_batches(run(node, {0: many, 1: one}, metrics=metrics), node.schema)
    assert out["t"].combine_chunks().equals(pa.concat_arrays([early, early]).cast(node.schema.field("t").type))
    assert metrics.recovered == {}
