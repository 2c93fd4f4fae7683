"""Finds matches with gpujoin's own kernels, by the algorithm that the facts of the keys suggest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpujoin.backends.cudf.algorithm import Choice, KeyFacts, choose
from gpujoin.errors import KernelCompileError
from gpujoin.launch import csr, direct, expand, facts, hashset, normalise, unique
from gpujoin.launch.device import Array, Device
from gpujoin.launch.keys import KeyCodes
from gpujoin.launch.matches import Places, Ranges, UniqueMatches
from gpujoin.launch.normalise import KeyColumn, KeyLayout
from gpujoin.logs import log
from gpujoin.model.algorithm import Algorithm

_INSTEAD = "a kernel does not compile, so cuDF joins instead: %s"


class UniqueTable(Protocol):
    """A table with at most one row for each key."""

    @property
    def nbytes(self) -> int:
        """Memory held."""

    def probe(self, device: Device, probe: KeyCodes) -> UniqueMatches:
        """Find the build row of each probe row."""


class ManyTable(Protocol):
    """A table with any number of rows for each key."""

    @property
    def nbytes(self) -> int:
        """Memory held."""

    @property
    def places(self) -> Places:
        """Build rows ordered by key."""

    def probe(self, device: Device, probe: KeyCodes) -> Ranges:
        """Find the matches of each probe row, as first place and number of places."""


@dataclass(frozen=True)
class UniqueMatcher:
    """Matcher for unique keys, or for marks of matched probe rows."""

    device: Device
    table: UniqueTable
    algorithm: str
    places: None = None

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return self.table.nbytes

    def match(self, probe: KeyCodes) -> UniqueMatches:
        return self.table.probe(self.device, probe)

    def expand(self, matches: Ranges, running: Array, begin: int, end: int) -> tuple[Array, Array]:
        """Not called: matches are unique."""
        raise NotImplementedError


@dataclass(frozen=True)
class ManyMatcher:
    """Matcher for keys with any number of build rows."""

    device: Device
    table: ManyTable
    algorithm: str

    @property
    def places(self) -> Places:
        return self.table.places

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return self.table.nbytes

    def match(self, probe: KeyCodes) -> Ranges:
        return self.table.probe(self.device, probe)

    def expand(self, matches: Ranges, running: Array, begin: int, end: int) -> tuple[Array, Array]:
        return expand.pairs(self.device, matches, running, self.places.rows, begin, end - begin)


KernelMatcher = UniqueMatcher | ManyMatcher


class _Keys(Protocol):
    """The columns of a key frame."""

    def columns(self) -> tuple[KeyColumn, ...]:
        """The columns, for kernels."""


@dataclass(frozen=True)
class PackedCoding:
    """Packs keys exactly into codes of 64 or 128 bits."""

    device: Device
    layout: KeyLayout
    exact: bool = True

    def codes(self, keys: _Keys) -> KeyCodes:
        return normalise.pack(self.device, self.layout, keys.columns())

    def same(self, left: _Keys, left_rows: Array, right: _Keys, right_rows: Array) -> Array:
        return normalise.compare(self.device, left.columns(), left_rows, right.columns(), right_rows)


@dataclass(frozen=True)
class HashedCoding:
    """Hashes keys to 64 bits."""

    device: Device
    seed: int
    exact: bool = False

    def codes(self, keys: _Keys) -> KeyCodes:
        return normalise.fingerprints(self.device, keys.columns(), self.seed)

    def same(self, left: _Keys, left_rows: Array, right: _Keys, right_rows: Array) -> Array:
        return normalise.compare(self.device, left.columns(), left_rows, right.columns(), right_rows)


def kernel_codings(device: Device, columns: Sequence[KeyColumn], seeds: int) -> Iterator[PackedCoding | HashedCoding]:
    """Codings by kernels: packed codes if the keys fit, else hashes with one seed after the other."""
    try:
        layout = normalise.layout_of(device, columns)
    except KernelCompileError as problem:
        log.warning(_INSTEAD, problem)
        return
    if layout is not None:
        yield PackedCoding(device, layout)
        return
    for seed in range(seeds):
        yield HashedCoding(device, seed)


def match_by_kernels(
    device: Device, codes: Callable[[], KeyCodes], algorithm: Algorithm, *, pairs: bool, exact: bool
) -> tuple[KernelMatcher | None, Choice | None]:
    """Build a matcher over key codes, by the algorithm that is chosen for them.

    ``pairs`` as in :meth:`gpujoin.model.backend.Backend.build`; ``exact``: codes are keys, whose range is meaningful,
    and not hashes. There is no matcher if there are no keys, or if a kernel does not compile, which is logged.
    """
    choice = None
    try:
        built = codes()
        facts = key_facts(device, built, pairs=pairs, exact=exact)
        choice = choose(facts, algorithm)
        log.debug("join by %s: %s", choice.algorithm.value, choice.reason)
        return None if facts.keys == 0 else _matcher(device, built, choice.algorithm, facts), choice
    except KernelCompileError as problem:
        log.warning(_INSTEAD, problem)
        return None, choice


def key_facts(device: Device, built: KeyCodes, *, exact: bool, pairs: bool = True) -> KeyFacts:
    """Measure the facts of build keys, in one pass and from a sample."""
    column = facts.column_facts(device, built)
    sample = facts.sample_facts(device, built, facts.sample(device, built))
    return KeyFacts(
        rows=column.rows,
        keys=column.keys,
        key_bytes=built.key_bytes,
        low=column.low if exact else None,
        high=column.high if exact else None,
        rows_per_key=sample.rows_per_key,
        heaviest=sample.heaviest,
        l2_bytes=device.properties.l2_bytes,
        pairs=pairs,
    )


def _matcher(device: Device, built: KeyCodes, algorithm: Algorithm, facts: KeyFacts) -> KernelMatcher:
    if algorithm is Algorithm.DIRECT:
        assert facts.low is not None
        assert facts.slots is not None
        return _by_address(device, built, direct.Range(facts.low, facts.slots), facts)
    table: UniqueTable | None = None
    if algorithm is Algorithm.UNIQUE:
        table = unique.build(device, built) if facts.pairs else hashset.build(device, built)
    if table is not None:
        return UniqueMatcher(device, table, algorithm.value)
    return _by_uniqueness(device, csr.build(device, built, ordered=facts.pairs), Algorithm.CSR)


def _by_address(device: Device, built: KeyCodes, keys: direct.Range, facts: KeyFacts) -> KernelMatcher:
    name = Algorithm.DIRECT.value
    if not facts.pairs:
        return UniqueMatcher(device, direct.build_set(device, built, keys), name)
    table = direct.build_unique(device, built, keys, present=facts.keys)
    if table is not None:
        return UniqueMatcher(device, table, name)
    return _by_uniqueness(device, direct.build_many(device, built, keys), Algorithm.DIRECT)


def _by_uniqueness(device: Device, table: ManyTable, algorithm: Algorithm) -> KernelMatcher:
    """Make a matcher for duplicate keys, or for unique ones if no key turns out to have two rows.

    So whether a build side counts as unique does not depend on the algorithm.
    """
    if table.places.most > 1:
        # Pairs are made after the build, when it is too late to use another algorithm, so their kernel is compiled now.
        expand.compile_pairs(device)
        return ManyMatcher(device, table, algorithm.value)
    return UniqueMatcher(device, _AtMostOne(table), algorithm.value)


@dataclass(frozen=True)
class _AtMostOne:
    """A table for duplicate keys that turned out unique, used as a table of unique keys."""

    table: ManyTable

    @property
    def nbytes(self) -> int:
        return self.table.nbytes

    def probe(self, device: Device, probe: KeyCodes) -> UniqueMatches:
        ranges = self.table.probe(device, probe)
        xp, hit = device.xp, ranges.count > 0
        rows = self.table.places.rows
        place = xp.where(hit, ranges.start, xp.int32(0))
        return UniqueMatches(xp.where(hit, rows[place], xp.int32(-1)), ranges.pairs)
