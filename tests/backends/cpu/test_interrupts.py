"""Ctrl-C ends a wait of the program at once, also after Polars was imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

WAITING = """
import os, signal, socket, threading
{imports}

here, there = socket.socketpair()
interrupted = threading.Event()


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
    interrupted.wait(10)
    there.sendall(b"x")


threading.Timer(0.2, interrupt).start()
try:
    here.recv(1)
except KeyboardInterrupt:
    print("in time")
    interrupted.set()
"""


@pytest.mark.parametrize(
    "imports",
    [
        "import gpujoin.backends.cpu.pipeline.backend",
        "import pyarrow, gpujoin.backends.cpu.longkeys as keys; keys.fingerprints(pyarrow.array(['a']))",
    ],
    ids=["pipeline", "long keys"],
)
def test_a_wait_is_interrupted(imports: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WAITING.format(imports=imports)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "in time\n", done.stderr
