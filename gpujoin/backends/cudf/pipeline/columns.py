"""The protocol of a column library: what a pipeline needs beyond the methods of a backend.

:mod:`.library` implements it with pylibcudf; the tests implement it with PyArrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from gpujoin.backends.cudf.arrays import Array, ArrayOps
from gpujoin.functions.device import Source, Text
from gpujoin.functions.values import Value
from gpujoin.model.backend import DeviceBackend

Frame = TypeVar("Frame")


class Reduce(Enum):
    """Functions that reduce the values of a group to one."""

    SUM = "sum"
    COUNT = "count"
    """Number of values that are not null, as int64."""
    MIN = "min"
    MAX = "max"


@dataclass(frozen=True, eq=False)
class Reduction:
    """A reduction of the rows of each group."""

    kind: Reduce
    """Function that reduces the values."""
    data: Array
    """Value of each row. Sums of integers wrap around; floats are added in any order."""
    valid: Array | None = None
    """Rows that count; ``None``: all."""


@dataclass(frozen=True, eq=False)
class Reduced:
    """The value of each group."""

    data: Array
    """Values, of the reduction's type; arbitrary where no row counted."""
    valid: Array | None = None
    """Groups in which a row counted; ``None``: all."""


@dataclass(frozen=True, eq=False)
class FilterTerm:
    """A comparison of a file's integer or date column with a constant: ``column op value``."""

    column: str
    operator: str
    """One of ``=``, ``<``, ``<=``, ``>``, ``>=``."""
    value: pa.Scalar
    """Constant of the column's type in the file."""


class Columns(Protocol[Frame]):
    """Operations on frames whose columns have the types of :func:`.offers.carried`."""

    @property
    def ops(self) -> ArrayOps:
        """The array module."""

    @property
    def backend(self) -> DeviceBackend[Frame, Any]:
        """Backend that joins and gathers frames, and copies them to and from the host."""

    def memory_errors(self) -> AbstractContextManager[None]:
        """Convert the library's out-of-memory errors to ``DeviceMemoryError``."""

    def types(self, frame: Frame) -> tuple[pa.DataType, ...]:
        """Types of a frame's columns."""

    def source(self, frame: Frame) -> Source:
        """Columns of a frame as leaves of expressions, all on the left side."""

    def select(self, frame: Frame, positions: Sequence[int]) -> Frame:
        """Select columns; a frame without columns keeps its number of rows."""

    def hstack(self, frames: Sequence[Frame]) -> Frame:
        """Put the columns of frames side by side; at least one frame, all of the same length."""

    def frame(self, columns: Sequence[Value | Text], types: Sequence[pa.DataType], rows: int) -> Frame:
        """Make a frame of computed values of carried types; a single value is repeated for each row."""

    def relabelled(self, frame: Frame, types: Sequence[pa.DataType]) -> Frame:
        """View the columns as other types of the same layout."""

    def null_safe(self, keys: Frame, null_safe: Sequence[bool]) -> Frame:
        """Set for each key column whether null equals null; otherwise a row with a null matches nothing."""

    def concat(self, frames: Sequence[Frame]) -> Frame:
        """Concatenate the rows of frames of the same types."""

    def order(self, frame: Frame, descending: Sequence[bool], nulls_first: Sequence[bool]) -> Array:
        """Positions of the rows in a stable order, as int32; text by bytes. Not for floats, whose order differs."""

    def codes(self, keys: Frame) -> tuple[Frame, Array]:
        """Distinct rows, with equal nulls, and the int32 position of each row's equal among them. Not for floats."""

    def grouped(self, keys: Frame, reductions: Sequence[Reduction]) -> tuple[Frame, list[Reduced]]:
        """Distinct keys, with equal nulls, and the results of reductions for each. Keys must not be floats."""

    def partition(self, frame: Frame, keys: int, parts: int) -> list[Frame]:
        """Divide rows into parts by the hash of the first ``keys`` columns: equal keys go to the same part."""

    def read(
        self, path: str, names: Sequence[str], types: Sequence[pa.DataType], row_groups: Sequence[int],
        terms: Sequence[FilterTerm],
    ) -> Frame:  # fmt: skip
        """Decode columns of row groups of a Parquet file; rows for which a term is not true may be skipped.

        Integers, timestamps and dates come in the file's types, decimals and text in those of
        :func:`.offers.carried`. Raises ``ScanError``, naming the file, if a page is corrupt.
        """
