"""Samples of files: which are looked at, and what is concluded of the others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpujoin.errors import RelationError
from gpujoin.model.files import FileFooter, FileSlice
from gpujoin.plan.scanned import ScannedFiles, sample_of

FILES = (FileSlice("a", 100), FileSlice("b", 100), FileSlice("c", 200))
FOOTERS = (FileFooter("a", 100, 0, (10,), (40,)), FileFooter("c", 200, 0, (15, 5), (60, 20)))


def test_sizes_are_estimated_by_the_bytes_of_the_sample() -> None:
    scanned = ScannedFiles(FILES, FOOTERS)
    assert scanned.is_sampled
    assert (scanned.rows, scanned.nbytes) == (40.0, 160)
    assert [[part.path for part in split] for split in scanned.splits(2, 1 << 30)] == [["a", "b"], ["c"]]


def test_sizes_of_all_footers_are_exact_and_row_groups_are_divided() -> None:
    scanned = ScannedFiles(FILES[::2], FOOTERS)
    assert not scanned.is_sampled
    assert (scanned.rows, scanned.nbytes) == (30.0, 120)
    assert [[part.row_groups for part in split] for split in scanned.splits(3, 1)][-1] == [(1,)]


def test_no_files_are_no_rows() -> None:
    assert ScannedFiles((), ()).rows == 0
    assert ScannedFiles((), ()).splits(3, 10) == []


@given(sizes=st.lists(st.integers(0, 1000), max_size=300), most=st.integers(1, 60))
def test_a_sample_is_bounded_and_has_the_ends_and_the_largest(sizes: list[int], most: int) -> None:
    sample = sample_of([FileSlice(str(n), size) for n, size in enumerate(sizes)], most)
    assert sample == sorted(set(sample))
    assert len(sample) <= most
    assert len(sample) == len(sizes) or len(sample) >= most - 1
    if most >= 3 and sizes:
        assert {sample[0], sample[-1]} == {0, len(sizes) - 1}
    if sizes:
        assert max(sizes) in [sizes[number] for number in sample]


def test_a_sample_of_nothing_is_refused() -> None:
    with pytest.raises(RelationError, match="needs a file"):
        sample_of(FILES, 0)
