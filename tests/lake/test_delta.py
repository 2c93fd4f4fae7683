"""Tables of Delta Lake, read by workers or left to Spark: every feature of a table, with Spark's rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from gpujoin.spark.query.accelerate import Purpose, rewrite
from gpujoin.spark.query.native import native_plan
from tests.deletions import inline
from tests.lake.deltas import (
    BY_ID,
    BY_NAME,
    VECTORS,
    as_inline,
    change_files,
    files_of,
    folder_of,
    new_table,
    vectors_of,
)
from tests.lake.queries import TYPES, check_left, check_read, queries_of, rows, run
from tests.spark.query.queries import EXCHANGED, FORCED

pytestmark = [
    pytest.mark.lake("delta"),
    pytest.mark.spark,
    pytest.mark.parametrize("spark", [FORCED, EXCHANGED], indirect=True, ids=["one task", "exchanged"]),
]

BASE = "k bigint, g int, s string"
INSERT = "insert into {t} select id, id % 3, concat('x', id % 10) from range(60)"
MORE = "insert into {t} select id, id % 3, 'y' from range(60, 75)"
FIFTHS, SEVENTHS = (f"delete from {{t}} where k % {number} = 0" for number in (5, 7))
PROPERTIES: dict[str, dict[str, str]] = {
    "plain": {}, "vectors": VECTORS, "by name": BY_NAME | VECTORS, "by id": BY_ID | VECTORS,
    "row tracking": VECTORS | {"delta.enableRowTracking": "true"},
}  # fmt: skip


@pytest.mark.parametrize("name", PROPERTIES)
def test_all_types(spark: SparkSession, name: str) -> None:
    table = new_table(spark, TYPES, properties=PROPERTIES[name])
    run(spark, table, f"insert into {{t}} {rows(0, 60)}", f"insert into {{t}} {rows(40, 90)}")
    check_read(queries_of(spark, table).items())
    run(spark, table, "delete from {t} where k % 7 = 3")
    check_read(queries_of(spark, table).items())
    assert bool(vectors_of(spark, table)) == (name != "plain")


PARTITIONS = {
    "texts": "s",
    "a number": "i",
    "a date": "a",
    "a timestamp": "t",
    "a timestamp without a zone": "n",
    "a decimal": "e",
    "a wide decimal": "w",
    "a boolean": "b",
    "several": "b, s, i",
}


@pytest.mark.parametrize("name", PROPERTIES)
@pytest.mark.parametrize("by", PARTITIONS)
def test_partitions(spark: SparkSession, by: str, name: str) -> None:
    table = new_table(spark, TYPES, by=PARTITIONS[by], properties=PROPERTIES[name])
    run(spark, table, f"insert into {{t}} {rows(0, 40)}", f"insert into {{t}} {rows(30, 50)}")
    run(spark, table, "delete from {t} where k % 11 = 4")
    frames = queries_of(spark, table)
    frames["of partitions alone"] = spark.sql(f"select s, i, b, count(*) n from {table} group by s, i, b")
    frames["some partitions"] = spark.sql(
        f"select a.*, b.k k2 from {table} a join {table} b on a.k = b.k where a.s <=> 'ü=/%' or a.i = 3 and b.b"
    )
    frames["no partition"] = spark.sql(f"select i, s, y from {table} where s is null group by i, s, y")
    check_read(frames.items())
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    check_read([("another zone", spark.sql(f"select t, n, a, count(*) c from {table} group by t, n, a"))])


@pytest.mark.parametrize("mapping", [BY_NAME, BY_ID], ids=["by name", "by id"])
def test_row_tracking_with_mapped_partitions(spark: SparkSession, mapping: dict[str, str]) -> None:
    tracked = mapping | VECTORS | {"delta.enableRowTracking": "true"}
    table = new_table(spark, BASE, by="g, s", properties=tracked)
    run(
        spark, table, INSERT, FIFTHS, "alter table {t} rename column g to h", "alter table {t} rename column s to g",
        "update {t} set g = 'u' where k % 7 = 0", "insert into {t} values (99, null, ''), (98, 1, null)",
        "optimize {t}", SEVENTHS, "update {t} set h = 9 where k % 11 = 0",
    )  # fmt: skip
    frames = queries_of(spark, table)
    frames["partitions alone"] = spark.sql(f"select g, h, count(*) n from {table} group by g, h")
    check_read(frames.items())
    ids = spark.sql(f"select _metadata.row_id % 3 m, h, count(*) n from {table} group by 1, 2")
    check_left(ids, "_metadata")


def test_a_partition_of_floats(spark: SparkSession) -> None:
    table = new_table(spark, "k bigint, d double", by="d")
    run(spark, table, "insert into {t} values (1, 0.5), (2, -0.0), (3, 0.0), (4, null), (5, double('nan'))")
    frame = spark.sql(f"select d, count(*) from {table} group by d")
    check_read([("floats", frame)])


def test_random_prefixes_put_files_of_several_partitions_into_a_folder(spark: SparkSession) -> None:
    prefixes = {"delta.randomizeFilePrefixes": "true", "delta.randomPrefixLength": "1"}
    table = new_table(spark, BASE, by="s", properties=prefixes)
    run(spark, table, "insert into {t} select id, id % 3, concat('x', id % 200) from range(300)")
    folders = [Path(file["path"]).parent for file in files_of(spark, table)]
    assert len(set(folders)) < len(folders)
    check_read(queries_of(spark, table).items())


def test_a_table_with_the_same_conditions_twice_is_planned_without_a_job(spark: SparkSession) -> None:
    """Delta prepares one scan for both uses, with the columns of one of them."""
    table = new_table(spark, BASE)
    run(spark, table, INSERT, MORE)
    some = f"(select k, s from {table} where g = 1 and k > 3)"
    text = f"select a.s, count(*) n from {some} a join {some} b on a.k = b.k group by a.s"

    def jobs() -> int:
        return int(spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs())

    native_plan(spark.sql(text))  # has the snapshot's state
    start = jobs()
    native_plan(spark.sql(text))
    prepared = jobs()
    explained = rewrite(spark.sql(text), Purpose.EXPLAIN)
    assert "scan " in str(explained.explanation)
    assert jobs() - prepared == prepared - start > 0
    check_read([("twice", spark.sql(text))])


@dataclass(frozen=True)
class History:
    """A table, and what was done with it."""

    columns: str
    statements: tuple[str, ...]
    by: str = ""
    cluster: str = ""
    properties: dict[str, str] = field(default_factory=dict)
    why: str = ""
    """Why it is left to Spark; nothing: it is read."""


MERGE = """
merge into {t} a using (select id as k, id % 4 as w from range(20, 90)) b on a.k = b.k
when matched and b.w = 0 then delete when matched and b.w = 1 then update set s = 'merged'
when not matched then insert (k, g, s) values (b.k, b.w, 'inserted')
"""
NESTED = """
insert into {t} select id, if(id % 5 = 0, null, struct(cast(id as int), struct(concat('c', id)))),
  if(id % 4 = 0, null, array('x', null, string(id))), if(id % 3 = 0, map(), map('a', id, 'b', null)) from range(40)
"""
_PIECES = "k bigint, p struct<a:int,b:struct<c:string>>, l array<string>, m map<string,bigint>"
_WIDENING = {"delta.enableTypeWidening": "true"}
HISTORIES = {
    "nothing inserted": History(BASE, ()),
    "columns added": History(
        BASE,
        (INSERT, "alter table {t} add columns (z double, s2 string after k)",
         "insert into {t} select id, 'new', id % 3, 'n', id from range(50, 80)"),
    ),
    "clustered": History(BASE, (INSERT, MORE, "optimize {t}"), cluster="g, k"),
    "optimized": History(BASE, (INSERT, MORE, FIFTHS, "optimize {t}"), properties=VECTORS),
    "in Z-order": History(BASE, (INSERT, MORE, "optimize {t} zorder by (g, k)")),
    "vacuumed": History(
        BASE,
        (INSERT, FIFTHS, "delete from {t} where k % 5 = 1",
         "set spark.databricks.delta.retentionDurationCheck.enabled=false",
         "set spark.sql.sources.parallelPartitionDiscovery.parallelism=2", "vacuum {t} retain 0 hours"),
        properties=VECTORS,
    ),
    "purged": History(
        BASE,
        (INSERT, MORE, FIFTHS, "reorg table {t} apply (purge)", "delete from {t} where k = 1"),
        properties=VECTORS,
    ),
    "restored": History(
        BASE, (INSERT, FIFTHS, "delete from {t}", "restore table {t} to version as of 2"),
        properties=VECTORS,
    ),
    "default columns": History(
        "k bigint, s string default 'no'",
        ("insert into {t} (k) select id from range(30)", "insert into {t} (k, s) values (99, 'given')"),
        properties={"delta.feature.allowColumnDefaults": "supported"},
    ),
    "char and varchar": History(
        "k bigint, c char(5), v varchar(4)", ("insert into {t} select id, concat('c', id % 5), 'v' from range(30)",)
    ),
    "checked": History(BASE, (INSERT, "alter table {t} add constraint c check (k >= 0)", MORE)),
    "change data feed": History(
        BASE, (INSERT, FIFTHS, "update {t} set s = 'u' where k % 7 = 0", MERGE),
        properties=VECTORS | {"delta.enableChangeDataFeed": "true"},
    ),
    "row tracking": History(
        BASE, (INSERT, FIFTHS, "update {t} set s = 'u' where k % 7 = 0", MERGE, MORE),
        properties=VECTORS | {"delta.enableRowTracking": "true"},
    ),
    "a checkpoint of the second version": History(
        BASE, (INSERT, *(f"delete from {{t}} where k = {n}" for n in range(12))),
        properties=VECTORS | {"delta.checkpointPolicy": "v2"},
    ),
    "nested": History(_PIECES, (NESTED,)),
    "nested by name": History(_PIECES, (NESTED, SEVENTHS), properties=BY_NAME | VECTORS),
    "nested by id": History(_PIECES, (NESTED, SEVENTHS), properties=BY_ID | VECTORS),
    "wider numbers": History(
        "k bigint, i smallint, f float, d decimal(5,2)",
        ("insert into {t} select id, id, id / 3, id / 7 from range(40)", "alter table {t} alter column i type int",
         "alter table {t} alter column f type double", "alter table {t} alter column d type decimal(12,2)",
         "insert into {t} select id, id * 100000, id / 3, id * 100 from range(40, 60)"),
        properties=_WIDENING,
    ),
    "whole numbers made floats": History(
        "k bigint, i int",
        ("insert into {t} select id, id from range(40)", "alter table {t} alter column i type double"),
        properties=_WIDENING, why="column 'i' is int ",
    ),
    "another scale": History(
        "k bigint, i decimal(5,2)",
        ("insert into {t} select id, id / 7 from range(40)", "alter table {t} alter column i type decimal(12,4)"),
        properties=_WIDENING, why="column 'i' is decimal(5,2) ",
    ),
    "days made timestamps": History(
        "k bigint, i date",
        ("insert into {t} select id, date_add(date'2020-01-01', cast(id as int)) from range(40)",
         "alter table {t} alter column i type timestamp_ntz"),
        properties=_WIDENING | {"delta.feature.timestampNtz": "supported"}, why="column 'i' is date ",
    ),
    "a variant": History(
        "k bigint, v variant",
        ("insert into {t} select id, parse_json('{\"a\":1}') from range(40)",),
        why="column 'v' is not laid out",
    ),
}  # fmt: skip
_RENAMES: dict[str, History] = {
    "columns renamed, added and dropped": History(
        BASE,
        (INSERT, "alter table {t} rename column s to r", "alter table {t} add column s string",
         "insert into {t} select id, 7, 'r', 'new' from range(100, 110)", "alter table {t} drop column g",
         "alter table {t} add column g bigint", "insert into {t} values (200, 'r', 's', 5)",
         SEVENTHS),
    ),
    "names exchanged": History(
        "k bigint, a int, b int",
        ("insert into {t} select id, id % 5, -id from range(50)", "alter table {t} rename column a to x",
         "alter table {t} rename column b to a", "alter table {t} rename column x to b",
         "insert into {t} select id, 1, 2 from range(50, 60)", "delete from {t} where a % 5 = 0"),
    ),
    "nested fields renamed, added and dropped": History(
        "k bigint, p struct<a:int,b:string,c:struct<d:int,e:int>>, l array<struct<a:int,b:int>>",
        ("insert into {t} select id, struct(id, 'b', struct(id, 2)), array(struct(id, 1), null) from range(30)",
         "alter table {t} rename column p.a to z", "alter table {t} rename column p.b to a",
         "alter table {t} rename column p.c.d to dd", "alter table {t} drop column p.c.e",
         "alter table {t} add column p.c.e int", "alter table {t} add column l.element.n string",
         "alter table {t} rename column l.element.a to first",
         "insert into {t} select id, struct(id, 'new', struct(id, 3)), array(struct(id, 1, 'n')) from range(30, 50)",
         "delete from {t} where k % 9 = 0"),
    ),
    "a partition column renamed": History(
        BASE,
        (INSERT, "alter table {t} rename column g to gg", "insert into {t} values (99, 7, 'z')", SEVENTHS),
        by="g",
    ),
    "odd names": History(
        "k bigint, `a.b c` int, `ü,;{}()=` string",
        ("insert into {t} select id, id % 4, 'v' from range(40)", SEVENTHS),
    ),
}  # fmt: skip
for _how, _properties in (("by name", BY_NAME), ("by id", BY_ID)):
    HISTORIES |= {
        f"{name}, {_how}": History(each.columns, each.statements, each.by, properties=_properties | VECTORS)
        for name, each in _RENAMES.items()
    }
HISTORIES["mapped later"] = History(
    BASE,
    (INSERT, "alter table {t} set tblproperties ('delta.columnMapping.mode'='name')",
     "alter table {t} rename column s to r", "alter table {t} add column s int",
     "insert into {t} values (99, 1, 'r', 5)"),
)  # fmt: skip


@pytest.mark.parametrize("name", HISTORIES)
def test_histories(spark: SparkSession, name: str) -> None:
    history = HISTORIES[name]
    table = new_table(spark, history.columns, by=history.by, cluster=history.cluster, properties=history.properties)
    run(spark, table, *history.statements)
    frames = queries_of(spark, table)
    if history.why:
        check_left(frames["all columns"], history.why)
    else:
        check_read(frames.items(), allow_empty=not history.statements)


DELETES = {
    "by DELETE": ("delete from {t} where k % 5 = 0 and g < 2",),
    "by UPDATE": ("update {t} set s = 'new' where k % 7 = 2",),
    "by MERGE": (MERGE,),
    "one row": ("delete from {t} where k = 17",),
    "several times": (
        FIFTHS, SEVENTHS, "update {t} set g = 9 where k % 3 = 1",
    ),
    "a whole file": ("delete from {t} where k >= 60", "delete from {t} where k = 2"),
    "of a whole partition": ("delete from {t} where g = 1", "delete from {t} where k = 2"),
    "of all rows": ("update {t} set s = 'y' where k < 70", "delete from {t} where k >= 0 and s = 'y'"),
    "a row inserted again": (
        "delete from {t} where k = 17", "insert into {t} values (17, 2, 'again')", "delete from {t} where k = 18",
    ),
    "and optimized": (FIFTHS, "optimize {t}", "delete from {t} where k = 1"),
}  # fmt: skip


@pytest.mark.parametrize("by", ["", "g"])
@pytest.mark.parametrize("name", DELETES)
def test_deleted_rows(spark: SparkSession, name: str, by: str) -> None:
    table = new_table(spark, BASE, by=by, properties=VECTORS)
    run(spark, table, INSERT, MORE, *DELETES[name])
    frames = queries_of(spark, table)
    frames["a file is left out"] = spark.sql(f"select a.k, b.s from {table} a join {table} b on a.k = b.k and a.k > 61")
    check_read(frames.items(), allow_empty=name in ("of all rows", "a whole file"))


def test_vectors_of_many_rows(spark: SparkSession) -> None:
    """Of arrays, bits and runs, beyond 65536, in files of several row groups."""
    table = new_table(spark, "k bigint, v bigint", properties=VECTORS)
    spark.conf.set("parquet.block.size", str(256 << 10))
    run(
        spark, table, "insert into {t} select /*+ coalesce(1) */ id, id * 3 from range(300000)",
        "delete from {t} where k in (0, 65535, 65536, 131071, 131072, 299999)",
    )  # fmt: skip
    query = f"select count(*) n, sum(a.v) s, min(a.k) l, max(b.v) h from {table} a join {table} b on a.k = b.k"
    check_read([("few", spark.sql(query))])
    run(spark, table, "delete from {t} where k between 100000 and 250000 or k % 7 = 0")
    check_read([("many", spark.sql(query))])
    [vector] = vectors_of(spark, table)
    assert vector["cardinality"] > 150_000


def test_inline_vectors(spark: SparkSession) -> None:
    table = new_table(spark, BASE, properties=VECTORS)
    run(spark, table, INSERT.replace("select", "select /*+ coalesce(1) */"), "delete from {t} where k = 3")
    change_files(spark, table, lambda file: file.update(deletionVector=as_inline(inline([0, 5, 6, 59]))))
    assert spark.table(table).count() == 56
    check_read(queries_of(spark, table).items())


def test_explain_tells_the_table_its_version_and_its_deleted_rows(spark: SparkSession) -> None:
    table = new_table(spark, BASE, properties=VECTORS)
    run(spark, table, INSERT, FIFTHS)
    told = str(rewrite(spark.sql(f"select g, count(*) n from {table} group by g")).explanation)
    assert f"scan spark_catalog.{table} (Delta, version 2, " in told
    assert ", 12 rows deleted)" in told
    old = spark.sql(f"select g, count(*) n from delta.`{folder_of(spark, table)}` version as of 1 group by g")
    told = str(rewrite(old).explanation)
    assert f"scan {folder_of(spark, table)} (Delta, version 1, " in told
    assert "deleted" not in told


def test_shallow_clones(spark: SparkSession) -> None:
    table = new_table(spark, BASE, properties=VECTORS, by="g")
    run(spark, table, INSERT, FIFTHS)
    spark.sql(f"create table {table}_clone shallow clone {table}")
    check_read(queries_of(spark, f"{table}_clone").items())
    run(spark, f"{table}_clone", MORE, SEVENTHS)
    check_read(queries_of(spark, f"{table}_clone").items())
    assert {vector["storageType"] for vector in vectors_of(spark, f"{table}_clone")} <= {"p", "u"}


def test_vectors_that_are_damaged_or_missing_are_an_error(spark: SparkSession) -> None:
    table = new_table(spark, BASE, properties=VECTORS)
    run(spark, table, INSERT, FIFTHS)
    planned = rewrite(spark.sql(f"select a.k, b.s from {table} a join {table} b on a.k = b.k"))
    assert planned.changed
    vectors = list(folder_of(spark, table).glob("deletion_vector_*.bin"))
    assert vectors
    for vector in vectors:
        data = bytearray(vector.read_bytes())
        data[-7] ^= 1
        vector.write_bytes(data)
    with pytest.raises(Exception, match=r"ScanError: .*deletion_vector_.*its checksum is that of other bytes"):
        planned.frame.toArrow()
    for vector in vectors:
        vector.unlink()
    with pytest.raises(Exception, match=r"ScanError: .*deletion_vector_.*No such file"):
        planned.frame.toArrow()


def test_time_travel_and_two_snapshots_in_a_query(spark: SparkSession) -> None:
    table = new_table(spark, BASE, properties=VECTORS)
    run(spark, table, INSERT, FIFTHS, MORE, "update {t} set s = 'u' where k % 3 = 0")
    for version in range(1, 5):
        check_read([(str(version), spark.sql(f"select s, count(*) n from {table} version as of {version} group by s"))])
    text = f"select a.k, b.k k2 from {table} version as of 1 a left join {table} version as of 2 b on a.k = b.k"
    check_read([("two snapshots", spark.sql(text))])
    frame = spark.read.format("delta").option("versionAsOf", 2).table(table)
    check_read([("an option", frame.groupBy("s").count())])


def test_paths(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("a b", "%20", "é=1", "x,y", "+&'", "#"):
        path = tmp_path / name / "t"
        spark.sql("select id as k, id % 3 as g, 's' as s from range(40)").write.format("delta").partitionBy("g").option(
            "delta.enableDeletionVectors", "true"
        ).save(str(path))
        spark.sql(f"delete from delta.`{path}` where k % 5 = 0")
        check_read([(name, spark.read.format("delta").load(str(path)).groupBy("g").count())])


def test_times_in_the_log_need_not_be_those_of_files(spark: SparkSession) -> None:
    table = new_table(spark, BASE)
    run(spark, table, INSERT)
    change_files(spark, table, lambda file: file.update(modificationTime=1))
    check_read(queries_of(spark, table).items())


def test_scalar_subqueries_with_other_conditions_read_the_files_of_all(spark: SparkSession) -> None:
    """Spark makes one scan of them, whose list of files may be that of one."""
    table = new_table(spark, BASE)
    for first in range(0, 60, 20):
        run(spark, table, f"insert into {{t}} select id, id % 3, 'x' from range({first}, {first + 20})")
    text = ", ".join(f"(select sum(k) from {table} where k >= {n} and k < {n + 20}) s{n}" for n in range(0, 60, 20))
    check_read([("subqueries", spark.sql(f"select g, count(*) n, {text} from {table} group by g"))])


def test_limits(spark: SparkSession) -> None:
    table = new_table(spark, BASE, by="g")
    run(spark, table, INSERT, MORE)
    few = f"(select * from {table} where g = 1 limit 5)"
    frame = spark.sql(f"select count(*) n, count(b.k) m from {few} a left join {table} b on a.k = b.k")
    check_read([("limit", frame)])


LEFT = {
    "the change feed": (
        "select _change_type, count(*) from table_changes('{t}', 1) group by _change_type",
        "only Parquet",
    ),
    "numbers of rows": ("select _metadata.row_index % 3 m, count(*) from {t} group by 1", "_metadata"),
    "ids of rows": ("select _metadata.row_id % 3 m, count(*) from {t} group by 1", "_metadata"),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_to_spark(spark: SparkSession, name: str) -> None:
    tracked = {"delta.enableRowTracking": "true", "delta.enableChangeDataFeed": "true"}
    table = new_table(spark, BASE, properties=VECTORS | tracked)
    run(spark, table, INSERT, FIFTHS, "update {t} set s = 'u' where k % 7 = 0")
    text, why = LEFT[name]
    frame = spark.sql(text.replace("{t}", table))
    spark.conf.set("spark.gpujoin.fallback", "silent")
    check_left(frame, why)


def test_tables_of_parquet_beside_tables_of_delta(spark: SparkSession, tmp_path: Path) -> None:
    table = new_table(spark, BASE, properties=BY_ID)
    run(spark, table, INSERT)
    spark.table(table).write.parquet(str(tmp_path / "p"))
    plain: Any = spark.read.parquet(str(tmp_path / "p"))
    check_read([("both", plain.join(spark.table(table), "k").groupBy(plain.g).count())])
    assert spark.conf.get("spark.sql.parquet.fieldId.read.enabled") == "true"
