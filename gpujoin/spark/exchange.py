"""Mappers of a join's exchange and broadcast: rows of one side as blob rows (`gpujoin.spark.blobrows`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from gpujoin.engine.hashing import hash_rows, partitions_of
from gpujoin.engine.keys import KeyCodec
from gpujoin.errors import GpuJoinError
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.spec import JoinSpec
from gpujoin.model.stages import DeterminismLevel, NullKeys, null_keys_of
from gpujoin.spark.blobrows import BlobCounts, BlobFormat, BlobPacker, Portion, Role
from gpujoin.spark.narrowing import narrowed
from gpujoin.spark.portions import Heavy
from gpujoin.spark.scattering import ROUND_BYTES, Dealer, rounds, scatter


@dataclass(frozen=True)
class Splitter:
    """Splits the rows of one side by partition of their key.

    Spark may run a mapper again and mix what the two runs made. So the partition of a row depends on the row and on
    :attr:`salt` only, but for rows that may go anywhere where :attr:`determinism` says that they come in one order.

    Attributes
    ----------
    form : BlobFormat
        Of the blobs.
    spec : JoinSpec
        The join.
    left, right : Schema
        Columns of the two sides, for the common types of the keys.
    side : Side
        Which side's rows these are.
    labels : tuple of int
        Label of each partition.
    blob_bytes : int
        Target size of a blob.
    salt : int
        Number of the mapper's partition, which decides too where rows go that may go anywhere.
    counts : BlobCounts
        Counted into.
    heavy : Heavy or None
        Keys with very many rows, see `gpujoin.spark.portions`.
    nulls_label : int or None
        Label of the partition in which left rows of a ``NOT IN`` with a null key meet all right rows.
    determinism : DeterminismLevel
        What the mapper is known to have when it runs again.
    """

    form: BlobFormat
    spec: JoinSpec
    left: pa.Schema
    right: pa.Schema
    side: Side
    labels: Sequence[int]
    blob_bytes: int
    salt: int = 0
    counts: BlobCounts = field(default_factory=BlobCounts)
    heavy: Heavy | None = None
    nulls_label: int | None = None
    determinism: DeterminismLevel = DeterminismLevel.UNORDERED

    def split(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Rows as blob rows.

        Parameters
        ----------
        batches : iterable of RecordBatch
            Rows of the side; types that convert into the format's schema are accepted.

        Yields
        ------
        RecordBatch
            Of :data:`BLOB_SCHEMA`.
        """
        packers = _Packers(self.form, self.blob_bytes, self.counts)
        limit = min(ROUND_BYTES, self.blob_bytes * len(self.labels))
        for rows in rounds(batches, self.form.schema, limit, self.counts):
            for portion, role, some, targets in self._placed(rows):
                packer = packers.of(portion, role)
                yield from self._pack(packer, some, targets)
        yield from packers.flush()

    def _pack(
        self, packer: BlobPacker, rows: pa.RecordBatch, targets: npt.NDArray[np.int32] | int | None
    ) -> Iterator[pa.RecordBatch]:
        """Pack rows for a partition each, or for one label, or for all partitions."""
        if rows.num_rows == 0:
            return
        rows = narrowed(rows)
        if isinstance(targets, int):
            yield from packer.add(rows, targets)
            return
        partitions = len(self.labels)
        if targets is None or partitions == 1:
            for label in self.labels:
                yield from packer.add(rows, label)
            return
        yield from scatter(rows, targets, self.labels, packer)

    def _placed(self, rows: pa.RecordBatch) -> Iterator[_Placed]:
        """Portion, role, rows, and their partitions."""
        role = self.form.role
        mask = self._codec.null_mask(rows, self.side)
        if mask is not None and self._drops:
            self.counts.dropped += int(mask.sum())
            rows = rows.filter(pa.array(~mask))
            mask = None
        if self.spec.join_type.null_aware and len(self.labels) > 1:
            yield from self._nulls_of_not_in(rows, mask)
            if mask is not None:
                rows = rows.filter(pa.array(~mask))
                mask = None
        if rows.num_rows == 0:
            return
        if len(self.labels) == 1:
            yield Portion.REGULAR, role, rows, None
            return
        hashes = hash_rows(self._codec.codes(rows, self.side))
        targets = partitions_of(hashes, len(self.labels))
        if mask is not None:
            targets[mask] = self._of_nulls.deal(rows.filter(pa.array(mask)))
        heavy = None if self.heavy is None else self.heavy.mask(hashes)
        if heavy is None or not heavy.any():
            yield Portion.REGULAR, role, rows, targets
            return
        if mask is not None:
            heavy &= ~mask
        some = pa.array(heavy)
        yield from self._heavy_rows(rows.filter(some), targets[heavy], hashes[heavy])
        yield Portion.REGULAR, role, rows.filter(pc.invert(some)), targets[~heavy]

    def _heavy_rows(
        self, rows: pa.RecordBatch, targets: npt.NDArray[np.int32], hashes: npt.NDArray[np.uint64]
    ) -> Iterator[_Placed]:
        assert self.heavy is not None
        self.counts.heavy += rows.num_rows
        full = self.spec.join_type is JoinType.FULL
        if self.side is self.heavy.split:
            yield Portion.HEAVY, Role.STREAM, rows, self._scattered(rows, hashes)
            if full:
                first = self._first_of_each_key(rows)
                yield Portion.UNMET, Role.BUILD, rows.take(pa.array(first)), targets[first]
            return
        yield Portion.HEAVY, Role.BUILD, rows, None
        if full:
            yield Portion.UNMET, Role.STREAM, rows, targets

    def _nulls_of_not_in(self, rows: pa.RecordBatch, mask: npt.NDArray[np.bool_] | None) -> Iterator[_Placed]:
        nulls = None if mask is None else rows.filter(pa.array(mask))
        if self.side is Side.RIGHT:
            if self.nulls_label is not None:
                yield Portion.NULLS, Role.BUILD, rows, self.nulls_label
            if nulls is not None:
                yield Portion.REGULAR, Role.BUILD, nulls, None
                if self.heavy is not None:
                    yield Portion.HEAVY, Role.BUILD, nulls, None
        elif nulls is not None:
            if self.nulls_label is None:
                raise GpuJoinError("a key that Spark says is never null is null")
            yield Portion.NULLS, Role.STREAM, nulls, self.nulls_label

    def _scattered(self, rows: pa.RecordBatch, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.int32]:
        """Partitions of rows that may go anywhere, and, where rows of a key are alike, as many of them in each."""
        targets = self._of_heavy.deal(rows)
        if self.determinism is not DeterminismLevel.UNORDERED or not self._keys_alone:
            return targets
        # Rows of one key are equal here, so which of them gets which number does not matter.
        for key in np.unique(hashes).tolist():
            same = np.flatnonzero(hashes == np.uint64(key))
            start = self._numbers.get(key, 0)
            self._numbers[key] = start + len(same)
            targets[same] = (targets[same] + start + np.arange(len(same))) % len(self.labels)
        return targets

    @cached_property
    def _numbers(self) -> dict[int, int]:
        """How many rows of keys alone were scattered so far, by hash of the key."""
        return {}

    @cached_property
    def _keys_alone(self) -> bool:
        """Whether rows of one key cannot differ: there are no other columns, and equal keys are the same values."""
        keys = {key.of(self.side) for key in self.spec.keys}
        types = [field.type for field in self.form.schema]
        # Integers may be compared as floats, in which different ones are equal.
        return keys == set(range(len(types))) and not any(
            pat.is_floating(dtype) or pat.is_nested(dtype) for dtype in (*types, *self._codec.types)
        )

    def _first_of_each_key(self, rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
        codes = self._codec.codes(rows, self.side)
        numbered = codes.append_column("row", pa.array(np.arange(rows.num_rows)))
        first = numbered.group_by(codes.column_names).aggregate([("row", "min")])
        return np.sort(first.column("row_min").to_numpy())

    @cached_property
    def _codec(self) -> KeyCodec:
        return KeyCodec.of(self.spec, self.left, self.right)

    @cached_property
    def _drops(self) -> bool:
        return null_keys_of(self.spec.join_type, self.side) is NullKeys.DROP

    # One for each kind of rows: which of the two kinds comes first depends on how rows are cut into rounds.
    @cached_property
    def _of_nulls(self) -> Dealer:
        return Dealer(self.form.schema, self.determinism, self.salt, len(self.labels))

    @cached_property
    def _of_heavy(self) -> Dealer:
        return Dealer(self.form.schema, self.determinism, self.salt, len(self.labels))


_Placed: TypeAlias = tuple[Portion, Role, pa.RecordBatch, "npt.NDArray[np.int32] | int | None"]
"""Rows of a portion and role with their partitions: one each, one label for all, or every partition for each."""


class _Packers:
    """A packer for each portion and role that occurs."""

    def __init__(self, form: BlobFormat, blob_bytes: int, counts: BlobCounts) -> None:
        self._form, self._blob_bytes, self._counts = form, blob_bytes, counts
        self._made: dict[tuple[Portion, Role], BlobPacker] = {}

    def of(self, portion: Portion, role: Role) -> BlobPacker:
        if (portion, role) not in self._made:
            form = BlobFormat(self._form.schema, role, self._form.compression, portion)
            self._made[portion, role] = BlobPacker(form, self._blob_bytes, self._counts)
        return self._made[portion, role]

    def flush(self) -> Iterator[pa.RecordBatch]:
        for packer in self._made.values():
            yield from packer.flush()


def pack_all(
    batches: Iterable[pa.RecordBatch], form: BlobFormat, blob_bytes: int, counts: BlobCounts,
    keep: Callable[[pa.RecordBatch], pa.RecordBatch] = lambda rows: rows,
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    """Rows as blob rows of the one partition 0, for a broadcast.

    Parameters
    ----------
    batches : iterable of RecordBatch
        The rows.
    form : BlobFormat
        Of the blobs.
    blob_bytes : int
        Target size of a blob.
    counts : BlobCounts
        Counted into.
    keep : callable
        Leaves out rows that are not needed.
    """
    packer = BlobPacker(form, blob_bytes, counts)
    for rows in rounds(batches, form.schema, blob_bytes, counts):
        kept = keep(rows)
        counts.dropped += rows.num_rows - kept.num_rows
        if kept.num_rows:
            yield from packer.add(kept, 0)
    yield from packer.flush()
