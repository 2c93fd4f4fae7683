"""Random SQL over null-heavy tables of every covered type."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from pyspark.sql import SparkSession

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
    "join",
    "left join",
    "right join",
    "full join",
    "left semi join",
    "left anti join",
    "join",
    "left join",
)


def write_tables(spark: SparkSession, folder: Path, rng: np.random.Generator) -> None:
    """Write the tables as Parquet and make views of them."""
    for name, rows in TABLES.items():
        lines = [", ".join(_cell(kind, rng) for kind in COLUMNS) for _ in range(max(rows, 1))]
        casts = ", ".join(f"cast({c} as {kind}) {c}" for c, kind in COLUMNS.items())
        text = (
            f"select {casts} from values {', '.join(f'({line})' for line in lines)} v({', '.join(COLUMNS)})"
        )
        frame = spark.sql(text).limit(rows) if rows == 0 else spark.sql(text)
        path = str(folder / name)
        frame.repartition(2).write.mode("overwrite").parquet(path)
        spark.read.parquet(path).createOrReplaceTempView(name)


def _cell(kind: str, rng: np.random.Generator) -> str:
    return "null" if rng.random() < 0.3 else str(rng.choice(VALUES[kind]))


class Generator:
    """Makes queries; the same seed makes the same ones."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def query(self) -> str:
        shape = self._pick(("rows", "groups", "groups", "global", "nested", "union"))
        if shape == "union":
            columns = self._some(list(COLUMNS), 2)
            parts = []
            for _ in range(2):
                name = self._table()
                chosen = ", ".join(f"x.{c} as {c}" for c in columns)
                parts.append(f"select {chosen} from {name} x where {self._condition(['x'])}")
            return f"select {columns[0]}, count({columns[1]}) from ({' union all '.join(parts)}) group by {columns[0]}"
        if shape == "nested":
            return self._nested()
        sources, aliases = self._sources()
        where = f" where {self._condition(aliases)}" if self._rng.random() < 0.6 else ""
        if shape == "rows":
            outputs = ", ".join(f"{self._value(aliases)} as c{i}" for i in range(1 + self._below(4)))
            return f"select {outputs} from {sources}{where}"
        keys = (
            [self._column(aliases, "".join(COLUMNS)) for _ in range(1 + self._below(2))]
            if shape == "groups"
            else []
        )
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

    def _sources(self) -> tuple[str, list[str]]:
        text, aliases = f"{self._table()} x0", ["x0"]
        for number in range(1, 1 + self._below(3)):
            alias, kind = f"x{number}", self._pick(_JOINS)
            left = self._pick(aliases)
            keys = self._some(list(COLUMNS), 1 + self._below(2))
            parts = [f"{left}.{k} {self._pick(('=', '=', '<=>'))} {alias}.{k}" for k in keys]
            if self._rng.random() < 0.3:
                column = self._pick(list(_ORDERED))
                parts.append(f"{left}.{column} {self._pick(('<', '>=', '<>'))} {alias}.{column}")
            text += f" {kind} {self._table()} {alias} on {' and '.join(parts)}"
            if "semi" not in kind and "anti" not in kind:
                aliases.append(alias)
        return text, aliases

    def _condition(self, aliases: list[str], depth: int = 0) -> str:
        shape = self._below(12 if depth < 2 else 7)
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

    def _aggregate(self, aliases: list[str]) -> str:
        number = self._column(aliases, _NUMBERS)
        calls = (
            "count(*)", f"count({self._column(aliases, ''.join(COLUMNS))})",
            f"sum({number})", f"avg({number})", f"sum({number})", f"sum({self._column(aliases, 'mn')})",
            f"min({self._column(aliases, _ORDERED)})", f"max({self._column(aliases, _ORDERED)})",
            f"count(distinct {self._column(aliases, _ORDERED)})",
            f"sum(distinct {self._column(aliases, 'yhilmn')}) filter (where {self._condition(aliases, 2)})",
            f"{self._pick(('stddev', 'stddev_pop', 'variance', 'var_pop'))}({self._column(aliases, 'yhilm')})",
            f"{self._pick(('bool_or', 'bool_and'))}({self._column(aliases, 'o')})",
            f"sum({self._column(aliases, 'yhilmn')}) filter (where {self._condition(aliases, 2)})",
            f"sum(case when {self._condition(aliases, 2)} then {self._column(aliases, 'm')} else 0 end)",
        )  # fmt: skip
        return str(self._pick(calls))

    def _literal(self, kind: str) -> str:
        return f"cast({self._pick(VALUES[kind])} as {COLUMNS[kind]})"

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
