"""The page of the house counts what it says, and a page of other figures fails nothing."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts import gen_house

MODULE = """
import functools
from dataclasses import dataclass
from typing import Protocol, TypeVar
LIMIT, NAME = -2 * 1024, "n"
SEVERAL = {}
LATEST: Cache[str, int] = Cache(LIMIT, len)
MAKERS: dict[int, int] = {1: 2}
T = TypeVar("T")
limit: int = _setting("limit", 3)


class Plain:
    SIZE = 3


@dataclass(frozen=True)
class Value(Plain):
    size: int = 3


class Shown(Protocol[T]):
    @functools.lru_cache(maxsize=1)
    def show(self) -> str: ...


@functools.cache
def once() -> int:
    return 3
"""


@pytest.fixture(scope="module", autouse=True)
def counted_once() -> Iterator[None]:
    """Has the package, which no test changes, be counted once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gen_house, "rooms", functools.cache(gen_house.rooms))
        yield


def test_what_a_module_holds_is_counted() -> None:
    counted = gen_house.figures_of(MODULE)
    assert counted == {
        "files": 1, "lines": 29, "classes": 3, "dataclasses": 1, "protocols": 1, "settings": 1, "constants": 1,
        "caches": 4,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("path", "room"), [("config.py", "(root)"), ("plan/cost.py", "plan"), ("spark/query/trees/nodes.py", "spark/query")]
)
def test_a_room_has_at_most_two_levels(path: str, room: str) -> None:
    assert gen_house.room_of(Path(path)) == room


def test_a_page_of_other_figures_is_told_and_fails_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gen_house, "TARGET", tmp_path / "house.md")
    for arguments, told in ((["--check"], True), ([], False), (["--check"], False)):
        monkeypatch.setattr("sys.argv", ["gen_house.py", *arguments])
        assert gen_house.main() == 0
        assert ("python scripts/gen_house.py writes it anew" in capsys.readouterr().out) is told


def test_figures_are_recorded_under_the_version_of_the_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gen_house, "RELEASES", tmp_path / "house.json")
    monkeypatch.setattr(gen_house, "TARGET", tmp_path / "house.md")
    monkeypatch.setattr("sys.argv", ["gen_house.py", "--record"])
    assert gen_house.main() == 0
    lines = (tmp_path / "house.md").read_text().splitlines()
    total = next(line for line in lines if line.startswith("| **all** |"))
    now, then = total.split(" | ")[1].split(" ")
    assert then == f"({now})"
