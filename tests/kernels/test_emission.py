"""Output made at once by the engine: emulated kernels against the oracle, the path taken, and what leads to maps."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gpujoin.config import AlgorithmChoice, Options
from gpujoin.model.gathering import EmissionChoice, EmissionFacts, EmissionMethod
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.spec import JoinSpec, KeyPair, NullEquality
from gpujoin.testing.compare import assert_same_rows
from gpujoin.testing.generate import Generator, Mix
from tests.backends.cudf.host import HostBackend, emulated_ops
from tests.backends.cudf.test_engine import run
from tests.faults import FaultyBackend
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
        (AlgorithmChoice.AUTO, "direct_probe"),
        (AlgorithmChoice.UNIQUE, "unique_probe"),
    ],
)
def test_inner_joins_on_unique_keys(
    emulated: EmulatedDevice, wanted: AlgorithmChoice, kernel: str, batch: int, seed: int
) -> None:
    """Columns of every width, with nulls; several morsels and several batches a morsel."""
    options = Options(gpu_algorithm=wanted, batch_bytes=1000)
    joined(HostBackend(ops=emulated_ops(emulated)), tables(seed), JoinType.INNER, options, batch)
    assert {kernel, "count_tiles", "emit_matches", "pack_rows"} <= set(emulated.launches)
    assert "gather_rows" not in emulated.launches
    assert emulated.launches.count("pack_rows") == 1


@pytest.mark.parametrize("duplicates", [False, True], ids=["unique", "duplicates"])
@pytest.mark.parametrize("kind", [JoinType.LEFT_SEMI, JoinType.LEFT_ANTI], ids=lambda k: k.value)
@pytest.mark.parametrize("wanted", [AlgorithmChoice.AUTO, AlgorithmChoice.CSR], ids=lambda w: w.value)
def test_semi_and_anti_joins(
    emulated: EmulatedDevice, kind: JoinType, wanted: AlgorithmChoice, duplicates: bool, seed: int
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
        (JoinType.INNER, PAYLOAD, Options(gpu_algorithm=AlgorithmChoice.CUDF), False),
        (JoinType.INNER, PAYLOAD.set(0, pa.field("s", pa.string())), Options(), False),
        (JoinType.INNER, PAYLOAD.set(0, pa.field("e", pa.struct([]))), Options(), False),
        (JoinType.NULL_AWARE_ANTI, PAYLOAD, Options(), False),
    ],
    ids=["left", "existence", "duplicates", "cudf asked for", "text", "column on the host", "not in"],
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
    options = Options(gpu_algorithm=AlgorithmChoice.CUDF)
    for kind in (JoinType.INNER, JoinType.LEFT, JoinType.LEFT_SEMI):
        joined(HostBackend(ops=emulated_ops(emulated)), tables(seed), kind, options, PROBE_ROWS)
    assert not emulated.launches


@pytest.mark.parametrize("kind", [JoinType.INNER, JoinType.LEFT_ANTI], ids=lambda k: k.value)
@pytest.mark.parametrize("every", [2, 3, 7])
def test_running_out_of_memory_now_and_then(emulated: EmulatedDevice, kind: JoinType, every: int, seed: int) -> None:
    """Output made at once comes in the order of the CPU backend's, so nothing is lost or repeated."""
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


def test_the_planner_sees_the_facts(emulated: EmulatedDevice, seed: int) -> None:
    seen: list[EmissionFacts] = []

    def choose(facts: EmissionFacts) -> EmissionChoice:
        seen.append(facts)
        return EmissionChoice(EmissionMethod.MAPS, "for the test")

    backend = HostBackend(ops=emulated_ops(emulated))
    left, right = tables(seed)
    built = backend.build(right.select(["k"]))
    probe = built.probe(left.select(["k"]))
    assert backend.emit(probe, left, right, choose) is None
    assert backend.emit(probe, left, None, choose, matched=False) is None
    facts = seen[0]
    assert (facts.probe_rows, facts.rows) == (PROBE_ROWS, probe.pairs)
    assert facts.probe_widths == (1, 16, 8, 4, 2, 8)
    assert facts.build is not None
    assert (facts.build.rows, facts.build.entries, facts.build.packed) == (BUILD_ROWS, probe.pairs, False)
    assert facts.build.l2_bytes == emulated.properties.l2_bytes
    assert dataclasses.replace(facts, build=None, rows=PROBE_ROWS - probe.pairs) == seen[1]
