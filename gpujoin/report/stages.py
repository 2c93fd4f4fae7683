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
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow.types as pat

from gpujoin.config import Strategy
from gpujoin.engine.pipeline.clock import OUTPUT, operation_names
from gpujoin.functions.spec import SPECS, Nulls
from gpujoin.model.expressions import Call, Cast, Expression, Function, conjuncts
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
    PythonAggregate,
    PythonCalls,
    PythonCogroups,
    PythonRows,
    PythonWindow,
    Relation,
    Scan,
    SortKey,
    TopN,
    Union,
    Window,
)
from gpujoin.model.spec import NullEquality
from gpujoin.model.sqltext import (
    AND,
    PLANNED,
    Columns,
    Words,
    Writer,
    bare_name,
    column_words,
    shorten,
    show_condition,
    show_expression,
)
from gpujoin.model.windows import AnyWindowCall, FramedAggregate
from gpujoin.plan.cost import crossing_seconds, operation_seconds
from gpujoin.plan.estimates import Estimate, Sizes, row_bytes
from gpujoin.plan.merging import merges
from gpujoin.plan.ranges import Shape, shape_of_node
from gpujoin.report.amounts import show_about, show_bytes
from gpujoin.report.operations import Amounts, JoinOperation, Operation, OperationKind
from gpujoin.spark.catalyst.words import OF_OPTIMIZER
from gpujoin.spark.query.asof import AsOfTerms

if TYPE_CHECKING:
    from gpujoin.costs import Costs
    from gpujoin.model.aggregates import AggregateCall
    from gpujoin.model.backend import BackendName
    from gpujoin.model.files import FileSlice
    from gpujoin.model.python_calls import PythonCall
    from gpujoin.model.stages import Exchange, Stage
    from gpujoin.spark.query.runs import StageRun
    from gpujoin.spark.query.trees.builder import ScanSource

_LONGEST = 400
"""Characters of an operation that are written."""
_NAMES: dict[type[Relation], tuple[OperationKind, str]] = {
    Scan: (OperationKind.SCAN, "scan"), ConstantTable: (OperationKind.CONSTANTS, "rows of the query"),
    ExchangeSource: (OperationKind.EXCHANGE, "exchange"), Filter: (OperationKind.FILTER, ""),
    Project: (OperationKind.PROJECTION, ""), Join: (OperationKind.JOIN, "join"),
    PartialAggregate: (OperationKind.AGGREGATION, "aggregate"), Window: (OperationKind.WINDOW, "window"),
    TopN: (OperationKind.LIMIT, "limit"), Limit: (OperationKind.LIMIT, "limit"),
    Union: (OperationKind.UNION, "union"), Expand: (OperationKind.EXPANSION, ""),
    Explode: (OperationKind.EXPANSION, "explode"), PythonCalls: (OperationKind.PYTHON, "python"),
    PythonRows: (OperationKind.PYTHON, "python"), PythonAggregate: (OperationKind.PYTHON, "python"),
    PythonCogroups: (OperationKind.PYTHON, "python"), PythonWindow: (OperationKind.PYTHON, "python"),
}  # fmt: skip
"""Kinds of operations, and their names in Spark's progress and plans, where they have one."""


@dataclass(frozen=True)
class Prices:
    """The costs and the number of cores by which seconds of operations are predicted."""

    costs: Costs
    cores: int
    """How many tasks, or threads of the only task, run at once."""


@dataclass(frozen=True, kw_only=True)
class IslandFacts:
    """What is known of an island beside its stages."""

    name: str
    """Its name in Spark's plans."""
    backend: BackendName
    """The backend that the driver expects."""
    prices: Prices
    scans: Mapping[int, ScanSource] = field(default_factory=dict)
    """Files, by the index of the scan."""
    rows: tuple[str, ...] = ()
    """Rows from Spark, described, by the index of the source."""
    guessed: frozenset[int] = frozenset()
    """Sources of rows from Spark whose number of rows nobody knows."""
    counts: Mapping[int, float] = field(default_factory=dict)
    """Estimated rows of the other sources of rows from Spark."""
    repeated: frozenset[int] = frozenset()
    """Indexes of exchanges whose rows are those of another one, and not computed again."""


def stage_operations(stage: StageRun, facts: IslandFacts) -> Operation:
    """Write the operations of an island's last stage, and of the stages before it."""
    return _StageWriter(stage, facts.name, facts).top().operation


def stage_label(tree: Relation) -> str:
    """Count the operations of a stage, as an identifier: ``join_2scans_aggregate``."""
    counts = Counter(name for name in map(_name, tree.walk()) if name)
    labels = {name: "".join(filter(str.isalpha, name)) for name in counts}
    return "_".join(f"{n}{labels[name]}s" if n > 1 else labels[name] for name, n in counts.items())


def _name(node: Relation) -> str:
    if isinstance(node, Join) and node.spec.as_of is not None:
        return "as-of join"
    return _NAMES[type(node)][1]


@dataclass(frozen=True)
class _Result:
    """An operation, and how its columns are written above it."""

    operation: Operation
    columns: Columns
    size: Estimate
    """Estimated rows of all tasks."""


def _as_source(exchange: Exchange, rows: Estimate) -> Estimate:
    """The rows of an exchange as the input of a stage.

    A join with the input whose keys have filtered them drops no more of them.
    """
    filtered = any(source.filters for source in exchange.producer.inputs)
    return dataclasses.replace(rows, selectivity=1.0) if filtered else rows


class _StageWriter:
    """Writes the operations of one stage."""

    def __init__(self, run: StageRun, name: str, facts: IslandFacts) -> None:
        self._run = run
        self._stage: Stage = run.stage
        self._name = name
        self._facts = facts
        self._names = operation_names(run.stage.tree)
        scanned = {
            node.index: facts.scans[node.index].files.rows for node in run.stage.tree.walk() if isinstance(node, Scan)
        }
        self._producers = {
            exchange.index: _StageWriter(before, f"{name}_{place}", facts).top()
            for place, (exchange, before) in enumerate(zip(run.stage.inputs, run.inputs, strict=True))
        }
        sources = {
            exchange.index: _as_source(exchange, self._producers[exchange.index].size) for exchange in run.stage.inputs
        }
        spark_input = run.stage.spark
        if spark_input is not None and spark_input.rows in facts.counts:
            rows = max(1.0, facts.counts[spark_input.rows])
            sources[spark_input.source] = Estimate(rows, 1.0, rows)
        self._sizes = Sizes(scanned, sources)

    def top(self) -> _Result:
        """Write the topmost operation."""
        return self._write(self._stage.tree)

    def _write(self, node: Relation) -> _Result:
        if isinstance(node, ExchangeSource):
            return self._source(node)
        inputs = [self._write(child) for child in node.children]
        columns: Columns = inputs[0].columns if inputs else ()
        match node:
            case Scan():
                return self._operation(node, self._scan(node), inputs)
            case ConstantTable():
                names = ", ".join(map(bare_name, node.schema.names))
                return self._operation(node, f"{_count(node.rows, 'row')} of the query itself, columns {names}", inputs)
            case Project():
                return self._project(node, inputs[0])
            case Filter():
                text = f"filter {' and '.join(show_filters(conjuncts(node.condition), columns))}"
                return self._operation(node, text, inputs, columns)
            case Join():
                return self._join(node, *inputs)
            case PartialAggregate():
                return self._aggregate(node, inputs[0])
            case Window():
                return self._window(node, inputs[0])
            case TopN():
                return self._operation(node, f"first {node.count} by {_order(node.order, columns)}", inputs, columns)
            case Limit():
                return self._operation(node, f"limit {node.count}", inputs, columns)
            case Expand():
                return self._operation(node, f"expand each row in {len(node.projections)} ways", inputs)
            case Explode():
                column, outer = columns[node.column].text, "outer " if node.outer else ""
                repeats = pat.is_int64(node.child.schema.field(node.column).type)
                text = f"repeat each row {column} times" if repeats else f"{outer}explode {column}"
                return self._operation(node, text, inputs)
            case PythonCalls() | PythonRows() | PythonAggregate() | PythonCogroups() | PythonWindow():
                return self._python(node, inputs[0])
        return self._operation(node, _name(node), inputs)

    def _operation(
        self,
        node: Relation,
        text: str,
        inputs: Sequence[_Result],
        columns: Columns | None = None,
        kind: type[Operation] = Operation,
        **facts: Any,
    ) -> _Result:
        """Describe a node, whose ``columns`` are by default those of its input, or written by name."""
        predicted = Amounts()
        if not any(each.operation.predicted.rows is None for each in inputs):
            rows = self._sizes.of(node).rows
            seconds = operation_seconds(node, self._sizes, self._facts.prices.costs).here / self._facts.prices.cores
            predicted = Amounts(rows=rows, bytes=rows * row_bytes(node.schema), seconds=seconds)
        operation = kind(
            kind=_NAMES[type(node)][0],
            operation=shorten(text, _LONGEST),
            backend=self._facts.backend.value,
            predicted=predicted,
            measured_as=((self._name, self._names[node]),),
            progress=self._progress(node),
            inputs=tuple(each.operation for each in inputs),
            **facts,
        )
        if columns is None:
            names = node.schema.names
            below = inputs[0].columns if inputs and len(inputs[0].columns) == len(names) else _plain_columns(node)
            columns = list(map(_with_name, names, below))
        return _Result(operation, columns, self._sizes.of(node))

    def _progress(self, node: Relation) -> str:
        """Name a node in Spark's progress."""
        if not isinstance(node, Scan):
            return _name(node)
        table = posixpath.basename(self._facts.scans[node.index].name)
        return f"scan {table.removesuffix('.parquet')}"

    def _project(self, node: Project, below: _Result) -> _Result:
        columns = [_with_name(output.name, _output_column(output, below.columns)) for output in node.outputs]
        if not all(map(_is_plain, node.outputs)):
            values = ", ".join(show_expression(output.expression, below.columns) for output in node.outputs)
            return self._operation(node, f"project {values}", [below], columns)
        measured = (*below.operation.measured_as, (self._name, self._names[node]))
        operation = dataclasses.replace(below.operation, measured_as=measured)
        return _Result(operation, columns, self._sizes.of(node))

    def _join(self, node: Join, left: _Result, right: _Result) -> _Result:
        spec, shape = node.spec, shape_of_node(node)
        sides = {Side.LEFT: left.columns, Side.RIGHT: right.columns}
        keys = tuple(
            f"{left.columns[pair.left].text} {'<=>' if pair.nulls is NullEquality.EQUAL else '='}"
            f" {right.columns[pair.right].text}"
            for pair in spec.keys
        )
        condition = None if spec.condition is None else show_condition(spec.condition, sides)
        terms = None
        if spec.as_of is not None:
            orders = left.columns[spec.as_of.left].text, right.columns[spec.as_of.right].text
            terms = AsOfTerms.from_as_of(spec.as_of).show(*orders)
        how = "" if shape in (Shape.EQUALITY, Shape.AS_OF) else f" ({shape.value})"
        kind = f"{'' if terms is None else f'as-of ({terms}) '}{spec.join_type.value} join{how}"
        parts = [kind, f"{node.build_side.value} side built", *keys, condition and f"if {condition}"]
        columns = [sides[side][i] for side in Side for i in spec.output_of(side)]
        columns += [Words(bare_name(name)) for name in node.schema.names[len(columns) :]]
        return self._operation(
            node, ", ".join(filter(None, parts)), [left, right], columns[: len(node.schema.names)], JoinOperation,
            join_type=spec.join_type.value, strategy=self._strategy(node), shape=shape.value,
            build_side=node.build_side, keys=keys, condition=" and ".join(filter(None, (condition, terms))) or None,
        )  # fmt: skip

    def _strategy(self, node: Join) -> Strategy:
        """Tell how the sides of a join are brought together."""
        keyed = {exchange.index for exchange in self._stage.inputs if exchange.columns}
        sides = [
            {source.index for source in side.walk() if isinstance(source, ExchangeSource)} for side in node.children
        ]
        if all(keyed & side for side in sides):
            return Strategy.SHUFFLE
        return Strategy.BROADCAST if node.spec.keys or node.spec.as_of is not None else Strategy.NESTED_LOOP

    def _aggregate(self, node: PartialAggregate, below: _Result) -> _Result:
        keys = [_output_column(key, below.columns) for key in node.keys]
        calls = [_call(call, below.columns) for call in node.aggregates]
        kind = ("aggregate" if node.final else "partial aggregate") + (", merging" if merges(node) else "")
        by = f" by {', '.join(key.text for key in keys)}" if keys else ""
        buffers = [
            Words(text, is_buffer=True) for text, call in zip(calls, node.aggregates, strict=True) for _ in call.buffer
        ]
        columns = list(map(_with_name, node.schema.names, [*keys, *buffers]))
        return self._operation(node, f"{kind} {', '.join(dict.fromkeys(calls)) or 'distinct'}{by}", [below], columns)

    def _python(
        self, node: PythonCalls | PythonRows | PythonAggregate | PythonCogroups | PythonWindow, below: _Result
    ) -> _Result:
        if isinstance(node, PythonRows):
            by = ", ".join(below.columns[key].text for key in node.keys or ())
            rows = "all rows of a task" if node.keys is None else f"each group by {by}"
            return self._operation(node, f"Python {node.name} of {rows}", [below], _plain_columns(node))
        if isinstance(node, PythonCogroups):
            by = ", ".join(below.columns[key].text for key in node.keys)
            return self._operation(node, f"Python {node.name} of each cogroup by {by}", [below], _plain_columns(node))
        if isinstance(node, PythonWindow):
            return self._python_window(node, below)
        if isinstance(node, PythonAggregate):
            texts = _called(node.calls, [below.columns[n].text for n in node.inputs])
            keys = [below.columns[n] for n in node.keys]
            by = f" by {', '.join(key.text for key in keys)}" if keys else ""
            columns = list(map(_with_name, node.schema.names, [*keys, *map(Words, texts)]))
            return self._operation(node, f"Python {', '.join(texts)}{by}", [below], columns)
        texts = _called(node.calls, [show_expression(value.expression, below.columns) for value in node.inputs])
        results = [_with_name(call.name, Words(text)) for call, text in zip(node.calls, texts, strict=True)]
        return self._operation(node, f"Python {', '.join(texts)}", [below], [*below.columns, *results])

    def _python_window(self, node: PythonWindow, below: _Result) -> _Result:
        values = [below.columns[n].text for n in node.inputs]
        calls = [
            call if frame.is_partition else dataclasses.replace(call, arguments=call.arguments[2:])
            for call, frame in zip(node.calls, node.frames, strict=True)
        ]
        texts = _called(calls, values)
        keys = ", ".join(below.columns[key].text for key in node.keys)
        framed = [
            text if frame.is_partition else f"{text} over {frame}"
            for text, frame in zip(texts, node.frames, strict=True)
        ]
        results = [_with_name(call.name, Words(text)) for call, text in zip(calls, texts, strict=True)]
        of_rows = f" of each partition by {keys}" if keys else " of all rows"
        return self._operation(node, f"Python {', '.join(framed)}{of_rows}", [below], [*below.columns, *results])

    def _window(self, node: Window, below: _Result) -> _Result:
        calls = [_window_call(call, below.columns) for call in node.calls]
        keys = ", ".join(below.columns[i].text for i in node.partition)
        order = _order(node.order, below.columns)
        text = f"window {', '.join(calls)}{keys and f' by {keys}'}{order and f' ordered by {order}'}"
        if node.limit is not None:
            text += f", of each partition those up to {node.limit.function.value} {node.limit.count}"
        over = " ".join(filter(None, (keys and f"partition by {keys}", order and f"order by {order}")))
        results = [
            _with_name(field.name, Words(f"{call_text} over ({over})", is_buffer=isinstance(call, FramedAggregate)))
            for call_text, call in zip(calls, node.calls, strict=True)
            for field in call.outputs
        ]
        return self._operation(node, text, [below], [*below.columns, *results])

    # -- leaves --------------------------------------------------------------------------------------------

    def _source(self, node: ExchangeSource) -> _Result:
        spark_input, name = self._stage.spark, (self._name, self._names[node])
        if spark_input is not None and spark_input.source == node.index:
            rows = self._sizes.of(node).rows if spark_input.rows in self._facts.counts else None
            seconds = None
            if rows is not None:
                seconds = crossing_seconds(rows, node.schema, self._facts.prices.costs) / self._facts.prices.cores
            operation = Operation(
                kind=OperationKind.SPARK_ROWS,
                operation=shorten(f"rows from Spark, {self._facts.rows[spark_input.rows]}", _LONGEST),
                predicted=Amounts(
                    rows=rows, bytes=None if rows is None else rows * row_bytes(node.schema), seconds=seconds
                ),
                measured_as=(name,),
                progress="rows from Spark",
            )
            return _Result(operation, _plain_columns(node), self._sizes.of(node))
        place = next(i for i, exchange in enumerate(self._stage.inputs) if exchange.index == node.index)
        exchange, before = self._stage.inputs[place], self._run.inputs[place]
        producer, producer_name = self._producers[exchange.index], f"{self._name}_{place}"
        nbytes = None if self._is_guessed(before) else exchange.nbytes
        about = show_about(nbytes)
        tasks = _count(self._run.tasks, "task")
        if exchange.replicated:
            text = f"sent to {tasks}, {about}"
        elif not exchange.columns:
            text = f"shared out among {tasks}, {about}"
        else:
            by = ", ".join(producer.columns[i].text for i in exchange.columns)
            senders = _count(before.tasks, "task") if before.stage.spark is None else "Spark's tasks"
            text = f"exchange by {by}: from {senders} to {self._run.tasks}, {about}"
        text = shorten(text, _LONGEST)
        if exchange.index in self._facts.repeated:
            text += ", computed once with an exchange alike"
        operation = Operation(
            kind=OperationKind.EXCHANGE,
            operation=text,
            backend=self._facts.backend.value,
            predicted=Amounts(rows=None if nbytes is None else producer.size.rows, bytes=nbytes),
            measured_as=((producer_name, OUTPUT), name),
            inputs=(producer.operation,),
        )
        return _Result(operation, producer.columns, producer.size)

    def _is_guessed(self, stage: StageRun) -> bool:
        """Whether nobody knows how many rows a stage gives."""
        spark_input = stage.stage.spark
        return (spark_input is not None and spark_input.rows in self._facts.guessed) or any(
            map(self._is_guessed, stage.inputs)
        )

    def _scan(self, node: Scan) -> str:
        source = self._facts.scans[node.index]
        paths = source.files.paths
        count = f"{len(paths)} files, " if len(paths) > 1 else ""
        where = f" where {' and '.join(show_filters(source.filters))}" if source.filters else ""
        share = ""
        if self._run.tasks > 1:
            branches = self._stage.branches
            share = ", read by every task"
            if any(node.index in dict(branch.bucketed) for branch in branches):
                share = ", divided by buckets"
            elif any(branch.partitioned == node.index for branch in branches):
                share = ", divided"
            elif any(branch.partitioned is None and node.index in branch.replicated for branch in branches):
                share = ", read by one task"
        size = f"{'about ' if source.files.is_sampled else ''}{show_bytes(source.files.nbytes)}"
        snapshot = "" if source.snapshot is None else f"{source.snapshot}, "
        what = f"{source.name} ({snapshot}{count}{size}{_deletions(source.files.files)})"
        return f"scan {what}{share}, columns {', '.join(source.columns)}{where}"


def _deletions(files: Sequence[FileSlice]) -> str:
    """Tell how many rows of files are deleted, or of how many files the positions are read."""
    deletions = [deletion for file in files for deletion in file.deletions]
    rows = sum(deletion.rows or 0 for deletion in deletions)
    lists = len({deletion.path for deletion in deletions if deletion.rows is None})
    return (f", {_count(rows, 'row')} deleted" if rows else "") + (
        f", without the rows that {_count(lists, 'file')} of deletes names" if lists else ""
    )


def _is_plain(output: Output) -> bool:
    """Whether an output needs no words: a column, a result of the aggregation below, or one of planning's own."""
    expression = output.expression
    if expression.written is not None or PLANNED.fullmatch(output.name):
        return True
    return not expression.children and bool(expression.columns())


def _output_column(output: Output, below: Columns) -> Words:
    """How an output is written above: one of planning's own by what computes it."""
    expression = output.expression
    columns = expression.columns()
    if output.name.startswith("a") and columns and PLANNED.fullmatch(output.name):
        return below[min(ref.index for ref in columns)]  # what merges a buffer
    return column_words(expression, below)


def _with_name(name: str, column: Words) -> Words:
    """Write a column by its name in the query, or by its expression."""
    made_up = PLANNED.fullmatch(name) or OF_OPTIMIZER.fullmatch(name)
    return column if made_up else Words(bare_name(name))


def _called(calls: Sequence[PythonCall], values: Sequence[str]) -> list[str]:
    """Write calls of Python functions, given what they take."""
    texts = []
    for call in calls:
        arguments = [values[n] for n in call.arguments] + [f"{name} => {values[n]}" for name, n in call.keywords]
        text = ", ".join(arguments)
        for function in call.names:
            text = f"{function}({text})"
        texts.append(text)
    return texts


def _plain_columns(node: Relation) -> Columns:
    """Give the names of a relation's columns, without numbers."""
    return [Words(bare_name(name)) for name in node.schema.names]


def _call(call: AggregateCall, below: Columns) -> str:
    """Write a call, or the call that it finishes if it merges partial results."""
    columns = call.arguments[0].columns() if call.name.startswith("merged ") else ()
    return below[next(iter(columns)).index].text if columns else call.text(below)


def _window_call(call: AnyWindowCall, below: Columns) -> str:
    if isinstance(call, FramedAggregate):
        return call.call.text(below)
    return f"{call.function.value}({'' if call.value is None else show_expression(call.value, below)})"


def _order(keys: Sequence[SortKey], below: Columns) -> str:
    return ", ".join(f"{show_expression(key.expression, below)}{' desc' if key.descending else ''}" for key in keys)


def _count(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def show_filters(conditions: Sequence[Expression], columns: Columns | None = None) -> tuple[str, ...]:
    """Format conditions that all hold, without tests for null that follow from others.

    Spark adds ``v is not null`` to ``v > 3``.
    """
    writer = Writer.of_one_input(columns)
    return tuple(
        writer.words(condition).at(AND)
        for n, condition in enumerate(conditions)
        if not any(_follows(condition, other) for m, other in enumerate(conditions) if m != n)
    )


def _follows(condition: Expression, other: Expression) -> bool:
    """Whether a test for null follows from another condition."""
    if not isinstance(condition, Call) or condition.function is not Function.IS_NOT_NULL or condition.same_as(other):
        return False
    return _is_null_of(condition.arguments[0], other)


def _is_null_of(null: Expression, expression: Expression) -> bool:
    """Whether an expression is null or false if a part of it is null."""
    if expression.same_as(null):
        return True
    if not isinstance(expression, Call):
        return isinstance(expression, Cast) and _is_null_of(null, expression.child)
    if expression.function is Function.OR:
        return all(_is_null_of(null, argument) for argument in expression.arguments)
    if expression.function is Function.IN:
        return _is_null_of(null, expression.arguments[0])
    if expression.function is not Function.AND and SPECS[expression.function].nulls is not Nulls.PROPAGATE:
        return False
    return any(_is_null_of(null, argument) for argument in expression.arguments)
