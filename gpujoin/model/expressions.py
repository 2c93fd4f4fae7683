"""Residual conditions as expression trees.

A user writes them with :func:`left`, :func:`right`, :func:`lit`, :func:`when` and Python's operators::

    (left("price") < right("limit")) & ~right("name").like("%test%")

Trees are built untyped. `gpujoin.plan.resolve` checks them against the two schemas, applies Spark's type coercion as
explicit :class:`Cast` nodes, and fills ``type`` on every node; backends see resolved trees only.

``==`` builds an expression, as in PySpark; use :meth:`Expression.same_as` to compare trees.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NoReturn

import pyarrow as pa

from gpujoin.errors import ConditionError
from gpujoin.model.jointype import Side
from gpujoin.model.trees import Structural, preorder


class EvalMode(Enum):
    """What happens where there is no result: overflow, division by zero, malformed cast."""

    LEGACY = "legacy"
    """Null, or a wrapped integer, as Spark with ``spark.sql.ansi.enabled=false``."""
    ANSI = "ansi"
    """An error, as Spark with ``spark.sql.ansi.enabled=true``."""
    TRY = "try"
    """Null in every case, as Spark's ``try_`` functions."""


class Function(Enum):
    """Functions that an expression may call. Values are the names that users see."""

    EQ = "="
    NE = "!="
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="
    EQ_NULL_SAFE = "<=>"
    AND = "and"
    OR = "or"
    NOT = "not"
    ADD = "+"
    SUBTRACT = "-"
    MULTIPLY = "*"
    DIVIDE = "/"
    INTEGRAL_DIVIDE = "div"
    REMAINDER = "%"
    PMOD = "pmod"
    NEGATE = "negate"
    ABS = "abs"
    FLOOR = "floor"
    CEIL = "ceil"
    ROUND = "round"
    """Rounds to a number of digits after the point, halves away from zero. Second argument: that number, a literal."""
    ROUND_EVEN = "bround"
    """As ``ROUND``, halves to the even neighbour."""
    ROUND_CEIL = "round_ceil"
    """As ``ROUND``, always upwards: ``ceil`` of two arguments."""
    ROUND_FLOOR = "round_floor"
    """As ``ROUND``, always downwards: ``floor`` of two arguments."""
    SQRT = "sqrt"
    """Square root of a float64; NaN for negative values."""
    EXP = "exp"
    EXPM1 = "expm1"
    LN = "ln"
    """Natural logarithm; null, as all logarithms, where it is no number or infinite."""
    LOG2 = "log2"
    LOG10 = "log10"
    LOG1P = "log1p"
    LOG = "log"
    """Logarithm to the base of the first operand."""
    POW = "pow"
    CBRT = "cbrt"
    HYPOT = "hypot"
    ACOS = "acos"
    ASIN = "asin"
    ATAN = "atan"
    ATAN2 = "atan2"
    SINH = "sinh"
    COSH = "cosh"
    TANH = "tanh"
    ATANH = "atanh"
    RINT = "rint"
    FACTORIAL = "factorial"
    SIGN = "sign"
    DEGREES = "degrees"
    RADIANS = "radians"
    WIDTH_BUCKET = "width_bucket"
    BIT_AND = "&"
    BIT_OR = "|"
    BIT_XOR = "^"
    BIT_NOT = "~"
    SHIFT_LEFT = "shiftleft"
    SHIFT_RIGHT = "shiftright"
    SHIFT_RIGHT_UNSIGNED = "shiftrightunsigned"
    BIT_COUNT = "bit_count"
    BIT_GET = "bit_get"
    BITMAP_BUCKET_NUMBER = "bitmap_bucket_number"
    """Number of the bitmap of 32,768 bits that has a number's bit; that of 1 to 32,768 is 1."""
    BITMAP_BIT_POSITION = "bitmap_bit_position"
    """Position of a number's bit in its bitmap."""
    IS_NULL = "is null"
    IS_NOT_NULL = "is not null"
    IS_NAN = "isnan"
    IN = "in"
    COALESCE = "coalesce"
    NANVL = "nanvl"
    """The first operand, or the second where the first is NaN."""
    GREATEST = "greatest"
    LEAST = "least"
    LIKE = "like"
    RLIKE = "rlike"
    STARTS_WITH = "startswith"
    ENDS_WITH = "endswith"
    CONTAINS = "contains"
    LOWER = "lower"
    UPPER = "upper"
    TRIM = "trim"
    """Without spaces at both ends, or without the characters of the second operand."""
    TRIM_LEFT = "ltrim"
    TRIM_RIGHT = "rtrim"
    LENGTH = "length"
    OCTET_LENGTH = "octet_length"
    BIT_LENGTH = "bit_length"
    REVERSE = "reverse"
    INSTR = "instr"
    SUBSTRING = "substring"
    CONCAT = "concat"
    CONCAT_WS = "concat_ws"
    """Texts joined with the first operand between them; nulls after the first are left out."""
    INITCAP = "initcap"
    LPAD = "lpad"
    RPAD = "rpad"
    REPEAT = "repeat"
    REPLACE = "replace"
    TRANSLATE = "translate"
    SUBSTRING_INDEX = "substring_index"
    SPLIT_PART = "split_part"
    LOCATE = "locate"
    """Position of the first operand in the second, from the position that the third gives."""
    ASCII = "ascii"
    CHR = "chr"
    REGEXP_EXTRACT = "regexp_extract"
    REGEXP_EXTRACT_ALL = "regexp_extract_all"
    """List of what a group has in each match."""
    REGEXP_REPLACE = "regexp_replace"
    REGEXP_INSTR = "regexp_instr"
    """Position of the first match; the third operand is not used."""
    OVERLAY = "overlay"
    """A text with another in place of what is at a position, of a length if it is not negative."""
    SPACE = "space"
    FIND_IN_SET = "find_in_set"
    """Number of the first operand among the parts of the second between commas."""
    SOUNDEX = "soundex"
    CONV = "conv"
    """Integer in another base. Operands: its digits, their base, and the base of the result, below 0 for a sign."""
    LEVENSHTEIN = "levenshtein"
    """Least number of edits that make one text of another; -1 if it is more than the third operand."""
    MASK = "mask"
    """Text with other characters in place of capitals, small letters, digits, and all else; null keeps them."""
    LUHN_CHECK = "luhn_check"
    QUOTE = "quote"
    FORMAT_NUMBER = "format_number"
    """An integer or a decimal as text, with commas, and as many digits after the point as the second operand says."""
    FORMAT_STRING = "format_string"
    """Text by a pattern of ``java.util.Formatter``, a literal, with the other operands in place of its ``%s``."""
    HEX = "hex"
    BIN = "bin"
    UNHEX = "unhex"
    BASE64 = "base64"
    UNBASE64 = "unbase64"
    ENCODE = "encode"
    """The bytes of a text. Second argument: the name of UTF-8."""
    DECODE = "decode"
    """The text that bytes are. Second argument: the name of UTF-8."""
    URL_ENCODE = "url_encode"
    URL_DECODE = "url_decode"
    PARSE_URL = "parse_url"
    """Part of a URL. Second argument: its name, a literal. Third, optional: the name of a value in the query."""
    MD5 = "md5"
    SHA1 = "sha1"
    SHA2 = "sha2"
    CRC32 = "crc32"
    HASH = "hash"
    """Spark's 32-bit Murmur3 hash of the operands, with seed 42."""
    XXHASH64 = "xxhash64"
    """Spark's xxHash64 of the operands, with seed 42."""
    YEAR = "year"
    QUARTER = "quarter"
    MONTH = "month"
    DAY = "day"
    DAY_OF_WEEK = "dayofweek"
    WEEKDAY = "weekday"
    DAY_OF_YEAR = "dayofyear"
    WEEK_OF_YEAR = "weekofyear"
    """Week of the year by ISO 8601."""
    DAY_NAME = "dayname"
    """``Mon`` to ``Sun``."""
    MONTH_NAME = "monthname"
    """``Jan`` to ``Dec``."""
    LAST_DAY = "last_day"
    NEXT_DAY = "next_day"
    """First later date that is a given day of the week. Second argument: its English name, a literal."""
    TRUNC = "trunc"
    """First day of the week, month, quarter or year. Second argument: which of them, a literal."""
    DATE_TRUNC = "date_trunc"
    """Timestamp cut to a unit of time. First argument: the unit, a literal."""
    HOUR = "hour"
    MINUTE = "minute"
    SECOND = "second"
    DATE_FORMAT = "date_format"
    """Timestamp as text. Second argument: the pattern, a literal."""
    FROM_UNIXTIME = "from_unixtime"
    """Seconds since 1970 as text in UTC. Second argument: the pattern, a literal."""
    DATE_ADD = "date_add"
    DATE_SUB = "date_sub"
    DATE_DIFF = "datediff"
    ADD_MONTHS = "add_months"
    MONTHS_BETWEEN = "months_between"
    """Months between two timestamps, as a float64. Third argument: whether it is rounded to 8 digits, a literal.
    Fourth, optional: the zone of the clock by which days and months are told."""
    MAKE_DATE = "make_date"
    UNIX_DATE = "unix_date"
    DATE_FROM_UNIX_DATE = "date_from_unix_date"
    UNIX_TIMESTAMP = "unix_timestamp"
    """Seconds since 1970, rounded towards zero."""
    UNIX_SECONDS = "unix_seconds"
    """Seconds since 1970, rounded downwards."""
    UNIX_MILLIS = "unix_millis"
    UNIX_MICROS = "unix_micros"
    TIMESTAMP_SECONDS = "timestamp_seconds"
    TIMESTAMP_MILLIS = "timestamp_millis"
    TIMESTAMP_MICROS = "timestamp_micros"
    TIMESTAMP_ADD = "timestamp_add"
    """A timestamp shifted by an interval of days to seconds, both in microseconds."""
    TIMESTAMP_ADD_MONTHS = "timestamp_add_months"
    """A timestamp some months later, at the same time of day, as ``ADD_MONTHS`` does for dates."""
    TIMESTAMP_DIFF = "timestampdiff"
    """Whole units between two timestamps, rounded towards zero. First argument: the unit, a literal."""
    MAKE_TIMESTAMP = "make_timestamp"
    """A timestamp in UTC from year, month, day, hour, minute, and seconds, a decimal of six digits after the point."""
    SECOND_WITH_FRACTION = "second_with_fraction"
    """Seconds of the minute as a decimal of six digits after the point."""
    PARSE_TIMESTAMP = "to_timestamp"
    """A timestamp in UTC from text. Second argument: the pattern, a literal."""
    CAST_TIMESTAMP = "cast_timestamp"
    """A timestamp from text, as a cast makes it where a zone, the second argument, is the session's."""
    FROM_UTC_TIMESTAMP = "from_utc_timestamp"
    """What a clock shows at an instant, as an instant at which a clock in UTC shows it. Second argument: the zone."""
    TO_UTC_TIMESTAMP = "to_utc_timestamp"
    """When a clock shows what one in UTC shows at an instant. Second argument: the zone. Third, optional: another
    instant, whose offset is kept where the clock shows it twice; else the first time is taken."""
    START_OF_DAY = "start_of_day"
    """When a day begins by the clock of a zone, the second argument. The day is given as its midnight in UTC. Third,
    optional: another instant, whose offset is kept where midnight comes twice."""
    UNSCALED_VALUE = "unscaled_value"
    """A decimal of at most 18 digits without its point, as int64."""
    GET_FIELD = "get_field"
    """Field of a struct. Arguments: the struct, and the field's name as a string literal."""
    GET_FIELDS = "get_fields"
    """List of one field of the structs in a list. Arguments: the list, and the field's name as a string literal."""
    GET_ITEM = "get_item"
    """Element of a list, by a number that counts from 0."""
    ELEMENT_AT = "element_at"
    """Element of a list, by a number that counts from 1, or from -1 downwards, from the end."""
    MAP_VALUE = "map_value"
    """Value of a map for a key."""
    SIZE = "size"
    """Elements of a list or a map; null for null."""
    ARRAY = "array"
    """List of the operands."""
    ARRAY_CONTAINS = "array_contains"
    ARRAY_POSITION = "array_position"
    """Number of the first element that is equal to a value, from 1 on; 0 if there is none."""
    SORT_ARRAY = "sort_array"
    """List in order. Second argument: whether nulls and the least element come first, a literal."""
    ARRAY_SORT = "array_sort"
    """List in ascending order, nulls last."""
    ARRAY_SORT_BY = "array_sort_by"
    """List in the order of a key of its elements. Arguments: the list, the key, the element's variable, whether the
    order is descending, and where elements without a key go: ``first``, ``last``, or null if it is not known."""
    ARRAY_MIN = "array_min"
    ARRAY_MAX = "array_max"
    ARRAY_DISTINCT = "array_distinct"
    """List of the first of equal elements."""
    ARRAY_JOIN = "array_join"
    """Texts of a list with a separator between them. Third argument: what is put in the place of nulls."""
    NAMED_STRUCT = "named_struct"
    """Struct of fields. Arguments: the name of each, a literal, and its value."""
    CONCAT_LISTS = "concat_lists"
    FLATTEN = "flatten"
    """List of the elements of the lists in a list; null where one of these is."""
    REVERSE_LIST = "reverse_list"
    SLICE = "slice"
    """Part of a list: from a number on, which counts from 1, or from -1 downwards, from the end; and how many."""
    ARRAY_REMOVE = "array_remove"
    """List without the elements that are equal to a value."""
    ARRAY_REPEAT = "array_repeat"
    """List of a value, so many times."""
    ARRAY_APPEND = "array_append"
    ARRAY_PREPEND = "array_prepend"
    ARRAY_UNION = "array_union"
    """Different elements of both lists, in order of appearance; nulls are one element."""
    ARRAY_INTERSECT = "array_intersect"
    ARRAY_EXCEPT = "array_except"
    ARRAYS_OVERLAP = "arrays_overlap"
    """Whether lists have an element in common; null if one that is null might be it."""
    ARRAYS_ZIP = "arrays_zip"
    """List of structs of the elements of lists with one number."""
    MAP_ENTRIES = "map_entries"
    """List of structs of a key and its value."""
    MAP_FROM_ARRAYS = "map_from_arrays"
    """Map of keys to values, two lists. Third argument: whether of several values of a key the last one counts, a
    literal; if not, a key that is there twice is an error."""
    MAP_FROM_ENTRIES = "map_from_entries"
    """Map of the structs in a list, each of a key and its value; null where one of them is. Second argument: as the
    third of ``MAP_FROM_ARRAYS``."""
    SEQUENCE = "sequence"
    """Numbers or dates from a first to a last one, by a step, which is 1 or -1 if it is not given; days of dates."""
    ORDER_BYTES = "order_bytes"
    """Bytes that are equal, and ordered, as nested values are: zeros are one value, and NaNs."""
    VALUE_BYTES = "value_bytes"
    """Bytes that stand for a nested value, and are made it again."""
    RANKED_BYTES = "ranked_bytes"
    """Those of ``ORDER_BYTES``, then those of ``VALUE_BYTES``: bytes that are ordered as nested values are, and of
    which these are made again."""
    OF_BYTES = "of_bytes"
    """The nested value that bytes of these functions stand for; the call has its type."""
    TRANSFORM = "transform"
    """List of what an expression gives for each element. Arguments: the list, the expression, and the variables of the
    element and, optionally, of its number, which counts from 0."""
    FILTER = "filter"
    """List of the elements for which a condition is true. Arguments: as of ``TRANSFORM``."""
    EXISTS = "exists"
    """Whether a condition is true for any element. Arguments: the list, the condition, the variable of the element."""
    FORALL = "forall"
    """Whether a condition is true for all elements. Arguments: as of ``EXISTS``."""
    ZIP_WITH = "zip_with"
    """List of what an expression gives for elements of two lists with one number. Arguments: the lists, the expression,
    and the variables of both elements."""
    MAP_ZIP_WITH = "map_zip_with"
    """Map of the keys of two maps to what an expression gives for the key and the values of both. Arguments: the maps,
    the expression, and the variables of key and values."""
    MAP_FILTER = "map_filter"
    """Map of the entries for which a condition is true. Arguments: the map, the condition, the variables of key and
    value."""
    TRANSFORM_VALUES = "transform_values"
    """Map of what an expression gives for each entry. Arguments: as of ``MAP_FILTER``."""
    AGGREGATE = "aggregate"
    """What an expression makes of a value and each element in turn. Arguments: the list, the first value, the
    expression, the variables of the value so far and of the element, and an expression of the last value, and its
    variable."""
    MAP_KEYS = "map_keys"
    MAP_VALUES = "map_values"
    SPLIT = "split"
    """List of the parts of a text between separators. Arguments: the text, the separator, a regular expression that is
    a constant, and the most parts, a literal; 0 or less: any number."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Expression(Structural):
    """A node of an expression tree."""

    type: pa.DataType | None = None
    """Result type; ``None`` until resolved."""
    written: str | None = dataclasses.field(default=None, compare=False)
    """How the query writes the value, where the tree is another way to it; for users to read."""

    @property
    def children(self) -> tuple[Expression, ...]:
        """Direct operands, in order."""
        return ()

    def with_children(self, children: Sequence[Expression]) -> Expression:
        """The same node over other operands."""
        del children
        return self

    def walk(self) -> Iterator[Expression]:
        """The node and all below it, parents first."""
        return preorder(self)

    def columns(self) -> tuple[ColumnRef, ...]:
        """Distinct column references in the tree, in order of appearance."""
        references: dict[tuple[Side, str, int], ColumnRef] = {}
        for node in self.walk():
            if isinstance(node, ColumnRef):
                references.setdefault((node.side, node.name, node.index), node)
        return tuple(references.values())

    def sides(self) -> frozenset[Side]:
        """The sides whose columns the tree reads."""
        return frozenset(column.side for column in self.columns())

    def same_as(self, other: Expression) -> bool:
        """Structural equality, types included."""
        return self.structure == other.structure

    def __str__(self) -> str:
        from gpujoin.model.sqltext import show

        return show(self)

    def __bool__(self) -> NoReturn:
        raise ConditionError(
            f"the expression {self} has no truth value; combine expressions with & | ~ instead of and, or, not"
        )

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> Expression:  # type: ignore[override]
        return call(Function.EQ, self, other)

    def __ne__(self, other: object) -> Expression:  # type: ignore[override]
        return call(Function.NE, self, other)

    def __lt__(self, other: object) -> Expression:
        return call(Function.LT, self, other)

    def __le__(self, other: object) -> Expression:
        return call(Function.LE, self, other)

    def __gt__(self, other: object) -> Expression:
        return call(Function.GT, self, other)

    def __ge__(self, other: object) -> Expression:
        return call(Function.GE, self, other)

    def __and__(self, other: object) -> Expression:
        return call(Function.AND, self, other)

    def __rand__(self, other: object) -> Expression:
        return call(Function.AND, other, self)

    def __or__(self, other: object) -> Expression:
        return call(Function.OR, self, other)

    def __ror__(self, other: object) -> Expression:
        return call(Function.OR, other, self)

    def __invert__(self) -> Expression:
        return call(Function.NOT, self)

    def __add__(self, other: object) -> Expression:
        return call(Function.ADD, self, other)

    def __radd__(self, other: object) -> Expression:
        return call(Function.ADD, other, self)

    def __sub__(self, other: object) -> Expression:
        return call(Function.SUBTRACT, self, other)

    def __rsub__(self, other: object) -> Expression:
        return call(Function.SUBTRACT, other, self)

    def __mul__(self, other: object) -> Expression:
        return call(Function.MULTIPLY, self, other)

    def __rmul__(self, other: object) -> Expression:
        return call(Function.MULTIPLY, other, self)

    def __truediv__(self, other: object) -> Expression:
        return call(Function.DIVIDE, self, other)

    def __rtruediv__(self, other: object) -> Expression:
        return call(Function.DIVIDE, other, self)

    def __mod__(self, other: object) -> Expression:
        return call(Function.REMAINDER, self, other)

    def __rmod__(self, other: object) -> Expression:
        return call(Function.REMAINDER, other, self)

    def __neg__(self) -> Expression:
        return call(Function.NEGATE, self)

    def __abs__(self) -> Expression:
        return call(Function.ABS, self)

    def equal_null_safe(self, other: object) -> Expression:
        """``<=>``: true where both are null."""
        return call(Function.EQ_NULL_SAFE, self, other)

    def is_null(self) -> Expression:
        """``IS NULL``."""
        return call(Function.IS_NULL, self)

    def is_not_null(self) -> Expression:
        """``IS NOT NULL``."""
        return call(Function.IS_NOT_NULL, self)

    def is_nan(self) -> Expression:
        """True for NaN, false for null."""
        return call(Function.IS_NAN, self)

    def is_in(self, values: Sequence[object]) -> Expression:
        """``IN (…)`` over literal values or expressions, with SQL's rules for nulls."""
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise ConditionError(f"is_in() takes a sequence of values, got {values!r}")
        return call(Function.IN, self, *values)

    def between(self, low: object, high: object) -> Expression:
        """``low <= self AND self <= high``."""
        return (self >= low) & (self <= high)

    def like(self, pattern: str, escape: str = "\\") -> Expression:
        """SQL ``LIKE`` with ``%``, ``_`` and an escape character."""
        return call(Function.LIKE, self, pattern, escape)

    def rlike(self, pattern: str) -> Expression:
        """True if the regular expression is found anywhere."""
        return call(Function.RLIKE, self, pattern)

    def startswith(self, other: object) -> Expression:
        """Whether the text begins with ``other``."""
        return call(Function.STARTS_WITH, self, other)

    def endswith(self, other: object) -> Expression:
        """Whether the text ends with ``other``."""
        return call(Function.ENDS_WITH, self, other)

    def contains(self, other: object) -> Expression:
        """Whether ``other`` occurs in the text."""
        return call(Function.CONTAINS, self, other)

    def field(self, name: str) -> Expression:
        """A field of a struct."""
        return call(Function.GET_FIELD, self, name)

    def cast(self, to: pa.DataType, mode: EvalMode = EvalMode.LEGACY) -> Expression:
        """Convert to another type by Spark's rules."""
        return Cast(child=self, to=to, mode=mode, explicit=True)


@dataclass(frozen=True, eq=False, kw_only=True)
class ColumnRef(Expression):
    """A column of one side."""

    side: Side
    """Side that the column is of."""
    name: str
    index: int = -1
    """Its position in that side's schema; −1 until resolved."""


class ColumnId:
    """The identity of a column of a tree that is rewritten, equal to itself alone; no position can take its place."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"ColumnId({self.name!r})"


@dataclass(frozen=True, eq=False, kw_only=True)
class Attribute(Expression):
    """A column by its identity. Relations take expressions without such, in which columns are bound to positions."""

    id: ColumnId
    name: str


@dataclass(frozen=True, eq=False, kw_only=True)
class Variable(Expression):
    """An element of a list, or its number, in an expression that is evaluated for each element."""

    name: str
    """What it is called; no other variable of a tree is called so."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Literal(Expression):
    """A constant. ``value`` is a Python value that Arrow can convert to ``type``; ``None`` is null."""

    value: Any

    @property
    def compared(self) -> tuple[object, ...]:
        """The value and its type: 0.0 and -0.0 are two values, NaN is NaN, and lists are values too."""
        return repr(self.value), self.type


@dataclass(frozen=True, eq=False, kw_only=True)
class Call(Expression):
    """A function applied to operands."""

    function: Function
    """The function."""
    arguments: tuple[Expression, ...]
    """Its operands."""
    mode: EvalMode = EvalMode.LEGACY
    """What happens to values without a result. In an untyped tree ``LEGACY`` stands for the mode given when the tree
    is resolved."""

    @property
    def children(self) -> tuple[Expression, ...]:
        """Direct operands, in order."""
        return self.arguments

    def with_children(self, children: Sequence[Expression]) -> Expression:
        """The same node over other operands."""
        return dataclasses.replace(self, arguments=tuple(children))


@dataclass(frozen=True, eq=False, kw_only=True)
class Cast(Expression):
    """Conversion to the type ``to`` by Spark's rules; ``mode`` as for :class:`Call`."""

    child: Expression
    to: pa.DataType
    mode: EvalMode = EvalMode.LEGACY
    explicit: bool = dataclasses.field(default=False, compare=False)
    """Whether the query asks for it; for users to read."""

    @property
    def children(self) -> tuple[Expression, ...]:
        """Direct operands, in order."""
        return (self.child,)

    def with_children(self, children: Sequence[Expression]) -> Expression:
        """The same node over other operands."""
        return dataclasses.replace(self, child=children[0])


@dataclass(frozen=True, eq=False, kw_only=True)
class Case(Expression):
    """``CASE WHEN … THEN … ELSE … END``: the value of the first branch whose condition is true."""

    conditions: tuple[Expression, ...]
    values: tuple[Expression, ...]
    otherwise: Expression

    @property
    def children(self) -> tuple[Expression, ...]:
        """Direct operands, in order."""
        return (*self.conditions, *self.values, self.otherwise)

    def with_children(self, children: Sequence[Expression]) -> Expression:
        """The same node over other operands."""
        n = len(self.conditions)
        return dataclasses.replace(
            self, conditions=tuple(children[:n]), values=tuple(children[n : 2 * n]), otherwise=children[2 * n]
        )

    def when(self, condition: Expression, value: object) -> Case:
        """Add a branch."""
        return dataclasses.replace(
            self, conditions=(*self.conditions, condition), values=(*self.values, as_expression(value))
        )

    def else_(self, value: object) -> Case:
        """Set the value where no branch applies (null by default)."""
        return dataclasses.replace(self, otherwise=as_expression(value))


def operation_name(node: Expression) -> str:
    """Name what a node does to its operands, whatever they are: ``conv``, ``cast to int32``."""
    if isinstance(node, Call):
        return node.function.value
    return f"cast to {node.to}" if isinstance(node, Cast) else type(node).__name__.lower()


def left(name: str) -> ColumnRef:
    """A column of the left side."""
    return ColumnRef(side=Side.LEFT, name=name)


def right(name: str) -> ColumnRef:
    """A column of the right side."""
    return ColumnRef(side=Side.RIGHT, name=name)


def lit(value: object, dtype: pa.DataType | None = None) -> Literal:
    """A constant; the Arrow type is inferred as Spark would unless given."""
    return Literal(value=value, type=dtype)


def when(condition: Expression, value: object) -> Case:
    """Start a ``CASE``; go on with ``.when(…)`` and ``.else_(…)``."""
    return Case(conditions=(condition,), values=(as_expression(value),), otherwise=Literal(value=None))


def coalesce(*values: object) -> Expression:
    """The first value that is not null."""
    return call(Function.COALESCE, *values)


def call(function: Function, *arguments: object, mode: EvalMode = EvalMode.LEGACY) -> Call:
    """Apply a function to expressions or plain values."""
    return Call(function=function, arguments=tuple(as_expression(a) for a in arguments), mode=mode)


def as_expression(value: object) -> Expression:
    """``value`` itself if it is an expression, else a literal."""
    return value if isinstance(value, Expression) else Literal(value=value)


def conjuncts(expression: Expression) -> tuple[Expression, ...]:
    """The operands of nested ``AND``s, in order."""
    if isinstance(expression, Call) and expression.function is Function.AND:
        return tuple(part for argument in expression.arguments for part in conjuncts(argument))
    return (expression,)
