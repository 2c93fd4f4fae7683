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
    held: dict[int, tuple[Any, int]] = field(default_factory=dict)
    """For the position of a column in the rows: a frame, and its position there."""

    def note(self, positions: Sequence[int], schema: pa.Schema, frame: Any, rows: pa.Schema) -> None:
        """Remember columns of a frame of some schema, if they have the types of the rows' columns at ``positions``."""
        for index, (position, column) in enumerate(zip(positions, schema, strict=True)):
            if column.type == rows.field(position).type and _shared(column.type):
                self.held.setdefault(position, (frame, index))

    def frame(self, positions: Sequence[int], table: pa.Table, rows: pa.Schema) -> Any:
        """Make a frame of the columns at ``positions``, whose values are those of a table."""
        known = {
            index: self.held[position]
            for index, position in enumerate(positions)
            if position in self.held and table.schema.field(index).type == rows.field(position).type
        }
        if not known:
            frame = self.backend.from_arrow(table)
        else:
            others = [index for index in range(len(positions)) if index not in known]
            if others:
                copied = self.backend.from_arrow(table.select(others))
                known |= {index: (copied, at) for at, index in enumerate(others)}
            frame = self.backend.assemble([known[index] for index in range(len(positions))])
        self.note(positions, table.schema, frame, rows)
        return frame

    def forget(self) -> None:
        """Keep no frame alive any longer; columns that were put into other frames stay there."""
        self.held.clear()


def _shared(dtype: pa.DataType) -> bool:
    return bool(pat.is_primitive(dtype) or pat.is_decimal(dtype)) and not pat.is_dictionary(dtype)
