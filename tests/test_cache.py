"""Values by key, of which as many are kept as fit into so many bytes."""

from __future__ import annotations

import weakref

from gpujoin.cache import Cache, cached_by_life, object_bytes


def test_the_oldest_values_are_forgotten_by_their_bytes_and_not_by_their_number() -> None:
    values: Cache[int, bytes] = Cache(60_000, object_bytes)
    for number in range(100):
        values.put(number, bytes(1000))
    assert [number for number in range(100) if values.get(number)] == list(range(89, 100))
    assert values.total <= 60_000
    values.put(7, bytes(40_000))
    assert [number for number in range(100) if values.get(number)] == [7], "the latest one stays"


def test_what_is_asked_for_stays_and_what_is_replaced_counts_once() -> None:
    values: Cache[str, bytes] = Cache(25_000, object_bytes)
    for name in ("a", "b", "a", "a", "b"):
        values.put(name, bytes(2000))
    assert values.get("a")
    values.put("c", bytes(2000))
    assert (values.get("a") is None, values.get("b"), values.get("c") is None) == (False, None, False)


def test_values_are_counted_where_nothing_tells_their_size() -> None:
    values: Cache[str, int] = Cache(2)
    for number, name in enumerate("abac"):
        values.put(name, number)
    assert values.items() == [("a", 2), ("c", 3)]
    assert "b" not in values
    assert (len(values), values.total) == (2, 2)


def test_values_that_take_nothing_stay_and_others_make_room_for_less() -> None:
    values: Cache[str, int] = Cache(10, abs)
    for name, size in {"mapped": 0, "old": 4, "new": 6}.items():
        values.put(name, size)
    values.limit = 7
    values.fit()
    assert [name for name, _ in values.items()] == ["mapped", "new"]
    assert values.pop("new") == 6
    assert values.pop("new") is None
    assert (values.drop(), values.drop(), values.total) == (True, False, 0)
    values.put("large", 11)
    values.clear()
    assert not values


def test_a_function_is_computed_once_for_each_object_and_forgotten_with_it() -> None:
    class Jvm:
        pass

    asked: list[str] = []

    @cached_by_life
    def setting(jvm: Jvm, name: str) -> str | None:
        del jvm
        asked.append(name)
        return None

    jvm, other = Jvm(), Jvm()
    for each, name in ((jvm, "a"), (jvm, "a"), (jvm, "b"), (other, "a"), (jvm, "b")):
        assert setting(each, name) is None
    assert asked == ["a", "b", "a"]
    gone = weakref.ref(jvm)
    del jvm, each
    assert gone() is None
