"""The backend itself on a GPU, and its twin on NumPy, against NumPy, PyArrow, and the interpreter."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat
import pytest

from gpujoin.backends.cudf import packing
from gpujoin.backends.cudf.choices import Verdict
from gpujoin.backends.registry import BackendRequest, create
from gpujoin.errors import BackendUnavailableError, DeviceMemoryError, DeviceValueError
from gpujoin.model.backend import AnyBackend, BackendName
from gpujoin.model.expressions import EvalMode, Function, call, coalesce, left, lit, when
from gpujoin.model.maps import AllNull, Indices, OutOfBounds, Repeat, RowMap, Span, Tile
from gpujoin.plan.resolve import resolve
from gpujoin.testing import cells
from tests.backends.cudf.host import HostBackend, HostKeys, take
from tests.backends.cudf.test_evaluate import OFFERED, SCHEMA, both_sides
from tests.backends.cudf.test_storage import BEYOND_SPARK
from tests.expressions.judge import evaluate_rows
from tests.generate import SPARK_TYPES, Generator, Mix

GATHERED = {**SPARK_TYPES, **{name: array.type for name, array in BEYOND_SPARK.items()}}
del GATHERED["empty_struct"]


@pytest.fixture(scope="module", params=["twin", pytest.param("gpu", marks=pytest.mark.gpu)])
def gpu(request: pytest.FixtureRequest) -> AnyBackend:
    """The GPU, and the host twin, which proves the tests where there is none."""
    if request.param == "twin":
        return HostBackend()
    return create(BackendName.GPU, BackendRequest(memory_limit=4 << 30))


@pytest.fixture(scope="module")
def device() -> AnyBackend:
    return create(BackendName.GPU, BackendRequest(memory_limit=4 << 30))


def column(name: str, rows: int, seed: int) -> pa.Array:
    if name in SPARK_TYPES:
        return Generator(seed).array(SPARK_TYPES[name], rows)
    array = BEYOND_SPARK[name]
    return pa.concat_arrays([array] * (rows // len(array) + 1)).slice(0, rows)


def same(actual: pa.Array, wanted: pa.Array) -> None:
    actual.validate(full=True)
    assert actual.type == wanted.type
    assert cells(actual) == cells(wanted) or str(actual) == str(wanted)


@pytest.mark.parametrize("rows", [0, 1, 31, 32, 33, 1000])
@pytest.mark.parametrize("name", sorted(GATHERED))
def test_in_and_out(gpu: AnyBackend, name: str, rows: int, seed: int) -> None:
    array = column(name, rows + 3, seed)
    for part in (array.slice(0, rows), array.slice(3, rows), pa.nulls(rows, array.type)):
        schema = pa.schema([pa.field("c", part.type, metadata={"k": "v"})], metadata={"t": "m"})
        frame = gpu.from_arrow(pa.table([part], schema=schema))
        batch = gpu.to_arrow(frame, schema)
        assert batch.schema.equals(schema, check_metadata=True)
        same(batch.column(0), part)
        assert gpu.frame_rows(frame) == rows


def test_chunks_and_no_columns(gpu: AnyBackend) -> None:
    chunks = pa.chunked_array([pa.array(["a", None]), pa.array([], pa.string()), pa.array(["ä" * 5])])
    codes = pa.chunked_array(
        [pa.array(["x", "y"]).dictionary_encode(), pa.array(["y", "z", None][:1]).dictionary_encode()]
    )
    table = pa.table({"s": chunks, "d": codes})
    batch = gpu.to_arrow(gpu.from_arrow(table), table.schema)
    assert batch.column(0).to_pylist() == ["a", None, "ä" * 5]
    assert batch.column(1).to_pylist() == ["x", "y", "y"]
    nothing = gpu.from_arrow(table.select([]))
    assert gpu.frame_rows(nothing) == 3
    assert gpu.to_arrow(gpu.gather(nothing, Span(1, 2)), pa.schema([])).num_rows == 2


def maps(rows: int, backend: AnyBackend, rng: np.random.Generator) -> Iterator[tuple[RowMap, list[int]]]:
    free = rng.integers(-2, rows, 77)
    free[free < 0] = -1
    yield backend.indices_from_host(free, OutOfBounds.NULLIFY), free.tolist()
    inside = rng.integers(0, rows, 65)
    yield backend.indices_from_host(inside, OutOfBounds.NEVER), inside.tolist()
    yield backend.indices_from_host(inside[:0], OutOfBounds.NEVER), []
    yield Span(0, rows), list(range(rows))
    yield Span(5, rows - 9), list(range(5, rows - 4))
    yield Span(5, 0), []
    yield AllNull(4), [-1] * 4
    yield Repeat(3, 50, 4), [(3 + i) // 4 for i in range(50)]
    yield Tile(3, 90, rows), [(3 + i) % rows for i in range(90)]


def test_gather_from_packed_rows(
    gpu: AnyBackend, monkeypatch: pytest.MonkeyPatch, seed: int, rng: np.random.Generator
) -> None:
    """All types that are fixed in width, and one that is not among them."""
    monkeypatch.setattr(packing, "packs_rows", lambda _: Verdict(True, "for the test"))
    rows = 40
    names = [
        "null",
        "bool",
        "int8",
        "int16",
        "int64",
        "float",
        "string",
        "decimal_7_2",
        "decimal_38_10",
        "date",
        "dictionary",
    ]
    arrays = [column(name, rows + 2, seed).slice(1, rows) for name in names]
    table = pa.table(arrays, names=[str(i) for i in range(len(arrays))])
    frame = gpu.from_arrow(table)
    for rows_map, wanted in maps(rows, gpu, rng):
        taken = pa.array([None if i < 0 else i for i in wanted], pa.int64())
        gathered = gpu.to_arrow(gpu.gather(frame, rows_map, kernels=True), table.schema)
        for gathered_column, array in zip(gathered.columns, arrays, strict=True):
            same(gathered_column, take(array, taken))
    if not isinstance(gpu, HostBackend):
        assert frame.packing.packed is not None


@pytest.mark.parametrize("name", sorted(GATHERED))
def test_gather(gpu: AnyBackend, name: str, seed: int, rng: np.random.Generator) -> None:
    rows = 40
    array = column(name, rows + 2, seed).slice(1, rows)
    schema = pa.schema([("c", array.type)])
    frame = gpu.from_arrow(pa.table([array], schema=schema))
    for rows_map, wanted in maps(rows, gpu, rng):
        taken = pa.array([None if i < 0 else i for i in wanted], pa.int64())
        expected = take(array, taken)
        once = gpu.gather(frame, rows_map)
        same(gpu.to_arrow(once, schema).column(0), expected)
        if len(wanted) > 3:
            same(gpu.to_arrow(gpu.gather(once, Span(1, 3)), schema).column(0), expected.slice(1, 3))
            twice = gpu.gather(gpu.gather(once, Span(2, len(wanted) - 2)), Span(1, 1))
            same(gpu.to_arrow(twice, schema).column(0), expected.slice(3, 1))
        (size,) = gpu.gathered_bytes(frame, rows_map)
        if pat.is_string(array.type) or pat.is_binary(array.type):
            assert size == sum(len(c.encode() if isinstance(c, str) else c) for c in cells(expected) if c is not None)


@pytest.mark.few(2)
@pytest.mark.parametrize("shape", ["unique", "duplicates", "sparse", "sparse duplicates", "hot", "null"])
@pytest.mark.parametrize("types", [("int64",), ("int32",), ("int32", "int32"), ("large_binary",),
                                   ("int64", "large_binary", "int32"), ("int64", "int64")], ids="+".join)  # fmt: skip
@pytest.mark.parametrize("rows", [0, 1, 255, 256, 257, 5000])
def test_pairs(gpu: AnyBackend, types: tuple[str, ...], shape: str, rows: int, rng: np.random.Generator) -> None:
    def side(count: int) -> pa.Table:
        numbers = {
            "unique": rng.permutation(max(count, 1) * 2)[:count],
            "duplicates": rng.integers(0, max(count // 3, 1), count),
            "sparse": rng.permutation(max(count, 1) * 2)[:count] * 90_001 - 2**30,
            "sparse duplicates": rng.integers(0, max(count // 3, 1), count) * 300_001 - 2**30,
            "hot": np.where(rng.random(count) < 0.05, 7, rng.permutation(max(count, 1))[:count]),
            "null": np.zeros(count, np.int64),
        }[shape]
        columns = []
        for name in types:
            nulls = rng.random(count) < (1.0 if shape == "null" else 0.02)
            values: list[Any] = [None if null else int(v) for v, null in zip(numbers, nulls, strict=True)]
            if name == "large_binary":
                values = [None if v is None else b"\x00\xff" + str(v).encode() for v in values]
            columns.append(pa.array(values, GATHERED[name]))
        return pa.table(columns, names=[str(i) for i in range(len(types))])

    build_keys, probe_keys = side(rows), side(rows + 13)
    build = gpu.build(gpu.from_arrow(build_keys))
    probe = build.probe(gpu.from_arrow(probe_keys))
    where: dict[Any, list[int]] = {}
    for row, key in enumerate(HostKeys(build_keys).rows):
        if None not in key:
            where.setdefault(key, []).append(row)
    expected = [(i, j) for i, key in enumerate(HostKeys(probe_keys).rows) for j in where.get(key, [])]
    assert probe.pairs == len(expected)
    assert build.unique == all(len(build_rows) == 1 for build_rows in where.values())
    for most in (7 if len(expected) < 500 else 997, 1 << 30):
        pairs: list[tuple[int, int]] = []
        for part in probe.slices(most):
            pairs += zip(
                gpu.indices_to_host(part.probe).tolist(),
                gpu.indices_to_host(part.build).tolist(),
                strict=True,
            )
        assert pairs == expected
    matched = np.zeros(probe.rows, bool)
    matched[[i for i, _ in expected]] = True
    assert gpu.mask_to_host(probe.matched()).tolist() == matched.tolist()
    marks = gpu.marks(build.rows)
    probe.mark_build(marks)
    met = np.zeros(build.rows, bool)
    met[[j for _, j in expected]] = True
    assert gpu.mask_to_host(marks).tolist() == met.tolist()
    assert gpu.indices_to_host(gpu.selection(marks, False)).tolist() == np.flatnonzero(~met).tolist()


@pytest.mark.gpu
@pytest.mark.parametrize("mode", [EvalMode.LEGACY, EvalMode.ANSI], ids=lambda m: m.value)
@pytest.mark.parametrize("name", OFFERED)
def test_conditions(device: AnyBackend, name: str, mode: EvalMode, seed: int) -> None:
    left, right = both_sides(seed)
    condition = resolve(OFFERED[name], SCHEMA, SCHEMA, mode=mode)
    assert device.can_evaluate(condition)
    expected = evaluate_rows(condition, *(side.combine_chunks().to_batches()[0] for side in (left, right)))
    fine = pa.array([row for row in range(left.num_rows) if row not in expected.raised], pa.int64())
    left, right = left.take(fine), right.take(fine)
    frames = [device.from_arrow(side) for side in (left, right)]
    result = device.mask_to_host(device.evaluate(condition, frames[0], frames[1], left.num_rows))
    assert result.tolist() == [value is True for value in expected.values.take(fine).to_pylist()]


def test_subnormal_floats_are_not_flushed(gpu: AnyBackend) -> None:
    schema = pa.schema([("f", pa.float32()), ("d", pa.float64())])
    table = pa.table([pa.array([1e-45, -1e-45, 0.0], pa.float32()), pa.array([0.0] * 3)], schema=schema)
    from gpujoin.model.expressions import right

    condition = resolve(left("f") > right("d"), schema, schema)
    frame = gpu.from_arrow(table)
    assert gpu.mask_to_host(gpu.evaluate(condition, frame, frame, 3)).tolist() == [True, False, False]


@pytest.fixture
def whole_memory_afterwards() -> Iterator[None]:
    """The limit is the process's: put back what the other tests have."""
    yield
    create(BackendName.GPU, BackendRequest(memory_limit=4 << 30))


@pytest.mark.gpu
@pytest.mark.usefixtures("whole_memory_afterwards")
def test_too_much_memory_is_said_and_survived() -> None:
    backend = create(BackendName.GPU, BackendRequest(memory_limit=64 << 20))
    table = pa.table({"a": np.arange(1 << 20)})
    frame = backend.from_arrow(table)
    with pytest.raises(DeviceMemoryError, match="out of memory"):
        backend.gather(frame, Repeat(0, 1 << 26, 1 << 6))
    with pytest.raises(DeviceMemoryError):
        backend.gather(frame, AllNull(1 << 31))
    assert backend.to_arrow(backend.gather(frame, Span(5, 2)), table.schema).column(0).to_pylist() == [5, 6]


@pytest.mark.gpu
def test_no_such_device() -> None:
    with pytest.raises(BackendUnavailableError, match="GPU 99 does not exist"):
        create(BackendName.GPU, BackendRequest(device=99))


def test_many_threads(gpu: AnyBackend, seed: int) -> None:
    keys = pa.table({"k": np.arange(50_000) % 9_999})
    build = gpu.build(gpu.from_arrow(keys))
    marks = gpu.marks(build.rows)
    wrong: list[str] = []

    def work(number: int) -> None:
        rng = np.random.default_rng([seed, number])
        for _ in range(5):
            probe_keys = rng.integers(0, 20_000, 30_000)
            probe = build.probe(gpu.from_arrow(pa.table({"k": probe_keys})))
            probe.mark_build(marks)
            total = sum(gpu.indices_to_host(part.build).sum() for part in probe.slices(10_001))
            present = probe_keys[probe_keys < 9_999]
            rows = np.concatenate([np.arange(k, 50_000, 9_999) for k in present])
            if total != rows.sum() or probe.pairs != len(rows):
                wrong.append(f"thread {number}: {probe.pairs} pairs, {len(rows)} wanted")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert gpu.mask_to_host(marks).any()


@pytest.mark.gpu
def test_maps_stay_on_the_device() -> None:
    import cupy

    gpu = create(BackendName.GPU, BackendRequest(memory_limit=1 << 30))

    probe = gpu.build(gpu.from_arrow(pa.table({"k": [1, 2]}))).probe(gpu.from_arrow(pa.table({"k": [2, 3]})))
    lookup = probe.lookup()
    assert isinstance(lookup, Indices)
    assert isinstance(lookup.values, cupy.ndarray)
    assert lookup.values.tolist() == [1, -1]


def test_null_strings_under_data(gpu: AnyBackend) -> None:
    """Bytes under a null count for nothing."""
    text = pa.Array.from_buffers(
        pa.string(),
        3,
        [pa.py_buffer(b"\x05"), pa.py_buffer(np.array([0, 2, 9, 10], np.int32)), pa.py_buffer(b"abcdefghij")],
    )
    frame = gpu.from_arrow(pa.table({"s": text}))
    assert gpu.gathered_bytes(frame, Span(0, 3)) == (3,)
    assert gpu.gathered_bytes(frame, Repeat(0, 6, 2)) == (6,)
    assert gpu.to_arrow(gpu.gather(frame, Repeat(0, 6, 2)), pa.schema([("s", pa.string())])).column(0).to_pylist() == [
        "ab", "ab", None, None, "j", "j",
    ]  # fmt: skip


def test_functions_of_characters_refuse_other_bytes(gpu: AnyBackend) -> None:
    """libcudf takes ``E2 61 61`` for one character, Spark for three."""
    data = b"ab" + b"\xe2aa" + "ä".encode()
    text = pa.Array.from_buffers(
        pa.string(), 3, [None, pa.py_buffer(np.array([0, 2, 5, 7], np.int32)), pa.py_buffer(data)]
    )
    schema = pa.schema([("s", pa.string())])
    frame = gpu.from_arrow(pa.table([text], schema=schema))
    for condition in (call(Function.LENGTH, left("s")) > 1, call(Function.SUBSTRING, left("s"), 1, 1) == "a"):
        resolved = resolve(condition, schema, schema)
        for rows, expected in ((Span(0, 1), [True]), (Span(2, 1), [False]), (Span(0, 3), None), (Span(1, 1), None)):
            part = gpu.gather(frame, rows)
            if expected is None:
                with pytest.raises(DeviceValueError, match="UTF-8"):
                    gpu.evaluate(resolved, part, part, rows.length)
            else:
                assert gpu.mask_to_host(gpu.evaluate(resolved, part, part, 1)).tolist() == expected


def test_texts_are_mapped_and_chosen(gpu: AnyBackend) -> None:
    schema = pa.schema([("s", pa.string()), ("t", pa.string()), ("b", pa.bool_())])
    ascii_texts = bytes(range(1, 128)).decode()
    rows = [[ascii_texts, None, "", "Zebra"], [ascii_texts.upper(), "x", None, "zEbRA"], [True, False, None, True]]
    frame = gpu.from_arrow(pa.table([pa.array(c, f.type) for c, f in zip(rows, schema, strict=True)], schema=schema))
    s, t, constant = left("s"), left("t"), lit("x")
    for condition, expected in (
        (call(Function.UPPER, s) == t, [True, False, False, False]),
        (call(Function.LOWER, s) == call(Function.LOWER, t), [True, False, False, True]),
        (coalesce(s, t) == "x", [False, True, False, False]),
        (when(left("b"), s).else_(t) == s, [True, False, False, True]),
        (when(left("b"), constant).else_("y") == "y", [False, True, True, False]),
        (when(left("b"), s).else_(None).is_null(), [False, True, True, False]),
    ):
        mask = gpu.evaluate(resolve(condition, schema, schema), frame, frame, 4)
        assert gpu.mask_to_host(mask).tolist() == expected, str(condition)


def test_generated_tables(gpu: AnyBackend, seed: int) -> None:
    names = [n for n in sorted(SPARK_TYPES) if n in GATHERED]
    schema = pa.schema([(n, SPARK_TYPES[n]) for n in names])
    table = Generator(seed, Mix(nulls=0.3)).table(schema, 300)
    batch = gpu.to_arrow(gpu.from_arrow(table), schema)
    for name in names:
        same(batch.column(name), table.column(name).combine_chunks())
