"""Names islands and their stages in a few words, for Spark's own progress.

The operations of an island, and what its jobs are called::

    aggregate count(*) by o_orderpriority
      inner join, right side built, o_orderkey = l_orderkey      gpujoin: scan orders, join lineitem, aggregate
        scan orders.parquet (…), columns …
        scan lineitem.parquet (…), columns …

A stage that takes exchanged rows begins where its rows come in::

    gpujoin: exchanged rows, join exchanged rows, aggregate
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpujoin.report.explanation import IslandExplanation, Operation
from gpujoin.report.operations import OperationKind

_SENDER = "gpujoin: "
_LONGEST = 120
_EXCHANGED = "exchanged rows"
_SCAN = "scan "


def jobs_name(islands: Iterable[IslandExplanation]) -> str:
    """Name the jobs of a query after its islands."""
    return _named("; ".join(", ".join(_words(island.operation)) for island in islands))


def stage_names(island: IslandExplanation) -> dict[str, str]:
    """Name each stage of an island, by its name in Spark's plans."""
    return dict(_stages(island.operation, island.island_id))


def _stages(top: Operation, name: str) -> Iterator[tuple[str, str]]:
    yield name, _named(", ".join(_words(top, within_stage=True)))
    for exchange in _exchanges(top):
        (producer,) = exchange.inputs
        yield from _stages(producer, exchange.measured_as[0][0])


def _exchanges(top: Operation) -> Iterator[Operation]:
    """Yield the exchanges that a stage takes rows from."""
    for below in top.inputs:
        if below.kind is OperationKind.EXCHANGE:
            yield below
        else:
            yield from _exchanges(below)


def _words(operation: Operation, *, within_stage: bool = False) -> Iterator[str]:
    """Yield the operations in the order in which rows pass them, the other side of a join with the join."""
    if operation.kind is OperationKind.EXCHANGE and within_stage:
        yield _EXCHANGED
        return
    inputs = [list(_words(below, within_stage=within_stage)) for below in operation.inputs]
    if operation.kind is OperationKind.JOIN:
        left, right = inputs
        yield from left
        other = right[0].removeprefix(_SCAN) if len(right) == 1 else f"({', '.join(right)})"
        yield f"{operation.brief} {other}"
        return
    for words in inputs:
        yield from words
    if operation.brief:
        yield operation.brief


def _named(words: str) -> str:
    name = _SENDER + words
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
