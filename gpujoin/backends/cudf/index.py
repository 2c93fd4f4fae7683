"""The search structure of a build side on a device, over integer codes of keys.

Equal keys have equal codes. Codes that are hashes may also be equal for different keys, so their matches are compared
by key afterwards. A *matcher* finds the build rows of a code, with gpujoin's own kernels
(:mod:`gpujoin.backends.cudf.kernels`) or with array operations (:mod:`gpujoin.backends.cudf.grouping`). Build rows are
unique, or rows with the same key lie side by side in compressed sparse row form. The number of matches of a probe row
is then a difference of offsets, and pairs are made on demand from a slice of the running count (count-then-write
output, Sioulas et al., "Hardware-conscious hash-joins on GPUs", ICDE 2019). An example::

    build   row  0 1 2      by key   key 5   rows 0 2      probe   5  start 0, count 2
            key  5 7 5               key 7   row  1                9  count 0
                                                                   7  start 2, count 1

    running count 2 2 3     pair 1 belongs to probe row 0, build row 2; pair 2 to probe row 2, build row 1
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from gpujoin.backends.cudf.algorithm import Choice
from gpujoin.backends.cudf.arrays import Array, ArrayOps, owners, positions
from gpujoin.backends.cudf.grouping import match_by_arrays
from gpujoin.backends.cudf.kernels import kernel_codings, match_by_kernels
from gpujoin.backends.ordered.nearest import lookup_slices
from gpujoin.backends.ordered.reductions import all_true, total
from gpujoin.errors import GpuJoinError
from gpujoin.launch.device import Device
from gpujoin.launch.keys import MAX_ROWS, KeyCodes
from gpujoin.launch.matches import Places, Ranges, UniqueMatches
from gpujoin.launch.normalise import KeyColumn
from gpujoin.model.algorithm import ASKED_FOR, Algorithm
from gpujoin.model.backend import PairSlice
from gpujoin.model.maps import Indices, MapOrder, OutOfBounds


class Keys(Protocol):
    """A key frame, as an index reads it."""

    def __len__(self) -> int:
        """Row count."""

    @property
    def nbytes(self) -> int:
        """Memory held."""

    @property
    def exact(self) -> bool:
        """Whether equal codes imply equal keys; otherwise matches are verified."""

    def columns(self) -> tuple[KeyColumn, ...]:
        """The columns for kernels, which code and compare them in place of the two methods below."""

    def coded(self, seed: int) -> KeyCodes:
        """Codes of the rows. The seed chooses the hash function where codes are not exact."""

    def same(self, rows: Array, other: Any, other_rows: Array) -> Array:
        """Compare keys pairwise: row ``rows[i]`` of this frame with row ``other_rows[i]`` of ``other``.

        None of these rows has a null key.
        """


class Matcher(Protocol):
    """Finds the build rows of each code."""

    @property
    def algorithm(self) -> str:
        """Its name, for metrics and explanations."""

    @property
    def nbytes(self) -> int:
        """Memory held."""

    @property
    def places(self) -> Places | None:
        """Build rows ordered by code, ascending within each; ``None`` if no code has two rows."""

    def match(self, probe: KeyCodes) -> UniqueMatches | Ranges:
        """Matches of each probe row; ``UniqueMatches`` if and only if ``places`` is ``None``."""

    def expand(self, matches: Ranges, running: Array, begin: int, end: int) -> tuple[Array, Array]:
        """Probe and build rows of the pairs ``begin … end - 1`` as int32, given the running count of the matches."""


class Coding(Protocol):
    """Converts keys to codes."""

    @property
    def exact(self) -> bool:
        """Whether equal codes imply equal keys; otherwise matches are verified."""

    def codes(self, keys: Keys) -> KeyCodes:
        """Codes of keys of either side."""

    def same(self, left: Keys, left_rows: Array, right: Keys, right_rows: Array) -> Array:
        """Compare the keys of pairs of rows."""


@dataclass(frozen=True)
class ArrayCoding:
    """Converts keys to codes with array operations."""

    seed: int
    exact: bool

    def codes(self, keys: Keys) -> KeyCodes:
        return keys.coded(self.seed)

    def same(self, left: Keys, left_rows: Array, right: Keys, right_rows: Array) -> Array:
        return left.same(left_rows, right, right_rows)


class EnterDevice(Protocol):
    """Makes a device current."""

    def __call__(self) -> AbstractContextManager[Any]:
        """Context manager that makes the device current."""


class Index:
    """A build side over :class:`Keys`; implements :class:`gpujoin.model.backend.Build`.

    Keys are kept only if matches must be verified. ``entered`` makes the device current: every public method of
    probes uses it. With the algorithm ``CUDF`` there are array operations alone. Raises ``GpuJoinError`` if
    two different build keys have equal hashes under each of ``seeds`` hash functions.
    """

    def __init__(
        self,
        ops: ArrayOps,
        keys: Keys,
        entered: EnterDevice,
        algorithm: Algorithm = Algorithm.CUDF,
        *,
        seeds: int = 8,
        pairs: bool = True,
    ) -> None:
        self.ops = ops
        self.entered = entered
        self.kernels = ops.kernels if algorithm.uses_kernels else None
        self._choice = None if algorithm.uses_kernels else Choice(algorithm, ASKED_FOR)
        for coding in self._codings(keys, seeds):
            matcher, self.rows = self._matcher(keys, coding, algorithm, pairs=pairs)
            if matcher is not None and (coding.exact or not self._collision(keys, coding, matcher.places)):
                self.matcher: Matcher = matcher
                self.coding: Coding = coding
                self._keys = None if coding.exact else keys
                return
        raise GpuJoinError(
            f"{seeds} hash functions each gave two of {keys.nbytes} bytes of build keys one code; "
            "join on other columns, or with backend='cpu'"
        )

    def _codings(self, keys: Keys, seeds: int) -> Iterator[Coding]:
        """Codings to try, the best first."""
        if self.kernels is not None:
            yield from kernel_codings(self.kernels, keys.columns(), seeds)
        for seed in range(1 if keys.exact else seeds):
            yield ArrayCoding(seed, keys.exact)

    def _matcher(self, keys: Keys, coding: Coding, algorithm: Algorithm, *, pairs: bool) -> tuple[Matcher | None, int]:
        """Make a matcher for a coding; ``None`` if it is impossible. Also returns the number of rows."""
        if isinstance(coding, ArrayCoding):
            built = coding.codes(keys)
            return match_by_arrays(self.ops, built, exact=coding.exact), built.rows
        assert self.kernels is not None
        # The build row of a hash must be known, to compare its key.
        pairs = pairs or not coding.exact
        matcher, self._choice = match_by_kernels(
            self.kernels, lambda: coding.codes(keys), algorithm, pairs=pairs, exact=coding.exact
        )
        return matcher, len(keys)

    def _collision(self, keys: Keys, coding: Coding, places: Places | None) -> bool:
        """Whether two rows with the same code have different keys."""
        if places is None:
            return False
        others = places.rows[places.first[_group_of_place(self.ops, places)]]
        return not all_true(coding.same(keys, places.rows, keys, others))

    @property
    def unique(self) -> bool:
        """Whether no two build rows have equal keys."""
        return self.matcher.places is None

    @property
    def algorithm(self) -> str:
        """Name of the matcher; it ends with ``fingerprint`` if codes are hashes and matches are verified."""
        name = self.matcher.algorithm
        return f"{name} fingerprint" if self._keys is not None and name != "empty" else name

    @property
    def reason(self) -> str | None:
        """Algorithm that was chosen, and why; ``None``: there was no choice."""
        return None if self._choice is None else f"{self._choice.algorithm.value}: {self._choice.reason}"

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return self.matcher.nbytes + (self._keys.nbytes if self._keys is not None else 0)

    @cached_property
    def group_of_place(self) -> Array:
        """Group of each place; kept for further calls."""
        assert self.matcher.places is not None
        groups = _group_of_place(self.ops, self.matcher.places)
        if self.ops.kernels is not None and int(groups.shape[0]):
            # Wait for the device: another thread may read the groups next, on its own stream.
            self.ops.kernels.download(groups[-1:])
        return groups

    def match(self, keys: Keys) -> tuple[int, UniqueMatches | Ranges]:
        """Find the matches of keys, and verify them if codes are not exact. Also returns the number of rows."""
        probe = self.coding.codes(keys)
        if probe.rows > MAX_ROWS:
            raise GpuJoinError(f"a probe of {probe.rows} rows is over the {MAX_ROWS} rows of a device column")
        matches = self.matcher.match(probe)
        return probe.rows, matches if self._keys is None else self._verify(keys, self._keys, matches)

    def _verify(self, keys: Keys, build: Keys, matches: UniqueMatches | Ranges) -> UniqueMatches | Ranges:
        """Keep the matches whose keys are equal. All build rows with the same code have the same key."""
        if isinstance(matches, UniqueMatches):
            maybe = positions(self.ops, matches.row >= 0)
            wrong = maybe[~self.coding.same(keys, maybe, build, matches.row[maybe])]
            matches.row[wrong] = -1
            return UniqueMatches(matches.row, matches.pairs - int(wrong.shape[0]))
        places = self.matcher.places
        assert places is not None
        maybe = positions(self.ops, matches.count > 0)
        wrong = maybe[~self.coding.same(keys, maybe, build, places.rows[matches.start[maybe]])]
        wrong_pairs = total(matches.count[wrong])
        matches.count[wrong] = 0
        return Ranges(matches.start, matches.count, matches.pairs - wrong_pairs)


class IndexProbe:
    """The matches of keys in an index."""

    def __init__(self, index: Index, keys: Keys) -> None:
        self._index = index
        self.rows, self._matches = index.match(keys)
        self.pairs = self._matches.pairs

    def matched(self) -> Array:
        with self._index.entered():
            matches = self._matches
            return matches.row >= 0 if isinstance(matches, UniqueMatches) else matches.count > 0

    @property
    def build_rows(self) -> int:
        """Rows of the build side."""
        return self._index.rows

    @property
    def kernels(self) -> Device | None:
        """The device for gpujoin's own kernels; ``None``: they must not be used."""
        return self._index.kernels

    def restricted_to(self, matches: UniqueMatches) -> IndexProbe:
        """The same probe with fewer matches."""
        other = copy.copy(self)
        other._matches = matches  # noqa: SLF001 - of the same class
        other.pairs = matches.pairs
        return other

    def lookup(self) -> Indices:
        if not isinstance(self._matches, UniqueMatches):
            raise GpuJoinError("a lookup needs a build side with unique keys; this one has duplicates")
        return Indices(self._matches.row, self.rows, OutOfBounds.NULLIFY)

    def single(self) -> UniqueMatches | None:
        """The matches, if no probe row has two; else ``None``."""
        return self._matches if isinstance(self._matches, UniqueMatches) else None

    def ranges(self) -> tuple[Ranges, Places]:
        """The matches as ranges of places, and the build rows there, where probe rows may have several."""
        places = self._index.matcher.places
        assert isinstance(self._matches, Ranges)
        assert places is not None
        return self._matches, places

    def marked(self) -> UniqueMatches:
        """Matches that only tell matched probe rows: build row 0 stands for any."""
        matches, xp = self._matches, self._index.ops.xp
        if isinstance(matches, UniqueMatches):
            return matches
        matched = matches.count > 0
        row = xp.subtract(matched.view(xp.int8), xp.int8(1), dtype=xp.int32)
        return UniqueMatches(row, total(matched))

    def slices(self, max_pairs: int) -> Iterator[PairSlice]:
        """All pairs, in slices. The device is current only while a slice is being made."""
        if self.pairs == 0:
            return
        index, matches = self._index, self._matches
        if isinstance(matches, UniqueMatches):
            xp = index.ops.xp
            yield from lookup_slices(xp, xp.int32, index.entered, matches.row, matches.pairs, max_pairs)
            return
        with index.entered():
            running = index.ops.xp.cumsum(matches.count, dtype=index.ops.xp.int64)
        for start in range(0, self.pairs, max_pairs):
            end = min(self.pairs, start + max_pairs)
            with index.entered():
                probe, build = index.matcher.expand(matches, running, start, end)
            of_probe = Indices(probe, end - start, order=MapOrder.ASCENDING)
            yield PairSlice(of_probe, Indices(build, end - start))

    def mark_build(self, marks: Array) -> None:
        """Mark the build rows with a match. Threads may mark at once: all write the same value."""
        index, matches = self._index, self._matches
        with index.entered():
            if isinstance(matches, UniqueMatches):
                marks[matches.row[matches.row >= 0]] = True
                return
            places = index.matcher.places
            assert places is not None
            of_place = index.group_of_place
            hit = index.ops.xp.zeros(places.first.shape[0] - 1, dtype=bool)
            hit[of_place[matches.start[matches.count > 0]]] = True
            marks[places.rows[hit[of_place]]] = True


def _group_of_place(ops: ArrayOps, places: Places) -> Array:
    first = places.first
    return owners(ops, first[1:] - first[:-1], first[:-1], int(places.rows.shape[0]))
