"""Tables of formats that other packages derive from Spark's Parquet, with lists of files of their own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import gpujoin
from gpujoin.spark.jvm.gateway import gateway_of
from gpujoin.spark.query.accelerate import rewrite
from gpujoin.testing import assert_same_rows
from tests.spark.query.queries import FORCED

FORMAT = "lake.LakeFormat"
LAKE = FORCED | {"spark.gpujoin.scan.parquetFormats": f"other.Format, {FORMAT}"}
pytestmark = [pytest.mark.spark, pytest.mark.parametrize("spark", [LAKE], indirect=True, ids=["cpu"])]

SOURCE = """
package lake;

import java.util.ArrayList;
import org.apache.spark.sql.execution.datasources.*;
import org.apache.spark.sql.types.StructType;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/** A format as Delta's: its own class, which says how columns are named and whether rows are deleted. */
public class LakeFormat extends org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat {
    private final String mapping;
    private final boolean deletes;

    public LakeFormat(String mapping, boolean deletes) {
        this.mapping = mapping;
        this.deletes = deletes;
    }

    public static final class Mode {
        private final String name;

        Mode(String name) {
            this.name = name;
        }

        public String name() {
            return name;
        }
    }

    public Mode columnMappingMode() {
        return new Mode(mapping);
    }

    public boolean hasTablePath() {
        return deletes;
    }

    /** A list of files that another one has, but for some, each with what is known of it. */
    public static final class LogIndex implements FileIndex {
        private final FileIndex files;
        private final String without;
        private final String known;

        public LogIndex(FileIndex files, String without, String known) {
            this.files = files;
            this.without = without;
            this.known = known;
        }

        public Seq rootPaths() {
            return files.rootPaths();
        }

        public Seq listFiles(Seq partitionFilters, Seq dataFilters) {
            ArrayList left = new ArrayList();
            scala.collection.Iterator each = files.listFiles(partitionFilters, dataFilters).iterator();
            while (each.hasNext()) {
                PartitionDirectory directory = (PartitionDirectory) each.next();
                ArrayList kept = new ArrayList();
                scala.collection.Iterator statuses = directory.files().iterator();
                while (statuses.hasNext()) {
                    FileStatusWithMetadata file = (FileStatusWithMetadata) statuses.next();
                    if (!file.getPath().toString().contains(without)) {
                        scala.collection.immutable.Map map = file.metadata();
                        if (!known.isEmpty()) {
                            map = (scala.collection.immutable.Map) map.updated(known, "x");
                        }
                        kept.add(new FileStatusWithMetadata(file.fileStatus(), map));
                    }
                }
                left.add(new PartitionDirectory(directory.values(), CollectionConverters.asScala(kept).toSeq()));
            }
            return CollectionConverters.asScala(left).toSeq();
        }

        public String[] inputFiles() {
            return files.inputFiles();
        }

        public void refresh() {
            files.refresh();
        }

        public long sizeInBytes() {
            return files.sizeInBytes();
        }

        public StructType partitionSchema() {
            return files.partitionSchema();
        }
    }
}
"""
OBSTACLES: dict[str, tuple[dict[str, Any], str]] = {
    "mapped columns": ({"mapping": "name"}, "its columns have other names in its files"),
    "deleted rows": ({"deletes": True}, "its files have deleted rows"),
    "marks of a file": ({"known": "row_index_filter"}, "its list of files has more to say of a file"),
    "computed column": ({"select": ("*", "id as __deleted")}, "column __deleted may be computed by LakeFormat"),
}


@pytest.fixture(scope="module")
def lake(spark_session: SparkSession) -> Any:
    """The class loader of the format."""
    names = gateway_of(spark_session)
    compiler = names.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(names.java.lang.Thread.currentThread().getContextClassLoader())
    compiler.cook("LakeFormat.java", SOURCE)
    return compiler.getClassLoader()


def made(spark: SparkSession, loader: Any, name: str, *arguments: Any) -> Any:
    """Make an object of a class of the format's package by its only constructor."""
    names = gateway_of(spark)
    values = names.java.util.ArrayList()
    for argument in arguments:
        values.add(argument)
    (constructor,) = loader.loadClass(name).getConstructors()
    return constructor.newInstance(values.toArray())


def lake_table(
    spark: SparkSession, loader: Any, folder: Path, *, without: str = "/part=none/", mapping: str = "none",
    deletes: bool = False, known: str = "", select: Sequence[str] = ("*",), by: str | None = "part",
) -> DataFrame:  # fmt: skip
    """A table of the format, over files that are written."""
    rows = spark.range(0, 400, 1, 2).selectExpr("id", "id % 7 as k", "concat('t', id % 5) as t", "id % 3 as part")
    writer = rows.selectExpr(*select).write.mode("overwrite")
    (writer if by is None else writer.partitionBy(by)).parquet(str(folder))
    plain = spark.read.parquet(str(folder))._jdf.queryExecution().analyzed().relation()
    form = made(spark, loader, FORMAT, mapping, deletes)
    index = made(spark, loader, f"{FORMAT}$LogIndex", plain.location(), without, known)
    relation = plain.copy(
        index, plain.partitionSchema(), plain.dataSchema(), plain.bucketSpec(), form, plain.options(),
        plain.sparkSession(),
    )  # fmt: skip
    return DataFrame(spark._jsparkSession.baseRelationToDataFrame(relation), spark)


QUERY = "select k, part, count(*) n, sum(id) s, max(t) t from {table} where part < 2 and id > 10 group by k, part"
JOIN = "select a.id, b.t from {table} a join {table} b on a.k = b.k"


@pytest.mark.parametrize("by", ["part", None], ids=["partitioned", "not partitioned"])
def test_workers_read_tables_of_a_format_that_is_named(
    spark: SparkSession, lake: Any, tmp_path: Path, by: str | None
) -> None:
    table = lake_table(spark, lake, tmp_path / "table", without="/part=1/" if by else "part-00000", by=by)
    frame = gpujoin.accelerate(spark.sql(QUERY, table=table))
    told = str(gpujoin.explain(frame))
    assert "scan " in told
    assert "Spark" not in told.partition("notes")[0].replace("s in Spark", "")
    left = [str(path) for path in (tmp_path / "table").rglob("*.parquet") if (
        "/part=1/" not in str(path) if by else not path.name.startswith("part-00000"))]  # fmt: skip
    expected = spark.sql(QUERY, table=spark.read.option("basePath", str(tmp_path / "table")).parquet(*left))
    assert_same_rows(frame.toArrow(), expected.toArrow())
    (stage,) = gpujoin.metrics(frame)
    assert stage.metrics.pipeline.files > 0, "workers read the files"


@pytest.mark.parametrize("name", OBSTACLES)
def test_tables_that_hold_more_are_left_to_spark(spark: SparkSession, lake: Any, tmp_path: Path, name: str) -> None:
    changes, why = OBSTACLES[name]
    spark.conf.set("spark.gpujoin.fallback", "silent")
    table = lake_table(spark, lake, tmp_path / "table", **changes)
    told = str(rewrite(spark.sql(JOIN, table=table)).explanation)
    assert why in told
    assert "scan " not in told


def test_a_format_that_is_not_named_is_left_to_spark(spark: SparkSession, lake: Any, tmp_path: Path) -> None:
    spark.conf.unset("spark.gpujoin.scan.parquetFormats")
    spark.conf.set("spark.gpujoin.fallback", "silent")
    frame = spark.sql(JOIN, table=lake_table(spark, lake, tmp_path / "table"))
    told = str(rewrite(frame).explanation)
    assert "only Parquet and ORC files are read here" in told
