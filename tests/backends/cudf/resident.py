"""Tables on the host twin of the device, with a count of the rows that are copied to and from the host."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpujoin.engine.devicetables import DeviceTable
from gpujoin.model.maps import Indices, OutOfBounds, RowMap
from tests.backends.cudf.host import HostBackend
from tests.backends.cudf.pipeline import host_pipeline


@dataclass
class CountingBackend(HostBackend):
    """The twin, which knows what would have crossed the bus."""

    rows_copied: dict[str, int] = field(default_factory=dict)

    def _copied(self, what: str, rows: int) -> None:
        if rows:
            self.rows_copied[what] = self.rows_copied.get(what, 0) + rows

    def from_arrow(self, table: pa.Table) -> pa.Table:
        self._copied("rows up", table.num_rows)
        return super().from_arrow(table)

    def to_arrow(self, frame: pa.Table, schema: pa.Schema) -> pa.RecordBatch:
        self._copied("rows down", frame.num_rows)
        return super().to_arrow(frame, schema)

    def indices_to_host(self, rows: RowMap) -> npt.NDArray[np.int64]:
        self._copied("indices down", rows.length)
        return super().indices_to_host(rows)

    def indices_from_host(self, indices: npt.NDArray[np.int64], out_of_bounds: OutOfBounds) -> Indices:
        self._copied("indices up", len(indices))
        return super().indices_from_host(indices, out_of_bounds)

    def mask_to_host(self, mask: Any) -> npt.NDArray[np.bool_]:
        self._copied("marks down", len(mask))
        return super().mask_to_host(mask)

    def mask_from_host(self, mask: npt.NDArray[np.bool_]) -> Any:
        self._copied("marks up", len(mask))
        return super().mask_from_host(mask)


def on_twin(backend: HostBackend, *tables: pa.Table) -> list[DeviceTable]:
    """Tables as they lie on the twin; copying them there does not count."""
    device = host_pipeline(backend)
    made = [DeviceTable(table.schema, device.take_in(table, table.schema), device) for table in tables]
    if isinstance(backend, CountingBackend):
        backend.rows_copied.clear()
    return made
