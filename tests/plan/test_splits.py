"""Splits: every row group, or every byte, once, and about as many bytes for each task."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpujoin.errors import RelationError
from gpujoin.model.files import DeletedRows, DeletionFormat
from gpujoin.model.relations import FileFooter, FileSlice
from gpujoin.plan.scanned import plan_range_splits, plan_splits


def footer(path: str, sizes: list[int]) -> FileFooter:
    return FileFooter(path, sum(sizes) + 100, 7, tuple(1 for _ in sizes), tuple(sizes))


def file_of(footer: FileFooter) -> FileSlice:
    return FileSlice(footer.path, footer.size, footer.modified_ms)


FILES = st.lists(st.lists(st.integers(0, 1000), max_size=8), max_size=6)


@given(files=FILES, tasks=st.integers(1, 12), most=st.integers(1, 5000))
def test_every_row_group_is_read_once_and_shares_are_even(files: list[list[int]], tasks: int, most: int) -> None:
    footers = [footer(f"f{i}", sizes) for i, sizes in enumerate(files)]
    splits = plan_splits([file_of(each) for each in footers], footers, tasks, most)
    read = [(part.path, group) for split in splits for part in split for group in part.row_groups or ()]
    assert sorted(read) == sorted((f.path, g) for f in footers for g in range(len(f.rows)))
    assert all(split and all(part.row_groups for part in split) for split in splits)
    weights = {(f.path, g): max(1, size) for f in footers for g, size in enumerate(f.group_bytes)}
    if not weights:
        return
    wanted = max(tasks, -(-sum(weights.values()) // most))
    share = sum(weights.values()) / wanted
    for split in splits:
        size = sum(weights[part.path, g] for part in split for g in part.row_groups or ())
        assert size <= share + max(weights.values())
    assert len(splits) <= wanted


def test_slices_carry_what_the_worker_checks() -> None:
    deletion = DeletedRows(DeletionFormat.DELTA, "d", 1, 34, 5)
    file = FileSlice("f", 120, 7, constants=("f",), deletions=(deletion,))
    [[first], [second]] = plan_splits([file], [footer("f", [10, 10])], 2, 1000)
    assert first == dataclasses.replace(file, row_groups=(0,))
    assert second == dataclasses.replace(file, row_groups=(1,))


SIZES = st.lists(st.one_of(st.integers(0, 50), st.integers(12, 1 << 40)), max_size=20)


@given(
    sizes=SIZES, share=st.floats(0, 1), group=st.integers(0, 1 << 20), tasks=st.integers(1, 40),
    most=st.integers(1 << 20, 1 << 45),
)  # fmt: skip
def test_every_byte_is_in_one_range(sizes: list[int], share: float, group: int, tasks: int, most: int) -> None:
    files = [FileSlice(f"f{n}", size, 7, constants=(n,)) for n, size in enumerate(sizes)]
    splits = plan_range_splits(files, share, group, tasks, most)
    assert all(splits)
    ranges: dict[str, list[tuple[int, int]]] = {}
    for part in (part for split in splits for part in split):
        [file] = [file for file in files if file.path == part.path]
        assert (part.size, part.modified_ms, part.constants) == (file.size, file.modified_ms, file.constants)
        assert part.row_groups is None
        ranges.setdefault(part.path, []).append(part.byte_range or (0, part.size))
    assert ranges.keys() == {file.path for file in files}
    for file in files:
        first, *others = sorted(ranges[file.path])
        assert first[0] == 0
        for before, after in itertools.pairwise([first, *others]):
            assert before[1] == after[0]
        assert (others or [first])[-1][1] == file.size


def test_ranges_are_no_smaller_than_a_row_group_and_shares_are_even() -> None:
    mib = 1 << 20
    files = [FileSlice("large", 1000 * mib), FileSlice("small", 100 * mib), FileSlice("other", 100 * mib)]
    splits = plan_range_splits(files, 0.5, 90 * mib, 6, 1 << 40)
    cuts = [[("large", (at * mib, (at + 200) * mib))] for at in range(0, 1000, 200)]
    assert [[(part.path, part.byte_range) for part in split] for split in splits] == [
        *cuts, [("small", None), ("other", None)]
    ]  # fmt: skip
    coarse = plan_range_splits(files, 0.5, 400 * mib, 6, 1 << 40)
    assert [part.byte_range for split in coarse for part in split if part.path == "large"] == [
        (0, 500 * mib), (500 * mib, 1000 * mib)
    ]  # fmt: skip


def test_very_many_small_files_are_shared_out_by_what_opening_them_costs() -> None:
    files = [FileSlice(f"f{n}", 1000) for n in range(10_000)]
    splits = plan_range_splits(files, 0.5, 1000, 4, 128 << 20)
    assert len(splits) == 15
    assert max(map(len, splits)) - min(map(len, splits)) <= 1


@pytest.mark.parametrize(("tasks", "most"), [(0, 1), (1, 0)])
def test_absurd_numbers_are_refused(tasks: int, most: int) -> None:
    with pytest.raises(RelationError, match="splits need"):
        plan_splits([], [], tasks, most)
    with pytest.raises(RelationError, match="splits need"):
        plan_range_splits([], 1.0, 1, tasks, most)
