"""Tables that stay on a device from task to task, under the stand-ins: what later tasks copy, launch and take there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.backends.cudf.test_libraries import PLUGIN, ROOT, program
from tests.kernels.conftest import emulator_cache
from tests.kernels.emulator.device import CACHE_VARIABLE

__all__ = ["emulator_cache"]

for library in ("pylibcudf", "cupy", "rmm"):
    pytest.importorskip(library, reason='no GPU libraries: pip install ".[cu13]"')

START = """
import gc, os
from pathlib import Path
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from gpujoin.backends import cudf
from gpujoin.backends.cudf import device_pipeline
from gpujoin.backends.registry import BackendRequest, create
from gpujoin.engine.pipeline import run
from gpujoin.engine.pipeline.resident import ResidentTables, resident_tables
from gpujoin.engine.pipeline.tables import TableCache
from gpujoin.model.backend import BackendName
from gpujoin.model.expressions import lit, left
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.pipeline import PipelineMetrics, Rung
from gpujoin.model.relations import ExchangeSource, FileSlice, Filter, Join, Scan
from gpujoin.model.spec import JoinSpec, KeyPair
from gpujoin.plan.resolve import resolve
from gpujoin.testing import assert_same_rows
from tests.backends.cudf.libraries import record

folder = Path(os.environ["TABLES"])
SALES = pa.schema([("item", pa.int64()), ("colour", pa.int32()), ("price", pa.float64())])
ITEMS = pa.schema([("id", pa.int64()), ("shade", pa.int32()), ("name", pa.string())])

def written(number, rows=200):
    table = pa.table(
        [np.arange(rows, dtype="i8") * 7, np.arange(rows, dtype="i4") % 9, [f"item {i}" for i in range(rows)]],
        schema=ITEMS,
    )
    path = folder / f"items{number}.parquet"
    pq.write_table(table, path)
    os.utime(path, (1, 1))
    return FileSlice(str(path), path.stat().st_size, 1000)

def tree(key=0, kind=JoinType.INNER):
    output = (0, 1, 2) if kind is JoinType.INNER else ()
    spec = JoinSpec(kind, (KeyPair(key, key),), None, (0, 1, 2), output)
    items = Filter(Scan(ITEMS), resolve(left("id") > lit(70), ITEMS, pa.schema([])))
    return Join(ExchangeSource(0, SALES), items, spec, Side.RIGHT)

def sales(task, rows=300):
    rng = np.random.default_rng(task)
    keys = rng.integers(0, 250, rows) * 7
    return pa.table([keys, rng.integers(0, 12, rows).astype("i4"), rng.random(rows)], schema=SALES)

backend = create(BackendName.GPU, BackendRequest(memory_share=0.5))
device = device_pipeline(backend)
kernels = backend.ops.kernels
tables = resident_tables(0)

def task(number, file, asked=None, whole=(0,), stores_build_sides=False, **named):
    asked = asked or tree()
    given = {"cache": TableCache(None, tables, stores_build_sides, whole), **named}
    metrics, before = PipelineMetrics(), (record.copied["up"], record.calls.total(), len(kernels.launches))
    reads = record.calls["io.parquet.read_parquet"]
    rows = sales(number)
    result = pa.Table.from_batches(run(asked, {0: rows}, {0: [file]}, metrics=metrics, device=device, **given))
    used = {
        "up": record.copied["up"] - before[0] - rows.nbytes, "calls": record.calls.total() - before[1],
        "launches": kernels.launches[before[2]:], "reads": record.calls["io.parquet.read_parquet"] - reads,
        "kept": metrics.tables_kept, "on host": metrics.host_steps, "retries": metrics.device_retries,
    }
    wanted = pa.Table.from_batches(run(asked, {0: rows}, {0: [file]}))
    assert_same_rows(result, wanted)
    return used

gc.collect()
gc.disable()
told = {"at first": cudf.allocated_bytes(0)}
"""

KEPT = (
    START
    + """
tables.limit = 1 << 20
file, other = written(0), written(1)
told["tasks"] = [task(number, file) for number in range(3)]
told["by another key"] = [task(number, file, tree(1, JoinType.LEFT_SEMI)) for number in range(2)]
told["another file"] = task(0, other)
told["tables"] = len(tables._tables)
told["kept"], told["allocated"] = tables.nbytes, cudf.allocated_bytes(0)
changed = written(0, 150)
told["changed"] = task(0, changed)
tables.clear()
told["at last"] = cudf.allocated_bytes(0)
told["of a stream"] = [task(number, file := changed, whole=[], stores_build_sides=True)["kept"] for number in range(2)]
tables.clear()
told["not all of it"] = [task(number, file, whole=[])["kept"] for number in range(2)]
told["carefully"] = [task(number, file, rung=Rung.CAREFUL)["kept"] for number in range(2)]

sizes = []
files = [written(number + 2, 100 + number) for number in range(4)]
for number, each in enumerate(files):
    task(0, each)
    sizes.append(tables.nbytes)
one = sizes[0]
tables.clear()
tables.limit = 3 * one + one // 2
for each in (files[0], files[1], files[2], files[0], files[3]):
    task(0, each)
told["in room for three"] = [task(0, each)["kept"] for each in (files[0], files[2], files[3], files[1])]
tables.limit = 1000
told["too large"] = [task(0, files[0])["kept"], task(0, files[0])["kept"]]
tables.clear()
told["too large"] += [task(0, files[0])["kept"], task(0, files[0])["kept"]]
tables.limit = 0
tables.fit()
told["in the end"] = cudf.allocated_bytes(0)
print(json.dumps(told))
"""
)

SHORT = (
    START
    + """
from gpujoin.backends.cudf import lost
from gpujoin.backends.cudf import device as devices

tables.limit = 1 << 20
files = [written(number) for number in range(3)]

def filled():
    for each in files[:2]:
        task(0, each)
    return [name for name, _ in tables._tables.items()]

# Each call of a library in turn does not get its memory: a kept table makes room, and nothing goes to the CPU.
number, let_go = 0, []
while True:
    number += 1
    before = filled()
    record.fail_at = number
    used = task(1, files[2])
    left_over, record.fail_at = record.fail_at, 0
    assert (used["on host"], used["retries"]) == (0, 0), (number, used)
    after = [name for name, _ in tables._tables.items()]
    if left_over:
        break
    let_go.append([each in after for each in before])
    tables.clear()
told["calls"], told["let go"] = number - 1, let_go

# So it is where the limit of RMM's adaptor is reached, by libraries and by kernels.
installed = devices._installed[0]
filled()
held = cudf.allocated_bytes(0)
tables.clear()
task(1, files[2])
both = held + cudf.allocated_bytes(0)
tables.clear()
filled()
devices._installed[0].limiting.limit = limit = both - 1000
used = task(1, files[2])
told["at the limit"] = [used["on host"], used["retries"], cudf.allocated_bytes(0) <= limit, len(tables._tables)]

# Where all that is kept is not enough, work goes to the CPU as ever.
filled()
installed.limiting.limit = 1500
used = task(1, files[2], tree())
told["too little"] = [used["on host"] > 0, len(tables._tables)]
installed.limiting.limit = installed.limit

# A child has other tables, and frees nothing of its parent's.
filled()
before = cudf.allocated_bytes(0)
child = os.fork()
if child == 0:
    empty = not resident_tables(0)._tables and resident_tables(0) is not tables
    os._exit(0 if empty and len(tables._tables) == 2 else 1)
told["child"] = os.waitpid(child, 0)[1]
assert len(tables._tables) == 2 and resident_tables(0) is tables and cudf.allocated_bytes(0) == before

# Another limit is another resource, which would not count what is kept.
cudf.share_memory(0, 0.25, 1, 0)
told["another limit"] = [len(tables._tables), cudf.allocated_bytes(0)]
filled()
record.lost_at = 20
used = task(1, files[0])
told["lost"] = [lost.reason(0) is not None, len(tables._tables)]
print(json.dumps(told))
"""
)

SLOTS = (
    START
    + """
from gpujoin.config import Options
from gpujoin.spark.worker.devices import allocate_device
from gpujoin.spark.worker.slots import GpuSlots

file, options = written(0), Options(backend="gpu", gpu_concurrent_tasks=2)
slots = GpuSlots(2)

def in_a_slot(number, used=file):
    with allocate_device(options, ["0"]) as place:
        metrics = PipelineMetrics()
        rows = sales(number)
        list(run(
            tree(), {0: rows}, {0: [used]}, metrics=metrics, options=place.options, device=place.device,
            cache=TableCache(resident=place.allocation.residents, replicated=[0]),
        ))
        limit = place.allocation.residents.limit
        told.setdefault("memory", place.allocation.backend.device.memory_limit)
        slot = place.allocation.slot.number
    texts = [path.read_text() for path in slots.directory.glob("gpu-0.kept-*")]
    return {"kept": metrics.tables_kept, "limit": limit, "slot": slot, "files": sorted(texts)}

told["tasks"] = [in_a_slot(number) for number in range(2)]
told["allocated"] = cudf.allocated_bytes(0)
with slots.acquire(["0"], 0.0):
    told["in another slot"] = in_a_slot(2)

# Another process keeps nearly all that there is room for in a slot.
room = told["tasks"][0]["limit"]
lines = f'''
from pathlib import Path
from gpujoin.spark.worker.slots import GpuSlots
slots = GpuSlots(2, Path({str(slots.directory)!r}))
slot = slots.acquire(["0"], 0.0)
own = slots.kept_file("0")
slots.keep(slot, own, {room}, lambda limit: limit - 5000)
slot.release()
print("kept", flush=True)
input()
'''
import subprocess, sys
other = subprocess.Popen([sys.executable, "-c", lines], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
assert other.stdout.readline() == "kept\\n"
told["beside another process"] = in_a_slot(3)
other.communicate("\\n")
told["after its end"] = [in_a_slot(number) for number in range(2)]
print(json.dumps(told))
"""
)


def told_by(text: str, cache: Path, folder: Path) -> Any:
    """What a program tells, whose tables and slots are in a folder."""
    places = {"TABLES": str(folder), "GPUJOIN_SLOT_DIR": str(folder / "slots"), "CUDA_VISIBLE_DEVICES": "0"}
    return program({**os.environ, "PYTHONPATH": str(ROOT), CACHE_VARIABLE: str(cache), **places}, text)


@pytest.fixture(scope="module")
def kept(emulator_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What is told of tables that are kept while there is room."""
    return told_by(KEPT, emulator_cache, tmp_path_factory.mktemp("kept"))


def test_later_tasks_read_upload_and_build_nothing(kept: Any) -> None:
    told = kept
    first, second, third = told["tasks"]
    assert (first["kept"], first["reads"]) == (0, 1)
    for later in (second, third):
        assert (later["kept"], later["reads"], later["up"]) == (1, 0, 0)
        assert later["on host"] == 0
        assert not [name for name in later["launches"] if name not in first["launches"]]
        assert not [name for name in later["launches"] if "insert" in name or "fill" in name], later["launches"]
    assert len(second["launches"]) < len(first["launches"])
    assert second["launches"] == third["launches"]
    other, again = told["by another key"]
    assert (other["kept"], other["reads"], again["kept"], again["reads"]) == (1, 0, 1, 0)
    assert len(again["launches"]) < len(other["launches"])
    assert (told["another file"]["kept"], told["another file"]["reads"]) == (0, 1)
    assert told["tables"] == 2
    assert told["kept"] <= told["allocated"] - told["at first"]
    assert (told["changed"]["kept"], told["changed"]["reads"]) == (0, 1)
    assert told["of a stream"] == [0, 1]
    assert told["not all of it"] == told["carefully"] == [0, 0]


def test_tables_used_longest_ago_go_first_and_memory_is_given_back(kept: Any) -> None:
    told = kept
    assert told["in room for three"] == [1, 1, 1, 0]
    assert told["too large"] == [0, 0, 0, 0]
    assert told["at last"] == told["in the end"] == told["at first"], "without the collector of cycles"


def test_kept_tables_make_room_before_anything_goes_to_the_cpu(emulator_cache: Path, tmp_path: Path) -> None:
    told = told_by(SHORT, emulator_cache, tmp_path)
    assert told["calls"] > 10
    assert set(map(tuple, told["let go"])) == {(False, True)}, "one table made room, the one used longest ago"
    assert told["at the limit"] == [0, 0, True, 2]
    assert told["too little"] == [True, 0]
    assert told["child"] == 0
    assert told["another limit"] == [0, told["at first"]]
    assert told["lost"] == [True, 0]


def test_what_is_kept_counts_in_the_share_of_a_slot(emulator_cache: Path, tmp_path: Path) -> None:
    told = told_by(SLOTS, emulator_cache, tmp_path)
    first, second = told["tasks"]
    assert (first["kept"], second["kept"]) == (0, 1)
    assert first["limit"] == told["memory"] // 7, "an eighth of the share"
    assert first["files"] == second["files"] == [f"{told['allocated']} 0"]
    assert told["in another slot"] == {**second, "slot": 1, "files": [f"{told['allocated']} 1"]}
    beside = told["beside another process"]
    assert (beside["kept"], beside["limit"]) == (0, 5000), "it has let go of what it had"
    assert [task["kept"] for task in told["after its end"]] == [0, 1]


SESSION = """
import json, sys
import pyarrow as pa
import pyarrow.parquet as pq
from pathlib import Path
from pyspark.sql import SparkSession
import gpujoin
from gpujoin.testing import assert_same_rows

folder = Path(sys.argv[1])
(folder / "sales").mkdir()
for number in range(6):
    rows = pa.table({"k": [(7 * i + number) % 50 for i in range(100)], "v": [100 * number + i for i in range(100)]})
    pq.write_table(rows, folder / "sales" / f"{number}.parquet")
pq.write_table(pa.table({"k": list(range(0, 50, 2)), "w": list(range(25))}), folder / "items.parquet")
spark = (
    SparkSession.builder.master("local[1]").config("spark.ui.enabled", False).config("spark.log.level", "ERROR")
    .config("spark.gpujoin.strategy", "broadcast").config("spark.gpujoin.backend", "gpu")
    .config("spark.gpujoin.scan.taskBytes", 2000).config("spark.gpujoin.scan.oneTaskBytes", 1)
    .getOrCreate()
)
for name in ("sales", "items.parquet"):
    spark.read.parquet(str(folder / name)).createOrReplaceTempView(name.partition(".")[0])
TEXT = "select s.k, s.v, i.w from sales s join items i on s.k = i.k"
wanted = spark.sql(TEXT).toArrow()
gpujoin.enable(spark)
told = []
for _ in range(2):
    frame = spark.sql(TEXT)
    assert_same_rows(frame.toArrow(), wanted)
    (report,) = gpujoin.metrics(frame)
    told.append([report.tasks, report.metrics.joins.backends, report.metrics.pipeline.tables_kept])
print(json.dumps(told))
"""


@pytest.mark.extra
@pytest.mark.spark
def test_tasks_of_spark_take_what_the_first_one_has_kept(emulator_cache: Path, tmp_path: Path) -> None:
    """Also those of a later query."""
    pytest.importorskip("pyspark")
    (tmp_path / "sitecustomize.py").write_text(f"from {PLUGIN} import install\ninstall()\n")
    environment = {
        **os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", CACHE_VARIABLE: str(emulator_cache),
        "CUDA_VISIBLE_DEVICES": "0", "PYSPARK_PYTHON": sys.executable, "GPUJOIN_SLOT_DIR": str(tmp_path / "slots"),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", SESSION, str(tmp_path)], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    first, second = json.loads(done.stdout.splitlines()[-1])
    assert first[0] > 2
    assert first == [first[0], {"gpu": first[0]}, first[0] - 1]
    assert second == [first[0], {"gpu": first[0]}, first[0]]
