"""Random SQL over null-heavy tables of every covered type."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from tests.generate import from_cells

COLUMNS = {
    "o": "boolean", "y": "tinyint", "h": "smallint", "i": "int", "l": "bigint", "f": "float", "d": "double",
    "m": "decimal(7,2)", "n": "decimal(22,4)", "s": "string", "a": "date", "t": "timestamp", "u": "timestamp_ntz",
}  # fmt: skip
VALUES = {
    "o": ["true", "false"],
    "y": ["-128", "0", "1", "2", "127"],
    "h": ["-3", "0", "1", "2", "300"],
    "i": ["-1", "0", "1", "2", "3", "2147483647"],
    "l": ["-1", "0", "1", "2", "3", "4000000000"],
    "f": ["float('nan')", "0.0", "-0.0", "0.5", "2.25", "float('-infinity')"],
    "d": ["double('nan')", "0.0D", "-0.0D", "0.25D", "-1.5D", "double('infinity')"],
    "m": ["0.00", "-1.50", "12.34", "99999.99", "2.00"],
    "n": ["0.0000", "-1.5000", "12.3400", "123456789012345678.1234", "2.0000"],
    "s": ["''", "'a'", "'ab'", "'aB%'", "'ü'", "'b_c'", "'a '"],
    "a": ["date'1969-12-31'", "date'2000-02-29'", "date'2024-01-31'", "date'2024-02-01'"],
    "t": [
        "timestamp'1899-01-01 00:00:00'",
        "timestamp'2024-01-31 23:59:59.123456'",
        "timestamp'2024-02-01 00:00:00'",
    ],
    "u": ["timestamp_ntz'1969-12-31 23:59:59'", "timestamp_ntz'2024-01-31 23:59:59.5'"],
}
TABLES = {"t0": 40, "t1": 15, "t2": 6, "t3": 0}
_NUMBERS = "yhilfdmn"
_ORDERED = "yhilfdmnsatu"
_WHOLE = "yhil"
_JOINS = (
    "join", "left join", "right join", "full join", "left semi join", "left anti join", "join", "left join",
    "cross join",
)  # fmt: skip
_SHAPES = (
    "rows", "rows", "groups", "groups", "groups", "global", "nested", "union", "common", "window", "top", "sets",
    "derived",
)  # fmt: skip
_EXACT = "oyhilmnsatu"
"""Columns whose equal values are the same: not those with two zeros."""


_NASTY_LITERALS = {
    "y": ["-128Y"], "h": ["-32768S", "32767S"], "i": ["-2147483648"],
    "l": ["9223372036854775807", "-9223372036854775808"],
    "f": ["float('infinity')"], "d": ["double('-infinity')", "1e300D"], "m": ["-99999.99"],
    "n": ["99999999999999.9999"], "s": ["cast(X'FF' as string)", "cast(X'6180' as string)", "'text 7'"],
    "a": ["date'0001-01-01'", "date'9999-12-31'", "date'2024-03-01'"],
    "t": ["timestamp'0001-01-01 00:00:00'", "timestamp'9999-12-31 23:59:59.999999'"],
    "u": ["timestamp_ntz'0001-01-01 00:00:00'", "timestamp_ntz'9999-12-31 23:59:59.999999'"],
}  # fmt: skip


def write_tables(spark: SparkSession, folder: Path, rng: np.random.Generator) -> None:
    """Write the tables as Parquet and make views of them."""
    for name, rows in TABLES.items():
        lines = [", ".join(_cell(kind, rng) for kind in COLUMNS) for _ in range(max(rows, 1))]
        casts = ", ".join(f"cast({c} as {kind}) {c}" for c, kind in COLUMNS.items())
        text = f"select {casts} from values {', '.join(f'({line})' for line in lines)} v({', '.join(COLUMNS)})"
        frame = spark.sql(text).limit(rows) if rows == 0 else spark.sql(text)
        path = str(folder / name)
        frame.repartition(2).write.mode("overwrite").parquet(path)
        spark.read.parquet(path).createOrReplaceTempView(name)


NASTY_TABLES = {"t0": 2000, "t1": 120, "t2": 25, "t3": 0}
"""Rows of the nasty tables: enough for several row groups and tasks, not too many for joins by a key of two values."""
_DAY = 86_400_000_000
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
"""0001-01-01 and 9999-12-31."""
_NASTY: dict[str, tuple[pa.DataType, list[Any]]] = {
    "o": (pa.bool_(), [True, False]),
    "y": (pa.int8(), [-128, -1, 0, 127]),
    "h": (pa.int16(), [-(1 << 15), 0, 1, (1 << 15) - 1]),
    "i": (pa.int32(), [-(1 << 31), -1, 0, (1 << 31) - 1]),
    "l": (pa.int64(), [-(1 << 63), -1, 0, 4_000_000_000, (1 << 63) - 1]),
    # Sums of these do not depend on the order of rows: multiples of 1/4, one power of two, infinities.
    "f": (pa.float32(), [float("nan"), 0.0, -0.0, float("inf"), float("-inf")]),
    "d": (pa.float64(), [float("nan"), 0.0, -0.0, float("inf"), float("-inf"), 2.0**1000]),
    "m": (pa.int64(), [0, -9_999_999, 9_999_999, 1]),
    "n": (pa.int64(), [0, -(10**18) + 1, 10**18 - 1, 1]),
    "s": (pa.binary(), [b"", b"a", b"a ", b"\x00", b"aB%", b"b_c", "ü".encode(), "\U0001f600".encode(), b"\xff",
                        b"a\x80", b"\xc3(", b"ok\xe2\x82", b"\xed\xa0\x80"]),
    "a": (pa.date32(), [_FIRST_DAY, _LAST_DAY, -141_428, 0, 11_016, 19_753]),
    "t": (pa.timestamp("us", "UTC"), [_FIRST_DAY * _DAY, (_LAST_DAY + 1) * _DAY - 1, -1, 0, 19_753 * _DAY + 1]),
    "u": (pa.timestamp("us"), [_FIRST_DAY * _DAY, (_LAST_DAY + 1) * _DAY - 1, -1, 0, 19_753 * _DAY + 1]),
}  # fmt: skip
"""Arrow type and special values of each column; decimals are unscaled here, and text is bytes."""
_SCALES = {"m": ("cast(m as decimal(20,0)) * 0.01", 100), "n": ("cast(n as decimal(20,0)) * 0.0001", 10_000)}


def write_nasty_tables(spark: SparkSession, folder: Path, rng: np.random.Generator) -> None:
    """Write null-heavy tables of several files and row groups by Spark, text that is not valid UTF-8 included."""
    for name, rows in NASTY_TABLES.items():
        columns = {column: _nasty_column(column, max(rows, 1), rng) for column in COLUMNS}
        casts = ", ".join(f"cast({_SCALES[c][0] if c in _SCALES else c} as {kind}) {c}" for c, kind in COLUMNS.items())
        spark.createDataFrame(pa.table(columns)).createOrReplaceTempView("gpujoin_raw")
        path = str(folder / name)
        written = spark.sql(f"select {casts} from gpujoin_raw limit {rows}").repartition(3)
        # A row group has the rows that came since its size was last looked at.
        options = {
            "parquet.block.size": "1",
            "parquet.page.size.row.check.min": "100",
            "parquet.page.size.row.check.max": "100",
        }
        written.write.mode("overwrite").options(**options).parquet(path)
    spark.catalog.dropTempView("gpujoin_raw")


def _nasty_column(column: str, rows: int, rng: np.random.Generator) -> pa.Array[Any]:
    """A quarter nulls, a quarter special values, and ordinary ones of which many meet."""
    dtype, special = _NASTY[column]
    chances = rng.random(rows)
    ordinary = rng.integers(-20, max(rows // 4, 60), rows)
    values = [
        None
        if chance < 0.25
        else special[int(rng.integers(len(special)))]
        if chance < 0.5
        else _ordinary(column, int(n))
        for chance, n in zip(chances, ordinary, strict=True)
    ]
    return from_cells(values, dtype)


def _ordinary(column: str, number: int) -> Any:
    match column:
        case "o":
            return number % 2 == 0
        case "y":
            return number % 50
        case "f" | "d":
            return number / 4
        case "m" | "n":
            return number * _SCALES[column][1] // 4
        case "s":
            return f"text {number % 200}".encode()
        case "a":
            return 19_700 + number
        case "t" | "u":
            return (19_700 + number) * _DAY
        case _:
            return number


def _cell(kind: str, rng: np.random.Generator) -> str:
    return "null" if rng.random() < 0.3 else str(rng.choice(VALUES[kind]))


class Generator:
    """Makes queries; the same seed makes the same ones."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._values = VALUES

    def query(self) -> str:
        shape = self._pick(_SHAPES)
        if shape in ("nested", "common", "window", "top", "sets", "derived"):
            return str(getattr(self, f"_{shape}")())
        if shape == "union":
            columns = self._some(list(COLUMNS), 2)
            parts = []
            for _ in range(2):
                name = self._table()
                chosen = ", ".join(f"x.{c} as {c}" for c in columns)
                parts.append(f"select {chosen} from {name} x where {self._condition(['x'])}")
            return f"select {columns[0]}, count({columns[1]}) from ({' union all '.join(parts)}) group by {columns[0]}"
        sources, aliases = self._sources()
        where = f" where {self._condition(aliases)}" if self._rng.random() < 0.6 else ""
        if shape == "rows":
            outputs = ", ".join(f"{self._value(aliases)} as c{i}" for i in range(1 + self._below(4)))
            return f"select {outputs} from {sources}{where}"
        keys = [self._column(aliases, "".join(COLUMNS)) for _ in range(1 + self._below(2))] if shape == "groups" else []
        calls = [self._aggregate(aliases) for _ in range(1 + self._below(3))]
        shown = ", ".join(f"{value} as c{i}" for i, value in enumerate([*keys, *calls]))
        sets = self._pick(("", "", "", "rollup", "cube")) if keys else ""
        by = f"{sets}({', '.join(keys)})" if sets else ", ".join(keys)
        group = f" group by {by}" if keys else ""
        return f"select {shown} from {sources}{where}{group}"

    def _nested(self) -> str:
        key = self._pick(list("yhilsam"))
        inner = f"select {key}, {self._aggregate(['q'])} as v, count(*) as n from {self._table()} q group by {key}"
        kind = self._pick(("join", "left join", "left semi join", "left anti join"))
        return (
            f"select x.{key} as c0, count(*) as c1 from {self._table()} x {kind} ({inner}) g on x.{key} = g.{key} "
            f"where {self._condition(['x'])} group by x.{key}"
        )

    def _common(self) -> str:
        """A common table expression that is read twice, or joined with a table that it reads."""
        key = self._pick(list("yhilsam"))
        columns = list(dict.fromkeys([key, self._pick(list(COLUMNS))]))
        shown = ", ".join(f"x.{c}" for c in columns)
        other = self._pick(("c", "c", self._table()))
        kind = self._pick(("join", "left join", "full join", "left anti join"))
        outputs = f"p.{columns[-1]} as c0" + ("" if "anti" in kind else f", q.{key} as c1")
        return (
            f"with c as (select {shown} from {self._table()} x where {self._condition(['x'])}) "
            f"select {outputs} from c p {kind} {other} q on p.{key} = q.{key}"
        )

    def _window(self) -> str:
        """Window functions above joins."""
        sources, aliases = self._sources()
        by, order = self._column(aliases, _EXACT), self._column(aliases, "yhilsam")
        number = self._column(aliases, "yhilmn")
        calls = (
            f"rank() over (partition by {by} order by {order})", f"sum({number}) over (partition by {by})",
            f"count(*) over (partition by {by} order by {order})", f"max({number}) over (order by {order})",
            f"dense_rank() over (order by {order} desc nulls first)",
        )  # fmt: skip
        return f"select {by} as c0, {order} as c1, {self._pick(calls)} as c2 from {sources}"

    def _top(self) -> str:
        """The first rows in an order of all their columns, so that it does not matter which of equal ones come."""
        sources, aliases = self._sources()
        columns = list(dict.fromkeys(self._column(aliases, _EXACT) for _ in range(3)))
        shown = ", ".join(f"{column} as c{i}" for i, column in enumerate(columns))
        order = ", ".join(
            f"c{i} {self._pick(('', 'desc'))} {self._pick(('', 'nulls last', 'nulls first'))}"
            for i in range(len(columns))
        )
        text = f"select {shown} from {sources}"
        if self._rng.random() < 0.4:
            groups = ", ".join(columns)
            text = f"select {shown}, count(*) as n from {sources} group by {groups}"
            order += ", n"
        return f"{text} order by {order} limit {self._pick(('0', '1', '3', '17'))}"

    def _sets(self) -> str:
        columns = self._some(list(_EXACT), 2)
        word = self._pick(("union", "intersect", "except", "intersect all", "except all"))
        parts = [
            f"select {', '.join(f'x.{c}' for c in columns)} from {self._table()} x where {self._condition(['x'])}"
            for _ in range(2)
        ]
        return f" {word} ".join(parts)

    def _derived(self) -> str:
        """A join of a join, an aggregate above, and a scalar subquery."""
        sources, aliases = self._sources()
        keys = list(dict.fromkeys(self._column(aliases, _EXACT) for _ in range(2)))
        inner = ", ".join(f"{column} as g{i}" for i, column in enumerate(keys))
        number = self._column(aliases, "yhilmn")
        kind = keys[0][-1]
        outer = self._pick(("join", "left join", "right join", "full join", "left semi join"))
        shown = "g.g0, g.v" + ("" if "semi" in outer else f", y.{kind} as k, y.s as s")
        return (
            f"select {shown} from (select {inner}, sum({number}) as v from {sources} group by {', '.join(keys)}) g "
            f"{outer} {self._table()} y on g.g0 = y.{kind} and g.v {self._pick(('<', '>=', '<>'))} "
            f"{self._pick(('0', '3', 'y.l', 'y.i'))}"
        )

    def _sources(self) -> tuple[str, list[str]]:
        text, aliases = f"{self._table()} x0", ["x0"]
        for number in range(1, 1 + int(self._pick((0, 1, 1, 2, 2)))):
            alias, kind = f"x{number}", self._pick(_JOINS)
            left = self._pick(aliases)
            table = self._table()
            if self._rng.random() < 0.15:
                table = f"(select * from {table} x where {self._condition(['x'], 2)})"
            if kind == "cross join":
                text += f" {kind} {'t2' if table.startswith('t') else table} {alias}"
                aliases.append(alias)
                continue
            keys = self._some(list(COLUMNS), 1 + self._below(2))
            if self._rng.random() < 0.1 and kind != "right join" and len(aliases) == 1:
                text += f" {kind} {table} {alias} using ({', '.join(keys)})"
            else:
                text += f" {kind} {table} {alias} on {self._on(left, alias, keys)}"
            if "semi" not in kind and "anti" not in kind:
                aliases.append(alias)
        return text, aliases

    def _on(self, left: str, right: str, keys: list[str]) -> str:
        parts = [f"{left}.{k} {self._pick(('=', '=', '<=>'))} {right}.{k}" for k in keys]
        chance = self._rng.random()
        if chance < 0.08:
            column = self._pick(list(_ORDERED))
            parts = [f"{left}.{column} {self._pick(('<', '>='))} {right}.{column}"]
        elif chance < 0.14:
            one, two = self._some(list("yhilfdmn"), 2)
            parts = [f"{left}.{one} = {right}.{two}"]
        if self._rng.random() < 0.3:
            column = self._pick(list(_ORDERED))
            parts.append(f"{left}.{column} {self._pick(('<', '>=', '<>'))} {right}.{column}")
        elif self._rng.random() < 0.15:
            parts.append(self._condition([left, right], 2))
        return " and ".join(parts)

    def _condition(self, aliases: list[str], depth: int = 0) -> str:
        shape = self._below(14 if depth < 2 else 7)
        column = self._column(aliases, _ORDERED)
        kind = column[-1]
        match shape:
            case 0:
                return f"{column} {self._pick(('<', '<=', '>', '>=', '=', '<>'))} {self._literal(kind)}"
            case 1:
                return f"{column} is {self._pick(('null', 'not null'))}"
            case 2:
                return f"{column} in ({', '.join(self._literal(kind) for _ in range(1 + self._below(3)))})"
            case 3:
                return f"{column} not between {self._literal(kind)} and {self._literal(kind)}"
            case 4:
                text = self._column(aliases, "s")
                patterns = ("like 'a%'", "like '%b%'", r"like '%\\%'", "not like '_'", "like 'b\\\\_c'")
                return f"{text} {self._pick(patterns)}"
            case 5:
                other = self._pick(aliases)
                return f"{column} {self._pick(('<', '=', '<=>', '<>'))} {other}.{kind}"
            case 6:
                return f"{self._column(aliases, 'o')} {self._pick(('', 'is not true', 'is false'))}"
            case 7:
                both = self._pick(("and", "or"))
                return f"({self._condition(aliases, depth + 1)} {both} {self._condition(aliases, depth + 1)})"
            case 8:
                return f"not ({self._condition(aliases, depth + 1)})"
            case 9:
                outer = self._column(aliases, "yhilsa")
                word = self._pick(("in", "not in", "in"))
                return f"{outer} {word} (select z.{outer[-1]} from {self._table()} z where {self._condition(['z'], 2)})"
            case 10:
                pair = self._some([f"{alias}.{kind}" for alias in aliases for kind in "yhilsa"], 2)
                inner = ", ".join(f"z.{column[-1]}" for column in pair)
                test = self._condition(["z"], 2)
                return f"({', '.join(pair)}) not in (select {inner} from {self._table()} z where {test})"
            case 11:
                number, word = self._column(aliases, "yhilmn"), self._pick(("max", "min", "avg", "sum"))
                word = _exact_average(word, number)
                inner = f"select {word}(z.{number[-1]}) from {self._table()} z where {self._condition(['z'], 2)}"
                return f"{number} {self._pick(('<', '>', '='))} ({inner})"
            case 12:
                number, word = self._column(aliases, "yhilmn"), self._pick(("max", "count", "avg", "sum"))
                word = _exact_average(word, number)
                outer = self._column(aliases, "yhilsa")
                inner = f"select {word}(z.{number[-1]}) from {self._table()} z where z.{outer[-1]} = {outer}"
                return f"{number} {self._pick(('<', '>', '='))} ({inner})"
            case _:
                outer = self._column(aliases, "yhilsa")
                word = self._pick(("exists", "not exists"))
                test = self._condition(["z"], 2)
                return f"{word} (select 1 from {self._table()} z where z.{outer[-1]} = {outer} and {test})"

    def _value(self, aliases: list[str]) -> str:
        column = self._column(aliases, "".join(COLUMNS))
        match self._below(8):
            case 0:
                return f"{self._column(aliases, 'yhil')} + {self._pick(('1', '-1'))}L"
            case 1:
                return f"coalesce({column}, {self._literal(column[-1])})"
            case 2:
                return f"case when {self._condition(aliases, 2)} then {column} else {self._literal(column[-1])} end"
            case 3:
                return f"{self._column(aliases, 'mn')} * {self._column(aliases, 'm')}"
            case 4:
                return f"substring({self._column(aliases, 's')}, {self._pick(('1', '2', '-1'))}, 2)"
            case 5:
                return f"{self._pick(('year', 'month', 'day'))}({self._column(aliases, 'a')})"
            case _:
                return column

    def _moment(self, aliases: list[str]) -> str:
        """A moment, whose last digits depend on the order of rows, in Spark too.

        It is compared as a whole number, on a scale by which the variance of few integers is not half-way.
        """
        function = self._pick(("stddev", "stddev_pop", "variance", "var_pop"))
        return f"{function}({self._column(aliases, 'yh')})"

    def _aggregate(self, aliases: list[str]) -> str:
        number = self._column(aliases, _NUMBERS)
        # Equal orderings have equal values, so that one value is right.
        ordering = self._column(aliases, _EXACT)
        calls = (
            "count(*)", f"count({self._column(aliases, ''.join(COLUMNS))})",
            # Spark adds doubles for an average: of long numbers, what is left depends on the order of rows.
            f"avg({self._column(aliases, _NUMBERS.replace('l', ''))})",
            f"sum({number})", f"sum({number})", f"sum({self._column(aliases, 'mn')})",
            f"min({self._column(aliases, _ORDERED)})", f"max({self._column(aliases, _ORDERED)})",
            f"count(distinct {self._column(aliases, _ORDERED)})",
            f"sum(distinct {self._column(aliases, 'yhilmn')}) filter (where {self._condition(aliases, 2)})",
            f"round({self._moment(aliases)} / 1.37 + 0.123)",
            f"{self._pick(('bool_or', 'bool_and'))}({self._column(aliases, 'o')})",
            f"sum({self._column(aliases, 'yhilmn')}) filter (where {self._condition(aliases, 2)})",
            f"sum(case when {self._condition(aliases, 2)} then {self._column(aliases, 'm')} else 0 end)",
            f"{self._pick(('max_by', 'min_by'))}({ordering}, {ordering})",
            f"{self._pick(('bit_and', 'bit_or', 'bit_xor'))}({self._column(aliases, _WHOLE)})",
        )  # fmt: skip
        return str(self._pick(calls))

    def _literal(self, kind: str) -> str:
        return f"cast({self._pick(self._values[kind])} as {COLUMNS[kind]})"

    def _column(self, aliases: list[str], kinds: str) -> str:
        return f"{self._pick(aliases)}.{self._pick(list(kinds))}"

    def _table(self) -> str:
        return str(self._rng.choice(["t0", "t1", "t2", "t3"], p=[0.35, 0.3, 0.3, 0.05]))

    def _pick(self, values: object) -> str:
        assert isinstance(values, (list, tuple))
        return str(values[self._below(len(values))])

    def _some(self, values: list[str], count: int) -> list[str]:
        return [str(one) for one in self._rng.choice(values, count, replace=False)]

    def _below(self, bound: int) -> int:
        return int(self._rng.integers(bound))


class NastyGenerator(Generator):
    """Makes queries of the nasty tables: the large ones are read once a query, so that no join of them explodes."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__(rng)
        self._values = {kind: [*values, *_NASTY_LITERALS.get(kind, ())] for kind, values in VALUES.items()}
        self._used: Counter[str] = Counter()

    def _table(self) -> str:
        name = super()._table()
        while name in ("t0", "t1") and self._used[name]:
            name = f"t{int(name[1]) + 1}"
        self._used[name] += 1
        return name


def _exact_average(word: str, number: str) -> str:
    """Another aggregate in place of an average of big integers, of which Spark adds doubles and so rounds."""
    return "max" if (word, number[-1]) == ("avg", "l") else word
