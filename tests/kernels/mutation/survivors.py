"""Mutants that may survive, and why: ``survivors.toml``."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from tests.kernels.mutation.operators import Mutant

SURVIVORS = Path(__file__).with_name("survivors.toml")


@dataclass(frozen=True)
class Explanation:
    """Why a mutant may survive. ``operator`` and ``after`` may be empty, for all edits of the line."""

    file: str
    function: str
    before: str
    reason: str
    operator: str = ""
    after: str = ""

    def covers(self, mutant: Mutant) -> bool:
        """Whether it is about this mutant."""
        same = (self.file, self.function, self.before) == (mutant.file, mutant.function, mutant.before)
        return same and self.operator in ("", mutant.operator) and self.after in ("", mutant.after)


def explanations() -> list[Explanation]:
    """The explained survivors."""
    if not SURVIVORS.is_file():
        return []
    found = tomllib.loads(SURVIVORS.read_text(encoding="utf-8")).get("survivor", [])
    return [Explanation(**entry) for entry in found]
