"""Random SQL with window functions over null-heavy tables of every covered type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import SparkSession

from tests.spark.query.generated import COLUMNS, write_nasty_tables

NUMBERED = "w0"
_ALL = "".join(COLUMNS)
_SUMMED = "yhilfdmn"
_AVERAGED = "yhifdmn"
"""No long integers: Spark adds them as doubles, so that the order of peers decides the last digits."""
_INTERVALS = {"a": "interval '{}' day", "t": "interval '{}' hour", "u": "interval '{}' hour"}
_RANGED = (*"fdmatu", "id", "cast(y as int)", "cast(h as bigint)", "n")
"""Order keys of which a range frame may count distances; none that a distance might lead out of its type."""


def write_numbered_table(spark: SparkSession, folder: Path, rng: np.random.Generator) -> None:
    """Write a nasty table whose rows have a number, ``id``, of their own."""
    write_nasty_tables(spark, folder, rng)
    for name in ("t0", "t2"):
        spark.read.parquet(str(folder / name)).createOrReplaceTempView(name)
    numbered = spark.sql("select cast(row_number() over (order by hash(*), rand(1)) as bigint) id, * from t0")
    path = str(folder / NUMBERED)
    numbered.limit(700).repartition(3).write.mode("overwrite").parquet(path)
    spark.read.parquet(path).createOrReplaceTempView(NUMBERED)


class WindowGenerator:
    """Makes queries; the same seed makes the same ones."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def query(self) -> str:
        """A query of one of several shapes."""
        shape = self._pick(("plain", "plain", "plain", "plain", "ranked", "grouped", "under", "joined", "sets"))
        return str(getattr(self, f"_{shape}")())

    # -- shapes --------------------------------------------------------------------------------------------

    def _plain(self) -> str:
        calls = [self._call() for _ in range(1 + self._less(4))]
        shown = ", ".join(f"{call} as c{i}" for i, call in enumerate(calls))
        return f"select id, {shown} from {NUMBERED} {self._where()}"

    def _ranked(self) -> str:
        rank = self._pick(("row_number", "rank", "dense_rank"))
        window = self._spec(total=rank == "row_number", ordered=True)
        kept = self._pick(("n <= 3", "n < 2", "n = 1", "n <= 2 and id > 50", "n between 2 and 3"))
        inner = f"select id, s, d, m, {rank}() over ({window}) n from {NUMBERED} {self._where()}"
        return f"select * from ({inner}) where {kept}"

    def _grouped(self) -> str:
        keys = [self._pick(list("oyhilmsa")) for _ in range(1 + self._less(2))]
        keys = list(dict.fromkeys(keys))
        value = self._pick(("count(*)", "max(i)", "sum(cast(y as bigint))", "min(s)", "sum(m)", "max(d)"))
        by = ", ".join(keys)
        partition = self._pick(("", f"partition by {keys[0]}"))
        order = f"order by {value} {self._directed()}, {', '.join(f'{key} {self._directed()}' for key in keys)}"
        call = self._pick(
            (f"rank() over ({partition} {order})", f"max({value}) over ({partition})", f"count(*) over ({partition})",
             f"lag({value}) over ({partition} {order})", f"first({value}) over ({partition} {order})",
             f"sum(count(*)) over ({partition} {order} rows between 1 preceding and 1 following)")
        )  # fmt: skip
        return f"select {by}, {value} v, {call} w from {NUMBERED} {self._where()} group by {by}"

    def _sets(self) -> str:
        a, b = "o", self._pick(list("ysa"))
        call = f"rank() over (partition by grouping_id() order by count(*) {self._directed()})"
        return f"select {a}, {b}, grouping_id() g, count(*) n, {call} r from {NUMBERED} group by rollup({a}, {b})"

    def _under(self) -> str:
        key = self._pick(list("oyis"))
        inner = f"select {key} k, {self._call()} v from {NUMBERED} {self._where()}"
        return f"select k, count(*), count(v), count(distinct v), max(v), min(v) from ({inner}) group by k"

    def _joined(self) -> str:
        key = self._pick(list("oyis"))
        inner = f"select id, {key} k, {self._call()} v from {NUMBERED} {self._where()}"
        return f"select x.id, x.v, y.i from ({inner}) x join t2 y on x.k = y.{key}"

    # -- parts ---------------------------------------------------------------------------------------------

    def _where(self) -> str:
        return self._pick(("", "", "", "where id % 3 = 0", "where i is not null", "where id < 0", "where id < 40"))

    def _directed(self) -> str:
        return f"{self._pick(('', 'asc', 'desc'))} {self._pick(('', 'nulls first', 'nulls last'))}".strip()

    def _spec(self, *, total: bool, ordered: bool, frame: str = "", by: str | None = None) -> str:
        keys = [self._pick(list(_ALL)) for _ in range(self._pick((0, 1, 1, 1, 2)))]
        if self._rng.random() < 0.15:
            keys.append(self._pick(("id % 5", "s is null", "o is null", "d")))
        partition = f"partition by {', '.join(dict.fromkeys(keys))}" if keys else ""
        if not ordered:
            return partition
        orders = [by] if by else [self._pick(list(_ALL)) for _ in range(self._pick((1, 1, 2)))]
        parts = [f"{order} {self._directed()}" for order in dict.fromkeys(orders)]
        if total:
            parts.append(f"id {self._pick(('', 'desc'))}")
        return f"{partition} order by {', '.join(parts)} {frame}".strip()

    def _rows_frame(self) -> str:
        bounds = [self._pick((None, -40, -3, -2, -1, 0, 1, 2, 40)) for _ in range(2)]
        start, end = bounds
        if start is not None and end is not None and start > end:
            start, end = end, start
        return f"rows between {_bound(start, 'preceding')} and {_bound(end, 'following')}"

    def _range_frame(self, column: str) -> str:
        low, high = self._pick((None, 0, -3, -1, 1)), self._pick((None, 0, 1, 3, -1))
        if low is not None and high is not None and low > high:
            low, high = high, low
        parts = []
        for distance, end in ((low, "preceding"), (high, "following")):
            text = _bound(distance, end)
            if distance and column in _INTERVALS:
                text = f"{_INTERVALS[column].format(abs(distance))} {'preceding' if distance < 0 else 'following'}"
            parts.append(text)
        return f"range between {parts[0]} and {parts[1]}"

    def _call(self) -> str:
        kind = self._pick(("rank", "offset", "value", "aggregate", "aggregate", "aggregate", "aggregate"))
        if kind == "rank":
            name = self._pick(("row_number()", "rank()", "dense_rank()", "percent_rank()", "cume_dist()", "ntile(4)"))
            total = name.startswith(("row_number", "ntile"))
            return f"{name} over ({self._spec(total=total, ordered=True)})"
        column = self._pick(list(_ALL))
        if kind == "offset":
            name, distance = self._pick(("lag", "lead")), self._pick((0, 1, 2, 5, -1))
            default = f", {column}" if self._rng.random() < 0.3 else ""
            nulls = " ignore nulls" if distance > 0 and self._rng.random() < 0.3 else ""
            return f"{name}({column}, {distance}{default}){nulls} over ({self._spec(total=True, ordered=True)})"
        if kind == "value":
            name = self._pick((f"first_value({column})", f"last_value({column})", f"nth_value({column}, 2)"))
            nulls = self._pick(("", " ignore nulls"))
            frame = self._pick(("", self._rows_frame(), self._rows_frame()))
            return f"{name}{nulls} over ({self._spec(total=True, ordered=True, frame=frame)})"
        return self._aggregate(column)

    def _aggregate(self, column: str) -> str:
        name = self._pick(("count", "sum", "avg", "min", "max", "sum", "count", "other"))
        if name == "other":
            call = self._pick(
                ("count(*)", "bit_or(l)", "bool_or(o)", "max_by(s, id)", "count(s, d)", "count_if(o)",
                 "collect_list(id)", "bit_xor(i)", "min_by(a, id)", "any_value(id % 1)")
            )  # fmt: skip
        else:
            if name in ("sum", "avg"):
                column = self._pick(list(_SUMMED if name == "sum" else _AVERAGED))
            call = f"{name}({column})"
        if self._rng.random() < 0.15:
            call += f" filter (where {self._pick(('o', 'id % 2 = 0', 'y > 0'))})"
        form = self._pick(("whole", "running", "rows", "rows", "range"))
        if form == "whole":
            return f"{call} over ({self._spec(total=False, ordered=False)})"
        if form == "running":
            return f"{call} over ({self._spec(total='collect' in call, ordered=True)})"
        if form == "rows":
            return f"{call} over ({self._spec(total=True, ordered=True, frame=self._rows_frame())})"
        by = self._pick(_RANGED)
        return f"{call} over ({self._spec(total=False, ordered=True, frame=self._range_frame(by), by=by)})"

    def _less(self, most: int) -> int:
        return int(self._rng.integers(most))

    def _pick(self, choices: Any) -> Any:
        return choices[int(self._rng.integers(len(choices)))]


def _bound(distance: int | None, end: str) -> str:
    if distance is None:
        return f"unbounded {end}"
    if distance == 0:
        return "current row"
    return f"{abs(distance)} {'preceding' if distance < 0 else 'following'}"
