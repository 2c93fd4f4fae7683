"""The error of translation, which every module of this package raises."""

from __future__ import annotations


class NotTranslatableError(Exception):
    """A node is not understood; the message says which, and why."""
