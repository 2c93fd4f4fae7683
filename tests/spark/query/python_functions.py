"""Python functions that tests of queries call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc


def plus(left: pd.Series, right: pd.Series) -> pd.Series:
    return left + right


def doubled(values: pd.Series) -> pd.Series:
    return values * 2


def doubled_parts(parts: Iterator[pd.Series]) -> Iterator[pd.Series]:
    for values in parts:
        yield values * 2


def sums_of_parts(parts: Iterator[tuple[pd.Series, ...]]) -> Iterator[pd.Series]:
    for left, right in parts:
        yield left + right


def in_halves(parts: Iterator[pd.Series]) -> Iterator[pd.Series]:
    """Give each part in two, so that what comes out is cut in other places than what goes in."""
    for values in parts:
        half = len(values) // 2
        yield values.iloc[:half]
        yield values.iloc[half:]


def split(values: pd.Series) -> pd.DataFrame:
    return pd.DataFrame({"length": values.str.len(), "upper": values.str.upper()})


def text_of_struct(frame: pd.DataFrame) -> pd.Series:
    return frame.a.astype(str) + "/" + frame.b.astype(str)


def label(key: Any, text: Any = "none") -> str:
    return f"{key}:{text}"


def three() -> int:
    return 3


def negated(values: pa.Array) -> pa.Array:
    return pc.negate(values)


def negated_parts(parts: Iterator[pa.Array]) -> Iterator[pa.Array]:
    for values in parts:
        yield pc.negate(values)


def same(value: Any) -> Any:
    return value


def same_series(values: pd.Series) -> pd.Series:
    return values


def same_frame(values: pd.DataFrame) -> pd.DataFrame:
    return values


def same_array(values: pa.Array) -> pa.Array:
    return values


def same_parts(parts: Iterator[Any]) -> Iterator[Any]:
    yield from parts


def shown(values: pd.Series) -> pd.Series:
    """Show what the function is given: the type of the column, and each value with its type."""
    return values.map(lambda value: f"{type(value).__name__} {value!r}").astype(str) + f" of {values.dtype}"


def shown_frame(frame: pd.DataFrame) -> pd.Series:
    kinds = ", ".join(f"{name} {dtype}" for name, dtype in frame.dtypes.items())
    return pd.Series([f"{list(map(repr, row))} of {kinds}" for row in frame.itertuples(index=False)], dtype=str)


def shown_value(value: Any) -> str:
    return f"{type(value).__name__} {value!r}"


def shown_array(values: pa.Array) -> pa.Array:
    return pa.array([f"{value} of {values.type}" for value in values.to_pylist()], pa.string())


def mean(values: pd.Series) -> float:
    return float(values.mean())


def weighted(values: pd.Series, weights: pd.Series) -> float:
    return float((values * weights).sum() / len(values))


def size_of_parts(parts: Iterator[pd.Series]) -> int:
    return sum(map(len, parts))


def sum_of_products(parts: Iterator[tuple[pd.Series, ...]]) -> int:
    return int(sum((left * right).sum() for left, right in parts))


def five() -> int:
    return 5


def greatest(values: pa.Array) -> pa.Scalar:
    return pc.max(values)


def greatest_of_parts(parts: Iterator[pa.Array]) -> pa.Scalar:
    return pc.max(pa.array([pc.max(values).as_py() for values in parts]))


def first(values: pd.Series) -> Any:
    return values.iloc[0]


def first_or_none(values: pd.Series) -> Any:
    return None if pd.isna(values.iloc[0]) else values.iloc[0]


def first_of_array(values: pa.Array) -> pa.Scalar:
    return values[0]


def shown_group(values: pd.Series) -> str:
    return f"{sorted(map(repr, values))} of {values.dtype} named {values.name}"


def shown_in_order(values: pd.Series) -> str:
    return f"{list(values)} of {values.dtype} named {values.name}"


def shown_group_of_frame(values: pd.DataFrame) -> str:
    return f"{sorted(map(repr, values.itertuples(index=False)))}"


def shown_group_of_array(values: pa.Array) -> str:
    return f"{sorted(map(repr, values.to_pylist()))} of {values.type}"


def fails_for_group(values: pd.Series) -> float:
    raise RefusalError("no group is good")


def text_of_group(values: pd.Series) -> str:
    return "many"


def series_of_group(values: pd.Series) -> float:
    return values  # which is the error


def text_of_arrays(values: pa.Array) -> pa.Scalar:
    return pa.scalar("many")


class RefusalError(Exception):
    """An error of a function's own."""


def fails(values: pd.Series) -> pd.Series:
    raise RefusalError(f"no {values.iloc[0]}")


def fails_for_value(value: Any) -> Any:
    raise RefusalError("no value is good")


def fails_later(parts: Iterator[pd.Series]) -> Iterator[pd.Series]:
    yield from parts
    raise RefusalError("no more")


def chained_failure(values: pd.Series) -> pd.Series:
    try:
        fails(values.head(1) * 0)
    except RefusalError as problem:
        raise KeyError("missing") from problem
    return values


def too_short(values: pd.Series) -> pd.Series:
    return values.iloc[1:]


def too_long_parts(parts: Iterator[pd.Series]) -> Iterator[pd.Series]:
    for values in parts:
        yield pd.concat([values, values])


def one_number(values: pd.Series) -> pd.Series:
    return len(values)


def texts(values: pd.Series) -> pd.Series:
    return pd.Series(["x"] * len(values))


def no_iterator(parts: Iterator[pd.Series]) -> Iterator[pd.Series]:
    return 1  # type: ignore[return-value]  # which is the error


def stops(value: Any) -> Any:
    raise StopIteration("here")


def other_array(values: pa.Array) -> pa.Array:
    return pa.array(["x"] * len(values))


class Unreadable:
    """What cannot be unpickled."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _refuse, ()


def _refuse() -> None:
    raise RefusalError("this cannot be read")


def with_unreadable() -> Callable[[pd.Series], pd.Series]:
    value = Unreadable()

    def function(values: pd.Series) -> pd.Series:
        return values + (value is None)

    return function


def large_rows(parts: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for rows in parts:
        yield pd.DataFrame({"item": rows["item"], "label": rows.s + "!"})[rows["item"] > 10]


def large_batches(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for rows in parts:
        yield rows.filter(pc.greater(rows["item"], 10)).select(["item", "s"])


def spread(rows: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(
        {"k": [rows.k.iloc[0]], "n": [len(rows)], "s": [float(rows["item"].max() - rows["item"].min())]}
    )


def spread_of_key(key: tuple[Any, ...], rows: pd.DataFrame) -> pd.DataFrame:
    length = None if pd.isna(key[1]) else int(key[1])
    return pd.DataFrame({"k": [key[0]], "l": pd.array([length], "Int32"), "n": [len(rows)]})


def counted_table(key: tuple[Any, ...], rows: pa.Table) -> pa.Table:
    return pa.table({"k": pa.array([key[0].as_py()], pa.int32()), "n": [rows.num_rows]})


def of_text(rows: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"s": [rows.s.iloc[0]], "n": [len(rows)]})


def sizes(left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"n": [len(left)], "m": [len(right)], "columns": [f"{list(left)} {list(right)}"]})


def sizes_of_key(key: tuple[Any, ...], left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
    types = f"{list(map(str, left.dtypes))} {list(map(str, right.dtypes))}"
    text = None if pd.isna(key[1]) else key[1]
    return pd.DataFrame({"s": pd.Series([text], dtype=object), "n": [len(left)], "m": [len(right)], "types": [types]})


def sizes_of_tables(key: tuple[Any, ...], left: pa.Table, right: pa.Table) -> pa.Table:
    return pa.table({"k": pa.array([key[0].as_py()], pa.int32()), "n": [left.num_rows], "m": [right.num_rows]})


def merged(left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
    return left.merge(right, on="k")[["k", "id", "item"]]


def fails_for_cogroup(left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
    raise RefusalError("no cogroup is good")


def other_columns_of_cogroup(left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"other": [1]})


def of_weight(rows: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"n": [len(rows)]})


def parts_of_group(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for rows in parts:
        yield pa.RecordBatch.from_pydict({"k": rows["k"].slice(0, 1), "n": [rows.num_rows]})
