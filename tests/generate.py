"""Seeded tables full of the values that break joins."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.model.types import is_bytes, is_text
from gpujoin.testing import Cell, float_bits
from tests.cells import EXACT, sort_key

_LAST_DAY, _FIRST_DAY = 2_932_896, -719_162
"""9999-12-31 and 0001-01-01, the ends of what Spark promises for dates."""
_SPECIAL_TEXTS = (
    "", " ", "a", "A", "aa", "a ", " a", "\x00", "a\x00", "a\x00b", "ä", "a\u0308", "ß", "SS", "ﬁ", "İ", "日本語",
    "\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\ufeff", "\uffff", "\U0010ffff",
    "%", "_", "\\", "a%b_c\\",
    "NaN", "null", "0", "-0", "1e3", "\t\n\r", "exactly12byt", "thirteen byte", "x" * 300,
)  # fmt: skip
_INVALID_TEXTS = (
    b"\xff",
    b"\xc3(",
    b"a\x80",
    b"\xed\xa0\x80",
    b"\xf8\x88\x80\x80\x80",
    b"\xc0\x80",
    b"ok\xe2\x82",
)
"""No UTF-8: an unused byte, a broken pair, a stray continuation, a surrogate, five bytes, a long zero, a cut end."""
_NAN_BITS = (
    0x7FF8000000000000,
    0xFFF8000000000000,
    0x7FF8000000000001,
    0x7FF0000000000001,
    0xFFFFFFFFFFFFFFFF,
)


@dataclass(frozen=True, kw_only=True)
class Mix:
    """How often the unusual occurs."""

    nulls: float = 0.15
    """Share of nulls, at every depth."""
    special: float = 0.3
    """Share of special values: extremes, NaNs, empty, and so on."""
    spread: int = 50
    """Ordinary numbers lie in a range about so wide: small, so that values meet."""
    longest: int = 4
    """Most items in a list or map, and most characters in an ordinary text."""
    invalid_text: float = 0.0
    """Share of texts that are not valid UTF-8, which Spark takes as it takes any other."""


class KeyShape(Enum):
    """How key values repeat and meet the other side."""

    UNIQUE = "unique"
    """Each row its own value, shared with the other side's in part."""
    UNIFORM = "uniform"
    """A few values, equally often."""
    ZIPF = "zipf"
    """Few values often, many rarely."""
    HOT = "hot"
    """One value in nine rows of ten."""
    ALL_NULL = "all_null"
    """Nothing but nulls."""
    DISJOINT = "disjoint"
    """No value occurs on both sides."""


SPARK_TYPES: Mapping[str, pa.DataType] = {
    "null": pa.null(),
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "decimal_7_2": pa.decimal128(7, 2),
    "decimal_18_0": pa.decimal128(18, 0),
    "decimal_38_10": pa.decimal128(38, 10),
    "decimal_38_38": pa.decimal128(38, 38),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "time": pa.time64("ns"),
    "day_time_interval": pa.duration("us"),
    "calendar_interval": pa.month_day_nano_interval(),
    "string": pa.string(),
    "large_string": pa.large_string(),
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "dictionary": pa.dictionary(pa.int32(), pa.string()),
    "array": pa.list_(pa.int32()),
    "array_of_strings": pa.list_(pa.string()),
    "array_of_arrays": pa.list_(pa.list_(pa.float64())),
    "struct": pa.struct([("a", pa.int32()), ("b", pa.string())]),
    "empty_struct": pa.struct([]),
    "struct_of_struct": pa.struct([("s", pa.struct([("x", pa.float64())])), ("l", pa.list_(pa.date32()))]),
    "map": pa.map_(pa.string(), pa.int64()),
    "map_of_structs": pa.map_(pa.int32(), pa.struct([("v", pa.decimal128(10, 3))])),
    "variant": pa.struct(
        [pa.field("value", pa.binary(), nullable=False), pa.field("metadata", pa.binary(), nullable=False)]
    ),
}
"""Every kind of column that PySpark hands to a Python worker, by a short name."""

KEY_TYPES: Mapping[str, pa.DataType] = {
    name: SPARK_TYPES[name]
    for name in (
        "null", "bool", "int8", "int16", "int32", "int64", "float", "double", "decimal_7_2", "decimal_18_0",
        "decimal_38_10", "decimal_38_38", "date", "timestamp", "timestamp_ntz", "string", "large_string", "binary",
        "large_binary", "dictionary", "struct",
    )
} | {"struct_of_floats": pa.struct([("x", pa.float64()), ("y", pa.struct([("z", pa.int16())]))])}  # fmt: skip
"""The types of these that a join may have as a key."""


class Generator:
    """Random Arrow data, the same for the same seed.

    Parameters
    ----------
    seed : int
        Print it where a test fails.
    mix : Mix, optional
        How often the unusual occurs.
    """

    def __init__(self, seed: int, mix: Mix | None = None) -> None:
        self.seed = seed
        self.mix = mix or Mix()
        self.random = random.Random(seed)

    def array(self, dtype: pa.DataType, rows: int, *, nullable: bool = True) -> pa.Array[Any]:
        """Make a column: ordinary, special and null values mixed.

        Parameters
        ----------
        dtype : pyarrow.DataType
            Any type in :data:`SPARK_TYPES`, and nestings of these.
        rows : int
            Length.
        nullable : bool
            Whether nulls may occur at the top; inside, fields say so themselves.
        """
        return from_cells([self.cell(dtype, nullable=nullable) for _ in range(rows)], dtype)

    def table(self, schema: pa.Schema, rows: int) -> pa.Table:
        """Make a table; the fields' ``nullable`` is heeded."""
        columns = [self.array(f.type, rows, nullable=f.nullable) for f in schema]
        return pa.Table.from_arrays(columns, schema=schema)

    def keys(
        self,
        dtype: pa.DataType,
        rows: int,
        shape: KeyShape,
        *,
        nulls: float = 0.1,
        distinct: int | None = None,
    ) -> tuple[pa.Array[Any], pa.Array[Any]]:
        """Make two key columns of equal type and length, meeting as a shape says.

        Parameters
        ----------
        dtype : pyarrow.DataType
            Any type in :data:`KEY_TYPES`.
        rows : int
            Length of each.
        shape : KeyShape
            How values repeat.
        nulls : float
            Share of nulls, unless the shape says otherwise.
        distinct : int, optional
            How many distinct values to draw from, as far as the type has so many; by default about
            a third of the rows for ``UNIFORM``, and as many as rows otherwise.
        """
        if shape is KeyShape.ALL_NULL or pat.is_null(dtype):
            return pa.nulls(rows, dtype), pa.nulls(rows, dtype)
        wanted = {KeyShape.UNIFORM: rows // 3, KeyShape.UNIQUE: 2 * rows}.get(shape, rows)
        pool = self._distinct(dtype, max(distinct or wanted, 2))
        self.random.shuffle(pool)
        return self._column(pool, dtype, rows, shape, nulls, 0), self._column(pool, dtype, rows, shape, nulls, 1)

    def _column(
        self, pool: Sequence[Cell], dtype: pa.DataType, rows: int, shape: KeyShape, nulls: float, side: int
    ) -> pa.Array[Any]:
        half = max(len(pool) // 2, 1)
        match shape:
            case KeyShape.UNIQUE:
                start = side * (half // 2)
                values = [pool[(start + i) % len(pool)] if i < len(pool) else None for i in range(rows)]
                self.random.shuffle(values)
            case KeyShape.DISJOINT:
                part = pool[:half] if side == 0 else pool[half:]
                values = self.random.choices(part, k=rows) if part else [None] * rows
            case KeyShape.HOT:
                values = [pool[0] if self.random.random() < 0.9 else self.random.choice(pool) for _ in range(rows)]
            case KeyShape.ZIPF:
                values = self.random.choices(pool, [1 / (i + 1) for i in range(len(pool))], k=rows)
            case _:
                values = self.random.choices(pool, k=rows)
        return from_cells([None if self.random.random() < nulls else self._respelled(v) for v in values], dtype)

    def _distinct(self, dtype: pa.DataType, count: int) -> list[Cell]:
        """Values no two of which are equal as keys."""
        inner = Generator(
            self.random.getrandbits(48),
            Mix(nulls=0.1, special=0.2, spread=8 * count, longest=8, invalid_text=self.mix.invalid_text),
        )
        values: dict[Any, Cell] = {}
        for _ in range(count * 12):
            if len(values) >= count:
                break
            value = inner.cell(dtype, nullable=False)
            values.setdefault(repr(sort_key(value)), value)
        return list(values.values())

    def _respelled(self, value: Cell) -> Cell:
        """An equal key: another NaN, the other zero."""
        if isinstance(value, tuple):
            return tuple(self._respelled(item) for item in value)
        if isinstance(value, float) and math.isnan(value):
            return _nan(self.random)
        if isinstance(value, float) and value == 0:
            return self.random.choice((0.0, -0.0))
        return value

    def cell(self, dtype: pa.DataType, *, nullable: bool = True) -> Cell:
        """Make one value as a cell; see `gpujoin.testing`."""
        if pat.is_null(dtype) or (nullable and self.random.random() < self.mix.nulls):
            return None
        if pat.is_dictionary(dtype):
            return self.cell(dtype.value_type, nullable=False)
        special = self.random.random() < self.mix.special
        for test, make in _MAKERS:
            if test(dtype):
                return make(self, dtype, special)
        raise NotImplementedError(f"no generator for columns of type {dtype}")


def _nan(source: random.Random) -> float:
    bits: float = struct.unpack("<d", struct.pack("<Q", source.choice(_NAN_BITS)))[0]
    return bits


def _integer(g: Generator, dtype: pa.DataType, special: bool) -> int:
    bits = dtype.bit_width
    low = -(1 << (bits - 1)) if pat.is_signed_integer(dtype) else 0
    high = low + (1 << bits) - 1
    if special:
        return g.random.choice((low, low + 1, high, high - 1, 0, 1, max(low, -1)))
    return g.random.randint(max(low, -g.mix.spread), min(high, g.mix.spread))


def _float(g: Generator, dtype: pa.DataType, special: bool) -> float:
    if not special:
        return float(g.random.randint(-g.mix.spread, g.mix.spread)) / 4
    narrow = pat.is_float32(dtype)
    extremes = (1.17549435e-38, 3.4028234663852886e38) if narrow else (5e-324, 1.7976931348623157e308)
    nan = _nan(g.random)
    return float(g.random.choice((nan, nan, 0.0, -0.0, -0.0, math.inf, -math.inf, *extremes, -extremes[1])))


def _decimal(g: Generator, dtype: pa.DataType, special: bool) -> Decimal:
    top: int = 10**dtype.precision - 1
    if special:
        unscaled = g.random.choice((0, 1, -1, top, -top, top - 1, 10 ** (dtype.precision - 1)))
    else:
        unscaled = g.random.randint(-min(top, 10 * g.mix.spread), min(top, 10 * g.mix.spread))
    return Decimal(unscaled).scaleb(-dtype.scale, context=EXACT)


def _date(g: Generator, dtype: pa.DataType, special: bool) -> int:
    extremes = (0, -1, _LAST_DAY, _FIRST_DAY, 11_016, -141_428)  # 2000-02-29 and 1582-10-14
    days = g.random.choice(extremes) if special else g.random.randint(18_000, 18_000 + g.mix.spread)
    return days * 86_400_000 if pat.is_date64(dtype) else days


def _instant(g: Generator, dtype: pa.DataType, special: bool) -> int:
    if special:
        last = (_LAST_DAY + 1) * 86_400_000_000 - 1
        micros = g.random.choice((0, -1, 1, 999_999, last, _FIRST_DAY * 86_400_000_000, -12_219_292_800_000_001))
    else:
        micros = 18_000 * 86_400_000_000 + g.random.randint(0, g.mix.spread) * 1_800_000_000
    return micros // {"s": 1_000_000, "ms": 1_000, "us": 1}[dtype.unit]


def _time(g: Generator, _dtype: pa.DataType, special: bool) -> int:
    day = 86_400_000_000_000
    return g.random.choice((0, 1, day - 1)) if special else g.random.randrange(day)


def _duration(g: Generator, _dtype: pa.DataType, special: bool) -> int:
    if special:
        return g.random.choice((0, -1, (1 << 63) - 1, -(1 << 63)))
    return g.random.randint(-10_000, 10_000)


def _interval(g: Generator, _dtype: pa.DataType, special: bool) -> tuple[int, int, int]:
    if special:
        return g.random.choice(((0, 0, 0), (1, -30, 0), (2**31 - 1, -(2**31), 2**62)))
    return g.random.randint(-12, 12), g.random.randint(-31, 31), g.random.randint(-9, 9) * 1_000


def _text(g: Generator, _dtype: pa.DataType, special: bool) -> str:
    if g.mix.invalid_text and g.random.random() < g.mix.invalid_text:
        return g.random.choice(_INVALID_TEXTS).decode(errors="surrogateescape")
    if special:
        return g.random.choice(_SPECIAL_TEXTS)
    return "".join(g.random.choices("abcxyzÄ😀 ", k=g.random.randint(0, g.mix.longest)))


def _bytes(g: Generator, _dtype: pa.DataType, special: bool) -> bytes:
    if special:
        return g.random.choice((b"", b"\x00", b"\x00\x00", b"\xff", b"\xff\xfe", b"a", b"\x80" * 40))
    return g.random.randbytes(g.random.randint(0, g.mix.longest))


def _list(g: Generator, dtype: pa.DataType, special: bool) -> tuple[Cell, ...]:
    length = 0 if special else g.random.randint(0, g.mix.longest)
    return tuple(g.cell(dtype.value_type, nullable=dtype.value_field.nullable) for _ in range(length))


def _struct(g: Generator, dtype: pa.DataType, special: bool) -> tuple[Cell, ...]:
    if special and all(f.nullable for f in dtype):
        return (None,) * dtype.num_fields
    return tuple(g.cell(f.type, nullable=f.nullable) for f in dtype)


def _map(g: Generator, dtype: pa.DataType, special: bool) -> tuple[Cell, ...]:
    entries: dict[str, tuple[Cell, Cell]] = {}
    for _ in range(0 if special else g.random.randint(0, g.mix.longest)):
        key = g.cell(dtype.key_type, nullable=False)
        entries[repr(key)] = (key, g.cell(dtype.item_type))
    return tuple(entries.values())


_MAKERS: Sequence[tuple[Callable[[pa.DataType], bool], Callable[[Generator, pa.DataType, bool], Cell]]] = (
    (pat.is_boolean, lambda g, _t, _s: g.random.random() < 0.5),
    (pat.is_integer, _integer),
    (pat.is_floating, _float),
    (pat.is_decimal, _decimal),
    (pat.is_date, _date),
    (pat.is_timestamp, _instant),
    (pat.is_time, _time),
    (pat.is_duration, _duration),
    (pat.is_interval, _interval),
    (is_text, _text),
    (is_bytes, _bytes),
    (pat.is_struct, _struct),
    (pat.is_map, _map),
    (lambda t: pat.is_list(t) or pat.is_large_list(t), _list),
)


def from_cells(values: Sequence[Cell], dtype: pa.DataType) -> pa.Array[Any]:
    """Make an Arrow array of cells, bits of floats and nulls inside nested values kept.

    The inverse of :func:`gpujoin.testing.cells` for the types in :data:`SPARK_TYPES`.
    """
    if pat.is_dictionary(dtype):
        return from_cells(values, dtype.value_type).dictionary_encode().cast(dtype)
    absent = pa.array([v is None for v in values], pa.bool_())
    if pat.is_struct(dtype):
        rows = [(None,) * dtype.num_fields if v is None else v for v in values]
        if not dtype.num_fields:
            return pa.array([None if v is None else {} for v in values], dtype)
        children = [_child([row[i] for row in rows], f) for i, f in enumerate(dtype)]
        return pa.StructArray.from_arrays(children, fields=list(dtype), mask=absent)
    if pat.is_map(dtype):
        flat = [pair for v in values if v is not None for pair in v]
        offsets = _offsets(values, pa.int32())
        keys, items = (
            from_cells([k for k, _ in flat], dtype.key_type),
            from_cells([i for _, i in flat], dtype.item_type),
        )
        return pa.MapArray.from_arrays(offsets, keys, items, type=dtype)
    if pat.is_list(dtype) or pat.is_large_list(dtype):
        inner = from_cells([item for v in values if v is not None for item in v], dtype.value_type)
        if pat.is_large_list(dtype):
            return pa.LargeListArray.from_arrays(_offsets(values, pa.int64()), inner, type=dtype)
        return pa.ListArray.from_arrays(_offsets(values, pa.int32()), inner, type=dtype)
    if pat.is_date32(dtype):
        return pa.array(values, pa.int32()).view(dtype)
    if pat.is_date64(dtype) or pat.is_timestamp(dtype) or pat.is_time64(dtype) or pat.is_duration(dtype):
        return pa.array(values, pa.int64()).view(dtype)
    if pat.is_interval(dtype):
        return pa.array([None if v is None else pa.MonthDayNano(v) for v in values], dtype)
    if pat.is_float64(dtype):
        return pa.array([None if v is None else float_bits(v) for v in values], pa.int64()).view(dtype)
    if is_text(dtype):
        return _texts(values, dtype)
    return pa.array(values, dtype)


def _texts(values: Sequence[Cell], dtype: pa.DataType) -> pa.Array[Any]:
    """Make a text column, of bytes that are not valid UTF-8 too."""
    encoded = [None if v is None else v.encode(errors="surrogateescape") for v in values]
    if pat.is_string_view(dtype):
        return pa.array(encoded, pa.binary_view()).view(dtype)
    return pa.array(encoded, pa.large_binary() if pat.is_large_string(dtype) else pa.binary()).view(dtype)


def _child(values: Sequence[Cell], field: pa.Field) -> pa.Array[Any]:
    """A struct's child; where the struct is null, a value stands in for what may not be null."""
    if field.nullable or all(v is not None for v in values):
        return from_cells(values, field.type)
    stand_in = Generator(0).cell(field.type, nullable=False)
    return from_cells([stand_in if v is None else v for v in values], field.type)


def _offsets(values: Sequence[Cell], dtype: pa.DataType) -> pa.Array[Any]:
    """List offsets, null for a null list; Arrow takes a null list to be empty."""
    offsets: list[int | None] = []
    total = 0
    for value in values:
        offsets.append(None if value is None else total)
        total += len(value or ())
    return pa.array([*offsets, total], dtype)
