"""Options of the Java that tests start for Spark, and the archive of Spark's classes.

A Java that starts Spark and runs some queries loads, checks and links 20,000 classes first, which takes four seconds of
processor time. From an archive of an earlier one it maps them (class data sharing). ``python -m tests.java`` makes that
of this environment, unless it is there. Without it, or if it is of other jars or another Java, tests are only slower.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CODEGEN_VARIABLE = "GPUJOIN_TEST_CODEGEN"
ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"

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

_COLUMNS = (
    "cast(id as int) i", "id % 7 k", "cast(id % 5 as string) s", "id * 0.5D f", "date_add(date'2020-01-01', 3) d",
    "cast(id as decimal(9, 2)) n", "timestamp_seconds(id) t", "array(id, null) a", "named_struct('x', id) r",
)  # fmt: skip
_QUERIES = (
    "select l.s, count(*), sum(r.n), avg(l.f), count(distinct l.k) from l join r on l.k = r.k group by l.s",
    "select * from l full join r on l.i = r.i and l.f < r.f order by l.i, r.i limit 7",
    "select i from l where k not in (select k from r where i > 3) or exists (select 1 from r where r.i = l.k)",
    "select i, row_number() over (partition by k order by f), sum(n) over (partition by s) from l",
    "select upper(s), year(d), date_trunc('hour', t), cast(n as string), a[0], r.x, (select max(i) from r) from l",
    "select k, collect_list(s), stddev(f), first(i) from l group by cube (k, s) having count(*) > 1",
    "with c as (select k, i from l where i in (1, 2) union all select k, i from r) select * from c cross join c d",
)
"""Over two tables of these columns, to load the classes of most tests."""


def options(*, archive: Path = ARCHIVE) -> str:
    """Give the options for ``SPARK_SUBMIT_OPTS``."""
    interpreted = () if os.environ.get(CODEGEN_VARIABLE) else _INTERPRETED
    # Java says on standard output that an archive is not of its jars.
    archived = (f"-XX:SharedArchiveFile={archive}", "-Xlog:disable") if archive.exists() else ()
    return " ".join((*SHORT_LIVED, *interpreted, *archived))


def make_archive(archive: Path = ARCHIVE) -> None:
    """Run queries of several kinds in a Java that archives its classes when it ends."""
    warnings.simplefilter("ignore")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / archive.name
        os.environ["SPARK_SUBMIT_OPTS"] = f"{' '.join(SHORT_LIVED)} -XX:ArchiveClassesAtExit={made} -Xlog:disable"
        java = _run_queries(Path(folder))
        if java.stdin is not None:
            java.stdin.close()
        java.wait(120)
        if made.exists():
            shutil.move(made, archive)


def _run_queries(folder: Path) -> subprocess.Popen[bytes]:
    """Give the Java of a session that has run them, which ends when its input does."""
    from pyspark.sql import SparkSession

    import gpujoin

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    builder = builder.config("spark.sql.shuffle.partitions", "2").config("spark.log.level", "ERROR")
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.gpujoin.fallback", "silent")
    spark = builder.config("spark.sql.warehouse.dir", str(folder / "warehouse")).getOrCreate()
    process: subprocess.Popen[bytes] = spark.sparkContext._gateway.proc  # type: ignore[union-attr]

    for name in ("l", "r"):
        spark.range(50).selectExpr(*_COLUMNS).write.parquet(str(folder / name))
        spark.read.parquet(str(folder / name)).createOrReplaceTempView(name)
    for query in _QUERIES:
        spark.sql(query).toArrow()
    gpujoin.enable(spark)
    spark.sql(_QUERIES[0]).collect()
    gpujoin.disable(spark)
    spark.table("l").select("i").mapInArrow(lambda batches: batches, "i int").write.saveAsTable("written")
    _stream(spark, folder)
    spark.stop()
    return process


def _stream(spark: SparkSession, folder: Path) -> None:
    """Join two streams of files."""
    from pyspark.sql import functions as sf

    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", provider)
    left, right = (
        spark.readStream.schema("i int, t timestamp")
        .parquet(str(folder / name))
        .withWatermark("t", "1 second")
        .alias(name)
        for name in ("l", "r")
    )
    joined = left.join(right, sf.expr("l.i = r.i and r.t between l.t and l.t + interval 1 second"), "left")
    writer = joined.writeStream.foreachBatch(lambda rows, _: rows.toArrow()).trigger(availableNow=True)
    writer.option("checkpointLocation", str(folder / "checkpoint")).start().awaitTermination(60)


def _is_current() -> bool:
    """Whether the archive is there, and younger than Spark's jars and Java."""
    import pyspark

    needed = Path(pyspark.__file__).parent / "jars", Path(os.environ["JAVA_HOME"]) / "lib" / "modules"
    return ARCHIVE.exists() and all(ARCHIVE.stat().st_ctime > path.stat().st_ctime for path in needed)


if __name__ == "__main__" and not _is_current():
    make_archive()
