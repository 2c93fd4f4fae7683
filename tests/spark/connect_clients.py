"""Run by test_connect.py: clients of a server that plans their queries, the findings as JSON on the last line.

Arguments: the address of the server, the folder of the tables, the file of faults, and names of what is to be found.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as sf

import gpujoin
from gpujoin.testing import assert_same_rows
from tests.spark.connect_server import HANG, KILL

QUERIES = {
    "join": "select sale, city, price from sales join stores using (store) where price > 10",
    "aggregation": "select city, count(*) n, sum(price) p, avg(weight) w from sales left join stores using (store) "
    "group by city",
    "window": "select sale, rank() over (partition by store order by price desc, sale) r from sales where sale < 500",
    "top": "select store, sum(price) p from sales group by store order by p desc, store limit 3",
    "range join": "select sale, label from sales join bands on price between low and high where sale % 7 = 0",
    "subquery": "select store, count(*) n from sales where price > (select avg(price) from sales) group by store",
}
DEADLINE = 20.0
pandas_udf: Any = vars(sf)["pandas_udf"]  # which PySpark's stubs do not know


class Clients:
    """Clients of one server."""

    def __init__(self, address: str, folder: Path, fault: Path) -> None:
        self.address = address
        self.folder = folder
        self.fault = fault
        self.spark = self.session()

    def session(self, **settings: str) -> SparkSession:
        """Make a session of its own, with the tables as views, in which gpujoin runs what it covers."""
        spark: SparkSession = SparkSession.builder.remote(self.address).create()
        for name, value in {"backend": "cpu", "fallback": "silent", **settings}.items():
            spark.conf.set(f"spark.gpujoin.{name}", value)
        for path in self.folder.glob("*.parquet"):
            spark.read.parquet(str(path)).createOrReplaceTempView(path.stem)
        return spark

    def sparks(self, text: str) -> pa.Table:
        """Give the rows that Spark computes itself."""
        self.spark.conf.set("spark.gpujoin.enabled", "false")
        try:
            return self.spark.sql(text).toArrow()
        finally:
            self.spark.conf.set("spark.gpujoin.enabled", "true")

    # -- what is found --------------------------------------------------------------------------------------------

    def queries(self) -> dict[str, Any]:
        """Rows compared with Spark's, and whether they were computed here, as explain and metrics say."""
        found = {}
        for name, text in QUERIES.items():
            frame = self.spark.sql(text)
            table = frame.toArrow()
            error = None
            try:
                assert_same_rows(table, self.sparks(text))
            except AssertionError as problem:
                error = str(problem)
            reports = gpujoin.metrics(frame)
            found[name] = {
                "rows": table.num_rows,
                "error": error,
                "explained": gpujoin.explain(frame).accelerated,
                "tasks": sum(report.tasks for report in reports),
                "measured": [each.measured is not None for each in reports.report.walk()],
            }
        return found

    def actions(self) -> dict[str, Any]:
        """Results of actions of a DataFrame, here and in Spark, and whether they ran here."""
        actions: dict[str, Callable[[DataFrame], Any]] = {
            "count": lambda frame: frame.count(),
            "collect": lambda frame: sorted(map(str, frame.collect())),
            "show": lambda frame: frame._show_string(50, truncate=False),  # type: ignore[operator]
            "head": lambda frame: len(frame.head(2)),
            "toPandas": lambda frame: sorted(pd.DataFrame(frame.toPandas())["n"]),
            "toLocalIterator": lambda frame: sorted(map(str, frame.toLocalIterator())),
            "isEmpty": lambda frame: frame.isEmpty(),
        }
        found: dict[str, Any] = {}
        for name, action in actions.items():
            results, ran = [], 0
            for enabled in ("true", "false"):
                self.spark.conf.set("spark.gpujoin.enabled", enabled)
                frame = self.spark.sql("select store, count(*) n from sales group by store order by store")
                results.append(action(frame))
                if enabled == "true":
                    ran = sum(report.tasks for report in gpujoin.metrics(frame))
            self.spark.conf.set("spark.gpujoin.enabled", "true")
            found[name] = [results[0] == results[1], ran > 0]
        return found

    def writes(self) -> dict[str, Any]:
        """Rows of a table written by a client, and by SQL."""
        text = QUERIES["aggregation"]
        target = str(self.folder / "written")
        frame = self.spark.sql(text)
        frame.write.mode("overwrite").parquet(target)
        ran = sum(report.tasks for report in gpujoin.metrics(frame))
        assert_same_rows(self.spark.read.parquet(target).toArrow(), self.sparks(text))
        return {"ran": ran > 0}

    def settings(self) -> dict[str, Any]:
        """What a misspelt setting says, and whether one session's switch concerns another."""
        text = QUERIES["top"]
        other = self.session(enabled="false")
        frame = other.sql(text)
        frame.collect()
        off = [gpujoin.explain(frame).accelerated, len(gpujoin.metrics(frame))]
        gpujoin.enable(other)
        frame.collect()
        on = [gpujoin.explain(frame).accelerated, len(gpujoin.metrics(frame))]
        gpujoin.disable(other)
        again = gpujoin.explain(frame).accelerated
        other.conf.set("spark.gpujoin.fallbak", "warn")
        try:
            frame.collect()
            told = "no error"
        except PySparkException as problem:
            told = str(problem).splitlines()[0]
        other.stop()
        return {"off": off, "on": on, "again": again, "told": told}

    def failing(self) -> dict[str, Any]:
        """What becomes of queries whose workers are killed."""
        found: dict[str, Any] = {}
        text = QUERIES["aggregation"]
        expected = self.sparks(text)
        self.fault.write_text(KILL)
        try:
            frame = self.spark.sql(text)
            assert_same_rows(frame.toArrow(), expected)
            found["given back"] = len(gpujoin.metrics(frame)) == 0
            target = str(self.folder / "given back")
            frame.write.mode("overwrite").parquet(target)
            assert_same_rows(self.spark.read.parquet(target).toArrow(), expected)
            self.spark.conf.set("spark.gpujoin.fallback", "raise")
            try:
                frame.toArrow()
                found["raised"] = "no error"
            except PySparkException as problem:
                found["raised"] = str(problem).splitlines()[0]
        finally:
            self.fault.unlink()
            self.spark.conf.set("spark.gpujoin.fallback", "silent")
        try:
            self.spark.sql("select store, max(1 / (store - 1)) m from sales group by store").collect()
        except PySparkException as problem:
            found["own error"] = problem.getCondition()
        return found

    def observed(self) -> dict[str, Any]:
        """What Observations get."""
        text = QUERIES["aggregation"]
        above, below = Observation("above"), Observation("below")
        frame = self.spark.sql(text).observe(above, sf.count(sf.lit(1)).alias("n"))
        rows = len(frame.collect())
        ran = sum(report.tasks for report in gpujoin.metrics(frame))
        self.spark.table("sales").observe(below, sf.count(sf.lit(1)).alias("n")).groupBy("store").count().collect()
        return {"above": above.get["n"] == rows, "ran": ran > 0, "below": below.get["n"]}

    def cached(self) -> dict[str, Any]:
        """Whether a cached query gives its rows, and is read by islands."""
        text = QUERIES["join"]
        expected = self.sparks(text)
        frame = self.spark.sql(text).cache()
        assert_same_rows(frame.toArrow(), expected)
        plan = frame._explain_string()  # type: ignore[operator]
        grouped = frame.groupBy("city").count()
        rows = grouped.count()
        frame.unpersist()
        return {"plan": "InMemoryTableScan" in plan, "island in cache": "island_" in plan, "rows": rows}

    def interrupted(self) -> dict[str, Any]:
        """What interrupts do to operations, by each of their ways, and the seconds it takes."""
        ways: dict[str, Callable[[SparkSession], Any]] = {
            "all": lambda spark: spark.interruptAll(),
            "tag": lambda spark: spark.interruptTag("slow"),
            "operation": lambda spark: spark.interruptOperation(operations[-1]),
        }
        operations: list[str] = []

        def record(stages: Any, inflight_tasks: int, operation_id: str, done: bool) -> None:
            del stages, inflight_tasks, done
            operations.append(operation_id)

        note: Any = record  # the stubs' protocol has another name for the stages
        self.spark.registerProgressHandler(note)
        found = {name: self._interrupted(way) for name, way in ways.items()}
        self.spark.removeProgressHandler(note)
        return found

    def _interrupted(self, way: Callable[[SparkSession], Any]) -> list[Any]:
        begun = self.fault.with_suffix(".begun")
        begun.unlink(missing_ok=True)
        self.fault.write_text(HANG)
        outcome: list[str] = []

        def collect() -> None:
            self.spark.addTag("slow")
            try:
                self.spark.sql(QUERIES["aggregation"]).collect()
                outcome.append("rows")
            except PySparkException as problem:
                outcome.append(str(problem))

        thread = threading.Thread(target=collect)
        thread.start()
        deadline = time.monotonic() + DEADLINE
        while not begun.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        self.fault.unlink()
        time.sleep(0.5)  # the server has told of the operation's progress
        started = time.monotonic()
        interrupted = way(self.spark)
        thread.join()
        return [len(interrupted or ()), "OPERATION_CANCELED" in outcome[0], time.monotonic() - started]

    def together(self) -> dict[str, Any]:
        """Rows of several clients at once, each with its own settings."""
        text = QUERIES["aggregation"]
        expected = self.sparks(text)
        outcomes: list[Any] = []

        def run(enabled: str) -> None:
            spark = self.session(enabled=enabled)
            try:
                for _ in range(3):
                    frame = spark.sql(text)
                    assert_same_rows(frame.toArrow(), expected)
                    outcomes.append([enabled, len(gpujoin.metrics(frame)) > 0])
            except Exception as problem:  # noqa: BLE001 - told to the test
                outcomes.append([enabled, repr(problem)])
            finally:
                spark.stop()

        threads = [threading.Thread(target=run, args=(enabled,)) for enabled in ("true", "false") * 3]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {"outcomes": sorted(map(json.dumps, outcomes))}

    def ended(self) -> dict[str, Any]:
        """How many sessions have run a query and ended."""
        count = 12
        for _ in range(count):
            spark = self.session()
            spark.sql(QUERIES["top"]).collect()
            spark.stop()
        return {"count": count}

    def functions(self) -> dict[str, Any]:
        """Rows of queries with Python functions of the client's."""

        @pandas_udf("double")
        def halved(price: pd.Series) -> pd.Series:
            return price.astype("float64") / 2

        @sf.udf("string", useArrow=True)
        def shout(city: str | None) -> str:
            return (city or "nowhere").upper()

        def many(batches: Any) -> Any:
            for batch in batches:
                yield batch.assign(n=batch["n"] + 1)

        def query(spark: SparkSession) -> DataFrame:
            joined = spark.table("sales").join(spark.table("stores"), "store")
            grouped = joined.groupBy(shout("city").alias("c")).agg(
                sf.count(sf.lit(1)).alias("n"), sf.max(halved("price")).alias("h")
            )
            return grouped.mapInPandas(many, "c string, n long, h double")

        tables, explained, ran = [], "", 0
        for enabled in ("true", "false"):
            self.spark.conf.set("spark.gpujoin.enabled", enabled)
            frame = query(self.spark)
            tables.append(frame.toArrow())
            if enabled == "true":
                explained = str(gpujoin.explain(frame))
                ran = sum(report.tasks for report in gpujoin.metrics(frame))
        self.spark.conf.set("spark.gpujoin.enabled", "true")
        assert_same_rows(*tables)
        return {"rows": tables[0].num_rows, "explained": explained, "ran": ran > 0}

    def artifacts(self) -> dict[str, Any]:
        """Rows of functions that read a file, and import a module, that the client has added."""
        spark = self.session()
        archive, note = self.folder / "artifact_of_client.zip", self.folder / "artifact_of_client.txt"
        with zipfile.ZipFile(archive, "w") as modules:
            modules.writestr("artifact_of_client.py", "def more(x):\n    return x + 1000\n")
        note.write_text("7")

        @pandas_udf("long")
        def read(store: pd.Series) -> pd.Series:
            from pyspark import SparkFiles

            return store + int(Path(SparkFiles.get("artifact_of_client.txt")).read_text())

        @pandas_udf("long")
        def imported(store: pd.Series) -> pd.Series:
            import artifact_of_client  # type: ignore[import-not-found]

            return artifact_of_client.more(store)

        spark.addArtifact(str(note), file=True)
        found = {"read": self._mapped(spark, read)}
        spark.addArtifact(str(archive), pyfile=True)
        found["imported"] = self._mapped(spark, imported)
        spark.stop()
        return found

    def _mapped(self, spark: SparkSession, function: Callable[..., Any]) -> dict[str, Any]:
        """Least value of a function of stores, computed here and in Spark alike, and how it was computed here."""
        tables, explained, ran = [], "", 0
        for enabled in ("true", "false"):
            spark.conf.set("spark.gpujoin.enabled", enabled)
            joined = spark.table("sales").join(spark.table("stores"), "store")
            frame = joined.groupBy(function("store").alias("r")).count()
            tables.append(frame.toArrow())
            if enabled == "true":
                explained = str(gpujoin.explain(frame))
                ran = sum(report.tasks for report in gpujoin.metrics(frame))
        assert_same_rows(*tables)
        return {"least": min(tables[0]["r"].to_pylist()), "ran": ran > 0, "explained": explained}

    def gpu_joins(self) -> dict[str, Any]:
        """How a join of gpu_join runs: by the server, or by the client if a strategy is named."""
        sales, stores = self.spark.table("sales"), self.spark.table("stores")
        spark = self.session(backend="auto")  # by the session's default
        plain = gpujoin.gpu_join(spark.table("sales"), spark.table("stores"), "store")
        condition = gpujoin.gpu_join(sales, stores, (sales.store == stores.store) & (sales.price > 10))
        named = gpujoin.gpu_join(sales, stores, "store", strategy="broadcast")
        expected = self.sparks("select * from sales join stores using (store)")
        for frame in (plain, named):
            assert_same_rows(frame.toArrow(), expected)
        found = {
            "plain": [join.strategy.value for join in gpujoin.explain(plain).joins],
            "condition": gpujoin.explain(condition).accelerated,
            "named": [join.strategy.value for join in gpujoin.explain(named).joins],
            "accelerate": gpujoin.accelerate(plain) is plain,
        }
        spark.stop()
        return found


def main() -> None:
    logging.getLogger("pyspark").setLevel(logging.CRITICAL)
    address, folder, fault, *names = sys.argv[1:]
    clients = Clients(address, Path(folder), Path(fault))
    found: dict[str, Any] = {}
    for name in names:
        began = time.monotonic()
        try:
            found[name] = getattr(clients, name)()
        except Exception as problem:  # noqa: BLE001 - told to the test
            found[name] = {"failed": repr(problem)}
        print(f"{name}: {time.monotonic() - began:.1f} s", file=sys.stderr)
    clients.spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
