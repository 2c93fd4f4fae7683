"""Output made at once by the engine: emulated kernels against the oracle, the path taken, and what leads to maps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gpujoin.backends.cudf import emission
from gpujoin.backends.cudf.choices import EmissionFacts, Verdict
from gpujoin.config import Options
from gpujoin.errors import DeviceMemoryError
from gpujoin.launch import rows
from gpujoin.model.algorithm import Algorithm
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.spec import JoinSpec, KeyPair, NullEquality
from gpujoin.testing import assert_same_rows
from tests.backends.cudf.host import HostBackend, emulated_ops
from tests.backends.cudf.test_engine import run
from tests.faults import FaultyBackend
from tests.generate import Generator, Mix
from tests.kernels.conftest import MakeDevice
from tests.kernels.emulator import EmulatedDevice
from tests.oracle.join import oracle_join

PROBE_ROWS, BUILD_ROWS = 300, 40
PAYLOAD = pa.schema(
    [
        ("b", pa.bool_()),
        ("d", pa.decimal128(38, 10)),
        ("f", pa.float64()),
        ("y", pa.date32()),
        ("h", pa.int16()),
    ]
)
KEY = len(PAYLOAD)


def tables(seed: int, payload: pa.Schema = PAYLOAD, *, duplicates: bool = False) -> tuple[pa.Table, pa.Table]:
    """Unique keys on the right, or nearly so; two probe rows in three have a match, and null keys have none."""
    g, rng = Generator(seed, Mix(spread=6)), np.random.default_rng(seed)
    left, right = g.table(payload, PROBE_ROWS), g.table(payload, BUILD_ROWS)
    probe = pa.array(rng.integers(0, BUILD_ROWS * 3 // 2, PROBE_ROWS), mask=rng.random(PROBE_ROWS) < 0.05)
    keys = rng.permutation(BUILD_ROWS)
    if duplicates:
        keys[:3] = 0
    return left.append_column("k", probe), right.append_column("k", pa.array(keys))


def joined(
    backend: Any,
    sides: tuple[pa.Table, pa.Table],
    kind: JoinType,
    options: Options,
    batch: int,
    nulls: NullEquality = NullEquality.UNEQUAL,
) -> None:
    left, right = sides
    columns = tuple(range(left.num_columns))
    spec = JoinSpec(kind, (KeyPair(KEY, KEY, nulls),), None, columns, () if kind.left_rows_only else columns)
    result = run(left, right, spec, backend, Side.RIGHT, options, batch)
    assert_same_rows(result, oracle_join(left, right, spec))


@pytest.mark.parametrize("batch", [32, PROBE_ROWS])
@pytest.mark.parametrize(
    ("wanted", "kernel"),
    [
        (Algorithm.AUTO, "direct_probe"),
        (Algorithm.UNIQUE, "unique_probe"),
    ],
)
def test_inner_joins_on_unique_keys(
    emulated: EmulatedDevice, wanted: Algorithm, kernel: str, batch: int, seed: int
) -> None:
    """Columns of every width, with nulls; several morsels and several batches a morsel."""
    options = Options(gpu_algorithm=wanted, batch_bytes=1000)
    joined(HostBackend(ops=emulated_ops(emulated)), tables(seed), JoinType.INNER, options, batch)
    assert {kernel, "count_tiles", "emit_matches", "pack_rows"} <= set(emulated.launches)
    assert "gather_rows" not in emulated.launches
    assert emulated.launches.count("pack_rows") == 1


@pytest.mark.parametrize("duplicates", [False, True], ids=["unique", "duplicates"])
@pytest.mark.parametrize("kind", [JoinType.LEFT_SEMI, JoinType.LEFT_ANTI], ids=lambda k: k.value)
@pytest.mark.parametrize("wanted", [Algorithm.AUTO, Algorithm.CSR], ids=lambda w: w.value)
def test_semi_and_anti_joins(
    emulated: EmulatedDevice, kind: JoinType, wanted: Algorithm, duplicates: bool, seed: int
) -> None:
    options = Options(gpu_algorithm=wanted, batch_bytes=1000)
    joined(HostBackend(ops=emulated_ops(emulated)), tables(seed, duplicates=duplicates), kind, options, 64)
    assert {"count_tiles", "emit_matches"} <= set(emulated.launches)
    assert not {"pack_rows", "gather_rows"} & set(emulated.launches)


def test_long_keys_are_verified_before_output(make_device: MakeDevice, seed: int) -> None:
    device = make_device()
    left, right = (
        table.set_column(
            KEY, "k", pa.array([None if k is None else f"{k:040d}" for k in table.column(KEY).to_pylist()])
        )
        for table in tables(seed)
    )
    backend = HostBackend(ops=emulated_ops(device))
    columns = tuple(range(KEY))
    spec = JoinSpec(JoinType.INNER, (KeyPair(KEY, KEY),), None, columns, columns)
    result = run(left, right, spec, backend, Side.RIGHT, Options(), 128)
    assert_same_rows(result, oracle_join(left, right, spec))
    assert {"hash_texts", "verify_texts", "emit_matches"} <= set(device.launches)


@pytest.mark.parametrize(
    ("kind", "payload", "options", "duplicates"),
    [
        (JoinType.LEFT, PAYLOAD, Options(), False),
        (JoinType.EXISTENCE, PAYLOAD, Options(), False),
        (JoinType.INNER, PAYLOAD, Options(), True),
        (JoinType.INNER, PAYLOAD, Options(gpu_algorithm=Algorithm.CUDF), False),
        (JoinType.INNER, PAYLOAD.set(0, pa.field("s", pa.string())), Options(), False),
        (JoinType.NULL_AWARE_ANTI, PAYLOAD, Options(), False),
    ],
    ids=["left", "existence", "duplicates", "cudf asked for", "text", "not in"],
)
def test_output_by_maps(
    emulated: EmulatedDevice,
    kind: JoinType,
    payload: pa.Schema,
    options: Options,
    duplicates: bool,
    seed: int,
) -> None:
    joined(
        HostBackend(ops=emulated_ops(emulated)),
        tables(seed, payload, duplicates=duplicates),
        kind,
        options,
        64,
    )
    assert "emit_matches" not in emulated.launches


def test_cudf_asked_for_launches_no_kernel(emulated: EmulatedDevice, seed: int) -> None:
    options = Options(gpu_algorithm=Algorithm.CUDF)
    for kind in (JoinType.INNER, JoinType.LEFT, JoinType.LEFT_SEMI):
        joined(HostBackend(ops=emulated_ops(emulated)), tables(seed), kind, options, PROBE_ROWS)
    assert not emulated.launches


@pytest.mark.parametrize("kind", [JoinType.INNER, JoinType.LEFT_ANTI], ids=lambda k: k.value)
@pytest.mark.parametrize("every", [2, 3, 7])
def test_running_out_of_memory_now_and_then(emulated: EmulatedDevice, kind: JoinType, every: int, seed: int) -> None:
    """Nothing is lost or repeated."""
    inner: Any = HostBackend(ops=emulated_ops(emulated))
    backend = FaultyBackend(inner, every=every, operations={"emit", "gather", "to_arrow"})
    joined(backend, tables(seed), kind, Options(batch_bytes=1000), 100)
    assert backend.faults
    assert backend.calls["emit"]


def test_output_that_does_not_fit_is_made_by_maps(make_device: MakeDevice, emulated: EmulatedDevice) -> None:
    rows = 600
    keys = pa.array(np.arange(rows))
    left = pa.table({"k": pa.chunked_array([keys]), "a": keys, "b": keys, "c": keys})
    right = left.slice(0, rows - 1)
    columns = (0, 1, 2, 3)
    spec = JoinSpec(JoinType.INNER, (KeyPair(0, 0),), None, columns, columns)
    # Room for the packed build side of 32 bytes a row, and half of the output of 64.
    tight = make_device(memory_limit=55_000)
    for device, expected in ((emulated, True), (tight, False)):
        backend = HostBackend(ops=emulated_ops(device))
        result = run(left, right, spec, backend, Side.RIGHT, Options(), rows)
        assert_same_rows(result, oracle_join(left, right, spec))
        assert ("emit_matches" in device.launches) is expected


def test_a_kernel_that_does_not_compile_is_named(
    make_device: MakeDevice, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    device = make_device({"rows.cu": "this is no program"})
    with caplog.at_level("WARNING", "gpujoin"):
        for kind in (JoinType.INNER, JoinType.LEFT_SEMI):
            joined(HostBackend(ops=emulated_ops(device)), tables(seed), kind, Options(), 64)
    assert "rows.cu" in caplog.text


def test_the_facts_are_those_of_the_output(
    emulated: EmulatedDevice, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    seen: list[EmissionFacts] = []

    def choose(facts: EmissionFacts) -> Verdict:
        seen.append(facts)
        return Verdict(False, "for the test")

    monkeypatch.setattr(emission, "writes_at_once", choose)
    backend = HostBackend(ops=emulated_ops(emulated))
    left, right = tables(seed)
    built = backend.build(right.select(["k"]), Algorithm.AUTO)
    probe = built.probe(left.select(["k"]))
    assert backend.emit(probe, left, right) is None
    assert backend.emit(probe, left, None, matched=False) is None
    facts = seen[0]
    assert (facts.probe_rows, facts.rows) == (PROBE_ROWS, probe.pairs)
    assert facts.probe_widths == (1, 16, 8, 4, 2, 8)
    assert facts.build is not None
    assert (facts.build.rows, facts.build.entries, facts.build.packed) == (BUILD_ROWS, probe.pairs, False)
    assert facts.build.l2_bytes == emulated.properties.l2_bytes
    assert dataclasses.replace(facts, build=None, rows=PROBE_ROWS - probe.pairs) == seen[1]


REPEATED: dict[str, Callable[[np.random.Generator], tuple[Any, Any]]] = {
    "a few rows a key": lambda rng: (rng.integers(0, 60, PROBE_ROWS), rng.integers(0, 40, 80)),
    "one key": lambda _: (np.full(40, 7), np.full(50, 7)),
    "one heavy key": lambda rng: (rng.integers(0, 40, PROBE_ROWS), np.where(rng.random(90) < 0.6, 3, np.arange(90))),
    "all match": lambda rng: (rng.integers(0, 20, 100), np.arange(60) % 20),
    "no match": lambda rng: (rng.integers(100, 200, 100), np.arange(60) % 20),
    "no probe rows": lambda _: (np.arange(0), np.arange(60) % 20),
    "far apart": lambda rng: (rng.integers(0, 60, PROBE_ROWS) << 40, rng.integers(0, 40, 80) << 40),
}
"""Keys of probe and build rows; build keys repeat."""


def repeated(case: str, seed: int) -> tuple[pa.Table, pa.Table]:
    """The tables of a case, some keys of either side null."""
    g, rng = Generator(seed, Mix(spread=6)), np.random.default_rng(seed)
    sides = []
    for keys in REPEATED[case](rng):
        column = pa.array(keys, pa.int64(), mask=rng.random(len(keys)) < 0.05)
        sides.append(g.table(PAYLOAD, len(keys)).append_column("k", column))
    return sides[0], sides[1]


@pytest.mark.parametrize("case", REPEATED)
@pytest.mark.parametrize("kind", [JoinType.INNER, JoinType.LEFT, JoinType.RIGHT, JoinType.FULL], ids=lambda k: k.value)
def test_keys_that_repeat(emulated: EmulatedDevice, kind: JoinType, case: str, seed: int) -> None:
    """In batches of 32 rows, and without a pair of row numbers."""
    left, right = repeated(case, seed)
    columns = tuple(range(left.num_columns))
    spec = JoinSpec(kind, (KeyPair(KEY, KEY),), None, columns, columns)
    options = Options(batch_bytes=32 * 90)
    result = run(left, right, spec, HostBackend(ops=emulated_ops(emulated)), Side.RIGHT, options, PROBE_ROWS)
    assert_same_rows(result, oracle_join(left, right, spec), allow_empty=True)
    launched = emulated.launches
    assert "expand_pairs" not in launched
    if case in ("no match", "no probe rows"):
        assert "emit_ranges" not in launched
    else:
        assert ("csr_ranges" if case == "far apart" else "direct_ranges") in launched
        assert launched.count("emit_ranges") > 1
        assert launched.count("pack_rows") == 1
        assert "gather_rows" not in launched


def test_keys_that_repeat_and_one_side_without_columns(emulated: EmulatedDevice, seed: int) -> None:
    left, right = repeated("one heavy key", seed)
    for sides in (((0, 5), ()), ((), (0, 5))):
        spec = JoinSpec(JoinType.INNER, (KeyPair(KEY, KEY),), None, *sides)
        emulated.launches.clear()
        result = run(left, right, spec, HostBackend(ops=emulated_ops(emulated)), Side.RIGHT, Options(), 64)
        assert_same_rows(result, oracle_join(left, right, spec))
        assert "emit_ranges" in emulated.launches
        assert ("pack_rows" in emulated.launches) is bool(sides[1])


def test_long_keys_that_repeat_are_verified_before_output(emulated: EmulatedDevice, seed: int) -> None:
    left, right = (
        table.set_column(KEY, "k", pa.array([None if k is None else f"{k:040d}" for k in table["k"].to_pylist()]))
        for table in repeated("a few rows a key", seed)
    )
    columns = tuple(range(left.num_columns - 1))
    spec = JoinSpec(JoinType.LEFT, (KeyPair(KEY, KEY),), None, columns, columns)
    result = run(left, right, spec, HostBackend(ops=emulated_ops(emulated)), Side.RIGHT, Options(), 128)
    assert_same_rows(result, oracle_join(left, right, spec))
    assert {"verify_texts", "emit_ranges"} <= set(emulated.launches)


@pytest.mark.parametrize("kind", [JoinType.INNER, JoinType.FULL], ids=lambda k: k.value)
@pytest.mark.parametrize("every", [2, 3, 7])
def test_running_out_of_memory_among_repeated_keys(
    emulated: EmulatedDevice, kind: JoinType, every: int, seed: int
) -> None:
    """A morsel of few rows that does not fit is joined by the CPU."""
    inner: Any = HostBackend(ops=emulated_ops(emulated))
    backend: Any = FaultyBackend(inner, every=every, operations={"emit", "gather", "to_arrow"})
    left, right = repeated("one heavy key", seed)
    columns = tuple(range(left.num_columns))
    spec = JoinSpec(kind, (KeyPair(KEY, KEY),), None, columns, columns)
    options = Options(batch_bytes=32 * 90)
    result = run(left, right, spec, backend, Side.RIGHT, options, 100)
    assert backend.faults
    assert backend.calls["emit"] > 1
    assert_same_rows(result, oracle_join(left, right, spec))


def test_packed_rows_that_do_not_fit_lead_to_pairs(make_device: MakeDevice, seed: int) -> None:
    left, right = repeated("one heavy key", seed)
    columns = tuple(range(left.num_columns))
    spec = JoinSpec(JoinType.INNER, (KeyPair(KEY, KEY),), None, columns, columns)
    device = make_device()
    backend = HostBackend(ops=emulated_ops(device))

    def refused(*_: Any) -> Any:
        raise DeviceMemoryError("no room")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "reorder", refused)
        result = run(left, right, spec, backend, Side.RIGHT, Options(), 128)
    assert_same_rows(result, oracle_join(left, right, spec))
    assert "expand_pairs" in device.launches
    assert "emit_ranges" not in device.launches


def test_runs_that_do_not_compile_are_named(
    make_device: MakeDevice, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    device = make_device({"rows.cu": "this is no program"})
    left, right = repeated("one heavy key", seed)
    for columns in ((0, 5), ()):
        spec = JoinSpec(JoinType.INNER, (KeyPair(KEY, KEY),), None, (0, 5), columns)
        with caplog.at_level("WARNING", "gpujoin"):
            result = run(left, right, spec, HostBackend(ops=emulated_ops(device)), Side.RIGHT, Options(), 128)
        assert_same_rows(result, oracle_join(left, right, spec))
        assert "rows.cu" in caplog.text
        caplog.clear()
    assert "expand_pairs" in device.launches


@pytest.mark.parametrize(
    ("payload", "options"),
    [
        (PAYLOAD.set(0, pa.field("s", pa.string())), Options()),
        (PAYLOAD, Options(gpu_algorithm=Algorithm.CUDF)),
    ],
    ids=["text", "cudf asked for"],
)
def test_keys_that_repeat_by_pairs(emulated: EmulatedDevice, payload: pa.Schema, options: Options, seed: int) -> None:
    joined(
        HostBackend(ops=emulated_ops(emulated)),
        tables(seed, payload, duplicates=True),
        JoinType.INNER,
        options,
        64,
    )
    assert "emit_ranges" not in emulated.launches
    assert ("expand_pairs" in emulated.launches) is (options.gpu_algorithm is not Algorithm.CUDF)


def test_rows_are_ordered_anew_for_another_index(emulated: EmulatedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed rows in the order of one index's places are not taken for those of another."""
    monkeypatch.setattr(emission, "writes_at_once", lambda _: Verdict(True, "for the test"))
    backend = HostBackend(ops=emulated_ops(emulated))
    frame = pa.table({"a": np.arange(6), "b": np.arange(6) * 10})
    probe = pa.table({"k": [5, 3]})
    for keys, expected in (([5, 3, 5, 3, 9, 9], [0, 2, 1, 3]), ([3, 3, 5, 9, 9, 3], [2, 0, 1, 5])):
        matches = backend.build(pa.table({"k": keys}), Algorithm.AUTO).probe(probe)
        made = backend.emit(matches, probe, frame)
        assert made is not None
        own, other = made.slice(0, made.rows)
        assert other is not None
        assert own["k"].to_pylist() == [keys[row] for row in expected]
        assert other["a"].to_pylist() == expected
        _, two = made.slice(1, 2)
        assert two is not None
        assert two["b"].to_pylist() == [row * 10 for row in expected[1:3]]
