"""What Spark answers to expressions over tables of values: recorded in files, or asked of a session.

``make answers`` asks Spark each question of the tests and writes a file for each table; `make test` compares with the
files and starts no Spark, but for a question that is new. With ``GPUJOIN_TEST_ANSWERS=spark``, as in `make test-all`
and `make test-versions`, the same tests ask. An answer has Spark's values, and the rows on which Spark raises; nothing
else than Spark says either.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VARIABLE = "GPUJOIN_TEST_ANSWERS"
RECORDED, RECORD, SPARK = "recorded", "record", "spark"
"""What the variable may say: files answer, the default; Spark does, and files are written; Spark does."""
FOLDER = Path(__file__).with_name("recorded")
_OPTIMIZER = "org.apache.spark.sql.catalyst.optimizer."
_REWRITES = (
    "ReorderAssociativeOperator", "BooleanSimplification", "ConstantFolding", "NullPropagation",
    "SimplifyConditionals", "SimplifyBinaryComparison", "OptimizeIn", "SimplifyCasts", "LikeSimplification",
    "UnwrapCastInBinaryComparison", "PushFoldableIntoBranches", "ReplaceNullWithFalseInPredicate",
)  # fmt: skip
_AS_WRITTEN = {
    # Sharing a subexpression between columns evaluates it where one of the columns alone would not.
    "spark.sql.subexpressionElimination.enabled": "false",
    # Rewriting may drop or move an operand that raises.
    "spark.sql.optimizer.excludedRules": ",".join(_OPTIMIZER + rule for rule in _REWRITES),
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
}
"""Settings with which Spark evaluates an expression as it stands."""
_ROW_BY_ROW = """
StringBuilder flags = new StringBuilder();
for (int i = 0; i < bound.length; i++) {
    for (int row = 0; row < rows.length; row++) {
        try {
            bound[i].eval(rows[row]);
            flags.append('.');
        } catch (Exception problem) {
            flags.append('x');
        }
    }
    flags.append(',');
}
return flags.toString();
"""


@dataclass(frozen=True)
class Answer:
    """What Spark gives for an expression over the rows of a table.

    Attributes
    ----------
    values : pyarrow.Array
        Null where Spark raises.
    raises : frozenset of int
        Rows on which it does.
    """

    values: pa.Array
    raises: frozenset[int]


class Answers(Protocol):
    """Whoever knows Spark's answers."""

    @property
    def version(self) -> str:
        """Version of Spark that answers."""

    def ask(self, table: pa.Table, sqls: Sequence[str], *, ansi: bool) -> list[Answer]:
        """Answers to expressions over a table with a column ``id``, the number of the row."""


class Recorded:
    """Answers in files; whoever ``others`` gives is asked what is not there."""

    def __init__(self, others: Callable[[], Answers], folder: Path = FOLDER) -> None:
        self._others = functools.cache(others)
        self._folder = folder
        self._files: dict[str, pa.Table] = {}
        self._columns: dict[str, dict[tuple[bool, str], int]] = {}

    @property
    def version(self) -> str:
        return json.loads((self._folder / "spark.json").read_text())["version"]

    def ask(self, table: pa.Table, sqls: Sequence[str], *, ansi: bool) -> list[Answer]:
        name = _name_of(table)
        if name not in self._columns:
            self._read(name)
        missing = [sql for sql in dict.fromkeys(sqls) if (ansi, sql) not in self._columns[name]]
        answers = {sql: self._answer(name, self._columns[name][ansi, sql]) for sql in sqls if sql not in missing}
        if missing:
            warnings.warn(f"Spark is asked what no file answers; run `make answers`: {missing[:3]}", stacklevel=2)
            answers |= dict(zip(missing, self._others().ask(table, missing, ansi=ansi), strict=True))
        return [answers[sql] for sql in sqls]

    def _read(self, name: str) -> None:
        path = self._folder / name
        file = self._files[name] = feather.read_table(path) if path.is_file() else pa.table({})
        questions = [json.loads(field.metadata[b"question"]) for field in file.schema]
        self._columns[name] = {(q["ansi"], q["sql"]): number for number, q in enumerate(questions)}

    def _answer(self, name: str, number: int) -> Answer:
        file = self._files[name]
        mask = int(json.loads(file.schema.field(number).metadata[b"question"])["raises"], 16)
        raises = frozenset(row for row in range(mask.bit_length()) if mask >> row & 1)
        return Answer(file.column(number).combine_chunks(), raises)


class Asked:
    """Answers of a session, which can be written down."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder
        self._frames: dict[str, DataFrame] = {}
        self._known: dict[str, dict[tuple[bool, str], Answer]] = {}

    @property
    def version(self) -> str:
        return str(self._spark.version)

    def ask(self, table: pa.Table, sqls: Sequence[str], *, ansi: bool) -> list[Answer]:
        name = _name_of(table)
        known = self._known.setdefault(name, {})
        fresh = [sql for sql in dict.fromkeys(sqls) if (ansi, sql) not in known]
        if fresh:
            with self._settings(ansi=ansi):
                answers = self._answers(self._frame(name, table), table.num_rows, fresh)
            known.update({(ansi, sql): answer for sql, answer in zip(fresh, answers, strict=True)})
        return [known[ansi, sql] for sql in sqls]

    def write(self, folder: Path = FOLDER) -> None:
        """Write all answers, in place of those in a folder."""
        folder.mkdir(exist_ok=True)
        for path in folder.iterdir():
            path.unlink()
        for name, answers in self._known.items():
            fields, columns = [], []
            for number, ((ansi, sql), answer) in enumerate(sorted(answers.items())):
                mask = sum(1 << row for row in answer.raises)
                question = json.dumps({"ansi": ansi, "sql": sql, "raises": f"{mask:x}"}, ensure_ascii=False)
                fields.append(pa.field(f"c{number}", answer.values.type, metadata={"question": question}))
                columns.append(answer.values)
            written = pa.Table.from_arrays(columns, schema=pa.schema(fields))
            feather.write_feather(written, str(folder / name), compression="zstd", compression_level=19)
        (folder / "spark.json").write_text(json.dumps({"version": self.version}) + "\n")

    def _frame(self, name: str, table: pa.Table) -> DataFrame:
        if name not in self._frames:
            # From Parquet: from local rows Spark interprets expressions, also where it generates code.
            path = self._folder / f"{name}.parquet"
            pq.write_table(table, path)
            self._frames[name] = self._spark.read.parquet(str(path))
        return self._frames[name]

    @contextmanager
    def _settings(self, *, ansi: bool) -> Iterator[None]:
        wanted = _AS_WRITTEN | {"spark.sql.ansi.enabled": str(ansi).lower()}
        before = {key: self._spark.conf.get(key, None) for key in wanted}
        try:
            for key, value in wanted.items():
                self._spark.conf.set(key, value)
            yield
        finally:
            for key, old in before.items():
                if old is None:
                    self._spark.conf.unset(key)
                else:
                    self._spark.conf.set(key, old)

    def _answers(self, frame: DataFrame, rows: int, sqls: Sequence[str]) -> list[Answer]:
        raises = self._raising(frame, sqls)
        columns = []
        for number, (sql, rows_that_raise) in enumerate(zip(sqls, raises, strict=True)):
            if rows_that_raise:
                # One literal for all rows: Spark takes long to plan a thousand of them.
                flags = "".join("x" if row in rows_that_raise else "." for row in range(rows))
                sql = f"CASE WHEN substring('{flags}', int(id) + 1, 1) = '.' THEN {sql} END"  # noqa: PLW2901
            columns.append(f"{sql} AS c{number}")
        answers = frame.selectExpr("id", *columns).toArrow()
        assert answers["id"].to_pylist() == list(range(rows)), "rows come in the order of the file"
        values = (answers.column(number + 1).combine_chunks() for number in range(len(sqls)))
        return [Answer(*pair) for pair in zip(values, raises, strict=True)]

    def _raising(self, frame: DataFrame, sqls: Sequence[str]) -> list[frozenset[int]]:
        """Rows on which Spark's own evaluation of each expression raises, one row at a time."""
        jvm: Any = self._spark._jvm
        columns = (f"{sql} AS c{number}" for number, sql in enumerate(sqls))
        project = frame.selectExpr(*columns)._jdf.queryExecution().optimizedPlan()
        child = project.children().apply(0)
        if not child.children().isEmpty():
            # Spark computes a part below: of one expression alone the query says whether it raises.
            half = len(sqls) // 2
            return self._raising(frame, sqls[:half]) + self._raising(frame, sqls[half:]) if half else [frozenset()]
        expressions = jvm.org.apache.spark.sql.catalyst.expressions
        output = getattr(expressions, "package$AttributeSeq")(child.output())
        bound = expressions.BindReferences.bindReferences(project.projectList(), output)
        listed = self._array(expressions.Expression, [bound.apply(number) for number in range(len(sqls))])
        rows = frame._jdf.queryExecution().executedPlan().executeCollect()
        flags = self._script().evaluate(self._array(jvm.java.lang.Object, [listed, rows]))
        return [frozenset(row for row, flag in enumerate(each) if flag == "x") for each in flags.split(",")[:-1]]

    def _script(self) -> Any:
        """Java that evaluates expressions row by row, and says on which rows they raise."""
        jvm: Any = self._spark._jvm
        evaluator = jvm.org.codehaus.janino.ScriptEvaluator()
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        package = "[Lorg.apache.spark.sql.catalyst."
        types = [f"{package}expressions.Expression;", f"{package}InternalRow;"]
        evaluator.setParentClassLoader(loader)
        evaluator.setReturnType(jvm.java.lang.Class.forName("java.lang.String"))
        evaluator.setParameters(
            self._array(jvm.java.lang.String, ["bound", "rows"]),
            self._array(jvm.java.lang.Class, [jvm.java.lang.Class.forName(name, True, loader) for name in types]),
        )
        evaluator.cook(_ROW_BY_ROW)
        return evaluator

    def _array(self, kind: Any, items: Sequence[Any]) -> Any:
        gateway: Any = self._spark.sparkContext._gateway
        array = gateway.new_array(kind, len(items))
        for number, item in enumerate(items):
            array[number] = item
        return array


def _name_of(table: pa.Table) -> str:
    """Name of the file with the answers about a table: a digest of its types and values."""
    digest = hashlib.sha256()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    digest.update(sink.getvalue())
    return f"{digest.hexdigest()[:16]}.arrow"


@contextmanager
def answers(spark: Any, folder: Path) -> Iterator[Answers]:
    """The answers that the variable chooses; ``spark`` gives the session where one is asked."""
    how = os.environ.get(VARIABLE, RECORDED)
    assert how in (RECORDED, RECORD, SPARK), f"{VARIABLE}={how}"
    if how == RECORDED:
        yield Recorded(lambda: Asked(spark(), folder))
        return
    asked = Asked(spark(), folder)
    yield asked
    if how == RECORD:
        asked.write()
