"""Windows of a plan as fragments."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pyarrow.types as pat
from pyspark.sql import types as t

from gpujoin.model.aggregates import AggregateCall
from gpujoin.model.expressions import Expression, Function
from gpujoin.model.relations import SortKey, Window, column
from gpujoin.model.types import is_bytes, is_numeric, is_text, logical
from gpujoin.model.windows import (
    OFFSETS,
    WHOLE_PARTITION,
    AnyWindowCall,
    Frame,
    FramedAggregate,
    FrameType,
    RankLimit,
    WindowCall,
    WindowFunction,
    is_by_order,
)
from gpujoin.plan.nested_groups import as_bytes
from gpujoin.spark.catalyst.nodes import Node, NotTranslatableError, python_value
from gpujoin.spark.catalyst.translate import ExpressionReader, object_name, ordered_by
from gpujoin.spark.catalyst.zones import UTC_NAMES
from gpujoin.spark.query.aggregates import BufferReader, read_call
from gpujoin.spark.query.plans import PlanNode
from gpujoin.spark.query.trees.builder import (
    Fragment,
    TreeBuilder,
    check_column,
    named_outputs,
    passed_on,
    with_outputs,
)
from gpujoin.spark.query.trees.keys import bare_key, with_keys

FUNCTIONS = {
    "RowNumber": WindowFunction.ROW_NUMBER,
    "Rank": WindowFunction.RANK,
    "DenseRank": WindowFunction.DENSE_RANK,
    "PercentRank": WindowFunction.PERCENT_RANK,
    "CumeDist": WindowFunction.CUME_DIST,
    "NTile": WindowFunction.NTILE,
    "Lag": WindowFunction.LAG,
    "Lead": WindowFunction.LEAD,
    "NthValue": WindowFunction.NTH_VALUE,
}
"""Classes of window functions that are no aggregate functions."""
_DAY = 86_400_000_000
"""Microseconds."""


def window(builder: TreeBuilder, node: PlanNode, required: frozenset[int]) -> Fragment:
    """Compute window functions over an input."""
    named = [each for each in node.expressions("windowExpressions") if each.expr_id in required]
    child = node.children[0]
    if not named:
        return builder.build(child, required)
    partition = [bare_key(key) for key in node.expressions("partitionSpec")]
    order = node.expressions("orderSpec")
    for key in (*partition, *(key.children[0] for key in order)):
        if key.name == "AttributeReference":
            check_column(key)
    passed = required.intersection(column.expr_id for column in child.output)
    ids = passed.union(*(each.attribute_ids for each in (*named, *partition, *order)))
    below = builder.input(child, ids)
    # Columns that are required, or that the functions and the order read; a computed key is one more.
    nested = [key.children[0] for key in order if isinstance(key.children[0].data_type, (t.StructType, t.ArrayType))]
    below, places = with_keys(builder, below, [*partition, *nested], ids, pat.is_nested)
    reader = builder.reader(below)
    columns = [column(below.relation.schema, place) for place in places[len(partition) :]]
    written = dict(zip(nested, columns, strict=True))
    keys = tuple(sort_key(reader, key, written.get(key.children[0])) for key in order)
    calls: dict[Node, AnyWindowCall] = {}
    for each in named:
        for part in each.walk():
            if part.name == "WindowExpression":
                calls[part] = _read_call(part, reader, f"w{len(calls)}", order, builder.zone)
    limit = None
    if child.name == "WindowGroupLimit":
        limit = RankLimit(FUNCTIONS[child.expression("rankLikeFunction").name], int(child.fields["limit"]))
    relation = Window(below.relation, tuple(places[: len(partition)]), keys, tuple(calls.values()), limit)
    results = _ResultReader(relation, below, calls)
    return with_outputs(relation, passed_on(below, passed) | named_outputs(named, results))


def group_limit(builder: TreeBuilder, node: PlanNode, required: frozenset[int]) -> Fragment:
    """Pass on all rows: the window above drops some of them, and so does the filter above that."""
    return builder.build(node.children[0], required)


def sort_key(reader: ExpressionReader, order: Node, written: Expression | None = None) -> SortKey:
    """Translate a ``SortOrder``; nested values are ordered by their bytes, which may have been ``written`` before.

    Raises ``NotTranslatableError`` if values of its type are not ordered exactly as by Spark.
    """
    value = as_bytes(Function.ORDER_BYTES, reader(order.children[0])) if written is None else written
    dtype = logical(value.type)
    ordered = is_numeric(dtype) or is_text(dtype) or is_bytes(dtype) or pat.is_temporal(dtype)
    if not ordered and not pat.is_boolean(dtype):
        raise NotTranslatableError(f"it is ordered by {order}, whose type is {order.children[0].type_name.lower()}")
    descending = ordered_by(order, "direction", "Descending")
    return SortKey(value, descending, ordered_by(order, "nullOrdering", "NullsFirst"))


def _read_call(
    node: Node, reader: ExpressionReader, name: str, order: Sequence[Node], zone: str | None
) -> AnyWindowCall:
    function, definition = node.children
    call: AnyWindowCall
    if function.name == "AggregateExpression":
        if function.fields["isDistinct"]:
            raise NotTranslatableError(f"{function}: distinct values of a window are not computed here")
        frame = read_frame(definition.children[-1], node, order, zone)
        call = FramedAggregate(read_call(function, reader, name), frame)
    elif function.name in FUNCTIONS:
        call = _read_function(function, reader, name, _frame_of(function, definition, node, order, zone))
    else:
        raise NotTranslatableError(f"{function} is not computed here")
    if not order and is_by_order(call) and not _takes_any(call):
        raise NotTranslatableError(f"{node}: without an order by, its value depends on the order in which rows come")
    return call


def _takes_any(call: AnyWindowCall) -> bool:
    """Whether a function takes any row of a partition without order."""
    return isinstance(call, FramedAggregate) and call.frame.is_partition


def _read_function(function: Node, reader: ExpressionReader, name: str, frame: Frame) -> WindowCall:
    window_function = FUNCTIONS[function.name]
    value, default, count = None, None, 1
    ignore_nulls = bool(function.fields.get("ignoreNulls", False))
    match window_function:
        case WindowFunction.LAG | WindowFunction.LEAD:
            value, count = reader(function.children[0]), _integer(function.children[1])
            if count < 0:
                window_function, count = next(iter(OFFSETS - {window_function})), -count
            default = _default(function.children[2], reader)
        case WindowFunction.NTH_VALUE:
            value, count = reader(function.children[0]), _integer(function.children[1])
        case WindowFunction.NTILE:
            count = _integer(function.children[0])
    return WindowCall(
        function=window_function,
        name=name,
        value=value,
        count=count,
        default=default,
        ignore_nulls=ignore_nulls,
        frame=frame,
    )


def _default(node: Node, reader: ExpressionReader) -> Expression | None:
    return None if node.name == "Literal" and node.fields["@value"] is None else reader(node)


def _integer(node: Node) -> int:
    value = node.fields.get("@value") if node.name == "Literal" else None
    if not isinstance(value, int) or isinstance(value, bool):
        raise NotTranslatableError(f"{node} is no constant number")
    return value


def _frame_of(function: Node, definition: Node, node: Node, order: Sequence[Node], zone: str | None) -> Frame:
    """Give the frame of a function; any, if the function has one of its own."""
    if function.name != "NthValue":
        return WHOLE_PARTITION
    return read_frame(definition.children[-1], node, order, zone)


def read_frame(node: Node, window: Node, order: Sequence[Node], zone: str | None) -> Frame:
    """Read the frame of a function.

    Raises ``NotTranslatableError`` if its bounds are not constants.
    """
    by_range = object_name(node, "frameType") == "RangeFrame"
    bounds: list[float | None] = []
    for bound in node.children:
        match bound.name.rstrip("$"):
            case "UnboundedPreceding" | "UnboundedFollowing":
                bounds.append(None)
            case "CurrentRow":
                bounds.append(0)
            case _ if by_range and len(order) == 1:
                bounds.append(_distance(bound, order[0].children[0], window, zone))
            case _:
                bounds.append(_integer(bound))
    start, end = bounds
    return Frame(FrameType.RANGE if by_range else FrameType.ROWS, start, end)


def _distance(bound: Node, key: Node, window: Node, zone: str | None) -> float:
    """A distance of an order key, as :class:`Frame` has it."""
    if bound.name != "Literal" or bound.fields["@value"] is None:
        raise NotTranslatableError(f"{window}: a bound of its range is no constant")
    dtype = key.data_type
    if isinstance(bound.data_type, t.DayTimeIntervalType):
        distance = int(bound.fields["@value"])
        if isinstance(dtype, t.DateType) and distance % _DAY == 0:
            return distance // _DAY
        if isinstance(dtype, t.TimestampNTZType):
            return distance
        if isinstance(dtype, t.TimestampType) and (abs(distance) < _DAY or zone in UTC_NAMES):
            return distance  # a day elsewhere is not always 24 hours
    elif isinstance(dtype, t.DateType) and isinstance(bound.data_type, t.IntegerType):
        return int(bound.fields["@value"])
    elif bound.data_type == dtype:
        value = python_value(dtype, bound.fields["@value"])
        if isinstance(dtype, t.DecimalType):
            return int(value.scaleb(dtype.scale))
        if isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value):
            return value
    raise NotTranslatableError(
        f"{window}: a range of {bound.type_name.lower()} around {key.type_name.lower()} is not computed here"
    )


class _ResultReader(BufferReader):
    """Translates the results of a window, over its columns and its calls."""

    def __init__(self, relation: Window, below: Fragment, calls: dict[Node, AnyWindowCall]) -> None:
        super().__init__(relation.schema)
        self._below = below
        self._calls = calls

    def column(self, node: Node) -> Expression:
        """Translate an attribute of the input."""
        if node.expr_id not in self._below.positions:
            raise NotTranslatableError(f"{node.fields['name']} is no column of the input")
        return self._below.reference(node.expr_id)

    def call_of(self, node: Node) -> AggregateCall | None:
        """Give the aggregate of a window."""
        call = self._calls.get(node)
        return call.call if isinstance(call, FramedAggregate) else None

    def __call__(self, node: Node) -> Expression:
        """Translate an expression over columns and windows."""
        call = self._calls.get(node)
        if isinstance(call, WindowCall):
            return column(self._schema, call.name)
        return super().__call__(node)
