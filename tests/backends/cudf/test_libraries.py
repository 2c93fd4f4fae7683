"""The modules that need a device, run on the host under stand-ins for CuPy, pylibcudf and RMM.

What the stand-ins prove and do not prove: :mod:`tests.backends.cudf.libraries`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kernels.conftest import emulator_cache
from tests.kernels.emulator.device import CACHE_VARIABLE

__all__ = ["emulator_cache"]

ROOT = Path(__file__).parents[3]
PLUGIN = "tests.backends.cudf.libraries.plugin"

for library in ("pylibcudf", "cupy", "rmm"):
    pytest.importorskip(library, reason='no GPU libraries: pip install ".[cu13]"')

pytestmark = pytest.mark.usefixtures("emulator_cache")


@pytest.fixture
def environment(emulator_cache: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), CACHE_VARIABLE: str(emulator_cache)}


def gpu_tests(environment: dict[str, str], *what: str) -> str:
    """Run the tests marked ``gpu`` of some files, which must pass; gives pytest's summary."""
    command = [
        sys.executable, "-m", "pytest", "-q", "-p", PLUGIN, "-p", "no:cacheprovider", "--tb=short",
        "-m", "gpu and not slow and not extra", *what,
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return done.stdout


def check(summary: str, least: int) -> None:
    passed = re.search(r"(\d+) passed", summary)
    assert passed is not None
    assert int(passed[1]) >= least
    assert "without stream: none; outside the device: none; freed while in use: none" in summary


def program(environment: dict[str, str], text: str) -> Any:
    """What a program prints as JSON, under the stand-ins."""
    start = f"from {PLUGIN} import install\ninstall()\nimport json\n"
    done = subprocess.run(
        [sys.executable, "-c", start + text], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_joins_of_tables_on_a_gpu(environment: dict[str, str]) -> None:
    some = "kinds or (joins_on and string) or (nearest and float)"
    check(gpu_tests(environment, "tests/backends/cudf/test_resident.py", "-k", some), 10)


@pytest.mark.extra
def test_the_backend(environment: dict[str, str]) -> None:
    full = "tests/backends/cudf/test_gpu.py::test_too_much_memory_is_said_and_survived"  # memory is not short here
    check(gpu_tests(environment, "tests/backends", "--deselect", full), 950)


@pytest.mark.slow
def test_the_engine_and_pipelines(environment: dict[str, str]) -> None:
    files = ("pipeline/test_tpch.py", "test_tables.py", "test_asof.py", "test_notin.py", "test_conditions.py")
    check(gpu_tests(environment, *(f"tests/engine/{name}" for name in files)), 550)


@pytest.mark.slow
@pytest.mark.spark
def test_islands_of_spark(environment: dict[str, str], tmp_path: Path) -> None:
    """Workers have the stand-ins too: Python imports ``sitecustomize`` when it starts."""
    (tmp_path / "sitecustomize.py").write_text(f"from {PLUGIN} import install\ninstall()\n")
    given = {
        **environment, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "CUDA_VISIBLE_DEVICES": "0",
        "PYSPARK_PYTHON": sys.executable,
    }  # fmt: skip
    check(gpu_tests(given, "tests/spark/query/test_gpu.py"), 50)


@pytest.mark.extra
def test_first_uses_are_timed(environment: dict[str, str], tmp_path: Path) -> None:
    install = f"import sys\nif '--child' in sys.orig_argv:\n    from {PLUGIN} import install\n    install()\n"
    (tmp_path / "sitecustomize.py").write_text(install)
    given = {**environment, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    command = [sys.executable, "scripts/gpu_first_use.py", "--rows", "500"]
    told = json.loads(subprocess.run(command, cwd=ROOT, env=given, capture_output=True, check=True).stdout)
    assert [(run["caches"], run["problem"]) for run in told["runs"]] == [
        ("empty", ""), ("full", ""), ("gpujoin's own full", ""),
    ]  # fmt: skip
    for run in told["runs"]:
        names = [step["step"] for step in run["steps"]]
        assert names[2] == "context"
        assert {"inner join, 1", "null_aware_anti join, 3", "island, 3"} <= set(names)
        assert [step["step"] for step in run["steps"] if len(step.get("profile", ())) == 25] == [
            "inner join, 2", "left join, 1", "island, 2",
        ]  # fmt: skip


SEEN = """
import gc
import numpy as np
import pyarrow as pa
import pylibcudf as plc
from gpujoin import join_tables, left, right
from gpujoin.backends.cudf import frames
from tests.backends.cudf.libraries import record
from tests.backends.cudf.libraries.cupy import MemoryPointer, UnownedMemory, ndarray

rows = 1000
a = pa.table({"k": np.arange(rows), "v": np.arange(rows) * 0.5, "n": np.arange(rows, dtype="i4")})
b = pa.table({"k": np.arange(0, rows, 2), "w": np.arange(rows // 2) * 2.0})
result = join_tables(a, b, on="k", condition=left("v") < right("w") + 1000.0, backend="gpu")
assert result.num_rows == rows // 2
seen = {"copied": dict(record.copied), "waits": record.synchronized}

column = frames.upload(pa.table({"k": np.arange(100)})).table.columns()[0]
held = frames.as_array(column)
loose = ndarray((100,), np.int64, MemoryPointer(UnownedMemory(column.data().ptr, column.data().size, None), 0))
seen["before"] = loose.tolist()[:3]
del column
gc.collect()
seen["kept"] = held.tolist()[:3]
del held
gc.collect()
seen["after"] = [value & 0xFF for value in loose.tolist()[:3]]

assert not record.without_stream
plc.unary.is_valid(frames.upload(pa.table({"k": [1, None]})).table.columns()[0])
seen["without stream"] = sorted(record.without_stream)
print(json.dumps(seen))
"""


def test_what_the_stand_ins_see(environment: dict[str, str]) -> None:
    """Copies, views that outlive their column, and calls on another stream."""
    told = program(environment, SEEN)
    # Each column goes up once, and the result down; constants of conditions and addresses of columns are small.
    columns = 1000 * (8 + 8 + 4) + 500 * (8 + 8)
    assert columns <= told["copied"]["up"] <= columns + 256
    assert told["copied"]["down"] == 500 * (8 + 8 + 4 + 8)
    # A view keeps its column; one that does not reads what freed memory is overwritten with.
    assert told["before"] == told["kept"] == [0, 1, 2]
    assert told["after"] == [0xDD] * 3
    assert told["without stream"] == ["unary.is_valid"]


FREED = """
import threading
import numpy as np
import pyarrow as pa
from gpujoin import DeviceTable, join_tables
from tests.backends.cudf.libraries import record

a = DeviceTable.from_arrow(pa.table({"k": np.arange(500), "v": np.arange(500)}))
held = []
ready, done = threading.Event(), threading.Event()

def join():
    held.append(join_tables(a, a, on="k"))
    ready.set()
    done.wait(60)

thread = threading.Thread(target=join)
thread.start()
assert ready.wait(60)
before = record.freed
held.clear()
import gc
gc.collect()
freed = record.freed - before
done.set()
thread.join()
print(json.dumps({"freed": freed, "early": sorted(record.freed_early)}))
"""


def test_memory_freed_by_another_thread_is_in_use_no_more(environment: dict[str, str]) -> None:
    """RMM gives memory back on the stream of the thread that frees it, so its maker waits for its own before."""
    told = program(environment, FREED)
    assert told["freed"] > 0
    assert told["early"] == []


UNALIGNED = """
from decimal import Decimal
import numpy as np
import pyarrow as pa
import pylibcudf as plc
from gpujoin import DeviceTable, join_tables, left, right
from gpujoin.testing import assert_same_rows
from tests.backends.cudf.libraries.columns import Buffer, arrow_of, column_of

class Part:
    def __init__(self, owner, start, size):
        self.owner, self.ptr, self.size = owner, owner.ptr + start, size

def unaligned(values):
    whole = column_of(values)
    content = np.frombuffer(values.buffers()[1], np.uint8)[: whole.data().size]
    memory = Buffer(np.concatenate([np.zeros(8, np.uint8), content]))
    part = plc.gpumemoryview(Part(memory, 8, content.size))
    assert part.ptr % 16 == 8
    return plc.Column(whole.type(), whole.size(), part, None, 0, 0, [])

rows = 40
decimals = [pa.array([Decimal(n * 7 % 23) for n in range(rows + shift)], pa.decimal128(38, 0)) for shift in (0, 5)]
numbers = [pa.array(range(rows + shift), pa.int64()) for shift in (0, 5)]
sides = [plc.Table([unaligned(d), column_of(n)]) for d, n in zip(decimals, numbers)]
host = [pa.table({"0": d, "1": n}) for d, n in zip(decimals, numbers)]
condition = left("0") >= right("0")
told = {}
for name, ask in {"key": dict(on="0"), "payload": dict(on="1"), "condition": dict(on="1", condition=condition)}.items():
    for how in ("inner", "full"):
        result = join_tables(*(DeviceTable.of(side) for side in sides), how=how, **ask)
        wanted = join_tables(*host, how=how, backend="cpu", **ask)
        assert_same_rows(result.to_arrow(), wanted)
        told[f"{name}, {how}"] = wanted.num_rows
print(json.dumps(told))
"""


def test_columns_that_begin_between_two_values_are_copied(environment: dict[str, str]) -> None:
    """A 16-byte read in the middle of a value loses the device; the emulator refuses it as misaligned."""
    told = program(environment, UNALIGNED)
    assert len(told) == 6
    assert all(rows > 0 for rows in told.values())


FAULTS = """
import numpy as np
import pyarrow as pa
from gpujoin import DeviceMemoryError, DeviceTable, JoinMetrics, asof_join_tables, join_tables, left, right
from gpujoin.testing import assert_same_rows
from gpujoin.backends.registry import BackendRequest, create
from gpujoin.model.backend import BackendName
from tests.backends.cudf.libraries import record

rng = np.random.default_rng(20260807)
def side(rows):
    text = [None if n == 3 else f"text {n}" for n in rng.integers(0, 40, rows)]
    return pa.table({"k": rng.integers(0, 60, rows), "s": text, "t": rng.integers(0, 99, rows), "v": rng.random(rows)})

a, b = side(300), side(120)
backend = create(BackendName.GPU, BackendRequest())
condition = left("v") < right("v")
ASKS = {
    "inner by text": lambda x, y, **g: join_tables(x, y, on="s", **g),
    "full with a condition": lambda x, y, **g: join_tables(x, y, on="k", how="full", condition=condition, **g),
    "NOT IN": lambda x, y, **g: join_tables(x, y, on="k", how="null_aware_anti", **g),
    "as of": lambda x, y, **g: asof_join_tables(x, y, on="t", by="k", **g),
}
told = {}
for name, ask in ASKS.items():
    wanted = ask(a, b, backend="cpu")
    for place in ("host", "device"):
        tables = (a, b) if place == "host" else tuple(DeviceTable.from_arrow(t, backend=backend) for t in (a, b))
        survived = refused = number = 0
        while True:
            number += 1
            record.fail_at, metrics = number, JoinMetrics()
            try:
                result = ask(*tables, backend=backend, metrics=metrics)
            except DeviceMemoryError:
                assert place == "device", number
                refused += 1
                continue
            finally:
                left_over, record.fail_at = record.fail_at, 0
            result = result if place == "host" else result.to_arrow()
            assert_same_rows(result, wanted, allow_empty=True, context=f"{name}, {place}, call {number}")
            if left_over:
                break
            assert metrics.retries + metrics.fallbacks > 0, (name, place, number)
            survived += 1
        told[f"{name}, {place}"] = [survived, refused]
print(json.dumps(told))
"""


@pytest.mark.extra
def test_any_call_of_a_library_may_run_out_of_memory(environment: dict[str, str]) -> None:
    """Each call fails in turn: the rows are right, or, of tables on the device, ``DeviceMemoryError`` says so."""
    told = program(environment, FAULTS)
    assert all(survived > 5 for name, (survived, _) in told.items() if name.endswith("host")), told
    assert all(survived + refused for survived, refused in told.values()), told
    assert all(refused == 0 for name, (_, refused) in told.items() if name.endswith("host")), told


LOST = """
import logging
import numpy as np
import pyarrow as pa
from gpujoin import DeviceTable, JoinMetrics, asof_join_tables, join_tables, left, right
from gpujoin.backends.cudf import lost
from gpujoin.errors import BackendUnavailableError, DeviceLostError
from gpujoin.testing import assert_same_rows
from tests.backends.cudf.libraries import record

warned = []
class Kept(logging.Handler):
    def emit(self, entry): warned.append(entry.getMessage())
logging.getLogger("gpujoin").addHandler(Kept())

rng = np.random.default_rng(20260807)
def side(rows):
    text = [None if n == 3 else f"text {n}" for n in rng.integers(0, 40, rows)]
    return pa.table({"k": rng.integers(0, 60, rows), "s": text, "t": rng.integers(0, 99, rows), "v": rng.random(rows)})

a, b = side(300), side(120)
condition = left("v") < right("v")
ASKS = {
    "inner by text": lambda **g: join_tables(a, b, on="s", **g),
    "full with a condition": lambda **g: join_tables(a, b, on="k", how="full", condition=condition, **g),
    "right": lambda **g: join_tables(a, b, on="k", how="right", **g),
    "NOT IN": lambda **g: join_tables(a, b, on="k", how="null_aware_anti", **g),
    "as of": lambda **g: asof_join_tables(a, b, on="t", by="k", **g),
}
told = {}
for name, ask in ASKS.items():
    wanted, number = ask(backend="cpu"), 0
    while True:
        number += 1
        lost._reasons.clear()
        record.lost_at, metrics = number, JoinMetrics()
        result = ask(backend="auto", metrics=metrics)
        assert_same_rows(result, wanted, allow_empty=True, context=f"{name}, lost at {number}")
        if lost.reason(0) is None:  # the join made fewer calls
            break
        assert any("ECCUncorrectable" in note for note in metrics.fallback_reasons), (name, number, metrics)
        again = JoinMetrics()
        used = dict(record.calls)
        assert_same_rows(ask(backend="auto", metrics=again), wanted, allow_empty=True)
        assert dict(record.calls) == used, "a lost device is not tried again"
        assert again.fallback_reasons, name
    told[name] = number - 1
record.lost_at = 0
lost._reasons.clear()
table = DeviceTable.from_arrow(a)
record.lost_at, refused = 1, []
for attempt in (lambda: join_tables(table, table, on="k"), lambda: ASKS["right"](backend="gpu")):
    try:
        attempt()
    except (DeviceLostError, BackendUnavailableError) as problem:
        refused.append(type(problem).__name__)
print(json.dumps({"calls": told, "refused": refused, "warned": len(warned), "messages": len(set(warned))}))
"""


@pytest.mark.extra
def test_a_device_lost_at_any_call(environment: dict[str, str]) -> None:
    """At each call, copy, launch and wait in turn: the rows are right, and later joins run on the CPU."""
    told = program(environment, LOST)
    assert all(number > 20 for number in told["calls"].values()), told
    assert told["refused"] == ["DeviceLostError", "BackendUnavailableError"]
    assert told["warned"] == told["messages"], "each warning comes once"


AHEAD = """
import numpy as np
import pyarrow as pa
from gpujoin import JoinMetrics, Options, join_tables
from gpujoin.backends.cudf import backend as module
from gpujoin.backends.registry import BackendRequest, create
from gpujoin.engine.join import passes
from gpujoin.model.backend import BackendName
from tests.backends.cudf.libraries import record, rmm

module.MORSEL_ROWS, rows = passes.LEAST_ROWS_AHEAD, 5 * passes.LEAST_ROWS_AHEAD + 17
rng = np.random.default_rng(20260807)
a = pa.table({"k": rng.integers(0, 1 << 40, rows), "v": np.arange(rows)})
b = pa.table({"k": a["k"].to_numpy()[:: 7], "w": np.arange(len(range(0, rows, 7)))})
metrics = JoinMetrics()
wanted = join_tables(a, b, on="k", backend="cpu").sort_by("v")
result = join_tables(a, b, on="k", backend="gpu", metrics=metrics)
told = {"right": result.sort_by("v").equals(wanted), "ahead": metrics.uploads_ahead, "up": record.copied["up"]}
told["least"] = a.nbytes + b.nbytes
told["outside"], told["without"] = sorted(record.outside), sorted(record.without_stream)
told["early"] = sorted(record.freed_early)

# Without the wait at the end of an operation, what another thread has copied is not there.
arrive = record.arrive
rmm.Stream.synchronize = lambda self: None
waited = join_tables(a, b, on="k", backend="gpu")
told["early without waits"] = len(record.freed_early)
told["without waits"] = waited.num_rows == wanted.num_rows
print(json.dumps(told))
"""


def test_keys_are_copied_ahead_by_another_thread(environment: dict[str, str]) -> None:
    """Keys of all morsels but the first are copied once; without the wait for that thread's stream rows are wrong."""
    told = program(environment, AHEAD)
    assert told["right"]
    assert told["ahead"] == 4, "all morsels of enough rows but the first"
    assert told["least"] <= told["up"] <= 1.01 * told["least"] + 4096, "each column is copied once"
    assert told["outside"] == told["without"] == told["early"] == []
    assert not told["without waits"]
    assert told["early without waits"] > 0, "what the other thread copied is freed here"


POOLS = """
import weakref
import pyarrow as pa
from gpujoin.backends.cudf import share_memory
from gpujoin.backends.registry import BackendRequest, create, release_cached_memory
from gpujoin.errors import BackendUnavailableError
from gpujoin.model.backend import BackendName
from cuda.bindings import runtime
from rmm import mr

trimmed = []
runtime.cudaMemPoolTrimTo = lambda pool, keep: trimmed.append(keep) or (runtime.cudaError_t.cudaSuccess,)
release_cached_memory(0)
share_memory(0, 0.5, 2, 0)
backend = create(BackendName.GPU, BackendRequest(memory_share=0.4))
told = {"limits": [backend.device.memory_limit], "shares": []}
for contexts in (0, 5 << 30):
    kept = share_memory(0, 0.5, 2, contexts)
    told["limits"].append(backend.device.memory_limit)
    told["shares"].append(backend.device.memory_limit + kept)
    assert mr.get_current_device_resource().get_upstream().get_allocation_limit() == backend.device.memory_limit
frame = backend.from_arrow(pa.table({"k": [1, 2, 3]}))
release_cached_memory(0)
told["with pools"] = list(trimmed)

runtime.cudaDeviceGetAttribute = lambda *_: (runtime.cudaError_t.cudaSuccess, 0)
assert share_memory(0, 0.5, 2, 0) == 0, "a pool of RMM is not kept for a table"
pool = weakref.ref(mr.get_current_device_resource().get_upstream().get_upstream())
release_cached_memory(0)
told["pool is left"] = pool() is None
told["limits"].append(mr.get_current_device_resource().get_upstream().get_allocation_limit())
told["trimmed"] = len(trimmed)
told["rows"] = backend.to_arrow(frame, pa.schema([("k", pa.int64())])).to_pydict()
print(json.dumps(told))
"""


def test_memory_is_shared_and_given_back(environment: dict[str, str]) -> None:
    """The driver's pool is trimmed; one of RMM's, where the driver has none, is left for another."""
    told = program(environment, POOLS)
    gib = 1 << 30
    assert told["shares"] == [2 * gib, 3 * gib // 2]
    assert told["limits"] == [int(8 * gib * 0.4), 2 * gib * 7 // 8, 3 * gib // 2 * 7 // 8, 2 * gib]
    assert told["with pools"] == [0]
    assert told["pool is left"]
    assert told["trimmed"] == 1
    assert told["rows"] == {"k": [1, 2, 3]}
