"""Tasks that send blobs and tasks that take them; workers import this module."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from gpujoin.config import Transport
from gpujoin.spark.shuffle.blobrows import BlobCounts, BlobFormat, BlobPacker, Packer
from gpujoin.spark.shuffle.exchanges import ExchangeReader, row_entries
from gpujoin.spark.shuffle.packets import PacketPacker, packet_entries, row_packets
from gpujoin.spark.worker.task import Task

ROWS = pa.schema([pa.field("k", pa.int64()), pa.field("v", pa.int64())])
COUNT = pa.schema([pa.field("n", pa.int64())])
FORM = BlobFormat(ROWS)


def rows_of(nbytes: int) -> pa.RecordBatch:
    """Rows of some size: a column below 1,000, and one of random bits."""
    rng = np.random.default_rng(7)
    rows = nbytes // 16
    columns = [pa.array(rng.integers(0, top, rows)) for top in (1000, 1 << 62)]
    return pa.RecordBatch.from_arrays(columns, schema=ROWS)


@dataclass(frozen=True)
class Send:
    """Sends blobs of one size to partitions in turn."""

    transport: Transport
    blob_bytes: int
    blobs: int
    partitions: int

    def run(self, given: Any, task: Task) -> Iterator[Any]:
        """Send them."""
        for _ in given:
            pass
        rows, counts = rows_of(self.blob_bytes), BlobCounts()
        packer: Packer[Any] = (
            BlobPacker(FORM, self.blob_bytes, counts)
            if self.transport is Transport.ROWS
            else PacketPacker(FORM, self.blob_bytes, counts)
        )
        for number in range(self.blobs):
            yield from packer.add(rows, (number + task.partition) % self.partitions)
        yield from packer.flush()


@dataclass(frozen=True)
class Take:
    """Counts the rows of the blobs that come."""

    transport: Transport

    def run(self, given: Any, task: Task) -> Iterator[Any]:
        """Give their number."""
        is_rows = self.transport is Transport.ROWS
        entries = (
            row_entries(given) if is_rows else packet_entries(given, task.partition, [FORM.place], announced=False)
        )
        count = 0
        for _, (source,) in ExchangeReader(entries, [FORM]).partitions():
            count += sum(batch.num_rows for batch in source)
        batches = iter([pa.RecordBatch.from_arrays([pa.array([count])], schema=COUNT)])
        yield from batches if is_rows else row_packets(batches, COUNT)
