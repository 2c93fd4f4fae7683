"""Layouts that few Arrow functions know: conditions read the values in them, whatever stands beside."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from gpujoin import gather_maps, join_tables
from gpujoin.config import Options
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.model import hostgather
from gpujoin.model.backend import AnyBackend
from gpujoin.model.expressions import Expression, Function, call, left, lit, right
from gpujoin.model.hostgather import buffer_bytes, compact, own_bytes
from gpujoin.model.jointype import JoinName
from gpujoin.model.layouts import in_known_layout, in_type, nulls
from gpujoin.testing import assert_same_rows, cells
from tests.faults import FaultyBackend

TEXTS = ["a", "a", None, "longer than twelve bytes", "", "é"]
NUMBERS = [1, 1, 2, None, 3, 3]
PLAIN: dict[str, pa.Array] = {
    "text": pa.array(TEXTS),
    "number": pa.array(NUMBERS, pa.int64()),
    "struct": pa.array(
        [None if n is None else {"a": n, "b": t} for n, t in zip(NUMBERS, TEXTS, strict=True)],
        pa.struct([("a", pa.int64()), ("b", pa.string())]),
    ),
    "list": pa.array([["x", None], [], None, ["longer than twelve bytes"], ["y"], ["z"]], pa.list_(pa.string())),
    "map": pa.array([[("x", "v")], [], None, [("y", None)], [], [("z", "w")]], pa.map_(pa.string(), pa.string())),
}
VIEW, BYTES, INT = pa.string_view(), pa.binary_view(), pa.int64()


def runs(array: pa.Array) -> pa.Array:
    return pc.run_end_encode(array)


def within(array: pa.Array, name: str) -> pa.Array:
    """The struct with its field in another layout."""
    fields = [PLAIN["struct"].field(0), PLAIN["struct"].field(1)]
    fields[0 if name == "a" else 1] = array
    return pa.StructArray.from_arrays(fields, ["a", "b"], mask=pc.is_null(PLAIN["struct"]))


def listed(values: pa.Array) -> pa.Array:
    offsets = pa.array([0, 2, None, 2, 3, 4, 5], pa.int32())
    return pa.ListArray.from_arrays(offsets, values)


ITEMS = pa.array(["x", None, "longer than twelve bytes", "y", "z"])
LAID_OUT: dict[str, tuple[str, pa.Array]] = {
    "runs of numbers": ("number", runs(PLAIN["number"])),
    "runs of texts": ("text", runs(PLAIN["text"])),
    "view": ("text", PLAIN["text"].cast(VIEW)),
    "dictionary of views": (
        "text",
        pa.DictionaryArray.from_arrays(
            PLAIN["text"].dictionary_encode().indices, PLAIN["text"].dictionary_encode().dictionary.cast(VIEW)
        ),
    ),
    "struct with a view": ("struct", PLAIN["struct"].cast(pa.struct([("a", INT), ("b", VIEW)]))),
    "struct with runs": ("struct", within(runs(PLAIN["struct"].field(0)), "a")),
    "list of views": ("list", PLAIN["list"].cast(pa.list_(VIEW))),
    "large list of views": ("list", PLAIN["list"].cast(pa.large_list(VIEW))),
    "list view of views": ("list", pa.array(PLAIN["list"].to_pylist(), pa.list_view(VIEW))),
    "list of runs": ("list", listed(runs(ITEMS))),
    "map with views": ("map", pa.array(PLAIN["map"].to_pylist(), pa.map_(VIEW, VIEW))),
}
READING: dict[str, Expression] = {
    "text": left("x") < lit("b"),
    "number": left("x") < right("y"),
    "struct": call(Function.GET_FIELD, left("x"), lit("a")) < right("y"),
    "list": left("x").is_not_null(),
    "map": left("x").is_not_null(),
}


def values_of(array: pa.Array) -> list[object]:
    """As Python, runs within too, which PyArrow gives so only at the top; before 25 it misreads slices of unions."""
    return pc.take(in_known_layout(array), pa.array(range(len(array)), pa.int64())).to_pylist()


@pytest.mark.parametrize("name", LAID_OUT)
def test_values_stay_what_they_were(name: str) -> None:
    kind, array = LAID_OUT[name]
    for start, length in ((0, 6), (1, 4), (3, 0), (4, 2)):
        part = array.slice(start, length)
        known = in_known_layout(part)
        known.validate(full=True)
        assert known.to_pylist() == PLAIN[kind].slice(start, length).to_pylist()
        assert not any(word in str(known.type) for word in ("string_view", "run_end"))
        assert in_known_layout(known) is known


@pytest.mark.parametrize("kind", PLAIN)
def test_known_layouts_are_left_alone(kind: str) -> None:
    assert in_known_layout(PLAIN[kind]) is PLAIN[kind]


@pytest.mark.parametrize("name", LAID_OUT)
def test_conditions_read_the_columns_they_name(backend: AnyBackend, name: str) -> None:
    """The column in its layout stands before two plain ones: read for it, they give other rows."""
    kind, array = LAID_OUT[name]
    beside = {"k": np.zeros(6, np.int64), "z": [10, 20, 30, 40, 50, 60], "b": TEXTS}
    laid_out, plain = (pa.table({"x": column, **beside}) for column in (array, PLAIN[kind]))
    other = pa.table({"y": [2, 3], "k": [0, 0], "w": [15, 35]})
    orders = itertools.permutations((READING[kind], left("z") > right("w")))
    condition: Expression
    types: tuple[JoinName, ...] = ("inner", "left_anti", "full")
    for (first, second), how in itertools.product(orders, types):
        condition = first & second
        tried = (backend, FaultyBackend(backend, every=3, operations=("evaluate",)))
        for chosen in tried:
            metrics = JoinMetrics()
            result, expected = (
                join_tables(
                    table.select(["x", "z", "k", "b"]), other, on="k", how=how, condition=condition,
                    backend=chosen, options=Options(range_index=False, candidate_pairs=5), metrics=metrics,
                ).drop_columns(["x"])
                for table in (laid_out, plain)
            )  # fmt: skip
            assert 0 < expected.num_rows < 12
            assert_same_rows(result, expected)
            assert metrics.candidate_pairs > 0


@pytest.mark.parametrize("name", LAID_OUT)
def test_conditions_read_built_columns_in_any_layout(backend: AnyBackend, name: str) -> None:
    kind, array = LAID_OUT[name]
    built = pa.table({"x": array, "z": range(6), "k": np.zeros(6, np.int64)})
    probe = pa.table({"k": [0] * 9, "w": range(9)})
    condition = right("x").is_not_null() & (right("z") < left("w"))
    result = join_tables(probe, built, on="k", condition=condition, backend=backend, options=Options(range_index=False))
    pairs = sorted(zip(result["z"].to_pylist(), result["w"].to_pylist(), strict=True))
    there = [value is not None for value in PLAIN[kind].to_pylist()]
    assert pairs == [(z, w) for z in range(6) for w in range(9) if there[z] and z < w]


def test_a_condition_on_structs_of_polars(backend: AnyBackend) -> None:
    """What `gpujoin.join_tables` gets of a Polars frame: views within structs."""
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame({"k": [0] * 4, "s": [{"a": i, "b": "q"} for i in range(4)], "t": [["x"]] * 4})
    other = pa.table({"k": [0, 0], "y": [2, 3]})
    condition = (call(Function.GET_FIELD, left("s"), lit("a")) < right("y")) & left("t").is_not_null()
    result = join_tables(frame, other, on="k", condition=condition, backend=backend)
    pairs = [(s["a"], y) for s, y in zip(result["s"].to_pylist(), result["y"].to_pylist(), strict=True)]
    assert sorted(pairs) == [(0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]


PAYLOAD: dict[str, pa.Array] = {
    **{name: array for name, (_, array) in LAID_OUT.items()},
    "dense union": pa.UnionArray.from_dense(
        pa.array([0, 1, 0, 1, 0, 1], pa.int8()), pa.array([0, 0, 1, 1, 2, 2], pa.int32()),
        [pa.array([1, None, 3]), pa.array(["x", "y", None])],
    ),
    "sparse union": pa.UnionArray.from_sparse(
        pa.array([0, 1, 0, 1, 0, 1], pa.int8()), [pa.array(range(6)), pa.array(TEXTS)]
    ),
    "struct with an extension": pa.StructArray.from_arrays(
        [pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes([i]) * 16 for i in range(6)], pa.binary(16)))],
        ["u"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PAYLOAD)
def test_payload_rides_in_any_layout(backend: AnyBackend, name: str) -> None:
    """Sliced, with rows that have no partner on either side, and against a side without any batch."""
    array = PAYLOAD[name].slice(1, 4)
    table = pa.table({"x": array, "k": pa.array([1, 2, 2, 3], pa.int32())})
    other = pa.table({"k": pa.array([2, 4], pa.int32()), "y": array.slice(0, 2)})
    values = values_of(array)
    assert len(values) == 4
    for how in ("inner", "left", "right", "full"):
        result = join_tables(table, other, on="k", how=how, backend=backend)
        assert [result.schema.field(n).type for n in ("x", "y")] == [array.type] * 2
        rows: list[tuple[object, ...]] = [(1, values[0], None)] if how in ("left", "full") else []
        rows += [(2, values[1], values[0]), (2, values[2], values[0])]
        rows += [(3, values[3], None)] if how in ("left", "full") else []
        rows += [(4, None, values[1])] if how in ("right", "full") else []
        columns = [result["k"].to_pylist()]
        columns += [[v for chunk in result[n].chunks for v in values_of(chunk)] for n in ("x", "y")]
        assert sorted(map(repr, zip(*columns, strict=True))) == sorted(map(repr, rows))
        empty = join_tables(table, other.slice(0, 0), on="k", how=how, backend=backend)
        assert empty.num_rows == (4 if how in ("left", "full") else 0)


@pytest.mark.parametrize("how", ["inner", "full"])
def test_dictionaries_that_outgrow_their_indices_together(backend: AnyBackend, how: Any) -> None:
    """Three chunks of 100 values each: more than a signed byte counts, as payload and as key, on either side."""
    dtype = pa.dictionary(pa.int8(), pa.string())
    column = pa.chunked_array(
        [pa.array([f"{c}-{i}" for i in range(100)]).dictionary_encode().cast(dtype) for c in range(3)]
    )
    left_table = pa.table({"k": range(300), "d": column})
    right_table = pa.table({"k": range(299, -1, -1), "e": column})
    result = join_tables(left_table, right_table, on="k", how=how, backend=backend).sort_by("k")
    texts = column.cast(pa.string()).to_pylist()
    assert result["d"].cast(pa.string()).to_pylist() == texts
    assert result["e"].cast(pa.string()).to_pylist() == texts[::-1]
    by_text = join_tables(
        left_table, right_table, left_on="d", right_on="e", how=how, suffixes=("", "_r"), backend=backend
    )
    assert by_text.schema.field("d").type == pa.dictionary(pa.int32(), pa.string())
    assert sorted(by_text["k"].to_pylist()) == list(range(300))
    maps = gather_maps(column, column, how, backend=backend)
    assert maps.left is not None
    assert maps.left.length == 300


@pytest.mark.parametrize("kind", PLAIN)
def test_values_past_32_bit_offsets_are_put_together(
    backend: AnyBackend, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """At a smaller scale: what is then wide inside comes out in its own type."""
    monkeypatch.setattr(hostgather, "SMALL_OFFSETS", 64)
    array = PLAIN[kind]
    parts = [pa.record_batch({"k": pa.array([i] * 6, pa.int32()), "x": array}) for i in range(3)]
    whole = hostgather.one_batch(parts, parts[0].schema)
    assert ("large" in str(whole.schema)) == (kind in ("text", "struct", "list"))
    table = pa.Table.from_batches(parts)
    result = join_tables(table, pa.table({"k": pa.array([0, 2, 9], pa.int32())}), on="k", how="left", backend=backend)
    assert result.schema.field("x").type == array.type
    assert result["x"].to_pylist() == array.to_pylist() * 3


@pytest.mark.skipif(not hostgather.NBYTES_OF_VIEWS, reason="this PyArrow does not measure views")
@pytest.mark.parametrize("texts", [["a", None], ["a" * 20, "b", None], ["a" * 20, "b"], []], ids=len)
def test_bytes_of_buffers_are_those_that_pyarrow_counts(
    monkeypatch: pytest.MonkeyPatch, texts: list[str | None]
) -> None:
    views = pa.array(texts * 5, pa.large_string()).cast(pa.string_view())
    table = pa.table({"v": views, "n": range(len(views))})
    batch = pa.RecordBatch.from_arrays([views], ["v"]).slice(len(texts))
    monkeypatch.setattr(hostgather, "NBYTES_OF_VIEWS", False)
    for data in (views, views.slice(1, 9), pa.chunked_array([views, views]), table, table.slice(3, 2), batch):
        assert buffer_bytes(data) == data.nbytes


@pytest.mark.parametrize("dtype", [pa.string_view(), pa.binary_view()], ids=str)
def test_views_of_short_values_have_no_missing_buffers(dtype: pa.DataType) -> None:
    texts = pa.array(["a", None, "bb"], pa.large_string() if dtype == pa.string_view() else pa.large_binary())
    views = in_type(texts, dtype)
    assert all(buffer is not None for buffer in views.buffers()[2:])
    assert in_known_layout(views).equals(texts)
    assert in_known_layout(nulls(2, dtype)).null_count == 2


@pytest.mark.parametrize("null_at", [None, 5])
def test_slices_of_views_count_their_own_rows(null_at: int | None) -> None:
    texts = [None if i == null_at else f"{i:050d}" if i % 2 else "short" for i in range(1000)]
    views = pa.array(texts, pa.string_view())
    part = pa.RecordBatch.from_arrays([views], ["v"]).slice(1, 10)
    assert buffer_bytes(part) > 20_000
    assert own_bytes(part) == 10 * 16 + (5 if null_at is None else 4) * 50
    assert own_bytes(pa.Table.from_batches([part, part])) == 2 * own_bytes(part)
    packed = compact(part)
    assert buffer_bytes(packed) < 1000
    assert packed.equals(part)
    assert compact(packed) is packed
    assert own_bytes(part.slice(0, 0)) == 0


def test_views_spill_and_leave_as_texts_do(backend: AnyBackend) -> None:
    """Slices of a long column share its buffers: each was written with all of them, and counted with them."""
    texts = pa.array([f"y{i:099d}" for i in range(20_000)])
    few = pa.table({"k": range(10)})
    spilled, batches = [], []
    for column in (texts, texts.cast(pa.string_view())):
        many = pa.table({"k": np.arange(20_000) % 1000, "s": column})
        metrics = JoinMetrics()
        options = Options(memory_budget=300_000, batch_bytes=1 << 16)
        result = join_tables(
            few, many, on="k", how="null_aware_anti", backend=backend, options=options, metrics=metrics
        )
        assert result.num_rows == 0
        spilled.append(metrics.spill_bytes)
        metrics = JoinMetrics()
        options = Options(batch_bytes=1 << 16, cpu_threads=1)
        result = join_tables(many, few, on="k", backend=backend, options=options, metrics=metrics)
        assert result.num_rows == 200
        batches.append(metrics.output_batches)
    assert 0 < spilled[1] < 1.5 * spilled[0]
    assert batches[1] <= batches[0] + 1


ROWS = [{"a": 1, "b": ["x", None]}, None, {"a": None, "b": None}, {"a": 2, "b": []}, {"a": 3, "b": ["longer than 12"]}]
OWN = pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))])
OTHERS = {
    "swapped names": pa.struct([("b", pa.int32()), ("a", pa.list_(pa.string()))]),
    "never null": pa.struct([pa.field("A", pa.int32(), False), pa.field("B", pa.list_(pa.string()), False)]),
    "large": pa.struct([("A", pa.int64()), ("B", pa.large_list(pa.large_string()))]),
    "views": pa.struct([("A", pa.int32()), ("B", pa.list_(pa.string_view()))]),
}
HOLDERS: dict[str, Callable[[pa.DataType], pa.DataType]] = {
    "struct": lambda item: item,
    "struct of structs": lambda item: pa.struct([(f"in {item.field(0).name}", item)]),
    "list": pa.list_,
    "large list": pa.large_list,
    "map": lambda item: pa.map_(pa.string(), item),
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize(
    ("source", "target"), [(n, n) for n in HOLDERS] + [("list", "large list"), ("large list", "list")]
)
def test_fields_are_told_apart_by_position(source: str, target: str, other: str) -> None:
    structs = pa.array([*ROWS, None], OWN)
    dtype = HOLDERS[source](OWN)
    offsets = pa.array([0, 2, None, 2, 5, 6], pa.int64() if source == "large list" else pa.int32())
    match source:
        case "struct":
            array = structs
        case "struct of structs":
            array = pa.StructArray.from_arrays([structs], fields=list(dtype), mask=pa.array([False] * 5 + [True]))
        case "map":
            keys = pa.array([*"pqrstu"])
            array = pa.MapArray.from_arrays(offsets, keys, structs, dtype)
        case _:
            kind = pa.LargeListArray if source == "large list" else pa.ListArray
            array = kind.from_arrays(offsets, structs, dtype)
    for part in (array, array.slice(1), array.slice(2, 2)):
        wanted = HOLDERS[target](OTHERS[other])
        changed = in_type(part, wanted)
        changed.validate(full=True)
        assert changed.type == wanted
        assert cells(changed) == cells(part)
        assert in_type(changed, dtype).equals(part) or source != target


def test_nulls_of_any_type() -> None:
    dtype = pa.struct([("a", pa.list_(pa.map_(pa.string(), OWN))), ("v", pa.string_view())])
    assert in_type(pa.nulls(3), dtype).to_pylist() == [None] * 3
    assert in_type(pa.nulls(0), dtype).type == dtype
