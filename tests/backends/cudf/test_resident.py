"""Joins of tables that lie on the device, on its host twin: the oracle's rows, and none of them copied to the host."""

from __future__ import annotations

import datetime as dt
import doctest
import itertools
import sys
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from gpujoin import (
    DeviceTable,
    GatherMaps,
    HashJoin,
    JoinMetrics,
    JoinSpec,
    JoinType,
    KeyPair,
    NullEquality,
    Options,
    asof_join_tables,
    gather,
    gather_maps,
    join_tables,
    left,
    right,
)
from gpujoin.engine import devicetables
from gpujoin.errors import (
    ConditionError,
    ConfigurationError,
    DeviceMemoryError,
    JoinSpecError,
    KeyTypeError,
    ProductSizeError,
)
from gpujoin.model.maps import Indices
from gpujoin.plan.resolve import resolve
from gpujoin.testing import assert_same_rows
from tests.backends.cudf.host import HostBackend, emulated_ops
from tests.backends.cudf.pipeline import ShortBackend, host_pipeline
from tests.backends.cudf.resident import CountingBackend, on_twin
from tests.engine.support import keyed
from tests.engine.test_notin import VALUES, everything, kept
from tests.generate import Generator, KeyShape, Mix
from tests.kernels.conftest import MakeDevice, emulator_cache, make_device
from tests.oracle.join import oracle_join

__all__ = ["emulator_cache", "make_device"]

PAGE = Path(__file__).parents[3] / "docs" / "gpu.md"
ROWS = 60
KEYS: dict[str, tuple[pa.DataType, ...]] = {
    "int64": (pa.int64(),),
    "string": (pa.string(),),
    "decimal": (pa.decimal128(30, 4),),
    "double_and_date": (pa.float64(), pa.date32()),
}
PAYLOAD = pa.schema([("n", pa.int32()), ("s", pa.string()), ("l", pa.list_(pa.string())), ("d", pa.decimal128(10, 2))])
KINDS = [kind for kind in JoinType if kind is not JoinType.CROSS]


def sides(seed: int, types: tuple[pa.DataType, ...], shape: KeyShape = KeyShape.UNIFORM) -> tuple[pa.Table, pa.Table]:
    """Two tables with keys ``k0``, `k1`` … and payload of some types."""
    g = Generator(seed, Mix(spread=6))
    pairs = [g.keys(t, ROWS, shape, distinct=12 // len(types) if shape is KeyShape.UNIFORM else None) for t in types]
    tables = []
    for side in (0, 1):
        payload = g.table(PAYLOAD, ROWS)
        keys = {f"k{i}": pair[side] for i, pair in enumerate(pairs)}
        tables.append(pa.table({**keys, **dict(zip(PAYLOAD.names, payload.columns, strict=True))}))
    return tables[0], tables[1]


def join(tables: Sequence[DeviceTable], **given: Any) -> Any:
    first, second = tables
    return join_tables(first, second, **given)


def as_of(tables: Sequence[DeviceTable], **given: Any) -> Any:
    first, second = tables
    return asof_join_tables(first, second, **given)


def carried(table: Any) -> pa.Table:
    """A result on the host, checked to have lain on the device until now."""
    assert isinstance(table, DeviceTable)
    return table.to_arrow()


def joined(a: pa.Table, b: pa.Table, kind: JoinType, keys: int, **given: Any) -> pa.Table:
    """What ``join_tables`` makes of host tables."""
    return join_tables(a, b, on=[f"k{i}" for i in range(keys)] or None, how=kind, backend="cpu", **given)


@pytest.mark.few
@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)
@pytest.mark.parametrize("shape", [KeyShape.UNIFORM, KeyShape.UNIQUE], ids=lambda shape: shape.name)
def test_joins_equal_the_oracle_and_copy_nothing(kind: JoinType, keys: str, shape: KeyShape, seed: int) -> None:
    types = KEYS[keys]
    a, b = sides(seed, types, shape)
    if kind.null_aware and shape is KeyShape.UNIFORM:
        b = b.filter(pc.is_valid(b["k0"]))
    backend = CountingBackend()
    on = [f"k{i}" for i in range(len(types))]
    result = join(on_twin(backend, a, b), on=on, how=kind)
    assert isinstance(result, DeviceTable)
    assert backend.rows_copied == {}
    spec = JoinSpec(
        kind, tuple(KeyPair(i, i) for i in range(len(types))), None, tuple(range(a.num_columns)),
        () if kind.left_rows_only else tuple(range(len(types), b.num_columns)),
    )  # fmt: skip
    merged = kind in (JoinType.RIGHT, JoinType.FULL)
    wanted = joined(a, b, kind, len(types)) if merged else oracle_join(a, b, spec)
    assert_same_rows(result.to_arrow(), wanted.rename_columns(result.column_names), allow_empty=True)


@pytest.mark.parametrize("how", ["inner", "left", "full", "left_semi"])
def test_ranges_are_searched_there(how: str, seed: int) -> None:
    a, b = sides(seed, (pa.int32(),))
    condition, kind = (left("n") < right("n")) & (left("d") > right("d")), JoinType.parse(how)
    backend, metrics = CountingBackend(), JoinMetrics()
    result = join(on_twin(backend, a, b), how=kind, condition=condition, metrics=metrics)
    if kind is not JoinType.LEFT_SEMI:  # which copies counts and marks
        assert backend.rows_copied == {}
    assert any("range" in name for name in metrics.algorithms), metrics.algorithms
    wanted = join_tables(a, b, how=kind, condition=condition, backend="cpu")
    assert_same_rows(carried(result), wanted, allow_empty=True, context=f"seed {seed}")


def test_texts_bytes_and_wide_decimals_are_ordered_there(rng: np.random.Generator, seed: int) -> None:
    backend, metrics = CountingBackend(), JoinMetrics()
    letters = [None, "", "a", "ab", "b", "é"]
    a, b = (
        pa.table({
            "n": range(60), "s": [letters[i] for i in rng.integers(0, 6, 60)],
            "d": pa.array([Decimal(int(i)) * 10**20 for i in rng.integers(-9, 9, 60)], pa.decimal128(30, 2)),
            "y": [bytes([i]) for i in rng.integers(0, 255, 60)],
        })
        for _ in range(2)
    )  # fmt: skip
    lefts, rights = on_twin(backend, a, b)
    condition = (left("s") < right("s")) & (left("d") <= right("d"))
    result = join_tables(lefts, rights, condition=condition, metrics=metrics)
    nearest = {key: asof_join_tables(lefts, rights, on=key) for key in ("y", "d")}
    assert backend.rows_copied == {}
    assert any("range" in name for name in metrics.algorithms), metrics.algorithms
    wanted = join_tables(a, b, condition=condition, backend="cpu")
    assert_same_rows(carried(result), wanted, context=f"seed {seed}")
    for key, table in nearest.items():
        assert_same_rows(carried(table), asof_join_tables(a, b, on=key, backend="cpu"), context=f"{key}, seed {seed}")


@pytest.mark.parametrize("columns", [1, 2, 3], ids=lambda n: f"{n} columns")
def test_not_in_of_every_row(columns: int) -> None:
    """Every left row against every right side of no, one, and some of two rows; rows with nulls are found there."""
    every, backend = everything(columns), CountingBackend()
    rows = list(itertools.product(VALUES, repeat=columns))
    for chosen in [(), *((i,) for i in range(len(rows))), *itertools.pairwise(range(len(rows)))]:
        right_table = every.take(pa.array(chosen, pa.int64()))
        keys = [f"k{i}" for i in range(columns)]
        result = join(on_twin(backend, every, right_table), on=keys, how="null_aware_anti")
        assert backend.rows_copied == {}
        expected = [i for i, row in enumerate(rows) if kept(row, [rows[j] for j in chosen])]
        assert sorted(carried(result)["row"].to_pylist()) == expected, [rows[j] for j in chosen]


@pytest.mark.parametrize("kind", [kind for kind in JoinType if kind.null_aware], ids=lambda kind: kind.value)
@pytest.mark.parametrize("keys", [1, 3], ids=lambda n: f"{n} keys")
@pytest.mark.parametrize("null_safe", [False, True], ids=["=", "one <=>"])
def test_not_in_with_a_condition(kind: JoinType, keys: int, null_safe: bool, seed: int) -> None:
    a, b = sides(seed, (pa.int32(), pa.string(), pa.decimal128(30, 4))[:keys])
    b = b.filter(pc.is_valid(b["k0"]))
    condition = resolve(left("n") < right("n"), a.schema, b.schema)
    equal = [NullEquality.EQUAL if null_safe and i == keys - 1 else NullEquality.UNEQUAL for i in range(keys)]
    pairs = tuple(KeyPair(i, i, nulls) for i, nulls in enumerate(equal))
    for tested in (None, condition):
        spec = JoinSpec(kind, pairs, tested, tuple(range(a.num_columns)), ())
        first, second = on_twin(CountingBackend(), a, b)
        metrics = JoinMetrics()
        with HashJoin(spec, a.schema, b.schema, options=Options(candidate_pairs=50), metrics=metrics) as run:
            run.build(second)
            parts = [carried(part) for part in (*run.probe(first), *run.finish())]
        expected = oracle_join(a, b, spec)
        result = pa.concat_tables(parts) if parts else expected.schema.empty_table()
        assert_same_rows(result, expected, allow_empty=True, context=f"seed {seed}")
        assert metrics.fallbacks == 0
        assert (metrics.candidate_pairs > 0) == (tested is not None)


@pytest.mark.parametrize("kind", [JoinType.INNER, JoinType.LEFT, JoinType.FULL, JoinType.LEFT_SEMI, JoinType.LEFT_ANTI])
def test_joins_by_kernels(kind: JoinType, make_device: MakeDevice, seed: int) -> None:
    a, b = sides(seed, (pa.int64(),), KeyShape.UNIQUE)
    emulated = make_device()
    backend = CountingBackend(ops=emulated_ops(emulated))
    metrics = JoinMetrics()
    result = join(on_twin(backend, a, b), on="k0", how=kind, metrics=metrics)
    assert backend.rows_copied == {}
    assert emulated.launches
    assert not any(name.startswith("cudf") for name in metrics.algorithms)
    assert_same_rows(carried(result), joined(a, b, kind, 1), allow_empty=True)


@pytest.mark.parametrize("kind", [JoinType.INNER, JoinType.LEFT, JoinType.FULL])
def test_conditions_are_tested_on_the_device(kind: JoinType, seed: int) -> None:
    a, b = sides(seed, (pa.int64(),))
    condition = (left("n") < right("n")) | left("s").startswith("a")
    backend = CountingBackend()
    result = join(on_twin(backend, a, b), on="k0", how=kind, condition=condition)
    assert backend.rows_copied == {}
    assert backend.evaluated
    assert_same_rows(carried(result), joined(a, b, kind, 1, condition=condition), allow_empty=True)


@pytest.mark.parametrize("kind", [JoinType.LEFT_SEMI, JoinType.LEFT_ANTI, JoinType.EXISTENCE])
def test_conditions_of_joins_that_stop_early_copy_counts_and_marks_alone(kind: JoinType, seed: int) -> None:
    a, b = sides(seed, (pa.int64(),))
    condition = left("n") < right("n")
    backend = CountingBackend()
    result = join(on_twin(backend, a, b), on="k0", how=kind, condition=condition)
    assert set(backend.rows_copied) <= {"indices down", "indices up", "marks down"}
    assert_same_rows(carried(result), joined(a, b, kind, 1, condition=condition), allow_empty=True)


def test_products(seed: int) -> None:
    a, b = (table.slice(0, 20) for table in sides(seed, (pa.int64(),)))
    backend = CountingBackend()
    tables = on_twin(backend, a, b)
    assert_same_rows(carried(join(tables, how="cross")), join_tables(a, b, how="cross", backend="cpu"))
    condition = left("n") < right("n")
    result = join(tables, condition=condition, how="left")
    assert_same_rows(carried(result), join_tables(a, b, condition=condition, how="left", backend="cpu"))
    with pytest.raises(ProductSizeError):
        join(tables, how="cross", options=Options(max_product_rows=100))


@pytest.mark.parametrize("nulls", [NullEquality.EQUAL, NullEquality.UNEQUAL])
def test_integers_of_two_widths_and_null_equality(nulls: NullEquality) -> None:
    a = pa.table({"k": pa.array([1, 2, None, -3], pa.int8()), "v": [1, 2, 3, 4]})
    b = pa.table({"k": pa.array([2, None, -3, 900], pa.int64()), "w": ["x", None, "z", "ä"]})
    equal = nulls is NullEquality.EQUAL
    for how in ("inner", "full"):
        result = join(on_twin(HostBackend(), a, b), on="k", how=how, nulls_equal=equal)
        wanted = join_tables(a, b, on="k", how=how, nulls_equal=equal, backend="cpu")
        assert carried(result).schema == wanted.schema
        assert_same_rows(carried(result), wanted)


@pytest.mark.parametrize("rows", [(0, 3), (3, 0), (0, 0)])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)
def test_empty_sides(kind: JoinType, rows: tuple[int, int]) -> None:
    a = pa.table({"k": [1, 2, None], "v": ["a", "b", "c"]}).slice(0, rows[0])
    b = pa.table({"k": [2, None, 4], "w": [1.5, 2.5, None]}).slice(0, rows[1])
    result = join(on_twin(HostBackend(), a, b), on="k", how=kind)
    assert_same_rows(carried(result), join_tables(a, b, on="k", how=kind, backend="cpu"), allow_empty=True)


def test_the_result_of_a_join_is_the_input_of_the_next(seed: int) -> None:
    backend = CountingBackend()
    a, b = sides(seed, (pa.int64(),))
    c = pa.table({"n": a["n"], "z": a["s"]}).slice(0, 20)
    first, second, third = on_twin(backend, a, b, c)
    inner = join_tables(first, second, on="k0", suffixes=("", "_b"))
    result = join_tables(inner, third, on="n", how="left")
    assert backend.rows_copied == {}
    host = join_tables(a, b, on="k0", suffixes=("", "_b"), backend="cpu")
    assert_same_rows(carried(result), join_tables(host, c, on="n", how="left", backend="cpu"), allow_empty=True)


# -- gather maps -----------------------------------------------------------------------------------------------


def pairs(maps: GatherMaps) -> list[tuple[int, ...]]:
    host = maps.to_host()
    columns = [m.values.tolist() for m in (host.left, host.right) if isinstance(m, Indices)]
    return sorted(zip(*columns, strict=True))


@pytest.mark.parametrize("kind", [k for k in KINDS if not k.flags_rows], ids=lambda kind: kind.value)
def test_maps_stay_on_the_device(kind: JoinType, seed: int) -> None:
    a, b = sides(seed, (pa.string(),))
    backend = CountingBackend()
    first, second = on_twin(backend, a, b)
    maps = gather_maps(first.select(["k0"]), second.select(["k0"]), how=kind)
    assert maps.backend is backend
    assert isinstance(maps.left, Indices)
    assert maps.left.values.dtype == np.int32
    applied = maps.apply(first) if kind.left_rows_only else maps.apply(first, second)
    assert isinstance(applied, DeviceTable)
    assert backend.rows_copied == {}
    host = gather_maps(a.select(["k0"]), b.select(["k0"]), how=kind, backend="cpu")
    assert pairs(maps) == pairs(host)
    on_host = host.apply(a) if kind.left_rows_only else host.apply(a, b)
    assert_same_rows(applied.to_arrow(), on_host, allow_empty=True)


def test_gather_on_host_and_device() -> None:
    table = pa.table({"a": [1, 2, 3], "s": ["x", None, "z"]})
    other = pa.table({"a": [3, 3, 5], "t": ["p", "q", "r"]})
    maps = gather_maps(table["a"], other["a"], how="left", backend="cpu")
    assert gather(table, maps.left).num_rows == maps.length == 4
    assert sorted(map(str, gather(other, maps.right)["t"].to_pylist())) == ["None", "None", "p", "q"]
    assert gather(other, maps.right)["t"].null_count == 2
    applied = maps.apply(table, other)
    assert applied.column_names == ["a", "s", "a_right", "t"]
    assert applied.sort_by("t").to_pylist()[:2] == [
        {"a": 3, "s": "z", "a_right": 3, "t": "p"}, {"a": 3, "s": "z", "a_right": 3, "t": "q"},
    ]  # fmt: skip
    with pytest.raises(JoinSpecError, match=r"columns \['a_right'\] twice"):
        maps.apply(table.rename_columns(["a", "a_right"]), other)
    first, second = on_twin(HostBackend(), table, other)
    there = gather_maps(first.select(["a"]), second.select(["a"]), how="left")
    assert_same_rows(gather(second, there.right).to_arrow(), gather(other, maps.right))
    with pytest.raises(JoinSpecError, match="the map is on the host"):
        gather(first, maps.left)
    with pytest.raises(JoinSpecError, match="the maps are on the host"):
        maps.apply(first, second)
    with pytest.raises(JoinSpecError, match="the maps are on the GPU"):
        there.apply(table)
    with pytest.raises(JoinSpecError, match="made for 3 rows"):
        maps.apply(table.slice(0, 2), other)
    with pytest.raises(JoinSpecError, match="the map has row 2"):
        gather(table.slice(0, 2), maps.left)
    semi = gather_maps(table["a"], other["a"], how="left_semi", backend="cpu")
    with pytest.raises(JoinSpecError, match="have no right one"):
        semi.apply(table, other)
    with pytest.raises(JoinSpecError, match="no map"):
        gather(table, semi.right)


def test_host_results_are_cut_to_batches() -> None:
    table = pa.table({"s": ["x" * 50] * 100})
    maps = gather_maps(pa.array([1] * 20), pa.array([1] * 5), backend="cpu")
    result = gather(table, maps.left, options=Options(batch_bytes=1000))
    assert result.num_rows == 100
    assert result["s"].num_chunks > 2


# -- HashJoin --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [JoinType.INNER, JoinType.FULL, JoinType.NULL_AWARE_ANTI], ids=lambda k: k.value)
def test_one_build_side_and_many_probes(kind: JoinType, seed: int) -> None:
    a, b = sides(seed, (pa.int64(),))
    spec = JoinSpec(kind, (KeyPair(0, 0),), None, (0, 1, 2), () if kind.left_rows_only else (0, 1))
    backend = CountingBackend()
    one, two, three, build = on_twin(backend, a.slice(0, 25), a.slice(25, 0), a.slice(25), b)
    with HashJoin(spec, a.schema, b.schema) as join:
        join.build(build)
        assert join.build_bytes > 0
        made = [*join.probe([one, two]), *join.probe(three), *join.probe([]), *join.finish()]
        assert join.metrics.probe_rows == a.num_rows
    assert backend.rows_copied == {}
    result = pa.concat_tables([spec.output_schema(a.schema, b.schema).empty_table(), *map(carried, made)])
    assert_same_rows(result, oracle_join(a, b, spec), allow_empty=True)


def test_sides_in_two_places_are_refused_before_work() -> None:
    a = pa.table({"k": [1, 2]})
    (there,) = on_twin(HostBackend(), a)
    (elsewhere,) = on_twin(HostBackend(), a)
    for first, second in ((there, a), (a, there)):
        with pytest.raises(JoinSpecError, match=r"lies on a GPU .*the host; copy one of them"):
            join_tables(first, second, on="k")
        with pytest.raises(JoinSpecError, match="lies on a GPU"):
            gather_maps(first, second)
        with pytest.raises(JoinSpecError, match="lies on a GPU"):
            asof_join_tables(first, second, on="k")
    with pytest.raises(JoinSpecError, match="two backends"):
        join_tables(there, elsewhere, on="k")
    with pytest.raises(ConfigurationError, match="to_arrow"):
        join_tables(there, there, on="k", backend="cpu")
    spec = JoinSpec(JoinType.INNER, (KeyPair(0, 0),), None, (0,), ())
    join = HashJoin(spec, a.schema, a.schema)
    join.build(there)
    with pytest.raises(JoinSpecError, match="the probe side on the host"):
        list(join.probe(a.to_batches()))
    join = HashJoin(spec, a.schema, a.schema)
    join.build(a.to_batches())
    with pytest.raises(JoinSpecError, match="the probe side on a GPU"):
        list(join.probe(there))
    with pytest.raises(JoinSpecError, match="does not lie on a GPU"):
        DeviceTable.of(a)


def table_of(**columns: Any) -> pa.Table:
    return pa.table(columns)


REFUSED: dict[str, tuple[Callable[[DeviceTable, DeviceTable], Any], type[Exception], str]] = {
    "types of keys": (lambda a, b: join_tables(a, b, left_on="k", right_on="f"), KeyTypeError, "cast them to one"),
    "a condition": (lambda a, b: join_tables(a, b, on="k", condition=left("s").rlike("a")), ConditionError, "rlike"),
    "types of order": (
        lambda a, b: asof_join_tables(a, b, left_on="k", right_on="f", by="s"), KeyTypeError, "cast them to one type"),
    "two columns of a name": (
        lambda a, b: join_tables(a.rename_columns(["k", "k", "f", "y"]), b, on="k"), JoinSpecError, "twice"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_a_device_does_not_do_is_refused(what: str) -> None:
    ask, error, message = REFUSED[what]
    table = table_of(k=[1, 2], s=["a", "b"], f=[1.0, 2.0], y=[b"a", b"b"])
    backend = CountingBackend()
    with pytest.raises(error, match=message):
        ask(*on_twin(backend, table, table))
    assert backend.rows_copied == {}


@pytest.mark.parametrize("kind", ["left", "null_aware_anti", "full", "as of"])
@pytest.mark.parametrize("floor", [0, 20], ids=["once", "always"])
def test_a_device_that_is_short_of_memory(kind: Any, floor: int) -> None:
    """Work is halved, and at last done on the CPU, whose rows are copied back."""
    a = pa.table({"k": list(range(3000)) * 2, "t": range(6000), "v": [float(i) for i in range(6000)]})
    b = pa.table({"k": list(range(100, 3000)), "t": range(2900), "w": [str(i) for i in range(2900)]})
    given: dict[str, Any] = {"on": "t", "by": "k"} if kind == "as of" else {"on": "k", "how": kind}
    ask = asof_join_tables if kind == "as of" else join_tables
    wanted = ask(a, b, **given, backend="cpu")
    metrics = JoinMetrics()
    first, second = on_twin(ShortBackend([1], floor), a, b)
    result = ask(first, second, **given, metrics=metrics)
    assert metrics.retries > 0
    if floor:
        assert metrics.fallbacks > 0
    assert_same_rows(carried(result), wanted)


@pytest.mark.few
@pytest.mark.parametrize("after", [0, 1, 2, 5])
@pytest.mark.parametrize("kind", [JoinType.INNER, JoinType.LEFT, JoinType.FULL], ids=lambda kind: kind.value)
def test_a_row_with_more_output_than_is_held_back(kind: JoinType, after: int) -> None:
    """Frames go out before the device fails, and the CPU returns the other pairs."""
    a, b = pa.table({"k": [1, 2, 1], "v": [0, 1, 8999]}), pa.table({"k": [1] * 9000, "w": range(9000)})
    spec = keyed(kind, a, b, condition=left("v") != right("w"))
    calls = 0

    class Failing(HostBackend):
        def evaluate(self, *args: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > after:
                raise DeviceMemoryError("full")
            return super().evaluate(*args)

    backend = Failing()
    device = host_pipeline(backend, memory=1 << 10)
    tables = [DeviceTable(table.schema, device.take_in(table, table.schema), device) for table in (a, b)]
    options, metrics = Options(candidate_pairs=1000), JoinMetrics()
    with HashJoin(spec, a.schema, b.schema, backend=backend, options=options, metrics=metrics) as join:
        join.build(tables[1])
        collected = [carried(table) for table in (*join.probe(tables[0]), *join.finish())]
    assert metrics.fallbacks > 0
    expected = oracle_join(a, b, spec)
    assert_same_rows(pa.concat_tables(collected).cast(expected.schema), expected)


def test_a_build_side_that_does_not_fit() -> None:
    class Full(HostBackend):
        def build(self, *args: Any, **kwargs: Any) -> Any:
            raise DeviceMemoryError("full")

    a = pa.table({"k": [1, 2]})
    with pytest.raises(DeviceMemoryError, match="full"):
        join(on_twin(Full(), a, a), on="k")


# -- as-of joins -----------------------------------------------------------------------------------------------

ORDERS: dict[str, tuple[pa.DataType, Any]] = {
    "int32": (pa.int32(), 3),
    "float64": (pa.float64(), 2.5),
    "float32": (pa.float32(), 2.5),
    "uint64": (pa.uint64(), 3),
    "timestamp": (pa.timestamp("us"), dt.timedelta(microseconds=4)),
    "decimal": (pa.decimal128(9, 2), Decimal("0.05")),
}


def quotes(seed: int, dtype: pa.DataType, rows: int) -> pa.Table:
    random = np.random.default_rng(seed)
    numbers = random.integers(0 if pa.types.is_unsigned_integer(dtype) else -20, 40, rows)
    if pa.types.is_floating(dtype):
        special = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1.5])
        values = np.where(random.random(rows) < 0.3, random.choice(special, rows), numbers.astype(float))
        order = pa.array(values.astype(dtype.to_pandas_dtype()), dtype)
    elif pa.types.is_decimal(dtype):
        order = pa.array([Decimal(int(n)).scaleb(-2) for n in numbers], dtype)
    else:
        order = pa.array(numbers).cast(dtype)
    nulls = pa.array(random.random(rows) < 0.1)
    by = pa.array(random.choice(["a", "b", "c"], rows)).to_pylist()
    by = [None if random.random() < 0.1 else value for value in by]
    order = pa.array([None if n else v for n, v in zip(nulls.to_pylist(), order.to_pylist(), strict=True)], dtype)
    return pa.table({"t": order, "s": by, "f": [float(len(b or "")) for b in by], "row": range(rows)})


@pytest.mark.few(2)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("direction", ["backward", "forward", "nearest"])
@pytest.mark.parametrize("tolerance", [False, True], ids=["any", "near"])
@pytest.mark.parametrize("exact", [True, False], ids=["exact", "strict"])
@pytest.mark.parametrize("by", [None, "s", ("s", "f")], ids=["all", "text", "text_and_float"])
@pytest.mark.parametrize("search", ["arrays", "kernels"])
def test_as_of_joins(
    order: str, direction: Any, tolerance: bool, exact: bool, by: Any, search: str, request: pytest.FixtureRequest,
    seed: int,
) -> None:  # fmt: skip
    dtype, most = ORDERS[order]
    a, b = quotes(seed, dtype, 70), quotes(seed + 1, dtype, 50)
    given = {"on": "t", "by": by, "direction": direction, "allow_exact": exact}
    given["tolerance"] = most if tolerance else None
    backend = CountingBackend()
    if search == "kernels":
        backend = CountingBackend(ops=emulated_ops(request.getfixturevalue("make_device")()))
    metrics = JoinMetrics()
    result = as_of(on_twin(backend, a, b), **given, metrics=metrics)
    assert backend.rows_copied == {}
    assert list(metrics.algorithms) == ["as_of" if search == "kernels" else "cudf as_of"]
    assert_same_rows(carried(result), asof_join_tables(a, b, **given, backend="cpu"))


def test_as_of_joins_of_empty_sides() -> None:
    a = quotes(1, pa.int32(), 5)
    for first, second in ((a, a.slice(0, 0)), (a.slice(0, 0), a)):
        result = as_of(on_twin(HostBackend(), first, second), on="t", by="s", direction="nearest")
        wanted = asof_join_tables(first, second, on="t", by="s", direction="nearest", backend="cpu")
        assert_same_rows(carried(result), wanted, allow_empty=True)


def test_the_table_itself() -> None:
    table = pa.table({"a": [1, 2, None], "s": ["x", "y", None]})
    (there,) = on_twin(HostBackend(), table)
    assert (there.num_rows, there.num_columns, there.column_names) == (3, 2, ["a", "s"])
    assert there.nbytes > 0
    assert there.to_arrow() == table
    assert there.select(["s"]).to_arrow() == table.select(["s"])
    assert there.rename_columns(["p", "q"]).column_names == ["p", "q"]
    assert "frame" not in repr(there)
    with pytest.raises(JoinSpecError, match="no column 'z'"):
        there.select(["z"])
    with pytest.raises(JoinSpecError, match="1 names do not fit"):
        there.rename_columns(["p"])


# -- on a GPU --------------------------------------------------------------------------------------------------


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[DeviceTable]]:
    """Puts tables on a GPU; then every further copy of rows fails the test."""
    from gpujoin.backends.registry import BackendRequest, create
    from gpujoin.model.backend import BackendName

    backend = create(BackendName.GPU, BackendRequest(memory_limit=4 << 30))
    module: Any = sys.modules["gpujoin.backends.cudf.backend"]
    download, upload = module.download, module.upload

    def refused(*args: Any) -> Any:
        assert not copies_refused or args[0].num_rows == 0, "rows are copied"
        return upload(*args)

    def put(*tables: pa.Table) -> list[DeviceTable]:
        made = [DeviceTable.from_arrow(table, backend=backend) for table in tables]
        copies_refused.append(True)
        return made

    copies_refused: list[bool] = []
    monkeypatch.setattr(module, "upload", refused)
    monkeypatch.setattr(module, "download", lambda *args: pytest.fail("down") if copies_refused else download(*args))
    put.fetch = copies_refused.clear  # type: ignore[attr-defined]
    return put


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)
@pytest.mark.parametrize("keys", KEYS)
def test_joins_on_a_gpu(kind: JoinType, keys: str, gpu: Any, seed: int) -> None:
    types = KEYS[keys]
    a, b = sides(seed, types)
    result = join(gpu(a, b), on=[f"k{i}" for i in range(len(types))], how=kind)
    gpu.fetch()
    assert_same_rows(carried(result), joined(a, b, kind, len(types)), allow_empty=True)


@pytest.mark.gpu
def test_kinds_of_tables_on_a_gpu(gpu: Any, seed: int) -> None:
    import cupy
    import pylibcudf as plc

    a, b = sides(seed, (pa.int64(),))
    first, second = gpu(a, b)
    backend = first.device.backend
    result = join_tables(first.to_pylibcudf(), second.to_pylibcudf(), on="0", backend=backend)
    assert isinstance(result, plc.Table)
    chained = join_tables(result, first.to_pylibcudf(), left_on="1", right_on="1", how="left_semi", backend=backend)
    by_arrow = DeviceTable.of(second, backend=backend)
    again = DeviceTable.of(Exported(second), backend=backend)
    keys = cupy.arange(100, dtype="int64")
    maps = gather_maps(keys, keys[50:], how="left", backend=backend)
    assert isinstance(maps.left, Indices)
    assert isinstance(maps.left.values, cupy.ndarray)
    gpu.fetch()
    assert by_arrow is second
    assert_same_rows(again.to_arrow().rename_columns(b.column_names), b, check_types=False)
    names = join_tables(a, b, on="k0", backend="cpu").column_names
    inner = DeviceTable.of(result, names, backend=backend).to_arrow()
    wanted = join_tables(a, b, on="k0", backend="cpu")
    assert_same_rows(inner, wanted, allow_empty=True, check_types=False)
    assert DeviceTable.of(chained, backend=backend).num_rows <= inner.num_rows
    assert pairs(maps) == sorted([(i, i - 50 if i >= 50 else -1) for i in range(100)])


class Exported:
    """A table that is known by the Arrow C device interface alone."""

    def __init__(self, table: DeviceTable) -> None:
        self.table = table

    def __arrow_c_device_array__(self, requested_schema: Any = None, **kwargs: Any) -> Any:
        return self.table.__arrow_c_device_array__()


@pytest.mark.gpu
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("direction", ["backward", "forward", "nearest"])
def test_as_of_joins_on_a_gpu(order: str, direction: Any, gpu: Any, seed: int) -> None:
    dtype, most = ORDERS[order]
    a, b = quotes(seed, dtype, 70), quotes(seed + 1, dtype, 50)
    given = {"on": "t", "by": ("s", "f"), "direction": direction, "tolerance": most}
    result = as_of(gpu(a, b), **given)
    gpu.fetch()
    assert_same_rows(carried(result), asof_join_tables(a, b, **given, backend="cpu"))


# -- the page --------------------------------------------------------------------------------------------------


def test_the_examples_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    device = host_pipeline()
    monkeypatch.setattr(devicetables, "device_of", lambda backend: device)
    failed, tried = doctest.testfile(str(PAGE), module_relative=False)
    assert tried > 8
    assert failed == 0
