"""Mutants that may survive, and why: ``survivors.toml``."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from tests.kernels.mutation.operators import Mutant

SURVIVORS = Path(__file__).with_name("survivors.toml")


@dataclass(frozen=True)
class Explanation:
    """Why a mutant may survive. ``operator``, ``before`` and ``after`` may be empty, which stands for any."""

    file: str
    function: str
    reason: str
    operator: str = ""
    before: str = ""
    after: str = ""

    def covers(self, mutant: Mutant) -> bool:
        """Whether it is about this mutant."""
        wanted = (self.operator, self.before, self.after)
        given = (mutant.operator, mutant.before, mutant.after)
        same = (self.file, self.function) == (mutant.file, mutant.function)
        return same and all(w in ("", g) for w, g in zip(wanted, given, strict=True))


def explanations() -> list[Explanation]:
    """The explained survivors."""
    if not SURVIVORS.is_file():
        return []
    survivors = tomllib.loads(SURVIVORS.read_text(encoding="utf-8")).get("survivor", [])
    return [Explanation(**entry) for entry in survivors]
