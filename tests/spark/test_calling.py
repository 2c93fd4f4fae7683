"""Functions of a query are called in a worker's process by PySpark's own code, in batches, without a session."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyspark
import pytest
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import types as t
from pyspark.util import PythonEvalType, try_simplify_traceback

from gpujoin.config import Options
from gpujoin.engine.memory import HostMemory
from gpujoin.engine.pipeline import python_calls, run
from gpujoin.errors import FUNCTIONS_FILE, GpuJoinError, HostMemoryError, PythonFunctionError
from gpujoin.model.pipeline import PipelineMetrics
from gpujoin.model.python_calls import (
    GroupedRows,
    PythonAggregate,
    PythonCall,
    PythonCalls,
    PythonCogroups,
    PythonRows,
    PythonSettings,
)
from gpujoin.model.relations import ConstantTable, ExchangeSource, Limit, Output, Relation, column
from gpujoin.spark.compat import arrow_type
from gpujoin.spark.failures import _is_our_traceback
from gpujoin.spark.worker import calling
from gpujoin.spark.worker.calling import PySparkCaller
from gpujoin.spark.worker.task import enter, with_errors_of_functions

pytestmark = pytest.mark.skipif(
    not pyspark.__version__.startswith("4.3."), reason="other versions leave functions to Spark"
)

ROWS = pa.RecordBatch.from_pydict({"k": pa.array(range(25), pa.int64()), "v": [n / 2 for n in range(25)]})
TYPES = {"k": t.LongType(), "v": t.DoubleType()}


def calls(
    function: Callable[..., Any],
    result: t.DataType,
    *columns: str,
    kind: int = PythonEvalType.SQL_SCALAR_PANDAS_UDF,
    batch_rows: int = 10,
    child: Relation | None = None,
) -> PythonCalls:
    """Call a function of some columns, in batches of ten rows."""
    child = child or ConstantTable.from_batch(ROWS)
    command = CloudPickleSerializer().dumps((function, result))  # type: ignore[no-untyped-call]

    def typed(*types: t.DataType) -> str:
        return json.dumps(t.StructType([t.StructField(f"_{n}", each) for n, each in enumerate(types)]).jsonValue())

    settings = PythonSettings(
        kind, typed(*(TYPES[name] for name in columns)), typed(result),
        (("spark.sql.session.timeZone", "UTC"),), batch_rows, 1 << 20,
    )  # fmt: skip
    inputs = tuple(Output(f"input {n}", column(child.schema, name)) for n, name in enumerate(columns))
    call = PythonCall(("f",), (command,), tuple(range(len(columns))), (), "r#1", arrow_type(result))
    return PythonCalls(child, inputs, (call,), settings)


def results(node: Relation, **inputs: Any) -> list[Any]:
    """Run a tree, and give its last column."""
    batches = run(node, caller=PySparkCaller(0), **inputs)
    return [value for batch in batches for value in batch.column(batch.num_columns - 1).to_pylist()]


def plus(left: pd.Series, right: pd.Series) -> pd.Series:
    return left + right


def size(values: pd.Series) -> pd.Series:
    return pd.Series([len(values)] * len(values))


def in_one(parts: Iterator[pd.Series]) -> Iterator[pd.Series]:
    yield pd.concat(list(parts))


def sevenths(parts: Iterator[pd.Series]) -> Iterator[pd.Series]:
    values = pd.concat(list(parts))
    for start in range(0, len(values), 7):
        yield values.iloc[start : start + 7]


def test_results_stand_beside_the_rows_that_they_are_of() -> None:
    assert results(calls(plus, t.DoubleType(), "k", "v")) == [1.5 * n for n in range(25)]


def test_functions_are_given_batches_of_the_size_that_spark_gives() -> None:
    assert results(calls(size, t.LongType(), "k")) == [10] * 20 + [5] * 5


@pytest.mark.parametrize("function", [in_one, sevenths])
def test_functions_of_all_batches_may_cut_their_results_elsewhere(function: Callable[..., Any]) -> None:
    node = calls(function, t.LongType(), "k", kind=PythonEvalType.SQL_SCALAR_PANDAS_ITER_UDF)
    assert results(node) == list(range(25))


def test_a_function_of_nothing_is_called_for_each_row() -> None:
    assert results(calls(lambda: 3, t.IntegerType(), kind=PythonEvalType.SQL_ARROW_BATCHED_UDF)) == [3] * 25


def test_a_limit_has_few_rows_computed() -> None:
    table = pa.table({"k": pa.array(range(100_000), pa.int64())})
    seen: list[int] = []
    node = calls(size, t.LongType(), "k", child=ExchangeSource(0, table.schema))

    class Counting(PySparkCaller):
        def results(self, node: PythonCalls, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in super().results(node, batches):
                seen.append(batch.num_rows)
                yield batch

    assert sum(batch.num_rows for batch in run(Limit(node, 15), {0: table}, caller=Counting(0))) == 15
    assert sum(seen) <= 40


def fails(values: pd.Series) -> pd.Series:
    raise ValueError(f"no {len(values)}")


def test_the_traceback_of_a_function_is_as_pyspark_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_SIMPLIFIED_TRACEBACK", "")
    with pytest.raises(ValueError, match="no 10") as raised:
        list(with_errors_of_functions(run(calls(fails, t.LongType(), "k"), caller=PySparkCaller(0))))
    step = raised.value.__traceback__
    assert step is not None
    assert step.tb_next is not None
    frames = traceback.extract_tb(step.tb_next)  # without that of this test
    assert frames[0].filename.endswith(FUNCTIONS_FILE)
    assert not any("gpujoin" in frame.filename.split("site-packages")[-1] for frame in frames[:-1])
    simplified = try_simplify_traceback(step.tb_next)
    assert simplified is not None
    assert [frame.name for frame in traceback.extract_tb(simplified)] == ["fails"]


def shown(action: Callable[[], object]) -> str:
    """Give the traceback of an error as a worker writes it, with all frames of PySpark's."""
    with pytest.raises(Exception) as raised:  # noqa: PT011  # of any kind
        action()
    text = "".join(traceback.format_exception(raised.value))
    return text.replace(__file__, "/python/pyspark/worker.py")


def test_an_error_of_a_worker_is_ours_with_all_frames_shown() -> None:
    """Stages of bytes have no frames left out."""
    text = shown(lambda: list(enter(b"", "0.0.0", None, iter(()))))
    assert "the driver has gpujoin 0.0.0" in text
    assert _is_our_traceback(text)


@pytest.mark.parametrize("result", [fails, lambda values: values.iloc[1:]], ids=["raises", "gives too few"])
def test_an_error_of_a_function_is_not_ours_with_all_frames_shown(
    monkeypatch: pytest.MonkeyPatch, result: Callable[..., Any]
) -> None:
    monkeypatch.setenv("SPARK_SIMPLIFIED_TRACEBACK", "")  # which is restored
    rows = with_errors_of_functions(run(calls(result, t.LongType(), "k"), caller=PySparkCaller(0)))
    text = shown(lambda: list(rows))
    assert "Error" in text.splitlines()[-1]
    assert not _is_our_traceback(text)


@pytest.mark.parametrize("simplified", [True, False])
def test_pyspark_is_told_whether_to_leave_out_its_frames(monkeypatch: pytest.MonkeyPatch, *, simplified: bool) -> None:
    monkeypatch.setenv("SPARK_SIMPLIFIED_TRACEBACK", "")
    node = calls(fails, t.LongType(), "k")
    settings = dataclasses.replace(node.settings, simplified_tracebacks=simplified)
    with pytest.raises(ValueError, match="no 10"):
        list(with_errors_of_functions(run(dataclasses.replace(node, settings=settings), caller=PySparkCaller(0))))
    assert os.environ.get("SPARK_SIMPLIFIED_TRACEBACK") == ("1" if simplified else None)


@pytest.mark.parametrize("calls_first", [True, False], ids=["called", "not called"])
def test_nothing_is_retried_once_a_function_was_called(monkeypatch: pytest.MonkeyPatch, *, calls_first: bool) -> None:
    """What a function counts or prints is done once, whatever fails after it."""
    called: list[int] = []
    failed: list[bool] = []

    class Counting(PySparkCaller):
        def results(self, node: PythonCalls, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in super().results(node, batches):
                called.append(batch.num_rows)
                yield batch

    def watch(_: HostMemory) -> None:
        if bool(called) is calls_first and not failed:
            failed.append(True)
            raise HostMemoryError("of a test")

    monkeypatch.setattr(HostMemory, "watch", watch)
    rows = run(calls(size, t.LongType(), "k"), caller=Counting(0))
    if not calls_first:
        assert sum(batch.num_rows for batch in rows) == 25
        return
    with pytest.raises(HostMemoryError):
        list(rows)
    assert called == [10]


def test_an_error_in_the_rows_is_none_of_the_function() -> None:
    def rows() -> Iterator[pa.RecordBatch]:
        yield ROWS
        raise KeyError("of a test")

    def swallows(parts: Iterator[pd.Series]) -> Iterator[pd.Series]:
        try:
            yield from parts
        except KeyError:
            return

    node = calls(
        swallows, t.LongType(), "k", kind=PythonEvalType.SQL_SCALAR_PANDAS_ITER_UDF,
        child=ExchangeSource(0, ROWS.schema),
    )  # fmt: skip
    with pytest.raises(KeyError, match="of a test"):
        list(run(node, {0: rows()}, caller=PySparkCaller(0)))


def test_a_result_of_another_length_is_an_error_of_the_function() -> None:
    node = calls(lambda values: values.iloc[1:], t.LongType(), "k")
    with pytest.raises(PythonFunctionError, match="RESULT_ROWS_MISMATCH"):
        results(node)


# -- rows of a task, and of groups -----------------------------------------------------------------------------------


def of_rows(
    function: Callable[..., Any], child: Relation, kind: int, keys: tuple[int, ...] | None = None, batch_rows: int = 10
) -> PythonRows:
    """Call a function of all rows with columns ``k`` and ``v``, or of those of each group by a key."""
    given = t.StructType([t.StructField(name, dtype) for name, dtype in TYPES.items()])
    result = t.StructType().add("n", "long").add("total", "double")
    command = CloudPickleSerializer().dumps((function, result))  # type: ignore[no-untyped-call]
    settings = PythonSettings(
        kind, json.dumps(given.jsonValue()), json.dumps(result.jsonValue()),
        (("spark.sql.session.timeZone", "UTC"),), batch_rows, 1 << 20,
    )  # fmt: skip
    columns = pa.schema([("n", pa.int64()), ("total", pa.float64())])
    arguments = (0,) if keys is None else (len(keys) + 3, len(keys), *keys, 0, 1)
    return PythonRows(child, "f", command, columns, settings, arguments, keys)


def counted(parts: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for rows in parts:
        yield pd.DataFrame({"n": [len(rows)], "total": [rows.v.sum()]})


def counted_batches(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for rows in parts:
        yield pa.RecordBatch.from_pydict({"n": [rows.num_rows], "total": [float(rows.num_rows)]})


def totals(rows: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"n": [len(rows)], "total": [rows.v.sum()]})


def totals_of_key(key: tuple[Any, ...], rows: pa.Table) -> pa.Table:
    return pa.table({"n": [rows.num_rows], "total": [float(key[0].as_py() or -1)]})


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (counted, PythonEvalType.SQL_MAP_PANDAS_ITER_UDF),
        (counted_batches, PythonEvalType.SQL_MAP_ARROW_ITER_UDF),
    ],
    ids=["pandas", "arrow"],
)
def test_a_function_of_all_rows_is_given_batches(function: Callable[..., Any], kind: int) -> None:
    rows = pa.Table.from_batches(run(of_rows(function, ConstantTable.from_batch(ROWS), kind), caller=PySparkCaller(0)))
    assert rows["n"].to_pylist() == [10, 10, 5]


KEYED = pa.RecordBatch.from_pydict(
    {"k": pa.array([3, None, 1, 3, 1, None, 3], pa.int64()), "v": [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]}
)
GROUPS = [(2, 20.0), (2, 34.0), (3, 73.0)]


@pytest.mark.parametrize("budget", [1 << 28, 1], ids=["in memory", "by way of the disk"])
def test_a_function_of_groups_is_given_all_rows_of_each(tmp_path: Path, budget: int) -> None:
    pieces = [KEYED.slice(n, 2) for n in range(0, 7, 2)]
    node = of_rows(totals, ExchangeSource(0, KEYED.schema), PythonEvalType.SQL_GROUPED_MAP_PANDAS_UDF, (0,))
    options, metrics = Options(memory_budget=budget, spill_dir=str(tmp_path)), PipelineMetrics()
    batches = run(node, {0: pieces}, caller=PySparkCaller(0), options=options, metrics=metrics, piece_bytes=1)
    rows = pa.Table.from_batches(batches)
    assert (metrics.spills > 0) is (budget == 1)
    assert sorted(zip(rows["n"].to_pylist(), rows["total"].to_pylist(), strict=True)) == GROUPS


def sizes(key: tuple[Any, ...], left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"n": [10 * len(left) + len(right)], "total": [left.v.sum() - right.w.sum()]})


@pytest.mark.parametrize("budget", [1 << 28, 1], ids=["in memory", "by way of the disk"])
def test_a_function_of_cogroups_is_given_the_rows_of_both(tmp_path: Path, budget: int) -> None:
    """Rows with a null key are a group, and so are those of one side alone."""
    rows = pa.RecordBatch.from_pydict(
        {
            "k": pa.array([3, None, 1, 3, 1, None, 4], pa.int64()),
            "right": [False, True, False, True, False, True, True],
            "v": pa.array([1.0, None, 4.0, None, 16.0, None, None]),
            "w": pa.array([None, 1.0, None, 2.0, None, 4.0, 8.0]),
        }
    )
    of_left = of_rows(sizes, ExchangeSource(0, rows.schema), PythonEvalType.SQL_COGROUPED_MAP_PANDAS_UDF, (0,))
    of_right = t.StructType().add("k", "long").add("w", "double")
    node = PythonCogroups(
        of_left.child, "f", of_left.function, of_left.columns, of_left.settings, 2 * of_left.arguments,
        keys=(0,), side=1, left=(0, 2), right=(0, 3), right_type=json.dumps(of_right.jsonValue()),
    )  # fmt: skip
    options, metrics = Options(memory_budget=budget, spill_dir=str(tmp_path)), PipelineMetrics()
    pieces = [rows.slice(n, 2) for n in range(0, 7, 2)]
    batches = run(node, {0: pieces}, caller=PySparkCaller(0), options=options, metrics=metrics, piece_bytes=1)
    results = pa.Table.from_batches(batches)
    assert (metrics.spills > 0) is (budget == 1)
    assert sorted(zip(results["n"].to_pylist(), results["total"].to_pylist(), strict=True)) == [
        (1, -8.0), (2, -5.0), (11, -1.0), (20, 20.0),
    ]  # fmt: skip


@pytest.mark.parametrize("most", [1, 40, 200])
def test_rows_of_more_bytes_than_a_batch_holds_are_cut_between_groups(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    pieces = pa.Table.from_batches(
        [KEYED.slice(n, 2).append_column("s", pa.array(["x" * 20] * min(2, 7 - n))) for n in range(0, 7, 2)]
    )
    groups: list[list[Any]] = []

    class Noting(PySparkCaller):
        def of_inputs(self, node: Any, rows: Iterator[GroupedRows]) -> Iterator[pa.RecordBatch]:
            for each in rows:
                groups.append(list(each.bounds))
                sums = [
                    pc.sum(each.rows["v"].slice(start, end - start)).as_py()
                    for start, end in itertools.pairwise(each.bounds)
                ]
                yield pa.RecordBatch.from_arrays([pa.array(sums)], schema=node.results)

    call = PythonCall(("f",), (b"",), (0,), (), "a0", pa.float64())
    settings = PythonSettings(0, "", "", (), 10, 1 << 20)
    node = PythonAggregate(ExchangeSource(0, pieces.schema), (0,), (1, 2), (call,), settings)
    expected = dict(zip([None, 1, 3], [34.0, 20.0, 73.0], strict=True))
    monkeypatch.setattr(python_calls, "_MOST_BYTES", most)
    rows = pa.Table.from_batches(run(node, {0: pieces.to_batches()}, caller=Noting(0)))
    assert dict(zip(rows["k"].to_pylist(), rows["a0"].to_pylist(), strict=True)) == expected
    assert len(groups) == {1: 3, 40: 3, 200: 1}[most]


def test_results_are_brought_together_up_to_some_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calling, "_BYTES_TOGETHER", 100)
    batch = pa.RecordBatch.from_pydict({"x": [1.0] * 5})
    sizes = [each.num_rows for each in calling._together(iter([batch] * 64), lambda schema: None)]
    assert sum(sizes) == 320
    assert max(sizes) == 15


def test_results_that_cannot_be_converted_here_are_no_error_of_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise pa.ArrowInvalid("offset overflow")

    monkeypatch.setattr(calling, "conform", fails)
    node = of_rows(counted, ConstantTable.from_batch(ROWS), PythonEvalType.SQL_MAP_PANDAS_ITER_UDF)
    with pytest.raises(GpuJoinError, match="offset overflow") as raised:
        list(run(node, caller=PySparkCaller(0)))
    assert not isinstance(raised.value, PythonFunctionError)


def test_a_function_of_groups_is_not_read_where_there_are_none() -> None:
    node = of_rows(totals, ExchangeSource(0, KEYED.schema), PythonEvalType.SQL_GROUPED_MAP_PANDAS_UDF, (0,))
    node = dataclasses.replace(node, function=b"no function")
    assert list(run(node, {0: [KEYED.slice(0, 0)]}, caller=PySparkCaller(0))) == []


def test_a_function_of_groups_is_given_the_key() -> None:
    node = of_rows(totals_of_key, ConstantTable.from_batch(KEYED), PythonEvalType.SQL_GROUPED_MAP_ARROW_UDF, (0,))
    rows = pa.Table.from_batches(run(node, caller=PySparkCaller(0)))
    assert sorted(zip(rows["n"].to_pylist(), rows["total"].to_pylist(), strict=True)) == [
        (2, -1.0), (2, 1.0), (3, 3.0),
    ]  # fmt: skip


def test_a_group_comes_in_several_batches_if_it_is_large() -> None:
    sizes: list[int] = []
    rows = pa.RecordBatch.from_pydict({"k": pa.array([7] * 25, pa.int64()), "v": [1.0] * 25})

    class Counting(PySparkCaller):
        def _function(self, *arguments: Any) -> Any:
            function = super()._function(*arguments)

            def noted(group: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
                for batch in group:
                    sizes.append(batch.num_rows)
                    yield batch

            return lambda groups: function(map(noted, groups))

    node = of_rows(totals_of_key, ConstantTable.from_batch(rows), PythonEvalType.SQL_GROUPED_MAP_ARROW_UDF, (0,))
    assert pa.Table.from_batches(run(node, caller=Counting(0)))["n"].to_pylist() == [25]
    assert sizes == [10, 10, 5]
