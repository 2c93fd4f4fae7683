"""Partial aggregation: merged as Spark merges, it must give what aggregating a row at a time gives."""

from __future__ import annotations

import dataclasses
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from gpujoin.backends.cpu.pipeline import aggregate as cpu_aggregate
from gpujoin.config import Options
from gpujoin.engine.pipeline import supports
from gpujoin.errors import ExpressionEvaluationError
from gpujoin.model.aggregates import (
    BITWISE,
    CENTRAL_MOMENTS,
    COMOMENTS,
    EXTREMES_BY,
    HIGHER_MOMENTS,
    LISTS,
    AggregateFunction,
)
from gpujoin.model.backend import BackendName
from gpujoin.model.expressions import EvalMode, left
from gpujoin.model.pipeline import PipelineMetrics
from gpujoin.model.relations import PartialAggregate
from gpujoin.testing import cells
from tests.brief import brief
from tests.engine.pipeline.places import everywhere, on_device, run
from tests.expressions.values import VALUES
from tests.oracle.aggregates import aggregated, assert_same_groups, group_key, merged
from tests.trees import Aggregate, Tree, average, count, total

KINDS = (
    "bool", "i8", "i16", "i32", "i64", "f32", "f64", "d9_2", "d18_6", "d38_0", "d38_18", "str", "bin", "date", "ts",
    "ntz",
)  # fmt: skip
NUMBERS = ("i8", "i16", "i32", "f32", "f64", "d9_2", "d18_6", "d38_18")


def random_table(rng: np.random.Generator, rows: int, groups: int) -> pa.Table:
    """Group columns, and a column of special values of each kind."""
    columns = {"g": pa.array(rng.integers(0, groups, rows), pa.int32())}
    for kind in KINDS:
        dtype, values = VALUES[kind]
        columns[kind] = pa.array([values[i] for i in rng.integers(0, len(values), rows)], dtype)
    return pa.table(columns)


def check(tree: Tree, table: pa.Table, context: str, *, pieces: int = 1, **options: Any) -> PipelineMetrics:
    """Run over a table cut in pieces, and compare with the row loop."""
    node = tree.relation
    assert isinstance(node, PartialAggregate)
    assert supports(node) == ()
    metrics = PipelineMetrics()
    step = max(1, -(-table.num_rows // pieces))
    batches = table.to_batches(max_chunksize=step)
    out = run(node, {0: batches}, metrics=metrics, options=Options(**options), piece_bytes=1)
    partial = pa.Table.from_batches(out, node.schema)
    assert_same_groups(merged(node, partial), aggregated(node, table), context)
    if on_device() and not supports(node, BackendName.GPU):
        assert metrics.host_steps == 0
    return metrics


@pytest.mark.few
@everywhere
@pytest.mark.parametrize("pieces", [1, 7])
@pytest.mark.parametrize("key", [None, "g", *KINDS])
def test_groups_of_every_type(key: str | None, pieces: int, rng: np.random.Generator, seed: int) -> None:
    table = random_table(rng, 300, 5)
    keys = () if key is None else (key,)
    tree = Tree.source(table.schema).group(
        *keys, n=count(), some=count(left("i32"), left("str")), positive=count(where=left("i32") > 0),
        s=total(left("i32")), d=total(left("d9_2"), where=left("bool")),
    )  # fmt: skip
    check(tree, table, f"seed {seed}", pieces=pieces)


@pytest.mark.few
@everywhere
@pytest.mark.parametrize("pieces", [1, 7])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("function", [AggregateFunction.MIN, AggregateFunction.MAX])
def test_extremes(function: AggregateFunction, kind: str, pieces: int, rng: np.random.Generator, seed: int) -> None:
    table = random_table(rng, 200, 20)
    tree = Tree.source(table.schema).group(
        "g", v=Aggregate(function, (left(kind),)), w=Aggregate(function, (left(kind),), left("bool"))
    )
    check(tree, table, f"seed {seed}", pieces=pieces)


@everywhere
@pytest.mark.parametrize("dtype", [pa.float32(), pa.float64()], ids=str)
@pytest.mark.parametrize("function", [AggregateFunction.MIN, AggregateFunction.MAX])
def test_the_extreme_of_negative_zeros_keeps_its_sign(function: AggregateFunction, dtype: pa.DataType) -> None:
    numbers = [-0.0, -0.0, 0.0, math.nan, -math.inf, -1.5, math.nan]
    table = pa.table({"g": pa.array([1, 1, 2, 3, 4, 4, 4], pa.int32()), "v": pa.array(numbers, dtype)})
    node = Tree.source(table.schema).group("g", v=Aggregate(function, (left("v"),))).relation
    result = pa.Table.from_batches(run(node, {0: table.to_batches()}, piece_bytes=1), node.schema)
    found = dict(zip(result.column(0).to_pylist(), map(str, result.column(1).to_pylist()), strict=True))
    assert found == {1: "-0.0", 2: "0.0", 3: "nan", 4: "-inf" if function is AggregateFunction.MIN else "nan"}


@pytest.mark.few
@everywhere
@pytest.mark.parametrize("pieces", [1, 7])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("function", sorted(EXTREMES_BY, key=str))
def test_values_of_the_row_of_an_extreme(
    function: AggregateFunction, kind: str, pieces: int, rng: np.random.Generator, seed: int
) -> None:
    """Equal orderings have equal values, so that one value is right."""
    table = random_table(rng, 200, 20)
    orderings = [group_key(value) for value in cells(table[kind])]
    fitting = {value: None if i % 5 == 4 else i for i, value in enumerate(dict.fromkeys(orderings))}
    table = table.append_column("fits", pa.array(map(fitting.get, orderings), pa.int64()))
    table = table.append_column("row", pa.array(rng.permutation(table.num_rows)))
    by = (left("fits"), left(kind))
    tree = Tree.source(table.schema).group(
        "g", v=Aggregate(function, by), w=Aggregate(function, by, left("bool")),
        unique=Aggregate(function, (left(kind), left("row"))),
    )  # fmt: skip
    check(tree, table, f"seed {seed}", pieces=pieces)
    whole = Tree.source(table.schema).group(v=Aggregate(function, by))
    check(whole, table, f"seed {seed}", pieces=pieces)
    check(whole, table.slice(0, 0), "no rows")


@pytest.mark.few
@everywhere
@pytest.mark.parametrize("pieces", [1, 7])
@pytest.mark.parametrize("kind", brief(KINDS, "bool", "i64", "f64", "d38_18", "str", "ts"))
@pytest.mark.parametrize("function", sorted(EXTREMES_BY, key=str))
def test_of_equal_orderings_the_last_row_counts(
    function: AggregateFunction, kind: str, pieces: int, rng: np.random.Generator, seed: int
) -> None:
    table = random_table(rng, 400, 12)
    table = table.append_column("row", pa.array(range(table.num_rows)))
    call = Aggregate(function, (left("row"), left(kind)))
    tree = Tree.source(table.schema).group("g", v=call, w=Aggregate(function, call.arguments, left("bool")))
    check(tree, table, f"seed {seed}", pieces=pieces)
    check(Tree.source(table.schema).group(v=call), table, f"seed {seed}", pieces=pieces)


@pytest.mark.few(2)
@pytest.mark.parametrize("pieces", [1, 7])
@pytest.mark.parametrize("order", ["ascending", "descending", "first key only", "a null"])
@pytest.mark.parametrize("kind", ["i8", "i64", "date", "ts", "str"])
def test_rows_in_the_order_of_their_keys(
    kind: str, order: str, pieces: int, rng: np.random.Generator, seed: int
) -> None:
    """Each run of equal keys is a group; so it is only where all keys ascend, without nulls."""
    dtype, values = VALUES[kind]
    table = random_table(rng, 1_500, 40)
    table = table.append_column("k", pa.array([v for v in values if v is not None] * 500, dtype)[: table.num_rows])
    first = "descending" if order == "descending" else "ascending"
    table = table.sort_by([("g", first), ("k", "descending" if order == "first key only" else "ascending")])
    if order == "a null":
        nulls = pa.array(np.arange(table.num_rows) == 7)
        table = table.set_column(table.schema.get_field_index("k"), "k", pc.if_else(nulls, None, table["k"]))
    tree = Tree.source(table.schema).group(
        "g", "k", n=count(), some=count(left("i32"), left("str")), s=total(left("d18_6"), where=left("bool")),
        least=Aggregate(AggregateFunction.MIN, (left("f64"),)), most=Aggregate(AggregateFunction.MAX, (left("str"),)),
    )  # fmt: skip
    metrics = check(tree, table, f"seed {seed}", pieces=pieces)
    expected = {"ascending": pieces, "a null": pieces - 1}.get(order, 0)
    assert metrics.ordered_pieces == (0 if kind == "str" else expected)


@pytest.mark.few
@pytest.mark.parametrize("pieces", [1, 7])
@pytest.mark.parametrize("kind", ["i8", "i16", "i32", "i64"])
@pytest.mark.parametrize("function", sorted(BITWISE, key=str))
def test_bits(function: AggregateFunction, kind: str, pieces: int, rng: np.random.Generator, seed: int) -> None:
    table = random_table(rng, 200, 20)
    calls = {
        "v": Aggregate(function, (left(kind),)), "w": Aggregate(function, (left(kind),), left("bool")),
        "n": Aggregate(function, (left(kind),), left(kind).is_null()),
    }  # fmt: skip
    for keys in (("g",), ()):
        check(Tree.source(table.schema).group(*keys, **calls), table, f"seed {seed}", pieces=pieces)
    check(Tree.source(table.schema).group(**calls), table.slice(0, 0), "no rows")


@pytest.mark.few
@everywhere
@pytest.mark.parametrize("pieces", [1, 7])
@pytest.mark.parametrize("kind", NUMBERS)
def test_sums_and_averages(kind: str, pieces: int, rng: np.random.Generator, seed: int) -> None:
    table = random_table(rng, 200, 20)
    if kind in ("f32", "f64"):  # sums of the largest floats depend on the order of rows
        dtype = table.schema.field(kind).type
        tame = [None if v is None or 1e9 < abs(v) < math.inf else v for v in table[kind].to_pylist()]
        table = table.set_column(table.schema.get_field_index(kind), kind, pa.array(tame, dtype, from_pandas=False))
    tree = Tree.source(table.schema, mode=EvalMode.LEGACY).group(
        "g", s=total(left(kind)), a=average(left(kind)), w=total(left(kind), left("bool")),
        b=average(left(kind), left("bool")),
    )  # fmt: skip
    check(tree, table, f"seed {seed}", pieces=pieces)


@everywhere
def test_sums_of_no_rows_and_of_nulls() -> None:
    schema = pa.schema([("g", pa.int32()), ("i", pa.int64()), ("d", pa.decimal128(30, 3)), ("x", pa.float64())])
    calls = {
        "si": total(left("i")), "sd": total(left("d")), "sx": total(left("x")), "ai": average(left("i")),
        "ad": average(left("d")), "v": Aggregate(AggregateFunction.STDDEV_POP, (left("x"),)),
        "m": Aggregate(AggregateFunction.MAX, (left("d"),)), "n": count(left("x")),
        "f": Aggregate(AggregateFunction.FIRST, (left("d"),)),
    }  # fmt: skip
    nulls = pa.table([[1, 1], *[pa.nulls(2, f.type) for f in list(schema)[1:]]], schema=schema)
    for table in (schema.empty_table(), nulls):
        whole = Tree.source(schema).group(**calls)
        check(whole, table, "no keys")
        node = whole.relation
        [row] = pa.Table.from_batches(run(node, {0: table}), node.schema).to_pylist()
        expected = {
            "si.sum": None, "sd.sum": 0, "sd.is_empty": True, "sx.sum": None, "ai.sum": 0.0, "ai.count": 0, "ad.sum": 0,
            "ad.count": 0, "v.n": 0.0, "v.avg": 0.0, "v.m2": 0.0, "m.value": None, "n.count": 0, "f.value": None,
            "f.is_set": table.num_rows > 0,
        }  # fmt: skip
        assert row == expected
    check(Tree.source(schema).group("g", **calls), nulls, "nulls")
    node = Tree.source(schema).group("g", **calls).relation
    assert list(run(node, {0: schema.empty_table()})) == []


@everywhere
def test_wide_decimal_sums_overflow_as_spark_says() -> None:
    top, low = Decimal(10**38 - 1), Decimal(1 - 10**38)  # unary minus would round
    values = [top, top, low, Decimal(1), None]
    table = pa.table({
        "g": pa.array([1, 1, 2, 3, 4], pa.int32()),
        "d": pa.array(values, pa.decimal128(38, 0)),
    })  # fmt: skip
    tree = Tree.source(table.schema).group("g", s=total(left("d")), a=average(left("d")))
    check(tree, table, "overflow")
    rows = pa.Table.from_batches(run(tree.relation, {0: table}), tree.schema).to_pylist()
    result = {row["g"]: (row["s.sum"], row["s.is_empty"], row["a.sum"], row["a.count"]) for row in rows}
    assert result == {
        1: (None, False, None, 2), 2: (low, False, low, 1), 3: (Decimal(1), False, Decimal(1), 1), 4: (0, True, 0, 0),
    }  # fmt: skip
    # That the parts of a sum overflow does not matter while the whole does not.
    back = pa.table(
        {
            "g": pa.array([1] * 6, pa.int32()),
            "d": pa.array([top, top, top, low, low, low], pa.decimal128(38, 0)),
        }
    )
    check(tree, back, "in and out", pieces=1)


@everywhere
@pytest.mark.parametrize("mode", [EvalMode.ANSI, EvalMode.LEGACY])
def test_integer_sums_overflow(mode: EvalMode) -> None:
    top = (1 << 63) - 1
    table = pa.table({"g": pa.array([1, 1, 2], pa.int32()), "i": pa.array([top, 3, top], pa.int64())})
    node = Tree.source(table.schema, mode=mode).group("g", s=total(left("i"))).relation
    if mode is EvalMode.ANSI:
        with pytest.raises(ExpressionEvaluationError, match="the sum overflows int64"):
            list(run(node, {0: table}))
        return
    rows = pa.Table.from_batches(run(node, {0: table}), node.schema).to_pylist()
    assert {row["g"]: row["s.sum"] for row in rows} == {1: top + 3 - (1 << 64), 2: top}


@pytest.mark.parametrize("final_", [False, True])
def test_a_limit_above_groups_meets_an_error_of_any_of_them(final_: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """However large their state is, all are finished before the first is given out."""
    monkeypatch.setattr(cpu_aggregate, "_SLICE_BYTES", 100)
    top = (1 << 63) - 1
    keys = np.arange(4001, dtype=np.int64)
    table = pa.table({"g": np.append(keys, 4000), "i": np.append(np.where(keys == 4000, top, 1), 1)})
    calls = {"s": total(left("i")), "l": Aggregate(AggregateFunction.COLLECT_LIST, (left("i"),))}
    for names in (("s",), ("s", "l")):
        tree = Tree.source(table.schema, mode=EvalMode.ANSI).group("g", **{name: calls[name] for name in names})
        with pytest.raises(ExpressionEvaluationError, match="the sum overflows int64"):
            list(run((final(tree) if final_ else tree).limit(5).relation, {0: table}))


@pytest.mark.parametrize("memory", [64 << 20, 100 << 10])
def test_lists_are_finished_in_slices(
    memory: int, rng: np.random.Generator, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_aggregate, "_SLICE_BYTES", 1000)
    numbers = rng.integers(0, 900, 5000)
    table = pa.table({"g": numbers, "i": rng.integers(-9, 9, 5000), "str": [f"text {n % 77}" for n in numbers]})
    lists = {name: Aggregate(AggregateFunction.COLLECT_LIST, (left(name),)) for name in ("i", "str")}
    tree = final(Tree.source(table.schema, mode=EvalMode.LEGACY).group("g", **lists))
    batches = list(run(tree.relation, {0: table}, options=Options(memory_budget=memory)))
    rows = {row["g"]: row for batch in batches for row in batch.to_pylist()}
    assert len(rows) == len(set(numbers.tolist())) == sum(batch.num_rows for batch in batches)
    for row in table.group_by("g", use_threads=False).aggregate([("i", "list"), ("str", "list")]).to_pylist():
        names = [name for name in rows[row["g"]] if name != "g"]
        assert [rows[row["g"]][name] for name in names] == [row["i_list"], row["str_list"]], f"seed {seed}"


@pytest.mark.few
@everywhere
@pytest.mark.parametrize("pieces", [1, 9])
@pytest.mark.parametrize("function", sorted(CENTRAL_MOMENTS, key=str))
def test_central_moments(function: AggregateFunction, pieces: int, rng: np.random.Generator, seed: int) -> None:
    values = [None if i % 11 == 0 else float(v) for i, v in enumerate(rng.normal(1e4, 1.0, 400))]
    values[5] = math.nan
    table = pa.table({"g": pa.array(np.arange(400) % 7, pa.int32()), "x": pa.array(values, from_pandas=False)})
    tree = Tree.source(table.schema).group("g", v=Aggregate(function, (left("x"),)))
    check(tree, table, f"seed {seed}", pieces=pieces)


@pytest.mark.few
@pytest.mark.parametrize("pieces", [1, 7])
@pytest.mark.parametrize("percentage", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("kind", ["i8", "i64", "f64"])
def test_percentiles(kind: str, percentage: float, pieces: int, rng: np.random.Generator, seed: int) -> None:
    table = random_table(rng, 300, 30)
    calls = {
        "v": Aggregate(AggregateFunction.PERCENTILE, (left(kind),), percentage=percentage),
        "w": Aggregate(AggregateFunction.PERCENTILE, (left(kind),), left("bool"), percentage=percentage),
    }
    for keys in (("g",), ()):
        tree = final(Tree.source(table.schema).group(*keys, **calls))
        check(tree, table, f"seed {seed}", pieces=pieces)
        check(tree, table.slice(0, 0), "no rows")
    tree = final(Tree.source(table.schema).group("g", **calls))
    assert check(tree, table, f"seed {seed}", pieces=9, memory_budget=2000).spills > 0


@pytest.mark.few
@pytest.mark.parametrize("pieces", [1, 7])
@pytest.mark.parametrize("kind", brief(KINDS, "i32", "f64", "d38_18", "str", "ts", "bool"))
@pytest.mark.parametrize("function", sorted(LISTS, key=str))
def test_lists(function: AggregateFunction, kind: str, pieces: int, rng: np.random.Generator, seed: int) -> None:
    table = random_table(rng, 200, 20)
    if kind in ("f32", "f64"):  # the row loop tells NaNs from one another
        table = table.set_column(
            table.schema.get_field_index(kind), kind, pc.if_else(pc.is_nan(table[kind]), None, table[kind])
        )
    calls = {
        "v": Aggregate(function, (left(kind),)),
        "n": count(),
        "w": Aggregate(function, (left(kind),), left("bool")),
    }
    for keys in (("g", "str"), ("g",), ()):
        tree = final(Tree.source(table.schema).group(*keys, **calls))
        check(tree, table, f"seed {seed}", pieces=pieces)
        check(tree, table.slice(0, 0), "no rows")
    tree = final(Tree.source(table.schema).group("g", **calls))
    assert check(tree, table, f"seed {seed}", pieces=9, memory_budget=2000).spills > 0


def final(tree: Tree) -> Tree:
    """The aggregation at the top, each of whose groups comes out once."""
    assert isinstance(tree.relation, PartialAggregate)
    return Tree(dataclasses.replace(tree.relation, final=True), tree.mode)


@pytest.mark.few
@everywhere
@pytest.mark.parametrize("pieces", [1, 9])
@pytest.mark.parametrize("function", sorted(HIGHER_MOMENTS | COMOMENTS, key=str))
def test_higher_moments_and_covariances(
    function: AggregateFunction, pieces: int, rng: np.random.Generator, seed: int
) -> None:
    """Group 0 has a NaN, 1 an infinity, 2 nothing but nulls, 3 one value in all rows, whose mean is rounded."""
    count = 600
    group = np.arange(count) % 9
    columns = {}
    for name in ("x", "y"):
        values = rng.normal(1e4, 1.0, count)
        values[9], values[10] = math.nan, math.inf
        columns[name] = pa.array(np.where(group == 3, 0.1, values), mask=(rng.random(count) < 0.1) | (group == 2))
    table = pa.table({"g": pa.array(group, pa.int32()), **columns})
    arguments = (left("x"), left("y")) if function in COMOMENTS else (left("x"),)
    calls = {"v": Aggregate(function, arguments), "w": Aggregate(function, arguments, left("x") > 1e4)}
    if function not in (AggregateFunction.CORR, AggregateFunction.REGR_R2):  # of equal values Spark divides by zero
        check(Tree.source(table.schema).group("g", **calls), table, f"seed {seed}", pieces=pieces)
    rest = table.filter(pc.not_equal(table["g"], 3))
    if function is AggregateFunction.REGR_R2:  # which of two undefined values a NaN gives is Spark's to say
        rest = rest.filter(pc.greater(rest["g"], 3))
    check(Tree.source(table.schema).group("g", **calls), rest, f"seed {seed}", pieces=pieces)
    check(Tree.source(table.schema).group(**calls), table.slice(0, 0), "no rows")


@pytest.mark.few
@everywhere
@pytest.mark.parametrize("pieces", [1, 5])
@pytest.mark.parametrize("ignore_nulls", [False, True])
@pytest.mark.parametrize("kind", ["i32", "str", "d38_18"])
@pytest.mark.parametrize("edge", [AggregateFunction.FIRST, AggregateFunction.LAST])
def test_first_and_last(
    edge: AggregateFunction, kind: str, ignore_nulls: bool, pieces: int, rng: np.random.Generator, seed: int
) -> None:
    table = random_table(rng, 100, 6)
    tree = Tree.source(table.schema).group(
        "g", a=Aggregate(edge, (left(kind),), ignore_nulls=ignore_nulls),
        b=Aggregate(edge, (left(kind),), left("bool"), ignore_nulls=ignore_nulls),
    )  # fmt: skip
    check(tree, table, f"seed {seed}", pieces=pieces)


@everywhere
def test_distinct_values_are_groups_without_aggregates(rng: np.random.Generator, seed: int) -> None:
    table = random_table(rng, 300, 4)
    check(Tree.source(table.schema).group("g", "f64"), table, f"seed {seed}", pieces=4)
    check(Tree.source(table.schema).group("g", "d38_0", "str"), table, f"seed {seed}", pieces=4)


@everywhere
def test_many_groups_go_out_early_when_memory_is_short(rng: np.random.Generator, seed: int) -> None:
    rows, groups = 8_000, 2_000
    table = pa.table(
        {"g": pa.array(rng.integers(0, groups, rows)), "i": pa.array(rng.integers(-9, 9, rows), pa.int32())}
    )
    tree = Tree.source(table.schema).group("g", s=total(left("i")), n=count())
    metrics = check(tree, table, f"seed {seed}", pieces=10, memory_budget=20_000)
    assert metrics.early_groups > 0
    assert metrics.groups > groups
    metrics = check(tree, table, f"seed {seed}", pieces=10)
    assert metrics.early_groups == 0
    assert metrics.groups <= groups


@everywhere
def test_a_filter_guards_the_argument() -> None:
    """Rows that the filter leaves out do not raise."""
    table = pa.table({"a": [6, 7, 8], "b": [2, 0, None]})
    guarded = Tree.source(table.schema).group(s=total(left("a") / left("b"), left("b") != 0))
    check(guarded, table, "guarded")
    bare = Tree.source(table.schema).group(s=total(left("a") / left("b")))
    with pytest.raises(ExpressionEvaluationError, match="division by zero"):
        list(run(bare.relation, {0: table}))


@pytest.mark.few
@everywhere
@pytest.mark.parametrize(("memory_budget", "rows"), [(1 << 18, 60_000), (2 << 30, 250_000)])
def test_groups_that_must_come_once_do(memory_budget: int, rows: int, rng: np.random.Generator, tmp_path: Path) -> None:
    """However many groups there are, how little merging helps, and how short memory is."""
    groups = np.concatenate([np.arange(rows), rng.integers(0, rows, 5000)])
    table = pa.table({"g": groups, "i": np.ones(len(groups), np.int64)})
    tree = Tree.source(table.schema).group("g", s=total(left("i"))).relation
    assert isinstance(tree, PartialAggregate)
    once = dataclasses.replace(tree, final=True)
    for node in (once, tree):
        metrics = PipelineMetrics()
        batches = table.to_batches(max_chunksize=2 * rows // 5)
        out = run(node, {0: batches}, metrics=metrics, piece_bytes=1, options=Options(memory_budget=memory_budget))
        result = pa.Table.from_batches(out, node.schema)
        assert pc.sum(result["s.sum"]).as_py() == len(groups)
        if node.final:
            assert result.num_rows == rows
            assert metrics.early_groups == 0
        elif memory_budget < 2 << 30 or not on_device():  # a device merges more before it calls that useless
            assert metrics.early_groups > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.few
@everywhere
@pytest.mark.parametrize("key", brief(KINDS, "f64", "d38_18", "str"))
def test_spilled_groups_of_every_type_come_once(key: str, rng: np.random.Generator, seed: int, tmp_path: Path) -> None:
    table = random_table(rng, 50, 20)
    tree = Tree.source(table.schema).group(
        key, "g", n=count(), s=total(left("d9_2")), m=Aggregate(AggregateFunction.MAX, (left("d38_18"),))
    )
    assert isinstance(tree.relation, PartialAggregate)
    node = dataclasses.replace(tree.relation, final=True)
    options = Options(memory_budget=1, spill_dir=str(tmp_path))
    out = run(node, {0: table.to_batches(max_chunksize=30)}, piece_bytes=1, options=options)
    partial = pa.Table.from_batches(out, node.schema)
    assert_same_groups(merged(node, partial), aggregated(node, table), f"seed {seed}")
    assert partial.num_rows == len(aggregated(node, table))
    assert list(tmp_path.iterdir()) == []


@everywhere
def test_one_group_that_must_come_once_is_never_spilled(tmp_path: Path) -> None:
    table = pa.table({"i": pa.array(range(1000))})
    tree = Tree.source(table.schema).group(s=total(left("i"))).relation
    assert isinstance(tree, PartialAggregate)
    node = dataclasses.replace(tree, final=True)
    options = Options(memory_budget=1, spill_dir=str(tmp_path))
    out = run(node, {0: table.to_batches(max_chunksize=10)}, piece_bytes=1, options=options)
    assert [row["s.sum"] for row in pa.Table.from_batches(out, node.schema).to_pylist()] == [499500]
