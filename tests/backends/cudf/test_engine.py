"""Whole joins by the engine over the device backend's own code on NumPy, against the row-by-row oracle."""

from __future__ import annotations

import functools
import gc
import weakref

import pyarrow as pa
import pytest

from gpujoin.config import Options
from gpujoin.engine.join.build import BuiltSide
from gpujoin.engine.join.devicerows import UploadedRows
from gpujoin.engine.join.hash_join import HashJoin
from gpujoin.engine.join.layout import JoinLayout
from gpujoin.engine.join.probe import Run, join_morsel
from gpujoin.engine.join.sinks import DeviceSink
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.model.expressions import Expression, Function, call, left, right
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.spec import AsOf, JoinSpec, KeyPair, NullEquality
from gpujoin.plan.resolve import resolve
from gpujoin.testing import assert_same_rows
from tests.backends.cudf.host import HostBackend
from tests.backends.cudf.pipeline import host_pipeline
from tests.backends.cudf.resident import CountingBackend, on_twin
from tests.faults import FaultyBackend
from tests.generate import Generator, KeyShape, Mix
from tests.oracle.join import oracle_join

ROWS = 40
KEYS: dict[str, tuple[pa.DataType, ...]] = {
    "int64": (pa.int64(),),
    "int32": (pa.int32(),),
    "two_ints": (pa.int32(), pa.int32()),
    "string": (pa.string(),),
    "double": (pa.float64(),),
    "decimal": (pa.decimal128(38, 10),),
    "date_and_string": (pa.date32(), pa.string()),
    "none": (),
}
CONDITIONS: dict[str, Expression | None] = {
    "none": None,
    "numbers": left("n") < right("n"),
    "text_or_null": left("s").startswith(right("s")) | right("n").is_null(),
    "left_to_the_cpu": left("s").rlike("a"),
}


@functools.cache
def sides(seed: int, types: tuple[pa.DataType, ...], shape: KeyShape) -> tuple[pa.Table, pa.Table]:
    g = Generator(seed, Mix(spread=6))
    keys = [
        g.keys(dtype, ROWS, shape, distinct=6 // len(types) if shape is KeyShape.UNIFORM else None) for dtype in types
    ]
    payload = pa.schema(
        [("n", pa.int32()), ("s", pa.string()), ("l", pa.list_(pa.string())),
         ("m", pa.month_day_nano_interval())]
    )  # fmt: skip
    tables = []
    for side in (0, 1):
        table = g.table(payload, ROWS)
        for i, pair in enumerate(keys):
            table = table.append_column(f"k{i}", pair[side])
        tables.append(table)
    return tables[0], tables[1]


def run(
    left_table: pa.Table,
    right_table: pa.Table,
    spec: JoinSpec,
    backend: HostBackend,
    build_side: Side,
    options: Options,
    batch: int,
) -> pa.Table:
    metrics = JoinMetrics()
    inputs = {Side.LEFT: left_table, Side.RIGHT: right_table}
    with HashJoin(
        spec,
        left_table.schema,
        right_table.schema,
        build_side=build_side,
        options=options,
        backend=backend,
        metrics=metrics,
    ) as join:
        join.build(inputs[build_side].to_batches(max_chunksize=batch))
        out = list(join.probe(inputs[build_side.other].to_batches(max_chunksize=batch)))
        out += list(join.finish())
        return pa.Table.from_batches(out, schema=join.output_schema)


def spec_of(
    kind: JoinType,
    left_table: pa.Table,
    right_table: pa.Table,
    keys: int,
    condition: Expression | None,
    nulls: NullEquality,
) -> JoinSpec:
    columns = tuple(range(left_table.num_columns))
    return JoinSpec(
        kind,
        tuple(KeyPair(4 + i, 4 + i, nulls) for i in range(keys)),
        None if condition is None else resolve(condition, left_table.schema, right_table.schema),
        columns,
        () if kind.left_rows_only else columns,
    )


BY_BUILD_SIDE = {
    Side.RIGHT: (JoinType.INNER, JoinType.LEFT, JoinType.RIGHT, JoinType.FULL, JoinType.LEFT_SEMI,
                 JoinType.LEFT_ANTI, JoinType.EXISTENCE),
    Side.LEFT: (JoinType.INNER, JoinType.LEFT, JoinType.FULL, JoinType.LEFT_SEMI),
}  # fmt: skip
CASES = [(kind, side) for side, kinds in BY_BUILD_SIDE.items() for kind in kinds]


COMBINATIONS = [
    *((keys, "none") for keys in KEYS),
    *((keys, condition) for keys in ("int64", "none") for condition in CONDITIONS if condition != "none"),
]


@pytest.mark.few
@pytest.mark.parametrize(("keys", "condition"), COMBINATIONS)
@pytest.mark.parametrize(("kind", "build_side"), CASES, ids=lambda v: v.value)
def test_joins(kind: JoinType, build_side: Side, keys: str, condition: str, seed: int) -> None:
    types = KEYS[keys]
    for shape in (KeyShape.UNIFORM, KeyShape.UNIQUE) if types else (KeyShape.UNIFORM,):
        left_table, right_table = sides(seed, types, shape)
        spec = spec_of(kind, left_table, right_table, len(types), CONDITIONS[condition], NullEquality.UNEQUAL)
        backend = HostBackend()
        options = Options(batch_bytes=2000, candidate_pairs=37, range_index=False)
        result = run(left_table, right_table, spec, backend, build_side, options, 23)
        assert_same_rows(
            result,
            oracle_join(left_table, right_table, spec),
            allow_empty=True,
            context=f"{shape} seed={seed}",
        )
        if condition in ("numbers", "text_or_null") and shape is KeyShape.UNIFORM:
            assert backend.evaluated


@pytest.mark.parametrize("kind", [JoinType.INNER, JoinType.FULL, JoinType.LEFT_ANTI], ids=lambda k: k.value)
def test_nulls_that_equal_nulls(kind: JoinType, seed: int) -> None:
    left_table, right_table = sides(seed, (pa.int32(), pa.string()), KeyShape.UNIFORM)
    spec = spec_of(kind, left_table, right_table, 2, None, NullEquality.EQUAL)
    result = run(left_table, right_table, spec, HostBackend(), Side.RIGHT, Options(), 1000)
    assert_same_rows(result, oracle_join(left_table, right_table, spec), allow_empty=True, context=f"seed={seed}")


@pytest.mark.parametrize("kind", [JoinType.INNER, JoinType.FULL, JoinType.LEFT_SEMI], ids=lambda k: k.value)
@pytest.mark.parametrize("every", [2, 3, 7])
def test_running_out_of_memory_now_and_then(kind: JoinType, every: int, seed: int) -> None:
    """The pairs come in the order of the CPU backend's, so a join that changes over in the middle loses nothing."""
    left_table, right_table = sides(seed, (pa.int64(),), KeyShape.UNIFORM)
    spec = spec_of(kind, left_table, right_table, 1, CONDITIONS["numbers"], NullEquality.UNEQUAL)
    backend = FaultyBackend(HostBackend(), every=every)
    options = Options(batch_bytes=2000, candidate_pairs=16)
    result = run(left_table, right_table, spec, backend, Side.RIGHT, options, 23)  # type: ignore[arg-type]
    assert backend.faults
    assert_same_rows(result, oracle_join(left_table, right_table, spec), allow_empty=True, context=f"seed={seed}")


NO_FIELDS = pa.array([{}, None, {}], pa.struct([]))
WHOLE: dict[str, tuple[pa.Array, pa.Array, Expression | None, str]] = {
    "keys": (
        pa.array([{"a": 1}, None, {"a": 2}]), pa.array([7, 8, 9]), None,
        "keys of type struct<a:bigint> are not compared on a GPU",
    ),
    "condition": (
        pa.array([1, 2, 3]), pa.array(["a", "b", "c"]), left("v").rlike("[ab]"),
        "the condition v rlike '[ab]' is not computed on a GPU exactly as Spark does",
    ),
    "column of the condition": (
        pa.array([1, 2, 3]), NO_FIELDS, left("v").is_null(), "v of type struct<> is not held on a GPU",
    ),
    "column": (pa.array([1, 2, 3]), NO_FIELDS, None, "v of type struct<> is not held on a GPU"),
}  # fmt: skip
"""Keys, another column and a condition of joins of which a GPU lacks a part, and what it lacks."""


@pytest.mark.parametrize("case", WHOLE)
@pytest.mark.parametrize("kind", [JoinType.FULL, JoinType.LEFT_SEMI], ids=lambda k: k.value)
def test_a_join_of_which_the_device_lacks_a_part_is_one_of_the_cpu(case: str, kind: JoinType) -> None:
    """As a whole, and the metrics say why."""
    keys, values, condition, reason = WHOLE[case]
    table = pa.table({"k": keys, "v": values})
    tested = None if condition is None else resolve(condition, table.schema, table.schema)
    spec = JoinSpec(kind, (KeyPair(0, 0),), tested, (0, 1), () if kind.left_rows_only else (0, 1))
    backend, metrics = CountingBackend(), JoinMetrics()
    with HashJoin(spec, table.schema, table.schema, backend=backend, metrics=metrics) as join:
        join.build(table.to_batches())
        out = [*join.probe(table.to_batches()), *join.finish()]
        assert_same_rows(pa.Table.from_batches(out, join.output_schema), oracle_join(table, table, spec))
    assert not backend.rows_copied
    assert set(metrics.algorithm_reasons.values()) == {f"the CPU joins: {reason}"}


@pytest.mark.parametrize("width", [3, 16])
def test_byte_strings_of_a_fixed_width_are_compared_on_the_device(width: int) -> None:
    keys = pa.array([b"a" * width, None, b"b" * width], pa.binary(width))
    table = pa.table({"k": keys, "n": range(3)})
    for kind, nulls in ((JoinType.FULL, NullEquality.EQUAL), (JoinType.NULL_AWARE_ANTI, NullEquality.UNEQUAL)):
        spec = JoinSpec(kind, (KeyPair(0, 0, nulls),), None, (1,), () if kind.left_rows_only else (1,))
        backend, metrics = CountingBackend(), JoinMetrics()
        result = run_there(spec, table, table, backend, frames=False, metrics=metrics)
        assert_same_rows(result, oracle_join(table, table, spec), allow_empty=True)
        assert backend.rows_copied["rows up"]
        assert not metrics.algorithm_reasons


@pytest.mark.parametrize("unique", [True, False], ids=["unique keys", "repeated keys"])
def test_a_join_by_keys_is_one_of_the_device_unless_it_needs_ranges_that_the_device_lacks(unique: bool) -> None:
    times = pa.array(range(40), pa.timestamp("ns"))
    table = pa.table({"k": range(40) if unique else [n % 2 for n in range(40)], "t": times})
    condition = resolve(left("t") <= right("t"), table.schema, table.schema)
    spec = JoinSpec(JoinType.LEFT, (KeyPair(0, 0),), condition, (0, 1), (1,))
    metrics = JoinMetrics()
    result = run_there(spec, table, table, HostBackend(), frames=False, metrics=metrics)
    assert_same_rows(result, oracle_join(table, table, spec))
    reason = f"the CPU joins: rows are not searched by the ranges of {condition} on a GPU"
    assert metrics.algorithm_reasons == ({} if unique else {"range": reason})


def test_a_product_on_the_cpu_has_a_reason_too() -> None:
    table = pa.table({"s": ["a", "b"]})
    spec = JoinSpec(JoinType.INNER, (), resolve(left("s").rlike("a"), table.schema, table.schema), (0,), (0,))
    metrics = JoinMetrics()
    assert run_there(spec, table, table, HostBackend(), frames=False, metrics=metrics).num_rows == 2
    reason = "the CPU joins: the condition s rlike 'a' is not computed on a GPU exactly as Spark does"
    assert metrics.algorithm_reasons == {"product": reason}


@pytest.mark.parametrize("kind", [JoinType.FULL, JoinType.LEFT_ANTI], ids=lambda k: k.value)
def test_keys_of_two_types_are_compared_on_the_device(kind: JoinType) -> None:
    """In their common type: columns are converted as they are copied."""
    left_table = pa.table({"k": pa.array([1, 2, None, 5], pa.int32()), "t": ["a", "b", "c", None]})
    right_table = pa.table({"k": [2.0, 1.0, 1.5, None], "t": pa.array(["b", "x", "c", "d"], pa.large_string())})
    columns = (0, 1)
    keys = (KeyPair(0, 0, NullEquality.EQUAL), KeyPair(1, 1))
    spec = JoinSpec(kind, keys, None, columns, () if kind.left_rows_only else columns)
    backend, metrics = CountingBackend(), JoinMetrics()
    with HashJoin(spec, left_table.schema, right_table.schema, backend=backend, metrics=metrics) as join:
        join.build(right_table.to_batches())
        out = [*join.probe(left_table.to_batches()), *join.finish()]
    assert_same_rows(pa.Table.from_batches(out, join.output_schema), oracle_join(left_table, right_table, spec))
    assert backend.rows_copied["rows up"]
    assert not any(reason.startswith("the CPU") for reason in metrics.algorithm_reasons.values())


def run_there(
    spec: JoinSpec, left_table: pa.Table, right_table: pa.Table, backend: HostBackend, *, frames: bool,
    options: Options | None = None, metrics: JoinMetrics | None = None,
) -> pa.Table:  # fmt: skip
    """Join tables that lie on the device, or rows in host memory, with the right side built."""
    with HashJoin(
        spec, left_table.schema, right_table.schema, backend=backend, options=options, metrics=metrics
    ) as join:
        if not frames:
            join.build(right_table.to_batches())
            return pa.Table.from_batches([*join.probe(left_table.to_batches()), *join.finish()], join.output_schema)
        probe, build = on_twin(backend, left_table, right_table)
        join.build(build)
        out = [table.to_arrow() for table in (*join.probe(probe), *join.finish())]
        return pa.concat_tables([join.output_schema.empty_table(), *out])


ON_DEVICE = pytest.mark.parametrize("frames", [False, True], ids=["rows", "frames"])


@ON_DEVICE
@pytest.mark.parametrize("nulls", NullEquality, ids=lambda nulls: nulls.value)
def test_nulls_of_as_of_joins(nulls: NullEquality, frames: bool) -> None:
    left_table = pa.table({"k": [None, 1, 2], "t": [5, 5, 5]})
    right_table = pa.table({"k": [None, 1, 3], "t": [4, 3, 1], "w": [10, 20, 30]})
    spec = JoinSpec(JoinType.LEFT, (KeyPair(0, 0, nulls),), None, (1,), (2,), as_of=AsOf(1, 1))
    metrics = JoinMetrics()
    result = run_there(spec, left_table, right_table, HostBackend(), frames=frames, metrics=metrics)
    assert result["w"].to_pylist() == [10 if nulls is NullEquality.EQUAL else None, 20, None]
    assert metrics.algorithms == {"cudf as_of": 1}


NOT_ASCII = pa.table({"s": [*(f"v{i}" for i in range(99)), "É"], "n": range(100)})
LOWER = {
    "build": left("s") == call(Function.LOWER, right("s")),
    "probe": call(Function.LOWER, left("s")) == right("s"),
}
"""Ranges with an operand of which a device lacks a value, by the side that has it."""


@pytest.mark.parametrize("side", LOWER)
@pytest.mark.parametrize("spilled", [False, True], ids=["in memory", "spilled"])
def test_rows_with_a_value_that_the_device_lacks_are_searched_by_ranges_on_the_cpu(side: str, spilled: bool) -> None:
    spec = JoinSpec(JoinType.FULL, (), resolve(LOWER[side], NOT_ASCII.schema, NOT_ASCII.schema), (0,), (1,))
    options = Options(max_product_rows=1000, memory_budget=1000 if spilled else 1 << 30)
    metrics = JoinMetrics()
    result = run_there(spec, NOT_ASCII, NOT_ASCII, HostBackend(), frames=False, options=options, metrics=metrics)
    assert_same_rows(result, oracle_join(NOT_ASCII, NOT_ASCII, spec))
    assert metrics.candidate_pairs == 0
    assert bool(metrics.spills) == spilled
    assert metrics.algorithms["range"]
    if side == "build":
        assert "not ASCII" in metrics.algorithm_reasons["range"]


@pytest.mark.parametrize("side", LOWER)
def test_the_cpu_searches_rows_of_frames_by_ranges_where_the_device_did_not(side: str) -> None:
    spec = JoinSpec(JoinType.FULL, (), resolve(LOWER[side], NOT_ASCII.schema, NOT_ASCII.schema), (0,), (1,))
    metrics = JoinMetrics()
    result = run_there(spec, NOT_ASCII, NOT_ASCII, HostBackend(), frames=True, metrics=metrics)
    assert_same_rows(result, oracle_join(NOT_ASCII, NOT_ASCII, spec))
    assert metrics.algorithms["range"] == 1


def test_what_codes_probe_rows_does_not_hold_the_codes_of_build_rows() -> None:
    table = pa.table({"n": range(9)})
    condition = resolve(left("n") < right("n"), table.schema, table.schema)
    layout = JoinLayout.from_spec(JoinSpec(JoinType.INNER, (), condition), table.schema, table.schema, Side.RIGHT)
    assert layout.ranged is not None
    sink = DeviceSink(layout, host_pipeline(HostBackend()), Options())
    rows = sink.take_in(table.to_batches()[0])
    coded = sink.ranges(rows, layout.ranged)
    assert coded is not None
    code, points = coded.code, weakref.ref(coded.points)
    del coded
    gc.collect()
    assert points() is None
    assert code(rows).num_rows == table.num_rows


def test_keys_of_a_null_aware_join_do_not_stay_on_the_device() -> None:
    """Searches by null pattern are made when they are first needed, of keys that are copied for them."""
    left_table = pa.table({"a": [1, 3, None], "b": [7, None, 2], "row": range(3)})
    right_table = pa.table({"a": [1, 1], "b": [2, None]})
    spec = JoinSpec(JoinType.NULL_AWARE_ANTI, (KeyPair(0, 0), KeyPair(1, 1)), None, (2,), ())
    layout = JoinLayout.from_spec(spec, left_table.schema, right_table.schema, Side.RIGHT)
    metrics = JoinMetrics()
    sink = DeviceSink(layout, host_pipeline(HostBackend()), Options())
    built = BuiltSide(sink, right_table.to_batches()[0], metrics)
    out = list(join_morsel(Run.start(built, metrics), left_table.to_batches()[0]))
    assert [batch["row"].to_pylist() for batch in out] == [[1]]
    assert built.null_patterns is not None
    assert len(built.null_patterns.searches) > 1
    assert isinstance(built.rows, UploadedRows)
    assert not built.rows.copied
