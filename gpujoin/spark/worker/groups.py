"""Calls functions of ``applyInPandas`` for many small groups with less work for each.

PySpark makes a frame of pandas' of each group, and an Arrow batch of what the function gives for it, which takes it
longer than most functions. Here the rows of many groups become one frame, of which each group is given a copy of its
part, and what the function gives for many groups becomes one batch::

    k  v        k  v      k  v               n  total      n  total
    1  7        1  7      2  5    function   2  16         2  16
    1  9        1  9                         1  5          1  5
    2  5

The frames and the batches are made by PySpark's own conversions, and only where these look at each value by itself:
numbers without nulls, floating-point numbers, texts, dates and the like. A group whose rows or results are of other
kinds is converted alone, as PySpark does it, and so are all results of a batch of which one cannot be converted.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.types as pat
from pyspark.sql import types as t

from gpujoin.model.python_calls import GROUPS_TOGETHER, ROWS_TOGETHER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpujoin.model.python_calls import GroupedRows

_ELEMENTWISE = (pat.is_floating, pat.is_string, pat.is_large_string, pat.is_date32, pat.is_timestamp, pat.is_decimal)
"""Types whose columns, with nulls or without, PySpark gives pandas in one type, value by value."""
_NUMBERS = (t.ByteType, t.ShortType, t.IntegerType, t.LongType, t.FloatType, t.DoubleType, t.BooleanType)
_OBJECTS = {t.StringType: "string", t.DateType: "date"}
"""Types whose values are Python objects in pandas, with pandas' name of columns that have no others."""


@dataclass(frozen=True)
class FrameFunction:
    """A function of ``applyInPandas``, as PySpark's worker has read it."""

    function: Callable[..., Any]
    keys: Sequence[int]
    """Columns of the rows that are the group's key."""
    values: Sequence[int]
    """Columns of the frame."""
    takes_key: bool
    result: t.StructType
    """Type of the rows that it gives."""
    conf: Any
    """What PySpark's worker is told of the session (``RunnerConf``)."""

    def results(self, pieces: Iterator[GroupedRows]) -> Iterator[pa.RecordBatch]:
        """Call the function for each group; gives rows as structs, in batches of several groups' results.

        An error is the one that PySpark would meet first, converting the results of a group before the next call.
        """
        from pyspark.worker import verify_pandas_result

        results = _Results(self.result, self.conf)
        for key, frame in (group for piece in pieces for group in self._frames(piece)):
            result: Any = None
            error: BaseException | None = None
            try:
                result = self.function(key(), frame) if self.takes_key else self.function(frame)
                verify_pandas_result(result, self.result, self.conf.assign_cols_by_name, truncate_return_schema=False)
            except (Exception, SystemExit) as problem:  # noqa: BLE001  # the user's code raises whatever it likes
                error = problem
            if error is not None:
                list(results.flush())
                raise error
            yield from results.add(result)
        yield from results.flush()

    def _frames(self, groups: GroupedRows) -> Iterator[tuple[Callable[[], tuple[Any, ...]], pd.DataFrame]]:
        """Give the key and the frame of each group."""
        bounds = groups.bounds
        first = 0
        while first < len(bounds) - 1:
            last = max(first + 1, bisect_right(bounds, bounds[first] + ROWS_TOGETHER) - 1)
            yield from self._frames_of(groups.rows, bounds[first : last + 1])
            first = last

    def _frames_of(
        self, rows: pa.RecordBatch, bounds: Sequence[int]
    ) -> Iterator[tuple[Callable[[], tuple[Any, ...]], pd.DataFrame]]:
        start, end = bounds[0], bounds[-1]
        part = rows.slice(start, end - start)
        series = self._series(part) if len(bounds) > 2 and self._is_elementwise(part) else None
        if series is None and len(bounds) > 2:
            for n in range(len(bounds) - 1):
                yield from self._frames_of(rows, bounds[n : n + 2])
            return
        if series is None:
            series = self._plain_series(part)
        frame = pd.concat([series[n] for n in self.values], axis=1)

        def key_at(place: int) -> Callable[[], tuple[Any, ...]]:
            return lambda: tuple(series[n].iloc[place] for n in self.keys)

        if len(bounds) == 2:
            yield key_at(0), frame
            return
        for n in range(len(bounds) - 1):
            place = bounds[n] - start
            own = frame.iloc[place : bounds[n + 1] - start].copy()  # as if it had been made alone: no other's memory
            own.index = pd.RangeIndex(len(own))
            yield key_at(place), own

    def _is_elementwise(self, rows: pa.RecordBatch) -> bool:
        return all(
            any(is_of(column.type) for is_of in _ELEMENTWISE)
            or (
                not column.null_count
                and (
                    pat.is_boolean(column.type) or (pat.is_integer(column.type) and not self.conf.prefer_int_ext_dtype)
                )
            )
            for column in rows.columns
        )

    def _series(self, rows: pa.RecordBatch) -> list[pd.Series] | None:
        """Convert rows of several groups; ``None`` where that fails for one of them."""
        try:
            return self._plain_series(rows)
        except Exception:  # noqa: BLE001  # it is raised again where that group is converted alone
            return None

    def _plain_series(self, rows: pa.RecordBatch) -> list[pd.Series]:
        from pyspark.sql.conversion import ArrowBatchTransformer

        series: list[pd.Series] = ArrowBatchTransformer.to_pandas(
            pa.Table.from_batches([rows]),
            timezone=self.conf.timezone,
            prefer_int_ext_dtype=self.conf.prefer_int_ext_dtype,
        )
        return series


@dataclass
class _Results:
    """What a function has given for groups, and is not converted yet."""

    result: t.StructType
    conf: Any
    _frames: list[pd.DataFrame] = field(default_factory=list)
    _columns: list[list[Any]] = field(default_factory=list)
    """The values of each column, of each frame."""
    _rows: int = 0
    _most: int = 1
    """After how many groups they are converted: more each time, so that the first come soon."""

    def __post_init__(self) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        self._schema = to_arrow_schema(
            self.result, timezone=self.conf.timezone, prefers_large_types=self.conf.use_large_var_types
        )
        self._names = list(self.result.names)
        kinds = [type(each.dataType) for each in self.result]
        self._is_plain = len(set(self._names)) == len(kinds) > 0 and all(
            kind in _NUMBERS or kind in _OBJECTS for kind in kinds
        )

    def add(self, frame: pd.DataFrame) -> Iterator[pa.RecordBatch]:
        """Take what the function gave for a group; gives batches that are full."""
        frame = frame.copy()  # which the function may have for itself, and change
        columns = self._values_of(frame) if self._is_plain else None
        if columns is None or self._dtypes(columns) != self._dtypes([values[0] for values in self._columns]):
            yield from self.flush()
        if columns is None:
            yield self._converted(frame)
            return
        if not self._columns:
            self._columns = [[] for _ in columns]
        for values, column in zip(self._columns, columns, strict=True):
            values.append(column)
        self._frames.append(frame)
        self._rows += len(frame)
        if len(self._frames) >= self._most or self._rows >= ROWS_TOGETHER:
            self._most = min(2 * self._most, GROUPS_TOGETHER)
            yield from self.flush()

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Convert what there is."""
        frames, columns = self._frames, self._columns
        self._frames, self._columns, self._rows = [], [], 0
        batch = self._together(columns) if len(frames) > 1 else None
        if batch is None:
            yield from map(self._converted, frames)
        else:
            yield batch

    def _together(self, columns: list[list[Any]]) -> pa.RecordBatch | None:
        """Convert the results of several groups; ``None`` where one of them is to be converted alone."""
        arrays = []
        try:
            for values, of_column, of_arrow in zip(columns, self.result, self._schema, strict=True):
                array = self._array(np.concatenate(values), of_column, of_arrow.type)
                if not isinstance(array, pa.Array):
                    return None
                arrays.append(array)
        except Exception:  # noqa: BLE001  # it is raised again where that group is converted alone
            return None
        structs = pa.StructArray.from_arrays(arrays, fields=list(self._schema))
        return pa.RecordBatch.from_arrays([structs], ["_0"])

    def _values_of(self, frame: pd.DataFrame) -> list[Any] | None:
        """Give the arrays of a frame's columns; ``None`` where they are not of NumPy's, or in another order."""
        if list(frame.columns) != self._names:
            return None
        columns = [frame[name] for name in self._names]
        if not all(isinstance(column.dtype, np.dtype) for column in columns):
            return None
        return [column.to_numpy() for column in columns]

    @staticmethod
    def _dtypes(columns: Sequence[Any]) -> list[Any]:
        return [column.dtype for column in columns]

    def _array(self, values: Any, of_column: t.StructField, dtype: pa.DataType) -> pa.Array | None:
        """Convert values of several groups as PySpark tries first; ``None`` where it would look at them together."""
        kind = type(of_column.dataType)
        if kind in _OBJECTS:
            if values.dtype != object or pd.api.types.infer_dtype(values, skipna=True) != _OBJECTS[kind]:
                return None
        elif values.dtype.kind not in "biuf":
            return None
        series = pd.Series(values)
        mask = None if hasattr(series.array, "__arrow_array__") else series.isnull()
        return pa.Array.from_pandas(series, mask=mask, type=dtype, safe=self.conf.safecheck)

    def _converted(self, frame: pd.DataFrame) -> pa.RecordBatch:
        """Convert what the function gave for a group, as PySpark does."""
        from pyspark.sql.conversion import PandasToArrowConversion

        batch: pa.RecordBatch = PandasToArrowConversion.convert(
            [frame],
            t.StructType([t.StructField("_0", self.result)]),
            timezone=self.conf.timezone,
            safecheck=self.conf.safecheck,
            arrow_cast=True,
            prefers_large_types=self.conf.use_large_var_types,
            assign_cols_by_name=self.conf.assign_cols_by_name,
            int_to_decimal_coercion_enabled=self.conf.int_to_decimal_coercion_enabled,
        )
        return batch
