"""Payload that the engine reads with the keys: emulated kernels against the oracle, the order and the path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gpujoin.backends.cudf import fetching
from gpujoin.backends.cudf.choices import HashFacts, SlotFacts, Verdict
from gpujoin.backends.registry import BackendRequest, create
from gpujoin.config import Options
from gpujoin.engine.join.sinks import DeviceSink
from gpujoin.errors import DeviceMemoryError
from gpujoin.launch import direct, rows, unique
from gpujoin.model.algorithm import Algorithm
from gpujoin.model.backend import BackendName
from gpujoin.model.expressions import left, right
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.spec import JoinSpec, KeyPair
from gpujoin.plan.resolve import resolve
from gpujoin.testing import assert_same_rows, cells
from tests.backends.cudf.host import HostBackend, emulated_ops
from tests.backends.cudf.test_engine import run
from tests.faults import FaultyBackend
from tests.generate import Generator, Mix
from tests.kernels.conftest import MakeDevice
from tests.kernels.emulator import EmulatedDevice
from tests.kernels.test_emission import KEY, PAYLOAD
from tests.oracle.join import oracle_join

KINDS = [JoinType.INNER, JoinType.LEFT]
Keys = tuple[Any, Any]
CASES: dict[str, Callable[[np.random.Generator], Keys]] = {
    "some match": lambda rng: (rng.integers(0, 90, 300), rng.permutation(60)),
    "all match": lambda rng: (rng.integers(0, 60, 300), rng.permutation(60)),
    "no match": lambda rng: (rng.integers(100, 200, 300), rng.permutation(60)),
    "keys missing": lambda rng: (rng.integers(0, 90, 300), rng.permutation(90)[:50]),
    "no probe rows": lambda rng: (np.arange(0), rng.permutation(60)),
    "far apart": lambda rng: (rng.integers(0, 90, 300) << 40, rng.permutation(60) << 40),
}
"""Keys of probe and build rows; build keys are unique."""


def given(case: str, seed: int, dtype: pa.DataType | None = None, *, nulls: float = 0.05) -> tuple[pa.Table, pa.Table]:
    """The tables of a case, some keys of either side null."""
    g, rng = Generator(seed, Mix(spread=6)), np.random.default_rng(seed)
    sides = []
    for keys in CASES[case](rng):
        column = pa.array(keys, dtype or pa.int64(), mask=rng.random(len(keys)) < nulls)
        sides.append(g.table(PAYLOAD, len(keys)).append_column("k", column))
    return sides[0], sides[1]


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> list[SlotFacts | HashFacts]:
    """Payload is read with the keys wherever it can be; gives the facts of each choice."""
    seen: list[SlotFacts | HashFacts] = []

    def choose(facts: SlotFacts | HashFacts) -> Verdict:
        seen.append(facts)
        return Verdict(True, "for the test")

    monkeypatch.setattr(fetching, "fetches_payload", choose)
    monkeypatch.setattr(DeviceSink, "fetches", True)
    return seen


def joined(
    backend: Any,
    tables: tuple[pa.Table, pa.Table],
    kind: JoinType,
    options: Options | None = None,
    batch: int = 300,
    condition: Any = None,
) -> pa.Table:
    """Join, and compare with the oracle."""
    probe, build = tables
    columns = tuple(range(probe.num_columns))
    tested = None if condition is None else resolve(condition, probe.schema, build.schema)
    spec = JoinSpec(kind, (KeyPair(KEY, KEY),), tested, columns, () if kind.left_rows_only else columns)
    result = run(probe, build, spec, backend, Side.RIGHT, options or Options(), batch)
    assert_same_rows(result, oracle_join(probe, build, spec), allow_empty=True)
    return result


def fetches(device: EmulatedDevice) -> set[str]:
    return {"direct_fetch", "unique_fetch", "direct_probe", "unique_probe"} & set(device.launches)


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.value)
@pytest.mark.parametrize("case", CASES)
def test_unique_keys(
    emulated: EmulatedDevice, always: list[SlotFacts | HashFacts], case: str, kind: JoinType, seed: int
) -> None:
    """In the order of the CPU's rows, in batches of 32 rows, and without a probe that finds row numbers."""
    tables = given(case, seed)
    options = Options(batch_bytes=32 * 90)
    of_device, of_cpu = (
        list(map(repr, cells(joined(backend, tables, kind, options).to_struct_array())))
        for backend in (HostBackend(ops=emulated_ops(emulated)), create(BackendName.CPU, BackendRequest()))
    )
    assert of_device == of_cpu
    if case == "no probe rows":
        assert not always
        return
    assert fetches(emulated) == {"unique_fetch" if case == "far apart" else "direct_fetch"}
    assert not {"gather_rows", "expand_pairs"} & set(emulated.launches)
    assert ("emit_matches" in emulated.launches) is (kind is JoinType.INNER and case != "no match")


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.value)
@pytest.mark.parametrize("wanted", [Algorithm.DIRECT, Algorithm.UNIQUE], ids=lambda w: w.value)
@pytest.mark.parametrize("dtype", [pa.int32(), pa.int64()], ids=str)
def test_without_nulls_all_match(
    emulated: EmulatedDevice,
    always: list[SlotFacts | HashFacts],
    dtype: pa.DataType,
    wanted: Algorithm,
    kind: JoinType,
    seed: int,
) -> None:
    """Probe columns stay where they are, and all slots of a dense range are taken, so there are no bits."""
    tables = given("all match", seed, dtype, nulls=0.0)
    joined(HostBackend(ops=emulated_ops(emulated)), tables, kind, Options(gpu_algorithm=wanted))
    assert fetches(emulated) == {f"{wanted.value}_fetch"}
    assert "emit_matches" not in emulated.launches
    (facts,) = always
    assert (facts.rows, facts.probe_rows, facts.there, facts.packed) == (60, 300, False, False)
    assert facts.payload_bytes == 1 + 16 + 8 + 4 + 2 + dtype.bit_width // 8
    if isinstance(facts, SlotFacts):
        assert facts.slots == 60
    else:
        assert facts.key_bytes == dtype.bit_width // 8
        assert (facts.joint_bytes > facts.row_bytes) is (facts.key_bytes == 8)


@pytest.mark.parametrize("case", ["some match", "far apart"])
def test_the_table_is_made_once(
    emulated: EmulatedDevice, always: list[SlotFacts | HashFacts], case: str, seed: int
) -> None:
    """The choice is told so, and how many rows have been probed."""
    backend = HostBackend(ops=emulated_ops(emulated), morsel_rows=64)
    joined(backend, given(case, seed), JoinType.LEFT, batch=64)
    assert [facts.there for facts in always] == [False, True, True, True, True]
    assert [facts.probe_rows for facts in always] == [64, 128, 192, 256, 300]
    assert emulated.launches.count("pack_rows") == 1


SPARED: dict[str, tuple[JoinType, str, Any, Options]] = {
    "right": (JoinType.RIGHT, "some match", None, Options()),
    "full": (JoinType.FULL, "some match", None, Options()),
    "semi": (JoinType.LEFT_SEMI, "some match", None, Options()),
    "condition": (JoinType.LEFT, "some match", left("h") < right("h"), Options()),
    "cudf asked for": (JoinType.INNER, "some match", None, Options(gpu_algorithm=Algorithm.CUDF)),
    "csr asked for": (JoinType.INNER, "some match", None, Options(gpu_algorithm=Algorithm.CSR)),
}


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("case", SPARED)
def test_what_needs_row_numbers_is_probed(emulated: EmulatedDevice, case: str, seed: int) -> None:
    kind, keys, condition, options = SPARED[case]
    joined(HostBackend(ops=emulated_ops(emulated)), given(keys, seed), kind, options, condition=condition)
    assert not {"direct_fetch", "unique_fetch"} & set(emulated.launches)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.value)
@pytest.mark.parametrize("what", ["text in the payload", "long keys", "keys that repeat"])
def test_rows_that_cannot_be_fetched_are_probed(emulated: EmulatedDevice, kind: JoinType, what: str, seed: int) -> None:
    probe, build = given("some match", seed)
    if what == "text in the payload":
        build = build.set_column(0, "b", pa.array([f"row {i}" for i in range(build.num_rows)]))
    elif what == "long keys":
        probe, build = (
            table.set_column(KEY, "k", pa.array([None if k is None else f"{k:040d}" for k in table["k"].to_pylist()]))
            for table in (probe, build)
        )
    else:
        build = pa.concat_tables([build, build.slice(0, 5)])
    joined(HostBackend(ops=emulated_ops(emulated)), (probe, build), kind)
    assert not {"direct_fetch", "unique_fetch"} & set(emulated.launches)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.value)
@pytest.mark.parametrize("every", [2, 3, 7])
def test_running_out_of_memory_now_and_then(emulated: EmulatedDevice, kind: JoinType, every: int, seed: int) -> None:
    """Nothing is lost or repeated."""
    inner: Any = HostBackend(ops=emulated_ops(emulated))
    backend = FaultyBackend(inner, every=every, operations={"emit", "gather", "to_arrow"})
    joined(backend, given("some match", seed), kind, Options(batch_bytes=32 * 90), 100)
    assert backend.faults
    assert backend.calls["emit"]


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("what", ["pack", "unset_columns", "emit"])
def test_where_memory_is_short_the_build_side_is_probed(
    emulated: EmulatedDevice, monkeypatch: pytest.MonkeyPatch, what: str, seed: int
) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise DeviceMemoryError("no room")

    for module in (rows, direct, unique) if what != "emit" else (rows,):
        monkeypatch.setattr(module, what, refused)
    joined(HostBackend(ops=emulated_ops(emulated)), given("some match", seed), JoinType.INNER)
    assert "direct_probe" in emulated.launches


@pytest.mark.usefixtures("always")
def test_a_kernel_that_does_not_compile_is_named(
    make_device: MakeDevice, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    device = make_device({"rows.cu": "this is no program"})
    with caplog.at_level("WARNING", "gpujoin"):
        joined(HostBackend(ops=emulated_ops(device)), given("some match", seed), JoinType.INNER)
    assert "rows.cu" in caplog.text
    assert fetches(device) == {"direct_probe"}


def test_a_small_join_is_probed(emulated: EmulatedDevice, seed: int) -> None:
    """By the planner's own choice: a table of payload would not pay."""
    joined(HostBackend(ops=emulated_ops(emulated)), given("some match", seed), JoinType.LEFT)
    assert fetches(emulated) == {"direct_probe"}
