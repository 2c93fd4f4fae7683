"""Samples of files: which are looked at, and what is concluded of the others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpujoin.errors import RelationError
from gpujoin.model.files import FileFooter, FileSlice
from gpujoin.plan.scanned import Buckets, ScannedFiles, bucket_delay, bucket_splits, sample_of

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


@given(
    tables=st.lists(
        st.lists(st.tuples(st.sampled_from([None, 0, 1, 2, 3]), st.integers(1, 99))), min_size=1, max_size=3
    ),
    tasks=st.integers(1, 6),
)
def test_each_task_has_all_files_of_its_buckets(tables: list[list[tuple[int | None, int]]], tasks: int) -> None:
    files = [
        ([FileSlice(f"{n}-{m}", size) for m, (_, size) in enumerate(each)], Buckets("b", *zip(*each, strict=True)))
        for n, each in enumerate(tables)
        if each
    ]
    if not files:
        return
    splits = bucket_splits(files, tasks)
    assert len(splits) == min(tasks, len({bucket for _, buckets in files for bucket in buckets.numbers}))
    owners: dict[int | None, set[int]] = {}
    for number, (slices, buckets) in enumerate(files):
        assert sorted(file.path for split in splits for file in split[number]) == sorted(file.path for file in slices)
        for task, split in enumerate(splits):
            for file in split[number]:
                owners.setdefault(buckets.numbers[slices.index(file)], set()).add(task)
    assert all(len(tasks) == 1 for tasks in owners.values())


def test_large_buckets_are_read_alone() -> None:
    left, right = Buckets("b", (0, 1, 2), (90, 40, 40)), Buckets("b", (0, 1, 3), (20, 10, 50))
    tables = [([FileSlice(f"{name}{n}", 1) for n in each.numbers], each) for name, each in (("l", left), ("r", right))]
    paths = [[[file.path for file in part] for part in split] for split in bucket_splits(tables, 2)]
    assert paths == [[["l0"], ["r0"]], [["l1", "l2"], ["r1", "r3"]]]
    assert bucket_delay([left, right], 2) == 2 * 140 / 250
    assert bucket_delay([left, right], 8) == 8 * 110 / 250


def test_a_sample_of_nothing_is_refused() -> None:
    with pytest.raises(RelationError, match="needs a file"):
        sample_of(FILES, 0)
