"""Aggregations of a plan: what a worker computes of them, and how Spark's own functions finish it."""

from __future__ import annotations

import dataclasses
import decimal
import json
import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as pat
import pyspark
from pyspark.sql import types as t

from gpujoin.functions.kinds import has_floats
from gpujoin.model.aggregates import (
    FINAL_ONLY,
    LISTS,
    MOMENTS,
    PERCENTILES,
    REGRESSIONS,
    AggregateCall,
    AggregateFunction,
)
from gpujoin.model.expressions import Call, Case, Cast, ColumnRef, EvalMode, Expression, Function, Literal
from gpujoin.model.relations import Relation, column
from gpujoin.model.sqltext import show_type
from gpujoin.model.types import is_float, is_whole, logical
from gpujoin.plan.merging import may_overflow
from gpujoin.spark.catalyst import intervals
from gpujoin.spark.catalyst.nodes import Node, NotTranslatableError, python_value
from gpujoin.spark.catalyst.traits import arrow_of
from gpujoin.spark.catalyst.translate import ExpressionReader, ordered_by
from gpujoin.spark.query.plans import PlanNode

if TYPE_CHECKING:
    from collections.abc import Mapping

_FUNCTIONS = {
    "Sum": AggregateFunction.SUM,
    "Count": AggregateFunction.COUNT,
    "Min": AggregateFunction.MIN,
    "Max": AggregateFunction.MAX,
    "Average": AggregateFunction.AVG,
    "StddevSamp": AggregateFunction.STDDEV_SAMP,
    "StddevPop": AggregateFunction.STDDEV_POP,
    "VarianceSamp": AggregateFunction.VAR_SAMP,
    "VariancePop": AggregateFunction.VAR_POP,
    "Skewness": AggregateFunction.SKEWNESS,
    "Kurtosis": AggregateFunction.KURTOSIS,
    "CovPopulation": AggregateFunction.COVAR_POP,
    "CovSample": AggregateFunction.COVAR_SAMP,
    "Corr": AggregateFunction.CORR,
    "First": AggregateFunction.FIRST,
    "Last": AggregateFunction.LAST,
    "MinBy": AggregateFunction.MIN_BY,
    "MaxBy": AggregateFunction.MAX_BY,
    "BitAndAgg": AggregateFunction.BIT_AND,
    "BitOrAgg": AggregateFunction.BIT_OR,
    "BitXorAgg": AggregateFunction.BIT_XOR,
    "RegrReplacement": AggregateFunction.REGR_SQUARES,
    "RegrSXY": AggregateFunction.REGR_SXY,
    "RegrR2": AggregateFunction.REGR_R2,
    "RegrSlope": AggregateFunction.REGR_SLOPE,
    "RegrIntercept": AggregateFunction.REGR_INTERCEPT,
    "Percentile": AggregateFunction.PERCENTILE,
    "PercentileDisc": AggregateFunction.PERCENTILE_DISC,
    "Mode": AggregateFunction.MODE,
    "ListAgg": AggregateFunction.LISTAGG,
    "CollectList": AggregateFunction.COLLECT_LIST,
    "CollectSet": AggregateFunction.COLLECT_SET,
}
ESTIMATE = "HyperLogLogPlusPlus"
"""Class of ``approx_count_distinct``, of which values are chosen here (`trees.estimates`), and counted by Spark."""
_EDGES = frozenset({AggregateFunction.FIRST, AggregateFunction.LAST})
_DOUBLE_DIGITS = 15
"""Most digits of decimals that are different as doubles wherever they are different."""
_INTERPOLATES = (4, 3)
"""First version of Spark in which percentiles are interpolated as they are here."""
_PAIRS = (4, 3)
"""First version of Spark in which the variance of a regression is that of pairs."""
_COUNT_DIGITS = 20
"""Digits of the decimal that Spark divides by when it averages decimals."""


@dataclass(frozen=True)
class ReadAggregate:
    """An ``Aggregate`` node, read."""

    keys: tuple[Node, ...]
    """Grouping expressions."""
    results: tuple[Node, ...]
    """Named expressions over the keys and the aggregate expressions."""

    @cached_property
    def aggregates(self) -> tuple[Node, ...]:
        """The aggregate expressions, in order of appearance."""
        return tuple(node for result in self.results for node in result.walk() if node.name == "AggregateExpression")

    @property
    def attribute_ids(self) -> frozenset[int]:
        """Attributes of the input that are read."""
        parts = (*self.keys, *self.aggregates)
        return frozenset().union(*(part.attribute_ids for part in parts))

    @property
    def final_only(self) -> bool:
        """Whether any aggregate's partial results could not be given to Spark."""
        return any(
            _FUNCTIONS.get(node.children[0].name) in FINAL_ONLY or _totals_intervals(node) for node in self.aggregates
        )

    @property
    def calls_functions(self) -> bool:
        """Whether any aggregate is a Python function of the program's."""
        return any(node.children[0].name == "PythonUDAF" for node in self.aggregates)

    @property
    def estimates(self) -> tuple[tuple[int, Node], ...]:
        """The estimated numbers of distinct values, by position among :attr:`aggregates`."""
        return tuple((number, node) for number, node in enumerate(self.aggregates) if is_estimate(node))

    @property
    def distinct(self) -> bool:
        """Whether any aggregate is distinct."""
        return any(node.fields["isDistinct"] for node in self.aggregates)

    @cached_property
    def distinct_columns(self) -> tuple[Node, ...]:
        """What distinct aggregates read, beside the keys.

        Raises ``NotTranslatableError`` if they do not all read the same.
        """
        distinct: dict[int | str, Node] = {}
        sets: set[frozenset[int | str]] = set()
        for node in self.aggregates:
            if not node.fields["isDistinct"]:
                continue
            function, *condition = node.children
            if condition:
                raise NotTranslatableError(f"{node} is not computed here with a filter")
            columns = [column for column in function.children if column.name != "Literal"]
            if not columns and not self.keys:
                raise NotTranslatableError(f"{node}: distinct constants, of which there are none if there are no rows")
            sets.add(frozenset(map(identity, columns)))
            distinct |= {identity(column): column for column in columns}
        if len(sets) > 1:
            raise NotTranslatableError("aggregates over the distinct values of different columns are not computed here")
        keys = set(map(identity, self.keys))
        return tuple(column for name, column in distinct.items() if name not in keys)

    def calls(self, reader: ExpressionReader) -> dict[int, AggregateCall]:
        """Translate the aggregates that are not distinct, by position among :attr:`aggregates`.

        Equal ones share one call. Raises ``NotTranslatableError`` if a function or an argument is not covered.
        """
        calls: dict[int, AggregateCall] = {}
        unique: dict[AggregateCall, AggregateCall] = {}
        for number, node in enumerate(self.aggregates):
            if node.fields["isDistinct"] or is_estimate(node):
                continue
            call = read_call(node, reader, f"a{number}")
            calls[number] = unique.setdefault(dataclasses.replace(call, name=""), call)
        return calls


def unique_calls(calls: Mapping[int, AggregateCall]) -> tuple[AggregateCall, ...]:
    """Give each call once."""
    return tuple({call.name: call for call in calls.values()}.values())


def read_aggregate(node: PlanNode) -> ReadAggregate:
    """Read an ``Aggregate`` node.

    Raises ``NotTranslatableError`` if a result is more than an expression over keys and aggregates.
    """
    return ReadAggregate(node.expressions("groupingExpressions"), node.expressions("aggregateExpressions"))


def identity(node: Node) -> int | str:
    """Give a value that is the same for the same expressions over one input."""
    return node.expr_id if node.name == "AttributeReference" else str(node)


def read_call(node: Node, reader: ExpressionReader, name: str) -> AggregateCall:
    """Translate an aggregate expression.

    Raises ``NotTranslatableError`` if the function or an argument is not covered.
    """
    function, *condition = node.children
    aggregate = _FUNCTIONS.get(function.name)
    operands = function.children
    if sums_unscaled(node):
        operands = operands[0].children
    if aggregate is None:
        raise NotTranslatableError(f"{function} is not computed here")
    if aggregate in REGRESSIONS and _version() < _PAIRS:
        raise NotTranslatableError(f"{function}: before 4.3 Spark took the variance of x where y was null, too")
    options: dict[str, Any] = {}
    if aggregate in PERCENTILES:
        options = {"percentage": _percentage(function, reader), "descending": bool(function.fields["reverse"])}
        operands = operands[:1]
    if aggregate is AggregateFunction.LISTAGG:
        operands, options = _list_of_texts(function)
    arguments = tuple(reader(operand) for operand in operands)
    if _totals_intervals(node):
        arguments = (intervals.summand(function, arguments[0]),)
    if aggregate in PERCENTILES:
        arguments = (_distinguished(function, arguments[0]),)
    if aggregate in LISTS:
        _check_list(aggregate, function, arguments[0])
    if aggregate is AggregateFunction.MODE:
        _check_distinguished(function, arguments[0])
        options = {"descending": function.fields["reverseOpt"] is False}
    if aggregate is AggregateFunction.COUNT:
        arguments = tuple(
            operand for operand in arguments if not (isinstance(operand, Literal) and operand.value is not None)
        )
    mode = EvalMode.LEGACY
    if aggregate in (AggregateFunction.SUM, AggregateFunction.AVG):
        mode = EvalMode.ANSI if _totals_intervals(node) else function.eval_mode
        integers = aggregate is AggregateFunction.SUM and is_whole(logical(arguments[0].type))
        if mode is EvalMode.TRY and not integers:
            mode = EvalMode.LEGACY  # both are null where a decimal overflows
    return AggregateCall(
        function=aggregate,
        arguments=arguments,
        name=name,
        filter=reader(condition[0]) if condition else None,
        mode=mode,
        ignore_nulls=aggregate in _EDGES and bool(function.fields["ignoreNulls"]),
        **options,
    )


def _totals_intervals(node: Node) -> bool:
    """Whether an aggregate is a sum or an average of intervals."""
    function = node.children[0]
    return function.name in ("Sum", "Average") and intervals.is_interval(function)


def _check_list(aggregate: AggregateFunction, function: Node, value: Expression) -> None:
    if not function.fields.get("ignoreNulls", True):
        raise NotTranslatableError(f"{function} is not computed here with nulls")
    if aggregate is AggregateFunction.COLLECT_SET:
        _check_distinguished(function, value)


def _check_distinguished(function: Node, value: Expression) -> None:
    assert value.type is not None
    if has_floats(value.type):
        raise NotTranslatableError(f"{function}: whether 0.0 and -0.0 are one value follows from how Spark hashes")


def _list_of_texts(function: Node) -> tuple[tuple[Node, ...], dict[str, Any]]:
    """What ``listagg`` joins and orders by, and its delimiter and directions."""
    value, delimiter, *orders = function.children
    while delimiter.name == "Cast":
        delimiter = delimiter.children[0]
    if delimiter.name != "Literal":
        raise NotTranslatableError(f"{function}: the delimiter is no constant")
    text = python_value(delimiter.data_type, delimiter.fields["@value"])
    directions = tuple(
        (ordered_by(order, "direction", "Descending"), ordered_by(order, "nullOrdering", "NullsFirst"))
        for order in orders
    )
    joined = text.encode() if isinstance(text, str) else text or b""
    return (value, *(order.children[0] for order in orders)), {"delimiter": joined, "directions": directions}


def _percentage(function: Node, reader: ExpressionReader) -> float | tuple[float, ...]:
    if _version() < _INTERPOLATES:
        raise NotTranslatableError(f"{function}: Spark interpolated in other steps before 4.3, and rounded otherwise")
    if function.fields.get("legacyCalculation"):
        raise NotTranslatableError(f"{function} follows spark.sql.legacy.percentileDiscCalculation")
    percentage, *frequency = function.children[1:]
    if frequency and (frequency[0].name != "Literal" or frequency[0].fields["@value"] != 1):
        raise NotTranslatableError(f"{function} is not computed here with frequencies")
    if percentage.name == "CreateArray" and not percentage.children:
        raise NotTranslatableError(f"{function} is not computed here without a percentage")
    if percentage.name == "CreateArray":
        return tuple(_constant(function, each, reader) for each in percentage.children)
    if percentage.name == "Literal" and isinstance(percentage.data_type, t.ArrayType):
        several = tuple(map(float, json.loads(percentage.fields["value"])))
        if not several:
            raise NotTranslatableError(f"{function}: no percentage")
        return several
    return _constant(function, percentage, reader)


def _version() -> tuple[int, ...]:
    return tuple(map(int, pyspark.__version__.split(".")[:2]))


def _constant(function: Node, percentage: Node, reader: ExpressionReader) -> float:
    value = reader(percentage)
    if not isinstance(value, Literal) or not isinstance(value.value, float):
        raise NotTranslatableError(f"{function}: the percentage is no constant")
    return value.value


def _distinguished(function: Node, value: Expression) -> Expression:
    """The argument of a percentile as an integer or a double, so that different values stay different."""
    assert value.type is not None
    if is_whole(value.type) or pat.is_float64(value.type):
        return value
    if not is_float(value.type) and not (pat.is_decimal(value.type) and value.type.precision <= _DOUBLE_DIGITS):
        raise NotTranslatableError(f"{function} is not computed here of type {show_type(value.type)}")
    return Cast(child=value, to=pa.float64(), mode=EvalMode.LEGACY, type=pa.float64())


def is_estimate(node: Node) -> bool:
    """Tell whether an aggregate expression is ``approx_count_distinct``."""
    return node.children[0].name == ESTIMATE and not node.fields["isDistinct"]


def sums_unscaled(node: Node) -> bool:
    """Tell whether an aggregate adds the digits of short decimals, as Spark rewrites their sums."""
    if node.name != "AggregateExpression" or node.children[0].name != "Sum":
        return False
    return node.children[0].children[0].name == "UnscaledValue"


class BufferReader(ExpressionReader):
    """Translates expressions over aggregates, or windows of them, whose buffers are columns of a relation."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def call_of(self, node: Node) -> AggregateCall | None:
        """Give the call that computes the buffer of an expression; ``None`` if it is none of an aggregate.

        Raises ``NotTranslatableError`` if it is one that nothing computes.
        """
        raise NotImplementedError

    def __call__(self, node: Node) -> Expression:
        """Translate an expression over columns and aggregates."""
        if node.name == "MakeDecimal":
            call = self.call_of(node.children[0])
            if call is not None and sums_unscaled(aggregate_of(node.children[0])):
                return self._final(node.children[0], call)
        call = self.call_of(node)
        if call is None:
            return super().__call__(node)
        value = self._final(node, call)
        if not sums_unscaled(aggregate_of(node)):
            return value
        return Call(function=Function.UNSCALED_VALUE, arguments=(value,), type=pa.int64())

    def _final(self, node: Node, call: AggregateCall) -> Expression:
        return dataclasses.replace(self._finished(node, call), written=str(call))

    def _finished(self, node: Node, call: AggregateCall) -> Expression:
        parts = [column(self._schema, buffer.name) for buffer in call.buffer]
        if _totals_intervals(aggregate_of(node)):
            return intervals.interval_of(parts[0]) if len(parts) == 1 else intervals.mean_of(*parts)
        if call.function is AggregateFunction.SUM and pat.is_decimal(call.dtype):
            return self._checked_sum(call, parts)
        if call.function is AggregateFunction.AVG:
            return _average(node, call, parts)
        if call.function in MOMENTS:
            return _moment(aggregate_of(node), call, parts)
        return parts[0]

    def _checked_sum(self, call: AggregateCall, parts: list[ColumnRef]) -> Expression:
        total, empty = parts
        nothing = Literal(value=None, type=total.type)
        has_values = Call(function=Function.NOT, arguments=(empty,), type=pa.bool_())
        return Case(
            conditions=(empty,), values=(nothing,), otherwise=_checked(call, total, has_values), type=total.type
        )


def aggregate_of(node: Node) -> Node:
    """The aggregate expression of a window, or the node itself."""
    return node.children[0] if node.name == "WindowExpression" else node


class FinalReader(BufferReader):
    """Translates an aggregation's results over a relation that gives each group once, with keys and buffers.

    The keys come first; buffers have their names. ``calls`` are by position among the aggregates.
    """

    def __init__(self, aggregation: ReadAggregate, relation: Relation, calls: Mapping[int, AggregateCall]) -> None:
        super().__init__(relation.schema)
        self._calls = {aggregation.aggregates[number]: call for number, call in calls.items()}
        self._keys = {
            key.expr_id: number for number, key in enumerate(aggregation.keys) if key.name == "AttributeReference"
        }

    def column(self, node: Node) -> Expression:
        """Translate a grouping attribute."""
        if node.expr_id not in self._keys:
            raise NotTranslatableError(f"{node.fields['name']} is no grouping column")
        key = column(self._schema, self._keys[node.expr_id])
        return dataclasses.replace(key, written=node.fields["name"])

    def call_of(self, node: Node) -> AggregateCall | None:
        """Give the call of an aggregate expression."""
        return self._calls[node] if node.name == "AggregateExpression" else None


def _checked(call: AggregateCall, total: ColumnRef, has_values: Expression) -> Expression:
    """A decimal sum; in ANSI mode an error where it is null although there were values."""
    assert total.type is not None
    if call.mode is not EvalMode.ANSI or not may_overflow(call):
        return total
    if total.type.scale == 0:
        raise NotTranslatableError(f"{call} below another operation is not computed here: its overflow is an error")
    largest = Literal(value=decimal.Decimal("9" * 38), type=pa.decimal128(38, 0))
    failing = Cast(child=largest, to=total.type, mode=EvalMode.ANSI, type=total.type)
    null = Call(function=Function.IS_NULL, arguments=(total,), type=pa.bool_())
    overflowed = Call(function=Function.AND, arguments=(null, has_values), type=pa.bool_())
    return Case(conditions=(overflowed,), values=(failing,), otherwise=total, type=total.type)


def merging(node: Node, call: AggregateCall) -> dict[str, Any]:
    """Describe to ``PlanRewriter.java`` how Spark merges the partial results of an aggregate."""
    if sums_unscaled(node):
        total = call.buffer[0].type
        return {"kind": "unscaled", "precision": total.precision, "scale": total.scale}
    decimals = call.function in (AggregateFunction.SUM, AggregateFunction.AVG) and pat.is_decimal(call.dtype)
    if decimals:
        kind = "decimal sum" if call.function is AggregateFunction.SUM else "decimal average"
        return {"kind": kind, "overflows": may_overflow(call)}
    if is_estimate(node):
        return {"kind": "again"}
    if call.mode is EvalMode.TRY:
        return {"kind": "try sum"}
    if call.function in MOMENTS:
        return {"kind": "folded"}
    return {"kind": _MERGING.get(call.function, "other")}


_MERGING = {
    AggregateFunction.COUNT: "count", AggregateFunction.AVG: "average", AggregateFunction.FIRST: "edge",
    AggregateFunction.LAST: "edge",
}  # fmt: skip


def _average_fits(call: AggregateCall, result: pa.DataType) -> bool:
    """Whether an average of decimals cannot overflow: it is at most the greatest value, and its sum exact."""
    value = call.dtype
    return not may_overflow(call) and result.precision - result.scale >= value.precision - value.scale


def _average(node: Node, call: AggregateCall, parts: list[ColumnRef]) -> Expression:
    total, count = parts
    result = arrow_of(node.data_type)
    none = Call(function=Function.EQ, arguments=(count, Literal(value=0, type=pa.int64())), type=pa.bool_())
    dividend: Expression = total
    wide, mode = pa.float64(), EvalMode.LEGACY
    if pat.is_decimal(result):
        mode = EvalMode.LEGACY if _average_fits(call, result) else call.mode
        wide = pa.decimal128(_COUNT_DIGITS, 0)
        dividend = _checked(call, total, Call(function=Function.NOT, arguments=(none,), type=pa.bool_()))
    divisor = Cast(child=count, to=wide, mode=EvalMode.LEGACY, type=wide)
    quotient = Call(function=Function.DIVIDE, arguments=(dividend, divisor), mode=mode, type=result)
    return Case(conditions=(none,), values=(Literal(value=None, type=result),), otherwise=quotient, type=result)


def _moment(node: Node, call: AggregateCall, parts: list[ColumnRef]) -> Expression:
    """The last step of Spark's `CentralMomentAgg` and `Covariance`: null of no value, or of too few."""
    kind = pa.float64()
    undefined = None if node.children[0].fields.get("nullOnDivideByZero", True) else math.nan

    def number(value: float | None) -> Literal:
        return Literal(value=value, type=kind)

    def computed(function: Function, *operands: Expression) -> Expression:
        return Call(function=function, arguments=operands, type=kind)

    def is_equal(value: Expression, other: float) -> Expression:
        return Call(function=Function.EQ, arguments=(value, number(other)), type=pa.bool_())

    n, spread = parts[0], parts[-1]
    cases = [(is_equal(n, 0.0), number(None))]
    result: Expression
    match call.function:
        case AggregateFunction.REGR_SQUARES | AggregateFunction.REGR_SXY:
            result = spread
        case AggregateFunction.REGR_SLOPE | AggregateFunction.REGR_INTERCEPT:
            _, x, y, xy, _, _, xx = parts
            cases = [(is_equal(xx, 0.0), number(None))]
            result = computed(Function.DIVIDE, xy, xx)
            if call.function is AggregateFunction.REGR_INTERCEPT:
                result = computed(Function.SUBTRACT, y, computed(Function.MULTIPLY, result, x))
        case AggregateFunction.STDDEV_SAMP | AggregateFunction.VAR_SAMP | AggregateFunction.COVAR_SAMP:
            cases.append((is_equal(n, 1.0), number(undefined)))
            result = computed(Function.DIVIDE, spread, computed(Function.SUBTRACT, n, number(1.0)))
        case AggregateFunction.STDDEV_POP | AggregateFunction.VAR_POP | AggregateFunction.COVAR_POP:
            result = computed(Function.DIVIDE, spread, n)
        case AggregateFunction.SKEWNESS:
            _, _, m2, m3 = parts
            cases.append((is_equal(m2, 0.0), number(undefined)))
            cube = computed(Function.MULTIPLY, computed(Function.MULTIPLY, m2, m2), m2)
            scaled = computed(Function.MULTIPLY, computed(Function.SQRT, n), m3)
            result = computed(Function.DIVIDE, scaled, computed(Function.SQRT, cube))
        case AggregateFunction.KURTOSIS:
            _, _, m2, _, m4 = parts
            cases.append((is_equal(m2, 0.0), number(undefined)))
            ratio = computed(Function.DIVIDE, computed(Function.MULTIPLY, n, m4), computed(Function.MULTIPLY, m2, m2))
            result = computed(Function.SUBTRACT, ratio, number(3.0))
        case _:
            raise NotTranslatableError(
                f"{call} below another operation: what it is of equal values follows from Spark's settings"
            )
    if call.function in (AggregateFunction.STDDEV_SAMP, AggregateFunction.STDDEV_POP):
        result = computed(Function.SQRT, result)
    conditions, values = zip(*cases, strict=True)
    return Case(conditions=conditions, values=values, otherwise=result, type=kind)


def covered_aggregates() -> tuple[str, ...]:
    """Name the classes of aggregate functions that are covered."""
    return (*_FUNCTIONS, ESTIMATE)
