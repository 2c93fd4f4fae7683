"""Functions of many small groups are given what PySpark gives them, and what they give is taken as PySpark takes it."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyspark
import pytest
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import types as t
from pyspark.util import PythonEvalType

from gpujoin.model.python_calls import GroupedRows, PythonRows, PythonSettings
from gpujoin.model.relations import ConstantTable
from gpujoin.spark.compat import arrow_type
from gpujoin.spark.worker import calling, groups
from gpujoin.spark.worker.calling import PySparkCaller

pytestmark = pytest.mark.skipif(
    not pyspark.__version__.startswith("4.3."), reason="other versions leave functions to Spark"
)

COLUMNS: dict[str, tuple[t.DataType, list[Any]]] = {
    "k": (t.LongType(), [1, 1, 2, 3, 3, 3, 4, 5, 5, 6]),
    "i": (t.IntegerType(), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
    "j": (t.IntegerType(), [1, None, 3, 4, 5, 6, None, 8, 9, 10]),
    "b": (t.BooleanType(), [True, False, True, True, False, True, False, True, True, True]),
    "c": (t.BooleanType(), [True, None, True, True, False, True, None, True, True, True]),
    "x": (t.DoubleType(), [0.0, -0.0, float("nan"), None, 1.5, float("inf"), None, 2.5, -1.0, 3.0]),
    "f": (t.FloatType(), [0.5, 1.5, None, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5]),
    "s": (t.StringType(), ["a", None, "ü", "", "x", "y", None, "z", "w", "v"]),
    "d": (t.DateType(), [dt.date(2024, 2, 29), None, *[dt.date(1900 + n, 1, 1) for n in range(8)]]),
    "u": (t.TimestampType(), [dt.datetime(2024, 1, n + 1, 3, tzinfo=dt.UTC) for n in range(9)] + [None]),
    "w": (t.TimestampNTZType(), [None, *pd.date_range("2024-01-01 03:00", periods=9).to_pydatetime()]),
    "m": (t.DecimalType(9, 2), [Decimal("1.50"), None, *[Decimal(n) for n in range(8)]]),
    "y": (t.BinaryType(), [b"a", None, *[bytes([n]) for n in range(8)]]),
    "l": (t.ArrayType(t.IntegerType()), [[1, 2], None, [], *[[n] for n in range(7)]]),
}
TYPES: dict[str, t.DataType] = {
    "long": t.LongType(),
    "int": t.IntegerType(),
    "double": t.DoubleType(),
    "float": t.FloatType(),
    "string": t.StringType(),
    "boolean": t.BooleanType(),
    "date": t.DateType(),
    "timestamp": t.TimestampType(),
    "timestamp_ntz": t.TimestampNTZType(),
    "decimal(9,2)": t.DecimalType(9, 2),
    "binary": t.BinaryType(),
    "array<int>": t.ArrayType(t.IntegerType()),
}
STARTS = (0, 2, 3, 6, 7, 9, 10)
RESULT = "k long, n int, x double, s string, b boolean, d date"


def outcome(batches: Callable[[], Iterator[pa.RecordBatch]]) -> tuple[list[Any], list[str] | None]:
    """Give the rows, and the text of the error that came instead of more."""
    rows: list[Any] = []
    try:
        for batch in batches():
            rows += batch.to_pylist()
    except Exception as problem:  # noqa: BLE001  # of any kind
        return rows, [type(problem).__name__, str(problem), str(problem.__context__), str(problem.__cause__)]
    return rows, None


def compare(
    function: Callable[..., Any],
    columns: str,
    result: str = RESULT,
    settings: dict[str, str] | None = None,
    takes_key: tuple[int, ...] = (0,),
) -> tuple[list[Any], list[str] | None]:
    """Compare what comes of a function here and in PySpark's own worker, and give it."""
    names = columns.split()
    of_input = t.StructType([t.StructField(name, COLUMNS[name][0]) for name in names])
    fields = [field.rsplit(" ", 1) for field in result.split(", ")]
    of_result = t.StructType([t.StructField(name, TYPES[kind]) for name, kind in fields])
    conf = {"spark.sql.session.timeZone": "America/Sao_Paulo", **(settings or {})}
    command = CloudPickleSerializer().dumps((function, of_result))  # type: ignore[no-untyped-call]
    rows = pa.RecordBatch.from_pydict(
        {name: pa.array(COLUMNS[name][1], arrow_type(COLUMNS[name][0])) for name in names}
    )
    node = PythonRows(
        ConstantTable.from_batch(rows), "f", command,
        pa.schema([pa.field(each.name, arrow_type(each.dataType)) for each in of_result]),
        PythonSettings(
            PythonEvalType.SQL_GROUPED_MAP_PANDAS_UDF, json.dumps(of_input.jsonValue()),
            json.dumps(of_result.jsonValue()), tuple(conf.items()), 10, 1 << 20,
        ),
        (len(takes_key) + len(names) + 1, len(takes_key), *takes_key, *range(len(names))), takes_key,
    )  # fmt: skip
    pieces = [GroupedRows(rows, STARTS)] * 3
    inputs, _ = calling._schemas(node.settings)

    def alone() -> Iterator[pa.RecordBatch]:
        made = PySparkCaller(0)._function(node.settings, [((node.function,), node.arguments, ())])
        return calling._flat(node, made(calling._batches_of_groups(iter(pieces), inputs, node.settings)))

    here = outcome(lambda: PySparkCaller(0).of_groups(node, iter(pieces)))
    expected = outcome(alone)
    if expected[1] is None:
        assert repr(here) == repr(expected)
    else:
        assert here[1] == expected[1]
    return here


def shown(rows: pd.DataFrame) -> pd.DataFrame:
    """Show all that a function may see of its rows."""
    blocks = [getattr(block.values, "_ndarray", block.values) for block in rows._mgr.blocks]
    layout = [
        (array.flags.c_contiguous, array.flags.writeable, array.shape)
        for array in blocks
        if isinstance(array, np.ndarray)
    ]
    text = f"{list(map(repr, rows.itertuples()))} {rows.dtypes.to_dict()} {rows.index!r} {rows.columns!r} {layout}"
    return pd.DataFrame({"s": [text]})


extra = pytest.mark.extra


@pytest.mark.parametrize(
    "columns",
    [
        "k i b x f s d u w m y",
        "k i j",
        *[pytest.param(each, marks=extra) for each in ("k x", "k c s", "k l", *COLUMNS)],
    ],
)
@pytest.mark.parametrize("extension", ["false", pytest.param("true", marks=extra)])
def test_functions_see_the_rows_that_pyspark_gives_them(columns: str, extension: str) -> None:
    settings = {"spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype": extension}
    rows, problem = compare(shown, columns, "s string", settings)
    assert len(rows) == 18
    assert problem is None


def shown_key(key: tuple[Any, ...], rows: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"s": [f"{key!r} {list(map(type, key))} {len(rows)}"]})


@extra
@pytest.mark.parametrize("column", [name for name in COLUMNS if name != "k"])
def test_functions_see_the_keys_that_pyspark_gives_them(column: str) -> None:
    compare(shown_key, f"k {column}", "s string", takes_key=(0, 1))


def changes_its_rows(rows: pd.DataFrame) -> pd.DataFrame:
    rows["x"] += 1
    rows.loc[:, "k"] = 7
    rows.columns.name = "named"
    return pd.DataFrame({"s": [f"{rows.x.tolist()} {rows.k.tolist()}"]})


def remembers_rows() -> Callable[[pd.DataFrame], pd.DataFrame]:
    seen: list[pd.DataFrame] = []

    def function(rows: pd.DataFrame) -> pd.DataFrame:
        seen.append(rows)
        return pd.DataFrame({"s": [f"{[each.x.tolist() for each in seen]} {rows.columns.name}"]})

    return function


def reuses_its_result() -> Callable[[pd.DataFrame], pd.DataFrame]:
    result = pd.DataFrame({"k": [0], "x": [0.0]})

    def function(rows: pd.DataFrame) -> pd.DataFrame:
        result.loc[0, "k"] = rows.k.iloc[0]
        result["x"] = float(len(rows))
        return result

    return function


@pytest.mark.parametrize("function", [changes_its_rows, remembers_rows()], ids=["changes", "remembers"])
def test_functions_have_their_rows_for_themselves(function: Callable[..., Any]) -> None:
    rows, _ = compare(function, "k x", "s string")
    assert len(rows) == 18


def test_a_result_that_is_changed_later_was_taken_before() -> None:
    rows, _ = compare(reuses_its_result(), "k x", "k long, x double")
    assert [row["x"] for row in rows[:6]] == [2.0, 1.0, 3.0, 1.0, 2.0, 1.0]


FULL = {"k": 1, "n": 2, "x": 0.5, "s": "a", "b": True, "d": dt.date(2024, 2, 29)}
OTHER: dict[str, list[Any]] = {
    "k": [None, 2.0, 2.5, "3", True, 1 << 63, np.int8(4), Decimal(5)],
    "n": [None, 1 << 40, -1.0, float("nan"), "x", False],
    "x": [None, 1, "0.5", True, np.float32(0.1), float("nan")],
    "s": [None, 1, 2.5, float("nan"), b"a", True, "\ud800", np.str_("b"), [1], dt.date(2024, 1, 1)],
    "b": [None, 0, 1.0, "true", np.bool_(False)],
    "d": [
        None,
        "2024-01-01",
        pd.Timestamp("2024-01-01 05:00").to_pydatetime(),
        pd.Timestamp("2024-01-01"),
        5,
        float("nan"),
    ],
}


@pytest.mark.parametrize(("column", "value"), [("n", float("nan")), ("s", 2.5), ("d", "2024-01-01")])
def test_a_result_of_another_kind_is_taken_as_pyspark_takes_it(column: str, value: Any) -> None:
    check_other_value(column, value, "false")


@extra
@pytest.mark.parametrize("safe", ["false", "true"])
@pytest.mark.parametrize(("column", "value"), [(name, value) for name, values in OTHER.items() for value in values])
def test_results_of_several_kinds_are_taken_as_pyspark_takes_them(column: str, value: Any, safe: str) -> None:
    check_other_value(column, value, safe)


def check_other_value(column: str, value: Any, safe: str) -> None:
    """Have one group give another value than all others; what comes of it is what would come of it alone."""

    def function(rows: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({name: [value if name == column and rows.k[0] == 4 else FULL[name]] for name in FULL})

    compare(function, "k x", settings={"spark.sql.execution.pandas.convertToArrowArraySafely": safe})


@pytest.mark.parametrize(
    "value",
    ["nothing", "order", "missing", "more", "duplicate", "numbers", "series", "none", "category", "extension", "empty"],
)
@pytest.mark.parametrize("by_name", ["true", pytest.param("false", marks=extra)])
def test_results_of_other_columns_are_taken_as_pyspark_takes_them(value: str, by_name: str) -> None:
    def function(rows: pd.DataFrame) -> Any:
        frame = pd.DataFrame({"k": rows.k, "x": rows.x, "s": "a"})
        others = {
            "nothing": pd.DataFrame(), "order": frame[["s", "k", "x"]], "missing": frame[["k", "x"]],
            "more": frame.assign(z=1), "duplicate": frame[["k", "x", "x"]],
            "numbers": frame.set_axis([0, 1, 2], axis=1), "series": frame.k, "none": None,
            "category": frame.assign(s=frame.s.astype("category")),
            "extension": frame.assign(k=frame.k.astype("Int64")), "empty": frame.iloc[:0],
        }  # fmt: skip
        return others[value] if rows.k[0] == 4 else frame

    settings = {"spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName": by_name}
    compare(function, "k x", "k long, x double, s string", settings)


@extra
@pytest.mark.parametrize("result", [f"{name} {kind}" for name, kind in {
    "i": "int", "x": "double", "f": "float", "s": "string", "d": "date", "u": "timestamp", "w": "timestamp_ntz",
    "m": "decimal(9,2)", "y": "binary", "l": "array<int>", "j": "int", "b": "boolean", "c": "boolean",
}.items()])  # fmt: skip
def test_rows_that_are_given_back_are_those_that_came(result: str) -> None:
    rows, problem = compare(lambda rows: rows[[result[0]]], f"k {result[0]}", result)
    assert problem is None
    assert len(rows) == 30


def fails_at(number: int, result: Any) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """Make a function whose result of one group cannot be taken, and that raises for a later one."""

    def function(rows: pd.DataFrame) -> pd.DataFrame:
        if rows.k[0] == number:
            raise KeyError(f"no {number}")
        return pd.DataFrame({"k": [result if rows.k[0] == 4 else 1]})

    return function


@pytest.mark.parametrize("number", [1, 3, 5])
@pytest.mark.parametrize("result", [1, "x"])
def test_the_first_error_is_pysparks(number: int, result: Any) -> None:
    _, problem = compare(fails_at(number, result), "k x", "k long")
    assert problem is not None
    assert ("KeyError" in problem) is (number < 4 or result == 1)


def test_groups_are_called_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames are made, and results converted, for several groups at a time."""
    made: list[int] = []
    plain, converted = groups.FrameFunction._plain_series, groups._Results._converted

    def counted(self: groups.FrameFunction, rows: pa.RecordBatch) -> list[pd.Series]:
        made.append(rows.num_rows)
        return plain(self, rows)

    monkeypatch.setattr(groups.FrameFunction, "_plain_series", counted)

    def alone(self: groups._Results, frame: pd.DataFrame) -> pa.RecordBatch:
        made.append(0)
        return converted(self, frame)

    monkeypatch.setattr(groups._Results, "_converted", alone)
    compare(lambda rows: rows[["k", "x"]].head(1), "k x", "k long, x double")
    assert made.count(10) == len(made) - made.count(0) == 3
    assert made.count(0) <= 2
