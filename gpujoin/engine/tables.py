"""Joins whole Arrow tables: the public functions of the engine, which check their arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from gpujoin.config import BackendChoice, BackendChoiceName, Options
from gpujoin.engine.arguments import (
    backend_of,
    check_metrics,
    check_unique,
    column_names,
    key_table,
    named_apart,
    null_flags,
    options_of,
    position_of,
    table_of,
)
from gpujoin.engine.devicetables import DeviceTable, OpenedTable, adopt_both, concat, open_keys, open_tables
from gpujoin.engine.gathermaps import GatherMaps, device_maps
from gpujoin.engine.join.checks import check_product
from gpujoin.engine.join.hash_join import HashJoin
from gpujoin.engine.keys import in_common_type
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.errors import ConditionError, JoinSpecError
from gpujoin.model.backend import AnyBackend
from gpujoin.model.expressions import Expression
from gpujoin.model.jointype import JoinName, JoinType, Side
from gpujoin.model.layouts import in_type
from gpujoin.model.maps import Indices, OutOfBounds
from gpujoin.model.spec import Direction, DirectionName, JoinSpec, KeyPair, NullEquality
from gpujoin.plan.asof import check_result_names, check_suffixes, plan_as_of
from gpujoin.plan.key_types import key_type
from gpujoin.plan.ranges import better_build_side
from gpujoin.plan.resolve import resolve

_Sides: TypeAlias = Mapping[Side, Any]
"""Both inputs, as PyArrow tables or as tables on a GPU."""


def join_tables(
    left: Any,
    right: Any,
    on: str | Sequence[str] | None = None,
    how: JoinName | JoinType = JoinType.INNER,
    *,
    left_on: str | Sequence[str] | None = None,
    right_on: str | Sequence[str] | None = None,
    condition: Expression | None = None,
    nulls_equal: bool | Sequence[bool] = False,
    suffixes: tuple[str, str] = ("", "_right"),
    backend: BackendChoiceName | BackendChoice | AnyBackend = BackendChoice.AUTO,
    options: Options | None = None,
    metrics: JoinMetrics | None = None,
) -> Any:
    """Join two tables.

    Parameters
    ----------
    left, right : Table, RecordBatch, or any object with ``__arrow_c_stream__``
        The inputs; column names must be unique within each. Or both on a GPU, where the result stays too:
        :class:`gpujoin.DeviceTable`, ``cudf.DataFrame``, ``pylibcudf.Table`` (whose columns are called ``"0"``,
        ``"1"``, …), anything with the Arrow C device interface.
    on : str or sequence of str, optional
        Key columns of the same name on both sides. They appear once, first, in the result; after a full join as
        the value of whichever side has a row: in the type of both, or in the one they are compared in where the types
        differ or are dictionaries.
    how : str or JoinType
        ``inner``, ``cross``, ``left``, ``right``, ``full``, ``left_semi``, ``left_anti``, ``existence``,
        ``null_aware_anti``, ``null_aware_existence``, or any of Spark's spellings.
    left_on, right_on : str or sequence of str, optional
        Key columns of different names, in place of ``on``. Both appear in the result.
    condition : Expression, optional
        Residual condition: a pair of rows matches if its keys do and this is true. Without keys, all pairs are
        candidates.
    nulls_equal : bool or sequence of bool
        Whether null keys match each other, for all keys or for each.
    suffixes : (str, str)
        Added to the names of non-key columns that both sides have.
    backend : {"auto", "gpu", "cpu"} or Backend
        Where to run; ``auto`` takes the GPU if there is one.
    options : Options, optional
        Batch size, memory budget, threads.
    metrics : JoinMetrics, optional
        Counters to add to.

    Returns
    -------
    Table
        Rows in no promised order, in batches near ``options.batch_bytes``. Existence joins add a column ``exists``.
        A dictionary column whose chunks have more values together than its indices can count gets 32-bit indices.
        Of tables on a GPU a table there, of the kind of ``left``; a :class:`gpujoin.DeviceTable` for other kinds.

    Raises
    ------
    JoinSpecError
        Unknown join type, missing or ambiguous columns, keys that do not pair up; one input on a GPU and the other on
        the host.
    KeyTypeError
        A pair of keys cannot be compared.
    ConditionError
        The condition names unknown columns or is not boolean.
    BackendUnavailableError
        The backend is not installed or has no device.
    ProductSizeError
        Without keys and ranges there are more pairs than ``options.max_product_rows``.
    DeviceMemoryError
        Tables on a GPU do not fit there with the result.
    """
    options = options_of(options)
    check_metrics(metrics)
    join_type, opened = JoinType.parse(how), open_tables(left, right)
    host_backend = backend_of(backend, options, metrics) if opened is None else None
    if left is right and isinstance(left, pa.RecordBatchReader):
        raise JoinSpecError("both inputs are the same stream, which can be read only once; read it into a table first")
    tables = _sides(left, right, opened, backend)
    request = _Request.from_arguments(tables, on, left_on, right_on, join_type, condition, nulls_equal)
    check_suffixes(suffixes)
    plan = _plan(tables, request, suffixes)
    build_side = _build_side(tables, request.join_type, request.condition if not request.keys else None)
    joined = _joined(plan.spec, tables, build_side, options, host_backend, metrics)
    if opened is not None:
        return opened[Side.LEFT].to_same_kind(plan.finish_on_device(joined))
    return plan.finish(joined)


def asof_join_tables(
    left: Any,
    right: Any,
    on: str | None = None,
    by: str | Sequence[str] | None = None,
    *,
    left_on: str | None = None,
    right_on: str | None = None,
    left_by: str | Sequence[str] | None = None,
    right_by: str | Sequence[str] | None = None,
    direction: DirectionName | Direction = Direction.BACKWARD,
    tolerance: Any = None,
    allow_exact: bool = True,
    suffixes: tuple[str, str] = ("", "_right"),
    backend: BackendChoiceName | BackendChoice | AnyBackend = BackendChoice.AUTO,
    options: Options | None = None,
    metrics: JoinMetrics | None = None,
) -> Any:
    """Join each left row with the nearest right row by an order key, within equal ``by`` columns.

    The meaning is that of ``pandas.merge_asof`` and Polars' ``join_asof``: every left row is returned once, with nulls
    where there is no such row. The inputs need not be sorted.

    Parameters
    ----------
    left, right : Table, RecordBatch, or any object with ``__arrow_c_stream__``
        The inputs; column names must be unique within each. Or both on a GPU, as for :func:`join_tables`.
    on : str, optional
        Order key of both sides; returned once, the left side's. Numbers, dates, timestamps (units may differ; zones
        must be there on both sides or on neither), times, durations; bytes too, where no distance is needed.
    by : str or sequence of str, optional
        Columns that must be equal; returned once. A null equals nothing.
    left_on, right_on, left_by, right_by : str or sequence of str, optional
        The same with different names; both sides' columns are then returned.
    direction : {"backward", "forward", "nearest"}
        The last row at or before the key, the first at or after it, or the nearer of the two, of two as near the
        earlier. Of several right rows with one order key the last is taken looking backward, the first looking forward.
    tolerance : int, float, Decimal, timedelta or str, optional
        Largest distance, included, in terms of the order key; as text an interval: ``"1 hour 30 minutes"``.
    allow_exact : bool
        Whether an equal key counts.
    suffixes : (str, str)
        Added to the names of columns that both sides have.
    backend, options, metrics
        As for :func:`join_tables`. Where order keys are bytes or decimals of more than 18 digits, right rows of
        equal ``by`` stay in memory together, whatever the budget.

    Returns
    -------
    Table
        The left columns, then the right ones. Rows in no promised order. Of tables on a GPU a table there.

    Raises
    ------
    JoinSpecError
        Missing or contradicting arguments; a tolerance that is negative or of the wrong type.
    KeyTypeError
        Keys without a common order, or, for ``nearest`` and tolerances, without a distance; a timestamp that the finer
        unit cannot hold.

    Notes
    -----
    Null and NaN order keys match nothing on either side; their left rows are returned with nulls. Infinities and both
    zeros are ordinary keys. Order keys of different types are compared in the type in which Spark compares them:
    integers and doubles as doubles, timestamps of different units in the finer one, those of different zones as
    moments. A tolerance is rounded down to whole units of that type, a ``timedelta`` of 36 hours to one day of dates.
    """
    options = options_of(options)
    check_metrics(metrics)
    opened = open_tables(left, right)
    host_backend = backend_of(backend, options, metrics) if opened is None else None
    tables = _sides(left, right, opened, backend)
    schemas = tables[Side.LEFT].schema, tables[Side.RIGHT].schema
    plan = plan_as_of(
        *schemas, on=on, left_on=left_on, right_on=right_on, by=by, left_by=left_by, right_by=right_by,
        direction=direction, tolerance=tolerance, allow_exact=allow_exact, suffixes=suffixes,
    )  # fmt: skip
    joined = _joined(plan.spec, tables, Side.RIGHT, options, host_backend, metrics).rename_columns(list(plan.names))
    return joined if opened is None else opened[Side.LEFT].to_same_kind(joined)


def gather_maps(
    left_keys: Any,
    right_keys: Any,
    how: JoinName | JoinType = JoinType.INNER,
    *,
    nulls_equal: bool | Sequence[bool] = False,
    backend: BackendChoiceName | BackendChoice | AnyBackend = BackendChoice.AUTO,
    options: Options | None = None,
) -> GatherMaps:
    """Compute the row numbers of a join: which left row matches which right row.

    Parameters
    ----------
    left_keys, right_keys : Array, ChunkedArray, Table, RecordBatch, any Arrow stream, or 1-D NumPy array
        Key columns, paired by position; an array, or a Series of Polars or pandas, is one key. Or both on a GPU:
        tables as for :func:`join_tables`, or single columns (``cudf.Series``, ``pylibcudf.Column``, CuPy array).
    how : str or JoinType
        As for :func:`join_tables`, without ``cross`` and ``existence``.
    nulls_equal : bool or sequence of bool
        Whether null keys match each other.
    backend, options
        As for :func:`join_tables`.

    Returns
    -------
    GatherMaps
        NumPy int64 indices; −1 where an outer join has no row of that side. For semi and anti joins ``right`` is
        ``None``. Of keys on a GPU CuPy int32 indices, which stay there.
    """
    join_type = JoinType.parse(how)
    if join_type is JoinType.CROSS or join_type.flags_rows:
        raise JoinSpecError(f"gather_maps does not do {join_type.value} joins; use join_tables")
    opened = open_tables(left_keys, right_keys, open_keys)
    tables: dict[Side, Any]
    if opened is None:
        tables = {Side.LEFT: key_table(left_keys, Side.LEFT), Side.RIGHT: key_table(right_keys, Side.RIGHT)}
    else:
        tables = dict(adopt_both(opened, backend))
    counts = {table.num_columns for table in tables.values()}
    if len(counts) != 1 or 0 in counts:
        raise JoinSpecError(
            f"keys pair up by position: got {tables[Side.LEFT].num_columns} left and"
            f" {tables[Side.RIGHT].num_columns} right"
        )
    number = tables[Side.LEFT].num_columns
    tables = {
        side: table.append_column("row", pa.array(np.arange(table.num_rows))) if opened is None else table.numbered()
        for side, table in tables.items()
    }
    keys = tuple(
        KeyPair(i, i, NullEquality.EQUAL if equal else NullEquality.UNEQUAL)
        for i, equal in enumerate(null_flags(nulls_equal, number))
    )
    right_output = () if join_type.left_rows_only else (number,)
    spec = JoinSpec(join_type, keys, left_output=(number,), right_output=right_output)
    options, build_side = options_of(options), _build_side(tables, join_type)
    rows = tables[Side.LEFT].num_rows, tables[Side.RIGHT].num_rows
    host_backend = backend_of(backend, options, None) if opened is None else None
    joined = _joined(spec, tables, build_side, options, host_backend, None)
    if opened is not None:
        return device_maps(joined, rows)
    columns = joined.columns
    return GatherMaps(_indices(columns[0]), _indices(columns[1]) if right_output else None, rows=rows)


def _sides(
    left: Any, right: Any, opened: dict[Side, OpenedTable] | None,
    backend: BackendChoiceName | BackendChoice | AnyBackend,
) -> _Sides:  # fmt: skip
    if opened is None:
        return {Side.LEFT: table_of(left, Side.LEFT), Side.RIGHT: table_of(right, Side.RIGHT)}
    tables = adopt_both(opened, backend)
    for side, table in tables.items():
        check_unique(table.column_names, f"the {side.value} input")
    return tables


def _joined(
    spec: JoinSpec, tables: _Sides, build_side: Side, options: Options, backend: AnyBackend | None,
    metrics: JoinMetrics | None,
) -> Any:  # fmt: skip
    """Join tables on the host or on a GPU, with the result in the same place."""
    built, probed = tables[build_side], tables[build_side.other]
    with HashJoin(
        spec, tables[Side.LEFT].schema, tables[Side.RIGHT].schema, build_side=build_side, options=options,
        backend=backend, metrics=metrics,
    ) as join:  # fmt: skip
        check_product(join.layout, options, built.num_rows, probed.num_rows)
        join.build(_batches(built))
        batches = [*join.probe(_batches(probed)), *join.finish()]
    if isinstance(built, DeviceTable):
        return concat(batches, join.output_schema, built.device)
    return pa.Table.from_batches(batches, join.output_schema)


@dataclass(frozen=True)
class _Request:
    """The checked arguments of a join."""

    join_type: JoinType
    left_on: tuple[str, ...]
    right_on: tuple[str, ...]
    shared: bool
    keys: tuple[KeyPair, ...]
    condition: Expression | None

    @classmethod
    def from_arguments(
        cls,
        tables: _Sides,
        on: str | Sequence[str] | None,
        left_on: str | Sequence[str] | None,
        right_on: str | Sequence[str] | None,
        join_type: JoinType,
        condition: Expression | None,
        nulls_equal: bool | Sequence[bool],
    ) -> _Request:
        if on is not None and (left_on is not None or right_on is not None):
            raise JoinSpecError("give either on, or left_on and right_on, not both")
        if (left_on is None) != (right_on is None):
            raise JoinSpecError("left_on and right_on go together; only one was given")
        lefts = column_names(on if on is not None else left_on)
        rights = lefts if on is not None else column_names(right_on)
        if len(lefts) != len(rights):
            raise JoinSpecError(f"left_on has {len(lefts)} keys, right_on has {len(rights)}: {lefts} and {rights}")
        if on is not None and len(set(lefts)) != len(lefts):
            raise JoinSpecError(f"a key column is given twice: {lefts}")
        if condition is not None and not isinstance(condition, Expression):
            raise ConditionError(f"condition must be an expression such as left('a') < right('b'), got {condition!r}")
        if join_type is JoinType.CROSS and condition is not None:
            join_type = JoinType.INNER
        if join_type is JoinType.CROSS and lefts:
            raise JoinSpecError(f"a cross join takes no keys, got {lefts}; use an inner join")
        if not lefts and condition is None and join_type is not JoinType.CROSS:
            raise JoinSpecError(
                f"{join_type.value} joins need keys (on, or left_on and right_on) or a condition; for all pairs use"
                " how='cross'"
            )
        schemas = {side: table.schema for side, table in tables.items()}
        keys = tuple(
            KeyPair(
                position_of(schemas[Side.LEFT], a, Side.LEFT),
                position_of(schemas[Side.RIGHT], b, Side.RIGHT),
                NullEquality.EQUAL if equal else NullEquality.UNEQUAL,
            )
            for a, b, equal in zip(lefts, rights, null_flags(nulls_equal, len(lefts)), strict=True)
        )
        if condition is not None:
            condition = resolve(condition, schemas[Side.LEFT], schemas[Side.RIGHT])
        return cls(join_type, lefts, rights, on is not None, keys, condition)


@dataclass(frozen=True)
class _Plan:
    """What a join computes, and how the columns of its result are named and merged."""

    spec: JoinSpec
    names: tuple[str, ...]
    order: tuple[int, ...]
    """Position in the join's output of each column of the result."""
    merged: tuple[tuple[int, int], ...]
    """Positions in the join's output of both columns of each merged key."""

    def finish(self, table: pa.Table) -> pa.Table:
        for target, source in self.merged:
            types = [table.schema.field(i).type for i in (target, source)]
            common = key_type(*types)
            first, second = (
                pa.chunked_array([in_common_type(chunk, common) for chunk in table.column(i).chunks], common)
                for i in (target, source)
            )
            merged = pc.coalesce(first, second)
            if types[0] == types[1] and not pat.is_dictionary(types[0]):
                common = types[0]
                merged = pa.chunked_array([in_type(chunk, common) for chunk in merged.chunks], common)
            table = table.set_column(target, table.schema.field(target).with_type(common), merged)
        return table.select(list(self.order)).rename_columns(list(self.names))

    def finish_on_device(self, table: DeviceTable) -> DeviceTable:
        device, frame, fields = table.device, table.frame, list(table.schema)
        for target, source in self.merged:
            common = key_type(fields[target].type, fields[source].type)
            merged = device.coalesce(frame, target, source, common)
            order = [len(fields) if i == target else i for i in range(len(fields))]
            frame = device.select(device.hstack([frame, merged]), order)
            fields[target] = fields[target].with_type(common)
        return DeviceTable(pa.schema(fields), frame, device).at(self.order).rename_columns(self.names)


def _plan(tables: _Sides, request: _Request, suffixes: tuple[str, str]) -> _Plan:
    kind = request.join_type
    lefts, rights = list(tables[Side.LEFT].schema.names), list(tables[Side.RIGHT].schema.names)
    shared = {key.left for key in request.keys}, {key.right for key in request.keys}
    if not request.shared:
        shared = set(), set()
    left_rest = [i for i in range(len(lefts)) if i not in shared[0]]
    right_rest = [] if kind.left_rows_only else [i for i in range(len(rights)) if i not in shared[1]]
    left_keys = [key.left for key in request.keys] if request.shared else []
    right_keys = [key.right for key in request.keys] if request.shared else []
    names = [*request.left_on] if request.shared else []
    names += named_apart([lefts[i] for i in left_rest], [rights[i] for i in right_rest], suffixes)
    if kind.flags_rows:
        names.append("exists")
    check_result_names(names)
    left_output, right_output = [*left_keys, *left_rest], right_rest
    order = list(range(len(names)))
    merged: list[tuple[int, int]] = []
    if kind is JoinType.FULL:
        right_output = [*right_rest, *right_keys]
        merged = [(i, len(names) + i) for i in range(len(right_keys))]
    elif kind is JoinType.RIGHT and right_keys:
        left_output, right_output = left_rest, [*right_keys, *right_rest]
        first = len(left_rest)
        keys_at = list(range(first, first + len(right_keys)))
        order = [*keys_at, *range(first), *range(first + len(right_keys), len(names))]
    spec = JoinSpec(kind, request.keys, request.condition, tuple(left_output), tuple(right_output))
    return _Plan(spec, tuple(names), tuple(order), tuple(merged))


def _indices(column: pa.ChunkedArray) -> Indices:
    rule = OutOfBounds.NULLIFY if column.null_count else OutOfBounds.NEVER
    values = column.fill_null(-1).to_numpy()
    return Indices(values, len(values), rule)


def _batches(table: pa.Table | DeviceTable) -> list[Any]:
    """Batches of a table; a table on a GPU is one."""
    if isinstance(table, DeviceTable):
        return [table]
    if table.num_columns == 0:
        return [pa.record_batch({"rows": pa.nulls(table.num_rows)}).select([])]
    batches: list[pa.RecordBatch] = table.to_batches()
    return batches


def _build_side(tables: _Sides, join_type: JoinType, condition: Expression | None = None) -> Side:
    """Choose the build side: the one that ranges can search, else the smaller one, else the right one."""
    if join_type.null_aware:
        return Side.RIGHT
    better = better_build_side(condition, (Side.RIGHT, Side.LEFT))
    if better is not None:
        return better
    return Side.LEFT if tables[Side.LEFT].num_rows < tables[Side.RIGHT].num_rows else Side.RIGHT
