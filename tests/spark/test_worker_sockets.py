"""Options of the connections between the JVM and a Python worker."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from gpujoin.spark.worker.task import acknowledge_at_once


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has the option")
def test_connections_send_and_acknowledge_at_once(tmp_path: Path) -> None:
    file = (tmp_path / "file").open("w+")
    local, _ = socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as server, file, local:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
        with client, accepted:
            acknowledge_at_once()
            for connection in (client, accepted):
                assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK)
            accepted.sendall(b"still open")
            assert client.recv(10) == b"still open"
        file.write("still open")
