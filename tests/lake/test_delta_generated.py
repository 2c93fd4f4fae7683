"""Generated histories of tables of Delta: after each step queries have Spark's rows, and workers read the files."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

from tests.lake.deltas import BY_ID, BY_NAME, VECTORS, new_table
from tests.lake.queries import ALL, check_of_rows, run
from tests.spark.query.queries import EXCHANGED, FORCED, PLAIN

pytestmark = [pytest.mark.lake("delta"), pytest.mark.spark]
_STEPS = 7


class History:
    """A table and random changes of it."""

    def __init__(self, spark: SparkSession, seed: int) -> None:
        self.spark = spark
        self.random = random.Random(seed)
        mapping = self.random.choice([{}, BY_NAME, BY_ID])
        properties = mapping | self.random.choice([VECTORS, VECTORS, {}])
        properties |= self.random.choice(
            [{}, {"delta.enableRowTracking": "true"}, {"delta.enableTypeWidening": "true"}]
        )
        by = self.random.choice(["", "", "g", "s"])
        self.columns = "k bigint, g int, s string, v int, p struct<a:int,b:string>"
        self.table = new_table(spark, self.columns, by=by, properties=properties)
        self.mapped = bool(mapping)
        self.widens = "delta.enableTypeWidening" in properties
        self.added = 0
        self.log = [f"by {by or 'nothing'}, {properties}"]

    def sql(self, text: str) -> None:
        self.log.append(text)
        run(self.spark, self.table, text)

    def step(self) -> None:
        changes: list[Callable[[], None]] = [
            self.insert, self.insert, self.delete, self.delete, self.update, self.merge, self.evolve, self.compact,
        ]  # fmt: skip
        self.random.choice(changes)()

    def insert(self) -> None:
        first = self.random.randrange(100)
        columns = [(field.name, field.dataType) for field in self.spark.table(self.table).schema.fields]
        known = {"k": "id", "g": "if(id % 11 = 0, null, id % 3)", "s": "if(id % 6 = 0, null, concat('x', id % 8))"}
        json = 'concat(\'{"a":\', id, \',"b":"q","z":2}\')'
        values = [
            known.get(name)
            or (
                f"if(id % 4 = 0, null, from_json({json}, '{kind.simpleString()}'))"
                if kind.typeName() == "struct"
                else f"if(id % 5 = 0, null, cast(id % 7 as {kind.simpleString()}))"
            )
            for name, kind in columns
        ]
        self.sql(
            f"insert into {{t}} select {', '.join(values)} from range({first}, {first + self.random.randrange(1, 60)})"
        )

    def _others(self) -> list[tuple[str, str]]:
        fields = self.spark.table(self.table).schema.fields
        return [
            (field.name, field.dataType.simpleString()) for field in fields if field.name not in {"k", "g", "s", "p"}
        ]

    def _condition(self) -> str:
        number = self.random.randrange(2, 9)
        return self.random.choice([
            f"k % {number} = 1", f"g = {number % 3}", f"g is null and k > {number}", f"s = 'x{number % 8}'",
            f"k between {number * 9} and {number * 9 + 12}", f"k % {number} = 0 and g < 2", f"p.a > {number * 10}",
        ])  # fmt: skip

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
        others = self._others()
        self.added += 1
        texts = [f"alter table {{t}} add column c{self.added} int"]
        if others and self.mapped:
            name, _ = self.random.choice(others)
            texts += [
                f"alter table {{t}} drop column {name}",
                f"alter table {{t}} rename column {name} to n{self.added}",
                f"alter table {{t}} add column p.z{self.added} int",
            ]
        narrow = [name for name, kind in others if kind == "int"]
        if narrow and self.widens:
            texts.append(f"alter table {{t}} alter column {self.random.choice(narrow)} type bigint")
        self.sql(self.random.choice(texts))

    def compact(self) -> None:
        texts = ["optimize {t}", "optimize {t} zorder by (k)", "reorg table {t} apply (purge)"]
        self.sql(self.random.choice(texts))


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
            check_of_rows(spark, history.table, history.random.sample(ALL, 2))
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
