"""The index against brute force: on NumPy, and with the same code on CuPy where there is a device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("hypothesis", reason="no Hypothesis: pip install hypothesis")

from hypothesis import given
from hypothesis import strategies as st

from gpujoin.backends.cudf import grouping as module
from gpujoin.backends.cudf import rowmaps
from gpujoin.backends.cudf.arrays import exclusive_offsets, owners
from gpujoin.backends.cudf.index import ArrayCoding, Index, IndexProbe
from gpujoin.errors import GpuJoinError
from gpujoin.model.maps import OutOfBounds, Span
from tests.backends.cudf.host import HOST, HostKeys, device_arrays, entered

SLICES = (1, 2, 7, 1000, 1 << 30)
I32, I64, TEXT = pa.int32(), pa.int64(), pa.large_binary()


def table(*columns: tuple[list[Any], pa.DataType]) -> pa.Table:
    return pa.table([pa.array(values, dtype) for values, dtype in columns], names=[str(i) for i in range(len(columns))])


@pytest.fixture(params=["numpy", "cupy"], autouse=True, scope="module")
def array_module(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run every test on both array modules."""
    if request.param == "cupy":
        try:
            MODULE["ops"] = device_arrays()
        except RuntimeError as problem:
            pytest.skip(str(problem))
    yield
    MODULE["ops"] = HOST


MODULE = {"ops": HOST}


def plain(array: Any) -> list[Any]:
    return array.tolist()


def check(build: pa.Table, probe: pa.Table, *, bits: int = 63, algorithm: str | None = None) -> Index:
    """Everything a probe offers, compared with nested loops over Python values."""
    ops = MODULE["ops"]
    keys = HostKeys(build, bits, ops=ops)
    index = Index(ops, keys, entered)
    rows_of: dict[Any, list[int]] = defaultdict(list)
    for row, key in enumerate(keys.rows):
        if None not in key:
            rows_of[key].append(row)
    probe_keys = HostKeys(probe, bits, ops=ops)
    matches = [rows_of.get(key, []) for key in probe_keys.rows]
    expected = [(i, j) for i, rows in enumerate(matches) for j in rows]

    assert index.rows == build.num_rows
    assert index.unique == all(len(rows) < 2 for rows in rows_of.values())
    assert index.nbytes > 0
    if algorithm is not None:
        assert index.algorithm == algorithm
    result = IndexProbe(index, probe_keys)
    assert (result.rows, result.pairs) == (probe.num_rows, len(expected))
    assert result.matched().tolist() == [bool(rows) for rows in matches]
    if index.unique:
        lookup = result.lookup()
        assert lookup.values.tolist() == [rows[0] if rows else -1 for rows in matches]
        assert (lookup.length, lookup.out_of_bounds) == (probe.num_rows, OutOfBounds.NULLIFY)
    else:
        with pytest.raises(GpuJoinError, match="unique"):
            result.lookup()
    for most in SLICES:
        if most * 5000 < len(expected):
            continue
        pairs: list[tuple[int, int]] = []
        for part in result.slices(most):
            assert 0 < part.length <= most
            left, right = (plain(rowmaps.indices(ops, side)) for side in (part.probe, part.build))
            assert len(left) == len(right) == part.length
            pairs += zip(left, right, strict=True)
        assert pairs == expected
    marks = ops.xp.zeros(build.num_rows, dtype=bool)
    result.mark_build(marks)
    assert plain(marks.nonzero()[0]) == sorted({j for _, j in expected})
    return index


@pytest.mark.parametrize("dtype", [I32, I64], ids=str)
@pytest.mark.parametrize(
    ("build", "algorithm"),
    [
        (list(range(100)), "cudf direct"),
        (list(range(-50, 50))[::-1], "cudf direct"),
        ([5] * 40 + [7, 9, 9], "cudf direct"),
        ([i % 7 for i in range(60)], "cudf direct"),
        ([None, 3, None, 3, 4], "cudf direct"),
        ([None] * 5, "empty"),
        ([], "empty"),
        ([-(1 << 31), (1 << 31) - 1, 0], "cudf sorted"),
        ([-(1 << 31), (1 << 31) - 1, 0, -(1 << 31), None, 0], "cudf sorted"),
        ([i * 40_000_000 for i in range(-50, 50)], "cudf sorted"),
        ([(i % 13) * 100_000_000 for i in range(90)], "cudf sorted"),
        ([(1 << 31) - 1], "cudf direct"),
        ([-(1 << 31), -(1 << 31)], "cudf direct"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_single_integer(build: list[int | None], algorithm: str, dtype: pa.DataType) -> None:
    probe = [*build, *build, -(1 << 31), (1 << 31) - 1, 0, 1, 3, 5, 6, 9, None, -51, 100]
    built = table((build, dtype))
    check(built, table((probe, dtype)), algorithm=algorithm)
    check(built, table(([], dtype)))


def test_extremes_of_int64() -> None:
    low, high = -(1 << 63), (1 << 63) - 1
    check(
        table(([low, high, 0, None], I64)),
        table(([high, low, low, None, 1, -1], I64)),
        algorithm="cudf sorted",
    )
    check(table(([high, high - 1], I64)), table(([high, low, low + 1, 0], I64)), algorithm="cudf direct")
    check(
        table(([low, low + 2, low], I64)),
        table(([high, low, low + 1, low + 2, 0], I64)),
        algorithm="cudf direct",
    )


def test_a_large_range_is_not_addressed_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SMALL_TABLE_SLOTS", 8)
    check(table((list(range(0, 40, 4)), I64)), table((list(range(50)), I64)), algorithm="cudf direct")
    check(table((list(range(0, 50, 5)), I64)), table((list(range(50)), I64)), algorithm="cudf sorted")


def test_two_int32_columns_are_one_code() -> None:
    a = [1, -1, 0, 0, -1, None, 1, 2**31 - 1, -(2**31)]
    b = [-1, 1, 0, -1, -1, 1, None, -(2**31), 2**31 - 1]
    index = check(table((a, I32), (b, I32)), table((a[::-1] + b, I32), (b[::-1] + a, I32)))
    assert index.algorithm in ("cudf direct", "cudf sorted")


@pytest.mark.parametrize("bits", [63, 5, 2])
@pytest.mark.parametrize("columns", [(TEXT,), (I64, I64), (I32, TEXT), (TEXT, I64, TEXT)], ids=str)
def test_other_keys_are_verified(columns: tuple[pa.DataType, ...], bits: int, rng: np.random.Generator) -> None:
    """Few bits make probes meet groups of other keys; where build keys collide under every seed it is an error."""

    def side(rows: int, distinct: int) -> pa.Table:
        made = []
        for dtype in columns:
            values = rng.integers(0, distinct, rows).tolist()
            if pa.types.is_large_binary(dtype):
                values = [b"\x00" * (v % 3) + str(v).encode() for v in values]
            made.append(([None if rng.random() < 0.1 else v for v in values], dtype))
        return table(*made)

    if bits == 63:
        check(side(200, 6), side(300, 8), algorithm="cudf sorted fingerprint")
        check(side(0, 6), side(30, 8), algorithm="empty")
        return
    keys = side(1, 1)
    while any(c.null_count for c in keys.columns):
        keys = side(1, 1)
    check(pa.concat_tables([keys, keys]), side(300, 8), bits=bits, algorithm="cudf sorted fingerprint")
    check(keys, side(300, 8), bits=bits, algorithm="cudf sorted fingerprint")
    wide = table(
        *[
            (list(range(64)) if not pa.types.is_large_binary(t) else [str(i).encode() for i in range(64)], t)
            for t in columns
        ]
    )
    with pytest.raises(GpuJoinError, match="one code"):
        Index(HOST, HostKeys(wide, bits), entered)


def test_a_colliding_hash_function_is_replaced() -> None:
    keys = HostKeys(table(([b"a", b"b", b"a", None], TEXT)), colliding_seeds=3)
    index = Index(HOST, keys, entered)
    assert index.coding == ArrayCoding(3, exact=False)
    probe = IndexProbe(index, HostKeys(table(([b"b", b"c", b"a"], TEXT)), colliding_seeds=3))
    assert probe.pairs == 3
    assert probe.matched().tolist() == [True, False, True]


def test_all_probe_rows_matching_a_unique_build_need_no_probe_indices() -> None:
    index = Index(HOST, HostKeys(table(([3, 1, 2], I64))), entered)
    parts = list(IndexProbe(index, HostKeys(table(([1, 2, 3, 3, 1], I64)))).slices(2))
    assert [part.probe for part in parts] == [Span(0, 2), Span(2, 2), Span(4, 1)]


values = st.one_of(
    st.none(), st.integers(-6, 6), st.integers(-(2**31), 2**31 - 1), st.sampled_from([2**31 - 1, -(2**31)])
)


@given(build=st.lists(values, max_size=60), probe=st.lists(values, max_size=60), wide=st.booleans())
def test_any_integers(build: list[int | None], probe: list[int | None], wide: bool) -> None:
    dtype = I64 if wide else I32
    check(table((build, dtype)), table((probe, dtype)))


@given(
    build=st.lists(st.tuples(st.sampled_from([None, b"", b"a", b"b"]), st.sampled_from([None, 0, 1, -1])), max_size=40),
    probe=st.lists(st.tuples(st.sampled_from([None, b"", b"a", b"c"]), st.sampled_from([None, 0, 1, 2])), max_size=40),
)
def test_any_text_and_integer(build: list[tuple[Any, Any]], probe: list[tuple[Any, Any]]) -> None:
    sides = [table(([a for a, _ in side], TEXT), ([b for _, b in side], I64)) for side in (build, probe)]
    check(*sides)


@given(sizes=st.lists(st.integers(0, 5), max_size=30), data=st.data())
def test_owners_of_a_window(sizes: list[int], data: st.DataObject) -> None:
    owned = [i for i, size in enumerate(sizes) for _ in range(size)]
    offsets = exclusive_offsets(HOST, np.array(sizes, dtype=np.int32))
    assert offsets.tolist() == np.cumsum([0, *sizes]).tolist()
    first = data.draw(st.integers(0, len(owned)))
    last = data.draw(st.integers(first, len(owned)))
    if first == last:
        assert owners(HOST, np.array(sizes), offsets[:-1], 0).tolist() == []
        return
    low, high = owned[first], owned[last - 1] + 1
    result = owners(HOST, np.array(sizes[low:high]), offsets[low:high] - first, last - first)
    assert (result + low).tolist() == owned[first:last]
