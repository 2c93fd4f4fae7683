"""Writes the operations of an island's stages in the words of SQL, with what is predicted of each.

Columns that planning has named (``k0``, ``a1.count``) are written by what computes them. A partial aggregation over
an exchange, for ``select n % 3, count(*) … group by n % 3``::

    aggregate, merging count(*) by n % 3        k0 is n % 3, a0.count is count(*)
      exchange by n % 3: from 4 tasks to 4
        partial aggregate count(*) by n % 3
"""

from __future__ import annotations

import dataclasses
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow.types as pat

from gpujoin.engine.pipeline.clock import OUTPUT, operation_names
from gpujoin.model.expressions import conjuncts
from gpujoin.model.jointype import Side
from gpujoin.model.relations import (
    ConstantTable,
    ExchangeSource,
    Expand,
    Explode,
    Filter,
    Join,
    Limit,
    Output,
    PartialAggregate,
    Project,
    Relation,
    Scan,
    SortKey,
    TopN,
    Union,
    Window,
)
from gpujoin.model.spec import AsOf, NullEquality
from gpujoin.model.sqltext import (
    PLANNED,
    Columns,
    ShownColumn,
    bare_name,
    show_call,
    show_condition,
    show_expression,
    shown_column,
)
from gpujoin.model.windows import AnyWindowCall, FramedAggregate
from gpujoin.plan.cost import crossing_seconds, operation_seconds
from gpujoin.plan.estimates import Estimate, Sizes, row_bytes
from gpujoin.plan.merging import merges
from gpujoin.plan.ranges import Shape, shape_of_node
from gpujoin.report.amounts import show_bytes, show_paths
from gpujoin.report.explanation import Operation
from gpujoin.report.filters import show_filters
from gpujoin.report.operations import Amounts, OperationKind
from gpujoin.spark.catalyst.words import OF_OPTIMIZER
from gpujoin.spark.query.asof import AsOfTerms

if TYPE_CHECKING:
    from gpujoin.costs import Costs
    from gpujoin.model.stages import Exchange, Stage
    from gpujoin.spark.query.runs import StageRun
    from gpujoin.spark.query.trees.builder import ScanSource

_SHOWN = 400
_KINDS: dict[type[Relation], OperationKind] = {
    Scan: OperationKind.SCAN, ConstantTable: OperationKind.CONSTANTS, ExchangeSource: OperationKind.EXCHANGE,
    Filter: OperationKind.FILTER, Project: OperationKind.PROJECTION, Join: OperationKind.JOIN,
    PartialAggregate: OperationKind.AGGREGATION, Window: OperationKind.WINDOW, TopN: OperationKind.LIMIT,
    Limit: OperationKind.LIMIT, Union: OperationKind.UNION, Expand: OperationKind.EXPANSION,
    Explode: OperationKind.EXPANSION,
}  # fmt: skip

_BRIEF: dict[type[Relation], str] = {
    ConstantTable: "rows of the query", PartialAggregate: "aggregate", Window: "window", TopN: "limit", Limit: "limit",
    Union: "union", Explode: "explode",
}  # fmt: skip
"""Names of operations in Spark's progress; filters and projections have none there."""


@dataclass(frozen=True)
class Leaves:
    """What the leaves of stages read."""

    scans: Mapping[int, ScanSource]
    """Files, by the index of the scan."""
    rows: tuple[str, ...]
    """Rows from Spark, described, by the index of the source."""
    guessed: frozenset[int] = frozenset()
    """Sources of rows from Spark whose number of rows nobody knows."""
    counts: Mapping[int, float] = field(default_factory=dict)
    """Estimated rows of the other sources of rows from Spark."""
    repeated: frozenset[int] = frozenset()
    """Indexes of exchanges whose rows are those of another one, and not computed again."""


@dataclass(frozen=True)
class Prices:
    """By what seconds of operations are predicted."""

    costs: Costs
    cores: int
    """How many tasks, or threads of the only task, run at once."""


def shown_stage(stage: StageRun, name: str, leaves: Leaves, prices: Prices) -> Operation:
    """Write the operations of a stage, and of those before it, which have its ``name`` and a number."""
    return _StageWriter(stage, name, leaves, prices).top().operation


def join_keys(node: Join, columns: Mapping[Side, Columns]) -> list[str]:
    """Write the equalities of a join."""
    left, right = columns[Side.LEFT], columns[Side.RIGHT]
    return [
        f"{left[pair.left].text} {'<=>' if pair.nulls is NullEquality.EQUAL else '='} {right[pair.right].text}"
        for pair in node.spec.keys
    ]


def plain_columns(node: Relation) -> Columns:
    """Give the names of a relation's columns, without numbers."""
    return [ShownColumn(bare_name(name)) for name in node.schema.names]


def as_of_terms(terms: AsOf, columns: Mapping[Side, Columns]) -> str:
    """Write what an as-of join asks of its order keys."""
    left, right = columns[Side.LEFT][terms.left].text, columns[Side.RIGHT][terms.right].text
    return AsOfTerms.of(terms).shown(left, right)


@dataclass(frozen=True)
class _Written:
    """An operation, and how its columns are written above it."""

    operation: Operation
    columns: Columns
    size: Estimate
    """Estimated rows of all tasks."""


def _as_source(exchange: Exchange, rows: Estimate) -> Estimate:
    """The rows of an exchange as the input of a stage.

    A join with the input whose keys have filtered them drops no more of them.
    """
    filtered = any(taken.filters for taken in exchange.producer.inputs)
    return dataclasses.replace(rows, kept=1.0) if filtered else rows


class _StageWriter:
    """Writes the operations of one stage."""

    def __init__(self, run: StageRun, name: str, leaves: Leaves, prices: Prices) -> None:
        self._run = run
        self._stage: Stage = run.stage
        self._name = name
        self._leaves = leaves
        self._prices = prices
        self._names = operation_names(run.stage.tree)
        scanned = {
            node.index: leaves.scans[node.index].files.rows for node in run.stage.tree.walk() if isinstance(node, Scan)
        }
        self._producers = {
            exchange.index: _StageWriter(before, f"{name}_{place}", leaves, prices).top()
            for place, (exchange, before) in enumerate(zip(run.stage.inputs, run.inputs, strict=True))
        }
        sources = {
            exchange.index: _as_source(exchange, self._producers[exchange.index].size) for exchange in run.stage.inputs
        }
        taken = run.stage.spark
        if taken is not None and taken.rows in leaves.counts:
            rows = max(1.0, leaves.counts[taken.rows])
            sources[taken.source] = Estimate(rows, 1.0, rows)
        self._sizes = Sizes(scanned, sources)

    def top(self) -> _Written:
        """Write the topmost operation."""
        return self._written(self._stage.tree)

    def _written(self, node: Relation) -> _Written:
        if isinstance(node, Project):
            below = self._written(node.child)
            columns = self._outputs(node.outputs, below.columns)
            if all(_is_plain(output) for output in node.outputs):
                measured = (*below.operation.measured_as, (self._name, self._names[id(node)]))
                return _Written(
                    dataclasses.replace(below.operation, measured_as=measured), columns, self._sizes.of(node)
                )
            shown = ", ".join(show_expression(output.expression, below.columns) for output in node.outputs)
            return self._made(node, f"project {shown}", [below], columns)
        if isinstance(node, ExchangeSource):
            return self._source(node)
        below_all = [self._written(child) for child in node.children]
        columns_below = [each.columns for each in below_all]
        text = self._scan(node) if isinstance(node, Scan) else _text(node, columns_below)
        return self._made(node, text, below_all, self._columns(node, columns_below))

    def _made(self, node: Relation, text: str, below: Sequence[_Written], columns: Columns) -> _Written:
        predicted = Amounts()
        if not any(each.operation.predicted.rows is None for each in below):
            rows = self._sizes.of(node).rows
            seconds = operation_seconds(node, self._sizes, self._prices.costs).here / self._prices.cores
            predicted = Amounts(rows=rows, bytes=rows * row_bytes(node.schema), seconds=seconds)
        operation = Operation(
            kind=_KINDS[type(node)],
            text=_shortened(text),
            predicted=predicted,
            measured_as=((self._name, self._names[id(node)]),),
            brief=self._brief(node),
            inputs=tuple(each.operation for each in below),
        )
        return _Written(operation, columns, self._sizes.of(node))

    def _brief(self, node: Relation) -> str:
        """Name a node in Spark's progress."""
        match node:
            case Scan():
                table = posixpath.basename(show_paths(self._leaves.scans[node.index].files.paths))
                return f"scan {table.removesuffix('.parquet')}"
            case Join():
                return "as-of join" if node.spec.as_of is not None else "join"
        return _BRIEF.get(type(node), "")

    # -- columns -------------------------------------------------------------------------------------------

    def _columns(self, node: Relation, below: Sequence[Columns]) -> Columns:
        """How the columns of a node are written, by those of its inputs."""
        names = node.schema.names
        match node:
            case PartialAggregate():
                keys = [_column(key, below[0]) for key in node.keys]
                buffers = [
                    ShownColumn(_call_text(call.name, show_call(call, below[0]), below[0], node, n), is_buffer=True)
                    for n, call in enumerate(node.aggregates)
                    for _ in call.buffer
                ]
                columns = [*keys, *buffers]
                return [_named(name, column) for name, column in zip(names, columns, strict=True)]
            case Filter() | TopN() | Limit():
                return below[0]
            case Join():
                given = {Side.LEFT: below[0], Side.RIGHT: below[1]}
                chosen = [given[side][i] for side in Side for i in node.spec.output_of(side)]
                return [*chosen, *(ShownColumn(bare_name(name)) for name in names[len(chosen) :])][: len(names)]
            case Window():
                return [*below[0], *_window_columns(node, below[0])]
            case _:
                inputs = below[0] if below and len(below[0]) == len(names) else plain_columns(node)
                return [_named(name, column) for name, column in zip(names, inputs, strict=True)]

    def _outputs(self, outputs: Sequence[Output], below: Columns) -> Columns:
        return [_named(output.name, _column(output, below)) for output in outputs]

    # -- leaves --------------------------------------------------------------------------------------------

    def _source(self, node: ExchangeSource) -> _Written:
        taken, name = self._stage.spark, (self._name, self._names[id(node)])
        if taken is not None and taken.source == node.index:
            rows = self._sizes.of(node).rows if taken.rows in self._leaves.counts else None
            seconds = None
            if rows is not None:
                seconds = crossing_seconds(rows, node.schema, self._prices.costs) / self._prices.cores
            operation = Operation(
                kind=OperationKind.SPARK_ROWS,
                text=_shortened(f"rows from Spark, {self._leaves.rows[taken.rows]}"),
                predicted=Amounts(
                    rows=rows, bytes=None if rows is None else rows * row_bytes(node.schema), seconds=seconds
                ),
                measured_as=(name,),
                brief="rows from Spark",
            )
            return _Written(operation, plain_columns(node), self._sizes.of(node))
        place = next(i for i, exchange in enumerate(self._stage.inputs) if exchange.index == node.index)
        exchange, before = self._stage.inputs[place], self._run.inputs[place]
        producer, producer_name = self._producers[exchange.index], f"{self._name}_{place}"
        known = None if self._is_guessed(before) else exchange.nbytes
        about = "size unknown" if known is None else f"about {show_bytes(int(known))}"
        tasks = _tasks(self._run.tasks)
        if exchange.replicated:
            text = f"sent to {tasks}, {about}"
        elif not exchange.columns:
            text = f"shared out among {tasks}, {about}"
        else:
            by = ", ".join(producer.columns[i].text for i in exchange.columns)
            given = _tasks(before.tasks) if before.stage.spark is None else "Spark's tasks"
            text = f"exchange by {by}: from {given} to {self._run.tasks}, {about}"
        text = _shortened(text)
        if exchange.index in self._leaves.repeated:
            text += ", computed once with an exchange alike"
        operation = Operation(
            kind=OperationKind.EXCHANGE,
            text=text,
            predicted=Amounts(rows=None if known is None else producer.size.rows, bytes=known),
            measured_as=((producer_name, OUTPUT), name),
            inputs=(producer.operation,),
        )
        return _Written(operation, producer.columns, producer.size)

    def _is_guessed(self, stage: StageRun) -> bool:
        """Whether nobody knows how many rows a stage gives."""
        taken = stage.stage.spark
        return (taken is not None and taken.rows in self._leaves.guessed) or any(map(self._is_guessed, stage.inputs))

    def _scan(self, node: Scan) -> str:
        source = self._leaves.scans[node.index]
        paths = source.files.paths
        count = f"{len(paths)} files, " if len(paths) > 1 else ""
        where = f" where {' and '.join(show_filters(source.filters))}" if source.filters else ""
        share = ""
        if self._run.tasks > 1:
            branches = self._stage.branches
            share = ", read by every task"
            if any(branch.partitioned == node.index for branch in branches):
                share = ", divided"
            elif any(branch.partitioned is None and node.index in branch.replicated for branch in branches):
                share = ", read by one task"
        size = f"{'about ' if source.files.is_sampled else ''}{show_bytes(source.files.nbytes)}"
        what = f"{show_paths(paths)} ({count}{size})"
        return f"scan {what}{share}, columns {', '.join(source.columns)}{where}"


def _is_plain(output: Output) -> bool:
    """Whether an output needs no words: a column, a result of the aggregation below, or one of planning's own."""
    expression = output.expression
    if expression.written is not None or PLANNED.fullmatch(output.name):
        return True
    return not expression.children and bool(expression.columns())


def _column(output: Output, below: Columns) -> ShownColumn:
    """How an output is written above: one of planning's own by what computes it."""
    expression = output.expression
    read = expression.columns()
    if output.name.startswith("a") and read and PLANNED.fullmatch(output.name):
        return below[min(ref.index for ref in read)]  # what merges a buffer
    return shown_column(expression, below)


def _named(name: str, column: ShownColumn) -> ShownColumn:
    """Write a column by the name that the query gives it, or by what computes it."""
    made_up = PLANNED.fullmatch(name) or OF_OPTIMIZER.fullmatch(name)
    return column if made_up else ShownColumn(bare_name(name))


def _call_text(name: str, text: str, below: Columns, node: PartialAggregate, number: int) -> str:
    """Write a call; one that merges partial results is written as the call that it finishes."""
    if not name.startswith("merged "):
        return text
    columns = node.aggregates[number].arguments[0].columns()
    return below[next(iter(columns)).index].text if columns else text


def _window_columns(node: Window, below: Columns) -> Iterator[ShownColumn]:
    """How the results of window functions are written above."""
    keys = ", ".join(below[i].text for i in node.partition)
    order = _order(node.order, below)
    parts = [f"partition by {keys}" if keys else "", f"order by {order}" if order else ""]
    over = f" over ({' '.join(filter(None, parts))})"
    for call in node.calls:
        shown = ShownColumn(_window_call(call, below) + over, is_buffer=isinstance(call, FramedAggregate))
        yield from (_named(field.name, shown) for field in call.outputs)


def _text(node: Relation, below: Sequence[Columns]) -> str:
    match node:
        case ConstantTable():
            rows = f"{node.rows} row{'' if node.rows == 1 else 's'}"
            return f"{rows} of the query itself, columns {', '.join(map(bare_name, node.schema.names))}"
        case Join():
            return _join(node, {Side.LEFT: below[0], Side.RIGHT: below[1]})
        case PartialAggregate():
            return _aggregate(node, below[0])
        case Filter():
            return f"filter {' and '.join(show_filters(conjuncts(node.condition), below[0]))}"
        case Expand():
            return f"expand each row in {len(node.projections)} ways"
        case Explode():
            return _exploded(node, below[0])
        case Window():
            calls = ", ".join(_window_call(call, below[0]) for call in node.calls)
            keys = ", ".join(below[0][i].text for i in node.partition)
            order = f" ordered by {_order(node.order, below[0])}" if node.order else ""
            return f"window {calls}{f' by {keys}' if keys else ''}{order}{_rank_limit(node)}"
        case TopN():
            return f"first {node.count} by {_order(node.order, below[0])}"
        case Limit():
            return f"limit {node.count}"
        case Union():
            return "union"
    return type(node).__name__


def _join(node: Join, columns: Mapping[Side, Columns]) -> str:
    kind, shape = node.spec.join_type.value, shape_of_node(node)
    how = "" if shape in (Shape.EQUALITY, Shape.AS_OF) else f" ({shape.value})"
    if node.spec.as_of is not None:
        kind = f"as-of ({as_of_terms(node.spec.as_of, columns)}) {kind}"
    parts = [f"{kind} join{how}, {node.build_side.value} side built", *join_keys(node, columns)]
    if node.spec.condition is not None:
        parts.append(f"if {show_condition(node.spec.condition, columns)}")
    return ", ".join(parts)


def _aggregate(node: PartialAggregate, below: Columns) -> str:
    kind = "aggregate" if node.once else "partial aggregate"
    keys = ", ".join(_column(key, below).text for key in node.keys)
    calls = dict.fromkeys(
        _call_text(call.name, show_call(call, below), below, node, n) for n, call in enumerate(node.aggregates)
    )
    if merges(node):
        kind = f"{kind}, merging"
    return f"{kind} {', '.join(calls) or 'distinct'}{f' by {keys}' if keys else ''}"


def _exploded(node: Explode, below: Columns) -> str:
    column = below[node.column].text
    if pat.is_int64(node.child.schema.field(node.column).type):
        return f"repeat each row {column} times"
    return f"{'outer ' if node.outer else ''}explode {column}"


def _order(keys: Sequence[SortKey], below: Columns) -> str:
    return ", ".join(f"{show_expression(key.expression, below)}{' desc' if key.descending else ''}" for key in keys)


def _rank_limit(node: Window) -> str:
    limit = node.limit
    return "" if limit is None else f", of each partition those up to {limit.function.value} {limit.count}"


def _window_call(call: AnyWindowCall, below: Columns) -> str:
    if isinstance(call, FramedAggregate):
        return show_call(call.call, below)
    return f"{call.function.value}({'' if call.value is None else show_expression(call.value, below)})"


def _tasks(count: int) -> str:
    return f"{count} task{'' if count == 1 else 's'}"


def _shortened(line: str) -> str:
    return line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…"


def joins_of(stage: Stage) -> Iterator[tuple[Join, Stage]]:
    """Yield the joins of a stage and of those before it, parents first, each with its stage."""
    producers = {exchange.index: exchange.producer for exchange in stage.inputs}
    for node in stage.tree.walk():
        if isinstance(node, Join):
            yield node, stage
        elif isinstance(node, ExchangeSource) and node.index in producers:
            yield from joins_of(producers[node.index])
