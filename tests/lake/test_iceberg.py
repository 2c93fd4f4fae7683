"""Tables of Iceberg, read by workers or left to Spark: every feature of a table, with Spark's rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from pyspark.sql import SparkSession

from gpujoin.spark.query.accelerate import rewrite
from tests.lake.icebergs import delete_equal, handle_of, new_table
from tests.lake.queries import ALL, TYPES, check_left, check_read, queries_of, rows, run
from tests.spark.query.queries import EXCHANGED, FORCED

pytestmark = [
    pytest.mark.lake("iceberg"),
    pytest.mark.spark,
    pytest.mark.parametrize("spark", [FORCED, EXCHANGED], indirect=True, ids=["one task", "exchanged"]),
]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_all_types(spark: SparkSession, version: int) -> None:
    table = new_table(spark, TYPES, version=version)
    check_read(queries_of(spark, table).items(), allow_empty=True)
    run(spark, table, f"insert into {{t}} {rows(0, 60)}", f"insert into {{t}} {rows(40, 90)}")
    check_read(queries_of(spark, table, names=[name for name in ALL if name != "rows"]).items())


PARTITIONS = {
    "texts": "s",
    "a number": "i",
    "a date": "a",
    "a timestamp": "t",
    "a timestamp without a zone": "n",
    "a decimal": "e",
    "a boolean": "b",
    "bytes": "y",
    "days": "days(t)",
    "hours": "hours(n)",
    "years": "years(a)",
    "buckets": "bucket(4, k)",
    "buckets of texts": "bucket(3, s)",
    "beginnings": "truncate(2, s)",
    "tens": "truncate(10, k)",
    "several": "b, bucket(2, k), truncate(1, s)",
}


@pytest.mark.parametrize("by", PARTITIONS)
def test_partitions(spark: SparkSession, by: str) -> None:
    table = new_table(spark, TYPES, by=PARTITIONS[by])
    run(spark, table, f"insert into {{t}} {rows(0, 40)}", f"insert into {{t}} {rows(30, 50)}")
    run(spark, table, "delete from {t} where k % 11 = 4")
    frames = queries_of(spark, table)
    frames["of partitions alone"] = spark.sql(f"select s, i, b, count(*) n from {table} group by s, i, b")
    frames["some partitions"] = spark.sql(
        f"select a.*, b.k k2 from {table} a join {table} b on a.k = b.k where a.s <=> 'ü=/%' or a.i = 3 and b.b"
    )
    frames["no partition"] = spark.sql(f"select i, s, y from {table} where s is null group by i, s, y")
    check_read(frames.items())


def test_a_partition_of_floats_is_left_to_spark(spark: SparkSession) -> None:
    table = new_table(spark, TYPES, by="d")
    run(spark, table, f"insert into {{t}} {rows(0, 20)}")
    check_left(spark.sql(f"select d, count(*) from {table} group by d"), "it is partitioned by double")
    check_read([("other columns", spark.sql(f"select k, count(*) from {table} group by k"))])


@dataclass(frozen=True)
class History:
    """A table, and what was done with it."""

    columns: str
    statements: tuple[str, ...]
    by: str = ""
    properties: dict[str, str] = field(default_factory=dict)
    why: str = ""
    """Why it is left to Spark; nothing: it is read."""


BASE = "k bigint, g int, s string"
INSERT = "insert into {t} select id, id % 3, concat('x', id % 10) from range(60)"
NESTED = """
insert into {t} select id, if(id % 5 = 0, null, struct(cast(id as int), struct(concat('c', id)))),
  if(id % 4 = 0, null, array('x', null, string(id))), if(id % 3 = 0, map(), map('a', id, 'b', null)) from range(40)
"""
HISTORIES = {
    "columns added": History(
        BASE,
        (
            INSERT,
            "alter table {t} add columns (z double, s2 string after k)",
            "insert into {t} select id, 'new', id % 3, 'n', id from range(50, 80)",
        ),
    ),
    "a column renamed": History(
        BASE,
        (
            INSERT,
            "alter table {t} rename column s to r",
            "insert into {t} select id, 1, 'r' from range(50, 70)",
        ),
    ),
    "a column dropped": History(BASE, (INSERT, "alter table {t} drop column s", "insert into {t} values (99, 1)")),
    "a name used again": History(
        BASE,
        (
            INSERT,
            "alter table {t} drop column s",
            "alter table {t} add column s string",
            "insert into {t} values (99, 1, 'again')",
        ),
    ),
    "a name used again for another type": History(
        BASE,
        (
            INSERT,
            "alter table {t} drop column s",
            "alter table {t} add column s bigint",
            "insert into {t} values (99, 1, 7)",
        ),
    ),
    "names swapped": History(
        BASE + ", r string",
        (
            "insert into {t} select id, 1, 's', 'r' from range(30)",
            "alter table {t} rename column s to q",
            "alter table {t} rename column r to s",
            "alter table {t} rename column q to r",
            "insert into {t} values (99, 1, 'R', 'S')",
        ),
    ),
    "columns in another order": History(
        BASE, (INSERT, "alter table {t} alter column s first", "insert into {t} values ('y', 99, 2)")
    ),
    "types promoted": History(
        BASE + ", f float, e decimal(9,2)",
        (
            "insert into {t} select id, id % 4, 's', id / 7, id / 8 from range(40)",
            "alter table {t} alter column g type bigint",
            "alter table {t} alter column f type double",
            "alter table {t} alter column e type decimal(20,2)",
            "insert into {t} values (99, 3000000000, 's', 1e300D, 123456789012345.25BD)",
            "insert into {t} values (100, null, null, double('NaN'), null)",
        ),
    ),
    "a partition column promoted": History(
        BASE,
        (
            INSERT,
            "alter table {t} alter column g type bigint",
            "insert into {t} values (99, 3000000000, 's')",
        ),
        by="g",
    ),
    "a partition column renamed": History(
        BASE, (INSERT, "alter table {t} rename column g to h", "insert into {t} values (99, 3, 's')"), by="g"
    ),
    "partitions changed": History(
        BASE,
        (
            INSERT,
            "alter table {t} replace partition field g with bucket(2, k)",
            "insert into {t} select id, 7, 'b' from range(50, 70)",
            "alter table {t} add partition field s",
            "insert into {t} values (99, null, null), (100, 1, '')",
            "alter table {t} drop partition field s",
            "insert into {t} values (101, 2, 'z')",
        ),
        by="g",
    ),
    "partitions dropped": History(
        BASE,
        (
            INSERT,
            "alter table {t} drop partition field g",
            "insert into {t} values (99, null, null)",
            "delete from {t} where k % 6 = 1",
        ),
        by="g",
    ),
    "partitioned by a column added later": History(
        BASE,
        (
            INSERT,
            "alter table {t} add column h int",
            "alter table {t} add partition field h",
            "insert into {t} values (99, 1, 's', 4)",
        ),
        why="lacks column 'h'",
    ),
    "nested": History(
        "k bigint, p struct<a:int,b:struct<c:string>>, l array<string>, m map<string,bigint>",
        (NESTED,),
    ),
    "a nested field added": History(
        "k bigint, p struct<a:int>",
        (
            "insert into {t} select id, struct(cast(id as int)) from range(30)",
            "alter table {t} add column p.b string",
            "insert into {t} select id, struct(cast(id as int), 'new') from range(30, 50)",
        ),
    ),
    "a nested field renamed": History(
        "k bigint, p struct<a:int,b:string>",
        (
            "insert into {t} select id, struct(cast(id as int), 'b') from range(30)",
            "alter table {t} rename column p.b to c",
            "insert into {t} select id, struct(cast(id as int), 'new') from range(30, 50)",
        ),
    ),
    "a nested name used again": History(
        "k bigint, p struct<a:int,b:string>",
        (
            "insert into {t} select id, struct(cast(id as int), 'b') from range(30)",
            "alter table {t} drop column p.b",
            "alter table {t} add column p.b string",
            "insert into {t} select id, struct(cast(id as int), 'new') from range(30, 50)",
        ),
    ),
    "files of ORC": History(BASE, (INSERT,), properties={"write.format.default": "orc"}, why="it has files of Orc"),
    "files of Avro": History(BASE, (INSERT,), properties={"write.format.default": "avro"}, why="it has files of Avro"),
    "files of two formats": History(
        BASE,
        (
            INSERT,
            "alter table {t} set tblproperties ('write.format.default'='orc')",
            "insert into {t} values (99, 1, 's')",
        ),
        why="it has files of Orc",
    ),
    "deletes of Avro": History(
        BASE,
        (INSERT, "delete from {t} where k % 7 = 1"),
        properties={"write.delete.format.default": "avro"},
        why="it has files of Avro",
    ),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_histories(spark: SparkSession, name: str) -> None:
    history = HISTORIES[name]
    table = new_table(spark, history.columns, by=history.by, properties=history.properties)
    run(spark, table, *history.statements)
    frames = queries_of(spark, table)
    if history.why:
        check_left(frames["all columns"], history.why)
    else:
        del frames["rows"]  # Iceberg answers it where no row is deleted
        check_read(frames.items())


MERGE = """
merge into {t} a using (select id as k, id % 4 as w from range(20, 90)) b on a.k = b.k
when matched and b.w = 0 then delete when matched and b.w = 1 then update set s = 'merged'
when not matched then insert (k, g, s) values (b.k, b.w, 'inserted')
"""
DELETES = {
    "by DELETE": ("delete from {t} where k % 5 = 0 and g < 2",),
    "by UPDATE": ("update {t} set s = 'new' where k % 7 = 2",),
    "by MERGE": (MERGE,),
    "several times": (
        "delete from {t} where k % 5 = 0",
        "delete from {t} where k % 7 = 0",
        "update {t} set g = 9 where k % 3 = 1",
    ),
    "of a whole partition": ("delete from {t} where g = 1", "delete from {t} where k = 2"),
    "of all rows": ("update {t} set s = 'y'", "delete from {t} where k >= 0 and s = 'y'"),
    "a row inserted again": (
        "delete from {t} where k = 17",
        "insert into {t} values (17, 2, 'again')",
        "delete from {t} where k = 18",
    ),
    "and compacted": (
        "delete from {t} where k % 5 = 0",
        "delete from {t} where k % 7 = 0",
        "call ice.system.rewrite_position_delete_files(table => '{t}', options => map('rewrite-all', 'true'))",
        "delete from {t} where k = 1",
    ),
    "and rewritten": (
        "delete from {t} where k % 5 = 0",
        "call ice.system.rewrite_data_files(table => '{t}', options => map('rewrite-all', 'true'))",
        "delete from {t} where k = 1",
    ),
}


@pytest.mark.parametrize("granularity", ["file", "partition"])
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("by", ["", "g"])
@pytest.mark.parametrize("name", DELETES)
def test_deleted_rows(spark: SparkSession, name: str, version: int, by: str, granularity: str) -> None:
    if version == 3 and granularity == "partition":
        pytest.skip("deletion vectors are of one file")
    table = new_table(spark, BASE, version=version, by=by, properties={"write.delete.granularity": granularity})
    spark.conf.set("spark.sql.iceberg.advisory-partition-size", "1")
    run(spark, table, INSERT, "insert into {t} select id, id % 3, 'y' from range(60, 75)", *DELETES[name])
    check_read(queries_of(spark, table).items(), allow_empty=name == "of all rows")


@pytest.mark.parametrize(
    ("version", "deleted"), [(2, ", without the rows that 1 file of deletes names)"), (3, ", 12 rows deleted)")]
)
def test_explain_tells_the_table_its_snapshot_and_its_deleted_rows(
    spark: SparkSession, version: int, deleted: str
) -> None:
    table = new_table(spark, BASE, version=version, properties={"write.delete.granularity": "partition"})
    run(spark, table, INSERT, "delete from {t} where k % 5 = 0")
    told = str(rewrite(spark.sql(f"select g, count(*) n from {table} group by g")).explanation)
    snapshot = spark.sql(f"select snapshot_id from {table}.refs").collect()[0][0]
    assert f"scan {table} (Iceberg, snapshot {snapshot}, " in told
    assert deleted in told


def test_deletes_of_version_2_in_a_table_of_version_3(spark: SparkSession) -> None:
    table = new_table(spark, BASE, version=2)
    run(
        spark,
        table,
        INSERT,
        "delete from {t} where k % 5 = 0",
        "alter table {t} set tblproperties ('format-version'='3')",
    )
    check_read(queries_of(spark, table).items())
    run(spark, table, "delete from {t} where k % 7 = 0", "update {t} set s = 'n' where k % 3 = 0")
    check_read(queries_of(spark, table).items())


def test_deletes_of_version_1_rewrite_files(spark: SparkSession) -> None:
    table = new_table(spark, BASE, version=1)
    run(spark, table, INSERT, "delete from {t} where k % 5 = 0", "update {t} set s = 'n' where k % 7 = 0")
    frames = queries_of(spark, table)
    del frames["rows"]
    check_read(frames.items())


@pytest.mark.parametrize("by", ["", "g"])
def test_deleted_keys(spark: SparkSession, by: str) -> None:
    table = new_table(spark, "k bigint, g int, s string, e decimal(10,2)", by=by)
    partition = (lambda g: f"g={g}") if by else (lambda _: None)
    run(
        spark, table, "insert into {t} select id, id % 3, if(id % 9 = 0, null, concat('x', id % 10)), id from range(60)"
    )
    delete_equal(spark, table, {"k": [3, 4, 5, 6, 1000, None]}, partition=partition(0))
    check_read(queries_of(spark, table).items())
    run(spark, table, "insert into {t} values (3, 0, 'again', 1), (6, 0, 'again', 2), (null, 0, null, 3)")
    check_read(queries_of(spark, table).items())
    delete_equal(spark, table, {"k": [9, 12, 10], "s": [None, "x2", "x0"]}, partition=partition(0))
    delete_equal(spark, table, {"s": ["x1", None]}, partition=partition(1))
    run(
        spark,
        table,
        "insert into {t} values (13, 1, 'x1', 4), (null, null, null, null)",
        "delete from {t} where k % 8 = 7",
    )
    check_read(queries_of(spark, table).items())
    check_read([("without the key", spark.sql(f"select g, count(*) n, sum(e) e from {table} group by g"))])
    delete_equal(spark, table, {"s": ["again"]}, partition=partition(0))
    run(
        spark,
        table,
        "alter table {t} rename column s to r",
        "alter table {t} add column s string",
        "insert into {t} values (6, 0, 'x', 9, 'y')",
    )
    check_read(queries_of(spark, table).items())
    run(spark, table, "call ice.system.rewrite_data_files(table => '{t}', options => map('rewrite-all', 'true'))")
    frames = queries_of(spark, table)
    del frames["rows"]
    check_read(frames.items())


def test_conditions_do_not_see_rows_deleted_by_key(spark: SparkSession) -> None:
    table = new_table(spark, "k bigint, g int, s string")
    run(spark, table, "insert into {t} select id, id % 3, if(id = 7, 'seven', string(id)) from range(60)")
    delete_equal(spark, table, {"k": [7]})
    frame = spark.sql(f"select g, count(*) n from {table} where cast(s as int) > 3 and k < 50 group by g")
    check_read([("a cast that fails for a deleted row", frame)])


def test_keys_deleted_by_a_column_that_is_dropped_are_left_to_spark(spark: SparkSession) -> None:
    table = new_table(spark, BASE)
    run(spark, table, INSERT)
    delete_equal(spark, table, {"s": ["x1", "x4"]})
    run(spark, table, "alter table {t} drop column s")
    check_left(
        spark.sql(f"select k, count(*) from {table} group by k"), "rows are deleted by values of a column with number 3"
    )


def test_keys_of_floats_are_left_to_spark(spark: SparkSession) -> None:
    table = new_table(spark, "k bigint, d double")
    run(spark, table, "insert into {t} values (1, 0.0), (2, -0.0), (3, double('NaN')), (4, null)")
    delete_equal(spark, table, {"d": [0.0, float("nan")]})
    check_left(spark.sql(f"select k, count(*) from {table} group by k"), "rows are deleted by values of column d")


def test_snapshots_branches_and_tags(spark: SparkSession) -> None:
    table = new_table(spark, BASE, by="g")
    run(
        spark,
        table,
        INSERT,
        "alter table {t} create tag first",
        "alter table {t} create branch side",
        "delete from {t} where k % 5 = 0",
    )
    first = spark.sql(f"select snapshot_id from {table}.snapshots order by committed_at limit 1").collect()[0][0]
    run(spark, table, "alter table {t} rename column s to r", "insert into {t} select id, 5, 'late' from range(80, 90)")
    run(spark, table + ".branch_side", "delete from {t} where k % 4 = 1", "insert into {t} values (500, 1, 'side')")
    places = {
        "a snapshot": f"{table} version as of {first}",
        "a tag": f"{table} version as of 'first'",
        "a branch": f"{table} version as of 'side'",
        "a branch by its name": f"{table}.branch_side",
    }
    frames = {}
    for name, place in places.items():
        frames[name] = spark.sql(f"select a.*, b.* from (select * from {place}) a join {table} b on a.k = b.k")
        frames[f"{name}, counted"] = spark.sql(f"select g, count(*) n, max(k) k from {place} group by g")
    check_read(frames.items())


def test_filters_that_iceberg_applies_to_partitions(spark: SparkSession) -> None:
    table = new_table(spark, TYPES, by="i, days(n), truncate(2, s)")
    run(spark, table, f"insert into {{t}} {rows(0, 80)}", "delete from {t} where k % 13 = 5")
    conditions = [
        "i = 3",
        "i is null",
        "i in (1, 2) and k > 10",
        "i = 1 or k = 7",
        "n >= timestamp_ntz'1970-01-20 00:00:00'",
        "n > timestamp_ntz'1970-01-20 10:00:00'",
        "s like 'x1%'",
        "s like 'x%'",
        "s = ''",
        "s > 'x2' and i <=> null",
        "not (i = 2)",
        "i + 1 = 3",
        "isnan(d)",
        "d > 5",
        "e = 2.50",
        "b and t is not null",
        "y = X'6231'",
        "a < date'1501-01-01'",
    ]
    frames = [
        (
            condition,
            spark.sql(
                f"select a.*, b.k k2 from (select * from {table} where {condition}) a join {table} b on a.k = b.k"
            ),
        )
        for condition in conditions
    ]
    check_read(frames, allow_empty=True)


@pytest.mark.parametrize(
    "condition", ["d = 0.0", "d >= 0", "f in (1, 0)", "d in (-0.0D, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)"]
)
def test_a_zero_that_iceberg_tells_apart_is_left_to_spark(spark: SparkSession, condition: str) -> None:
    table = new_table(spark, "k bigint, d double, f float")
    run(spark, table, "insert into {t} values (1, -0.0D, -0.0D), (2, -0.0D, -0.0D), (3, 5, 5)")
    check_left(
        spark.sql(f"select k, count(*) n from {table} where {condition} group by k"),
        "compares with zero",
        allow_empty=True,
    )


UNREAD = {
    "metadata columns": (
        "select _file, _pos, k, count(*) n from {t} group by all",
        "column _file is in no file of the table",
    ),
    "deleted marks": (
        "select _deleted, count(*) n from {t} group by all",
        "column _deleted is in no file of the table",
    ),
    "specs": ("select _spec_id, _partition, count(*) n from {t} group by all", "is in no file of the table"),
    "files": ("select file_path, count(*) n from {t}.files group by all", "its rows are not those of data files"),
    "snapshots": (
        "select operation, count(*) n from {t}.snapshots group by all",
        "its rows are not those of data files",
    ),
    "positions": (
        "select file_path, pos, count(*) n from {t}.position_deletes group by all",
        "its rows are not those of data files",
    ),
}


@pytest.mark.parametrize("name", UNREAD)
def test_what_is_in_no_data_file_is_left_to_spark(spark: SparkSession, name: str) -> None:
    table = new_table(spark, BASE, by="g")
    run(spark, table, INSERT, "delete from {t} where k % 5 = 0")
    text, why = UNREAD[name]
    check_left(spark.sql(text.replace("{t}", table)), why)


def test_metadata_columns_that_nobody_asks_for(spark: SparkSession) -> None:
    table = new_table(spark, BASE, by="g")
    run(spark, table, INSERT, "delete from {t} where k % 5 = 0")
    text = f"select a.k, b.s from (select *, _pos, _file from {table}) a join {table} b on a.k = b.k"
    check_read([("pruned", spark.sql(text))])


def test_an_incremental_read_is_left_to_spark(spark: SparkSession) -> None:
    table = new_table(spark, BASE)
    run(spark, table, INSERT, "insert into {t} select id, 1, 'late' from range(60, 70)")
    first = spark.sql(f"select snapshot_id from {table}.snapshots order by committed_at limit 1").collect()[0][0]
    frame = spark.read.option("start-snapshot-id", first).format("iceberg").load(table).groupBy("g").count()
    check_left(frame, "it is an incremental read")


def test_a_column_with_a_default_is_left_to_spark(spark: SparkSession) -> None:
    table = new_table(spark, BASE, version=3)
    run(spark, table, INSERT)
    jvm: Any = spark._jvm
    integer = jvm.org.apache.iceberg.types.Types.IntegerType.get()
    default = jvm.org.apache.iceberg.expressions.Expressions.lit(42)
    handle_of(spark, table).updateSchema().addColumn("z", integer, default).commit()
    spark.sql(f"refresh table {table}")
    check_left(
        spark.sql(f"select z, count(*) n from {table} group by z"), "column z has a default in files that lack it"
    )
    check_read([("others", spark.sql(f"select g, count(*) n from {table} group by g"))])


@pytest.mark.parametrize("kind", ["UUIDType.get()", "FixedType.ofLength(4)", "TimeType.get()"])
def test_types_of_icebergs_own_are_left_to_spark(spark: SparkSession, kind: str) -> None:
    if kind.startswith("Time"):
        pytest.skip("Spark does not read such a table")
    table = new_table(spark, BASE)
    run(spark, table, INSERT)
    types: Any = spark._jvm.org.apache.iceberg.types.Types  # type: ignore[union-attr]
    own = types.UUIDType.get() if kind.startswith("UUID") else types.FixedType.ofLength(4)
    handle_of(spark, table).updateSchema().addColumn("u", own).commit()
    spark.sql(f"refresh table {table}")
    check_left(spark.sql(f"select u, count(*) n from {table} group by u"), "column u is of Iceberg's type")
    check_read([("others", spark.sql(f"select g, count(*) n from {table} group by g"))])


def test_files_without_numbers_of_columns_are_left_to_spark(spark: SparkSession, tmp_path: Any) -> None:
    table = new_table(spark, BASE, by="g")
    spark.sql("select id as k, 'x' as s, cast(id % 2 as int) as g from range(20)").write.partitionBy("g").parquet(
        str(tmp_path / "old")
    )
    run(
        spark,
        table,
        f"call ice.system.add_files(table => '{{t}}', source_table => '`parquet`.`{tmp_path}/old`')",
        INSERT,
    )
    frame = spark.sql(f"select a.*, b.s s2 from {table} a join {table} b on a.k = b.k")
    check_left(frame, "is found by its id, and the file has none")
