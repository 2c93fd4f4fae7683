"""A REST catalog of Iceberg that serves the tables of a folder, and writes none."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@contextmanager
def serving(folder: Path, config: Mapping[str, str]) -> Iterator[str]:
    """Serve the tables of a folder of a Hadoop catalog, each with settings such as credentials; gives the URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            match self.path.partition("?")[0].strip("/").split("/"):
                case ["v1", "config"]:
                    self._answer({"defaults": {}, "overrides": {}})
                case ["v1", "namespaces", name]:
                    self._answer({"namespace": [name], "properties": {}})
                case ["v1", "namespaces", space, "tables", name] if (folder / space / name).is_dir():
                    newest = max((folder / space / name / "metadata").glob("v*.metadata.json"), key=_version)
                    metadata = json.loads(newest.read_text())
                    self._answer({"metadata-location": str(newest), "metadata": metadata, "config": dict(config)})
                case _:
                    problem = {"message": f"no {self.path}", "type": "NoSuchTableException", "code": 404}
                    self._answer({"error": problem}, 404)

        def do_POST(self) -> None:
            """Take what a client measured."""
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(204)
            self.end_headers()

        def _answer(self, content: Any, status: int = 200) -> None:
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Be quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def _version(path: Path) -> int:
    return int(path.name.removeprefix("v").partition(".")[0])
