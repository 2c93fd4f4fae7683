"""Sentences about the operations of a query."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class NoteKind(Enum):
    """What a note of an operation tells."""

    DECISION = "decision"
    """What decided how it runs."""
    LEFT_TO_SPARK = "left to Spark"
    """Why Spark runs it."""
    WARNING = "warning"
    """What may make it slow, wherever it runs."""
    MEASURED = "measured"
    """What happened when it ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A sentence about an operation."""

    kind: NoteKind
    text: str
    change: str | None = None
    """The setting, argument or rewriting that changes it, if there is one."""

    def __str__(self) -> str:
        change = f" (change with {self.change})" if self.change else ""
        match self.kind:
            case NoteKind.LEFT_TO_SPARK | NoteKind.WARNING:
                return f"{self.kind.value}: {self.text}{change}"
            case NoteKind.DECISION | NoteKind.MEASURED:
                return f"{self.text}{change}"
