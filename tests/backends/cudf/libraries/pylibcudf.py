"""The functions of pylibcudf that the backend calls, computed by Arrow and NumPy."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pat
import pylibcudf as real

from gpujoin.testing import cells
from tests.backends.cudf.libraries import record
from tests.backends.cudf.libraries.columns import (
    Buffer,
    Column,
    DataType,
    Scalar,
    T,
    Table,
    arrow_of,
    column_of,
    gpumemoryview,
    raw,
    sliced,
    valid_of,
)

_POLICY = real.copying.OutOfBoundsPolicy
_OPERATOR = real.binaryop.BinaryOperator


def _gather(source: Table, index: Column, policy: Any, stream: Any = None) -> Table:
    record.call("copying.gather", stream)
    rows = raw(index.data(), "i4", index.size(), index.offset()).astype(np.int64)
    rows = np.where(rows < 0, rows + source.num_rows(), rows)
    outside = (rows < 0) | (rows >= source.num_rows())
    if policy == _POLICY.DONT_CHECK:
        assert not outside.any(), "an index beyond the table, which libcudf does not check"
    wanted = pa.array(np.where(outside, 0, rows), mask=outside)
    return Table([column_of(arrow_of(column).take(wanted)) for column in source.columns()], num_rows=len(rows))


def _slice(source: Table, bounds: Sequence[int], stream: Any = None) -> list[Table]:
    record.call("copying.slice", stream)
    pairs = zip(bounds[::2], bounds[1::2], strict=True)
    return [Table([sliced(column, a, b - a) for column in source.columns()]) for a, b in pairs]


def _concatenate(tables: Sequence[Table], stream: Any = None) -> Table:
    record.call("concatenate.concatenate", stream)
    columns = []
    for parts in zip(*(table.columns() for table in tables), strict=True):
        assert len({(part.type().id(), part.type().scale()) for part in parts}) == 1, "columns of several types"
        arrays = [arrow_of(part) for part in parts]
        wide = any(pat.is_large_string(array.type) for array in arrays)
        columns.append(column_of(pa.concat_arrays([a.cast(pa.large_string()) if wide else a for a in arrays])))
    return Table(columns)


def _is_valid(column: Column, stream: Any = None) -> Column:
    record.call("unary.is_valid", stream)
    return column_of(pa.array(valid_of(column)))


def _bools_to_mask(column: Column, stream: Any = None) -> tuple[Any, int]:
    record.call("transform.bools_to_mask", stream)
    values = raw(column.data(), "u1", column.size(), column.offset()).astype(bool)
    return Buffer(np.packbits(np.pad(values, (0, -len(values) % 512)), bitorder="little")), int((~values).sum())


def _rows(table: Table) -> list[tuple[Any, ...]]:
    columns = [cells(arrow_of(column)) for column in table.columns()]
    return list(zip(*columns, strict=True)) if columns else [()] * table.num_rows()


def _encode(table: Table, stream: Any = None) -> tuple[Table, Column]:
    record.call("transform.encode", stream)
    rows = _rows(table)
    numbers: dict[Any, int] = {}
    codes = np.array([numbers.setdefault(row, len(numbers)) for row in rows], np.int32)
    first = pa.array(np.unique(codes, return_index=True)[1])
    return Table([column_of(arrow_of(column).take(first)) for column in table.columns()]), column_of(pa.array(codes))


def _sorted_order(table: Table, orders: Sequence[Any], nulls: Sequence[Any], stream: Any = None) -> Column:
    record.call("sorting.stable_sorted_order", stream)
    index = list(range(table.num_rows()))
    columns = list(zip(table.columns(), orders, nulls, strict=True))
    for column, order, null_order in reversed(columns):
        array = arrow_of(column)
        assert not pat.is_floating(array.type)
        if pat.is_string(array.type) or pat.is_large_string(array.type):
            array = array.cast(pa.large_string()).view(pa.large_binary())
        values = array.to_pylist()
        down = order == real.types.Order.DESCENDING
        first = (null_order == real.types.NullOrder.BEFORE) != down
        present = sorted((i for i in index if values[i] is not None), key=values.__getitem__, reverse=down)
        absent = [i for i in index if values[i] is None]
        index = [*absent, *present] if first else [*present, *absent]
    return column_of(pa.array(index, pa.int32()))


def _hash(table: Table, seed: int, stream: Any = None) -> Column:
    record.call("hashing.xxhash_64", stream)
    digests = [hashlib.blake2b(repr((seed, row)).encode(), digest_size=8).digest() for row in _rows(table)]
    return column_of(pa.array([int.from_bytes(digest, "little") for digest in digests], pa.uint64()))


_COMPARE = {
    _OPERATOR.EQUAL: pc.equal, _OPERATOR.NOT_EQUAL: pc.not_equal, _OPERATOR.LESS: pc.less,
    _OPERATOR.LESS_EQUAL: pc.less_equal, _OPERATOR.GREATER: pc.greater, _OPERATOR.GREATER_EQUAL: pc.greater_equal,
}  # fmt: skip


def _text(value: Column | Scalar) -> Any:
    if isinstance(value, Scalar):
        return pa.scalar(value.value.as_py(), pa.large_string()).cast(pa.large_binary())
    return arrow_of(value).cast(pa.large_string()).view(pa.large_binary())


def _binary(left: Column, right: Any, operator: Any, dtype: Any, stream: Any = None) -> Column:
    record.call("binaryop.binary_operation", stream)
    assert dtype.id() == T.BOOL8
    assert left.type().id() == T.STRING
    return column_of(_COMPARE[operator](_text(left), _text(right)))


def _searched(name: str, test: Any) -> Any:
    def search(column: Column, other: Any, stream: Any = None) -> Column:
        record.call(name, stream)
        texts = arrow_of(column).to_pylist()
        others = [other.value.as_py()] * len(texts) if isinstance(other, Scalar) else arrow_of(other).to_pylist()
        pairs = zip(texts, others, strict=True)
        return column_of(pa.array([None if a is None or b is None else test(a, b) for a, b in pairs], pa.bool_()))

    return search


def _like(column: Column, pattern: str, escape: str, stream: Any = None) -> Column:
    from tests.backends.cudf.libraries.texts import like

    record.call("strings.contains.like", stream)
    texts = arrow_of(column).to_pylist()
    return column_of(pa.array([None if t is None else like(t, pattern, escape) for t in texts], pa.bool_()))


def _count_characters(column: Column, stream: Any = None) -> Column:
    record.call("strings.attributes.count_characters", stream)
    return column_of(pc.utf8_length(arrow_of(column).cast(pa.string())))


def _count_bytes(column: Column, stream: Any = None) -> Column:
    record.call("strings.attributes.count_bytes", stream)
    return column_of(pc.binary_length(arrow_of(column)).cast(pa.int32()))


def _concatenate_texts(table: Table, separator: Scalar, narep: Scalar | None = None, stream: Any = None) -> Column:
    record.call("strings.combine.concatenate", stream)
    instead = "" if narep is None else narep.value.as_py()
    rows = zip(*(arrow_of(column).to_pylist() for column in table.columns()), strict=True)
    filled = ([instead if text is None else text for text in row] for row in rows)
    joined = [None if None in row else separator.value.as_py().join(row) for row in filled]
    return column_of(pa.array(joined, pa.string()))


def _slice_strings(column: Column, start: Scalar, stop: Scalar, stream: Any = None) -> Column:
    record.call("strings.slice.slice_strings", stream)
    assert start.value.type == stop.value.type == pa.int32(), "numbers of another width are misread"
    low, high = start.value.as_py(), stop.value.as_py()
    return column_of(pa.array([None if t is None else t[low:high] for t in arrow_of(column).to_pylist()], pa.string()))


def _strip(column: Column, side: Any, characters: Scalar, stream: Any = None) -> Column:
    record.call("strings.strip.strip", stream)
    sides = real.strings.SideType
    strip = {sides.BOTH: str.strip, sides.LEFT: str.lstrip, sides.RIGHT: str.rstrip}[side]
    stripped = [None if t is None else strip(t, characters.value.as_py()) for t in arrow_of(column).to_pylist()]
    return column_of(pa.array(stripped, pa.string()))


def _cased(name: str, change: Any) -> Any:
    def cased(column: Column, stream: Any = None) -> Column:
        """Only ASCII is mapped here: for other characters libcudf has a table of its own."""
        record.call(name, stream)
        texts = arrow_of(column).to_pylist()
        assert all(text is None or text.isascii() for text in texts)
        return column_of(pa.array([None if text is None else change(text) for text in texts], pa.string()))

    return cased


def _copy_if_else(lhs: Column | Scalar, rhs: Column | Scalar, mask: Column, stream: Any = None) -> Column:
    record.call("copying.copy_if_else", stream)
    assert mask.type().id() == T.BOOL8
    chosen = arrow_of(mask).fill_null(False)
    values = []
    for side in (lhs, rhs):
        values.append(side.value if isinstance(side, Scalar) else arrow_of(side))
        assert isinstance(side, Scalar) or side.size() == mask.size(), "columns of other lengths are refused"
    assert len({value.type for value in values}) == 1, "values of two types are refused"
    return column_of(pc.if_else(chosen, *values))


class GroupBy:
    """See pylibcudf."""

    def __init__(self, keys: Table, nulls: Any) -> None:
        assert nulls == real.types.NullPolicy.INCLUDE
        self.keys = keys

    def aggregate(self, requests: Sequence[Any], stream: Any = None) -> tuple[Table, list[Table]]:
        """Aggregate each group."""
        record.call("groupby.aggregate", stream)
        distinct, codes = _encode(self.keys, stream)
        groups = raw(codes.data(), "i4", codes.size())
        count = distinct.num_rows()
        return distinct, [Table([_reduced(groups, count, r.values, r.kind)]) for r in requests]


def _reduced(groups: Any, count: int, column: Column, kind: Any) -> Column:
    array, name = arrow_of(column), kind.name.lower()
    valid = valid_of(column)
    if name.startswith("count"):
        return column_of(pa.array(np.bincount(groups[valid], minlength=count), pa.int32()))
    values = array.fill_null(0).to_numpy(zero_copy_only=False)
    there = np.bincount(groups[valid], minlength=count) > 0
    dtype = values.dtype
    start = {"sum": 0, "min": _limit(dtype, 1), "max": _limit(dtype, -1)}[name]
    result = np.full(count, start, dtype)
    function = {"sum": np.add, "min": np.fmin, "max": np.fmax}[name]
    with np.errstate(all="ignore"):
        function.at(result, groups[valid], values[valid])
    return column_of(pa.array(result, mask=~there))


def _limit(dtype: Any, sign: int) -> Any:
    if dtype.kind == "f":
        return sign * np.inf
    return np.iinfo(dtype).max if sign > 0 else np.iinfo(dtype).min


def _hash_partition(table: Table, by: Sequence[int], parts: int, stream: Any = None) -> tuple[Table, list[int]]:
    record.call("partitioning.hash_partition", stream)
    keys = _rows(Table([table.columns()[i] for i in by]))
    numbers = np.array([hash(key) % parts for key in keys], np.int64)
    order = pa.array(np.argsort(numbers, kind="stable"))
    whole = Table([column_of(arrow_of(column).take(order)) for column in table.columns()])
    return whole, [int((numbers < part).sum()) for part in range(parts)]


class _Options:
    def __init__(self, source: Any) -> None:
        self.source: Any = source
        self.filter: Any = lambda: True

    def use_pandas_metadata(self, _: bool) -> _Options:
        return self

    use_arrow_schema = use_pandas_metadata

    def build(self) -> _Options:
        return self

    def set_column_names(self, names: list[str]) -> None:
        self.names = names

    def set_row_groups(self, groups: list[list[int]]) -> None:
        self.groups = groups

    def set_filter(self, expression: Any) -> None:
        self.filter = weakref.ref(expression)  # as the library, which keeps no reference


class _Literal(real.expressions.Expression):
    def __init__(self, value: Scalar) -> None:
        self.value = value


class _Operation(real.expressions.Expression):
    def __init__(self, *parts: Any) -> None:
        self.parts = parts


def _read_parquet(options: _Options, stream: Any = None) -> Any:
    record.call("io.parquet.read_parquet", stream)
    assert options.filter() is not None, "the filter is gone before the file is read"
    try:
        with pq.ParquetFile(options.source.path) as file:
            table = file.read_row_groups(options.groups[0], columns=options.names, use_threads=False)
    except (OSError, pa.ArrowException) as problem:
        raise RuntimeError(f"CUDF failure: {problem}") from problem
    columns = [column_of(_decoded(table.column(name))) for name in options.names]
    return SimpleNamespace(
        tbl=Table(columns, num_rows=table.num_rows), columns=columns,
        column_names=lambda include_children=False: list(options.names),
    )  # fmt: skip


def _decoded(column: pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if pat.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pat.is_string_view(array.type) or pat.is_binary_view(array.type):
        array = array.cast(pa.string() if pat.is_string_view(array.type) else pa.binary())
    if pat.is_binary(array.type):
        return pa.Array.from_buffers(pa.string(), len(array), array.buffers(), offset=array.offset)
    if pat.is_timestamp(array.type) and array.type.tz:
        return array.cast(pa.timestamp(array.type.unit))
    if pat.is_decimal(array.type) and array.type.precision <= 18:
        return array.cast(pa.decimal64(18, array.type.scale))
    return array


def _joined(name: str) -> Any:
    """A join by equal rows of two tables, for benchmarks; nulls match nothing."""

    def join(left: Table, right: Table, nulls_equal: Any, stream: Any = None) -> Any:
        record.call(f"join.{name}", stream)
        left_rows, right_rows = (
            [*zip(*(arrow_of(c).to_pylist() for c in t.columns()), strict=True)] for t in (left, right)
        )
        places: dict[Any, list[int]] = {}
        for place, row in enumerate(right_rows):
            if None not in row:
                places.setdefault(row, []).append(place)
        if name == "inner_join":
            pairs = [(place, other) for place, row in enumerate(left_rows) for other in places.get(row, ())]
            return tuple(column_of(pa.array([pair[side] for pair in pairs], pa.int32())) for side in range(2))
        wanted = name == "left_semi_join"
        return column_of(pa.array([n for n, row in enumerate(left_rows) if (row in places) == wanted], pa.int32()))

    return join


def module() -> ModuleType:
    """The module: enumerations and types of the library itself, functions and columns of the stand-in."""
    made = ModuleType("pylibcudf")
    space = SimpleNamespace
    members: dict[str, Any] = dict(  # noqa: C408 - keywords read better
        types=real.types, traits=real.traits,
        DataType=DataType, Column=Column, Table=Table, Scalar=Scalar, gpumemoryview=gpumemoryview,
        aggregation=real.aggregation, unary=space(is_valid=_is_valid), hashing=space(xxhash_64=_hash),
        copying=space(gather=_gather, slice=_slice, copy_if_else=_copy_if_else, OutOfBoundsPolicy=_POLICY),
        concatenate=space(concatenate=_concatenate), sorting=space(stable_sorted_order=_sorted_order),
        transform=space(bools_to_mask=_bools_to_mask, encode=_encode),
        binaryop=space(binary_operation=_binary, BinaryOperator=_OPERATOR),
        strings=space(
            find=space(
                starts_with=_searched("strings.find.starts_with", str.startswith),
                ends_with=_searched("strings.find.ends_with", str.endswith),
                contains=_searched("strings.find.contains", lambda a, b: b in a),
            ),
            contains=space(like=_like),
            attributes=space(count_characters=_count_characters, count_bytes=_count_bytes),
            combine=space(concatenate=_concatenate_texts),
            case=space(
                to_lower=_cased("strings.case.to_lower", str.lower), to_upper=_cased("strings.case.to_upper", str.upper)
            ),
            slice=space(slice_strings=_slice_strings), strip=space(strip=_strip), SideType=real.strings.SideType,
        ),
        groupby=space(
            GroupBy=GroupBy,
            GroupByRequest=lambda values, kinds: space(values=values, kind=kinds[0].kind()),
        ),
        join=space(**{name: _joined(name) for name in ("inner_join", "left_semi_join", "left_anti_join")}),
        partitioning=space(hash_partition=_hash_partition),
        expressions=space(
            ASTOperator=real.expressions.ASTOperator, Expression=real.expressions.Expression, Literal=_Literal,
            ColumnNameReference=real.expressions.ColumnNameReference, Operation=_Operation,
        ),
        io=space(
            types=space(SourceInfo=lambda paths: space(path=paths[0])),
            parquet=space(ParquetReaderOptions=space(builder=_Options), read_parquet=_read_parquet),
        ),
    )  # fmt: skip
    vars(made).update(members)
    return made
