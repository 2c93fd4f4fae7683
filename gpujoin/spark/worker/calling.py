"""Calls Python functions of the query as PySpark's own worker does, by its own code.

PySpark reads pickled functions and makes of them one function from Arrow batches to Arrow batches
(``pyspark.worker.read_udfs``): types, nulls, time zones, checks of results and their errors are its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.errors import UnsupportedValueError
from gpujoin.spark.shuffle.scattering import conform

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpujoin.model.python_calls import PythonCalls, PythonSettings


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
        from pyspark.util import PythonEvalType
        from pyspark.worker import EvalConf, RunnerConf, read_udfs
        from pyspark.worker_message import UDFInfo
        from pyspark.worker_util import pickleSer

        settings = node.settings
        calls = [
            UDFInfo([memoryview(each) for each in call.functions], list(call.arguments), dict(call.keywords), number)
            for number, call in enumerate(node.calls)
        ]
        typed = settings.kind == PythonEvalType.SQL_ARROW_BATCHED_UDF
        evaluated = EvalConf({"input_type": settings.input_type} if typed else {})
        conf = RunnerConf(dict(settings.settings))
        function = read_udfs(pickleSer, calls, settings.kind, conf, evaluated)[0]  # type: ignore[no-untyped-call]
        given = _schema(settings, settings.input_type)
        results = _schema(settings, settings.result_type)
        for batch in function(self._partition, (conform(batch, given) for batch in batches)):
            _check(batch.schema, results)
            yield conform(batch, node.results)


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


def _check(actual: pa.Schema, wanted: pa.Schema) -> None:
    """Refuse results of another type, as Spark does where it reads them; its own words are not repeated here."""
    for field, expected in zip(actual, wanted, strict=True):
        if not _is_same(field.type, expected.type):
            raise UnsupportedValueError(f"a Python function gave {field.type}, and not {expected.type}")


def _is_same(actual: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether Spark reads values of both types as one; names of time zones are labels."""
    if pat.is_timestamp(actual) and pat.is_timestamp(wanted):
        return bool(actual.unit == wanted.unit and (actual.tz is None) is (wanted.tz is None))
    if actual.id != wanted.id or actual.num_fields != wanted.num_fields:
        return False
    if pat.is_map(actual):
        return _is_same(actual.key_type, wanted.key_type) and _is_same(actual.item_type, wanted.item_type)
    if not actual.num_fields:
        return bool(actual == wanted)
    fields = [(actual.field(n), wanted.field(n)) for n in range(actual.num_fields)]
    is_struct = pat.is_struct(actual)
    return all((one.name == two.name or not is_struct) and _is_same(one.type, two.type) for one, two in fields)
