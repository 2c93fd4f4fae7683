"""Columns of every type ride along; batches keep to their sizes; no columns are columns too."""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import gpujoin
from gpujoin import join_tables
from gpujoin.backends.registry import BackendRequest, create
from gpujoin.config import Options
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.model.backend import AnyBackend, BackendName
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.spec import JoinSpec
from gpujoin.testing import assert_same_rows
from tests.backends.cudf.host import HostBackend
from tests.engine.support import KEYED, batches, build_sides, keyed, run_join, sides, together
from tests.faults import FaultyBackend
from tests.generate import SPARK_TYPES, Generator, KeyShape, from_cells
from tests.oracle.join import oracle_join


def with_payload(seed: int, dtype: pa.DataType, rows: int) -> tuple[pa.Table, pa.Table]:
    generator = Generator(seed)
    left, right = sides(seed, [pa.int32()], (rows, rows))
    return (
        left.select(["k0", "row"]).append_column("p", generator.array(dtype, rows)),
        right.select(["k0", "row"]).append_column("p", generator.array(dtype, rows)),
    )


@pytest.mark.few
@pytest.mark.parametrize("join_types", [KEYED[::2], KEYED[1::2]], ids=lambda kinds: ", ".join(t.value for t in kinds))
@pytest.mark.parametrize("dtype", SPARK_TYPES.values(), ids=SPARK_TYPES)
def test_payload_of_every_type(backend: AnyBackend, dtype: pa.DataType, join_types: list[JoinType], seed: int) -> None:
    left, right = with_payload(seed, dtype, 60)
    ways = (Options(), Options(batch_bytes=600, memory_budget=1500))
    for turn, join_type in enumerate(join_types, list(SPARK_TYPES.values()).index(dtype)):
        spec = keyed(join_type, left, right)
        expected = oracle_join(left, right, spec)
        for number, build_side in enumerate(build_sides(join_type)):
            options = ways[(turn + number) % 2]
            actual = run_join(spec, left, right, backend=backend, build_side=build_side, options=options, batch_rows=25)
            assert_same_rows(
                actual, expected, allow_empty=True, check_nullability=True,
                context=f"seed {seed}, {join_type.value}, build {build_side.value}, {options.batch_bytes}",
            )  # fmt: skip


NOT_FROM_SPARK = {
    "string_view": pa.string_view(),
    "binary_view": pa.binary_view(),
    "large_list": pa.large_list(pa.string()),
    "fixed_size_list": pa.list_(pa.int16(), 3),
    "fixed_size_binary": pa.binary(5),
    "uint64": pa.uint64(),
    "half": pa.float16(),
    "date64": pa.date64(),
    "time32": pa.time32("ms"),
    "timestamp_ns": pa.timestamp("ns", "Europe/Berlin"),
    "decimal256": pa.decimal256(60, 5),
    "list_of_views": pa.list_(pa.string_view()),
    "run_end_encoded": pa.run_end_encoded(pa.int32(), pa.string()),
}
VALUES = {
    "string_view": ["", "short", "longer than twelve bytes", None],
    "binary_view": [b"", b"x", b"longer than twelve bytes", None],
    "large_list": [[], ["a", None], None, ["b"]],
    "fixed_size_list": [[1, 2, None], None, [4, 5, 6], [7, 8, 9]],
    "fixed_size_binary": [b"abcde", None, b"\0\0\0\0\0", b"zzzzz"],
    "uint64": [0, 2**64 - 1, None, 5],
    "half": [0.5, None, 1.5, 2.0],
    "date64": [0, 86_400_000, None, -86_400_000],
    "time32": [0, 1, None, 86_399_999],
    "timestamp_ns": [0, 1, None, -1],
    "decimal256": ["1.5", None, "-9", "0"],
    "list_of_views": [["a", None], None, [], ["longer than twelve bytes"]],
    "run_end_encoded": ["a", "a", None, "b"],
}


def other_table(name: str) -> pa.Table:
    dtype = NOT_FROM_SPARK[name]
    if pa.types.is_decimal(dtype):
        values = pa.array(VALUES[name], pa.string()).cast(dtype)
    elif pa.types.is_run_end_encoded(dtype):
        values = pa.RunEndEncodedArray.from_arrays([2, 3, 4], pa.array(["a", None, "b"]), dtype)
    else:
        values = pa.array(VALUES[name], dtype)
    return pa.table({"k": pa.array([1, 2, 2, None], pa.int32()), "p": values})


@pytest.mark.parametrize("name", NOT_FROM_SPARK)
def test_payload_that_only_other_sources_make(backend: AnyBackend, name: str) -> None:
    left = other_table(name)
    spec = keyed(JoinType.FULL, left, left)
    for build_side in Side:
        actual = run_join(spec, left, left, backend=backend, build_side=build_side, batch_rows=3)
        assert_same_rows(actual, oracle_join(left, left, spec))


class GathersLittle(FaultyBackend):
    """A backend that holds fixed-width columns only, so that the engine gathers the others on the host."""

    def can_gather(self, dtype: pa.DataType) -> bool:
        return pa.types.is_integer(dtype)


ANY_TYPE: dict[str, pa.DataType] = {**SPARK_TYPES, **NOT_FROM_SPARK}


@pytest.mark.parametrize("name", ANY_TYPE)
def test_what_a_backend_cannot_hold_is_gathered_on_the_host(name: str, seed: int) -> None:
    little = GathersLittle(create(BackendName.CPU, BackendRequest()))
    if name in NOT_FROM_SPARK:
        left = right = other_table(name)
    else:
        left, right = with_payload(seed, SPARK_TYPES[name], 60)
    for join_type in (JoinType.FULL, JoinType.LEFT_ANTI, JoinType.EXISTENCE):
        spec = keyed(join_type, left, right)
        for build_side in build_sides(join_type):
            actual = run_join(
                spec,
                left,
                right,
                backend=little,
                build_side=build_side,
                options=Options(batch_bytes=600),
                batch_rows=25,
            )
            assert_same_rows(actual, oracle_join(left, right, spec), allow_empty=True, context=f"seed {seed}")


LONG_VALUES = {
    "text": pa.array(["x" * 400, "y" * 7, None, ""]),
    "bytes": pa.array([b"x" * 400, b"y" * 7, None, b""]),
    "list": pa.array([["x" * 130] * 3, [], None, ["y"]]),
    "list of numbers": pa.array([[1] * 50, [], None, [2]]),
    "struct": pa.array([{"s": "x" * 400}, {"s": ""}, None, {"s": None}]),
    "map": pa.array([[("x" * 400, 1)], [], None, [("y", None)]], pa.map_(pa.string(), pa.int8())),
    "list of structs": pa.array([[{"a": ["x" * 100] * 4}], [], None, [{"a": []}, None]]),
    "view": pa.array(["x" * 400, "y" * 7, None, ""], pa.string_view()),
}


@pytest.mark.parametrize("values", LONG_VALUES.values(), ids=LONG_VALUES)
def test_long_values_gathered_on_the_host_keep_to_the_limit_too(values: pa.Array) -> None:
    """One row holds nearly all of a column's bytes, and is the hot one: the mean says nothing."""
    little = GathersLittle(create(BackendName.CPU, BackendRequest()))
    few = pa.concat_arrays([values, *[values.slice(1)] * 30])
    left = pa.table({"k": pa.array([1] + [2] * (len(few) - 1), pa.int32()), "p": few})
    right = pa.table({"k": pa.array([1] * 50, pa.int32())})
    for build_side in Side:
        spec = keyed(JoinType.RIGHT, left, right)
        options = Options(max_column_bytes=1000, batch_bytes=1 << 20)
        with gpujoin.HashJoin(
            spec, left.schema, right.schema, backend=little, options=options, build_side=build_side
        ) as join:
            join.build(batches(left if build_side is Side.LEFT else right, 1000))
            result = [*join.probe(batches(right if build_side is Side.LEFT else left, 1000)), *join.finish()]
        assert max(_data_bytes(batch.column(1)) for batch in result) <= 1000
        assert_same_rows(together(result, join.output_schema), oracle_join(left, right, spec))


@pytest.mark.parametrize("join_type", [JoinType.CROSS, *KEYED], ids=lambda t: t.value)
def test_no_columns_at_all(backend: AnyBackend, join_type: JoinType, seed: int) -> None:
    left, right = sides(seed, [pa.int32()], (70, 50), distinct=4)
    spec = keyed(join_type, left, right, keys=0 if join_type is JoinType.CROSS else 1, left_output=(), right_output=())
    expected = oracle_join(left, right, spec)
    for build_side in build_sides(join_type):
        for budget in (300, 1 << 30):
            metrics = JoinMetrics()
            options = Options(memory_budget=budget, batch_bytes=64)
            actual = run_join(
                spec, left, right, backend=backend, build_side=build_side, options=options, batch_rows=20,
                metrics=metrics,
            )  # fmt: skip
            assert actual.num_columns == (1 if join_type is JoinType.EXISTENCE else 0)
            assert_same_rows(actual, expected, allow_empty=True, context=f"seed {seed}")
            assert metrics.output_rows == expected.num_rows


def test_a_cross_join_of_tables_without_columns_can_be_counted(backend: AnyBackend) -> None:
    left, right = (pa.table({"_": pa.nulls(n)}).select([]) for n in (100_000, 300_000))
    metrics = JoinMetrics()
    spec = JoinSpec(JoinType.CROSS)
    with gpujoin.HashJoin(spec, left.schema, right.schema, backend=backend, metrics=metrics) as join:
        join.build(batches(right, 1 << 30))
        rows = sum(b.num_rows for b in join.probe(batches(left, 1 << 30))) + sum(b.num_rows for b in join.finish())
    assert rows == metrics.output_rows == 30_000_000_000


def test_a_cross_join_stores_no_index_pairs(backend: AnyBackend) -> None:
    left, right = (
        pa.table({"a": pa.array(range(3000), pa.int16())}),
        pa.table({"b": pa.array(range(2000), pa.int16())}),
    )
    spec = JoinSpec(JoinType.CROSS, left_output=(0,), right_output=(0,))
    with gpujoin.HashJoin(
        spec, left.schema, right.schema, backend=backend, options=Options(batch_bytes=100_000)
    ) as join:
        join.build(batches(right, 2000))
        stream = join.probe(batches(left, 3000))
        before = pa.total_allocated_bytes()
        first = next(stream)
        assert first.num_rows <= 100_000
        if backend.name.value == "cpu":
            assert pa.total_allocated_bytes() - before < 2_000_000
        total = first.num_rows + sum(b.num_rows for b in stream)
    assert total == 6_000_000


@pytest.mark.parametrize("batch_bytes", [1, 1000, 100_000])
def test_batches_come_near_their_target(backend: AnyBackend, batch_bytes: int, seed: int) -> None:
    rows = 100 if batch_bytes == 1 else 400
    left, right = sides(seed, [pa.int64()], (rows, rows), distinct=20)
    left, right = left.select(["k0", "row"]), right.select(["k0", "row"])
    spec = keyed(JoinType.INNER, left, right)
    options = Options(batch_bytes=batch_bytes)
    with gpujoin.HashJoin(spec, left.schema, right.schema, backend=backend, options=options) as join:
        join.build(batches(right, 400))
        result = list(join.probe(batches(left, 400)))
    assert_same_rows(together(result, join.output_schema), oracle_join(left, right, spec), context=f"seed {seed}")
    row = 2 * (8 + 4)
    assert max(b.nbytes for b in result) <= max(batch_bytes * 1.5, 2 * row)
    if batch_bytes == 1:
        assert {b.num_rows for b in result} == {1}
    else:
        assert sum(b.nbytes >= batch_bytes / 2 for b in result) >= len(result) - 1


@pytest.mark.parametrize("join_type", [JoinType.INNER, JoinType.FULL, JoinType.CROSS], ids=lambda t: t.value)
@pytest.mark.parametrize(
    "values",
    [
        pa.array(["x" * 100, "y" * 7, None, ""]),
        pa.array([b"x" * 100, b"y" * 7, None, b""]),
        pa.array([["x" * 30] * 3, [], None, ["y"]]),
        pa.array([{"s": "x" * 100}, {"s": ""}, None, {"s": None}]),
        pa.array(["x" * 100, "y" * 7, None, ""]).dictionary_encode(),
    ],
    ids=["text", "bytes", "lists", "structs", "dictionary"],
)
def test_no_column_of_a_batch_passes_its_limit(backend: AnyBackend, values: pa.Array, join_type: JoinType) -> None:
    """The 2 GiB of Arrow's offsets, at a smaller scale: one hot key whose values add up to more."""
    rows = 40
    left = pa.table({"k": pa.array([1] * rows, pa.int32()), "p": pa.concat_arrays([values] * 10)})
    spec = keyed(join_type, left, left, keys=0 if join_type is JoinType.CROSS else 1)
    limit = 1000
    options = Options(max_column_bytes=limit, batch_bytes=1 << 20)
    with gpujoin.HashJoin(spec, left.schema, left.schema, backend=backend, options=options) as join:
        join.build(batches(left, rows))
        result = [*join.probe(batches(left, rows)), *join.finish()]
    assert sum(b.num_rows for b in result) == rows * rows
    if not pa.types.is_dictionary(values.type):
        assert len(result) > 10
        for batch in result:
            for name in (1, 3):
                assert _data_bytes(batch.column(name)) <= limit
    assert_same_rows(together(result, join.output_schema), oracle_join(left, left, spec))


def _data_bytes(column: pa.Array) -> int:
    """Bytes of variable-width data, offsets and validity excluded."""
    if pa.types.is_struct(column.type):
        return sum(_data_bytes(column.field(i)) for i in range(column.type.num_fields))
    if pa.types.is_map(column.type):
        entries = pa.concat_arrays([s.values for s in column if s.is_valid] or [pa.array([], pa.struct([]))])
        return _data_bytes(entries)
    if pa.types.is_list(column.type):
        items = column.flatten()
        return len(items) * 8 if pa.types.is_integer(items.type) else _data_bytes(items)
    if pa.types.is_integer(column.type):
        return 0
    return sum(len(v) for v in column.to_pylist() if v is not None)


def test_sizes_are_counted_in_64_bits(backend: AnyBackend) -> None:
    """66,000 × 66,000 pairs of one hot key: more than 32 bits, and none of them is made."""
    rows = 66_000
    left = pa.table({"k": pa.array([7] * rows, pa.int32())})
    keys = backend.from_arrow(left)
    assert backend.build(keys).probe(keys).pairs == rows * rows
    for join_type in (JoinType.LEFT_SEMI, JoinType.LEFT_ANTI, JoinType.EXISTENCE):
        spec = keyed(join_type, left, left)
        actual = run_join(spec, left, left, backend=backend)
        assert actual.num_rows == (0 if join_type is JoinType.LEFT_ANTI else rows)
    spec = keyed(JoinType.INNER, left, left)
    with gpujoin.HashJoin(spec, left.schema, left.schema, backend=backend, options=Options(batch_bytes=80_000)) as join:
        join.build(batches(left, rows))
        stream = join.probe(batches(left, rows))
        assert sum(next(stream).num_rows for _ in range(3)) > 10_000


def test_slices_and_offsets_of_the_input(backend: AnyBackend, seed: int) -> None:
    left, right = sides(seed, [pa.string(), pa.bool_(), pa.decimal128(7, 2)], (90, 90), distinct=3)
    left, right = left.slice(13, 60), right.slice(29, 50)
    for count in (1, 2, 3):
        spec = keyed(JoinType.FULL, left, right, keys=count)
        with gpujoin.HashJoin(spec, left.schema, right.schema, backend=backend) as join:
            join.build(right.to_batches(max_chunksize=11))
            result = [*join.probe(left.to_batches(max_chunksize=7)), *join.finish()]
        assert_same_rows(pa.Table.from_batches(result), oracle_join(left, right, spec), context=f"seed {seed}")


def test_batches_with_dictionaries_of_their_own(backend: AnyBackend) -> None:
    dtype = pa.dictionary(pa.int8(), pa.string())
    parts = [
        pa.record_batch({"k": from_cells(v, dtype), "p": from_cells(v[::-1], dtype)})
        for v in (["a", "b", None], ["c", "a", "a"], [None, None, None], ["b", "z", "c"])
    ]
    table = pa.Table.from_batches(parts)
    spec = keyed(JoinType.FULL, table, table)
    with gpujoin.HashJoin(spec, table.schema, table.schema, backend=backend) as join:
        join.build(parts)
        result = [*join.probe(parts), *join.finish()]
    expected = oracle_join(table, table, spec)
    assert_same_rows(pa.Table.from_batches(result, join.output_schema), expected)


def test_other_libraries_tables(backend: AnyBackend, duck: duckdb.DuckDBPyConnection, seed: int) -> None:
    left, right = sides(seed, [pa.int32()], (50, 50))
    left, right = left.rename_columns(["k", "a", "b", "c"]), right.rename_columns(["k", "x", "y", "z"])
    expected = gpujoin.join_tables(left, right, on="k", how="full", backend=backend)
    from_polars = gpujoin.join_tables(pl.from_arrow(left), pl.from_arrow(right), on="k", how="full", backend=backend)
    assert_same_rows(from_polars, expected, check_types=False)
    duck.register("one", left)
    from_duckdb = gpujoin.join_tables(duck.table("one"), right, on="k", how="full", backend=backend)
    assert_same_rows(from_duckdb, expected, check_types=False)


def test_every_distribution_with_several_threads(seed: int) -> None:
    parallel = create(BackendName.CPU, BackendRequest(threads=4))
    for shape in KeyShape:
        left, right = sides(seed, [pa.int64()], (130, 110), shape)
        spec = keyed(JoinType.FULL, left, right)
        metrics = JoinMetrics()
        actual = run_join(spec, left, right, backend=parallel, batch_rows=20, metrics=metrics)
        assert_same_rows(actual, oracle_join(left, right, spec), context=f"seed {seed}, {shape}")
        assert metrics.probe_rows == 130


class CopyingHost(HostBackend):
    """The device's backend on the host, which notes the columns that are copied to it and back."""

    def __init__(self) -> None:
        super().__init__()
        self.uploaded: list[str] = []
        self.downloaded: list[str] = []

    def from_arrow(self, table: pa.Table) -> pa.Table:
        self.uploaded += table.column_names
        return super().from_arrow(table)

    def to_arrow(self, frame: pa.Table, schema: pa.Schema) -> pa.RecordBatch:
        self.downloaded += schema.names
        return super().to_arrow(frame, schema)


@pytest.mark.parametrize("how", ["left", "inner", "existence"])
def test_rows_that_follow_one_another_are_not_copied_to_a_device(how: Any) -> None:
    """Every left row is output once, in its place: left columns are slices of what the caller gave, texts included."""
    rows = 1000
    left = pa.table({"k": np.arange(rows), "a": [f"text {i}" for i in range(rows)], "b": np.arange(rows) * 0.5})
    right = pa.table({"k": np.arange(rows if how == "inner" else 10), "c": np.arange(rows if how == "inner" else 10)})
    backend = CopyingHost()
    options = Options(batch_bytes=4000, max_column_bytes=500)
    found = join_tables(left, right, on="k", how=how, backend=backend, options=options)
    assert {"a", "b"}.isdisjoint(backend.uploaded + backend.downloaded)
    assert ("c" in backend.uploaded) == (how != "existence")
    assert found.select(["k", "a", "b"]).sort_by("k").combine_chunks() == left.combine_chunks()
    assert len(found.column("a").chunks) > 10


@pytest.mark.parametrize("how", ["inner", "full"])
def test_a_column_with_several_uses_is_copied_to_a_device_once(how: Any, seed: int) -> None:
    """As key, for the condition, and as output; but for texts, whose layout as keys is another."""
    rows, random = 500, np.random.default_rng(seed)
    days = np.datetime64("2024-01-01") + random.integers(0, 9, rows)
    left = pa.table({"k": random.integers(0, 90, rows), "day": days, "s": ["a"] * rows, "v": random.random(rows)})
    right = pa.table({"k": np.arange(100), "w": random.random(100), "day2": days[:100], "s": ["a"] * 100})
    backend, condition = CopyingHost(), gpujoin.left("v") < gpujoin.right("w")
    given: dict[str, Any] = {"left_on": ["k", "s"], "right_on": ["k", "s"], "how": how, "condition": condition}
    found = join_tables(left, right, **given, backend=backend)
    copies = sorted(backend.uploaded)
    converted = "0"
    assert copies == sorted(["k", converted, "s"] * 2 + ["day", "day2", "v", "w"])
    assert_same_rows(found, join_tables(left, right, **given, backend="cpu"), allow_empty=True)
