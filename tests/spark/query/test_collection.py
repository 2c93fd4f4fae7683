"""The collector of cyclic garbage while queries are planned."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest

from gpujoin.spark.query.activity import doing
from gpujoin.spark.query.collection import collection_paused


@pytest.fixture(autouse=True)
def running() -> Iterator[None]:
    was_running = gc.isenabled()
    gc.enable()
    yield
    (gc.enable if was_running else gc.disable)()


def test_it_rests_while_a_query_is_planned_and_runs_while_planning_waits() -> None:
    with collection_paused():
        assert not gc.isenabled()
        with doing("a scalar subquery"):
            assert gc.isenabled()
            with collection_paused():
                assert not gc.isenabled()
            assert gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_runs_again_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), collection_paused(), doing("nothing"):
        raise ZeroDivisionError
    assert gc.isenabled()


def test_it_stays_off_where_the_program_does_without_it() -> None:
    gc.disable()
    with collection_paused(), doing("nothing"):
        assert not gc.isenabled()
    assert not gc.isenabled()


def test_it_runs_when_the_last_of_several_threads_has_planned() -> None:
    begun, over = threading.Event(), threading.Event()

    def plan() -> None:
        with collection_paused():
            begun.set()
            assert over.wait(10)

    other = threading.Thread(target=plan)
    with collection_paused():
        other.start()
        assert begun.wait(10)
    assert not gc.isenabled()
    over.set()
    other.join()
    assert gc.isenabled()
