"""Whole joins by the engine over emulated kernels, against the row-by-row oracle, by every algorithm."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gpujoin.backends.cudf import kernels
from gpujoin.backends.cudf.algorithm import Choice, KeyFacts
from gpujoin.backends.cudf.index import Index, IndexProbe
from gpujoin.config import Options
from gpujoin.engine.tables import join_tables
from gpujoin.model.algorithm import Algorithm
from gpujoin.model.expressions import Expression, left, right
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.spec import JoinSpec, KeyPair, NullEquality
from gpujoin.plan.resolve import resolve
from gpujoin.testing import assert_same_rows
from tests.backends.cudf.host import HostBackend, HostKeys, emulated_ops, entered
from tests.backends.cudf.test_engine import CASES, run, sides, spec_of
from tests.brief import each_once
from tests.faults import FaultyBackend
from tests.generate import KeyShape
from tests.kernels.cases import colliding
from tests.kernels.conftest import MakeDevice
from tests.kernels.emulator import EmulatedDevice
from tests.oracle.join import oracle_join

NAMED_CASES = {f"{kind.value}, build {side.value}": (kind, side) for kind, side in CASES}
TYPES: dict[str, tuple[pa.DataType, ...]] = {
    "int64": (pa.int64(),),
    "int32": (pa.int32(),),
    "two_ints": (pa.int32(), pa.int32()),
    "string": (pa.string(),),
    "date_and_string": (pa.date32(), pa.string()),
    "decimal": (pa.decimal128(38, 10),),
    "short_decimal": (pa.decimal128(12, 2),),
    "double": (pa.float64(),),
    "float_and_bool": (pa.float32(), pa.bool_()),
    "timestamp_and_byte": (pa.timestamp("us", "UTC"), pa.int8()),
}
CONDITION: Expression = left("n") < right("n")
BATCH = 23


def joined(
    device: EmulatedDevice,
    kind: JoinType,
    build_side: Side,
    types: tuple[pa.DataType, ...],
    seed: int,
    *,
    wanted: Algorithm = Algorithm.AUTO,
    condition: Expression | None = None,
    nulls: NullEquality = NullEquality.UNEQUAL,
    shapes: tuple[KeyShape, ...] = (KeyShape.UNIFORM, KeyShape.UNIQUE),
) -> set[str]:
    """Join small tables, compare with the oracle, and tell which kernels were launched."""
    for shape in shapes:
        left_table, right_table = sides(seed, types, shape)
        spec = spec_of(kind, left_table, right_table, len(types), condition, nulls)
        options = Options(batch_bytes=2000, candidate_pairs=37, gpu_algorithm=wanted)
        backend = HostBackend(ops=emulated_ops(device))
        result = run(left_table, right_table, spec, backend, build_side, options, BATCH)
        assert_same_rows(
            result, oracle_join(left_table, right_table, spec), allow_empty=True, context=f"{shape} seed={seed}"
        )
    return set(device.launches)


@pytest.mark.parametrize(("case", "types"), each_once(NAMED_CASES, TYPES))
def test_every_join_type(emulated: EmulatedDevice, case: str, types: str, seed: int) -> None:
    assert "key_range" in joined(emulated, *NAMED_CASES[case], TYPES[types], seed)


FORCED = {
    Algorithm.DIRECT: {"direct_probe", "direct_ranges"},
    Algorithm.UNIQUE: {"unique_probe", "csr_ranges"},
    Algorithm.CSR: {"csr_ranges"},
}


@pytest.mark.few
@pytest.mark.parametrize("wanted", FORCED, ids=lambda w: w.value)
@pytest.mark.parametrize(("kind", "build_side"), CASES, ids=lambda v: v.value)
def test_every_algorithm(
    emulated: EmulatedDevice, kind: JoinType, build_side: Side, wanted: Algorithm, seed: int
) -> None:
    """Forced on integer keys, with duplicates and without; semi, anti and existence joins ask for marks only."""
    launched = joined(emulated, kind, build_side, (pa.int16(),), seed, wanted=wanted)
    probes = {name for name in launched if name.split("_")[-1] in ("probe", "ranges", "bits")}
    marks = kind.left_rows_only and build_side is Side.RIGHT
    if not marks:
        assert probes == FORCED[wanted]
    elif wanted is Algorithm.DIRECT:
        assert probes == {"direct_enter_bits", "direct_test_bits"}
    else:
        assert probes == ({"csr_ranges"} if wanted is Algorithm.CSR else {"set_probe"})


@pytest.mark.parametrize(
    ("case", "wanted"),
    each_once(NAMED_CASES, (Algorithm.DIRECT.value, Algorithm.CSR.value)),
)
def test_conditions(emulated: EmulatedDevice, case: str, wanted: str, seed: int) -> None:
    choice = Algorithm(wanted)
    joined(emulated, *NAMED_CASES[case], (pa.int16(),), seed, wanted=choice, condition=CONDITION)


NORMALISED = {
    "int64": set(),
    "int32": set(),
    "two_ints": {"pack_values"},
    "string": {"pack_texts", "hash_texts"},
    "date_and_string": {"pack_texts", "hash_texts", "pack_values", "hash_values"},
    "decimal": {"pack_values"},
    "short_decimal": set(),
    "double": {"pack_values"},
    "float_and_bool": {"pack_values"},
    "timestamp_and_byte": {"pack_values"},
}
"""The kernels that normalise keys of these types, at least one of them; an integer is its own code, and so is a decimal
of up to 18 digits."""


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("kind", [JoinType.INNER, JoinType.LEFT_ANTI], ids=lambda k: k.value)
def test_keys_are_normalised_on_the_device(emulated: EmulatedDevice, kind: JoinType, types: str, seed: int) -> None:
    launched = joined(emulated, kind, Side.RIGHT, TYPES[types], seed)
    used = {"pack_values", "pack_texts", "hash_values", "hash_texts"} & launched
    assert used <= NORMALISED[types]
    assert bool(used) == bool(NORMALISED[types])


@pytest.mark.few
@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("kind", [JoinType.INNER, JoinType.FULL, JoinType.LEFT_ANTI], ids=lambda k: k.value)
def test_nulls_that_equal_nulls(emulated: EmulatedDevice, kind: JoinType, types: str, seed: int) -> None:
    launched = joined(emulated, kind, Side.RIGHT, TYPES[types], seed, nulls=NullEquality.EQUAL)
    assert {"pack_values", "pack_texts", "hash_values", "hash_texts"} & launched


def test_special_values_are_equal_as_in_spark(emulated: EmulatedDevice) -> None:
    """NaN of any bits is NaN and −0.0 is 0.0, in either width; the least and greatest of each type are themselves."""
    nans = np.array([0x7FF8000000000000, 0xFFF8000000000001, 0x7FF0000000000001], np.uint64).view(np.float64)
    doubles = [-0.0, *nans, float("inf"), float("-inf"), 5e-324, -5e-324, None, 1.5]
    probes = [0.0, float("nan"), float("-inf"), float("inf"), -5e-324, 5e-324, None, 1.25, -0.0]
    for kind in (pa.float64(), pa.float32()):
        check(emulated, pa.array(doubles, pa.float64()).cast(kind), pa.array(probes, pa.float64()).cast(kind))
    whole = [-(1 << 63), (1 << 63) - 1, 0, -1, None]
    check(emulated, pa.array(whole), pa.array([*whole[::-1], 1]))
    unsigned = pa.array([0, (1 << 64) - 1, 1 << 63, None], pa.uint64())
    check(emulated, unsigned, pa.array([1 << 63, 0, 7, (1 << 64) - 1], pa.uint64()))
    wide = [Decimal(10) ** 35, -(Decimal(10) ** 35), Decimal("0.01"), None, Decimal("-0.01")]
    check(emulated, pa.array(wide, pa.decimal128(38, 2)), pa.array(wide[::-1], pa.decimal128(38, 2)))


def check(device: EmulatedDevice, build: pa.Array, probe: pa.Array) -> None:
    """Join one column with another by kernels and without, under both null equalities."""
    left_table, right_table = (
        pa.table({"k": probe, "i": range(len(probe))}),
        pa.table({"k": build, "j": range(len(build))}),
    )
    for nulls in NullEquality:
        spec = JoinSpec(JoinType.FULL, (KeyPair(0, 0, nulls),), None, (0, 1), (0, 1))
        for wanted in (Algorithm.AUTO, Algorithm.CUDF):
            options = Options(gpu_algorithm=wanted)
            result = run(
                left_table, right_table, spec, HostBackend(ops=emulated_ops(device)), Side.RIGHT, options, BATCH
            )
            assert_same_rows(result, oracle_join(left_table, right_table, spec), context=f"{build.type} {nulls}")


def test_keys_the_device_does_not_take_are_joined_by_the_cpu(emulated: EmulatedDevice, seed: int) -> None:
    takes_keys = HostBackend().pipeline.takes_keys
    for dtype in (pa.struct([("a", pa.int32())]), pa.decimal256(50, 2), pa.float16(), pa.null()):
        assert not takes_keys(dtype, dtype)
    assert not joined(emulated, JoinType.INNER, Side.RIGHT, (pa.struct([("a", pa.int32())]),), seed)


def test_null_aware_anti_joins(emulated: EmulatedDevice, seed: int) -> None:
    """By direct address, a bit a key."""
    kind, types = JoinType.NULL_AWARE_ANTI, (pa.int16(),)
    launched = joined(emulated, kind, Side.RIGHT, types, seed, wanted=Algorithm.DIRECT)
    assert {"direct_enter_bits", "direct_test_bits"} <= launched
    assert not {"direct_probe", "direct_ranges", "unique_probe", "csr_ranges"} & launched
    joined(emulated, kind, Side.RIGHT, (pa.int64(),), seed)
    for choice in (Algorithm.DIRECT, Algorithm.AUTO):
        joined(emulated, kind, Side.RIGHT, types, seed, wanted=choice, condition=CONDITION)


@pytest.mark.parametrize("condition", [None, CONDITION], ids=["plain", "condition"])
def test_null_aware_anti_joins_over_two_keys(
    emulated: EmulatedDevice, monkeypatch: pytest.MonkeyPatch, condition: Expression | None
) -> None:
    """Rows with a null in one key are searched by the other one, by direct address too."""
    searched: list[str] = []
    build = HostBackend.build

    def watching(self: HostBackend, *given: Any, **options: Any) -> Any:
        built = build(self, *given, **options)
        searched.append(built.algorithm)
        return built

    monkeypatch.setattr(HostBackend, "build", watching)
    keys = [(a, b) for a in (None, 0, 1, 2, 3) for b in (None, 10, 11, 12, 13)]
    rows = [(a, b, n) for n, (a, b) in enumerate(keys)]
    # Two right rows with a null: they drop what agrees with them in the other key.
    given = rows[1:], [(1, 11, 5), (2, None, 30), (None, 13, 30), (3, 10, 5), (3, 10, 30)]
    left_table, right_table = (
        pa.table([pa.array(column, pa.int32()) for column in zip(*side, strict=True)], names=["a", "b", "n"])
        for side in given
    )
    pairs = (KeyPair(0, 0), KeyPair(1, 1))
    tested = None if condition is None else resolve(condition, left_table.schema, right_table.schema)
    spec = JoinSpec(JoinType.NULL_AWARE_ANTI, pairs, tested, (0, 1, 2), ())
    result = run(left_table, right_table, spec, HostBackend(ops=emulated_ops(emulated)), Side.RIGHT, Options(), BATCH)
    assert_same_rows(result, oracle_join(left_table, right_table, spec))
    assert len(searched) >= 3, "all keys, and each of the two"
    assert set(searched) == {"direct"}
    launched = set(emulated.launches)
    if condition is None:
        assert {"direct_enter_bits", "direct_test_bits"} <= launched
    else:
        assert {"direct_probe", "direct_ranges"} & launched


def test_a_set_of_keys_serves_joins_that_only_ask_for_matches(
    emulated: EmulatedDevice, rng: np.random.Generator
) -> None:
    """Also where keys repeat, for which pairs would take rows side by side."""
    keys = rng.integers(-(1 << 62), 1 << 62, 300)
    table = pa.table({"k": np.repeat(keys, 4)})
    for kind, launched in ((JoinType.LEFT_ANTI, "set_probe"), (JoinType.INNER, "csr_ranges")):
        emulated.launches.clear()
        joined_rows = join_tables(
            table, table.slice(600), on="k", how=kind, backend=HostBackend(ops=emulated_ops(emulated))
        )
        assert joined_rows.num_rows == (600 if kind is JoinType.LEFT_ANTI else 4 * 600)
        assert {"set_probe", "csr_ranges"} & set(emulated.launches) == {launched}


def test_cudf_can_be_forced(emulated: EmulatedDevice, seed: int) -> None:
    launched = joined(emulated, JoinType.FULL, Side.RIGHT, (pa.int64(),), seed, wanted=Algorithm.CUDF)
    assert not launched, "no key is packed, no fact taken"


def test_hash_functions_that_collide_are_given_up(make_device: MakeDevice) -> None:
    """With two hashes in all, no hash function tells three long texts apart, so cuDF's hashes do it."""
    device = make_device(colliding(1, "normalise.cu", "facts.cu", "csr.cu", "unique.cu"))
    keys = [bytes([c]) * 20 for c in b"abcabc"]
    index_ = index(device, keys, Algorithm.AUTO)
    assert index_.algorithm == "cudf sorted fingerprint"
    second_index = index(device, keys[:1] * 2, Algorithm.AUTO)
    assert second_index.algorithm == "csr fingerprint"
    probe = HostKeys(pa.table({"k": pa.array(keys, pa.large_binary())}), ops=second_index.ops)
    assert IndexProbe(second_index, probe).matched().tolist() == [True, False, False] * 2


@pytest.mark.parametrize("every", [2, 7])
def test_running_out_of_memory_now_and_then(emulated: EmulatedDevice, every: int, seed: int) -> None:
    """The pairs of every algorithm come in the order of the CPU backend's, so nothing is lost or repeated."""
    for wanted in (Algorithm.DIRECT, Algorithm.CSR):
        left_table, right_table = sides(seed, (pa.int16(),), KeyShape.UNIFORM)
        spec = spec_of(JoinType.FULL, left_table, right_table, 1, CONDITION, NullEquality.UNEQUAL)
        backend: Any = FaultyBackend(HostBackend(ops=emulated_ops(emulated)), every=every)
        options = Options(batch_bytes=2000, candidate_pairs=16, gpu_algorithm=wanted)
        result = run(left_table, right_table, spec, backend, Side.RIGHT, options, BATCH)
        assert backend.faults
        assert_same_rows(result, oracle_join(left_table, right_table, spec), allow_empty=True, context=f"seed={seed}")


def index(device: EmulatedDevice, keys: list[Any], asked: Algorithm, *, pairs: bool = True) -> Index:
    kind = pa.large_binary() if isinstance(keys[0], bytes) else pa.int64()
    table = pa.table({"k": pa.array(keys, kind)})
    ops = emulated_ops(device)
    return Index(ops, HostKeys(table, ops=ops), entered, asked, pairs=pairs)


def test_what_is_chosen_is_told(emulated: EmulatedDevice) -> None:
    unique, twice, wide = [5, 3, 4], [5, 3, 5], [-(1 << 62), 0, 1 << 62]
    cases: list[tuple[list[Any], Algorithm, str, bool]] = [
        (unique, Algorithm.AUTO, "direct", True),
        (twice, Algorithm.AUTO, "direct", False),
        (wide, Algorithm.AUTO, "unique", True),
        ([*wide, 0], Algorithm.UNIQUE, "csr", False),
        (unique, Algorithm.CSR, "csr", True),
        (unique, Algorithm.CUDF, "cudf direct", True),
        ([b"a", b"b"], Algorithm.AUTO, "direct", True),
        ([b"a", b"bcdefgh"], Algorithm.AUTO, "unique", True),
        ([b"a", b"x" * 16], Algorithm.UNIQUE, "unique", True),
        ([b"a", b"x" * 17], Algorithm.AUTO, "unique fingerprint", True),
        ([b"a", b"x" * 17, b"a"], Algorithm.AUTO, "csr fingerprint", False),
        ([b"a", b"x" * 16], Algorithm.CUDF, "cudf sorted fingerprint", True),
        ([None, None], Algorithm.AUTO, "empty", True),
    ]
    for keys, forced, algorithm, is_unique in cases:
        built = index(emulated, keys, forced)
        assert (built.algorithm, built.unique) == (algorithm, is_unique)


def test_marks_alone_are_cheaper(emulated: EmulatedDevice, rng: np.random.Generator) -> None:
    keys = rng.integers(0, 300, 1000).tolist()
    whole, marks = (index(emulated, keys, Algorithm.AUTO, pairs=pairs) for pairs in (True, False))
    assert marks.nbytes * 30 < whole.nbytes
    probe = HostKeys(pa.table({"k": pa.array(range(-10, 400))}), ops=marks.ops)
    expected = [k in set(keys) for k in range(-10, 400)]
    for built in (whole, marks):
        assert IndexProbe(built, probe).matched().tolist() == expected


def test_a_kernel_that_does_not_compile_is_named_and_cudf_joins(
    make_device: MakeDevice, caplog: pytest.LogCaptureFixture
) -> None:
    device = make_device({"unique.cu": "this is no program"})
    wide = [-(1 << 62), 0, 1 << 62]
    with caplog.at_level("WARNING", "gpujoin"):
        built = index(device, wide, Algorithm.UNIQUE)
    assert built.algorithm == "cudf sorted"
    assert "unique.cu" in caplog.text
    probe = IndexProbe(built, HostKeys(pa.table({"k": pa.array([0, 1, 1 << 62])}), ops=built.ops))
    assert probe.matched().tolist() == [True, False, True]


def test_pairs_that_do_not_compile_are_known_before_a_probe(
    make_device: MakeDevice, caplog: pytest.LogCaptureFixture
) -> None:
    device = make_device({"expand.cu": "this is no program"})
    with caplog.at_level("WARNING", "gpujoin"):
        built = index(device, [5, 3, 5], Algorithm.AUTO)
    assert built.algorithm == "cudf direct"
    assert "expand.cu" in caplog.text
    assert index(device, [5, 3, 4], Algorithm.AUTO).algorithm == "direct", "no pairs are made of unique keys"


def test_the_facts_are_those_of_the_keys(emulated: EmulatedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def choose(facts: KeyFacts, _: Algorithm) -> Choice:
        seen.append(facts)
        return Choice(Algorithm.CSR, "for the test")

    table = pa.table({"k": pa.array([7, None, 7, -3], pa.int32())})
    ops = emulated_ops(emulated)
    monkeypatch.setattr(kernels, "choose", choose)
    assert Index(ops, HostKeys(table, ops=ops), entered, Algorithm.AUTO).algorithm == "csr"
    facts = seen[0]
    assert (facts.rows, facts.keys, facts.key_bytes, facts.low, facts.high) == (4, 3, 4, -3, 7)
    assert facts.slots == 11
    assert facts.rows_per_key == pytest.approx(5 / 3)
    assert facts.heaviest == pytest.approx(2 / 3)
    assert facts.l2_bytes == emulated.properties.l2_bytes
