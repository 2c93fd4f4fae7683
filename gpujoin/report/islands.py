"""Describes islands, the parts of a query that workers run, and names them and their stages in Spark's progress.

The operations of an island, and what its jobs are called::

    aggregate count(*) by o_orderpriority
      inner join, right side built, o_orderkey = l_orderkey      gpujoin: scan orders, join lineitem, aggregate
        scan orders.parquet (…), columns …
        scan lineitem.parquet (…), columns …

A stage that takes exchanged rows begins where its rows come in::

    gpujoin: exchanged rows, join exchanged rows, aggregate
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from gpujoin.engine.pipeline import supports
from gpujoin.model.backend import BackendName
from gpujoin.model.relations import Relation, SparkSource
from gpujoin.model.sqltext import shorten
from gpujoin.report.amounts import PREDICTED, show_about, show_bytes, show_seconds
from gpujoin.report.operations import IslandOperation, NoteKind, Operation, OperationKind, notes_of
from gpujoin.report.stages import IslandFacts, Prices, stage_operations

if TYPE_CHECKING:
    from gpujoin.plan.cost import Estimate
    from gpujoin.spark.query.island import Island
    from gpujoin.spark.query.runs import IslandRun

ISLAND = "island"
"""Name under which a whole island is measured, beside those of the operations of its last stage."""
_LONGEST = 120
_EXCHANGED = "exchanged rows"
_SCAN = "scan "


def explain_island(
    island: Island,
    run: IslandRun,
    name: str,
    prices: Prices,
    backend: BackendName,
    estimate: Estimate,
    notes: Sequence[str],
    warnings: Sequence[str],
) -> IslandOperation:
    """Describe an island of a plan; ``warnings`` say what may make it slow wherever it runs."""
    rows = island.spark_sources
    facts = IslandFacts(
        name=name, backend=backend, prices=prices,
        scans={number: island.sources[index] for number, index in enumerate(run.scans)},
        rows=tuple(f"{show_about(None if each.guessed else each.nbytes)}: {each.why}" for each in rows),
        counts={
            node.index: node.rows
            for node in island.relation.walk()
            if isinstance(node, SparkSource) and not node.guessed
        },
        guessed=frozenset(n for n, each in enumerate(rows) if each.guessed), repeated=run.repeated,
    )  # fmt: skip
    reads = [] if island.known_bytes is None else [show_bytes(island.known_bytes)]
    if facts.guessed:
        reads.append("rows of unknown size")
    described = explain_stages(island.relation, run, facts, notes, reads, None if facts.guessed else estimate)
    return dataclasses.replace(described, notes=(*notes_of(NoteKind.WARNING, *warnings), *described.notes))


def explain_stages(
    relation: Relation,
    run: IslandRun,
    facts: IslandFacts,
    notes: Sequence[str] = (),
    reads: Sequence[str] = (),
    estimate: Estimate | None = None,
) -> IslandOperation:
    """Describe how stages compute a relation.

    ``notes`` say what decided on it besides ``run``, and ``reads`` how much is read. On a GPU the operation's notes say
    which nodes run on the CPU, and why.
    """
    beside = supports(relation, BackendName.GPU) if facts.backend is BackendName.GPU else ()
    top = stage_operations(run.last, facts)
    tasks = f"{run.last.tasks} task{'s' if run.last.tasks > 1 else ''}"
    threads = f" of {run.threads} threads" if run.threads > 1 else ""
    reading = f" reading {' and '.join(reads)}" if reads else ""
    instead = "" if estimate is None else f", {PREDICTED}{show_seconds(estimate.spark)} s in Spark"
    return IslandOperation(
        operation=f"island: {tasks}{threads} on {facts.backend.value}{reading}{instead} [{facts.name}]",
        backend=facts.backend.value,
        name=facts.name,
        tasks=run.last.tasks,
        predicted=dataclasses.replace(top.predicted, seconds=None if estimate is None else estimate.here),
        predicted_spark_seconds=None if estimate is None else estimate.spark,
        notes=notes_of(NoteKind.DECISION, *run.notes, *(f"on the CPU within it: {why}" for why in beside), *notes),
        inputs=(top,),
        measured_as=((facts.name, ISLAND),),
    )


def jobs_name(islands: Iterable[Operation]) -> str:
    """Name the jobs of a query after its islands."""
    return progress_name("; ".join(", ".join(_words(island.inputs[0])) for island in islands))


def stage_names(island: IslandOperation) -> dict[str, str]:
    """Name each stage of an island, by its name in Spark's plans."""
    stages = [(island.measured_as[0][0], island.inputs[0])]
    stages += [(each.measured_as[0][0], each.inputs[0]) for each in island.walk() if _is_exchange(each)]
    return {name: ", ".join(_words(top, within_stage=True)) for name, top in stages}


def stage_trees(island: IslandOperation, *, whole: bool) -> dict[str, str]:
    """Write the operations of each stage as lines, by its name in Spark's plans; ``whole``: of the last one all."""
    stages = [(island.measured_as[0][0], island.inputs[0])]
    stages += [(each.measured_as[0][0], each.inputs[0]) for each in island.walk() if _is_exchange(each)]
    return {
        name: "\n".join(_stage_lines(top, whole=whole and number == 0)) for number, (name, top) in enumerate(stages)
    }


def _stage_lines(operation: Operation, depth: int = 0, *, whole: bool) -> Iterator[str]:
    """Yield the operations of a stage as far as its exchanges, which are stages of their own unless it is ``whole``."""
    yield "  " * depth + operation.operation
    if whole or not _is_exchange(operation):
        for each in operation.inputs:
            yield from _stage_lines(each, depth + 1, whole=whole)


def _is_exchange(operation: Operation) -> bool:
    return operation.kind is OperationKind.EXCHANGE


def _words(operation: Operation, *, within_stage: bool = False) -> Iterator[str]:
    """Yield the operations in the order in which rows pass them, the other side of a join with the join."""
    if _is_exchange(operation) and within_stage:
        yield _EXCHANGED
        return
    inputs = [list(_words(each, within_stage=within_stage)) for each in operation.inputs]
    if operation.kind is OperationKind.JOIN:
        left, right = inputs
        other = right[0].removeprefix(_SCAN) if len(right) == 1 else f"({', '.join(right)})"
        yield from (*left, f"{operation.progress} {other}")
        return
    yield from itertools.chain(*inputs)
    if operation.progress:
        yield operation.progress


def progress_name(words: str) -> str:
    """Give a name in Spark's progress, no longer than a line."""
    return shorten(f"gpujoin: {words}", _LONGEST)
