"""Checks and converts the arguments of the engine's public functions: tables, keys, names, options, backends."""

from __future__ import annotations

import os
from collections.abc import Iterable, KeysView, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.backends.registry import BackendRequest, create, unavailable
from gpujoin.config import BackendChoice, Options
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.errors import BackendUnavailableError, ConfigurationError, JoinSpecError, did_you_mean
from gpujoin.logs import warn_once
from gpujoin.model.backend import AnyBackend, BackendName
from gpujoin.model.expressions import Expression
from gpujoin.model.jointype import Side


def table_of(data: Any, side: Side | None = None) -> pa.Table:
    """Convert an input to a table with unique column names and one dictionary per column.

    Raises ``JoinSpecError`` if it is no table.
    """
    what = "the table" if side is None else f"the {side.value} input"
    if isinstance(data, pa.RecordBatch):
        table = pa.Table.from_batches([data])
    elif isinstance(data, pa.Table):
        table = data
    elif hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        try:
            table = pa.table(data)
        except (pa.ArrowException, AssertionError, TypeError, ValueError) as problem:  # PySpark asserts
            message = str(problem) or type(problem).__name__
            arrow = " (toArrow() gives one)" if callable(getattr(data, "toArrow", None)) else ""
            raise JoinSpecError(
                f"{what} is a {type(data).__name__} that Arrow cannot read as a table: {message};"
                f" give a pyarrow Table{arrow} or a data frame whose column types Arrow has"
            ) from problem
    else:
        raise JoinSpecError(
            f"{what} is a {type(data).__name__}{_lazy(data)}; give a pyarrow Table or RecordBatch, or"
            " an object with __arrow_c_stream__ (a Polars, pandas or DuckDB table has it)"
        )
    check_unique(table.schema.names, what)
    for i, column in enumerate(table.columns):
        if pat.is_dictionary(column.type) and column.num_chunks > 1:
            unified = _of_one_dictionary(column)
            table = table.set_column(i, table.schema.field(i).with_type(unified.type), unified)
    return table


def check_unique(names: Sequence[str], what: str) -> None:
    """Raise ``JoinSpecError`` for a table with two columns of one name."""
    if len(set(names)) != len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise JoinSpecError(f"{what} has the columns {twice} twice; rename them")


def _of_one_dictionary(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Unify the dictionaries of a column's chunks, with 32-bit indices where narrower ones are too few."""
    try:
        return column.unify_dictionaries()
    except pa.ArrowNotImplementedError:
        return column
    except pa.ArrowInvalid:
        dtype = column.type
        return column.cast(pa.dictionary(pa.int32(), dtype.value_type, dtype.ordered)).unify_dictionaries()


def _lazy(data: Any) -> str:
    return ", which collect() turns into a table" if callable(getattr(data, "collect", None)) else ""


def key_table(data: Any, side: Side) -> pa.Table:
    """Convert key columns, or a single one, to a table of columns ``k0``, ``k1`` and so on."""
    column = _key_column(data)
    if column is not None:
        return table_of(pa.table({"k0": column}), side)
    table = table_of(data, side)
    return table.rename_columns([f"k{i}" for i in range(table.num_columns)])


def _key_column(data: Any) -> pa.Array | pa.ChunkedArray | None:
    """View an array or a Series as a column; ``None`` for anything else."""
    if isinstance(data, (pa.Array, pa.ChunkedArray)):
        return data
    if isinstance(data, (pa.Table, pa.RecordBatch)) or getattr(data, "ndim", 1) != 1 or hasattr(data, "columns"):
        return None
    try:
        if hasattr(data, "__arrow_c_stream__"):
            column = pa.chunked_array(data)
            return None if pat.is_struct(column.type) else column
        return pa.array(data) if hasattr(data, "__array__") else None
    except (pa.ArrowException, TypeError, ValueError):
        return None


def column_names(keys: Any) -> tuple[str, ...]:
    """The names of key columns. Raises ``JoinSpecError`` if they are not given by name."""
    if keys is None:
        return ()
    if isinstance(keys, Expression) or not isinstance(keys, Iterable):
        raise JoinSpecError(
            f"key columns are given by name or as a sequence of names, got {keys!r}; for an expression use condition="
        )
    if isinstance(keys, (Mapping, AbstractSet)) and not isinstance(keys, KeysView):
        raise JoinSpecError(f"key columns are given as a sequence of names, got {keys!r}{_pairs(keys)}")
    names = (keys,) if isinstance(keys, str) else tuple(keys)
    for name in names:
        if not isinstance(name, str):
            advice = _pairs([name]) or "; for an expression use condition="
            raise JoinSpecError(f"key columns are given by name, got {name!r}{advice}")
    return names


def _pairs(names: Any) -> str:
    """Advice for pairs of names, which other libraries take; empty for anything else."""
    pairs = list(names.items() if isinstance(names, Mapping) else names)
    if not pairs or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        return ""
    lefts, rights = map(list, zip(*pairs, strict=True))
    return f"; write left_on={lefts!r}, right_on={rights!r}"


def check_metrics(metrics: Any) -> None:
    """Raise ``ConfigurationError`` for anything but ``JoinMetrics`` or ``None``."""
    if metrics is not None and not isinstance(metrics, JoinMetrics):
        raise ConfigurationError(f"metrics must be gpujoin.JoinMetrics(), got {metrics!r}")


def null_flags(nulls_equal: Any, keys: int) -> tuple[bool, ...]:
    """Whether nulls are equal, for each key."""
    if isinstance(nulls_equal, bool):
        return (nulls_equal,) * keys
    flags = tuple(nulls_equal) if isinstance(nulls_equal, Iterable) else ()
    if not isinstance(nulls_equal, Iterable) or len(flags) != keys or not all(isinstance(flag, bool) for flag in flags):
        raise JoinSpecError(f"nulls_equal must be a bool or one bool for each of the {keys} keys, got {nulls_equal!r}")
    return flags


def position_of(schema: pa.Schema, name: str, side: Side) -> int:
    """Position of a column. Raises ``JoinSpecError`` if there is none of that name."""
    position = schema.get_field_index(name)
    if position < 0:
        raise JoinSpecError(f"the {side.value} input has no column {name!r}.{did_you_mean(name, schema.names)}")
    return int(position)


def named_apart(lefts: Sequence[str], rights: Sequence[str], suffixes: tuple[str, str]) -> list[str]:
    """Names of the columns of both sides in a result: a suffix is added to those that both have.

    Raises ``JoinSpecError`` if the suffixes tell no columns apart. The names may clash with others all the same; see
    :func:`gpujoin.plan.asof.check_result_names`.
    """
    clash = set(lefts) & set(rights)
    if clash and suffixes[0] == suffixes[1]:
        raise JoinSpecError(f"both sides have columns {sorted(clash)}; the suffixes {suffixes} must differ")
    return [
        name + (suffix if name in clash else "")
        for side_names, suffix in ((lefts, suffixes[0]), (rights, suffixes[1]))
        for name in side_names
    ]


def options_of(options: Options | None) -> Options:
    """Check options; ``None`` stands for the defaults."""
    if options is None or isinstance(options, Options):
        return options or Options()
    raise ConfigurationError(f"options must be gpujoin.Options(...), got {options!r}")


def backend_choice(backend: str | BackendChoice | AnyBackend) -> BackendChoice | AnyBackend:
    """Parse the name of a choice; a backend is returned as it is. Raises ``ConfigurationError`` for anything else."""
    if not isinstance(backend, (str, BackendChoice)):
        if not hasattr(backend, "morsel_rows"):
            raise ConfigurationError(f"backend must be 'auto', 'gpu', 'cpu' or a Backend, got {backend!r}")
        return backend
    try:
        return BackendChoice(backend)
    except ValueError:
        choices = [choice.value for choice in BackendChoice]
        raise ConfigurationError(f"unknown backend {backend!r}.{did_you_mean(str(backend), choices)}") from None


def backend_of(backend: str | BackendChoice | AnyBackend, options: Options, metrics: JoinMetrics | None) -> AnyBackend:
    """Make the backend of a choice: for ``auto`` the CPU's if no GPU can be used, with the reason in the metrics."""
    choice = backend_choice(backend)
    if not isinstance(choice, BackendChoice):
        return choice
    if choice is BackendChoice.AUTO and options.backend is not BackendChoice.AUTO:
        choice = options.backend
    request = BackendRequest(threads=options.cpu_threads or os.cpu_count() or 1)
    if choice is BackendChoice.CPU or (choice is BackendChoice.AUTO and unavailable(BackendName.GPU) is not None):
        return create(BackendName.CPU, request)
    try:
        return create(BackendName.GPU, request)
    except BackendUnavailableError as problem:
        if choice is BackendChoice.GPU:
            raise
        note = f"on the CPU: {problem}"
        warn_once(note)
        if metrics is not None:
            metrics.fallback_reasons[note] = metrics.fallback_reasons.get(note, 0) + 1
        return create(BackendName.CPU, request)
