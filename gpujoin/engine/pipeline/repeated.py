"""Repeated parts: what occurs several times in a tree is computed once, and its rows are read again.

Queries repeat themselves (a view used twice), and runtime filters repeat a side of a join. In TPC-H 18 the orders with
more than 300 pieces filter orders and, as a runtime filter, lineitem::

    join ── semi join ── scan orders
      │         └─────── filter (sum > 300) ── aggregate ── scan lineitem     computed
      └──── semi join ── scan lineitem
                └─────── filter (sum > 300) ── aggregate ── scan lineitem     its rows are taken from there

Rows are kept for parts with a join, an aggregation or a window, since reading a file again costs less memory, and only
up to a limit, beyond which the part is computed again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from gpujoin.engine.memory import hold
from gpujoin.model.pipeline import PipelineMetrics
from gpujoin.model.relations import Relation
from gpujoin.plan.repeated import repeated_parts


class _StoredPieces(list[Any]):
    """Pieces of a part; their bytes count as held until the list is dropped."""


class KeptParts:
    """Keeps the rows of parts that occur several times in a tree, from the first use to the last one.

    Parameters
    ----------
    tree : Relation
        The tree, its scans bound to what they read.
    metrics : PipelineMetrics
        Counters to add to.
    """

    def __init__(self, tree: Relation, metrics: PipelineMetrics) -> None:
        self._metrics = metrics
        repeated = repeated_parts(tree)
        self._parts = repeated.kinds
        self._uses = Counter(repeated.uses)
        """Reads to come of each part; less than 0 if a part around it is computed again."""
        self._pieces: dict[int, _StoredPieces] = {}

    def __contains__(self, node: object) -> bool:
        return node in self._parts

    def pieces(
        self, node: Relation, computed: Callable[[], Iterator[Any]], size: Callable[[Any], int], limit: int
    ) -> Iterator[Any]:
        """Give the pieces of a repeated part.

        Parameters
        ----------
        node : Relation
            Where it stands.
        computed : callable
            Computes its pieces, collected.
        size : callable
            Bytes of a piece.
        limit : int
            Bytes that may be kept.
        """
        part = self._parts[node]
        self._uses[part] -= 1
        stored = self._pieces.get(part) if self._uses[part] > 0 else self._pieces.pop(part, None)
        if stored is not None:
            self._metrics.parts_reused += 1
            yield from stored
            return
        stored, nbytes = _StoredPieces(), 0
        for piece in computed():
            nbytes += size(piece)
            if nbytes <= limit and self._uses[part] > 0:
                stored.append(piece)
            else:
                stored.clear()
            yield piece
        if nbytes <= limit and self._uses[part] > 0:
            hold(stored, nbytes)
            self._pieces[part] = stored
