#!/usr/bin/env python3
"""Write docs/functions.md, what becomes of each function of Spark, or check that it is up to date.

Usage: ``python scripts/gen_functions.py`` writes; with ``--check`` the exit status is 1 when the file would change.
Starts Spark and plans calls of its functions, for a minute or so. Spark's own examples are the calls, with columns in
place of their constants: ``SELECT lpad('hi', 5, '??')`` is planned as ``lpad(string, int, string)``, and, where that is
left to Spark, as ``lpad(string, 5, '??')``.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from gpujoin.spark.jvm.gateway import gateway_of, optimized_plan
from gpujoin.spark.query.accelerate import Purpose, rewrite
from scripts.function_reference import FURTHER_CALLS, LEFT_TO_SPARK
from scripts.pages import write_or_check

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TARGET = Path(__file__).resolve().parent.parent / "docs" / "functions.md"
FORCED = {"spark.gpujoin.backend": "cpu", "spark.gpujoin.fallback": "silent"}

COLUMNS = {
    "string": "string", "int": "int", "bigint": "bigint", "double": "double", "decimal": "decimal(10,2)",
    "boolean": "boolean", "binary": "binary", "date": "date", "timestamp": "timestamp", "float": "float",
    "array_int": "array<int>", "array_string": "array<string>", "map_int": "map<int,string>",
    "struct_int": "struct<a: int, b: string>",
}  # fmt: skip
"""Columns of the table that calls are planned over, with their types."""


SEVERAL_ROWS = frozenset({"agg_funcs", "window_funcs", "generator_funcs"})
"""Sections of functions that are more than a value of one row."""
SECTIONS = {
    "math_funcs": "Mathematics", "string_funcs": "Text", "conditional_funcs": "Conditions",
    "predicate_funcs": "Predicates", "conversion_funcs": "Conversions", "datetime_funcs": "Dates and timestamps",
    "bitwise_funcs": "Bits", "hash_funcs": "Hashes", "misc_funcs": "Others", "url_funcs": "URLs",
    "agg_funcs": "Aggregates", "window_funcs": "Windows", "generator_funcs": "Generators",
    "collection_funcs": "Collections", "array_funcs": "Arrays", "map_funcs": "Maps", "struct_funcs": "Structs",
    "lambda_funcs": "Functions of functions", "json_funcs": "JSON", "variant_funcs": "Variants", "csv_funcs": "CSV",
    "xml_funcs": "XML", "avro_funcs": "Avro", "protobuf_funcs": "Protocol Buffers", "st_funcs": "Geometries",
    "sketch_funcs": "Sketches", "vector_funcs": "Vectors", "table_funcs": "Tables",
}  # fmt: skip
"""Headings of Spark's sections, in the page's order; others follow."""
_SHOWN = 3
"""So many calls are shown of a function at most."""


class Verdict(Enum):
    """What becomes of a function."""

    EXACT = "exact"
    CONSTANT = "a constant"
    PARTLY = "exact where"
    LEFT = "left to Spark"


MEANING = {
    Verdict.EXACT: "computed in islands, with Spark's result to the last bit; Spark finishes some aggregates",
    Verdict.CONSTANT: "Spark replaces the call by its value when it plans the query",
    Verdict.PARTLY: "some calls are computed in islands, others are left to Spark",
    Verdict.LEFT: "Spark computes it; an island may begin above it, or end below it",
}


@dataclass(frozen=True)
class SparkFunction:
    """A built-in function."""

    name: str
    group: str
    """Spark's name of its section, such as ``math_funcs``."""
    examples: tuple[str, ...]
    """Queries."""


@dataclass
class Judged:
    """A function, and what becomes of its calls."""

    function: SparkFunction
    here: list[str] = field(default_factory=list)
    """Calls that are computed in islands."""
    left: list[str] = field(default_factory=list)
    """Calls that are left to Spark."""
    folded: list[str] = field(default_factory=list)
    """Calls that become constants."""

    @property
    def verdict(self) -> Verdict:
        """What becomes of it, taken all together."""
        if self.here:
            return Verdict.PARTLY if self.left else Verdict.EXACT
        return Verdict.CONSTANT if self.folded and not self.left else Verdict.LEFT

    @property
    def why(self) -> str | None:
        """Why it is left to Spark, wholly or in part; ``None`` if the tables do not say."""
        named = (row.why for row in LEFT_TO_SPARK if self.function.name in row.functions)
        section = (row.why for row in LEFT_TO_SPARK if self.function.group in row.sections)
        return next(named, None) or next(section, None)

    def add(self, call: str, taken: bool | None) -> None:
        """Add what became of a call."""
        calls = self.folded if taken is None else self.here if taken else self.left
        calls.append(call)


def listed(spark: SparkSession) -> list[SparkFunction]:
    """All built-in functions and operators of this Spark, by name."""
    sql = gateway_of(spark).org.apache.spark.sql
    infos = {info.getName(): info for info in sql.api.python.PythonSQLUtils.listBuiltinFunctionInfos()}
    registry, identifier = sql.catalyst.analysis.FunctionRegistry, sql.catalyst.FunctionIdentifier
    for name in {row[0] for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect()} - infos.keys():
        infos[name] = registry.builtinOperators().get(name).get()
    functions = []
    for name, info in sorted(infos.items()):
        # The list has either of a function and a table function of one name.
        scalar = registry.builtin().lookupFunction(identifier(name))
        functions.append(_function(name, scalar.get() if scalar.isDefined() else info))
    return functions


def _function(name: str, info: Any) -> SparkFunction:
    queries = re.findall(r"^\s*> (SELECT\b.*?);\s*$", str(info.getExamples()), re.MULTILINE | re.DOTALL)
    return SparkFunction(name, str(info.getGroup()) or "misc_funcs", tuple(" ".join(q.split()) for q in queries))


_TOKEN = re.compile(
    r"""(?P<date>date\s*'[^']*') | (?P<timestamp>timestamp\s*'[^']*')
      | (?P<kept>'utf-8' | (?:interval|time|timestamp_ntz|timestamp_ltz)\s*'[^']*'(?:\s+to)?
        | (?:decimal|char|varchar|numeric|dec)\s*\([\d, ]+\) | current_\w+ | [a-z_]\w*\.\w+)
      | (?P<array_int>array\s*\((?:\d+|null)(?:,\s*(?:\d+|null))*\))
      | (?P<array_string>array\s*\((?:'[^']*'|null)(?:,\s*(?:'[^']*'|null))*\))
      | (?P<binary>x'[^']*') | (?P<string>r?'(?:[^'\\]|\\.)*' | r?"(?:[^"\\]|\\.)*")
      | (?P<double>\d+(?:\.\d*)?(?:e[+-]?\d+d?|d)\b | double\s*\('[^']*'\))
      | (?P<decimal>\d+\.\d+(?:bd)?\b) | (?P<bigint>\d+l\b) | (?P<float>\d+(?:\.\d+)?f\b) | (?P<int>\d+\b)
      | (?P<boolean>true\b|false\b) | (?P<word>\w+) | (?P<other>.)""",
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)


def _with_columns(text: str, most: int, names: dict[str, str]) -> str:
    """Put columns in place of the first constants of an expression, and of the columns that have other names."""
    out, changed = [], 0
    for token in _TOKEN.finditer(text):
        kind = str(token.lastgroup)
        if kind == "word":
            out.append(names.get(token[0].lower(), token[0]))
        elif kind in COLUMNS and changed < most:
            out.append(kind)
            changed += 1
        else:
            out.append(token[0])
    return "".join(out)


def _parts(query: str) -> tuple[str, str]:
    """What an example selects, and from where, if from anywhere."""
    text, depth = query.removeprefix("SELECT").strip(), 0
    for token in re.finditer(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[()]|\bFROM\b""", text, re.IGNORECASE):
        depth += (token[0] == "(") - (token[0] == ")")
        if token[0].upper() == "FROM" and depth == 0:
            return text[: token.start()].strip(), text[token.end() :].strip()
    return text, ""


class Planner:
    """Plans calls over a table of Parquet, joined to another, so that they are part of an island or below it."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        for key, value in FORCED.items():
            spark.conf.set(key, value)
        columns = ", ".join(f"cast(null as {dtype}) {name}" for name, dtype in COLUMNS.items())
        spark.sql(f"select id, {columns} from range(2)").write.parquet(str(folder / "values"))
        spark.sql("select id, id w from range(2)").write.parquet(str(folder / "others"))
        for name in ("values", "others"):
            spark.read.parquet(str(folder / name)).createOrReplaceTempView(f"function_{name}")

    def query(self, call: str, group: str) -> DataFrame:
        """The query that a call is planned in.

        Raises ``PySparkException`` if Spark takes no such call.
        """
        return self._spark.sql(self.text(call, group))

    def text(self, call: str, group: str) -> str:
        """The text of that query."""
        return f"SELECT a.*, b.w FROM ({self.part(call, group)}) a JOIN function_others b ON a.id = b.id"

    def part(self, call: str, group: str) -> str:
        """The text of the part of that query that has the call, alone."""
        keys = "ROLLUP (id)" if call.startswith("grouping") else "id"
        return f"SELECT id, {call} FROM function_values" + (f" GROUP BY {keys}" if group == "agg_funcs" else "")

    def names(self, source: str) -> dict[str, str]:
        """Columns of the table that stand for those of an example's source, by types."""
        if not source:
            return {}
        by_type = {_plain(dtype): name for name, dtype in COLUMNS.items()}
        schema = self._spark.sql(f"SELECT * FROM {source}").schema
        known = {
            f.name.lower(): by_type.get(re.sub(r"decimal\(.*\)", "decimal(10,2)", f.dataType.simpleString()))
            for f in schema
        }
        return {name: column for name, column in known.items() if column is not None}

    def judge(self, function: SparkFunction) -> Judged:
        """Plan the calls of a function."""
        judged = Judged(function)
        for example in function.examples:
            for call, taken in self._tried(example, function.group):
                if call not in (*judged.here, *judged.left, *judged.folded):
                    judged.add(call, taken)
        for call in FURTHER_CALLS.get(function.name, ()):
            try:
                judged.add(call, self._taken(call, function.group))
            except PySparkException:
                # Another version of Spark has no such call.
                continue
        return judged

    def _tried(self, example: str, group: str) -> Iterator[tuple[str, bool | None]]:
        """Calls that are made of an example: with columns alone; if that is left to Spark, with one column."""
        text, source = _parts(example)
        try:
            names = self.names(source)
        except (PySparkException, Py4JJavaError):
            return
        tried: list[tuple[str, bool | None]] = []
        for call in dict.fromkeys(_with_columns(text, most, names) for most in (len(text), 1)):
            try:
                tried.append((call, self._taken(call, group)))
            except (PySparkException, Py4JJavaError):
                # Spark wants a constant there.
                continue
            if tried[-1][1] is not False:
                break
        yield from tried if tried and tried[-1][1] is not False else tried[:1]

    def _taken(self, call: str, group: str) -> bool | None:
        """Whether a call is part of an island; ``None`` if it becomes a constant."""
        frame = self.query(call, group)
        if group not in SEVERAL_ROWS and self._is_constant(call):
            return None
        if _is_computed(frame):
            return True
        # Spark finishes some aggregates, which then are no part of an island below a join.
        return group == "agg_funcs" and _is_computed(self._spark.sql(self.part(call, group)))

    def _is_constant(self, call: str) -> bool:
        """Whether Spark's optimizer replaces a call by a constant."""
        plan = optimized_plan(self._spark.sql(f"SELECT id, {call} AS v FROM function_values"))
        return plan.nodeName() == "Project" and bool(plan.expressions().apply(1).children().head().foldable())


def _is_computed(frame: DataFrame) -> bool:
    islands = rewrite(frame, Purpose.EXPLAIN).explanation.islands
    return bool(islands) and not any("rows from Spark" in line for island in islands for line in island.tree)


def _plain(dtype: str) -> str:
    return dtype.replace(", ", ",").replace(": ", ":")


HEAD = """\
# Spark's functions

<!-- Generated by scripts/gen_functions.py; do not edit. -->

What becomes of each function of Spark {version} in a query that gpujoin runs. Calls are named for the types of their
operands; `lpad(string, 5, '??')` is a call whose second and third operand are constants. They are Spark's own examples,
and some more, planned over a Parquet table in ANSI mode, in UTC: what is said of them here is what the planner does.
[Expressions](expressions.md) says for which types each is computed, and [under which conditions](expressions.md#notes).

What is left to Spark is computed by Spark, with Spark's result, and the rest of the query may still run here.

"""


def page(judged: Sequence[Judged], version: str) -> str:
    """The whole page."""
    counts = Counter(j.verdict for j in judged)
    scalar = Counter(j.verdict for j in judged if j.function.group not in SEVERAL_ROWS)
    rows = [["verdict", "functions", "of them of one row", "meaning"]]
    rows += [[f"**{v.value}**", str(counts[v]), str(scalar[v]), MEANING[v]] for v in Verdict]
    rows.append(["all", str(len(judged)), str(sum(scalar.values())), ""])
    groups = dict.fromkeys([*SECTIONS, *(j.function.group for j in judged)])
    sections = {group: [j for j in judged if j.function.group == group] for group in groups}
    return (
        HEAD.format(version=version)
        + _table(rows)
        + "".join(
            f"\n## {SECTIONS.get(group, group)}\n\n{_section(members)}"
            for group, members in sections.items()
            if members
        )
    )


def _section(judged: Sequence[Judged]) -> str:
    rows = [["function", "verdict", "computed here", "left to Spark", "why"]]
    return _table([*rows, *map(cells_of, judged)])


def cells_of(judged: Judged) -> list[str]:
    """What the page says of a function."""
    why = judged.why if judged.left or judged.verdict is Verdict.LEFT else None
    left = judged.left if judged.here else []
    return [code(judged.function.name), judged.verdict.value, _codes(judged.here), _codes(left), why or ""]


def line_of(cells: Sequence[str]) -> str:
    """A line of a table."""
    return "| " + " | ".join(cells) + " |\n"


def _table(rows: Sequence[Sequence[str]]) -> str:
    lines = [line_of(cells) for cells in rows]
    return lines[0] + "|---" * len(rows[0]) + "|\n" + "".join(lines[1:])


def _codes(calls: Sequence[str]) -> str:
    return ", ".join(code(call) for call in calls[:_SHOWN]) + (", …" if len(calls) > _SHOWN else "")


def code(text: str) -> str:
    """Text as code in a table."""
    return f"`{text}`".replace("|", "\\|")


def judge_all(spark: SparkSession) -> list[Judged]:
    """What becomes of every function of a Spark, whose settings are those of a new session."""
    with tempfile.TemporaryDirectory() as folder:
        planner = Planner(spark, Path(folder))
        return [planner.judge(function) for function in listed(spark)]


def _new_session() -> SparkSession:
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {"spark.ui.enabled": "false", "spark.log.level": "OFF", "spark.sql.session.timeZone": "UTC"}
    builder = SparkSession.builder.master("local[2]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _judged_page() -> str:
    logging.disable()
    spark = _new_session()
    written = page(judge_all(spark), spark.version)
    spark.stop()
    return written


if __name__ == "__main__":
    sys.exit(write_or_check(TARGET, _judged_page, __doc__))
