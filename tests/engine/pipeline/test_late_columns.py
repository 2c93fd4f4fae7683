"""Late columns, which no pipeline backend holds, ride through joins, filters, projections, tops and limits."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from gpujoin.backends.cpu.pipeline.backend import CpuPipeline
from gpujoin.backends.cpu.pipeline.late import MOST_TOGETHER, late_column, late_from_arrow
from gpujoin.backends.cpu.pipeline.piece import Piece
from gpujoin.config import Options
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.engine.pipeline import supports
from gpujoin.errors import ExpressionEvaluationError
from gpujoin.model.expressions import Case, EvalMode, Expression, Function, Literal, call, left, lit, right
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.layouts import nulls
from gpujoin.model.pipeline import PipelineMetrics, Rung
from gpujoin.model.relations import (
    ExchangeSource,
    Expand,
    Explode,
    Join,
    Output,
    Project,
    Relation,
    SortKey,
    Union,
    column,
)
from gpujoin.model.spec import JoinSpec, KeyPair
from gpujoin.plan.resolve import resolve
from gpujoin.testing import assert_same_rows, cells
from tests.brief import brief
from tests.engine.pipeline.libraryfaults import FaultyPolars
from tests.engine.pipeline.places import everywhere, on_device, one_place, run
from tests.generate import SPARK_TYPES, Generator, Mix
from tests.oracle.join import oracle_join
from tests.trees import Tree, count, total

LATE = (
    "null", "time", "calendar_interval", "array", "array_of_strings", "array_of_arrays", "struct",
    "empty_struct", "struct_of_struct", "map", "map_of_structs", "variant",
)  # fmt: skip
JOINS = [
    (how, side)
    for how, side in itertools.product(JoinType, Side)
    if how is not JoinType.CROSS and not (side is Side.LEFT and how.null_aware)
]
NAMED_JOINS = {f"{how.value}-{side.value}": (how, side) for how, side in JOINS}
MANY_NULLS = Mix(nulls=0.7)


@functools.cache
def side_table(seed: int, *late: str, rows: int = 60, mix: Mix | None = None) -> pa.Table:
    """A key, a number, ordinary payload, and late payload."""
    generator = Generator(seed, mix)
    numbers = [generator.random.choice([None, 1, 2, 3, 5, 8, 13, 21, 34]) for _ in range(rows)]
    columns: dict[str, pa.Array] = {
        "k": pa.array(numbers, pa.int32()),
        "n": pa.array(range(rows), pa.int64()),
        "d": generator.array(SPARK_TYPES["decimal_7_2"], rows),
        "s": generator.array(SPARK_TYPES["string"], rows),
    }
    return pa.table({**columns, **{name: generator.array(SPARK_TYPES[name], rows) for name in late}})


def source(table: pa.Table, index: int = 0) -> Tree:
    return Tree.source(table.schema, index)


def rows_of(tree: Relation | Tree, *tables: pa.Table, piece_bytes: int | None = 1, **kwargs: Any) -> pa.Table:
    """Run a tree over tables in small batches."""
    relation = tree.relation if isinstance(tree, Tree) else tree
    assert supports(relation) == ()
    inputs = {i: table.to_batches(max_chunksize=25) for i, table in enumerate(tables)}
    batches = list(run(relation, inputs, piece_bytes=piece_bytes, **kwargs))
    for batch in batches:
        assert batch.schema.equals(relation.schema)
        assert batch.num_rows > 0
    return pa.Table.from_batches(batches, relation.schema)


def join_of(
    how: JoinType,
    left_table: pa.Table,
    right_table: pa.Table,
    build: Side,
    condition: Expression | None = None,
) -> Join:
    schemas = left_table.schema, right_table.schema
    resolved = None if condition is None else resolve(condition, *schemas, mode=EvalMode.ANSI)
    output = () if how.left_rows_only else tuple(range(right_table.num_columns))
    spec = JoinSpec(how, (KeyPair(0, 0),), resolved, tuple(range(left_table.num_columns)), output)
    return Join(ExchangeSource(0, left_table.schema), ExchangeSource(1, right_table.schema), spec, build)


@pytest.mark.parametrize("other", [False, pytest.param(True, marks=pytest.mark.extra)], ids=["turn", "other turn"])
@one_place("name", LATE)
def test_every_type_through_every_join(name: str, other: bool, seed: int) -> None:
    """Joins take turns: `make test` takes half of them with each type, and in each place the other half."""
    tables = (side_table(seed, name), side_table(seed + 1), side_table(seed + 2, name, mix=MANY_NULLS))
    turn = (LATE.index(name) // 2 + on_device() + other) % 2
    for number, (how, build) in enumerate(JOINS):
        if (number // 2 + number) % 2 != turn:  # types of joins and sides take turns
            continue
        pair = [(tables[0], tables[2]), (tables[0], tables[1]), (tables[1], tables[2])][number % 3]
        node = join_of(how, *pair, build)
        metrics = PipelineMetrics()
        actual = rows_of(node, *pair, metrics=metrics, piece_bytes=1 << (20 * (number % 2)))
        assert_same_rows(
            actual, oracle_join(*pair, node.spec), allow_empty=True, check_nullability=True,
            context=f"seed {seed}, {how.value}, build {build.value}",
        )  # fmt: skip
        assert metrics.gather_joins + metrics.query_joins > 0
        assert metrics.device_joins == 0


@pytest.mark.few
@everywhere
@pytest.mark.parametrize("join", brief(NAMED_JOINS, "full-left", "left-right", "existence-right"))
def test_spilled_joins(join: str, seed: int, tmp_path: Path) -> None:
    how, build = NAMED_JOINS[join]
    late = ("array_of_strings", "map_of_structs", "calendar_interval", "variant")
    left_table, right_table = side_table(seed, *late, rows=120), side_table(seed + 1, *late, rows=120)
    joins = JoinMetrics()
    options = Options(memory_budget=4000, spill_dir=str(tmp_path))
    node = join_of(how, left_table, right_table, build)
    actual = rows_of(node, left_table, right_table, options=options, join_metrics=joins)
    assert_same_rows(actual, oracle_join(left_table, right_table, node.spec), allow_empty=True)
    assert joins.spills > 0
    assert list(tmp_path.iterdir()) == []


@everywhere
@pytest.mark.parametrize("how", [JoinType.INNER, JoinType.FULL, JoinType.EXISTENCE], ids=lambda v: v.value)
def test_conditions_beside_late_columns(how: JoinType, seed: int) -> None:
    left_table, right_table = side_table(seed, "map"), side_table(seed + 1, "array")
    node = join_of(how, left_table, right_table, Side.RIGHT, left("d") < right("d"))
    actual = rows_of(node, left_table, right_table)
    assert_same_rows(actual, oracle_join(left_table, right_table, node.spec), context=f"seed {seed}")


@everywhere
def test_structs_as_keys_and_in_conditions(seed: int) -> None:
    generator = Generator(seed)
    dtype = pa.struct([("a", pa.int32()), ("b", pa.bool_())])
    left_table, right_table = (pa.table({"k": generator.array(dtype, 50), "n": range(50)}) for _ in range(2))
    condition = left("k").field("a").equal_null_safe(lit(1)) | (left("n") < right("n"))
    for how in (JoinType.INNER, JoinType.LEFT_ANTI):
        node = join_of(how, left_table, right_table, Side.RIGHT, condition)
        actual = rows_of(node, left_table, right_table)
        expected = oracle_join(left_table, right_table, node.spec)
        assert_same_rows(actual, expected, allow_empty=True, context=f"seed {seed}")


def by_number(table: pa.Table) -> dict[Any, dict[str, Any]]:
    rows = table.to_pylist()
    result = {row["n"]: row for row in rows}
    assert len(result) == len(rows)
    return result


@everywhere
@pytest.mark.parametrize("piece_bytes", [1, 1 << 20], ids=["small pieces", "one piece"])
def test_nodes_over_late_columns(piece_bytes: int, seed: int) -> None:
    table = side_table(seed, "map", "array")
    given = by_number(table)
    small = {n: row for n, row in given.items() if row["k"] is not None and row["k"] < 8}

    def rows(tree: Relation | Tree, *more: pa.Table) -> dict[Any, dict[str, Any]]:
        return by_number(rows_of(tree, table, *more, piece_bytes=piece_bytes))

    assert rows(source(table).where(left("k") < 8)) == small
    assert rows(source(table).where(left("n") < 0)) == {}
    assert rows(source(table).where(left("n") >= 0)) == given
    picked = rows(source(table).select("array", "n", twice=left("n") * 2, constant=lit(7)))
    assert picked == {n: {"array": row["array"], "n": n, "twice": 2 * n, "constant": 7} for n, row in given.items()}
    assert rows(source(table).select("n")) == {n: {"n": n} for n in given}
    sometimes = [
        Output(name, Case(conditions=(condition,), values=(value,), otherwise=nothing, type=value.type))
        for name in ("map", "array")
        for condition in [source(table).value(left("k") < 8)]
        for value in [column(table.schema, name)]
        for nothing in [Literal(value=None, type=value.type)]
    ]
    kept = rows(Project(ExchangeSource(0, table.schema), (Output("n", column(table.schema, "n")), *sometimes)))
    assert kept == {
        n: {"n": n} | {name: row[name] if n in small else None for name in ("map", "array")} for n, row in given.items()
    }
    assert rows(source(table).top(7, ("n", True))) == {n: given[n] for n in range(53, 60)}
    limited = rows(source(table).limit(31))
    assert len(limited) == 31
    assert limited.items() <= given.items()
    halves = [
        source(table).where(left("n") < 30).relation, source(table, 1).where(left("n") >= 30).relation,
    ]  # fmt: skip
    assert rows(Union(tuple(halves)), table) == given
    schema = table.schema
    ways = [
        tuple(Output(name, value) for name, value in (("n", n), ("map", column(schema, "map"))))
        for n in (column(schema, "n"), source(table).value(left("n") + 100))
    ]
    expanded = rows(Expand(ExchangeSource(0, schema), tuple(ways)))
    assert expanded == {m: {"n": m, "map": row["map"]} for n, row in given.items() for m in (n, n + 100)}


@everywhere
def test_a_tree_that_changes_form_from_node_to_node(seed: int) -> None:
    """Ordinary rows, then late ones, then an aggregation of ordinary ones again."""
    facts, tags = side_table(seed), side_table(seed + 1, "array_of_strings", rows=20)
    joined = (
        source(facts)
        .where(left("n") % 2 == 0)
        .select("k", "n")
        .join(source(tags, 1).select("k", "array_of_strings"), {"k": "k"}, "left")
        .where(left("n") > 4)
    )
    matches: dict[int | None, list[Any]] = {}
    for row in tags.to_pylist():
        matches.setdefault(row["k"], []).append(row["array_of_strings"])
    matches.pop(None, None)  # a null key is equal to nothing
    expected = [
        (row["n"], value)
        for row in facts.to_pylist()
        if row["n"] % 2 == 0 and row["n"] > 4
        for value in matches.get(row["k"]) or [None]
    ]
    actual = rows_of(joined.select("n", "array_of_strings"), facts, tags)
    pairs = zip(actual["n"].to_pylist(), actual["array_of_strings"].to_pylist(), strict=True)
    assert sorted(pairs, key=repr) == sorted(expected, key=repr)
    aggregated = rows_of(joined.select("n").group(c=count(), s=total(left("n"))), facts, tags)
    assert aggregated["c.count"].to_pylist() == [len(expected)]
    assert aggregated["s.sum"].to_pylist() == [sum(n for n, _ in expected)]


@everywhere
def test_conjuncts_see_rows_for_which_those_before_are_true(seed: int) -> None:
    table = pa.table({"n": [0, 1, 2, None], "tags": [["a"], ["b"], None, []]})
    safe = source(table).where((left("n") != 0) & (lit(4) % left("n") == 0))
    assert by_number(rows_of(safe, table)) == {1: {"n": 1, "tags": ["b"]}, 2: {"n": 2, "tags": None}}
    with pytest.raises(ExpressionEvaluationError):
        rows_of(source(table).where(lit(4) % left("n") == 0), table)


def test_layouts_of_late_columns_are_converted() -> None:
    schema = pa.schema([("k", pa.int32()), ("tags", pa.list_(pa.string()))])
    view = pa.table({"k": pa.array([1, 2], pa.int32()), "tags": pa.array([["a"], None], pa.list_(pa.string_view()))})
    large = pa.table({"k": pa.array([3], pa.int32()), "tags": pa.array([["c"]], pa.large_list(pa.large_string()))})
    batches = [*view.to_batches(), *large.to_batches()]
    result = pa.Table.from_batches(run(Tree.source(schema).relation, {0: batches}), schema)
    assert result.to_pylist() == [
        {"k": 1, "tags": ["a"]}, {"k": 2, "tags": None}, {"k": 3, "tags": ["c"]},
    ]  # fmt: skip


def test_rows_come_in_batches_near_the_size_that_is_asked_for() -> None:
    values = pa.array([list(range(100))] * 1000)
    table = pa.table({"n": range(1000), "a": values})
    tree = Tree.source(table.schema).join(Tree.source(table.select(["n"]).schema, 1), {"n": "n"}).relation
    options = Options(batch_bytes=100_000)
    sizes = [b.nbytes for b in run(tree, {0: table, 1: table.select(["n"])}, options=options)]
    assert len(sizes) > 5
    assert max(sizes) < 200_000


@pytest.mark.extra
@pytest.mark.parametrize("rows", [12, 60])
@pytest.mark.parametrize("error", [MemoryError, pl.exceptions.ComputeError], ids=lambda e: e.__name__)
def test_a_fault_of_the_library_is_recovered_from(error: Any, rows: int, seed: int) -> None:
    left_table, right_table = side_table(seed, "map", rows=rows), side_table(seed + 1, rows=rows)
    node = join_of(JoinType.LEFT, left_table, right_table, Side.RIGHT)
    expected = oracle_join(left_table, right_table, node.spec)
    with FaultyPolars(error) as counted:
        rows_of(node, left_table, right_table)
    assert counted.counts.total() > 5 * rows
    for at in range(1, sum(counted.counts.values()) + 1):
        metrics = PipelineMetrics()
        with FaultyPolars(error, at=at):
            actual = rows_of(node, left_table, right_table, metrics=metrics)
        assert_same_rows(actual, expected, context=f"call {at}")
        assert sum(metrics.recovered.values()) == 1
    assert_same_rows(rows_of(node, left_table, right_table, rung=Rung.CAREFUL), expected)


@everywhere
def test_memory_that_runs_out_on_a_device_is_no_failure(seed: int) -> None:
    left_table, right_table = side_table(seed, "map", rows=200), side_table(seed + 1, "array", rows=200)
    node = join_of(JoinType.FULL, left_table, right_table, Side.RIGHT)
    metrics = PipelineMetrics()
    actual = rows_of(node, left_table, right_table, metrics=metrics, piece_bytes=None)
    assert_same_rows(actual, oracle_join(left_table, right_table, node.spec))
    assert metrics.cpu_runs == 0 or on_device()


ARRAYS = pa.schema([("k", pa.int32()), ("a", pa.list_(pa.int32()))])
REFUSED = {
    "sorted by": (Tree.source(ARRAYS).top(1, ("a", True)), "passed on only"),
    "counted": (Tree.source(ARRAYS).group("k", c=count(left("a"))), "not aggregated"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_reads_late_columns_is_refused(case: str) -> None:
    tree, reason = REFUSED[case]
    reasons = supports(tree.relation)
    assert any(reason in str(one) for one in reasons), reasons


def test_nodes_that_pass_late_columns_on_are_not_refused() -> None:
    tree = Tree.source(ARRAYS).select("a", "k").where(left("k") > 1).top(5, ("k", False)).limit(3)
    assert supports(tree.relation) == ()


@everywhere
def test_rows_are_counted_beside_late_columns(seed: int) -> None:
    table = side_table(seed, "map", "array", rows=200)
    counted = rows_of(source(table).group("k", c=count(), s=total(call(Function.SIZE, left("array")))), table)
    sizes: dict[int | None, list[int]] = {}
    for row in table.to_pylist():
        sizes.setdefault(row["k"], []).append(0 if row["array"] is None else len(row["array"]))
    groups = zip(*(counted.column(name).to_pylist() for name in ("k", "c.count", "s.sum")), strict=True)
    merged: dict[int | None, tuple[int, int]] = {}
    for k, rows, value in groups:
        before = merged.get(k, (0, 0))
        merged[k] = before[0] + rows, before[1] + (value or 0)
    assert merged == {k: (len(values), sum(values)) for k, values in sizes.items()}


def test_values_are_gathered_once_in_the_end() -> None:
    """What is joined are numbers of lists; a join repeats these, and each list is held once."""
    lists = pa.array([list(range(1000))] * 100, pa.list_(pa.int64()))
    tags, facts = pa.table({"k": range(100), "tags": lists}), pa.table({"k": [n % 100 for n in range(20_000)]})
    tree = source(facts).join(source(tags, 1), {"k": "k"}, "full").select("tags")
    metrics = JoinMetrics()
    batches = run(tree.relation, {0: facts, 1: tags}, join_metrics=metrics, options=Options(memory_budget=256 << 20))
    assert sum(batch.num_rows for batch in batches) == 20_000
    assert metrics.spills == 0
    assert metrics.output_bytes < 20_000 * 100


def test_a_value_that_a_join_repeats_is_evaluated_some_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpujoin.backends.cpu.pipeline.piece.PIECE_BYTES", 2000)
    monkeypatch.setattr("gpujoin.backends.cpu.pipeline.piece._MOST_TEXT", 2000)
    tags = pa.table({"k": [0, 1, 2], "tags": pa.array([list(range(100)), [], None], pa.list_(pa.int64()))})
    facts = pa.table({"k": [n % 4 for n in range(40)]})
    joined = source(facts).join(source(tags, 1), {"k": "k"}, "left")
    sized = joined.select("tags", n=call(Function.SIZE, left("tags")))
    batches = list(run(sized.relation, {0: facts, 1: tags}, piece_bytes=1 << 20))
    assert max(batch.num_rows for batch in batches) <= 10
    rows = [(row["n"], row["tags"]) for batch in batches for row in batch.to_pylist()]
    expected = {100: list(range(100)), 0: [], None: None}
    assert sorted(n or 0 for n, _ in rows) == [0] * 30 + [100] * 10
    assert all(expected[n] == values for n, values in rows)


@everywhere
def test_what_reads_late_columns_is_computed_beside_the_others(seed: int) -> None:
    """Projections, filters, tops and windows that read lists, and projections that give one."""
    table = side_table(seed, "array", rows=200)
    missing = call(Function.IS_NULL, left("array"))
    tree = source(table).where(missing).select("n", gone=missing, pair=call(Function.ARRAY, left("n"), left("n")))
    actual = rows_of(tree, table).sort_by("n").to_pylist()
    numbers = [row["n"] for row in table.to_pylist() if row["array"] is None]
    assert actual == [{"n": n, "gone": True, "pair": [n, n]} for n in numbers]
    first = source(table).select("n", "array", x=call(Function.SIZE, left("array"))).top(3, ("x", True), ("n", False))
    sizes = sorted(((-1 if row["array"] is None else len(row["array"])), -row["n"]) for row in table.to_pylist())[-3:]
    assert sorted(row["n"] for row in rows_of(first, table).to_pylist()) == sorted(-n for _, n in sizes)


def exploded(table: pa.Table, name: str, *, outer: bool, positions: bool) -> pa.Table:
    schema = table.schema
    node = Explode(source(table).relation, schema.get_field_index(name), (1, 3), outer, positions)
    return rows_of(node, table)


@everywhere
@pytest.mark.parametrize("outer", [False, True], ids=["inner", "outer"])
@pytest.mark.parametrize("name", ["array", "array_of_strings", "array_of_arrays", "map", "map_of_structs"])
def test_rows_are_made_of_elements(name: str, outer: bool, seed: int) -> None:
    table = side_table(seed, name, mix=Mix(nulls=0.3))
    actual = exploded(table, name, outer=outer, positions=True)
    expected = []
    for n, s, values in zip(*(cells(table.column(i)) for i in ("n", "s", name)), strict=True):
        made = [(n, s, at, *(item if name.startswith("map") else (item,))) for at, item in enumerate(values or ())]
        absent = (n, s, None, *((None, None) if name.startswith("map") else (None,)))
        expected += made or ([absent] if outer else [])
    rows = list(zip(*(cells(values) for values in actual.columns), strict=True))
    assert sorted(map(repr, rows)) == sorted(map(repr, expected))


def test_rows_are_repeated_as_often_as_a_number_says() -> None:
    table = pa.table({"n": pa.array([2, 0, None, -1, 3], pa.int64()), "s": ["a", "b", "c", "d", "e"]})
    node = Explode(Tree.source(table.schema).relation, 0, (1,))
    assert sorted(rows_of(node, table).column("s").to_pylist()) == ["a", "a", "e", "e", "e"]


def test_many_rows_of_one_list_come_in_several_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpujoin.engine.pipeline.explode._ROWS", 7)
    lists = [list(range(n % 11)) for n in range(50)]
    table = pa.table({"k": range(50), "l": pa.array(lists, pa.list_(pa.int64()))})
    node = Explode(Tree.source(table.schema).relation, 1, (0,), outer=True)
    actual = rows_of(node, table, piece_bytes=None)
    expected = [(k, item) for k, values in enumerate(lists) for item in (values or (None,))]
    pairs = zip(actual.column("k").to_pylist(), actual.column("element").to_pylist(), strict=True)
    assert sorted(pairs, key=str) == sorted(expected, key=str)


def test_rows_that_are_held_do_not_keep_the_values_of_others() -> None:
    """One row of each piece, and the first rows of all: a run of rows is no slice of what is in memory then."""
    schema = pa.schema([("k", pa.int64()), ("tags", pa.list_(pa.int64()))])
    pipeline, metrics = CpuPipeline(), PipelineMetrics()

    def piece(at: int) -> Piece:
        tags = pa.array([list(range(1000))] * 100, schema.field("tags").type)
        batch = pa.record_batch([pa.array(range(at, at + 100)), tags], schema=schema)
        return pipeline.take_in([batch], schema, metrics)

    before = pa.total_allocated_bytes()
    held = []
    for at in range(0, 1000, 100):
        held.append(pipeline.collect(pipeline.filter(piece(at), resolve(left("k") == at + 7, schema, pa.schema([])))))
    assert [pipeline.size(each)[0] for each in held] == [1] * 10
    assert pa.total_allocated_bytes() - before < 2 * sum(pipeline.size(each)[1] for each in held) < 400_000
    held = [pipeline.top(piece(0), [SortKey(column(schema, "k"), False, True)], 1)]
    assert pa.total_allocated_bytes() - before < 2 * pipeline.size(held[0])[1] < 40_000
    held = [pipeline.top(piece(0), [], 1)]
    assert pa.total_allocated_bytes() - before < 40_000


def repeated_value(rows: int, text: str) -> tuple[CpuPipeline, pa.Schema, Piece]:
    """A piece that has one list in all its rows, as a join gives it, among others that it had before."""
    schema = pa.schema([("k", pa.int64()), ("tags", pa.list_(pa.string()))])
    pipeline = CpuPipeline()
    tags = pa.array([[text], ["b"], None] + [[]] * 5 * rows, schema.field("tags").type)
    batch = pa.record_batch([pa.array(range(len(tags))), tags], schema=schema)
    piece = pipeline.take_in([batch], schema, PipelineMetrics())
    return pipeline, schema, piece.with_rows(piece.rows_of_query()[[0] * (rows - 2) + [2, 1]])


def test_a_value_that_a_join_repeats_goes_to_the_next_join_some_rows_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gpujoin.backends.cpu.pipeline.joins.PIECE_BYTES", 1 << 20)
    monkeypatch.setattr("gpujoin.backends.cpu.pipeline.piece.PIECE_BYTES", 1 << 20)
    pipeline, schema, piece = repeated_value(3000, "x" * 10_000)
    for batches in (list(pipeline.to_join(piece, schema)), list(pipeline.give_out(piece, schema, 1 << 20))):
        assert max(batch.nbytes for batch in batches) < 2_200_000
        rows = pa.Table.from_batches(batches, schema)
        assert rows["k"].to_pylist() == [0] * 2998 + [2, 1]
        assert rows["tags"].slice(2996).to_pylist() == [["x" * 10_000]] * 2 + [None, ["b"]]


def test_a_value_that_rows_share_stays_one_where_rows_are_held() -> None:
    """2,100 times a megabyte are more than the offsets of a list reach to."""
    pipeline, schema, piece = repeated_value(2100, "x" * (1 << 20))
    before = pa.total_allocated_bytes()
    held = pipeline.collect(piece)
    whole = pipeline.concat([held, piece], schema, PipelineMetrics())
    assert pa.total_allocated_bytes() - before < 4 << 20
    for each, rows in ((held, 2100), (whole, 4200)):
        last = next(iter(pipeline.give_out(each.slice(rows - 4, 4), schema, 1 << 30)))
        assert last["k"].to_pylist() == [0, 0, 2, 1]
        assert [None if tags is None else [len(tag) for tag in tags] for tags in last["tags"].to_pylist()] == [
            [1 << 20], [1 << 20], None, [1],
        ]  # fmt: skip


@pytest.mark.parametrize("arrays", [0, 1], ids=["no array", "one array"])
def test_rows_of_an_array_that_a_column_does_not_have_are_an_error(arrays: int) -> None:
    dtype = pa.list_(pa.int32())
    pairs = [late_from_arrow("a", pa.array([[1], [2]], dtype), dtype) for _ in range(2)]
    column = late_column("a", dtype, dict(list(pairs[0][1].arrays.items())[:arrays]))
    with pytest.raises(AssertionError, match="2 rows"):
        column.gather(pl.concat([pairs[0][0], pairs[1][0]] if arrays else [pairs[1][0]]))


TINY_ITEMS = {
    "void": (pa.null(), 1 << 29, MOST_TOGETHER), "empty struct": (pa.struct([]), 1 << 13, 1 << 14),
    "boolean": (pa.bool_(), 1 << 13, 1 << 14),
}  # fmt: skip


@pytest.mark.parametrize("case", TINY_ITEMS)
def test_lists_of_items_of_few_bytes_are_put_together_no_further_than_offsets_reach(case: str) -> None:
    item, length, together = TINY_ITEMS[case]
    lists = pa.ListArray.from_arrays(pa.array([0, length], pa.int32()), nulls(length, item))
    nested = pa.StructArray.from_arrays([lists], ["lists"])
    for one in (lists, nested):
        _, late = late_from_arrow("a", pa.chunked_array([one] * 9), one.type, together)
        assert [len(values.array) for values in late.arrays.values()] == [2, 2, 2, 2, 1]
