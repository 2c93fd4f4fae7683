"""Options of the Java that tests start for Spark, and an archive of the classes that it loads.

Java maps the archive into memory instead of looking for some 10,000 classes in 280 JARs: of 8 s of a core that a
session takes until its first query has run, 4 are left. So a run of `make test`, which starts a dozen, has back what it
takes to make the archive.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

CODEGEN_VARIABLE = "GPUJOIN_TEST_CODEGEN"

SHORT_LIVED = (
    "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xms1g", "-Xmn640m", "-XX:MetaspaceSize=256m",
    "-XX:ReservedCodeCacheSize=256m", "-XX:+IgnoreUnrecognizedVMOptions", "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
)  # fmt: skip
"""For drivers of many small queries, for which Spark generates many classes that run once.

Compiling them well, verifying them and growing the heap step by step costs a fifth of a driver's time. With one tier
of compilation Java keeps 48 MiB for code, and once that is full searches it all the time for what may go.
"""
_INTERPRETED = ("-Dspark.sql.codegen.wholeStage=false", "-Dspark.sql.codegen.factoryMode=NO_CODEGEN")
"""Has Spark interpret queries; it does not if GPUJOIN_TEST_CODEGEN is set, as users have it."""


def options() -> str:
    """Give the options for ``SPARK_SUBMIT_OPTS``."""
    return " ".join((*SHORT_LIVED, *(() if os.environ.get(CODEGEN_VARIABLE) else _INTERPRETED)))


_MOST_SECONDS = 300.0
_SESSION = """
import sys
from pyspark.sql import SparkSession

folder = sys.argv[1]
session = (
    SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").config("spark.log.level", "ERROR")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.sql.shuffle.partitions", "2").config("spark.sql.catalogImplementation", "in-memory")
    .config("spark.local.dir", folder).config("spark.sql.warehouse.dir", folder + "/warehouse").getOrCreate()
)
session.range(9).selectExpr("id", "id % 3 k", "string(id) s", "decimal(id) d").write.parquet(folder + "/table")
session.read.parquet(folder + "/table").createOrReplaceTempView("t")
session.sql(
    "select a.k, count(*), sum(a.d), max(b.s), row_number() over (order by a.k) from t a join t b on a.k = b.k "
    "where a.id > (select min(id) from t) group by a.k order by 1"
).toArrow()
session.sql("select * from t a left join t b on a.id = b.id union all select * from t c cross join t d").collect()
session.range(3).mapInArrow(lambda batches: batches, "id long").collect()
for kind in ("orc", "csv", "json"):
    session.table("t").write.format(kind).save(folder + "/" + kind)
    session.read.schema("id long, k long").format(kind).load(folder + "/" + kind).groupBy("k").count().collect()
session.conf.set(
    "spark.sql.streaming.stateStore.providerClass",
    "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
)
rows = session.readStream.schema("id long, k long").parquet(folder + "/table").groupBy("k").count()
rows.writeStream.outputMode("complete").foreachBatch(lambda frame, batch: frame.toArrow()).option(
    "checkpointLocation", folder + "/checkpoint"
).trigger(availableNow=True).start().awaitTermination()
session.stop()
"""
"""Loads most of the classes that the tests' queries take."""


def archive_path(folder: Path) -> Path | None:
    """Path of the archive for this Java and this PySpark in a folder; None where one of them is not there."""
    spark, java = importlib.util.find_spec("pyspark"), Path(os.environ.get("JAVA_HOME", ""), "release")
    if spark is None or spark.origin is None or not java.is_file():
        return None
    jars = Path(spark.origin).parent / "jars"
    digest = hashlib.sha256(java.read_bytes())
    for part in (
        *SHORT_LIVED,
        _SESSION,
        str(jars),
        *sorted(f"{jar.name} {jar.stat().st_mtime_ns}" for jar in jars.glob("*")),
    ):
        digest.update(part.encode() + b"\0")
    return folder / f"{digest.hexdigest()[:32]}.jsa"


def make_archive(path: Path) -> None:
    """Make the archive in a session of its own, which takes some 15 s; if that fails, there is none."""
    fresh = path.with_suffix(f".{os.getpid()}")
    archiving = " ".join((*SHORT_LIVED, f"-XX:ArchiveClassesAtExit={fresh}", "-Xlog:disable"))
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_SUBMIT_OPTS": archiving}
    with tempfile.TemporaryDirectory() as scratch, contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run(
            [sys.executable, "-c", _SESSION, scratch], env=environment, check=True, capture_output=True,
            timeout=_MOST_SECONDS,
        )  # fmt: skip
        fresh.replace(path)
    fresh.unlink(missing_ok=True)


def from_archive(path: Path) -> str:
    """Give the options with which Java takes classes from an archive, and says nothing where it does not fit."""
    return f"-XX:SharedArchiveFile={path} -Xlog:disable"
