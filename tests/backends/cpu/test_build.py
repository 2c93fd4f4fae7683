"""Every algorithm against a join in plain Python, and which algorithm is chosen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

pytest.importorskip("hypothesis", reason="no Hypothesis: pip install hypothesis")

from hypothesis import example, given
from hypothesis import strategies as st

from gpujoin.backends.cpu import keywords, longkeys
from gpujoin.backends.cpu.build import make_build
from gpujoin.backends.cpu.cascade import scramble_words
from tests.backends.cpu.support import BACKEND, check_join, keys

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
ODD = np.uint64(0x9E3779B97F4A7C15)


def dense(numbers: npt.NDArray[np.int64]) -> list[Any]:
    return [pa.array(numbers - 3)]


def dense32(numbers: npt.NDArray[np.int64]) -> list[Any]:
    return [pa.array((numbers - 3).astype(np.int32))]


def sparse(numbers: npt.NDArray[np.int64]) -> list[Any]:
    return [pa.array((numbers.astype(np.uint64) * ODD).view(np.int64))]


def sparse32(numbers: npt.NDArray[np.int64]) -> list[Any]:
    return [pa.array((numbers.astype(np.uint64) * ODD >> np.uint64(32)).astype(np.uint32).view(np.int32))]


def high_bits(numbers: npt.NDArray[np.int64]) -> list[Any]:
    return [pa.array(numbers << 40)]


def packed(numbers: npt.NDArray[np.int64]) -> list[Any]:
    return [pa.array((numbers // 7).astype(np.int32)), pa.array(numbers % 7)]


def packed_sparse(numbers: npt.NDArray[np.int64]) -> list[Any]:
    return [pa.array((numbers * 2_654_435_761) % (1 << 31)), pa.array((numbers % 5 << 20).astype(np.int32))]


def two_words(numbers: npt.NDArray[np.int64]) -> list[Any]:
    return [*sparse(numbers // 3), *sparse(numbers)]


def _bytes(values: list[bytes]) -> list[Any]:
    return [pa.array(values, pa.large_binary())]


def short_bytes(numbers: npt.NDArray[np.int64]) -> list[Any]:
    return _bytes([b"%d" % n for n in numbers])


def nul_bytes(numbers: npt.NDArray[np.int64]) -> list[Any]:
    return _bytes([b"\0" * (n % 8) for n in numbers])


def empty_bytes(numbers: npt.NDArray[np.int64]) -> list[Any]:
    return _bytes([b"" for _ in numbers])


def padded_bytes(numbers: npt.NDArray[np.int64]) -> list[Any]:
    return _bytes([b"x" * (n % 9) + b"%d" % (10000 + n) for n in numbers])


def fixed_8(numbers: npt.NDArray[np.int64]) -> list[Any]:
    return _bytes([b"%08d" % n for n in numbers])


def fixed_16(numbers: npt.NDArray[np.int64]) -> list[Any]:
    return _bytes([b"%016d" % n for n in numbers])


def fixed_36(numbers: npt.NDArray[np.int64]) -> list[Any]:
    return _bytes([b"%036d" % n for n in numbers])


def long_bytes(numbers: npt.NDArray[np.int64]) -> list[Any]:
    return _bytes(["ß".encode() * (n % 40) + b"%d" % n for n in numbers])


def bytes_and_integer(numbers: npt.NDArray[np.int64]) -> list[Any]:
    return [*long_bytes(numbers // 2), *dense32(numbers)]


KINDS: dict[Callable[[npt.NDArray[np.int64]], list[Any]], str] = {
    dense: "direct",
    dense32: "direct",
    sparse: "hash",
    sparse32: "hash",
    high_bits: "hash",
    packed: "direct",
    packed_sparse: "hash",
    two_words: "hash_words",
    short_bytes: "hash",
    padded_bytes: "hash_words",
    fixed_8: "hash",
    fixed_16: "hash_words",
    fixed_36: "hash_words",
    long_bytes: "hash_bytes",
    bytes_and_integer: "hash_bytes",
}


def with_nulls(rng: np.random.Generator, columns: list[Any], share: float) -> list[Any]:
    result = []
    for column in columns:
        mask = rng.random(len(column)) < share
        result.append(pa.array([None if m else v for v, m in zip(column.to_pylist(), mask, strict=True)], column.type))
    return result


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("distinct", [True, False], ids=["unique", "duplicates"])
@pytest.mark.parametrize("nulls", [0.0, 0.2], ids=["no_nulls", "nulls"])
def test_pairs(rng: np.random.Generator, kind: Callable[..., list[Any]], distinct: bool, nulls: float) -> None:
    for rows in (1, 33, 700):
        numbers = rng.permutation(2 * rows)[:rows] if distinct else rng.integers(0, max(1, rows // 3), rows)
        others = rng.integers(0, 3 * rows, 2 * rows)
        offset = int(rng.integers(0, 3))
        build = keys(*with_nulls(rng, kind(numbers), nulls)).slice(offset)
        probe = keys(*with_nulls(rng, kind(others), nulls)).slice(offset)
        made = check_join(probe, build, dense_anyway=16)
        if rows == 700:
            assert made.algorithm == KINDS[kind]


@pytest.mark.parametrize("kind", [*KINDS, nul_bytes, empty_bytes], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("hash_bits", [0, 2], ids=["one_hash", "four_hashes"])
def test_colliding_hashes(rng: np.random.Generator, kind: Callable[..., list[Any]], hash_bits: int) -> None:
    def weak(words: tuple[npt.NDArray[Any], ...]) -> npt.NDArray[np.uint64]:
        return scramble_words(words) & np.uint64((1 << hash_bits) - 1)

    for numbers in (rng.permutation(60), rng.integers(0, 20, 60)):
        build, probe = keys(*kind(numbers)), keys(*kind(rng.integers(0, 90, 200)))
        made = check_join(probe, build, dense_factor=0, dense_anyway=0, scramble=weak)
        assert made.algorithm.startswith("hash") or numbers.max() == 0


@pytest.mark.parametrize("distinct", [1, 3], ids=["one_fingerprint", "three_fingerprints"])
@pytest.mark.parametrize("kind", [long_bytes, bytes_and_integer], ids=lambda kind: kind.__name__)
def test_colliding_fingerprints(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, kind: Callable[..., list[Any]], distinct: int
) -> None:
    """Long keys whose fingerprints are equal are told apart by their bytes."""
    monkeypatch.setattr(keywords, "fingerprints", lambda array: longkeys.fingerprints(array) % np.uint64(distinct))
    for numbers in (rng.permutation(80), rng.integers(0, 20, 80)):
        build = keys(*with_nulls(rng, kind(numbers), 0.1))
        probe = keys(*with_nulls(rng, kind(rng.integers(0, 120, 300)), 0.1))
        assert check_join(probe, build).algorithm == "hash_bytes"


@pytest.mark.parametrize("dtype", [pa.int32(), pa.int64()], ids=str)
def test_ranges_at_the_ends_of_the_type(dtype: pa.DataType) -> None:
    low, high = (INT32_MIN, INT32_MAX) if dtype == pa.int32() else (INT64_MIN, INT64_MAX)
    everything = keys(pa.array([low, low + 1, low + 2, -1, 0, 1, high - 2, high - 1, high], dtype))
    for build in (
        [low],
        [high],
        [low, high],
        [low + 1, low],
        [high, high - 1, high],
        [low, 0, high, high],
        [-1, 0, 1],
    ):
        for anyway in (0, 16):
            check_join(everything, keys(pa.array(build, dtype)), dense_anyway=anyway)


def test_range_wider_than_64_bits_is_hashed() -> None:
    made = check_join(keys([INT64_MIN, 0, INT64_MAX]), keys([INT64_MAX, INT64_MIN, 7]), dense_anyway=1 << 18)
    assert made.algorithm == "hash"
    made = check_join(
        keys([INT64_MIN, INT64_MIN, INT64_MAX], [INT64_MIN, INT64_MAX, INT64_MAX]),
        keys([INT64_MIN, INT64_MAX, INT64_MIN], [INT64_MIN, INT64_MAX, 5]),
    )
    assert made.algorithm == "hash_words"


def test_ascending_keys_need_no_table() -> None:
    made = check_join(keys([4, 5, 9, 10, -(2**62)]), keys(np.arange(5, 10)))
    assert made.algorithm == "offset"
    assert made.nbytes == 0
    assert check_join(keys([5, 6]), keys([6, 5])).algorithm == "direct"
    assert check_join(keys([5, 6]), keys([5, 5, 6])).algorithm == "direct"


def test_sorted_duplicates_need_no_order() -> None:
    made = check_join(keys([1, 2, 3]), keys([1, 1, 2, 2, 2, 3]))
    assert made.groups is not None
    assert made.groups.order is None


@pytest.mark.parametrize(
    "build",
    [
        keys(pa.array([], pa.int64())),
        keys(pa.array([None, None], pa.int64())),
        keys(pa.array([1, None], pa.int64()), pa.array([None, 2], pa.int32())),
        keys(pa.array([], pa.large_binary())),
        keys(pa.array([None], pa.large_binary())),
    ],
    ids=["no_rows", "all_null", "a_null_in_each", "no_bytes", "null_bytes"],
)
def test_builds_that_match_nothing(build: pa.Table) -> None:
    for rows in (0, 3):
        probe = pa.table(
            [pa.array([b"" if pa.types.is_large_binary(t) else 1] * rows, t) for t in build.schema.types],
            names=build.schema.names,
        )
        assert check_join(probe, build).algorithm == "empty"


def test_empty_probe() -> None:
    for kind in KINDS:
        build = keys(*kind(np.arange(10)))
        check_join(build.slice(0, 0), build)


@pytest.mark.parametrize("rows", [65_535, 65_536, 65_537, 200_000])
@pytest.mark.parametrize("kind", [dense, sparse, two_words], ids=lambda kind: kind.__name__)
def test_sizes_around_a_chunk(
    rng: np.random.Generator, kind: Callable[[npt.NDArray[np.int64]], list[Any]], rows: int
) -> None:
    """Checked without the Python join: the build's own row numbers are the answer."""
    numbers = rng.permutation(rows)
    made = make_build(BACKEND.from_arrow(keys(*kind(numbers))))
    others = rng.integers(0, 2 * rows, rows)
    build_rows = made.probe(BACKEND.from_arrow(keys(*kind(others)))).lookup().values
    row_of = np.full(2 * rows, -1)
    row_of[numbers] = np.arange(rows)
    assert np.array_equal(build_rows, row_of[others])


def test_one_hot_key() -> None:
    """A million matches of one row, in slices that cut it, without ever being held together."""
    hot = 1_000_000
    build = keys(np.concatenate([[2], np.zeros(hot, np.int64), [5]]))
    made = make_build(BACKEND.from_arrow(build))
    result = made.probe(BACKEND.from_arrow(keys([5, 0, 1, 0])))
    assert result.pairs == 2 * hot + 1
    assert result.matched().tolist() == [True, True, False, True]
    total, seen = 0, np.zeros(hot + 2, np.int64)
    for part in result.slices(300_001):
        assert part.length <= 300_001
        build_rows = BACKEND.indices_to_host(part.build)
        assert (np.diff(BACKEND.indices_to_host(part.probe)) >= 0).all()
        np.add.at(seen, build_rows, 1)
        total += part.length
    assert total == result.pairs
    assert seen[0] == 0
    assert (seen[1:-1] == 2).all()
    assert seen[-1] == 1
    marks = BACKEND.marks(build.num_rows)
    result.mark_build(marks)
    assert np.flatnonzero(~marks).tolist() == [0]


def test_pairs_are_counted_in_64_bits() -> None:
    rows = 70_000
    same = BACKEND.from_arrow(keys(np.full(rows, 9)))
    made = make_build(same)
    result = made.probe(same)
    assert result.pairs == rows * rows > 1 << 32
    first = next(result.slices(10))
    assert BACKEND.indices_to_host(first.build).tolist() == list(range(10))


def test_a_long_chain_of_tables_stays_small() -> None:
    """Keys whose hashes are all equal cost a table each, and the tables stop growing with the rows."""

    def constant(words: tuple[npt.NDArray[Any], ...]) -> npt.NDArray[np.uint64]:
        return np.zeros(len(words[0]), np.uint64)

    rows = 500
    made = check_join(keys(np.arange(rows) << 40), keys(np.arange(rows) << 40), scramble=constant)
    assert made.nbytes < 24 * 4 * 4 * rows + rows * (16 * 4 + 8) + 10_000


integers = st.one_of(
    st.sampled_from([None, INT64_MIN, INT64_MAX, 0, -1, 1, 1 << 40]),
    st.integers(-5, 5),
    st.integers(INT64_MIN, INT64_MAX),
)
small = st.one_of(st.none(), st.sampled_from([INT32_MIN, INT32_MAX]), st.integers(-3, 3))
texts = st.one_of(st.none(), st.binary(max_size=3), st.sampled_from([b"a" * n for n in (7, 8, 15, 16, 17, 48, 49)]))


@given(st.lists(integers, max_size=40), st.lists(integers, max_size=40), st.sampled_from([0, 8, 1 << 18]))
@example([INT64_MIN], [INT64_MAX, INT64_MAX - 1], 8)
def test_any_integers(probe: list[int | None], build: list[int | None], anyway: int) -> None:
    check_join(keys(pa.array(probe, pa.int64())), keys(pa.array(build, pa.int64())), dense_anyway=anyway)


@given(st.lists(st.tuples(integers, small), max_size=30), st.lists(st.tuples(integers, small), max_size=30))
def test_any_two_integers(probe: list[tuple[Any, Any]], build: list[tuple[Any, Any]]) -> None:
    check_join(_two(probe, pa.int64(), pa.int32()), _two(build, pa.int64(), pa.int32()))


@given(st.lists(texts, max_size=30), st.lists(texts, max_size=30))
@example([b"\0", b""], [b"", b"\0\0"])
@example([b"a" * 17], [b"a" * 16 + b"b"])
def test_any_bytes(probe: list[bytes | None], build: list[bytes | None]) -> None:
    check_join(keys(pa.array(probe, pa.large_binary())), keys(pa.array(build, pa.large_binary())))


@given(st.lists(st.tuples(texts, small), max_size=20), st.lists(st.tuples(texts, small), max_size=20))
def test_any_bytes_and_integer(probe: list[tuple[Any, Any]], build: list[tuple[Any, Any]]) -> None:
    check_join(_two(probe, pa.large_binary(), pa.int32()), _two(build, pa.large_binary(), pa.int32()))


def _two(rows: list[tuple[Any, Any]], first: pa.DataType, second: pa.DataType) -> pa.Table:
    return keys(pa.array([row[0] for row in rows], first), pa.array([row[1] for row in rows], second))
