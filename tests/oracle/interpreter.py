"""Expressions evaluated one pair of rows at a time, by Spark's rules and nobody's code but its own.

Slow, and kept apart from the backends' evaluation on purpose: it is what they are checked against.
"""

from __future__ import annotations

import binascii
import datetime as dt
import functools
import hashlib
import math
import zlib
from collections.abc import Callable, Sequence
from decimal import Decimal

import pyarrow as pa

from gpujoin.errors import ConditionError, ExpressionEvaluationError, did_you_mean
from gpujoin.model.expressions import Call, Case, Cast, ColumnRef, EvalMode, Expression, Function, Literal, Variable
from gpujoin.model.jointype import Side
from gpujoin.model.types import plain
from gpujoin.testing import Cell, cells
from tests.cells import sort_key
from tests.oracle import arithmetic, hashes, lists, moments, texts
from tests.oracle.casting import caster
from tests.oracle.compiled import Compiled, Handler, Rows, like_first, of_operands, strict
from tests.oracle.ordering import aligner, common_type

_MOST_KNOWN = 64
_known: dict[tuple[int, int, int], tuple[Compiled, tuple[object, ...]]] = {}
"""Compiled trees by the identities of tree and schemas, which are kept with them, so that nothing else takes those."""


def compile_expression(expression: Expression, left: pa.Schema, right: pa.Schema) -> Compiled:
    """Prepare an expression over pairs of rows.

    Resolved trees are taken at their word: types and casts as they stand. In unresolved trees columns are found by
    name and operands meet in a common type.

    Parameters
    ----------
    expression : Expression
        Any tree, resolved or not.
    left, right : pyarrow.Schema
        Columns of the two rows.

    Raises
    ------
    ConditionError
        If a column is unknown or operands cannot be compared.
    NotImplementedError
        If a function is not covered for the types it is given.
    """
    # Trees are compared by identity: `==` of two makes a third.
    key = id(expression), id(left), id(right)
    if key not in _known:
        if len(_known) == _MOST_KNOWN:
            _known.clear()
        _known[key] = _Compiler(left, right).node(expression), (expression, left, right)
    return _known[key][0]


def infer_literal_type(value: object) -> pa.DataType:
    """Type of a plain Python value, as Spark infers it.

    Raises
    ------
    ConditionError
        If Spark would not take the value.
    """
    match value:
        case None:
            return pa.null()
        case bool():
            return pa.bool_()
        case int():
            return pa.int32() if -(1 << 31) <= value < 1 << 31 else pa.int64()
        case float():
            return pa.float64()
        case Decimal():
            _, digits, exponent = value.as_tuple()
            assert isinstance(exponent, int)
            scale = max(-exponent, 0)
            return pa.decimal128(max(len(digits) + max(exponent, 0), scale, 1), scale)
        case str():
            return pa.string()
        case bytes():
            return pa.binary()
        case dt.datetime():
            return pa.timestamp("us", "UTC" if value.tzinfo else None)
        case dt.date():
            return pa.date32()
        case _:
            raise ConditionError(f"{value!r} of type {type(value).__name__} cannot be a literal")


class _Compiler:
    def __init__(self, left: pa.Schema, right: pa.Schema) -> None:
        self.schemas = {Side.LEFT: left, Side.RIGHT: right}

    def node(self, expression: Expression) -> Compiled:
        match expression:
            case ColumnRef():
                return self.column(expression)
            case Variable(name=name, type=dtype):
                assert dtype is not None
                return Compiled(plain(dtype), lambda rows: lists.variable(rows, name))
            case Literal():
                return self.literal(expression)
            case Cast():
                child = self.node(expression.child)
                convert = caster(child.type, plain(expression.to), expression.mode)
                return Compiled(plain(expression.to), lambda rows: convert(child.run(rows)))
            case Case():
                return self.case(expression)
            case Call():
                arguments = [self.node(argument) for argument in expression.arguments]
                return FUNCTIONS[expression.function](expression, arguments)
            case _:
                raise NotImplementedError(f"the oracle does not know expressions of class {type(expression).__name__}")

    def column(self, reference: ColumnRef) -> Compiled:
        schema = self.schemas[reference.side]
        index = reference.index
        if index < 0:
            positions = schema.get_all_field_indices(reference.name)
            if len(positions) != 1:
                problem = "is ambiguous" if positions else "does not exist"
                raise ConditionError(f"column {reference} {problem}.{did_you_mean(reference.name, schema.names)}")
            index = positions[0]
        dtype = plain(schema.field(index).type)
        if reference.side is Side.LEFT:
            return Compiled(dtype, lambda rows: rows[0][index])
        return Compiled(dtype, lambda rows: rows[1][index])

    def literal(self, literal: Literal) -> Compiled:
        dtype = plain(literal.type) if literal.type is not None else infer_literal_type(literal.value)
        [value] = cells(pa.array([literal.value], dtype))
        return Compiled(dtype, lambda _rows: value)

    def case(self, case: Case) -> Compiled:
        conditions = [self.node(c) for c in case.conditions]
        values, dtype = _unified([self.node(v) for v in (*case.values, case.otherwise)], case.type)

        def run(rows: Rows) -> Cell:
            for condition, value in zip(conditions, values, strict=False):
                if condition.run(rows) is True:
                    return value(rows)
            return values[-1](rows)

        return Compiled(dtype, run)


def _unified(
    operands: Sequence[Compiled], dtype: pa.DataType | None = None
) -> tuple[list[Callable[[Rows], Cell]], pa.DataType]:
    """The operands in their common type, or in the type that is given."""
    common = pa.null() if dtype is None else plain(dtype)
    for operand in operands:
        common = common_type(common, operand.type)
    return [_chained(aligner(operand.type, common), operand.run) for operand in operands], common


def _chained(after: Callable[[Cell], Cell], run: Callable[[Rows], Cell]) -> Callable[[Rows], Cell]:
    return lambda rows: after(run(rows))


def _comparison(test: Callable[[object, object], bool]) -> Handler:
    def handler(_node: Call, operands: list[Compiled]) -> Compiled:
        (left_run, right_run), _ = _unified(operands)

        def run(rows: Rows) -> Cell:
            a, b = left_run(rows), right_run(rows)
            return None if a is None or b is None else test(sort_key(a), sort_key(b))

        return Compiled(pa.bool_(), run)

    return handler


def _equal_null_safe(_node: Call, operands: list[Compiled]) -> Compiled:
    (left_run, right_run), _ = _unified(operands)

    def run(rows: Rows) -> Cell:
        a, b = left_run(rows), right_run(rows)
        return a is b if a is None or b is None else sort_key(a) == sort_key(b)

    return Compiled(pa.bool_(), run)


def _junction(*, absorbing: bool) -> Handler:
    """AND, which false decides, or OR, which true decides; null if an operand is null and none decides."""

    def handler(_node: Call, operands: list[Compiled]) -> Compiled:
        def run(rows: Rows) -> Cell:
            unknown = False
            for operand in operands:
                value = operand.run(rows)
                if value is absorbing:
                    return absorbing
                unknown = unknown or value is None
            return None if unknown else not absorbing

        return Compiled(pa.bool_(), run)

    return handler


def _in(_node: Call, operands: list[Compiled]) -> Compiled:
    (wanted, *listed), _ = _unified(operands)

    def run(rows: Rows) -> Cell:
        value = wanted(rows)
        if value is None:
            return None if listed else False
        unknown = False
        for item in listed:
            other = item(rows)
            if other is None:
                unknown = True
            elif sort_key(other) == sort_key(value):
                return True
        return None if unknown else False

    return Compiled(pa.bool_(), run)


def _coalesce(node: Call, operands: list[Compiled]) -> Compiled:
    runs, dtype = _unified(operands, node.type)
    return Compiled(dtype, lambda rows: next((v for run in runs if (v := run(rows)) is not None), None))


def _extreme(pick: Callable[..., Cell]) -> Handler:
    def handler(node: Call, operands: list[Compiled]) -> Compiled:
        runs, dtype = _unified(operands, node.type)

        def run(rows: Rows) -> Cell:
            values = [v for run in runs if (v := run(rows)) is not None]
            return pick(values, key=sort_key) if values else None

        return Compiled(dtype, run)

    return handler


def _length(node: Call, operands: list[Compiled]) -> Compiled:
    return strict(pa.int32(), len)(node, operands)


def _unscaled_value(node: Call, operands: list[Compiled]) -> Compiled:
    scale = operands[0].type.scale
    return strict(pa.int64(), lambda value: int(value.scaleb(scale)))(node, operands)


def _get_field(node: Call, operands: list[Compiled]) -> Compiled:
    struct, name = operands[0], node.arguments[1]
    assert isinstance(name, Literal)
    index = struct.type.get_field_index(name.value)
    if index < 0:
        raise ConditionError(f"struct {struct.type} has no field {name.value!r}")

    def run(rows: Rows) -> Cell:
        value = struct.run(rows)
        return None if value is None else value[index]

    return Compiled(plain(struct.type.field(index).type), run)


def _arithmetic(node: Call, operands: list[Compiled]) -> Compiled:
    """Numbers; the rules are in `tests.oracle.arithmetic`."""
    types = [operand.type for operand in operands]
    dtype = node.type if node.type is not None else arithmetic.result_type(node.function, types)
    function = arithmetic.operation(node.function, types, dtype, node.mode)

    def run(rows: Rows) -> Cell:
        values = [operand.run(rows) for operand in operands]
        return None if any(v is None for v in values) else function(*values)

    return Compiled(dtype, run)


def _nanvl(node: Call, operands: list[Compiled]) -> Compiled:
    (first, second), dtype = _unified(operands, node.type)

    def run(rows: Rows) -> Cell:
        value = first(rows)
        return second(rows) if value is not None and value != value else value

    return Compiled(dtype, run)


def _concat_ws(_node: Call, operands: list[Compiled]) -> Compiled:
    def run(rows: Rows) -> Cell:
        separator, *parts = (operand.run(rows) for operand in operands)
        return None if separator is None else separator.join(p for p in parts if p is not None)

    return Compiled(pa.string(), run)


def _hash(dtype: pa.DataType) -> Handler:
    def handler(_node: Call, operands: list[Compiled]) -> Compiled:
        types = [operand.type for operand in operands]
        wide = dtype == pa.int64()
        return Compiled(dtype, lambda rows: hashes.chained([o.run(rows) for o in operands], types, wide=wide))

    return handler


def _integers(compute: Callable[..., int]) -> Handler:
    """A function of integers whose result is cut to the bits of its first operand."""

    def handler(node: Call, operands: list[Compiled]) -> Compiled:
        dtype = operands[0].type
        for operand in operands[1:]:
            dtype = common_type(dtype, operand.type) if not node.function.value.startswith("shift") else dtype
        half = 1 << (dtype.bit_width - 1)

        def run(*values: int) -> int:
            return (compute(*values, dtype.bit_width) + half) % (2 * half) - half

        return strict(dtype, run)(node, operands)

    return handler


def _bit_count(node: Call, operands: list[Compiled]) -> Compiled:
    return strict(pa.int32(), lambda value: (int(value) % (1 << 64)).bit_count())(node, operands)


def _sign(value: float) -> float:
    return value if value == 0 or value != value else math.copysign(1.0, value)


def _width_bucket(value: float, first: float, last: float, count: int) -> int | None:
    if count <= 0 or count == (1 << 63) - 1 or value != value or first == last:
        return None
    if not (math.isfinite(first) and math.isfinite(last)):
        return None
    if first > last:
        value, first, last = -value, -first, -last
    if value < first:
        return 0
    if value >= last:
        return count + 1
    share = count * (value - first) / (last - first)
    bucket = 0 if share != share else min(int(min(share, 2.0**63)), (1 << 63) - 1)
    return bucket + 1 if bucket < (1 << 63) - 1 else -(1 << 63)


def _hex(value: int | str | bytes) -> str:
    if isinstance(value, int):
        return f"{value % (1 << 64):X}"
    return (value.encode() if isinstance(value, str) else value).hex().upper()


def _digest(name: str) -> Handler:
    return strict(pa.string(), lambda value: hashlib.new(name, value).hexdigest())


def _sha2(value: bytes, bits: int) -> str | None:
    names = {0: "sha256", 224: "sha224", 256: "sha256", 384: "sha384", 512: "sha512"}
    return hashlib.new(names[bits], value).hexdigest() if bits in names else None


def _double(compute: Callable[..., float], *domain: Callable[[float], bool]) -> Handler:
    """A function of doubles, to a unit in the last place: it is C's, Spark's is fdlibm's. Null outside a domain."""

    def run(*values: float) -> float | None:
        if any(not test(value) for test in domain for value in values):
            return None
        try:
            return compute(*values)
        except ValueError:
            return math.nan
        except OverflowError:
            return math.inf

    return strict(pa.float64(), run)


def _positive(value: float) -> bool:
    return not value <= 0


def _bit_get(node: Call, operands: list[Compiled]) -> Compiled:
    bits = operands[0].type.bit_width

    def bit(value: int, position: int) -> int:
        if not 0 <= position < bits:
            raise ExpressionEvaluationError(f"there is no bit {position}")
        return value >> position & 1

    return strict(pa.int8(), bit)(node, operands)


def _mask(node: Call, operands: list[Compiled]) -> Compiled:
    text, *characters = operands

    def run(rows: Rows) -> Cell:
        value, given = text.run(rows), [c.run(rows) for c in characters]
        return None if value is None else texts.mask(value, *given)

    return Compiled(text.type, run)


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _decoded(value: bytes, _charset: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as problem:
        raise ExpressionEvaluationError(str(problem)) from None


FUNCTIONS: dict[Function, Handler] = {
    Function.EXP: _double(math.exp),
    Function.EXPM1: _double(math.expm1),
    Function.LN: _double(math.log, _positive),
    Function.LOG2: _double(lambda x: math.log(x) / math.log(2), _positive),
    Function.LOG10: _double(math.log10, _positive),
    Function.LOG1P: _double(math.log1p, lambda x: not x <= -1),
    Function.LOG: _double(lambda base, x: math.log(x) / math.log(base), _positive),
    Function.POW: _double(math.pow),
    Function.CBRT: _double(math.cbrt),
    Function.HYPOT: _double(math.hypot),
    Function.ACOS: _double(math.acos),
    Function.ASIN: _double(math.asin),
    Function.ATAN: _double(math.atan),
    Function.ATAN2: _double(lambda y, x: math.atan2(y + 0.0, x + 0.0)),
    Function.SINH: _double(math.sinh),
    Function.COSH: _double(math.cosh),
    Function.TANH: _double(math.tanh),
    Function.ATANH: _double(math.atanh),
    Function.RINT: strict(pa.float64(), lambda x: math.copysign(round(x), x) if math.isfinite(x) else x),
    Function.FACTORIAL: strict(pa.int64(), lambda n: math.factorial(n) if 0 <= n <= 20 else None),
    Function.BIT_GET: _bit_get,
    Function.REGEXP_INSTR: strict(pa.int32(), texts.regexp_instr),
    Function.OVERLAY: like_first(texts.overlay),
    Function.SPACE: strict(pa.string(), lambda length: " " * length),
    Function.FIND_IN_SET: strict(
        pa.int32(), lambda word, words: ([*words.split(","), word].index(word) + 1) % (words.count(",") + 2)
    ),
    Function.CONV: lambda node, operands: strict(
        pa.string(), functools.partial(texts.conv, ansi=node.mode is EvalMode.ANSI)
    )(node, operands),
    Function.REGEXP_EXTRACT_ALL: strict(pa.list_(pa.string()), texts.regexp_extract_all),
    Function.SOUNDEX: strict(pa.string(), texts.soundex),
    Function.LEVENSHTEIN: strict(pa.int32(), texts.levenshtein),
    Function.MASK: _mask,
    Function.LUHN_CHECK: strict(pa.bool_(), texts.luhn_check),
    Function.QUOTE: strict(pa.string(), lambda text: "'" + "\\'".join(text.split("'")) + "'"),
    Function.FORMAT_NUMBER: strict(pa.string(), texts.format_number),
    Function.UNHEX: strict(pa.binary(), texts.unhex),
    Function.BASE64: strict(
        pa.string(),
        lambda value: "\r\n".join(
            binascii.b2a_base64(_bytes(value)[at : at + 57]).decode().strip() for at in range(0, len(_bytes(value)), 57)
        ),
    ),
    Function.UNBASE64: strict(pa.binary(), binascii.a2b_base64),
    Function.ENCODE: strict(pa.binary(), lambda text, _charset: text.encode()),
    Function.DECODE: strict(pa.string(), _decoded),
    Function.URL_ENCODE: strict(pa.string(), texts.url_encode),
    Function.URL_DECODE: strict(pa.string(), texts.url_decode),
    Function.NANVL: _nanvl,
    Function.SIGN: strict(pa.float64(), _sign),
    Function.DEGREES: strict(pa.float64(), lambda value: value * (180 / math.pi)),
    Function.RADIANS: strict(pa.float64(), lambda value: value * (math.pi / 180)),
    Function.WIDTH_BUCKET: strict(pa.int64(), _width_bucket),
    Function.BIT_AND: _integers(lambda a, b, _: a & b),
    Function.BIT_OR: _integers(lambda a, b, _: a | b),
    Function.BIT_XOR: _integers(lambda a, b, _: a ^ b),
    Function.BIT_NOT: _integers(lambda a, _: -a - 1),
    Function.SHIFT_LEFT: _integers(lambda a, n, bits: a << n % bits),
    Function.SHIFT_RIGHT: _integers(lambda a, n, bits: a >> n % bits),
    Function.SHIFT_RIGHT_UNSIGNED: _integers(lambda a, n, bits: a % (1 << bits) >> n % bits),
    Function.BIT_COUNT: _bit_count,
    Function.CONCAT_WS: _concat_ws,
    Function.INITCAP: like_first(texts.initcap),
    Function.LPAD: like_first(lambda text, n, pad=" ": texts.pad(text, n, pad, left=True)),
    Function.RPAD: like_first(lambda text, n, pad=" ": texts.pad(text, n, pad, left=False)),
    Function.REPEAT: like_first(lambda text, times: text * times),
    Function.REPLACE: like_first(lambda text, search, by: by.join(text.split(search)) if search else text),
    Function.TRANSLATE: like_first(texts.translate),
    Function.SUBSTRING_INDEX: like_first(texts.substring_index),
    Function.SPLIT_PART: like_first(texts.split_part),
    Function.LOCATE: strict(pa.int32(), texts.locate),
    Function.ASCII: strict(pa.int32(), lambda text: ord(text[:1] or "\0")),
    Function.CHR: strict(pa.string(), lambda number: "" if number < 0 else chr(number % 256)),
    Function.REGEXP_EXTRACT: like_first(texts.regexp_extract),
    Function.REGEXP_REPLACE: like_first(texts.regexp_replace),
    Function.HEX: strict(pa.string(), _hex),
    Function.BIN: strict(pa.string(), lambda value: f"{value % (1 << 64):b}"),
    Function.MD5: _digest("md5"),
    Function.SHA1: _digest("sha1"),
    Function.SHA2: strict(pa.string(), _sha2),
    Function.CRC32: strict(pa.int64(), zlib.crc32),
    Function.HASH: _hash(pa.int32()),
    Function.XXHASH64: _hash(pa.int64()),
    Function.EQ: _comparison(lambda a, b: a == b),
    Function.NE: _comparison(lambda a, b: a != b),
    Function.LT: _comparison(lambda a, b: a < b),  # type: ignore[operator]
    Function.LE: _comparison(lambda a, b: a <= b),  # type: ignore[operator]
    Function.GT: _comparison(lambda a, b: a > b),  # type: ignore[operator]
    Function.GE: _comparison(lambda a, b: a >= b),  # type: ignore[operator]
    Function.EQ_NULL_SAFE: _equal_null_safe,
    Function.AND: _junction(absorbing=False),
    Function.OR: _junction(absorbing=True),
    Function.NOT: strict(pa.bool_(), lambda value: not value),
    Function.IS_NULL: of_operands(lambda value: value is None, pa.bool_()),
    Function.IS_NOT_NULL: of_operands(lambda value: value is not None, pa.bool_()),
    Function.IS_NAN: of_operands(lambda value: value is not None and value != value, pa.bool_()),
    Function.SQRT: strict(pa.float64(), lambda value: math.sqrt(value) if not value < 0 else math.nan),
    Function.IN: _in,
    Function.COALESCE: _coalesce,
    Function.GREATEST: _extreme(max),
    Function.LEAST: _extreme(min),
    Function.LIKE: strict(pa.bool_(), texts.like),
    Function.RLIKE: strict(pa.bool_(), texts.rlike),
    Function.STARTS_WITH: strict(pa.bool_(), lambda text, start: text.startswith(start)),
    Function.ENDS_WITH: strict(pa.bool_(), lambda text, end: text.endswith(end)),
    Function.CONTAINS: strict(pa.bool_(), lambda text, part: part in text),
    Function.LOWER: like_first(str.lower),
    Function.UPPER: like_first(str.upper),
    Function.TRIM: like_first(lambda text, chars=" ": text.strip(chars)),
    Function.TRIM_LEFT: like_first(lambda text, chars=" ": text.lstrip(chars)),
    Function.TRIM_RIGHT: like_first(lambda text, chars=" ": text.rstrip(chars)),
    Function.LENGTH: _length,
    Function.OCTET_LENGTH: strict(pa.int32(), lambda v: len(v.encode() if isinstance(v, str) else v)),
    Function.BIT_LENGTH: strict(pa.int32(), lambda v: 8 * len(v.encode() if isinstance(v, str) else v)),
    Function.REVERSE: like_first(lambda text: text[::-1]),
    Function.INSTR: strict(pa.int32(), lambda text, part: text.find(part) + 1),
    Function.SUBSTRING: like_first(texts.substring),
    Function.CONCAT: like_first(lambda first, *rest: type(first)().join((first, *rest))),
    Function.GET_FIELD: _get_field,
    Function.UNSCALED_VALUE: _unscaled_value,
    **lists.FUNCTIONS,
    **moments.FUNCTIONS,
} | dict.fromkeys(arithmetic.FUNCTIONS, _arithmetic)
