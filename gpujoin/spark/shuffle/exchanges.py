"""Exchanges between the stages of an island: rows to blobs by key, and blobs to the sources of the next stage.

Blobs come to a stage in the order in which it reads its sources. So each is read as it comes, and none has to be kept.
Two transports take them there: blob rows (`blobrows`) take one shuffle of Spark's SQL, sorted by partition and source,
and packets (`packets`) a shuffle of RDDs for each source.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpujoin.engine.hashing import hash_rows, partitions_of
from gpujoin.engine.keys import KeyCodec
from gpujoin.errors import CorruptBlobError
from gpujoin.model.jointype import Side
from gpujoin.model.spec import NullEquality
from gpujoin.model.stages import Exchange, NullKeys
from gpujoin.spark.shuffle.blobrows import BlobCounts, BlobFormat, BlobPacker, Carrier, Packer, narrowed
from gpujoin.spark.shuffle.scattering import ROUND_BYTES, rounds, scatter, spread, spread_codec

ANNOUNCED = -1
"""Source of the entries that announce a partition, to which nothing may be sent."""

Entry = tuple[int, int, pa.Buffer]
"""Label of a partition, place of the source, and blob."""


@dataclass(frozen=True)
class Outlet:
    """Where the rows of a stage go, as said by an :class:`~gpujoin.model.stages.Exchange`."""

    form: BlobFormat
    columns: tuple[int, ...]
    types: tuple[pa.DataType, ...]
    null_safe: tuple[bool, ...]
    nulls: NullKeys
    indeterminate: frozenset[int]
    labels: tuple[int, ...]
    """Label of each partition."""
    blob_bytes: int
    """Target size of a blob."""
    replicated: bool = False
    last_complete: bool = False
    divisions: int = 1
    """Divisions of each partition, to one of which the rows of a task go."""

    @classmethod
    def from_exchange(
        cls,
        exchange: Exchange,
        form: BlobFormat,
        labels: Sequence[int],
        blob_bytes: int,
        divisions: int = 1,
    ) -> Outlet:  # fmt: skip
        """Make the outlet of an exchange's producer."""
        return cls(
            form, exchange.columns, exchange.types, exchange.null_safe, exchange.nulls, exchange.indeterminate,
            tuple(labels), blob_bytes, exchange.replicated, exchange.last_complete, divisions,
        )  # fmt: skip

    def split(
        self,
        batches: Iterable[pa.RecordBatch],
        salt: int,
        counts: BlobCounts | None = None,
        round_bytes: int = ROUND_BYTES,
    ) -> Iterator[pa.RecordBatch]:
        """Turn rows into blob rows, of at most ``round_bytes`` of rows at a time.

        The partition of a row depends on the row and on ``salt``, the number of the task, only: Spark may run a task
        again and mix what the two runs made.
        """
        counts = counts or BlobCounts()
        packer = BlobPacker(self.form, self.blob_bytes, counts, round_bytes)
        return self.packed(batches, salt, packer, counts, round_bytes)

    def packed(
        self,
        batches: Iterable[pa.RecordBatch],
        salt: int,
        packer: Packer[Carrier],
        counts: BlobCounts,
        round_bytes: int = ROUND_BYTES,
    ) -> Iterator[Carrier]:  # fmt: skip
        """Do as :meth:`split`, by a packer of any transport, which counts by the same counters."""
        limit = min(round_bytes, self.blob_bytes * (1 if self.replicated else len(self.labels)))
        for rows in rounds(batches, self.form.schema, limit, counts):
            if self.replicated:
                yield from self._to_all(rows, packer)
            elif not self.columns:
                targets = self._spread(rows, salt)
                yield from scatter(narrowed(rows), targets, self.labels, packer)
            else:
                yield from self._scattered(rows, salt, packer, counts)
        yield from packer.flush()

    def _scattered(
        self, rows: pa.RecordBatch, salt: int, packer: Packer[Carrier], counts: BlobCounts
    ) -> Iterator[Carrier]:
        nulls = self.null_mask(rows)
        if nulls is not None and self.nulls in (NullKeys.DROP, NullKeys.EVERYWHERE):
            if self.nulls is NullKeys.EVERYWHERE:
                yield from self._to_all(rows.filter(pa.array(nulls)), packer)
            else:
                counts.dropped += int(nulls.sum())
            rows = rows.filter(pa.array(~nulls))
            nulls = None
        if rows.num_rows == 0:
            return
        hashes = self.hashes(rows)
        last = len(self.labels) - 1
        targets = partitions_of(hashes, len(self.labels))
        if nulls is not None and self.nulls is NullKeys.LAST:
            targets[nulls] = last
        if nulls is not None and self.nulls is NullKeys.SPREAD:
            targets[nulls] = self._spread(rows.filter(pa.array(nulls)), salt)
        rows = narrowed(rows)
        if self.last_complete and (elsewhere := targets != last).any():
            yield from packer.add(rows.filter(pa.array(elsewhere)), self.labels[last])
        yield from scatter(rows, targets, self.labels, packer)

    def _to_all(self, rows: pa.RecordBatch, packer: Packer[Carrier]) -> Iterator[Carrier]:
        rows = narrowed(rows)
        for label in self.labels:
            yield from packer.add(rows, label)

    def _spread(self, rows: pa.RecordBatch, salt: int) -> npt.NDArray[np.int32]:
        """Partitions for rows that may go anywhere."""
        return spread(rows, spread_codec(self.form.schema, self.indeterminate), salt, len(self.labels))

    def null_mask(self, rows: pa.RecordBatch) -> npt.NDArray[np.bool_] | None:
        """Find the rows with a null in a key that is not null-safe; ``None`` if there are none."""
        return self._matching.null_mask(rows, Side.LEFT)

    def hashes(self, rows: pa.RecordBatch) -> npt.NDArray[np.uint64]:
        """Hash the keys of rows; null counts as a value, so that one hash serves joins by = and by <=>, and groups."""
        return hash_rows(self._hashed.codes(rows, Side.LEFT))

    @property
    def _places(self) -> tuple[tuple[int, int], ...]:
        return tuple((column, column) for column in self.columns)

    @property
    def _hashed(self) -> KeyCodec:
        return KeyCodec(self._places, self.types, (NullEquality.EQUAL,) * len(self.columns))

    @property
    def _matching(self) -> KeyCodec:
        kinds = tuple(NullEquality.EQUAL if safe else NullEquality.UNEQUAL for safe in self.null_safe)
        return KeyCodec(self._places, self.types, kinds)


@dataclass
class ExchangeReader:
    """Reads blobs that come sorted by partition and source.

    An entry of source -1 holds no blob. It says that there is such a partition, even if nothing is sent to it.
    """

    entries: Iterable[Entry]
    """Blobs with their partition and source, by either transport."""
    forms: Sequence[BlobFormat]
    """The form of each source's blobs, in order."""
    _pending: dict[int, list[pa.RecordBatch]] = field(default_factory=lambda: defaultdict(list))

    def partitions(self) -> Iterator[tuple[int, list[Iterator[pa.RecordBatch]]]]:
        """Give label and sources of each partition, to be read before the next partition is asked for.

        Raises
        ------
        CorruptBlobError
            While reading, if a blob is not what was written.
        """
        self._advance()
        while (head := self._head) is not None:
            label = head[0]
            self._pending.clear()
            yield label, [self._source(label, place) for place in range(len(self.forms))]
            while self._head is not None and self._head[0] == label:
                self._advance()

    def _source(self, label: int, place: int) -> Iterator[pa.RecordBatch]:
        yield from self._pending.pop(place, ())
        while (head := self._head) is not None and head[0] == label and head[1] <= place:
            _, sent_to, data = head
            batch = None if sent_to == ANNOUNCED else self.forms[sent_to].decode(data, label)
            self._advance()
            if batch is None:
                continue
            if sent_to == place:
                yield batch
            else:
                self._pending[sent_to].append(batch)

    @cached_property
    def _checked(self) -> Iterator[Entry]:
        return self._check()

    def _advance(self) -> None:
        self._head = next(self._checked, None)

    def _check(self) -> Iterator[Entry]:
        last_places: dict[int, int] = {}
        current: int | None = None
        for label, place, blob in self.entries:
            if not ANNOUNCED <= place < len(self.forms):
                raise CorruptBlobError(f"partition {label}: there is no input {place}")
            if last_places.get(label, ANNOUNCED) > place or (label != current and label in last_places):
                raise CorruptBlobError(f"partition {label}: blobs came out of order, input {place} last")
            current, last_places[label] = label, place
            yield label, place, blob


def row_entries(batches: Iterable[pa.RecordBatch]) -> Iterator[Entry]:
    """Give label, place and blob of each blob row; the binary column may be of the large type.

    Raises ``CorruptBlobError`` if one of them is null.
    """
    for batch in batches:
        labels, places, data = batch.columns
        if labels.null_count or places.null_count or data.null_count:
            raise CorruptBlobError("an exchanged row holds a null; it is not one of ours")
        for label, place, value in zip(labels.to_pylist(), places.to_pylist(), data, strict=True):
            yield label, place, value.as_buffer()
