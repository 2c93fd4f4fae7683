"""Packets: exchanged rows as pairs of bytes, which go through Spark's RDD shuffle.

A worker that sends writes two packets for each blob: the number of its partition, as Spark's ``PairwiseRDD`` reads it,
and the blob. Spark's ``PythonPartitioner`` takes the number as it is. The worker that receives gets the blobs alone::

    sends                          receives, as partition 1
    8 bytes: 0      blob of A
    8 bytes: 1      blob of B      blob of B
    8 bytes: 1      blob of C      blob of C

The blobs of a source come together, sources in the order in which they are read. The tag of a blob is the place of its
source in that order, or a number that is the same in all stages that read these blobs. Where partitions may be split
(`gpujoin.plan.partition_sizes`), each has several *divisions* that Spark takes for partitions, and all that a task
sends to one partition is in one division of it::

    partition            0      1      2       two divisions each: 0 1   2 3   4 5
    task 7 sends         A      B      B       7 modulo 2 is 1: to 1, 3 and 3

Between the workers no row is built, and Arrow is not read: each byte is copied half as often as in a blob row.

Another packet tells a task which share of a partition it computes. The JVM knows the sizes of partitions when it makes
the tasks of a stage, and puts such a packet before the blobs of a
task that computes a share. Other tasks get none.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from gpujoin.engine.blob import tag_of
from gpujoin.errors import CorruptBlobError
from gpujoin.model.stages import Share
from gpujoin.spark.shuffle.blobrows import Packer
from gpujoin.spark.shuffle.exchanges import ANNOUNCED
from gpujoin.spark.shuffle.scattering import conform

if TYPE_CHECKING:
    from gpujoin.spark.shuffle.blobrows import BlobCounts, BlobFormat
    from gpujoin.spark.shuffle.exchanges import Entry

Packet: TypeAlias = "bytes | pa.Buffer"

_PARTITION = struct.Struct(">q")


class PacketPacker(Packer[Packet]):
    """Gives two packets for each blob as soon as it is written; the label of a blob is the number of its partition.

    Of ``divisions`` of each partition the task numbered ``task`` sends to one.
    """

    def __init__(
        self, form: BlobFormat, blob_bytes: int, counts: BlobCounts, divisions: int = 1, task: int = 0
    ) -> None:
        super().__init__(form, blob_bytes, counts)
        self._divisions = divisions
        self._division = task % divisions

    def _send(self, blob: pa.Buffer, label: int) -> Iterator[Packet]:
        yield _PARTITION.pack(label * self._divisions + self._division)
        yield blob

    def flush(self) -> Iterator[Packet]:
        """Give nothing: no blob is kept."""
        yield from ()


def packet_entries(
    packets: Iterable[bytes], partition: int, tags: Sequence[int], *, announced: bool
) -> Iterator[Entry]:
    """Give label, place and blob of each packet that a partition receives.

    ``tags`` are those of the sources' blobs, in the order in which sources are read. ``announced``: the partition is to
    be read even if nothing is sent to it. Raises ``CorruptBlobError`` if a blob has another tag.
    """
    places = {tag: place for place, tag in enumerate(tags)}
    if announced:
        yield partition, ANNOUNCED, pa.py_buffer(b"")
    for packet in packets:
        blob = pa.py_buffer(packet)
        tag = tag_of(blob, f"exchanged blob of partition {partition}")
        if tag not in places:
            raise CorruptBlobError(f"partition {partition}: there is no input with the tag {tag}")
        yield partition, places[tag], blob


def row_packets(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Buffer]:
    """Encode rows for Spark as Arrow messages without their schema, which the JVM knows."""
    for batch in batches:
        if batch.num_rows:
            yield conform(batch, schema).serialize()


_MAGIC = b"GPJS "
"""No blob starts with it."""
_PACKETS = {_MAGIC + share.name.encode(): share for share in Share if share is not Share.WHOLE}


def share_packets() -> dict[Share, str]:
    """Give the packet of each share of a heavy partition, as text of one byte a character."""
    return {share: packet.decode("ascii") for packet, share in _PACKETS.items()}


def share_and_blobs(packets: Iterable[bytes]) -> tuple[Share, Iterator[bytes]]:
    """Split a task's packets into its share of a partition and the blobs."""
    rest = iter(packets)
    first = list(itertools.islice(rest, 1))
    share = _PACKETS.get(bytes(first[0])) if first and len(first[0]) <= _LONGEST else None
    return (Share.WHOLE, itertools.chain(first, rest)) if share is None else (share, rest)


_LONGEST = max(map(len, _PACKETS))
