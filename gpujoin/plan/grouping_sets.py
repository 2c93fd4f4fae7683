"""Grouping sets computed of one another: coarse groups are merged from finer ones, not from rows.

``ROLLUP``, ``CUBE`` and ``GROUPING SETS`` are an aggregation over an ``Expand``, which gives each row once for each
set, with nulls in place of the keys that the set leaves out, and the set's number. A rollup of eight keys aggregates
nine times the rows. Where one set has all keys, its groups hold all that the other sets need::

    SELECT a, b, sum(v) FROM t GROUP BY ROLLUP (a, b)

    rows   a b v      (a, b)   1 1 12      (a)   1 null 15     from the groups of (a, b)
           1 1 5               1 2  3            2 null  4
           1 1 7               2 1  4      ()    null null 19  from the groups of (a)
           1 2 3
           2 1 4

Each set is merged from that with the fewest keys among those that have all of its keys.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gpujoin.model.expressions import ColumnRef, Expression, Literal
from gpujoin.model.relations import Expand, Output, PartialAggregate, column
from gpujoin.plan.remap import substituted


@dataclass(frozen=True)
class GroupingSet:
    """One set of keys."""

    source: int | None
    """Which set it is merged from; ``None``: it is :attr:`GroupingSets.finest`."""
    keys: tuple[int, ...]
    """Keys of :attr:`GroupingSets.finest` that are its own; the others are null."""
    outputs: tuple[Expression, ...]
    """Columns of the original aggregation, computed from those of ``finest``."""


@dataclass(frozen=True)
class GroupingSets:
    """An aggregation by several sets of keys."""

    finest: PartialAggregate
    """Aggregation of the rows by all keys."""
    sets: tuple[GroupingSet, ...]
    """Each stands after its source."""


def grouping_sets(node: PartialAggregate) -> GroupingSets | None:
    """Find the sets of an aggregation over an ``Expand``.

    ``None`` if it has another input, if no set has all keys, if an aggregate depends on the set, if groups of two sets
    may be one group, or if a set has neither keys nor aggregates, whose groups have no columns.
    """
    expand = node.child
    if not isinstance(expand, Expand) or len(expand.projections) < 2:
        return None
    if any(call.gives_list for call in node.aggregates):
        return None
    ways = [[output.expression for output in way] for way in expand.projections]
    same = {
        n: values[0]
        for n, values in enumerate(zip(*ways, strict=True))
        if len({value.structure for value in values}) == 1
    }
    argument_columns = [
        ref.index for call in node.aggregates for value in call.expressions() for ref in value.columns()
    ]
    if not all(index in same for index in argument_columns) or not all(
        isinstance(key.expression, ColumnRef) for key in node.keys
    ):
        return None
    places = [key.expression.index for key in node.keys if isinstance(key.expression, ColumnRef)]
    values = [[way[place] for place in places] for way in ways]
    keys = {value.structure: value for row in values for value in row if not isinstance(value, Literal)}
    key_positions = [_positions(list(keys), row) for row in values]
    if (not node.aggregates and not all(key_positions)) or (node.final and not _are_told_apart(values)):
        return None
    order = sorted(range(len(ways)), key=lambda way: -len(key_positions[way]))
    if not keys or len(key_positions[order[0]]) < len(keys):
        return None
    outputs = tuple(Output(f"grouping key {n}", key) for n, key in enumerate(keys.values()))
    calls = tuple(call.mapped(lambda value: substituted(value, same)) for call in node.aggregates)
    finest = dataclasses.replace(node, child=expand.child, keys=outputs, aggregates=calls)
    sets = []
    for turn, way in enumerate(order):
        supersets = [n for n, other in enumerate(order[:turn]) if set(key_positions[way]) <= set(key_positions[other])]
        source = min(supersets, key=lambda n: len(key_positions[order[n]]), default=None)
        sets.append(GroupingSet(source, key_positions[way], _outputs(finest, list(keys), values[way])))
    return GroupingSets(finest, tuple(sets))


def most_held(finest: PartialAggregate, sources: Sequence[int | None]) -> int:
    """Count the sets whose groups are in memory at a time: all, or a set and those merged from it."""
    if not finest.final:
        return len(sources)
    counts = Counter(source for source in sources if source is not None)
    return 1 + max(counts.values(), default=0)


def _are_told_apart(values: Sequence[Sequence[Expression]]) -> bool:
    """Whether any two sets differ by a constant, as by the set's number; without, a null may be of either."""
    constants = [
        tuple(value.structure for value in row)
        for row in zip(*values, strict=True)
        if all(isinstance(value, Literal) for value in row)
    ]
    return len(set(zip(*constants, strict=True))) == len(values)


def _positions(keys: Sequence[object], values: Sequence[Expression]) -> tuple[int, ...]:
    """Positions of the keys that a set has."""
    return tuple(sorted({keys.index(value.structure) for value in values if not isinstance(value, Literal)}))


def _outputs(finest: PartialAggregate, keys: Sequence[object], values: Sequence[Expression]) -> tuple[Expression, ...]:
    """A set's keys, constants included, and the buffers."""
    own = [
        value if isinstance(value, Literal) else column(finest.schema, keys.index(value.structure)) for value in values
    ]
    return (*own, *(column(finest.schema, n) for n in range(len(keys), len(finest.schema))))
