"""Polars, imported by the first expression of it: processes that only read the rows of functions do not need it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["pl"]


class _Library:
    """Stands for a module until one of its names is used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        module = importlib.import_module(self._name)
        self.__dict__.update(vars(module))
        return getattr(module, name)


if TYPE_CHECKING:
    import polars as pl
else:
    pl = _Library("polars")
