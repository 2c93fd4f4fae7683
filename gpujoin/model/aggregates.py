"""Aggregate functions, and the columns of their partial results, which are those of Spark."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.errors import RelationError
from gpujoin.model.expressions import EvalMode, Expression
from gpujoin.model.sqltext import Columns, show_expression, show_type
from gpujoin.model.trees import Structural
from gpujoin.model.types import MAX_PRECISION, is_bytes, is_float, is_numeric, is_text, is_whole, logical

_SUM_DIGITS = 10
"""Digits that Spark adds to a decimal's precision where it sums."""


class AggregateFunction(Enum):
    """The aggregate functions. ``bool_and``, ``bool_or``, ``every``, ``any`` and ``some`` are ``MIN`` and ``MAX``."""

    SUM = "sum"
    COUNT = "count"
    """Rows in which no argument is null; all rows where there is no argument."""
    MIN = "min"
    MAX = "max"
    AVG = "avg"
    STDDEV_SAMP = "stddev_samp"
    STDDEV_POP = "stddev_pop"
    VAR_SAMP = "var_samp"
    VAR_POP = "var_pop"
    SKEWNESS = "skewness"
    KURTOSIS = "kurtosis"
    COVAR_POP = "covar_pop"
    COVAR_SAMP = "covar_samp"
    CORR = "corr"
    FIRST = "first"
    """Value of the first row of a group; all such calls of a group take the same row."""
    LAST = "last"
    MIN_BY = "min_by"
    """Value in the row of a group whose ordering, the second argument, is least; null orderings do not count."""
    MAX_BY = "max_by"
    BIT_AND = "bit_and"
    BIT_OR = "bit_or"
    BIT_XOR = "bit_xor"
    REGR_SQUARES = "regr_squares"
    """Sum of the squared deviations from the mean: ``regr_sxx`` and ``regr_syy``, over the pairs' values."""
    REGR_SXY = "regr_sxy"
    REGR_R2 = "regr_r2"
    REGR_SLOPE = "regr_slope"
    """Slope of the line that fits ``y``, the first argument, over ``x``."""
    REGR_INTERCEPT = "regr_intercept"
    PERCENTILE = "percentile"
    """Exact percentile, between two values interpolated; ``median`` is that of 0.5."""
    PERCENTILE_DISC = "percentile_disc"
    """Least value up to which there is at least a percentage of all."""
    MODE = "mode"
    """Most frequent value that is not null; the least of several, or the greatest if descending."""
    LISTAGG = "listagg"
    """Texts or bytes that are not null, joined by a delimiter, in the order of the other arguments or of the rows."""
    COLLECT_LIST = "collect_list"
    """List of the values that are not null, in the order of the rows; also ``array_agg``."""
    COLLECT_SET = "collect_set"
    """Different values that are not null."""


EXTREMES_BY = frozenset({AggregateFunction.MIN_BY, AggregateFunction.MAX_BY})
"""Functions of a value and an ordering."""
BITWISE = frozenset({AggregateFunction.BIT_AND, AggregateFunction.BIT_OR, AggregateFunction.BIT_XOR})
"""Functions of the bits of integers."""
LISTS = frozenset({AggregateFunction.COLLECT_LIST, AggregateFunction.COLLECT_SET})
"""Functions that return a list."""
PERCENTILES = frozenset({AggregateFunction.PERCENTILE, AggregateFunction.PERCENTILE_DISC})
"""Functions of a percentage, or of several."""
FINAL_ONLY = LISTS | PERCENTILES | {AggregateFunction.MODE, AggregateFunction.LISTAGG}
"""Functions whose buffer in Spark only Spark reads: each group must come out once, with its value."""
ANY_ROW = EXTREMES_BY | LISTS | {AggregateFunction.FIRST, AggregateFunction.LAST, AggregateFunction.LISTAGG}
"""Functions whose result follows from the order of rows: which of several that fit is returned, or what comes first."""
CENTRAL_MOMENTS = frozenset(
    {
        AggregateFunction.STDDEV_SAMP, AggregateFunction.STDDEV_POP, AggregateFunction.VAR_SAMP,
        AggregateFunction.VAR_POP, AggregateFunction.REGR_SQUARES,
    }
)  # fmt: skip
"""Functions whose buffer is count, mean and sum of squared deviations; they differ only in the final step."""
HIGHER_MOMENTS = frozenset({AggregateFunction.SKEWNESS, AggregateFunction.KURTOSIS})
"""Functions whose buffer also has sums of deviations to the third, and to the fourth."""
COMOMENTS = frozenset(
    {
        AggregateFunction.COVAR_POP, AggregateFunction.COVAR_SAMP, AggregateFunction.CORR, AggregateFunction.REGR_SXY,
        AggregateFunction.REGR_R2,
    }
)  # fmt: skip
"""Functions of two numbers; pairs in which either is null do not count."""
REGRESSIONS = frozenset({AggregateFunction.REGR_SLOPE, AggregateFunction.REGR_INTERCEPT})
"""Functions of numbers ``y`` and ``x``, whose buffer is that of ``covar_pop`` and of ``var_pop`` of x."""
MOMENTS = CENTRAL_MOMENTS | HIGHER_MOMENTS | COMOMENTS | REGRESSIONS
"""Functions of deviations from means, in doubles: their last digits depend on the order of rows."""
_MOMENT_PARTS = {
    **dict.fromkeys(CENTRAL_MOMENTS, ("n", "avg", "m2")),
    AggregateFunction.SKEWNESS: ("n", "avg", "m2", "m3"),
    AggregateFunction.KURTOSIS: ("n", "avg", "m2", "m3", "m4"),
    **dict.fromkeys(COMOMENTS, ("n", "xAvg", "yAvg", "ck")),
    AggregateFunction.CORR: ("n", "xAvg", "yAvg", "ck", "xMk", "yMk"),
    AggregateFunction.REGR_R2: ("n", "xAvg", "yAvg", "ck", "xMk", "yMk"),
    **dict.fromkeys(REGRESSIONS, ("n", "xAvg", "yAvg", "ck", "xN", "avg", "m2")),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class AggregateCall(Structural):
    """A call of an aggregate function.

    Raises
    ------
    RelationError
        If the arguments do not fit the function.
    """

    function: AggregateFunction
    """The aggregate function."""
    arguments: tuple[Expression, ...] = ()
    """Typed, over the child's output. One; any number for ``COUNT``; a value and its ordering for ``MIN_BY`` and
    ``MAX_BY``; two numbers for covariances, ``CORR`` and regressions; a text and what it is ordered by for
    ``LISTAGG``. ``AVG`` takes a number of any type, functions of moments take float64, bitwise functions integers."""
    name: str = field(default="")
    """Prefix of the buffer columns' names."""
    filter: Expression | None = None
    """``FILTER (WHERE …)``: only rows for which it is true take part."""
    mode: EvalMode = EvalMode.LEGACY
    """What a sum of integers that leaves 64 bits is. ``ANSI``: an error; ``LEGACY``: wrapped; ``TRY``: null."""
    ignore_nulls: bool = False
    """For ``FIRST`` and ``LAST``: the first, or last, value that is not null."""
    percentage: float | tuple[float, ...] | None = None
    """For ``PERCENTILE`` and ``PERCENTILE_DISC``: from 0 to 1; of several the result is a list."""
    descending: bool = False
    """Percentiles count from the greatest value on; of equally frequent values ``MODE`` gives the greatest."""
    delimiter: bytes | None = None
    """For ``LISTAGG``."""
    directions: tuple[tuple[bool, bool], ...] = ()
    """For ``LISTAGG``, of each argument but the first: whether it is descending, and whether nulls come first."""

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", self.function.value)
        for expression in (*self.arguments, *(() if self.filter is None else (self.filter,))):
            if any(node.type is None for node in expression.walk()):
                raise RelationError(f"{self}: {expression} is not resolved: every node needs a type")
        if self.filter is not None and not pat.is_boolean(logical(self.filter.type)):
            raise RelationError(f"{self}: the filter {self.filter} is {self.filter.type}, not boolean")
        self._check_arguments()
        if (self.function in PERCENTILES) != (self.percentage is not None):
            raise RelationError(f"{self}: percentage {self.percentage}; percentiles have one, other functions none")
        if (self.function is AggregateFunction.LISTAGG) != (self.delimiter is not None):
            raise RelationError(f"{self}: delimiter {self.delimiter!r}; listagg has one, other functions none")

    def _check_arguments(self) -> None:
        of_pairs = EXTREMES_BY | COMOMENTS | REGRESSIONS
        count, requirement = (2, "two arguments") if self.function in of_pairs else (1, "one argument")
        if self.function is AggregateFunction.LISTAGG:
            count, requirement = 1 + len(self.directions), "a text and what it is ordered by"
        if self.function is not AggregateFunction.COUNT and len(self.arguments) != count:
            raise RelationError(f"{self}: takes {requirement}, not {len(self.arguments)}")
        if self.mode is EvalMode.TRY and not (self.function is AggregateFunction.SUM and is_whole(self.dtype)):
            raise RelationError(f"{self}: only sums of integers have a buffer of their own in try_ mode")
        for argument in self.arguments if self.function in MOMENTS else ():
            if not pat.is_float64(logical(argument.type)):
                raise RelationError(f"{self} takes double, not {show_type(argument.type)}; cast it, as Spark does")
        if self.function in BITWISE and not is_whole(self.dtype):
            raise RelationError(f"{self} takes an integer, not {show_type(self.dtype)}")
        if self.percentage is not None and not (is_whole(self.dtype) or pat.is_float64(self.dtype)):
            raise RelationError(f"{self} takes an integer or a double, not {show_type(self.dtype)}")
        if self.delimiter is not None and not (is_text(self.dtype) or is_bytes(self.dtype)):
            raise RelationError(f"{self} takes text or bytes, not {show_type(self.dtype)}")
        numbers = (AggregateFunction.SUM, AggregateFunction.AVG)
        if self.function in numbers and not is_numeric(self.dtype):
            raise RelationError(f"{self} takes a number, not {show_type(self.dtype)}")

    @property
    def dtype(self) -> pa.DataType:
        """Type of the values of the first argument."""
        return self._type_of(0)

    @property
    def ordering_type(self) -> pa.DataType:
        """Type of the ordering of ``MIN_BY`` and ``MAX_BY``."""
        return self._type_of(1)

    def _type_of(self, argument: int) -> pa.DataType:
        dtype = self.arguments[argument].type
        assert dtype is not None
        return logical(dtype)

    @property
    def buffer(self) -> tuple[pa.Field, ...]:
        """Columns of the partial result, as Spark's own partial aggregation has them, in its order.

        =============================  =========================================================================
        ``sum`` of integers, floats    ``sum``: int64 or float64, null if there was no value
        ``try_sum`` of integers        ``sum``: int64, null if it overflowed; ``is_empty``
        ``sum`` of decimal(p, s)       ``sum``: decimal(min(38, p + 10), s), null if it overflowed; ``is_empty``
        ``count``                      ``count``: int64
        ``min``, ``max``               ``value``, null if there was none
        ``avg``                        ``sum``: decimal(min(38, p + 10), s) or float64, zero if there was no value,
                                       null if it overflowed; ``count``: int64
        ``stddev…``, ``var…``          ``n``, ``avg``, ``m2``: float64
        ``skewness``, ``kurtosis``     as these, and ``m3``; and ``m4``
        ``covar…``, ``corr``           ``n``, ``xAvg``, ``yAvg``, ``ck``: float64; ``corr`` also ``xMk``, ``yMk``
        ``regr_slope``, …              as ``covar_pop``, and ``xN``, ``avg``, ``m2`` as ``var_pop``
        ``first``, ``last``            ``value``; ``is_set``
        ``min_by``, ``max_by``         ``value``; ``ordering``, null if there was none
        ``bit_and``, …                 ``value``, null if there was none
        ``percentile``, …              ``value``: float64, or a list of them, the result
        ``collect_list``, …            ``value``: list, the result
        ``mode``, ``listagg``          ``value``, the result
        =============================  =========================================================================
        """
        match self.function:
            case AggregateFunction.SUM if pat.is_decimal(self.dtype) or self.mode is EvalMode.TRY:
                return self._field("sum", self._sum_type), self._field("is_empty", pa.bool_(), nullable=False)
            case AggregateFunction.SUM:
                return (self._field("sum", self._sum_type),)
            case AggregateFunction.COUNT:
                return (self._field("count", pa.int64(), nullable=False),)
            case AggregateFunction.MIN | AggregateFunction.MAX | AggregateFunction.MODE | AggregateFunction.LISTAGG:
                return (self._field("value", self.dtype),)
            case AggregateFunction.MIN_BY | AggregateFunction.MAX_BY:
                return self._field("value", self.dtype), self._field("ordering", self.ordering_type)
            case AggregateFunction.BIT_AND | AggregateFunction.BIT_OR | AggregateFunction.BIT_XOR:
                return (self._field("value", self.dtype),)
            case AggregateFunction.AVG:
                total = self._sum_type if pat.is_decimal(self.dtype) else pa.float64()
                return (
                    self._field("sum", total, nullable=pat.is_decimal(total)),
                    self._field("count", pa.int64(), nullable=False),
                )
            case AggregateFunction.PERCENTILE | AggregateFunction.PERCENTILE_DISC:
                several = isinstance(self.percentage, tuple)
                values = pa.list_(pa.field("element", pa.float64(), nullable=False))
                return (self._field("value", values if several else pa.float64()),)
            case AggregateFunction.COLLECT_LIST | AggregateFunction.COLLECT_SET:
                # Arrow has no field of nulls that says there are none, as there are in such a list.
                values = pa.list_(pa.field("element", self.dtype, nullable=pat.is_null(self.dtype)))
                return (self._field("value", values, nullable=False),)
            case AggregateFunction.FIRST | AggregateFunction.LAST:
                return self._field("value", self.dtype), self._field("is_set", pa.bool_(), nullable=False)
            case _:
                parts = _MOMENT_PARTS[self.function]
                return tuple(self._field(part, pa.float64(), nullable=False) for part in parts)

    @property
    def gives_list(self) -> bool:
        """Whether the result is a list, which no pipeline backend holds."""
        return any(pat.is_list(field.type) for field in self.buffer)

    @property
    def _sum_type(self) -> pa.DataType:
        if pat.is_decimal(self.dtype):
            return pa.decimal128(min(MAX_PRECISION, self.dtype.precision + _SUM_DIGITS), self.dtype.scale)
        assert is_whole(self.dtype) or is_float(self.dtype)
        return pa.int64() if is_whole(self.dtype) else pa.float64()

    def _field(self, part: str, dtype: pa.DataType, *, nullable: bool = True) -> pa.Field:
        return pa.field(f"{self.name}.{part}", dtype, nullable)

    def expressions(self) -> tuple[Expression, ...]:
        """Arguments, then the filter if there is one."""
        return (*self.arguments, self.filter) if self.filter is not None else self.arguments

    def mapped(self, function: Callable[[Expression], Expression]) -> AggregateCall:
        """The same call over other expressions."""
        return dataclasses.replace(
            self,
            arguments=tuple(map(function, self.arguments)),
            filter=None if self.filter is None else function(self.filter),
        )

    def text(self, columns: Columns | None = None) -> str:
        """The call in the words of SQL; columns are written by their names, or as ``columns`` says."""
        arguments = ", ".join(show_expression(argument, columns) for argument in self.arguments) or "*"
        condition = "" if self.filter is None else f" filter (where {show_expression(self.filter, columns)})"
        return f"{self.function.value}({arguments}){condition}"

    def __str__(self) -> str:
        return self.text()
