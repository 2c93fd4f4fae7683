"""Row maps as arrays, against plain Python lists."""

from __future__ import annotations

import numpy as np
import pytest

from gpujoin.backends.cudf import rowmaps
from gpujoin.errors import DeviceMemoryError
from gpujoin.launch.keys import MAX_ROWS
from gpujoin.model.maps import AllNull, Indices, OutOfBounds, Repeat, RowMap, Span, Tile
from tests.backends.cudf.host import HOST

MAPS: list[tuple[RowMap, list[int]]] = [
    (Indices(np.array([4, 0, 4], np.int32), 3), [4, 0, 4]),
    (Indices(np.array([4, -1, 0], np.int32), 3, OutOfBounds.NULLIFY), [4, -1, 0]),
    (Span(3, 4), [3, 4, 5, 6]),
    (Span(3, 0), []),
    (Repeat(5, 7, 3), [1, 2, 2, 2, 3, 3, 3]),
    (Repeat(2**33, 3, 2**32), [2, 2, 2]),
    (Tile(5, 7, 3), [2, 0, 1, 2, 0, 1, 2]),
    (Tile(2**33 + 1, 2, 2**30), [1, 2]),
    (AllNull(2), [-1, -1]),
]
each_map = pytest.mark.parametrize(("rows", "expected"), MAPS, ids=lambda value: str(value)[:32])


@each_map
def test_indices(rows: RowMap, expected: list[int]) -> None:
    result = rowmaps.indices(HOST, rows)
    assert result.tolist() == expected
    assert result.dtype == np.int32


@each_map
def test_indices_for_libcudf(rows: RowMap, expected: list[int]) -> None:
    result = rowmaps.gather_indices(HOST, rows)
    assert result.tolist() == [rowmaps.OUT_OF_BOUNDS if i < 0 else i for i in expected]
    assert result.dtype == np.int32
    assert rowmaps.may_miss(rows) or min(expected, default=0) >= 0
    assert rowmaps.OUT_OF_BOUNDS >= MAX_ROWS, "a row of some table"


@each_map
@pytest.mark.parametrize("seed", range(4))
def test_filter(rows: RowMap, expected: list[int], seed: int) -> None:
    mask = np.random.default_rng(seed).random(rows.length) < (0.0, 0.5, 0.8, 1.1)[seed]
    kept = rowmaps.filtered(HOST, rows, mask)
    wanted = [i for i, keep in zip(expected, mask, strict=True) if keep]
    assert kept.length == len(wanted)
    assert rowmaps.indices(HOST, kept).tolist() == wanted


@pytest.mark.parametrize("mask", [[], [True], [False], [True, False, True], [True] * 3, [False] * 3], ids=str)
@pytest.mark.parametrize("value", [True, False])
def test_selection(mask: list[bool], value: bool) -> None:
    result = rowmaps.selected(HOST, np.array(mask, dtype=bool), value)
    wanted = [i for i, m in enumerate(mask) if m is value]
    assert rowmaps.indices(HOST, result).tolist() == wanted
    assert isinstance(result, Span) == (len(wanted) == len(mask))


@pytest.mark.parametrize(
    ("rows", "expected"), [m for m in MAPS if not rowmaps.may_miss(m[0])], ids=lambda v: str(v)[:32]
)
def test_marks(rows: RowMap, expected: list[int]) -> None:
    marks = np.zeros(9, dtype=bool)
    rowmaps.set_marks(HOST, marks, rows)
    assert marks.nonzero()[0].tolist() == sorted(set(expected))


def test_more_rows_than_a_column_can_hold_ask_for_fewer() -> None:
    with pytest.raises(DeviceMemoryError, match="2147483648"):
        rowmaps.indices(HOST, AllNull(MAX_ROWS + 1))
