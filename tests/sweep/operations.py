"""Runs every column of a table of files through every operation, in an enabled session and in Spark, and compares.

What is compared is a *result*: a column or a row with a name of its own, such as ``min(c3)`` or ``group c3``. Many
results come from one query, so that a table of ten columns is 500 comparisons in 30 queries.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as st

from gpujoin import disable, enable
from gpujoin.model.reasons import ReasonKind
from gpujoin.report.outcomes import give_back
from gpujoin.spark.query import hooks, rule, staging
from gpujoin.spark.query.accelerate import plan_query
from gpujoin.testing import Cell, Zeros, cells, row_counts

_Value = TypeVar("_Value")

ID = "id"
"""The column that numbers the rows of a table, in each of its files."""
SETTINGS = {
    "spark.gpujoin.backend": "cpu",
    "spark.gpujoin.fallback": "silent",
    "spark.sql.codegen.wholeStage": "false",  # queries run once
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
}
EXCHANGED = {
    "spark.gpujoin.scan.oneTaskBytes": "1", "spark.gpujoin.scan.taskBytes": "1",
    "spark.gpujoin.broadcastThreshold": "1", "spark.gpujoin.exchange.partitions": "3",
}  # fmt: skip
"""Settings with which all stages are exchanged."""
READING = (
    {"spark.sql.parquet.binaryAsString": "true"}, {"spark.sql.parquet.filterPushdown": "false"},
    {"spark.sql.legacy.parquet.nanosAsLong": "true"}, {"spark.sql.parquet.inferTimestampNTZ.enabled": "false"},
)  # fmt: skip
"""Settings that change what Spark reads, or how."""
_FEW_ROWS, _MORE_ROWS = 20, 100
"""Rows of the two sides of a join by a column's values, of which few may be different."""
UNDECODED = re.compile(r"Length spanned by list offsets|InitBlock EOF")
"""What PyArrow says of pages that it does not decode, so that Spark runs the query after a task has failed: lists of
a fixed length with rows that are null (DuckDB, Polars 0.20), and differences of 33 bits of DuckDB, if the file does not
say that DuckDB wrote it."""
_BRANCHES = 12
"""Most parts of a union: planning takes the time of each."""


@dataclass(frozen=True)
class Table:
    """Parquet files that are read as one table."""

    path: str
    """A file or a folder."""
    schema: st.StructType | None = None
    """Schema that a user states; ``None``: that which Spark finds."""
    context: str = ""
    """What it holds, and by which seed it is made again."""
    misread: bool = False
    """Whether only Spark's other reader, that is not vectorized, reads its pages as they are."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of both sessions while it is read."""

    def frame(self, session: SparkSession) -> DataFrame:
        """Read the files in a session; the column that numbers rows keeps its name, others are ``c0``, ``c1``, …"""
        reader = session.read if self.schema is None else session.read.schema(self.schema)
        frame = reader.parquet(re.sub(r"([\\\[\]{}*?])", r"\\\1", self.path))  # no pattern
        return frame.toDF(*(name if name == ID else f"c{n}" for n, name in enumerate(frame.columns)))


@dataclass
class Report:
    """What comparisons have shown."""

    compared: int = 0
    """Results compared."""
    here: int = 0
    """Of these, of queries of which a part ran here."""
    skipped: Counter[str] = field(default_factory=Counter)
    """Queries that fail in Spark, by its error."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Why queries were left to Spark."""
    problems: list[str] = field(default_factory=list)
    """Differences, errors that only came here, tasks that failed here, and unexpected exceptions while planning."""

    def add(self, other: Report) -> None:
        """Add another report."""
        self.compared += other.compared
        self.here += other.here
        self.skipped += other.skipped
        self.reasons += other.reasons
        self.problems += other.problems

    def __str__(self) -> str:
        return f"{self.compared} compared, {self.here} of parts that ran here, {len(self.problems)} problems"


@dataclass(frozen=True)
class Sessions:
    """An enabled session, one that is not, and what was noted of the queries of the former."""

    here: SparkSession
    native: SparkSession
    planned: list[Any]
    returned: list[str]
    """Messages of tasks that failed here, so that Spark ran their query."""

    def set(self, settings: Mapping[str, str | None]) -> None:
        """Set, or with ``None`` unset, settings of both sessions."""
        for session in (self.here, self.native):
            for key, value in settings.items():
                if value is None:
                    session.conf.unset(key)
                else:
                    session.conf.set(key, value)


@contextlib.contextmanager
def sessions_of(spark: SparkSession) -> Iterator[Sessions]:
    """Make two sessions of an application, and note what becomes of queries while they are used."""
    planned: list[Any] = []
    returned: list[str] = []

    def noted(*arguments: Any) -> Any:
        planned.append(plan_query(*arguments))
        return planned[-1]

    def note_failure(session: SparkSession, problem: Exception, query: Any) -> None:
        returned.append(str(problem))
        give_back(session, problem, query)

    sessions = Sessions(spark.newSession(), spark.newSession(), planned, returned)
    sessions.set(SETTINGS)
    with (
        mock.patch.object(rule, "plan_query", noted),
        mock.patch.object(hooks, "give_back", note_failure),
        mock.patch.object(staging, "give_back", note_failure),
    ):
        enable(sessions.here)
        try:
            yield sessions
        finally:
            disable(sessions.here)


# -- queries -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Query:
    """A query of the view ``t``, and another of the same results that takes Spark less time.

    Here each column is filtered and sorted by in a branch of a union. Spark takes all of them in one pass, and without
    filters that it could push into files: ``select 'c0 > 1' k, count(*) n from t where c0 > 1`` has
    the row of ``select inline(array(struct('c0 > 1' k, count_if(c0 > 1) n))) from t``.
    """

    text: str
    reference: str
    by_row: bool = True
    """Whether each value of its first column names a result; else each of its columns is one, of rows by number."""
    zeros: Zeros = Zeros.DISTINCT


def _text_of(column: str, dtype: st.DataType) -> str:
    """A value as text; different values have different texts."""
    return f"hex({column})" if isinstance(dtype, st.BinaryType) else f"cast({column} as string)"


def _is_nested(dtype: st.DataType) -> bool:
    return isinstance(dtype, st.ArrayType | st.StructType | st.MapType)


def _is_summed(dtype: st.DataType) -> bool:
    """Whether a few hundred values are added without an overflow, in any order to the same sum."""
    if isinstance(dtype, st.DecimalType):
        return dtype.precision <= 30
    return isinstance(dtype, st.ByteType | st.ShortType | st.IntegerType)


def _is_comparable(dtype: st.DataType) -> bool:
    """Whether values are grouped, joined and sorted by."""
    match dtype:
        case st.MapType() | st.VariantType() | st.NullType() | st.CalendarIntervalType():
            return False
        case st.ArrayType():
            return _is_comparable(dtype.elementType)
        case st.StructType():
            return all(_is_comparable(each.dataType) for each in dtype.fields)
    return dtype.typeName() not in ("geometry", "geography")


def literal(value: Cell, dtype: st.DataType) -> str | None:
    """Write a cell as a constant in SQL; ``None`` for types without constants."""
    match dtype:
        case st.BooleanType():
            return str(value).lower()
        case st.ByteType() | st.ShortType() | st.IntegerType() | st.LongType():
            return f"cast('{value}' as {dtype.simpleString()})"
        case st.FloatType() | st.DoubleType():
            number = "NaN" if math.isnan(value) else repr(value).replace("inf", "Infinity")
            return f"cast('{number}' as {dtype.simpleString()})"
        case st.DecimalType():
            return f"cast('{value:f}' as {dtype.simpleString()})"
        case st.DateType():
            return f"date_from_unix_date({value})"
        case st.TimestampType():
            return f"timestamp_micros({value})"
        case st.StringType():
            try:
                return f"decode(X'{value.encode().hex()}', 'utf-8')"
            except UnicodeEncodeError:
                return None
        case st.BinaryType():
            return f"X'{value.hex()}'"
    return None


_MEASURES = f"count(*) n, sum({ID}) s, sum({ID} * {ID}) q"
"""Three numbers by which sets of rows are told apart."""


def _measures(rows: str) -> str:
    return f"{_MEASURES} from {rows}"


def _measures_if(name: str, condition: str) -> str:
    """Those numbers of the rows with a condition, as a struct."""
    rows = f"if({condition}, {ID}, null)"
    return f"struct('{name}' k, count_if({condition}) n, sum({rows}) s, sum({rows} * {ID}) q)"


def _listed(structs: Iterable[str]) -> str:
    return f"inline(array({', '.join(structs)}))"


def _batches(values: Sequence[_Value], size: int) -> Iterator[Sequence[_Value]]:
    return (values[begin : begin + size] for begin in range(0, len(values), size))


class Queries:
    """The queries of a table.

    Parameters
    ----------
    schema : StructType
        Of the view ``t``.
    rows : pyarrow.Table
        The table as Spark reads it, whose values are looked for.
    rng : numpy.random.Generator
        Chooses values, operators and directions.
    """

    def __init__(self, schema: st.StructType, rows: pa.Table, rng: np.random.Generator) -> None:
        self._rng = rng
        self._rows = rows
        self._types = {each.name: each.dataType for each in schema if each.name != ID}
        comparable = [name for name, dtype in self._types.items() if _is_comparable(dtype)]
        self._comparable = comparable
        self._flat = [name for name in comparable if not _is_nested(self._types[name])]

    def __iter__(self) -> Iterator[Query]:
        columns = ", ".join(f"b.{name}" for name in self._types)
        payload = f"select a.{ID}, {columns} from t a join t b on a.{ID} = b.{ID}"
        yield Query(payload, f"select {ID}, {columns} from t b", by_row=False)
        if self._comparable:
            yield self._aggregates()
            yield from map(self._group, self._comparable)
            yield from map(self._join, self._comparable)
            yield from self._sorted()
        yield from self._filters()

    def _aggregates(self) -> Query:
        calls = [
            f"{call} `{call}`"
            for column in self._comparable
            for call in (f"min({column})", f"max({column})", f"count({column})", f"count(distinct {column})")
        ]
        calls += [f"sum({name}) `sum {name}`" for name in self._comparable if _is_summed(self._types[name])]
        text = f"select 0 {ID}, {', '.join(calls)} from t"
        return Query(text, text, by_row=False, zeros=Zeros.SAME)

    def _group(self, column: str) -> Query:
        """Groups by a column, with the least and the greatest value of each."""
        key = _text_of(column, self._types[column])
        calls = [f"{call}({name}) `{call} {name}`" for name in self._comparable for call in ("min", "max")]
        text = f"select {key} `group {column}`, {_MEASURES}, {', '.join(calls)} from t group by {column}"
        return Query(text, text, by_row=False, zeros=Zeros.SAME)

    def _join(self, column: str) -> Query:
        """Joins by a column, with the columns of one side."""
        sign, kind = self._one_of(("=", "=", "<=>")), self._one_of(("", "", "left", "right", "full"))
        if sign == "<=>" and kind == "full":
            kind = ""
        few = f"(select {ID}, {column} from t where {ID} % 3 = 0 and {ID} < {_FEW_ROWS})"
        columns = ", ".join(f"b.{name}" for name in self._types)
        text = (
            f"select struct(a.{ID} x, b.{ID} y) `{kind} join {column}`, {columns} from {few} a {kind} join "
            f"(select * from t where {ID} < {_MORE_ROWS}) b on a.{column} {sign} b.{column}"
        )
        return Query(text, text, by_row=False)

    def _order(self, column: str) -> str:
        return f"{column} {self._one_of(('asc', 'desc'))} nulls {self._one_of(('first', 'last'))}, {ID}"

    def _sorted(self) -> Iterator[Query]:
        """The first rows in the order of a column, and the place of each."""
        most = int(self._rng.integers(1, 9))
        for columns in _batches(self._comparable, _BRANCHES // 2):
            branches, structs, places = [], [], []
            for column, order in ((column, self._order(column)) for column in columns):
                first = f"(select {ID}, {column} from t order by {order} limit {most})"
                every = f"(select {ID}, row_number() over (order by {order}) r from t)"
                branches += [
                    f"select 'top {order}' k, {_measures(first)}",
                    f"select 'order {order}' k, count(*) n, sum({ID} * r) s, sum({ID} * r * r) q from {every}",
                ]
                place = f"r_{column}"
                places.append(f"row_number() over (order by {order}) {place}")
                structs += [
                    _measures_if(f"top {order}", f"{place} <= {most}"),
                    f"struct('order {order}' k, count(*) n, sum({ID} * {place}) s, sum({ID} * {place} * {place}) q)",
                ]
            reference = f"select {_listed(structs)} from (select {ID}, {', '.join(places)} from t)"
            yield Query(" union all ".join(branches), reference)

    def _filters(self) -> Iterator[Query]:
        conditions = [text for name in self._types for text in self._conditions(name)]
        named = {text.replace("'", ""): text for text in conditions}
        for some in _batches(list(named.items()), _BRANCHES):
            branches = [f"select '{name}' k, {_measures('t')} where {text}" for name, text in some]
            structs = [_measures_if(name, text) for name, text in some]
            yield Query(" union all ".join(branches), f"select {_listed(structs)} from t")

    def _conditions(self, column: str) -> list[str]:
        dtype = self._types[column]
        conditions = [f"{column} is {self._one_of(('', 'not '))}null"]
        values = [text for text in (literal(v, dtype) for v in self._values(column)) if text is not None]
        if values and column in self._flat:
            sign = self._one_of(("<", "<=", ">", ">=", "<>", "<=>"))
            conditions += [
                f"{column} = {values[0]}",
                f"{column} {sign} {values[-1]}",
                f"{'not ' * int(self._rng.integers(2))}{column} in ({', '.join(values)})",
                f"{column} = (select {self._one_of(('min', 'max'))}({column}) from t)",
            ]
        return conditions

    def _values(self, column: str) -> list[Cell]:
        """Some different values that a column has."""
        present = [value for value in cells(self._rows[column]) if value is not None]
        if not present:
            return []
        chosen = [present[i] for i in self._rng.integers(0, len(present), 3)]
        return list(dict.fromkeys(chosen))

    def _one_of(self, options: Sequence[str]) -> str:
        return str(options[int(self._rng.integers(len(options)))])


# -- files -------------------------------------------------------------------------------------------------------


def readable_schema(spark: SparkSession, uri: str) -> tuple[st.StructType, dict[str, str]]:
    """Give the columns of a file that Spark reads, each with its type in Spark, and of others what Spark says."""
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(jvm.java.net.URI(uri))
    state = spark._jsparkSession.sessionState()
    opened = jvm.org.apache.parquet.hadoop.ParquetFileReader.open(
        jvm.org.apache.parquet.hadoop.util.HadoopInputFile.fromPath(path, state.newHadoopConf())
    )
    try:
        columns = list(opened.getFooter().getFileMetaData().getSchema().getFields())
    finally:
        opened.close()
    parquet = jvm.org.apache.spark.sql.execution.datasources.parquet
    converter = parquet.ParquetToSparkSchemaConverter(state.conf())
    fields: list[st.StructField] = []
    refused: dict[str, str] = {}
    for column in columns:
        alone = jvm.java.util.ArrayList()
        alone.add(column)
        try:
            schema = converter.convert(jvm.org.apache.parquet.schema.MessageType("root", alone))
        except PySparkException as problem:
            refused[column.getName()] = str(problem)
            continue
        fields += st.StructType.fromJson(json.loads(schema.json())).fields
    return st.StructType(fields), refused


# -- comparing ---------------------------------------------------------------------------------------------------


def compare(sessions: Sessions, table: Table, rng: np.random.Generator) -> Report:
    """Run every column of a table through every operation in both sessions, and compare the results."""
    vectorized = str(not table.misread).lower()  # what is left to Spark is read by it in both sessions
    sessions.set({"spark.sql.parquet.enableVectorizedReader": vectorized, **table.settings})
    try:
        return _compared_columns(sessions, table, rng)
    finally:
        sessions.set(dict.fromkeys(table.settings))


def _compared_columns(sessions: Sessions, table: Table, rng: np.random.Generator) -> Report:
    report = Report()
    try:
        frame = table.frame(sessions.native)
        rows = frame.toArrow()
    except Exception as problem:  # noqa: BLE001 - whatever Spark does not read
        report.skipped[_kind_of(problem)] += 1
        columns = None if table.schema is not None else _readable_columns(sessions.native, table)
        if columns is None:
            return report
        table = dataclasses.replace(table, schema=columns)
        report.add(_compared_columns(sessions, table, rng))
        return report
    frame.createOrReplaceTempView("t")
    table.frame(sessions.here).createOrReplaceTempView("t")
    for query in Queries(frame.schema, rows, rng):
        report.add(_compared(sessions, query, table.context or table.path))
    return report


def _readable_columns(spark: SparkSession, table: Table) -> st.StructType | None:
    """The columns of a table that Spark reads, where it reads some but not all."""
    files = sorted(Path(table.path).glob("*.parquet")) if Path(table.path).is_dir() else [Path(table.path)]
    fields: dict[str, st.StructField] = {}
    for file in files:
        try:
            schema, _ = readable_schema(spark, file.as_uri())
        except (Py4JJavaError, PySparkException):  # no Parquet file, or an encrypted one
            return None
        # Spark refuses times in queries, unless a setting allows them; PyArrow has no geometries and variants of Spark.
        known = [field for field in schema if not re.match(r"time\(|geo|variant", field.dataType.simpleString())]
        fields |= {field.name: field for field in known if field.name not in fields}
    readable = [
        field for field in fields.values() if _is_read(spark, dataclasses.replace(table, schema=st.StructType([field])))
    ]
    return st.StructType(readable) if ID in (field.name for field in readable) else None


def _is_read(spark: SparkSession, table: Table) -> bool:
    """Whether Spark decodes all pages of a table's columns."""
    try:
        table.frame(spark).toArrow()
    except (Py4JJavaError, PySparkException):
        return False
    return True


def _kind_of(problem: Exception) -> str:
    text = str(problem)
    return text[text.find("[") : text.find("]") + 1] or text[:80]


def _compared(sessions: Sessions, query: Query, context: str) -> Report:
    report = Report()
    try:
        expected = sessions.native.sql(query.reference).toArrow()
    except Exception as problem:  # noqa: BLE001 - whatever Spark refuses
        report.skipped[_kind_of(problem)] += 1
        return report
    context = f"{context}\n{query.text[:600]}"
    sessions.planned.clear()
    sessions.returned.clear()
    try:
        actual = sessions.here.sql(query.text).toArrow()
    except Exception as problem:  # noqa: BLE001 - none may come
        report.problems.append(f"only here: {type(problem).__name__}: {str(problem)[:3000]}\n{context}")
        return report
    explanations = [each.explanation for each in sessions.planned]
    reasons = [reason for each in explanations for reason in each.reasons]
    report.reasons.update(str(reason)[:160] for reason in reasons)
    for message in sessions.returned:
        undecoded = UNDECODED.search(message) if re.search("duckdb|polars", context) else None
        if undecoded:
            report.reasons[f"PyArrow: {undecoded[0]}"] += 1
        else:
            report.problems.append(f"a task failed here: {message[:3000]}\n{context}")
    report.problems += [
        f"unexpected: {reason}\n{context}" for reason in reasons if reason.kind is ReasonKind.UNEXPECTED
    ]
    results, expectations = (_results(rows, query) for rows in (actual, expected))
    report.compared = len(results.keys() | expectations.keys())
    if any(each.islands for each in explanations):
        report.here = report.compared
    differences = _differences(results, expectations, query.zeros)
    # Spark skips row groups by a file's statistics, true or not, but only where filters are pushed into it.
    for pushdown in ("true", "false") if differences else ():
        with _filters_pushed(sessions.native, pushdown):
            literal_results = _results(sessions.native.sql(query.text).toArrow(), query)
        as_written = _differences(results, literal_results, query.zeros)
        differences = {name: lines for name, lines in differences.items() if name in as_written}
    report.problems += [f"{name}: {lines}\n{context}" for name, lines in differences.items()]
    return report


@contextlib.contextmanager
def _filters_pushed(session: SparkSession, pushdown: str) -> Iterator[None]:
    name = "spark.sql.parquet.filterPushdown"
    before = session.conf.get(name)
    session.conf.set(name, pushdown)
    try:
        yield
    finally:
        session.conf.set(name, str(before))


def _results(rows: pa.Table, query: Query) -> dict[str, pa.Table]:
    """Tables of the results of a query, by name."""
    if not query.by_row:
        return {
            f"{rows.column_names[0]}: {name}": pa.Table.from_arrays([rows[0], rows[position]], [ID, name])
            for position, name in enumerate(rows.column_names)
            if position
        }
    names = rows["k"].unique().to_pylist()
    return {name: rows.filter(pc.equal(rows["k"], name)).drop_columns(["k"]) for name in names}


def _differences(results: Mapping[str, pa.Table], expectations: Mapping[str, pa.Table], zeros: Zeros) -> dict[str, str]:
    """Names of the results that are not as expected, each with the difference."""
    names = results.keys() | expectations.keys()
    told = ((name, _difference(results.get(name), expectations.get(name), zeros)) for name in names)
    return {name: lines for name, lines in told if lines}


def _difference(actual: pa.Table | None, expected: pa.Table | None, zeros: Zeros) -> str:
    if actual is None or expected is None:
        return "there is no such result " + ("here" if actual is None else "in Spark")
    if actual.schema.types != expected.schema.types:
        return f"types {actual.schema.types}, Spark's are {expected.schema.types}"
    here, spark = row_counts(actual, zeros=zeros), row_counts(expected, zeros=zeros)
    if here == spark:
        return ""
    return f"here {_first(here - spark)}, Spark {_first(spark - here)}"


def _first(rows: Counter[Any]) -> str:
    text = repr(sorted(rows, key=repr)[:3])
    return f"{rows.total()} rows such as {text[:400]}"
