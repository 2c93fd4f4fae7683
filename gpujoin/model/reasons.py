"""Reasons why a join, or a part of a query, is left to Spark."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class ReasonKind(Enum):
    """Kinds of obstacles."""

    UNSUPPORTED = "unsupported"
    """The operation, type or expression is not covered."""
    UNREAD = "unread"
    """A source is read by Spark alone."""
    SLOWER = "slower"
    """The operation is supported, but is predicted to be slower than in Spark."""
    UNAVAILABLE = "unavailable"
    """A package or device is missing."""
    CONFIGURED = "configured"
    """A setting, hint or argument asked for it."""
    UNEXPECTED = "unexpected"
    """Planning met something it does not understand."""


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason why a join, or a part of one, is run elsewhere.

    Attributes
    ----------
    kind : ReasonKind
        What sort of obstacle this is.
    what : str
        The part concerned: ``"join type"``, ``"condition"``, ``"key 2"``, ``"size"``, …
    why : str
        The obstacle, with the value met.
    setting : str or None
        The setting, argument or hint that changes the outcome, if one does.
    """

    kind: ReasonKind
    what: str
    why: str
    setting: str | None = None

    def __str__(self) -> str:
        hint = f" (change with {self.setting})" if self.setting else ""
        return f"{self.what}: {self.why}{hint}"
