"""Run the benchmark: functions of lists and maps over a Parquet file, here and in Spark, taking turns.

python -m benchmarks.lists [--rows 500000] [--repeats 3] [--only sort_array] [--out benchmarks/results/lists-cpu.json]

Values of each function are compared over the first rows before it is timed. What is timed is an aggregation of them,
so that Spark's generated code computes them and gives none out; ``reading`` is an aggregation of the columns alone.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import types as t

import gpujoin
from benchmarks.machine import describe
from gpujoin.testing import assert_same_rows

_COMPARED = 20_000
_MOST = 8
_WORDS = 5000
_READING = "reading"
FUNCTIONS: dict[str, str] = {
    _READING: "{0}",
    "size": "size({0})",
    "subscript": "{0}[1]",
    "element_at": "try_element_at({0}, -1)",
    "array_contains": "array_contains({0}, {1})",
    "array_contains, constant": "array_contains({0}, {2})",
    "array_position": "array_position({0}, {1})",
    "array_min": "array_min({0})",
    "array_max": "array_max({0})",
    "sort_array": "sort_array({0})",
    "array_sort": "array_sort({0})",
    "array_distinct": "array_distinct({0})",
    "array_union": "array_union({0}, {3})",
    "array_intersect": "array_intersect({0}, {3})",
    "array_except": "array_except({0}, {3})",
    "arrays_overlap": "arrays_overlap({0}, {3})",
    "array_remove": "array_remove({0}, {1})",
    "array_compact": "array_compact({0})",
    "slice": "slice({0}, 2, 3)",
    "concat": "concat({0}, {3})",
    "flatten": "flatten(array({0}, {3}))",
    "reverse": "reverse({0})",
    "array_append": "array_append({0}, {1})",
    "array_repeat": "array_repeat({1}, 3)",
    "arrays_zip": "arrays_zip({0}, {3})",
    "array": "array({1}, {1})",
    "transform": "transform({0}, x -> coalesce(x, {1}))",
    "filter": "filter({0}, x -> x > {1})",
    "exists": "exists({0}, x -> x = {1})",
    "forall": "forall({0}, x -> x <> {1})",
    "zip_with": "zip_with({0}, {3}, (x, y) -> coalesce(x, y))",
    "aggregate": "aggregate({0}, {1}, (a, x) -> greatest(a, x))",
    "array_sort, comparator": """array_sort(array_compact({0}),
        (l, r) -> case when l < r then 1 when l > r then -1 else 0 end)""",
}
"""Functions of lists of each kind of values: the list, a value of the row, a constant, and another list."""
KINDS = {
    "integers": ("i", "n", "7", "j"), "doubles": ("d", "x", "0.5D", "e"), "texts": ("s", "w", "'item 7'", "u"),
}  # fmt: skip
OTHERS: dict[str, str] = {
    "sum by aggregate": "aggregate(i, 0L, (a, x) -> a + coalesce(x, 0))",
    "array_join": "array_join(s, ',')",
    "split": "split(csv, ',')",
    "split by a class": "split(csv, '[,;]')",
    "element of a split": "split(csv, ',')[0]",
    "regexp_extract_all": "regexp_extract_all(csv, '([0-9]+)', 1)",
    "sequence": "sequence(1, n % 8 + 1)",
    "map_keys": "map_keys(m)",
    "map_values": "map_values(m)",
    "map_entries": "map_entries(m)",
    "map subscript": "m['item 7']",
    "map_contains_key": "map_contains_key(m, w)",
    "map_filter": "map_filter(m, (k, v) -> v > n)",
    "transform_values": "transform_values(m, (k, v) -> v + n)",
    "map_zip_with": "map_zip_with(m, m, (k, a, b) -> a + b)",
    "map_from_arrays": "map_from_arrays(array_distinct(array_compact(i)), array_distinct(array_compact(i)))",
    "map": "map('a', n, 'b', n + 1)",
    "str_to_map": "str_to_map(concat('a=', n, ',b=', w), ',', '=')",
}
QUERIES = {
    "explode": "select sum(v), count(*) from lists lateral view explode(i) as v",
    "posexplode": "select sum(p), sum(v) from lists lateral view posexplode(i) as p, v",
    "explode of texts": "select count(distinct v) from lists lateral view explode(s) as v",
    "collect_list": "select sum(size(v)) from (select w, collect_list(n) v from lists group by w)",
    "collect_set": "select sum(size(v)) from (select w, collect_set(n % 100) v from lists group by w)",
}
UNSUPPORTED = {
    "sort_array of doubles", "array_distinct of doubles", "array_union of doubles", "array_intersect of doubles",
    "array_except of doubles", "arrays_overlap of doubles",
}  # fmt: skip
"""Left to Spark, to which zeros and NaNs are more than one thing."""


def cases() -> dict[str, str]:
    """What is computed, by its name."""
    of_kinds = {
        f"{name} of {kind}": text.format(*columns)
        for name, text in FUNCTIONS.items()
        for kind, columns in KINDS.items()
    }
    return {name: text for name, text in (of_kinds | OTHERS).items() if name not in UNSUPPORTED}


def table(rows: int) -> pa.Table:
    """Lists of up to eight integers, doubles and texts, a twentieth of both null; maps; texts with separators."""
    rng = np.random.default_rng(44)

    def lists(values: pa.Array) -> pa.Array:
        counts = rng.integers(0, _MOST + 1, rows)
        total = int(counts.sum())
        chosen = pa.array(rng.integers(0, len(values), total), mask=rng.random(total) < 0.05)
        return pa.ListArray.from_arrays(_offsets(counts), values.take(chosen), mask=pa.array(rng.random(rows) < 0.05))

    words = pa.array([f"item {n}" for n in range(_WORDS)])
    doubles, numbers = pa.array(rng.normal(size=1 << 16)), pa.array(np.arange(1000, dtype=np.int32))
    counts = rng.integers(0, _MOST + 1, rows)
    first = np.repeat(rng.integers(0, _WORDS - _MOST, rows), counts)
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    items = pa.array(rng.integers(0, 1000, int(counts.sum())).astype(np.int32))
    return pa.table(
        {
            "id": np.arange(rows),
            "i": lists(numbers), "j": lists(numbers), "n": rng.integers(0, 1000, rows).astype(np.int32),
            "d": lists(doubles), "e": lists(doubles), "x": rng.normal(size=rows),
            "s": lists(words), "u": lists(words), "w": words.take(pa.array(rng.integers(0, _WORDS, rows))),
            "m": pa.MapArray.from_arrays(_offsets(counts), words.take(pa.array(first + within)), items),
            "csv": pa.array([",".join(map(str, row)) for row in rng.integers(0, 9999, (rows, 4)).tolist()]),
        }
    )  # fmt: skip


def _offsets(counts: npt.NDArray[np.int64]) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))


def digest(text: str, dtype: t.DataType) -> str:
    """An aggregation of values of a type, for which all of them are computed."""
    match dtype:
        case t.BooleanType():
            return f"count_if({text})"
        case t.StringType():
            return f"sum(octet_length({text}))"
        case t.DoubleType():
            return f"max({text})"  # a sum depends on the order
        case t.ArrayType():
            return f"sum(size({text}))"
        case t.MapType():
            return f"sum(size({text}))"
    return f"sum({text})"


def measure(session: SparkSession, name: str, text: str, repeats: int) -> dict[str, Any]:
    """Check and time one function."""
    if name not in QUERIES:
        (field,) = session.table("lists").selectExpr(f"{text} as v").schema
        _check(session, name, f"select id, {text} v from few join keys on id = k")
        text = f"select {digest(text, field.dataType)} v from lists"
    _check(session, name, text)
    wall: dict[str, list[float]] = {"gpujoin": [], "Spark": []}
    for turn in range(repeats + 1):
        for engine, seconds in wall.items():
            before = time.perf_counter()
            frame = session.sql(text)
            (gpujoin.accelerate(frame) if engine == "gpujoin" else frame).collect()
            if turn:  # the first warms up
                seconds.append(time.perf_counter() - before)
    least = {engine: min(seconds) for engine, seconds in wall.items()}
    ratio = least["Spark"] / least["gpujoin"]
    print(f"{name}: {least['gpujoin']:.3f} here, {least['Spark']:.3f} in Spark, ratio {ratio:.2f}", file=sys.stderr)
    return {"case": name, "query": text, "runs": wall, "seconds": least, "ratio": ratio}


def _check(session: SparkSession, name: str, query: str) -> None:
    frame = session.sql(query)
    accelerated = gpujoin.accelerate(frame)
    if not gpujoin.explain(accelerated).islands:
        raise SystemExit(f"{name} is left to Spark\n{gpujoin.explain(accelerated)}")
    assert_same_rows(accelerated.toArrow(), frame.toArrow())


def page(results: list[dict[str, Any]]) -> str:
    """Results as Markdown."""
    lines = ["| what | gpujoin, s | Spark, s | times faster |", "|---|---:|---:|---:|"]
    lines += [
        f"| {result['case']} | {result['seconds']['gpujoin']:.3f} | {result['seconds']['Spark']:.3f} "
        f"| {result['ratio']:.2f} |"
        for result in results
    ]
    ratios = sorted(result["ratio"] for result in results)
    return "\n".join([*lines, "", f"Median of the ratios: {statistics.median(ratios):.2f}; least: {ratios[0]:.2f}."])


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.lists", description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[], help="parts of names of functions")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    session = (
        SparkSession.builder.master(f"local[{arguments.cores}]")
        .config("spark.driver.memory", "1500m")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.ansi.enabled", "false")
        .config("spark.gpujoin.fallback", "raise")
        .config("spark.gpujoin.backend", "cpu")
        .getOrCreate()
    )
    chosen = {
        name: text
        for name, text in (cases() | QUERIES).items()
        if not arguments.only or any(part in name for part in (_READING, *arguments.only))
    }
    with tempfile.TemporaryDirectory(prefix="gpujoin-lists-") as folder:
        rows = table(arguments.rows)
        views = {"lists": rows, "few": rows.slice(0, _COMPARED), "keys": pa.table({"k": np.arange(0, _COMPARED, 3)})}
        for name, view in views.items():
            pq.write_table(view, f"{folder}/{name}.parquet")
            session.read.parquet(f"{folder}/{name}.parquet").createOrReplaceTempView(name)
        results = [measure(session, name, text, arguments.repeats) for name, text in chosen.items()]
    text = page(results)
    print(text)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps({"machine": describe(), "results": results}, indent=1) + "\n")
        run = f"`python -m benchmarks.lists`, {arguments.rows:,} rows, local[{arguments.cores}], least of "
        run += f"{arguments.repeats}. What is timed is a whole query."
        arguments.out.with_suffix(".md").write_text(f"# Functions of lists and maps\n\n{run}\n\n{text}\n")
    session.stop()


if __name__ == "__main__":
    main()
