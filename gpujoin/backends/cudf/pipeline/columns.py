"""What a pipeline needs of a library of columns, beyond a backend's own methods; deliberately little.

:mod:`.library` has it from pylibcudf; the tests have it from PyArrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, TypeAlias, TypeVar

import pyarrow as pa

from gpujoin.backends.cudf.arrays import Array, ArrayOps
from gpujoin.backends.cudf.expressions.evaluator import Source, Text
from gpujoin.backends.cudf.expressions.values import Value
from gpujoin.model.backend import Backend

Frame = TypeVar("Frame")


class Reduce(Enum):
    """How the values of a group become one."""

    SUM = "sum"
    COUNT = "count"
    """How many are not null, as int64."""
    MIN = "min"
    MAX = "max"


@dataclass(frozen=True, eq=False)
class Reduction:
    """One reduction of the rows of each group.

    Attributes
    ----------
    kind : Reduce
        Function that reduces the values.
    data : int64 or float64 array
        One value a row. Sums of integers wrap around; sums of floats are in any order.
    valid : bool array or None
        Rows that count; ``None``: all.
    """

    kind: Reduce
    data: Array
    valid: Array | None = None


@dataclass(frozen=True, eq=False)
class Reduced:
    """One value for each group.

    Attributes
    ----------
    data : array
        As the reduction's; arbitrary where no row counted.
    valid : bool array or None
        Groups in which a row counted; ``None``: all.
    """

    data: Array
    valid: Array | None = None


@dataclass(frozen=True, eq=False)
class FilterTerm:
    """A comparison of a file's integer or date column with a constant: ``column op value``.

    Attributes
    ----------
    column : str
        Name of the column in the file.
    operator : str
        One of ``=``, ``<``, ``<=``, ``>``, ``>=``.
    value : pyarrow.Scalar
        Of the column's own type in the file.
    """

    column: str
    operator: str
    value: pa.Scalar


class Columns(Protocol[Frame]):
    """Columns of frames whose types are those of :func:`.offers.carried`."""

    @property
    def ops(self) -> ArrayOps:
        """The array module."""
        ...

    @property
    def backend(self) -> Backend[Frame, Any]:
        """What joins, gathers, and moves frames to and from the host."""
        ...

    def memory_errors(self) -> AbstractContextManager[None]:
        """Turn what the library raises where memory runs out into ``DeviceMemoryError``, to be caught within a step."""
        ...

    def types(self, frame: Frame) -> tuple[pa.DataType, ...]:
        """Types of a frame's columns."""
        ...

    def source(self, frame: Frame) -> Source:
        """A frame's columns as leaves of expressions, all on the left side."""
        ...

    def select(self, frame: Frame, positions: Sequence[int]) -> Frame:
        """Some columns; a frame without columns keeps its rows."""
        ...

    def hstack(self, frames: Sequence[Frame]) -> Frame:
        """The columns of frames of as many rows each; at least one frame."""
        ...

    def frame(self, columns: Sequence[Value | Text], types: Sequence[pa.DataType], rows: int) -> Frame:
        """Columns from computed values, of carried types; one value stands for every row."""
        ...

    def relabelled(self, frame: Frame, types: Sequence[pa.DataType]) -> Frame:
        """The same columns under other types of the same layout."""
        ...

    def null_safe(self, keys: Frame, null_safe: Sequence[bool]) -> Frame:
        """Key columns, each told whether null equals null; see :meth:`gpujoin.model.backend.Backend.key_frame`."""
        ...

    def concat(self, frames: Sequence[Frame]) -> Frame:
        """Rows of frames of the same types, one after another."""
        ...

    def order(self, frame: Frame, descending: Sequence[bool], nulls_first: Sequence[bool]) -> Array:
        """int32 positions of the rows in a stable order; text by bytes. Without floats, whose order is not Spark's."""
        ...

    def codes(self, keys: Frame) -> tuple[Frame, Array]:
        """The distinct rows, nulls being equal, and for each row the int32 position of its like. Without floats."""
        ...

    def grouped(self, keys: Frame, reductions: Sequence[Reduction]) -> tuple[Frame, list[Reduced]]:
        """One row for each distinct key, nulls being equal, and what the reductions give. Without floats as keys."""
        ...

    def partition(self, frame: Frame, keys: int, parts: int) -> list[Frame]:
        """Rows divided by the hash of the first so many columns: equal keys go to parts of equal numbers."""
        ...

    def read(
        self, path: str, names: Sequence[str], types: Sequence[pa.DataType], row_groups: Sequence[int],
        terms: Sequence[FilterTerm],
    ) -> Frame:  # fmt: skip
        """Decode columns of row groups of a Parquet file.

        Parameters
        ----------
        path : str
            Path of the file.
        names : sequence of str
            Columns of it, at least one.
        types : sequence of pyarrow.DataType
            Their types, as PyArrow reads them.
        row_groups : sequence of int
            Numbers of the row groups to read.
        terms : sequence of FilterTerm
            Rows that fail one may be left out.

        Returns
        -------
        Frame
            Integers, timestamps and dates as the file has them; decimals and text as :func:`.offers.carried` says.

        Raises
        ------
        ScanError
            If a page is corrupt; the message names the file.
        """
        ...


AnyColumns: TypeAlias = Columns[Any]
