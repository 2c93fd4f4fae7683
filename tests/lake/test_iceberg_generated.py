"""Generated histories of tables of Iceberg: after each step queries have Spark's rows, and workers read the files."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

from tests.lake.icebergs import delete_equal, new_table
from tests.lake.queries import ALL, check_of_rows, run
from tests.spark.query.queries import EXCHANGED, FORCED, PLAIN

pytestmark = [pytest.mark.lake("iceberg"), pytest.mark.spark]
_STEPS = 7


class History:
    """A table and random changes of it."""

    def __init__(self, spark: SparkSession, seed: int) -> None:
        self.spark = spark
        self.random = random.Random(seed)
        self.version = self.random.choice([2, 2, 3])
        by = self.random.choice(["", "", "g", "bucket(3, k)", "g, truncate(1, s)"])
        granularity = self.random.choice(["file", "partition"])
        self.table = new_table(
            spark,
            "k bigint, g int, s string, v int",
            version=self.version,
            by=by,
            properties={"write.delete.granularity": granularity},
        )
        self.added = 0
        self.partitioned = bool(by)
        self.log = [f"version {self.version} by {by or 'nothing'}, deletes by {granularity}"]

    def sql(self, text: str) -> None:
        self.log.append(text)
        run(self.spark, self.table, text)

    def step(self) -> None:
        changes: list[Callable[[], None]] = [
            self.insert,
            self.insert,
            self.delete,
            self.delete,
            self.update,
            self.merge,
            self.evolve,
            self.compact,
            self.delete_keys,
            self.repartition,
        ]
        self.random.choice(changes)()

    def insert(self) -> None:
        first = self.random.randrange(100)
        more = ", ".join(f"cast(id % 7 as {kind})" for _, kind in self._others())
        self.sql(
            f"insert into {{t}} select id, if(id % 11 = 0, null, id % 3), if(id % 6 = 0, null, concat('x', id % 8))"
            f"{', ' if more else ''}{more} from range({first}, {first + self.random.randrange(1, 60)})"
        )

    def _others(self) -> list[tuple[str, str]]:
        fields = self.spark.table(self.table).schema.fields
        return [(field.name, field.dataType.simpleString()) for field in fields if field.name not in {"k", "g", "s"}]

    def _condition(self) -> str:
        number = self.random.randrange(2, 9)
        return self.random.choice(
            [
                f"k % {number} = 1",
                f"g = {number % 3}",
                f"g is null and k > {number}",
                f"s = 'x{number % 8}'",
                f"k between {number * 9} and {number * 9 + 12}",
                f"k % {number} = 0 and g < 2",
            ]
        )

    def delete(self) -> None:
        self.sql(f"delete from {{t}} where {self._condition()}")

    def update(self) -> None:
        self.sql(f"update {{t}} set s = 'u{self.random.randrange(9)}', g = 1 where {self._condition()}")

    def merge(self) -> None:
        first = self.random.randrange(90)
        self.sql(
            f"merge into {{t}} a using (select id as k from range({first}, {first + 25})) b "
            "on a.k = b.k and a.k % 2 = 0 when matched and a.k % 3 = 0 then delete "
            "when matched then update set s = 'm' "
            "when not matched and b.k % 4 = 1 then insert (k, g, s) values (b.k, 2, 'i')"
        )

    def evolve(self) -> None:
        others = [name for name, _ in self._others()]
        self.added += 1
        texts = [f"alter table {{t}} add column c{self.added % 3 + 1}_{self.added} bigint"]
        if others:
            name = self.random.choice(others)
            texts += [
                f"alter table {{t}} drop column {name}",
                f"alter table {{t}} rename column {name} to n{self.added}",
                f"alter table {{t}} alter column {name} type bigint",
                f"alter table {{t}} alter column {name} first",
            ]
        self.sql(self.random.choice(texts))

    def repartition(self) -> None:
        self.partitioned = True
        field = self.random.choice(["bucket(2, k)", "truncate(2, s)", "g"])
        specs = self.spark.sql(f"select * from {self.table}.partitions").schema
        fields = [] if "partition" not in specs.names else specs["partition"].dataType.names  # type: ignore[attr-defined]
        names = {"bucket(2, k)": "k_bucket", "truncate(2, s)": "s_trunc", "g": "g"}
        if not any(name.startswith(names[field]) for name in fields):
            self.sql(f"alter table {{t}} add partition field {field}")

    def compact(self) -> None:
        procedure = self.random.choice(["rewrite_data_files", "rewrite_position_delete_files", "rewrite_manifests"])
        options = "" if procedure == "rewrite_manifests" else ", options => map('rewrite-all', 'true')"
        self.sql(f"call ice.system.{procedure}(table => '{{t}}'{options})")

    def delete_keys(self) -> None:
        if self.partitioned:
            self.delete()
            return
        keys = [self.random.choice([None, self.random.randrange(100)]) for _ in range(8)]
        self.log.append(f"keys {keys} deleted")
        if self.random.random() < 0.5:
            delete_equal(self.spark, self.table, {"k": keys})
        else:
            texts = [self.random.choice([None, f"x{self.random.randrange(8)}"]) for _ in keys]
            delete_equal(self.spark, self.table, {"k": keys, "s": texts})


def check_history(spark: SparkSession, seed: int) -> None:
    for key, value in PLAIN.items():
        spark.conf.set(key, value)
    history = History(spark, seed)
    history.insert()
    try:
        for key, value in (EXCHANGED if history.random.random() < 0.5 else FORCED).items():
            spark.conf.set(key, value)
        for _ in range(_STEPS):
            history.step()
            # Of a table without deletes Iceberg counts the rows itself.
            names = history.random.sample([name for name in ALL if name != "rows"], 2)
            check_of_rows(spark, history.table, names)
    except Exception as problem:
        problem.add_note(f"seed {seed}:\n" + "\n".join(history.log))
        raise


@pytest.mark.parametrize("number", range(12))
def test_generated_histories(spark: SparkSession, seed: int, number: int) -> None:
    check_history(spark, seed * 1000 + number)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(12, 250))
def test_many_generated_histories(spark: SparkSession, seed: int, number: int) -> None:
    check_history(spark, seed * 1000 + number)
