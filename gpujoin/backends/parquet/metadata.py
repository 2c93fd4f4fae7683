"""Reads Parquet footers: the schema, the row groups, and the positions of their columns.

Structs and numbers of fields are those of Parquet's format,
https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift. A footer that contradicts itself or
the file is refused with a message. Only the columns that are used are checked.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, BinaryIO, NoReturn

import pyarrow as pa

from gpujoin.backends.parquet import thrift
from gpujoin.backends.parquet.pruning import Statistics
from gpujoin.backends.parquet.thrift import EMPTY_LIST, ListOf, Positions, Scalar, Spanned, Struct, ThriftError
from gpujoin.errors import ScanError

_MAGIC = b"PAR1"
_MAGIC_ENCRYPTED = b"PARE"
_TAIL = 8
"""Bytes at the end of a file: the length of the footer (4 bytes) and the magic number."""
_READ_AT_ONCE = 1 << 16
"""Bytes from the end of a file that are read first; most footers are shorter."""
MOST_FOOTER_BYTES = 64 << 20
"""Longest footer that is read. Longer ones take seconds, and a damaged length must not take all memory."""
_FIELD_ID = b"PARQUET:field_id"
"""Metadata in which Arrow types have ids of fields."""
_MOST_NESTED = 100
_MOST_CODEC = 7


class Physical(IntEnum):
    """Physical types: ``Type`` of the format."""

    BOOLEAN = 0
    INT32 = 1
    INT64 = 2
    INT96 = 3
    FLOAT = 4
    DOUBLE = 5
    BYTE_ARRAY = 6
    FIXED_LEN_BYTE_ARRAY = 7


_WIDTHS = {
    Physical.BOOLEAN: 1, Physical.INT32: 4, Physical.FLOAT: 4, Physical.INT64: 8, Physical.DOUBLE: 8,
    Physical.INT96: 12,
}  # fmt: skip


class _Repetition(IntEnum):
    REQUIRED = 0
    OPTIONAL = 1
    REPEATED = 2


class _Converted(IntEnum):
    """Older logical types: ``ConvertedType`` of the format."""

    UTF8 = 0
    MAP = 1
    MAP_KEY_VALUE = 2
    LIST = 3
    ENUM = 4
    DECIMAL = 5
    DATE = 6
    TIME_MILLIS = 7
    TIME_MICROS = 8
    TIMESTAMP_MILLIS = 9
    TIMESTAMP_MICROS = 10
    UINT_8 = 11
    UINT_16 = 12
    UINT_32 = 13
    UINT_64 = 14
    INT_8 = 15
    INT_16 = 16
    INT_32 = 17
    INT_64 = 18
    JSON = 19
    BSON = 20


class _Logical(IntEnum):
    """Newer logical types: the fields of the union ``LogicalType`` of the format."""

    STRING = 1
    MAP = 2
    LIST = 3
    ENUM = 4
    DECIMAL = 5
    DATE = 6
    TIME = 7
    TIMESTAMP = 8
    INTEGER = 10
    UNKNOWN = 11
    JSON = 12
    BSON = 13


_INTEGER, _BYTES, _BOOLEAN = Scalar.INTEGER, Scalar.BYTES, Scalar.BOOLEAN
_EMPTY = Struct({})
_UNIT = Struct({1: _EMPTY, 2: _EMPTY, 3: _EMPTY})
_UNITS = {1: "ms", 2: "us", 3: "ns"}
_MOMENT = Struct({1: _BOOLEAN, 2: _UNIT})
_LOGICAL = Struct({
    **dict.fromkeys(range(1, 19), _EMPTY), _Logical.DECIMAL: Struct({1: _INTEGER, 2: _INTEGER}),
    _Logical.TIME: _MOMENT, _Logical.TIMESTAMP: _MOMENT, _Logical.INTEGER: Struct({1: _INTEGER, 2: _BOOLEAN}),
})  # fmt: skip
_SCHEMA_ELEMENT = Struct({
    1: _INTEGER, 2: _INTEGER, 3: _INTEGER, 4: _BYTES, 5: _INTEGER, 6: _INTEGER, 7: _INTEGER, 8: _INTEGER, 9: _INTEGER,
    10: _LOGICAL,
})  # fmt: skip
_STATISTICS = Struct({1: _BYTES, 2: _BYTES, 3: _INTEGER, 5: _BYTES, 6: _BYTES})
_COLUMN_METADATA = Struct({
    1: _INTEGER, 2: ListOf(_INTEGER), 3: ListOf(_BYTES), 4: _INTEGER, 5: _INTEGER, 6: _INTEGER, 7: _INTEGER,
    9: _INTEGER, 11: _INTEGER, 12: _STATISTICS,
})  # fmt: skip
_COLUMN_CHUNK = Struct({1: _BYTES, 3: _COLUMN_METADATA, 8: Struct({1: _EMPTY, 2: _EMPTY}), 9: _BYTES})
_ROW_GROUP = Struct({1: Positions(), 2: _INTEGER, 3: _INTEGER, 4: Positions()})
_FILE_METADATA = Struct({
    2: Spanned(ListOf(_SCHEMA_ELEMENT)), 3: _INTEGER, 4: ListOf(_ROW_GROUP),
    5: Spanned(ListOf(Struct({1: _BYTES, 2: _BYTES}))), 6: _BYTES, 7: ListOf(Struct({1: _EMPTY, 2: _EMPTY})),
})  # fmt: skip
_ANNOTATIONS = Struct({1: _INTEGER, 6: Spanned(_INTEGER), 10: Spanned(_LOGICAL)})
_OF_INT32 = {6: bytes([0x22]), 10: bytes([0xAC, 0x13, 0x20, 0x11, 0x00, 0x00])}
"""Values of a schema element's fields by which it is INT32: the converted type, and ``INTEGER(32, signed)``."""


@dataclass(frozen=True)
class Leaf:
    """A leaf of the schema: a column with values of its own. Nested columns have several."""

    path: tuple[str, ...]
    """Names of the groups that it is in, and its own name."""
    physical: Physical
    length: int
    """Bytes of a value of fixed length."""
    flat: bool
    """Whether it is a column of the file, with one value or null in each row."""
    arrow: pa.DataType | None
    """Type that the values have in Spark; ``None`` if unknown or contradictory."""
    ordered: bool
    """Whether ``min_value`` and ``max_value`` of the statistics are in the order of the type."""

    @property
    def width(self) -> int | None:
        """Bytes of a value that stands alone, as in statistics; ``None``: they differ."""
        return self.length if self.physical is Physical.FIXED_LEN_BYTE_ARRAY else _WIDTHS.get(self.physical)

    @property
    def is_narrow(self) -> bool:
        """Whether it is of integers of 8 or 16 bits, which are stored in 32."""
        return self.arrow is not None and is_narrow(self.arrow)


@dataclass(frozen=True)
class FileColumn:
    """A column of the file, with several leaves if it is nested."""

    name: str
    first: int
    """Number of its first leaf."""
    leaves: int
    nested: pa.DataType | None = None
    """Type of a column of structs, lists or maps in the layout that the format has for them; ``None``: it is flat, or
    of another layout, or a part of it is of an unknown or contradictory type. Fields of structs have their ids
    (:func:`id_of`)."""
    field_id: int | None = None
    """Its id, if it has one."""


@dataclass(frozen=True)
class ColumnChunk:
    """The pages of a column in one row group."""

    start: int
    """First byte of the pages in the file."""
    compressed: int
    uncompressed: int
    """Bytes of the pages, compressed and uncompressed."""
    values: int
    statistics: Mapping[int, Any]
    """Fields of ``Statistics``, undecoded."""
    dictionary: int = 0
    """Bytes of its dictionary page with the page's header, compressed; 0: there is none, or none is told of."""
    encodings: tuple[int, ...] = ()
    """Numbers of the encodings of its pages, as the format has them."""


@dataclass(frozen=True)
class RowGroup:
    """A row group."""

    rows: int
    chunks: tuple[int, ...]
    """Offset in the footer of the description of each leaf's column chunk."""


@dataclass(frozen=True)
class ParquetFooter:
    """The footer of a file."""

    path: str
    """The file, for messages."""
    columns: tuple[FileColumn, ...]
    leaves: tuple[Leaf, ...]
    """All leaves, in the order of column chunks."""
    groups: tuple[RowGroup, ...]
    facts: Mapping[bytes, bytes]
    rows: int
    """Rows of all groups."""
    writer: bytes
    """The program that has written the file, as it says."""
    claims_order: bool
    """Whether a row group is said to be sorted."""
    has_ids: bool
    """Whether some of the columns, or of the fields within them, have ids."""
    _data: bytes = field(repr=False)
    _data_end: int = field(repr=False)
    _schema_span: tuple[int, int] = field(repr=False)
    _facts_span: tuple[int, int] = field(repr=False)
    statistics: dict[tuple[int, int], Statistics | None] = field(repr=False, compare=False, default_factory=dict)
    """Statistics that were decoded already, by row group and leaf (`footers.statistics_of`)."""
    _chunks: dict[tuple[int, int], ColumnChunk] = field(repr=False, compare=False, default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of the footer in the file."""
        return len(self._data)

    def without_claims(self) -> bytes:
        """Make a Parquet file of this footer alone, without the key-value metadata in which writers say more.

        Integers of 8 and 16 bits become INT32, as they are stored: decoders cut off the bits beyond, unseen.
        """
        begin, end = self._facts_span
        changes = [(begin, end, EMPTY_LIST)] if end > begin else []
        if any(leaf.is_narrow for leaf in self.leaves):
            changes += self._annotations_of_int32()
        footer = self._data
        for begin, end, replacement in sorted(changes, reverse=True):
            footer = footer[:begin] + replacement + footer[end:]
        return _MAGIC + footer + len(footer).to_bytes(4, "little") + _MAGIC

    def _annotations_of_int32(self) -> Iterator[tuple[int, int, bytes]]:
        """Spans of the annotations of narrow integers, with what they are for INT32."""
        begin, _ = self._schema_span
        leaves = iter(self.leaves)
        for position in thrift.read_list(self._data, begin, Positions())[1:]:
            element = thrift.read(self._data, position, _ANNOTATIONS)
            if 1 in element and next(leaves).is_narrow:
                yield from ((*element[number][1:], _OF_INT32[number]) for number in _OF_INT32 if number in element)

    def chunk(self, group: int, leaf: int) -> ColumnChunk:
        """Describe a column chunk.

        Raises ``ScanError`` if the chunk is encrypted or in another file, or if its description cannot be true.
        """
        chunk = self._chunks.get((group, leaf))
        if chunk is None:
            chunk = self._chunks[group, leaf] = self._chunk(group, leaf)
        return chunk

    def _chunk(self, group: int, leaf: int) -> ColumnChunk:
        about = self.leaves[leaf]
        name = ".".join(about.path)

        def refuse(why: str) -> NoReturn:
            raise ScanError(f"{self.path}: column {name!r} of row group {group} {why}")

        try:
            chunk = thrift.read(self._data, self.groups[group].chunks[leaf], _COLUMN_CHUNK)
        except ThriftError as problem:
            refuse(f"has a damaged description: {problem}")
        if 8 in chunk or 9 in chunk:
            refuse("is encrypted; encrypted columns are not read here")
        if 1 in chunk:
            refuse(f"is in another file, {chunk[1]!r}")
        description = chunk.get(3)
        if description is None or not {1, 3, 4, 5, 6, 7, 9} <= description.keys():
            refuse("has a damaged description: it lacks a field that all have")
        if description[1] != about.physical or description[3] != [part.encode() for part in about.path]:
            refuse("is described as another column")
        if not 0 <= description[4] <= _MOST_CODEC:
            refuse(f"has the unknown codec {description[4]}")
        if about.flat and description[5] != self.groups[group].rows:
            refuse(f"has {description[5]} values for {self.groups[group].rows} rows")
        first, dictionary = description[9], 0
        if 0 < description.get(11, 0) < first:
            first, dictionary = description[11], first - description[11]
        # Writers put any offset for a chunk without values.
        outside = description[5] and (first < len(_MAGIC) or first + description[7] > self._data_end)
        if description[7] < 0 or description[6] < 0 or outside:
            refuse(f"is said to be {description[7]} bytes from byte {first} on; data ends at byte {self._data_end}")
        return ColumnChunk(
            first, description[7], description[6], description[5], description.get(12, {}), dictionary,
            tuple(description.get(2, ())),
        )  # fmt: skip


def read_footer(path: str, file: BinaryIO, size: int) -> ParquetFooter:
    """Read the footer of a file of ``size`` bytes; the path is for messages.

    Raises ``ScanError`` if the file is no Parquet file, encrypted, truncated or corrupt.
    """
    if size < len(_MAGIC) + _TAIL:
        raise _damaged(path, f"it has {size} bytes")
    end = _last(file, size, min(size, _READ_AT_ONCE))
    magic = end[-len(_MAGIC) :]
    if magic == _MAGIC_ENCRYPTED:
        raise ScanError(f"{path}: its footer is encrypted; encrypted files are not read here")
    if magic != _MAGIC:
        raise _damaged(path, f"it ends with {magic!r}, not {_MAGIC!r}")
    length = int.from_bytes(end[-_TAIL : -len(_MAGIC)], "little")
    if length > size - _TAIL - len(_MAGIC):
        raise _damaged(path, f"a footer of {length} bytes is said to be in a file of {size}")
    if length > MOST_FOOTER_BYTES:
        raise ScanError(f"{path}: its footer has {length} bytes, more than {MOST_FOOTER_BYTES}")
    if length > len(end) - _TAIL:
        end = _last(file, size, length + _TAIL)
    try:
        return _footer(path, end[-_TAIL - length : -_TAIL], size - _TAIL - length)
    except ThriftError as problem:
        raise _damaged(path, f"its footer is corrupt: {problem}") from problem


def _last(file: BinaryIO, size: int, count: int) -> bytes:
    file.seek(size - count)
    data = file.read(count)
    if len(data) != count:
        raise OSError(f"{len(data)} bytes of {count} could be read")
    return data


def _damaged(path: str, why: str) -> ScanError:
    return ScanError(f"{path}: no readable Parquet file, truncated or corrupt: {why}")


def _footer(path: str, data: bytes, data_end: int) -> ParquetFooter:
    about = thrift.read(data, 0, _FILE_METADATA)
    if not {2, 3, 4} <= about.keys():
        raise ThriftError("it lacks the schema or the row groups")
    elements, *schema_span = about[2]
    columns, leaves = _schema(elements, about.get(7, ()))
    groups = []
    for number, group in enumerate(about[4]):
        chunks, rows = group.get(1, ()), group.get(3, -1)
        if len(chunks) != len(leaves) or rows < 0:
            raise ThriftError(f"row group {number} has {len(chunks)} columns of {len(leaves)}, and {rows} rows")
        groups.append(RowGroup(rows, tuple(chunks)))
    total = sum(group.rows for group in groups)
    if total != about[3]:
        raise ThriftError(f"its row groups have {total} rows, the file {about[3]}")
    entries, *span = about.get(5, ((), 0, 0))
    facts = {entry.get(1, b""): entry.get(2, b"") for entry in entries}
    claims_order = any(group.get(4) for group in about[4])
    has_ids = any(9 in element for element in elements[1:])
    return ParquetFooter(
        path, columns, leaves, tuple(groups), facts, total, about.get(6, b""), claims_order, has_ids, data, data_end,
        (schema_span[0], schema_span[1]), (span[0], span[1]),
    )  # fmt: skip


def is_narrow(dtype: pa.DataType) -> bool:
    """Whether a type is of integers that Parquet stores in more bits."""
    return bool(pa.types.is_integer(dtype) and dtype.bit_width < 32)


# -- schema ------------------------------------------------------------------------------------------------------


def _schema(
    elements: list[dict[int, Any]], orders: list[dict[int, Any]]
) -> tuple[tuple[FileColumn, ...], tuple[Leaf, ...]]:
    """Columns and leaves of the schema, a tree whose nodes are listed parents first, with their numbers of children.

    For example ``root(2), x, list(1), element`` has the columns ``x``, leaf 0, and ``list``, leaf 1.
    """
    if not elements or elements[0].get(5, 0) < 0:
        raise ThriftError("its schema is empty")
    columns: list[FileColumn] = []
    leaves: list[Leaf] = []
    open_groups: list[list[Any]] = [[(), elements[0].get(5, 0)]]
    for number, element in enumerate(elements[1:], 1):
        while open_groups and not open_groups[-1][1]:
            open_groups.pop()
        if not open_groups or len(open_groups) > _MOST_NESTED:
            raise ThriftError(f"its schema is no tree at element {number}")
        above, left = open_groups[-1]
        open_groups[-1][1] = left - 1
        if 4 not in element:
            raise ThriftError(f"element {number} of its schema has no name")
        path = (*above, _text(element[4]))
        if len(path) == 1:
            columns.append(FileColumn(path[0], len(leaves), 0, field_id=element.get(9)))
        if 1 not in element:
            children = element.get(5, 0)
            if children < 0:
                raise ThriftError(f"element {number} of its schema has {children} children")
            open_groups.append([path, children])
            continue
        if element.get(5, 0):
            raise ThriftError(f"element {number} of its schema has values and children")
        ordered = len(leaves) < len(orders) and 1 in orders[len(leaves)]
        leaves.append(_leaf(path, element, ordered=ordered))
        columns[-1] = dataclasses.replace(columns[-1], leaves=columns[-1].leaves + 1)
    if any(left for _, left in open_groups):
        raise ThriftError("its schema ends early")
    rest = iter(elements[1:])
    trees = [_tree(next(rest), rest) for _ in columns]
    nested = [_type_of(tree) if tree.is_group else None for tree in trees]
    return tuple(
        dataclasses.replace(column, nested=dtype) for column, dtype in zip(columns, nested, strict=True)
    ), tuple(leaves)


@dataclass(frozen=True)
class _Element:
    """An element of the schema with its children."""

    about: Mapping[int, Any]
    children: tuple[_Element, ...]

    @property
    def repeated(self) -> bool:
        return bool(self.about.get(3, 0) == _Repetition.REPEATED)

    @property
    def is_group(self) -> bool:
        return 1 not in self.about

    def is_annotated(self, converted: tuple[int, ...], logical: int) -> bool:
        """Whether it is marked as a list or a map."""
        return self.about.get(6) in converted or logical in self.about.get(10, ())


def _tree(element: dict[int, Any], rest: Iterator[dict[int, Any]]) -> _Element:
    count = element.get(5, 0) if 1 not in element else 0
    return _Element(element, tuple(_tree(next(rest), rest) for _ in range(count)))


def _type_of(element: _Element) -> pa.DataType | None:
    """Type of a value; ``None`` if it is not known, or is not laid out as the format has it.

    A list is ``group (LIST) { repeated group list { element } }``, a map ``group (MAP) { repeated group key_value { key
    value } }``.
    """
    if element.repeated:
        return None
    if not element.is_group:
        return _arrow_type(Physical(element.about[1]), dict(element.about))
    is_list = element.is_annotated((_Converted.LIST,), _Logical.LIST)
    is_map = element.is_annotated((_Converted.MAP, _Converted.MAP_KEY_VALUE), _Logical.MAP)
    if not is_list and not is_map:
        if 6 in element.about or 10 in element.about or not element.children:
            return None
        return _struct(element.children)
    middle = element.children[0] if len(element.children) == 1 else None
    if middle is None or not middle.repeated or not middle.is_group or len(middle.children) != (1 if is_list else 2):
        return None
    types = [_type_of(child) for child in middle.children]
    if None in types:
        return None
    if is_list:
        # Other readers take a group of these names for the element itself.
        old = _text(middle.about[4]) == "array" or _text(middle.about[4]).endswith("_tuple")
        return None if old else pa.list_(types[0])
    return pa.map_(*types)


def _struct(children: Sequence[_Element]) -> pa.DataType | None:
    fields = [(_text(child.about[4]), _type_of(child), child.about.get(9)) for child in children]
    if any(dtype is None for _, dtype, _ in fields) or len({name for name, _, _ in fields}) < len(fields):
        return None
    return pa.struct([
        pa.field(name, dtype, metadata=None if field_id is None else {_FIELD_ID: str(field_id)})
        for name, dtype, field_id in fields
    ])  # fmt: skip


def id_of(field: pa.Field) -> int | None:
    """Give the id of a field of a struct in a file, if it has one."""
    field_id = (field.metadata or {}).get(_FIELD_ID)
    return None if field_id is None else int(field_id)


def _leaf(path: tuple[str, ...], element: dict[int, Any], *, ordered: bool) -> Leaf:
    try:
        physical, repetition = Physical(element[1]), _Repetition(element.get(3, 0))
    except ValueError as problem:
        raise ThriftError(f"{'.'.join(path)}: {problem}") from None
    flat = len(path) == 1 and repetition is not _Repetition.REPEATED
    return Leaf(path, physical, element.get(2, 0), flat, _arrow_type(physical, element), ordered)


_INTEGER_TYPES = {
    (8, True): (pa.int8(), _Converted.INT_8), (16, True): (pa.int16(), _Converted.INT_16),
    (32, True): (pa.int32(), _Converted.INT_32), (64, True): (pa.int64(), _Converted.INT_64),
    (8, False): (pa.uint8(), _Converted.UINT_8), (16, False): (pa.uint16(), _Converted.UINT_16),
    (32, False): (pa.uint32(), _Converted.UINT_32), (64, False): (pa.uint64(), _Converted.UINT_64),
}  # fmt: skip
_BARE: dict[Physical, pa.DataType] = {
    Physical.BOOLEAN: pa.bool_(), Physical.INT32: pa.int32(), Physical.INT64: pa.int64(),
    Physical.INT96: pa.timestamp("us", "UTC"), Physical.FLOAT: pa.float32(), Physical.DOUBLE: pa.float64(),
    Physical.BYTE_ARRAY: pa.binary(),
}  # fmt: skip
_BYTES_ONLY = (pa.string(), pa.binary())
_DIGITS = {Physical.INT32: 9, Physical.INT64: 18, Physical.BYTE_ARRAY: 76}


def _arrow_type(physical: Physical, element: dict[int, Any]) -> pa.DataType | None:
    """Type that the values of a column have in Spark."""
    converted, logical = element.get(6), element.get(10)
    if converted is None and logical is None:
        return pa.binary(element[2]) if _fixed(physical, element) else _BARE.get(physical)
    if logical is None:
        meaning = _of_converted(converted, element)
    else:
        meaning, older = _of_logical(logical)
        if converted is not None and converted != older:
            return None  # Spark uses the older type, other readers the newer one
    if meaning is None or not _stored(physical, meaning, element):
        return None
    return meaning


def _fixed(physical: Physical, element: dict[int, Any]) -> bool:
    return physical is Physical.FIXED_LEN_BYTE_ARRAY and 0 < element.get(2, 0) < 1 << 31


def _of_converted(converted: int | None, element: dict[int, Any]) -> pa.DataType | None:
    match converted:
        case _Converted.UTF8 | _Converted.JSON:
            return pa.string()
        case _Converted.ENUM | _Converted.BSON:
            return pa.binary()
        case _Converted.DECIMAL:
            return _decimal(element.get(8), element.get(7, 0))
        case _Converted.DATE:
            return pa.date32()
        case _Converted.TIME_MILLIS:
            return pa.time32("ms")
        case _Converted.TIME_MICROS:
            return pa.time64("us")
        case _Converted.TIMESTAMP_MILLIS:
            return pa.timestamp("ms", "UTC")
        case _Converted.TIMESTAMP_MICROS:
            return pa.timestamp("us", "UTC")
    return next((dtype for dtype, older in _INTEGER_TYPES.values() if older == converted), None)


def _of_logical(logical: dict[int, Any]) -> tuple[pa.DataType | None, int | None]:
    """Arrow type of a logical type, and its older form."""
    if len(logical) != 1:
        return None, None
    [(kind, about)] = logical.items()
    match kind:
        case _Logical.STRING:
            return pa.string(), _Converted.UTF8
        case _Logical.UNKNOWN:
            return pa.null(), None
        case _Logical.JSON:
            return pa.string(), _Converted.JSON
        case _Logical.ENUM:
            return pa.binary(), _Converted.ENUM
        case _Logical.BSON:
            return pa.binary(), _Converted.BSON
        case _Logical.DECIMAL:
            return _decimal(about.get(2), about.get(1, 0)), _Converted.DECIMAL
        case _Logical.DATE:
            return pa.date32(), _Converted.DATE
        case _Logical.INTEGER:
            return _INTEGER_TYPES.get((about.get(1, 0), about.get(2, True)), (None, None))
        case _Logical.TIMESTAMP:
            unit, adjusted = _unit(about), about.get(1, False)
            older = {"ms": _Converted.TIMESTAMP_MILLIS, "us": _Converted.TIMESTAMP_MICROS}.get(unit or "")
            dtype = None if unit is None else pa.timestamp(unit, "UTC" if adjusted else None)
            return dtype, older
        case _Logical.TIME:
            unit = _unit(about)
            dtype = None if unit is None else pa.time32(unit) if unit == "ms" else pa.time64(unit)
            older = {"ms": _Converted.TIME_MILLIS, "us": _Converted.TIME_MICROS}.get(unit or "")
            return dtype, older
    return None, None


def _unit(about: dict[int, Any]) -> str | None:
    unit = about.get(2, {})
    return _UNITS[next(iter(unit))] if len(unit) == 1 else None


def _decimal(precision: int | None, scale: int) -> pa.DataType | None:
    if precision is None or not 1 <= precision <= 76 or not 0 <= scale <= precision:
        return None
    return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)


def _stored(physical: Physical, meaning: pa.DataType, element: dict[int, Any]) -> bool:
    """Whether a physical type can store values of a logical type; columns without values are of any."""
    if pa.types.is_null(meaning):
        return True
    if meaning in _BYTES_ONLY:
        return physical is Physical.BYTE_ARRAY
    if pa.types.is_decimal(meaning):
        if _fixed(physical, element):
            return bool(10**meaning.precision <= 1 << (8 * min(element[2], 64) - 1))
        return bool(meaning.precision <= _DIGITS.get(physical, 0))
    narrow = pa.types.is_integer(meaning) and meaning.bit_width <= 32
    if narrow or meaning in (pa.date32(), pa.time32("ms")):
        return physical is Physical.INT32
    return physical is Physical.INT64


def _text(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise ThriftError(f"the name {name!r} is no UTF-8") from None
