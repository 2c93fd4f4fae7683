"""Partial aggregation, piece by piece: the driver that all backends share.

A backend aggregates rows into a *state* of one row for each group, merges states, and converts a state to Spark's
aggregation buffers (:class:`~gpujoin.model.pipeline.AggregateState`). The driver decides what is held, merged, returned
early or written to disk. An example with ``count(*)`` by ``k``, where memory suffices for three groups::

    piece k = a b a    state a:2 b:1
    piece k = b c      state b:1 c:1      merged a:2 b:2 c:1
    piece k = d        state d:1          merged a:2 b:2 c:1 d:1, too large

The four groups are returned as they are, so Spark's final aggregation may see a group several times. Where each group
must be returned once (``PartialAggregate.final``), the state goes to disk instead, divided by the hash of its keys.
Each part is then merged by a driver of its own, which may divide it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pyarrow as pa

from gpujoin.engine.spill import SpillPart, SpillStore, divisible, part_by_part
from gpujoin.errors import DecodeError, DeviceMemoryError
from gpujoin.model.files import Floor
from gpujoin.model.pipeline import AggregateState, OrderedState, PipelineMetrics, RegroupingState, Renumbering
from gpujoin.model.relations import PartialAggregate
from gpujoin.plan.runtime_filters import may_raise

Piece = TypeVar("Piece")

_USELESS = 0.9
"""Merging that leaves more than this share of the rows is useless: groups are then returned as they are."""
_PAUSE = 8
"""After useless merging, so many times its rows pass before merging is tried again."""


class Aggregation(Generic[Piece]):
    """A partial aggregation in progress, whose states take at most ``memory_budget`` bytes.

    Beyond, groups are returned before all their rows were seen or, where each must be returned once, go to disk.
    ``ordered`` is ``state``, where floors are given, too: groups below them are complete, and are returned.
    Groups that are returned are merged into ``coarser`` sets, too. ``divisions`` counts the divisions of the states so
    far. ``stuck``: the last one did not make the parts smaller.
    """

    def __init__(
        self,
        state: AggregateState[Piece, Any],
        node: PartialAggregate,
        memory_budget: int,
        metrics: PipelineMetrics,
        new_store: Callable[[], SpillStore],
        *,
        ordered: OrderedState[Piece, Any] | None = None,
        coarser: CoarserSets[Piece] | None = None,
        divisions: int = 0,
        stuck: bool = False,
    ) -> None:
        self._state = state
        self._node = node
        self._budget = memory_budget
        self._metrics = metrics
        self._new_store = new_store
        self._ordered = ordered
        self._coarser = coarser
        self._divisions = divisions
        self._may_let_go = not node.final or (bool(node.keys) and divisible(divisions, stuck=stuck))
        self._store: SpillStore | None = None
        self._parts: tuple[SpillPart, ...] = ()
        # Lists take memory as they are converted. Whoever stops early is to meet an error that any group has.
        self._gives_slices = any(call.gives_list for call in node.aggregates) and not may_raise(node)
        self._states: list[Any] = []
        self._new_rows = 0
        self._merged_rows = 0
        self._unmerged_rows = 0
        self._floor: Floor | None = None
        """All groups below it were returned; its column is a key, by position."""
        self._merging_is_useless = False
        """Whether the last merging left most of the rows. States then go to disk without being merged."""

    def add(self, piece: Piece) -> Iterator[Piece]:
        """Aggregate the rows of a piece; return groups if there are too many to hold."""
        self.take(piece)
        yield from self.relieve()

    def add_groups(self, states: Sequence[Any], floor: Floor | None = None) -> Iterator[Piece]:
        """Add states of rows. Returns complete groups, and others if there are too many to hold.

        ``floor`` is what is known of a key, by position, of the rows that come after. Raises ``DecodeError`` if a group
        comes that was complete.
        """
        self._check_floor(states)
        for state in states:
            self.hold(state)
        if floor is not None and self._ordered is not None and self._store is None:
            yield from self._complete(self._ordered, floor)
        yield from self.relieve()

    def _check_floor(self, states: Sequence[Any]) -> None:
        if self._floor is None or self._ordered is None:
            return
        for state in states:
            below, _ = self._ordered.below(state, self._floor.column, self._floor.value)
            if self._state.size(below)[0]:
                raise DecodeError(
                    f"a key is less than {self._floor.value!r}, the least of its column by the statistics of its file"
                )

    def _complete(self, ordered: OrderedState[Piece, Any], floor: Floor) -> Iterator[Piece]:
        """Return the groups below a floor, unless most of the held groups were compared with a floor before."""
        is_higher = self._floor is None or floor.value > self._floor.value
        if not is_higher or self._new_rows < self._merged_rows:
            return
        divided = [ordered.below(state, floor.column, floor.value) for state in self._states]
        below = [state for state, _ in divided if self._state.size(state)[0]]
        self._states = [state for _, state in divided if self._state.size(state)[0]]
        self._new_rows, self._merged_rows = 0, sum(self._state.size(state)[0] for state in self._states)
        self._floor = floor
        for state in ordered.merge_ascending(below, floor.column) if below else ():
            self._metrics.complete_groups += self._state.size(state)[0]
            yield from self._finished(state)

    def take(self, piece: Piece) -> None:
        """Aggregate the rows of a piece, and return nothing.

        Raises ``DeviceMemoryError`` if not even a small part of the rows fits the device; none of them is aggregated
        then.
        """
        for state in self._state.reduce(piece):
            self.hold(state)

    def hold(self, state: Any) -> None:
        """Take groups that are aggregated already."""
        rows, _ = self._state.size(state)
        if rows:
            self._states.append(state)
            self._new_rows += rows

    def relieve(self) -> Iterator[Piece]:
        """Merge states; return groups if there are too many to hold.

        Raises ``DeviceMemoryError`` if groups to be returned do not fit the device; the aggregation cannot be used
        any further then.
        """
        if not self._new_rows:
            return
        if self._unmerged_rows > 0:
            self._unmerged_rows -= self._new_rows
            yield from self._let_go()
            return
        size = sum(self._state.size(state)[1] for state in self._states)
        full = self._may_let_go and size > self._budget // 2
        if full and self._merging_is_useless and self._store is not None:
            yield from self._let_go()
            return
        # Merge when there are as many new rows as merged ones, so that each row is merged a few times only.
        if self._new_rows < max(self._state.merged_rows, self._merged_rows) and not full:
            return
        merged = self._merged_if_it_fits()
        if merged is None:
            yield from self._let_go()
            return
        rows, size = self._state.size(merged)
        before = self._merged_rows + self._new_rows
        useless = before >= 2 * self._state.merged_rows and len(self._states) > 1 and rows > _USELESS * before
        self._merging_is_useless = useless
        self._states, self._new_rows, self._merged_rows = [merged], 0, rows
        del merged  # what goes to disk is freed as it does
        if useless and not self._node.final:
            self._unmerged_rows = _PAUSE * before
        if self._over(rows, size) or (useless and not self._node.final):
            yield from self._let_go()

    def finish(self) -> Iterator[Piece]:
        """Return all groups; without keys that is one row, even for no input."""
        if self._store is None:
            if not self._states and not self._node.keys:
                self._states = [self._state.nothing()]
            if not self._states:
                return
            merged = self._merged_if_it_fits() if self._may_let_go else self._merged()
            if merged is not None:
                self._states = []
                rows, size = self._state.size(merged)
                self._metrics.oversized_parts += not self._may_let_go and rows > 1 and size > self._budget // 2
                yield from self._finished(merged)
                return
            if not self._node.final:
                yield from self._let_go()
                return
        self._spill()
        assert self._store is not None
        try:
            yield from part_by_part((self._parts,), self._merged_part)
        finally:
            self._store.close()

    def _merged_part(self, parts: Sequence[SpillPart], stuck: bool) -> Iterator[Piece]:
        """Merge a part by a driver of its own."""
        (part,) = parts
        if not part.rows:
            return
        deeper = Aggregation(
            self._state, self._node, self._budget, self._metrics, self._new_store, coarser=self._coarser,
            divisions=self._divisions + 1, stuck=stuck,
        )  # fmt: skip
        for batch in part.read():
            deeper.hold(self._state.restore(batch))
            yield from deeper.relieve()
        yield from deeper.finish()

    def _over(self, rows: int, size: int) -> bool:
        """Whether a merged state is too large to hold. A single group is always held."""
        return self._may_let_go and rows > 1 and size > self._budget // 2

    def _merged(self) -> Any:
        # A state from disk may have a group several times; it counts as new until it is merged.
        if len(self._states) == 1 and not (self._divisions and self._new_rows):
            return self._states[0]
        return self._state.merge(self._states)

    def _merged_if_it_fits(self) -> Any | None:
        try:
            return self._merged()
        except DeviceMemoryError:
            return None

    def _let_go(self) -> Iterator[Piece]:
        """Write the state to disk where each group must be returned once, else return its groups."""
        if self._node.final:
            if self._may_let_go:
                self._spill()
            return
        states, self._states, self._new_rows, self._merged_rows = self._states, [], 0, 0
        for state in states:
            self._metrics.early_groups += self._state.size(state)[0]
            yield from self._finished(state)

    def _spill(self) -> None:
        """Write the state to disk, divided by the hash of its keys."""
        while self._states:
            for slice_ in self._state.slices(self._states.pop(0)):
                self._write(self._state.divide(slice_, self._divisions))
        self._new_rows, self._merged_rows = 0, 0

    def _write(self, divided: Sequence[pa.Table]) -> None:
        """Append parts of a state to those on disk."""
        if self._store is None:
            self._store = self._new_store()
            self._parts = self._store.new_parts(divided[0].schema, len(divided))
        for part, rows in zip(self._parts, divided, strict=True):
            for batch in rows.to_batches():
                part.append(batch)

    def _finished(self, state: Any) -> Iterator[Piece]:
        self._metrics.groups += self._state.size(state)[0]
        if self._coarser is not None:
            self._coarser.take(state)
        yield from map(self._state.finish, self._state.slices(state) if self._gives_slices else (state,))


@dataclass(frozen=True)
class SetLevel:
    """How the groups of a grouping set are made."""

    source: int | None
    """The set that it is merged from; ``None`` for the set made of rows."""
    keys: tuple[int, ...]
    """Positions of its keys; the other keys of its source become null."""
    numbers: Renumbering | None = None
    """New values of its source's first key, if that is a row number and the set drops some of the late keys."""


@dataclass(frozen=True)
class CoarserSets(Generic[Piece]):
    """Grouping sets that are merged from the groups of a finer set."""

    state: RegroupingState[Piece, Any]
    sets: tuple[tuple[Aggregation[Piece], SetLevel], ...]
    """Aggregation and level of each set."""

    def take(self, groups: Any) -> None:
        """Merge a state of the finer set into the sets."""
        for aggregation, level in self.sets:
            aggregation.hold(self.state.regroup(groups, level.keys, level.numbers))


def aggregated_by_sets(
    state: RegroupingState[Piece, Any],
    finest: PartialAggregate,
    levels: Sequence[SetLevel],
    reduced: Iterator[Sequence[Any]],
    memory_budget: int,
    metrics: PipelineMetrics,
    new_store: Callable[[], SpillStore],
) -> Iterator[tuple[int, Piece]]:
    """Merge groups of the finest set, piece by piece. Groups that a set returns are merged into its coarser sets.

    Groups come with the number of their set; the finest set has 0. ``memory_budget`` is that of each set.
    """
    metrics.regrouped_sets += sum(level.source is not None for level in levels)
    sets: dict[int, Aggregation[Piece]] = {}
    for place in reversed(range(len(levels))):
        coarser = tuple((sets[n], level) for n, level in enumerate(levels) if level.source == place)
        sets[place] = Aggregation(state, finest, memory_budget, metrics, new_store, coarser=CoarserSets(state, coarser))
    for states in reduced:
        for each in states:
            sets[0].hold(each)
        for place in range(len(levels)):
            for groups in sets[place].relieve():
                yield place, groups
    for place in range(len(levels)):
        for groups in sets[place].finish():
            yield place, groups
