"""Calls Python functions of the query as PySpark's own worker does, by its own code.

PySpark reads pickled functions and makes of them one function from Arrow batches to Arrow batches
(``pyspark.worker.read_udfs``): types, nulls, time zones, checks of results and their errors are its own.
"""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as pat
from pyspark.util import PythonEvalType

from gpujoin.errors import GpuJoinError
from gpujoin.model.python_calls import GROUPS_TOGETHER, ROWS_TOGETHER, GroupedRows
from gpujoin.spark.shuffle.scattering import conform

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpujoin.model.python_calls import (
        PythonAggregate,
        PythonCall,
        PythonCalls,
        PythonCogroups,
        PythonRows,
        PythonSettings,
        PythonWindow,
    )
    from gpujoin.spark.worker.groups import FrameFunction

    _Call = tuple[Sequence[bytes], Sequence[int], Sequence[tuple[str, int]]]
    """Functions, the innermost first, and what the innermost is given by position and by name."""
    _BatchFunction = Callable[[Iterator[Any]], Iterator[pa.RecordBatch]]


_LARGE = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
"""Layouts that say the same: PySpark gives one where another is declared (`SQL_GROUPED_AGG_PANDAS_ITER_UDF`)."""
_BYTES_TOGETHER = 1 << 24
"""Bytes of results that become one batch: far fewer than 32-bit offsets of texts and lists reach to."""


class PySparkCaller:
    """Calls the functions of nodes in a worker of PySpark's.

    Parameters
    ----------
    partition : int
        Number of the task's partition.
    """

    def __init__(self, partition: int) -> None:
        self._partition = partition

    def results(self, node: PythonCalls, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Call the functions of a node for batches of its inputs; see `gpujoin.model.python_calls`."""
        inputs, results = _schemas(node.settings)
        arguments = (_conformed(batch, inputs) for batch in batches)
        for batch in self._function(node.settings, _calls(node.calls))(arguments):
            _check(batch.schema, results)
            yield _conformed(batch, node.results)

    def rows(self, node: PythonRows, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Call the function of a node for batches of its input; see `gpujoin.model.python_calls`."""
        inputs, _ = _schemas(node.settings)
        return self._rows(node, (_as_struct(_conformed(batch, inputs)) for batch in batches))

    def of_groups(self, node: PythonRows, groups: Iterator[GroupedRows]) -> Iterator[pa.RecordBatch]:
        """Call the function of a node for each group of rows; see `gpujoin.model.python_calls`."""
        inputs, _ = _schemas(node.settings)
        if node.settings.kind == PythonEvalType.SQL_GROUPED_MAP_PANDAS_UDF:
            pieces = (GroupedRows(_conformed(each.rows, inputs), each.bounds) for each in groups)
            return _flat(node, _frame_function(node).results(pieces))
        return self._rows(node, _batches_of_groups(groups, inputs, node.settings, _as_struct))

    def of_cogroups(
        self, node: PythonCogroups, groups: Iterator[tuple[GroupedRows, GroupedRows]]
    ) -> Iterator[pa.RecordBatch]:
        """Call the function of a node for each group of both inputs' rows; see `gpujoin.model.python_calls`."""
        schemas = [_schema(node.settings, each) for each in (node.settings.input_type, node.right_type)]

        def inputs() -> Iterator[tuple[list[pa.RecordBatch], list[pa.RecordBatch]]]:
            for sides in groups:
                left, right = map(_batches_of, sides, schemas, itertools.repeat(node.settings))
                yield from zip(map(list, left), map(list, right), strict=True)

        return self._rows(node, inputs())

    def of_inputs(
        self, node: PythonAggregate | PythonWindow, groups: Iterator[GroupedRows]
    ) -> Iterator[pa.RecordBatch]:
        """Call the functions of a node for each group of its inputs; see `gpujoin.model.python_calls`."""
        inputs, results = _schemas(node.settings)
        batches = self._function(node.settings, _calls(node.calls))(_batches_of_groups(groups, inputs, node.settings))
        for batch in _together(batches, lambda schema: _check(schema, results)):
            yield _conformed(batch, node.results)

    def _rows(self, node: PythonRows | PythonCogroups, inputs: Iterator[Any]) -> Iterator[pa.RecordBatch]:
        """Call the function of a node, which gives rows as structs."""
        return _flat(node, self._function(node.settings, [((node.function,), node.arguments, ())])(inputs))

    def _function(self, settings: PythonSettings, calls: Sequence[_Call]) -> _BatchFunction:
        """Have PySpark make one function of several calls."""
        from pyspark.worker import EvalConf, RunnerConf, read_udfs
        from pyspark.worker_util import pickleSer

        commands = [_command(call, number) for number, call in enumerate(calls)]
        typed = settings.kind == PythonEvalType.SQL_ARROW_BATCHED_UDF
        evaluated = EvalConf({"input_type": settings.input_type} if typed else {})
        conf = RunnerConf(dict(settings.settings))
        function = read_udfs(pickleSer, commands, settings.kind, conf, evaluated)[0]  # type: ignore[no-untyped-call]
        return partial(function, self._partition)


def _command(call: _Call, number: int) -> Any:
    """Give what PySpark reads of a call."""
    from pyspark.worker_message import UDFInfo

    functions, arguments, keywords = call
    return UDFInfo([memoryview(each) for each in functions], list(arguments), dict(keywords), number)


def _frame_function(node: PythonRows) -> FrameFunction:
    """Have PySpark read a function of groups of pandas' frames."""
    from pyspark.worker import RunnerConf, read_single_udf
    from pyspark.worker_util import pickleSer

    from gpujoin.spark.worker.groups import FrameFunction

    conf, command = RunnerConf(dict(node.settings.settings)), _command(((node.function,), node.arguments, ()), 0)
    function, arguments, result, count = read_single_udf(  # type: ignore[no-untyped-call]
        pickleSer, command, node.settings.kind, conf, udf_index=0
    )
    keys = 2 + arguments[1]
    return FrameFunction(function, arguments[2:keys], arguments[keys:], count != 1, result, conf)


def _flat(node: PythonRows | PythonCogroups, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give rows that come as structs."""
    _, results = _schemas(node.settings)
    for structs in _together(batches, lambda schema: _check(pa.schema(list(schema.field(0).type)), results)):
        with _own_work():
            rows = pa.RecordBatch.from_struct_array(structs.column(0))
        yield _conformed(rows, node.schema)


def _conformed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Give a batch in a schema; that this fails is no error of the function's."""
    with _own_work():
        return conform(batch, schema)


@contextmanager
def _own_work() -> Iterator[None]:
    try:
        yield
    except pa.ArrowException as problem:
        raise GpuJoinError(f"rows of Python functions cannot be converted: {problem}") from problem


def _calls(calls: Sequence[PythonCall]) -> list[_Call]:
    return [(call.functions, call.arguments, call.keywords) for call in calls]


def _batches_of_groups(
    groups: Iterator[GroupedRows],
    schema: pa.Schema,
    settings: PythonSettings,
    form: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None,
) -> Iterator[Iterator[pa.RecordBatch]]:
    """Give the rows of each group in batches of the size that Spark gives."""
    return itertools.chain.from_iterable(_batches_of(each, schema, settings, form) for each in groups)


def _batches_of(
    groups: GroupedRows,
    schema: pa.Schema,
    settings: PythonSettings,
    form: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None,
) -> Iterator[Iterator[pa.RecordBatch]]:
    """Give the rows of each group in batches; of a group without rows, which a cogroup may have, one without rows."""
    rows = _conformed(groups.rows, schema)
    if form is not None:
        rows = form(rows)
    length = settings.rows_at_a_time(rows)
    for start, end in itertools.pairwise(groups.bounds):
        yield _slices(rows, start, end, length)


def _slices(rows: pa.RecordBatch, start: int, end: int, length: int) -> Iterator[pa.RecordBatch]:
    return (rows.slice(place, min(length, end - place)) for place in range(start, max(end, start + 1), length))


def _together(batches: Iterator[pa.RecordBatch], check: Callable[[pa.Schema], None]) -> Iterator[pa.RecordBatch]:
    """Bring the results of several groups together, of more and more of them, so that the first come soon.

    Each schema is checked once, as soon as it comes.
    """
    buffered: list[pa.RecordBatch] = []
    most, rows, nbytes = 1, 0, 0
    for batch in batches:
        if buffered and batch.schema != buffered[0].schema:
            yield _concatenated(buffered)
            buffered, rows, nbytes = [], 0, 0
        if not buffered:
            check(batch.schema)
        buffered.append(batch)
        rows += batch.num_rows
        nbytes += batch.nbytes
        if len(buffered) >= most or rows >= ROWS_TOGETHER or nbytes >= _BYTES_TOGETHER:
            yield _concatenated(buffered)
            buffered, rows, nbytes, most = [], 0, 0, min(2 * most, GROUPS_TOGETHER)
    if buffered:
        yield _concatenated(buffered)


def _concatenated(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    with _own_work():
        columns = [pa.concat_arrays(columns) for columns in zip(*(batch.columns for batch in batches), strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=batches[0].schema)


def _as_struct(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Give the rows as structs in one column, as Spark gives whole rows."""
    return pa.RecordBatch.from_arrays([batch.to_struct_array()], ["_0"])


def _schemas(settings: PythonSettings) -> tuple[pa.Schema, pa.Schema]:
    """Give the Arrow schemas of what is given and taken."""
    return _schema(settings, settings.input_type), _schema(settings, settings.result_type)


def _schema(settings: PythonSettings, of_type: str) -> pa.Schema:
    """Give the Arrow schema in which Spark hands a worker values of a type."""
    import json

    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    conf = dict(settings.settings)
    return to_arrow_schema(
        StructType.fromJson(json.loads(of_type)),
        timezone=conf["spark.sql.session.timeZone"],
        prefers_large_types=conf.get("spark.sql.execution.arrow.useLargeVarTypes", "false").lower() == "true",
    )


def _check(actual: pa.Schema, expected: pa.Schema) -> None:
    """Refuse results of another type, as Spark does where it reads them; its own words are not repeated here."""
    if len(actual) != len(expected):
        raise GpuJoinError(f"a Python function gave {len(actual)} columns, and not {len(expected)}")
    for field, expected_field in zip(actual, expected, strict=True):
        if not _is_same(field.type, expected_field.type):
            raise GpuJoinError(f"a Python function gave {field.type}, and not {expected_field.type}")


def _is_same(actual: pa.DataType, expected: pa.DataType) -> bool:
    """Whether Spark reads values of both types as one; names of time zones are labels."""
    if pat.is_timestamp(actual) and pat.is_timestamp(expected):
        return bool(actual.unit == expected.unit and (actual.tz is None) is (expected.tz is None))
    if _LARGE.get(actual, actual) == _LARGE.get(expected, expected) and not actual.num_fields:
        return True
    if actual.id != expected.id or actual.num_fields != expected.num_fields:
        return False
    if pat.is_map(actual):
        return _is_same(actual.key_type, expected.key_type) and _is_same(actual.item_type, expected.item_type)
    if not actual.num_fields:
        return bool(actual == expected)
    fields = [(actual.field(n), expected.field(n)) for n in range(actual.num_fields)]
    is_struct = pat.is_struct(actual)
    return all((one.name == two.name or not is_struct) and _is_same(one.type, two.type) for one, two in fields)
