#!/usr/bin/env python3
"""Takes the picture of docs/pictures that a browser shows: the site of the documentation.

    make site && python scripts/take_pictures.py

Needs Chromium on ``PATH`` (Debian: ``apt-get install chromium``).
"""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from gpujoin._version import __version__

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
SITE = ROOT / "site"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        """Say nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder's files; give the address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()


def take(address: str, file: Path, width: int, height: int) -> None:
    """Have a browser show an address and save what it shows."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit(f"take_pictures: none of {', '.join(BROWSERS)} is on PATH")
    options = ["--headless", "--no-sandbox", "--hide-scrollbars", "--disable-gpu", "--virtual-time-budget=10000"]
    subprocess.run(
        [browser, *options, f"--window-size={width},{height}", f"--screenshot={file}", address],
        check=True, capture_output=True,
    )  # fmt: skip
    print(file)


def main() -> None:
    """Take the first page of the site, with the chooser of versions."""
    if not (SITE / "index.html").exists():
        sys.exit("take_pictures: no site/: run make site")
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(SITE, Path(folder) / __version__)
        versions = [{"version": __version__, "title": __version__, "aliases": ["latest"]}]
        (Path(folder) / "versions.json").write_text(json.dumps(versions))
        with served(Path(folder)) as address:
            take(f"{address}{__version__}/", PICTURES / "site.png", 1200, 800)


if __name__ == "__main__":
    main()
