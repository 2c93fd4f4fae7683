"""The searchable build side, over key codes: integers that are equal if and only if, or at least if, the keys are.

Every algorithm maps the keys of a row to a *group*, the set of build rows with equal keys, held as a compressed sparse
row structure: ``rows[first[g] : first[g + 1]]`` in ascending order, or one row a group where keys are unique. Exact
match counts are then differences of offsets, and pairs are made on demand by expanding a slice of the running count
(Sioulas et al., "Hardware-conscious hash-joins on GPUs", ICDE 2019, describe such count-then-write output).

cuDF's own joins cannot be used for this: from Python they neither keep a build side nor tell the size of a result
before allocating it. A later kernel only has to provide another locator.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeAlias

from gpujoin.backends.cudf.arrays import (
    MAX_ROWS,
    Array,
    ArrayOps,
    exclusive_offsets,
    owners,
    positions,
    run_ends,
    run_starts,
)
from gpujoin.errors import GpuJoinError
from gpujoin.model.backend import PairSlice
from gpujoin.model.maps import Indices, OutOfBounds, RowMap, Span

SMALL_TABLE_SLOTS = 1 << 24
"""A direct-address table up to this size (64 MiB) is made however few the rows: about a device's L2 cache."""

SLOTS_PER_ROW = 4
"""A larger direct-address table may have this many slots for each row: the memory of the codes themselves, twice."""


@dataclass(frozen=True)
class Coded:
    """Key codes of the rows of a key frame.

    Attributes
    ----------
    codes : int32 or int64 array
        One a row; meaningless where a key is null.
    valid : bool array or None
        False where a row matches nothing; ``None``: no such row.
    """

    codes: Array
    valid: Array | None

    @property
    def rows(self) -> int:
        """Row count."""
        return int(self.codes.shape[0])


class Keys(Protocol):
    """A key frame as an index sees it."""

    @property
    def nbytes(self) -> int:
        """Memory held."""
        ...

    @property
    def exact(self) -> bool:
        """Whether equal codes mean equal keys; otherwise matches are verified."""
        ...

    def coded(self, seed: int) -> Coded:
        """Codes of the rows; a seed chooses among hash functions where codes are not exact."""
        ...

    def same(self, rows: Array, other: Any, other_rows: Array) -> Array:
        """For each i, whether row ``rows[i]`` here and row ``other_rows[i]`` of ``other`` have equal keys.

        All these rows have no null key.
        """
        ...


class Locator(Protocol):
    """Finds the group of a code."""

    @property
    def algorithm(self) -> str:
        """Its name, for metrics and explanations."""
        ...

    @property
    def nbytes(self) -> int:
        """Memory held."""
        ...

    def locate(self, ops: ArrayOps, probe: Coded) -> Array:
        """int32 group of each row, −1 where there is none."""
        ...


@dataclass(frozen=True)
class DirectAddress:
    """Group = code − low. Groups of absent codes are empty."""

    low: int
    high: int
    algorithm: str = "direct"
    nbytes: int = 0

    def locate(self, ops: ArrayOps, probe: Coded) -> Array:
        """See :class:`Locator`. Differences of codes outside the range may wrap; they are replaced."""
        inside = (probe.codes >= self.low) & (probe.codes <= self.high)
        if probe.valid is not None:
            inside &= probe.valid
        return ops.xp.where(inside, probe.codes - self.low, -1).astype(ops.xp.int32)


@dataclass(frozen=True)
class SortedCodes:
    """Group = rank of the code among the distinct build codes, by binary search."""

    distinct: Array
    algorithm: str = "sorted"

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return int(self.distinct.nbytes)

    def locate(self, ops: ArrayOps, probe: Coded) -> Array:
        """See :class:`Locator`."""
        xp = ops.xp
        rank = xp.searchsorted(self.distinct, probe.codes).astype(xp.int32)
        xp.minimum(rank, self.distinct.shape[0] - 1, out=rank)
        found = self.distinct[rank] == probe.codes
        if probe.valid is not None:
            found &= probe.valid
        return xp.where(found, rank, -1)


@dataclass(frozen=True)
class NoKeys:
    """No build row matches anything."""

    algorithm: str = "empty"
    nbytes: int = 0

    def locate(self, ops: ArrayOps, probe: Coded) -> Array:
        """See :class:`Locator`."""
        return ops.xp.full(probe.rows, -1, dtype=ops.xp.int32)


@dataclass(frozen=True)
class OneRow:
    """Groups of at most one row: keys are unique.

    Attributes
    ----------
    row : int32 array
        Row of each group, −1 for an empty one.
    """

    row: Array

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return int(self.row.nbytes)

    @property
    def representatives(self) -> Array:
        """A row of each group."""
        return self.row


@dataclass(frozen=True)
class ManyRows:
    """Groups of any number of rows.

    Attributes
    ----------
    first : int32 array
        Where each group starts in ``rows``, and where the last one ends.
    rows : int32 array
        Rows by ascending group and row.
    """

    first: Array
    rows: Array

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return int(self.first.nbytes + self.rows.nbytes)

    @property
    def representatives(self) -> Array:
        """A row of each group; none of them may be empty."""
        return self.rows[self.first[:-1]]

    def group_of_place(self, ops: ArrayOps) -> Array:
        """Group of each entry of ``rows``."""
        return owners(ops, self.first[1:] - self.first[:-1], self.first[:-1], int(self.rows.shape[0]))


Groups: TypeAlias = OneRow | ManyRows


def group_rows(ops: ArrayOps, built: Coded, *, exact: bool) -> tuple[Locator, Groups]:
    """Group the rows of a build side by code, by the algorithm that their range and duplicates suggest.

    Parameters
    ----------
    exact : bool
        Whether codes are keys, so that their range means something; hashes are spread all over theirs.
    """
    xp = ops.xp
    if built.valid is None:
        row_ids, codes = xp.arange(built.rows, dtype=xp.int32), built.codes
    else:
        row_ids = positions(ops, built.valid)
        codes = built.codes[row_ids]
    if codes.shape[0] == 0:
        return NoKeys(), OneRow(xp.full(1, -1, dtype=xp.int32))
    if exact:
        low, high = int(codes.min()), int(codes.max())
        if high - low < min(max(SLOTS_PER_ROW * codes.shape[0], SMALL_TABLE_SLOTS), MAX_ROWS):
            return DirectAddress(low, high), _by_slot(
                ops, row_ids, (codes - low).astype(xp.int32), high - low + 1
            )
    order = ops.stable_argsort(codes)
    codes, rows = codes[order], row_ids[order]
    del order
    starts = run_starts(ops, codes)
    locator = SortedCodes(codes[starts])
    if starts.shape[0] == rows.shape[0]:
        return locator, OneRow(rows)
    end = xp.full(1, rows.shape[0], dtype=xp.int32)
    return locator, ManyRows(xp.concatenate([starts, end]), rows)


def _by_slot(ops: ArrayOps, row_ids: Array, slots: Array, size: int) -> Groups:
    """Groups of a direct-address table. Keys are unique if every row finds itself in the slot that it wrote to."""
    table = ops.xp.full(size, -1, dtype=ops.xp.int32)
    table[slots] = row_ids
    if bool((table[slots] == row_ids).all()):
        return OneRow(table)
    del table
    order = ops.stable_argsort(slots)
    slots = slots[order]
    starts = run_starts(ops, slots)
    sizes = ops.xp.zeros(size, dtype=ops.xp.int32)
    sizes[slots[starts]] = run_ends(ops, starts, slots.shape[0]) - starts
    return ManyRows(exclusive_offsets(ops, sizes), row_ids[order])


class Entered(Protocol):
    """Makes a device current."""

    def __call__(self) -> AbstractContextManager[Any]:
        """For the length of a ``with`` block."""
        ...


class Index:
    """A build side; see :class:`gpujoin.model.backend.Build`, whose meaning it has over :class:`Keys`.

    Parameters
    ----------
    ops : ArrayOps
        The array module.
    keys : Keys
        The build side's keys; kept only if matches must be verified.
    entered : callable
        Makes the device current for a ``with`` block; every public method of probes uses it.
    seeds : int
        How many hash functions to try before giving up on telling keys apart.

    Raises
    ------
    GpuJoinError
        If every one of the hash functions gives two different build keys one code.
    """

    def __init__(self, ops: ArrayOps, keys: Keys, entered: Entered, seeds: int = 8) -> None:
        self.ops = ops
        self.entered = entered
        self._keys = None if keys.exact else keys
        for seed in range(seeds):
            built = keys.coded(seed)
            self.locator, self.groups = group_rows(ops, built, exact=keys.exact)
            self.seed, self.rows = seed, built.rows
            if keys.exact or not self._collision(keys):
                return
        raise GpuJoinError(
            f"{seeds} hash functions each gave two of {keys.nbytes} bytes of build keys one code; "
            "join on other columns, or with backend='cpu'"
        )

    def _collision(self, keys: Keys) -> bool:
        groups = self.groups
        if isinstance(groups, OneRow):
            return False
        others = groups.representatives[groups.group_of_place(self.ops)]
        return not bool(keys.same(groups.rows, keys, others).all())

    @property
    def unique(self) -> bool:
        """Whether no two build rows have equal keys."""
        return isinstance(self.groups, OneRow)

    @property
    def algorithm(self) -> str:
        """``direct``, ``sorted``, ``empty``, or ``fingerprint``: sorted hashes, matches verified."""
        hashed = self._keys is not None and isinstance(self.locator, SortedCodes)
        return "fingerprint" if hashed else self.locator.algorithm

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return self.groups.nbytes + self.locator.nbytes + (self._keys.nbytes if self._keys is not None else 0)

    @cached_property
    def group_of_place(self) -> Array:
        """Group of each entry of ``groups.rows``, kept for further marking."""
        assert isinstance(self.groups, ManyRows)
        return self.groups.group_of_place(self.ops)

    def locate(self, keys: Keys) -> Array:
        """Group of each row of a probe's keys, −1 where there is none."""
        probe = keys.coded(self.seed)
        if probe.rows > MAX_ROWS:
            raise GpuJoinError(f"a probe of {probe.rows} rows is over the {MAX_ROWS} rows of a device column")
        group = self.locator.locate(self.ops, probe)
        if self._keys is not None and isinstance(self.locator, SortedCodes):
            maybe = positions(self.ops, group >= 0)
            same = keys.same(maybe, self._keys, self.groups.representatives[group[maybe]])
            group[maybe[~same]] = -1
        return group


class IndexProbe:
    """Matches of some keys against an index; see :class:`gpujoin.model.backend.Probe`."""

    def __init__(self, index: Index, keys: Keys) -> None:
        self._index = index
        ops, groups = index.ops, index.groups
        xp = ops.xp
        group = index.locate(keys)
        self.rows = int(group.shape[0])
        missing = group < 0
        there = xp.maximum(group, 0)
        if isinstance(groups, OneRow):
            self._row: Array | None = groups.row[there]
            self._row[missing] = -1
            self._count: Array = self._row >= 0
        else:
            self._row = None
            self._count = groups.first[there + 1] - groups.first[there]
            self._count[missing] = 0
            self._group = group
        self.pairs = int(self._count.sum(dtype=xp.int64)) if self.rows else 0

    def matched(self) -> Array:
        """See :class:`gpujoin.model.backend.Probe`."""
        with self._index.entered():
            return self._count > 0

    def lookup(self) -> Indices:
        """See :class:`gpujoin.model.backend.Probe`."""
        if self._row is None:
            raise GpuJoinError("a lookup needs a build side with unique keys; this one has duplicates")
        return Indices(self._row, self.rows, OutOfBounds.NULLIFY)

    def slices(self, max_pairs: int) -> Iterator[PairSlice]:
        """See :class:`gpujoin.model.backend.Probe`. The device is current only while a slice is being made."""
        if self.pairs == 0:
            return
        with self._index.entered():
            whole = None if self._row is None else self._unique_pairs(self._row)
            xp = self._index.ops.xp
            running = xp.cumsum(self._count, dtype=xp.int64) if whole is None else None
        for start in range(0, self.pairs, max_pairs):
            end = min(self.pairs, start + max_pairs)
            with self._index.entered():
                part = self._expand(running, start, end) if whole is None else _cut(whole, start, end)
            yield part

    def _unique_pairs(self, row: Array) -> tuple[Array | None, Array]:
        """Probe rows (``None``: all) and build rows of all pairs."""
        if self.pairs == self.rows:
            return None, row
        probe = positions(self._index.ops, self._count)
        return probe, row[probe]

    def _expand(self, running: Array, start: int, end: int) -> PairSlice:
        """Pairs ``start … end - 1``, given the running count of pairs up to and with each probe row."""
        ops, groups = self._index.ops, self._index.groups
        xp = ops.xp
        assert isinstance(groups, ManyRows)
        ends = xp.searchsorted(running, xp.asarray([start, end - 1], dtype=xp.int64), side="right")
        low, high = int(ends[0]), int(ends[1]) + 1
        counts = self._count[low:high]
        starts = running[low:high] - counts - start
        owner = owners(ops, counts, starts, end - start)
        within = xp.arange(end - start, dtype=xp.int64) - starts[owner]
        place = groups.first[self._group[low:high][owner]] + within
        probe = owner + xp.int32(low)
        return PairSlice(Indices(probe, end - start), Indices(groups.rows[place], end - start))

    def mark_build(self, marks: Array) -> None:
        """See :class:`gpujoin.model.backend.Probe`. Threads may mark at once: all write the same value."""
        index = self._index
        with index.entered():
            if self._row is not None:
                marks[self._row[self._row >= 0]] = True
                return
            assert isinstance(index.groups, ManyRows)
            hit = index.ops.xp.zeros(index.groups.first.shape[0] - 1, dtype=bool)
            hit[self._group[self._group >= 0]] = True
            marks[index.groups.rows[hit[index.group_of_place]]] = True


def _cut(pairs: tuple[Array | None, Array], start: int, end: int) -> PairSlice:
    probe, build = pairs
    length = end - start
    from_probe: RowMap = Span(start, length) if probe is None else Indices(probe[start:end], length)
    return PairSlice(from_probe, Indices(build[start:end], length))
