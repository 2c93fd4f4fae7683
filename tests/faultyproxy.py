"""A proxy before a server of objects that throttles requests and drops connections."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import Any

_CHUNK = 1 << 16


class Fault(Enum):
    """What becomes of a request."""

    THROTTLED = 429
    BUSY = 503
    DROPPED = "the connection is reset before an answer"
    CUT = "the connection is reset in the middle of an answer"
    NONE = "it is answered"


class _Plan:
    """The faults to come, as the test has said last."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self.lasting: Fault | None = None
        self.requests = 0
        self.lock = threading.Lock()

    def next(self) -> Fault | None:
        """Count a request, and give what becomes of it."""
        with self.lock:
            self.requests += 1
            return self.faults.pop(0) if self.faults else self.lasting


class _Connection:
    """Bytes from a client to the server and back. Requests have no bodies, so each arrives in one piece."""

    def __init__(self, client: socket.socket, upstream: str, plan: _Plan) -> None:
        host, _, port = upstream.rpartition(":")
        self._client, self._plan = client, plan
        self._server = socket.create_connection((host, int(port)))
        self._cuts = False
        for work in (self._requests, self._answers):
            threading.Thread(target=work, daemon=True).start()

    def _requests(self) -> None:
        with suppress(OSError):
            while request := self._client.recv(_CHUNK):
                match fault := self._plan.next():
                    case Fault.THROTTLED | Fault.BUSY:
                        self._client.sendall(f"HTTP/1.1 {fault.value} Later\r\nContent-Length: 0\r\n\r\n".encode())
                    case Fault.DROPPED:
                        self._reset()
                        return
                    case _:
                        self._cuts = fault is Fault.CUT
                        self._server.sendall(request)
        self._server.close()

    def _answers(self) -> None:
        with suppress(OSError):
            while answer := self._server.recv(_CHUNK):
                if self._cuts:
                    self._client.sendall(answer[: len(answer) // 2])
                    self._reset()
                    return
                self._client.sendall(answer)
        self._client.close()

    def _reset(self) -> None:
        self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        for end in (self._client, self._server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RD)
            end.close()


class Proxy:
    """A proxy in a process of its own: PyArrow holds Python's lock during some requests to Google's store."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.address = self._answer()

    def fail(self, *faults: Fault, lasting: Fault | None = None) -> None:
        """Let each of some faults take a request to come, and one all requests after these."""
        self._ask({"faults": [fault.name for fault in faults], "lasting": None if lasting is None else lasting.name})

    @property
    def requests(self) -> int:
        """How many requests there were."""
        return int(self._ask({})["requests"])

    @property
    def left(self) -> int:
        """How many of the faults are still to come."""
        return int(self._ask({})["left"])

    def _ask(self, said: dict[str, Any]) -> dict[str, int]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(said) + "\n")
        self._process.stdin.flush()
        answer: dict[str, int] = json.loads(self._answer())
        return answer

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@contextmanager
def proxied(upstream: str) -> Iterator[Proxy]:
    """Run a proxy before a server with some ``host:port``."""
    command = [sys.executable, str(Path(__file__)), upstream]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        try:
            yield Proxy(process)
        finally:
            process.kill()


def main(upstream: str) -> None:
    """Be a proxy until the standard input ends."""
    plan = _Plan()
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while True:
            _Connection(listener.accept()[0], upstream, plan)

    threading.Thread(target=accept, daemon=True).start()
    sys.stdout.write(f"127.0.0.1:{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    for line in sys.stdin:
        said = json.loads(line)
        with plan.lock:
            if said:
                plan.faults = [Fault[name] for name in said["faults"]]
                plan.lasting = None if said["lasting"] is None else Fault[said["lasting"]]
            state = {"requests": plan.requests, "left": len(plan.faults)}
        sys.stdout.write(json.dumps(state) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
