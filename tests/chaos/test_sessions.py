"""Many queries: fifty at once are all right, and two hundred in a row leave memory, files, threads and objects flat."""

from __future__ import annotations

import gc
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.outcomes import Outcomes
from tests.chaos.processes import Role, below, role_of, this_process
from tests.chaos.tables import QUERIES, Sessions

pytestmark = pytest.mark.spark

AT_ONCE = 50
IN_A_ROW, WARM = 200, 50
MEGABYTE = 1 << 20


def test_fifty_queries_at_once(sessions: Sessions, outcomes: Outcomes) -> None:
    expected = {name: sessions.native.sql(text).toArrow() for name, text in QUERIES.items()}
    found: list[Any] = [None] * AT_ONCE
    names = [list(QUERIES)[number % len(QUERIES)] for number in range(AT_ONCE)]

    def work(number: int) -> None:
        try:
            found[number] = sessions.here.sql(QUERIES[names[number]]).toArrow()
        except Exception as problem:  # noqa: BLE001 - told to the test's thread
            found[number] = problem

    threads = [threading.Thread(target=work, args=(number,)) for number in range(AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(900)
    assert not any(thread.is_alive() for thread in threads)
    for number, name in enumerate(names):

        def taken(number: int = number) -> Any:
            if isinstance(found[number], Exception):
                raise found[number]
            return found[number]

        outcomes.judge(taken, expected[name], f"query {number} of {AT_ONCE} at once: {name}")
    assert outcomes.recovered == AT_ONCE, "a query of many is refused"


@dataclass(frozen=True)
class Holdings:
    """What a session holds after so many queries."""

    driver_bytes: int
    worker_bytes: int
    heap_bytes: int
    files: int
    python_threads: int
    """Threads of the driver and its workers, without those of the JVM, whose pools end theirs a minute later."""
    gateway_objects: int
    files_on_disk: int


def holdings(sessions: Sessions) -> Holdings:
    """Look at the driver, its JVM and its workers, garbage collected."""
    gc.collect()
    jvm = sessions.here._jvm
    assert jvm is not None
    runtime = jvm.java.lang.Runtime.getRuntime()
    for _ in range(3):
        jvm.java.lang.System.gc()
    heap = runtime.totalMemory() - runtime.freeMemory()
    own, others = this_process(), below([os.getpid()])
    workers = [process for process in others if "daemon" in process.command]
    local = Path(str(sessions.here.conf.get("spark.local.dir")))
    return Holdings(
        driver_bytes=own.resident,
        worker_bytes=max((process.resident for process in workers), default=0),
        heap_bytes=int(heap),
        files=sum(process.files for process in [own, *others]),
        python_threads=sum(process.threads for process in [own, *others] if role_of(process, others) is not Role.JVM),
        gateway_objects=gateway_objects(sessions),
        files_on_disk=sum(1 for path in local.rglob("gpujoin*")),
    )


def gateway_objects(sessions: Sessions) -> int:
    """How many JVM objects are bound for Python."""
    server = sessions.here.sparkContext._gateway.java_gateway_server  # type: ignore[union-attr]
    return int(server.getGateway().getBindings().size())


def test_two_hundred_queries_in_a_row(sessions: Sessions, outcomes: Outcomes) -> None:
    expected = {name: sessions.native.sql(text).toArrow() for name, text in QUERIES.items()}
    seen: dict[int, Holdings] = {}
    for number in range(1, IN_A_ROW + 1):
        name = list(QUERIES)[number % len(QUERIES)]
        outcomes.judge_query(sessions.here, QUERIES[name], expected[name], f"query {number}: {name}")
        if number % WARM == 0:
            seen[number] = holdings(sessions)
    assert outcomes.recovered == IN_A_ROW
    first, last = seen[WARM], seen[IN_A_ROW]
    told = "\n".join(f"after {number}: {held}" for number, held in seen.items())
    print(told)
    assert last.driver_bytes < first.driver_bytes + 60 * MEGABYTE, told
    assert last.worker_bytes < first.worker_bytes + 100 * MEGABYTE, told
    assert last.heap_bytes < first.heap_bytes + 40 * MEGABYTE, told
    assert last.files <= first.files + 20, told
    assert last.python_threads <= first.python_threads + 20, told
    assert last.gateway_objects <= first.gateway_objects + 300, told
    assert last.files_on_disk == 0, told
