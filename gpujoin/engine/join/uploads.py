"""The columns of some rows that lie on a device already, so that a column with two uses is copied there once.

An example: ``l JOIN r ON l.k = r.k AND l.v < r.w`` returns ``k`` and ``v``. Of the left side the key frame brings
``k``, the condition ``v``; the output columns are put together of both, and nothing is copied for them::

    use         columns    copied
    key         k          k
    condition   v          v
    output      k v

Only columns of fixed width are shared: texts change their layout as keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.model.backend import AnyBackend


@dataclass
class Uploads:
    """Columns of one side's rows on one device."""

    backend: AnyBackend
    types: Sequence[pa.DataType]
    """Types of the rows' columns."""
    columns: dict[int, tuple[Any, int]] = field(default_factory=dict)
    """For the position of a column in the rows: a frame, and its position there."""
    keys: Any | None = None
    """Key frame that was copied ahead (:mod:`gpujoin.engine.join.ahead`), until it is taken."""

    def note(self, positions: Sequence[int], types: Sequence[pa.DataType], frame: Any) -> None:
        """Remember columns of a frame, if they have the types of the rows' columns at ``positions``."""
        for index, (position, dtype) in enumerate(zip(positions, types, strict=True)):
            if dtype == self.types[position] and _shared(dtype):
                self.columns.setdefault(position, (frame, index))

    def frame(self, positions: Sequence[int], table: pa.Table) -> Any:
        """Make a frame of the columns at ``positions``, whose values are those of a table."""
        known = {
            index: self.columns[position]
            for index, position in enumerate(positions)
            if position in self.columns and table.schema.field(index).type == self.types[position]
        }
        if not known:
            frame = self.backend.from_arrow(table)
        else:
            others = [index for index in range(len(positions)) if index not in known]
            if others:
                copied = self.backend.from_arrow(table.select(others))
                known |= {index: (copied, at) for at, index in enumerate(others)}
            frame = self.backend.assemble([known[index] for index in range(len(positions))])
        self.note(positions, table.schema.types, frame)
        return frame

    def forget(self) -> None:
        """Keep no frame alive any longer; columns that were put into other frames stay there."""
        self.columns.clear()
        self.keys = None


def _shared(dtype: pa.DataType) -> bool:
    return bool(pat.is_primitive(dtype) or pat.is_decimal(dtype)) and not pat.is_dictionary(dtype)
