"""Running a case in a process of its own and watching what memory it takes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_INTERVAL = 0.004

_CHILD = """
import json, os, resource, sys, time
os.environ["POLARS_MAX_THREADS"] = "1"  # as in a worker of Spark
from pathlib import Path
name, folder, options, limit = json.loads(sys.argv[1])
if limit:
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
from benchmarks.memory.cases import CASES
from gpujoin.config import Options
from gpujoin.engine.memory import prepare_libraries
prepare_libraries()
import polars
print("ready", flush=True)
sys.stdin.readline()
start, rows = time.perf_counter(), 0
try:
    for batch in CASES[name].run(Path(folder), Options(**options)):
        rows += batch.num_rows
except MemoryError as problem:
    print(json.dumps({"error": f"{type(problem).__name__}: {problem}"}), flush=True)
else:
    print(json.dumps({"rows": rows, "seconds": time.perf_counter() - start}), flush=True)
"""


@dataclass(frozen=True)
class Use:
    """What a case took.

    Attributes
    ----------
    base : int
        Bytes of private memory before it began: the interpreter and libraries.
    peak : int
        The most while it ran.
    rows : int or None
        Of the result; ``None`` where it failed.
    seconds : float
        Its time.
    error : str
        What it failed with, if it did.
    """

    base: int
    peak: int
    rows: int | None
    seconds: float
    error: str = ""

    @property
    def growth(self) -> int:
        """Bytes beyond the base."""
        return self.peak - self.base


def measured(name: str, folder: Path, options: dict[str, object], address_space: int | None = None) -> Use:
    """Run a case and watch it.

    Parameters
    ----------
    name : str
        One of :data:`~benchmarks.memory.cases.CASES`.
    folder : Path
        Where its files are.
    options : dict
        Of :class:`~gpujoin.config.Options`.
    address_space : int or None
        The child's ``RLIMIT_AS``.
    """
    arguments = json.dumps([name, str(folder), options, address_space])
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD, arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        child.stdout.readline()
        base = peak = private_bytes(child.pid)
        child.stdin.write("\n")
        child.stdin.flush()
        while child.poll() is None:
            peak = max(peak, private_bytes(child.pid))
            time.sleep(_INTERVAL)
        said, problem = child.communicate()
    finally:
        child.kill()
        child.wait()
    failed = {"error": f"exit {child.returncode}: {problem[-500:]}"}
    result: dict[str, Any] = json.loads(said) if said.strip() else failed
    return Use(base, peak, result.get("rows"), result.get("seconds", 0.0), result.get("error", ""))


def private_bytes(process: int) -> int:
    """Resident memory of a process that is not of files: what a limit's owner cannot take back."""
    try:
        fields = Path(f"/proc/{process}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    found = [line for line in fields.splitlines() if line.startswith(("RssAnon", "RssShmem"))]
    return sum(int(line.split()[1]) << 10 for line in found)
