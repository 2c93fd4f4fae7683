"""Explains what was decided about each join of a query, and why; the text of ``explain`` is made here."""

from __future__ import annotations

import os.path
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gpujoin.config import Strategy
from gpujoin.model.jointype import Side
from gpujoin.model.reasons import Reason

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinExplanation:
    """The decision about one join."""

    join_type: str
    """``"inner"``, ``"left"``, ``"left_semi"``, …"""
    strategy: Strategy
    """``BROADCAST``, ``SHUFFLE``, ``NESTED_LOOP``, or ``SPARK``."""
    backend: str
    """``"gpu"``, ``"cpu"`` or ``"spark"``. Under ``auto`` each worker decides for itself; this is then what the
    driver expects, and ``notes`` say so."""
    shape: str | None = None
    """How matches are found, with the cost; ``None`` where Spark runs the join."""
    build_side: Side | None = None
    """The side that is built; ``None`` where Spark runs the join."""
    keys: tuple[str, ...] = ()
    """Equality keys."""
    condition: str | None = None
    """Residual condition."""
    left_bytes: int | None = None
    right_bytes: int | None = None
    """Estimated sizes of the inputs; ``None`` where nothing is known."""
    reasons: tuple[Reason, ...] = ()
    """Why the join is left to Spark."""
    notes: tuple[str, ...] = ()
    """What decided, in sentences for the user."""
    warnings: tuple[str, ...] = ()
    """What may make it slow, wherever it runs."""
    join_id: str | None = None
    """Name of the join's metrics; ``None`` for a join that gpujoin never ran."""
    inputs: tuple[JoinExplanation, ...] = ()
    """Joins below this one."""
    by_gpu_join: bool = False
    """Of a join that Spark runs: whether it was written as ``gpu_join``."""

    @property
    def accelerated(self) -> bool:
        """Whether gpujoin runs this join."""
        return self.strategy is not Strategy.SPARK

    def walk(self) -> Iterator[JoinExplanation]:
        """Yield this join and all below it, parents first."""
        yield self
        for below in self.inputs:
            yield from below.walk()

    def lines(self, said: set[Reason] | None = None) -> list[str]:
        """Render this join and those below it as indented lines of text.

        Reasons in ``said`` are not given again; those that are given are added.
        """
        said = set() if said is None else said
        by = f"{self.strategy.value} on {self.backend}" if self.accelerated else "left to spark"
        mark = "*" if self.accelerated else "!"
        name = f" [{self.join_id}]" if self.join_id else ""
        lines = [
            f"{mark} {self.join_type} join: {by}{name}",
            *(f"    {line}" for line in self._details(said)),
        ]
        for i, below in enumerate(self.inputs):
            last = i == len(self.inputs) - 1
            head, *rest = below.lines(said)
            lines.append(f"  {'└' if last else '├'}─ {head}")
            lines += [f"  {' ' if last else '│'}  {line}" for line in rest]
        return lines

    def _details(self, said: set[Reason]) -> Iterator[str]:
        if self.shape:
            yield self.shape
        if self.keys:
            yield f"keys: {', '.join(self.keys)}"
        if self.condition:
            yield f"condition: {self.condition}"
        if self.left_bytes is not None or self.right_bytes is not None:
            yield f"estimated sizes: left {show_bytes(self.left_bytes)}, right {show_bytes(self.right_bytes)}"
        if self.build_side is not None:
            yield f"build side: {self.build_side.value}"
        for warning in self.warnings:
            yield f"warning: {warning}"
        for note in self.notes:
            yield f"because {note}"
        yield from (f"not here: {reason}" for reason in self.reasons if reason not in said)
        if self.reasons and said.issuperset(self.reasons):
            yield "not here: for the reason above"
        said.update(self.reasons)


@dataclass(frozen=True, slots=True)
class Operations:
    """Numbers of operations of a plan."""

    joins: int = 0
    aggregations: int = 0
    windows: int = 0

    def __add__(self, other: Operations) -> Operations:
        return Operations(
            self.joins + other.joins, self.aggregations + other.aggregations, self.windows + other.windows
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class IslandExplanation:
    """An island: a part of a query that runs in Python workers."""

    island_id: str
    """Name of the island's metrics, and of its stage in the Spark UI."""
    backend: str
    """``"cpu"`` or ``"gpu"``."""
    tasks: int
    threads: int
    """Number of tasks, and of threads in each."""
    tree: tuple[str, ...]
    """Operations, one for each line, indented; scans name their files, columns and filters."""
    input_bytes: int | None = None
    """Size of the files and rows that are read; ``None`` where nothing is known."""
    more_inputs: bool = False
    """Whether rows are read besides whose number nobody knows."""
    joins: tuple[JoinExplanation, ...] = ()
    """Joins of the island, parents first."""
    operations: Operations = Operations()
    """Of the query's plan, that it computes; an aggregation that Spark finishes is one."""
    notes: tuple[str, ...] = ()
    """What decided, in sentences for the user."""
    warnings: tuple[str, ...] = ()
    """What may make it slow, wherever it runs."""
    predicted_seconds: float | None = None
    predicted_spark_seconds: float | None = None
    """What the cost rule expects it to take, here and in Spark."""

    @property
    def accelerated(self) -> bool:
        """Whether gpujoin runs it."""
        return True

    def walk(self) -> Iterator[JoinExplanation]:
        """Yield the joins of the island."""
        yield from self.joins

    def lines(self, said: set[Reason] | None = None) -> list[str]:
        """Render the operations as indented lines of text; an island has no reasons to be ``said``."""
        del said
        tasks = f"{self.tasks} task{'s' if self.tasks > 1 else ''}"
        threads = f" of {self.threads} threads" if self.threads > 1 else ""
        inputs = [] if self.input_bytes is None else [show_bytes(self.input_bytes)]
        inputs += ["rows of unknown size"] if self.more_inputs else []
        reading = f" reading {' and '.join(inputs)}" if inputs else ""
        head = f"* island: {tasks}{threads} on {self.backend}{reading} [{self.island_id}]"
        more = [f"warning: {warning}" for warning in self.warnings] + [f"because {note}" for note in self.notes]
        if self.predicted_seconds is not None and self.predicted_spark_seconds is not None:
            more.append(
                f"predicted: {self.predicted_seconds:.2g} s here, {self.predicted_spark_seconds:.2g} s in Spark"
            )
        return [head, *(f"    {line}" for line in (*self.tree, *more))]


@dataclass(frozen=True, slots=True)
class Explanation:
    """The decisions about all joins of a query; ``str()`` renders them as a tree.

    Attributes
    ----------
    roots : tuple of JoinExplanation or IslandExplanation
        Topmost joins and islands.
    reasons : tuple of Reason
        Why the query, or a part of it, is left to Spark.
    """

    roots: tuple[JoinExplanation | IslandExplanation, ...] = field(default=())
    reasons: tuple[Reason, ...] = field(default=())

    @property
    def joins(self) -> tuple[JoinExplanation, ...]:
        """All joins, parents first."""
        return tuple(join for root in self.roots for join in root.walk())

    @property
    def islands(self) -> tuple[IslandExplanation, ...]:
        """The islands of the query: the parts that run in Python workers, from the files on."""
        return tuple(root for root in self.roots if isinstance(root, IslandExplanation))

    @property
    def accelerated(self) -> bool:
        """Whether gpujoin runs any part of the query."""
        return bool(self.islands) or any(join.accelerated for join in self.joins)

    def __str__(self) -> str:
        said: set[Reason] = set()
        lines = [line for root in self.roots for line in root.lines(said)]
        lines += [f"! left to spark: {reason}" for reason in self.reasons if reason not in said]
        return "\n".join(lines) if lines else "no joins"


def show_bytes(size: int | None) -> str:
    """Format a size: ``1.5 MiB``; ``unknown`` for ``None``."""
    if size is None:
        return "unknown"
    amount, unit = float(size), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.0f} {_UNITS[unit]}" if unit == 0 else f"{amount:.1f} {_UNITS[unit]}"


def show_paths(paths: Sequence[str]) -> str:
    """Name files by their one path, or by the folder that holds all of them."""
    if not paths:
        return "no files"
    store, scheme, _ = paths[0].rpartition("://")
    return store + scheme + os.path.commonpath([path.rpartition("://")[2] for path in (min(paths), max(paths))])
