"""Splits: every row group once, about as many bytes for each task."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpujoin.errors import RelationError
from gpujoin.model.relations import FileFooter
from gpujoin.plan.splits import plan_splits


def footer(path: str, sizes: list[int]) -> FileFooter:
    return FileFooter(path, sum(sizes) + 100, 7, tuple(1 for _ in sizes), tuple(sizes), (path,))


FILES = st.lists(st.lists(st.integers(0, 1000), max_size=8), max_size=6)


@given(files=FILES, tasks=st.integers(1, 12), most=st.integers(1, 5000))
def test_every_row_group_is_read_once_and_shares_are_even(files: list[list[int]], tasks: int, most: int) -> None:
    footers = [footer(f"f{i}", sizes) for i, sizes in enumerate(files)]
    splits = plan_splits(footers, tasks, most)
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
    [[first], [second]] = plan_splits([footer("f", [10, 10])], 2, 1000)
    assert (first.path, first.size, first.modified_ms, first.row_groups, first.constants) == (
        "f",
        120,
        7,
        (0,),
        ("f",),
    )
    assert second.row_groups == (1,)


@pytest.mark.parametrize(("tasks", "most"), [(0, 1), (1, 0)])
def test_absurd_numbers_are_refused(tasks: int, most: int) -> None:
    with pytest.raises(RelationError, match="splits need"):
        plan_splits([], tasks, most)
