"""Finds groups that are complete before all rows are read, since the files are ordered by a key.

Files are often in the order of a key or a time: orders by number, events by day. The statistics of row groups tell, for
each of them, the least key of all that come later: its *floor*. Groups below it are complete::

    SELECT order, sum(price) FROM lines GROUP BY order

    row group   orders      floor    groups held    given out
    0           1 to 400    400      1 to 400       1 to 399
    1           400 to 830  831      400 to 830     400 to 830
    2           831 to 999           831 to 999     831 to 999

So few groups are held, none is merged but for those on an edge, and none goes to disk.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass

import pyarrow.types as pat

from gpujoin.model.relations import (
    Filter,
    Join,
    Limit,
    Output,
    PartialAggregate,
    Project,
    Relation,
    Scan,
    TopN,
    Window,
)
from gpujoin.model.types import is_whole, logical
from gpujoin.plan.fragments import ColumnTree


@dataclass(frozen=True)
class ScannedKeys:
    """Keys of an aggregation whose rows come in the order of a scan."""

    scan: Scan
    keys: Mapping[int, int]
    """Position of the key, by that of the column."""


def scanned_keys(node: PartialAggregate, shared: Container[Relation]) -> ScannedKeys | None:
    """Give the keys that are whole numbers, dates or times read from files; ``None`` if there are none.

    Between the scan and the aggregation may be filters and projections, none of them among ``shared`` parts, which are
    read for others, too.
    """
    tree = ColumnTree.from_relation(node)
    keys = {id_: n for n, (id_, key) in enumerate(zip(tree.ids, node.keys, strict=False)) if _is_ordered(key)}
    (tree,) = tree.inputs
    while isinstance(tree.relation, (Filter, Project)) and tree.relation not in shared:
        (tree,) = tree.inputs
    places = {at: keys[id_] for id_, at in tree.positions.items() if id_ in keys}
    scan = tree.relation
    return ScannedKeys(scan, places) if places and isinstance(scan, Scan) and scan not in shared else None


def _is_ordered(key: Output) -> bool:
    dtype = logical(key.expression.type)
    return is_whole(dtype) or pat.is_date(dtype) or pat.is_timestamp(dtype)


def may_stop(tree: Relation) -> frozenset[Relation]:
    """Find the aggregations of which a limit, a join or Spark may ask for some groups only.

    Where they give groups before all rows are read, rows that are not read cannot fail, as in Spark they do.
    """
    stopped: set[Relation] = set()

    def visit(node: Relation, *, may: bool) -> None:
        match node:
            case PartialAggregate():
                if may:
                    stopped.add(node)
                visit(node.child, may=False)
            case Limit():
                visit(node.child, may=True)
            case Join():
                visit(node.side(node.build_side), may=False)
                visit(node.side(node.build_side.other), may=True)
            case TopN() | Window():
                visit(node.child, may=False)
            case _:
                for child in node.children:
                    visit(child, may=may)

    visit(tree, may=True)
    return frozenset(stopped)
