"""Morsels, and work that is done ahead of what uses its results."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pyarrow as pa
import pytest

from gpujoin.engine.morsels import ahead, morsels


@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize("count", [0, 1, 2, 50])
def test_results_come_in_order(count: int, threads: int) -> None:
    def slow(item: int) -> int:
        time.sleep(0.001 * (item % 3))
        return item * item

    assert list(ahead(slow, range(count), threads)) == [item * item for item in range(count)]


def test_the_next_item_is_worked_on_while_a_result_is_used() -> None:
    begun = [threading.Event() for _ in range(3)]

    def work(item: int) -> int:
        begun[item].set()
        return item

    results = ahead(work, range(3), 1)
    assert next(results) == 0
    assert begun[1].wait(10)
    assert not begun[2].is_set()
    assert list(results) == [1, 2]


def test_items_are_taken_by_the_callers_thread() -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for item in range(5):
            taken.append(threading.get_ident())
            yield item

    workers = set(ahead(lambda _: threading.get_ident(), items(), 1))
    assert set(taken) == {threading.get_ident()}
    assert workers.isdisjoint(taken)


def test_a_single_item_needs_no_thread() -> None:
    assert list(ahead(lambda _: threading.get_ident(), [1], 1)) == [threading.get_ident()]


def test_an_error_comes_after_the_results_before_it() -> None:
    def work(item: int) -> int:
        if item == 2:
            raise ValueError("two")
        return item

    results = ahead(work, range(5), 1)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ValueError, match="two"):
        next(results)


def test_an_error_of_the_source_is_raised_and_leaves_no_thread() -> None:
    def items() -> Iterator[int]:
        yield from range(3)
        raise OSError("gone")

    before = threading.active_count()
    with pytest.raises(OSError, match="gone"):
        list(ahead(lambda item: item, items(), 1))
    assert threading.active_count() == before


def test_closing_leaves_no_thread() -> None:
    before = threading.active_count()
    results = ahead(lambda item: item, range(100), 1)
    next(results)
    results.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before


def test_a_few_rows_of_large_values_are_merged_up_to_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpujoin.engine.morsels.PIECE_BYTES", 10_000)
    batches = [
        pa.record_batch({"n": [n], "s": ["x" * (3000 if n < 9 else 30_000 if n == 9 else 1)]}) for n in range(40)
    ]
    merged = list(morsels(batches, batches[0].schema, 1000))
    assert [batch.num_rows for batch in merged] == [3, 3, 3, 1, 30]
    assert pa.Table.from_batches(merged).equals(pa.Table.from_batches(batches).combine_chunks())
