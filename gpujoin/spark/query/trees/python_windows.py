"""Python aggregate functions over windows of a plan.

gpujoin's own window numbers the rows of each partition, and counts those of each frame, from which follows where it
begins and ends; PySpark's worker calls the functions::

    range(v) over (partition by k order by v rows between 1 preceding and current row)

    row_number() over (partition by k order by v)                                   order
    count(*) over (… rows between unbounded preceding and current row)              end
    count(*) over (… rows between 1 preceding and current row)                      end - begin
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import types as t
from pyspark.util import PythonEvalType

from gpujoin.model.aggregates import AggregateCall, AggregateFunction
from gpujoin.model.expressions import Call, Cast, EvalMode, Expression, Function
from gpujoin.model.jointype import Side
from gpujoin.model.python_calls import PythonCall, PythonWindow
from gpujoin.model.relations import Output, Project, Relation, Window
from gpujoin.model.relations import column as column_at
from gpujoin.model.switches import PYTHON
from gpujoin.model.windows import AnyWindowCall, Frame, FramedAggregate, WindowCall, WindowFunction
from gpujoin.spark.catalyst.nodes import NotTranslatableError
from gpujoin.spark.query.trees.builder import (
    ColumnReader,
    Fragment,
    TreeBuilder,
    named_outputs,
    passed_on,
    with_outputs,
)
from gpujoin.spark.query.trees.python_calls import (
    Inputs,
    check_key,
    check_kind,
    check_type,
    check_unsorted,
    numbered,
    read_function,
    settings_of,
)
from gpujoin.spark.query.trees.windows import read_frame, sort_key, window

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gpujoin.spark.catalyst.nodes import Node
    from gpujoin.spark.query.plans import PlanNode

_KINDS: dict[int, int | None] = {
    PythonEvalType.SQL_GROUPED_AGG_PANDAS_UDF: PythonEvalType.SQL_WINDOW_AGG_PANDAS_UDF,
    getattr(PythonEvalType, "SQL_GROUPED_AGG_ARROW_UDF", -1): getattr(PythonEvalType, "SQL_WINDOW_AGG_ARROW_UDF", None),
}
"""How functions are called over windows, by the kind of aggregate functions that they are."""
_BOUNDS = "window_bound_types"
"""What Spark tells a worker of the functions' frames: a word for each (``ArrowWindowPythonEvaluatorFactory``)."""
_INTEGER = pa.int32()


def any_window(builder: TreeBuilder, node: PlanNode, required: frozenset[int]) -> Fragment:
    """Compute window functions over an input: Spark's own or the program's, which are in other nodes of the plan."""
    named = [each for each in node.expressions("windowExpressions") if each.expr_id in required]
    if any(part.name == "PythonUDAF" for each in named for part in each.walk()):
        return _python_window(builder, node, named, required)
    return window(builder, node, required)


def _python_window(builder: TreeBuilder, node: PlanNode, named: Sequence[Node], required: frozenset[int]) -> Fragment:
    builder.check_switches(node, PYTHON)
    check_unsorted(node.children[0])
    windows = [part for each in named for part in each.walk() if part.name == "WindowExpression"]
    kind, functions = _functions(windows, node)
    programs = [read_function(function, builder) for function in functions]
    if any(len(each.names) > 1 for each in programs):
        raise NotTranslatableError("functions of windows of functions' results are not called here")
    keys, order = node.expressions("partitionSpec"), node.expressions("orderSpec")
    child = node.children[0]
    passed = required.intersection(column.expr_id for column in child.output)
    ids = passed.union(*(each.attribute_ids for each in (*named, *keys, *order)))
    below = builder.input(child, ids)
    for key in keys:
        check_key(key)
    reader = builder.reader(below)
    inputs = Inputs(reader)
    calls = [inputs.call(each, f"w{n}", each.node.data_type) for n, each in enumerate(programs)]
    for each in programs:
        check_type(each.node)
    frames = [_frame(each, order, builder.zone) for each in windows]
    if kind == PythonEvalType.SQL_WINDOW_AGG_PANDAS_UDF and len(set(frames)) > 1 and len(inputs.types) > 1:
        # Spark numbers series by an order of frames that follows from hashes, and pandas knows them by these numbers.
        raise NotTranslatableError("Spark names the columns that functions over several frames are given")
    sort_keys = [sort_key(reader, each) for each in order]
    # The columns that go on, then keys, what is ordered by, and what functions take.
    own = passed_on(below, passed)
    outputs = [
        *own.values(),
        *(Output(f"k{n}", reader(key)) for n, key in enumerate(keys)),
        *(Output(f"c{n}", key.expression) for n, key in enumerate(sort_keys)),
        *inputs.outputs,
    ]
    relation: Relation = Project(below.relation, tuple(outputs))
    first_key, first_order = len(own), len(own) + len(keys)
    first_input = first_order + len(order)
    places = tuple(range(first_key, first_order))
    number: int | None = None
    bounded = list(dict.fromkeys(frame for frame in frames if not frame.is_partition))
    if order:
        number = len(relation.schema)
        sorted_by = tuple(
            replace(key, expression=column_at(relation.schema, first_order + n)) for n, key in enumerate(sort_keys)
        )
        relation = _with_bounds(Window(relation, places, sorted_by, tuple(_counts(bounded))), bounded)
    of_bounds = tuple(range(len(relation.schema) - 2 * len(bounded), len(relation.schema)))
    words = ["unbounded" if frame.is_partition else "bounded" for frame in frames]
    types = [*(t.IntegerType() for _ in of_bounds), *inputs.types]
    settings = settings_of(node, kind, numbered(types), numbered(each.node.data_type for each in programs))
    relation = PythonWindow(
        relation,
        places,
        number,
        (*of_bounds, *range(first_input, first_input + len(inputs.outputs))),
        tuple(_with_bounds_first(call, frame, bounded) for call, frame in zip(calls, frames, strict=True)),
        tuple(frames),
        replace(settings, settings=(*settings.settings, (_BOUNDS, ",".join(words)))),
    )
    results = {each: column_at(relation.schema, f"w{n}") for n, each in enumerate(windows)}
    fragment = Fragment(relation, {expr_id: n for n, expr_id in enumerate(own)})
    reading = _ResultReader({Side.LEFT: fragment}, builder.constant or _no_value, results)
    return with_outputs(relation, passed_on(fragment, passed) | named_outputs(named, reading))


def _functions(windows: Sequence[Node], node: PlanNode) -> tuple[int, list[Node]]:
    """Give the kind of a window's functions, all of which are Python's, and the functions."""
    functions = []
    for each in windows:
        aggregate = each.children[0]
        function = aggregate.children[0] if aggregate.name == "AggregateExpression" else aggregate
        if function.name != "PythonUDAF" or aggregate.fields["isDistinct"] or len(aggregate.children) > 1:
            raise NotTranslatableError(f"{each} is not computed here beside Python functions")
        functions.append(function)
    kinds = {int(function.fields["evalType"]) for function in functions}
    of_windows = _KINDS.get(kinds.pop())
    if kinds or of_windows is None:
        raise NotTranslatableError("Spark runs Python functions of windows of several kinds, or that take iterators")
    check_kind(int(functions[0].fields["evalType"]), node)
    return of_windows, functions


def _frame(node: Node, order: Sequence[Node], zone: str | None) -> Frame:
    frame = read_frame(node.children[1].children[-1], node, order, zone)
    if not order and not frame.is_partition:
        raise NotTranslatableError(f"{node}: without an order by, its value depends on the order in which rows come")
    return frame


def _counts(frames: Sequence[Frame]) -> list[AnyWindowCall]:
    """Number rows, and count those of frames, and up to their ends."""
    calls: list[AnyWindowCall] = [WindowCall(function=WindowFunction.ROW_NUMBER, name="a0")]
    for n, frame in enumerate(frames):
        for name, each in ((f"a{2 * n + 1}", frame), (f"a{2 * n + 2}", replace(frame, start=None))):
            count = AggregateCall(function=AggregateFunction.COUNT, arguments=(), name=name)
            calls.append(FramedAggregate(count, each))
    return calls


def _with_bounds(relation: Window, frames: Sequence[Frame]) -> Relation:
    """Add the bounds of frames, which begin so many rows before their ends as they have."""
    schema = relation.schema
    width = len(schema) - 2 * len(frames)
    outputs = [Output(field.name, column_at(schema, n), field.nullable) for n, field in enumerate(schema)][:width]
    for n in range(len(frames)):
        count, end = column_at(schema, width + 2 * n), column_at(schema, width + 2 * n + 1)
        begin = Call(function=Function.SUBTRACT, arguments=(end, count), mode=EvalMode.LEGACY, type=pa.int64())
        outputs += [Output(f"a{2 * n + 1}", _as_integer(begin)), Output(f"a{2 * n + 2}", _as_integer(end))]
    return Project(relation, tuple(outputs))


def _as_integer(value: Expression) -> Expression:
    return Cast(child=value, to=_INTEGER, mode=EvalMode.LEGACY, type=_INTEGER)


def _with_bounds_first(call: PythonCall, frame: Frame, frames: Sequence[Frame]) -> PythonCall:
    """Have a call take the bounds of its frame first, after which all columns of bounds are those of values."""
    width = 2 * len(frames)
    own = () if frame.is_partition else (2 * frames.index(frame), 2 * frames.index(frame) + 1)
    return replace(
        call,
        arguments=(*own, *(n + width for n in call.arguments)),
        keywords=tuple((name, n + width) for name, n in call.keywords),
    )


def _no_value(node: Node) -> Expression:
    raise NotTranslatableError(f"{node} beside a Python function is not computed here")


class _ResultReader(ColumnReader):
    """Translates expressions over the columns of a window's input, and over its functions' results."""

    def __init__(
        self,
        fragments: Mapping[Side, Fragment],
        constant: Callable[[Node], Expression],
        results: Mapping[Node, Expression],
    ) -> None:
        super().__init__(fragments, constant)
        self._results = results

    def __call__(self, node: Node) -> Expression:
        """Translate an expression."""
        result = self._results.get(node)
        return super().__call__(node) if result is None else result
