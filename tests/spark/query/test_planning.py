"""What planning costs: a number of calls to the JVM, which no machine changes."""

from __future__ import annotations

import pytest
from py4j import clientserver
from pyspark.sql import SparkSession

from gpujoin.spark.gateway import optimized_plan
from gpujoin.spark.query.accelerate import rewrite

FORCED = {"spark.gpujoin.backend": "cpu", "spark.gpujoin.fallback": "raise"}
pytestmark = [pytest.mark.spark, pytest.mark.parametrize("spark", [FORCED], indirect=True, ids=["cpu"])]

MOST_CALLS = {1: 210, 10: 370}


@pytest.mark.parametrize("joins", MOST_CALLS)
def test_calls_to_the_jvm(tables: SparkSession, joins: int, monkeypatch: pytest.MonkeyPatch) -> None:
    more = "".join(f" join items i{n} on i{n}.k = a.k and i{n}.cost > {n}" for n in range(joins))
    query = f"select a.s, sum(a.price), count(*) from sales a{more} group by a.s"
    rewrite(tables.sql(query))  # classes and footers are known then
    frame = tables.sql(query)
    optimized_plan(frame)
    seen: list[str] = []
    original = clientserver.JavaClient.send_command

    def counting(self: object, command: str, *arguments: object, **named: object) -> object:
        if not command.startswith("m\n"):  # releases of objects come when Python's collector does
            seen.append(command)
        return original(self, command, *arguments, **named)

    monkeypatch.setattr(clientserver.JavaClient, "send_command", counting)
    assert rewrite(frame).changed
    monkeypatch.undo()
    print(f"{joins} joins: {len(seen)} calls")
    assert len(seen) <= MOST_CALLS[joins]
