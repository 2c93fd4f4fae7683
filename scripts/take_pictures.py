#!/usr/bin/env python3
"""Takes the pictures of docs/pictures that a browser shows: a report in a notebook, and the site of the documentation.

    make site && python scripts/take_pictures.py [explain] [site]

The seconds of explain.png are measured while it is taken, by the last of some runs of README's query over TPC-H at
scale 0.5. Take it where nothing else runs; the rows and the predicted numbers are the same anywhere:

    JAVA_HOME=$(scripts/java_home.sh) python scripts/take_pictures.py explain

Needs Chromium on ``PATH`` (Debian: ``apt-get install chromium``), and for the report the extra ``bench`` and Java.
"""

from __future__ import annotations

import argparse
import functools
import json
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from gpujoin._version import __version__

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
SITE = ROOT / "site"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SCALE = 0.5
"""Scale factor of TPC-H that is large enough for the query to be run here."""
RUNS = 4
"""The first starts the workers; a report shows the last."""
NOTEBOOK = "<style>body {font: 13px sans-serif; margin: 12px} td, th {padding: 2px 8px}</style>"


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


def take_explain() -> None:
    """The report of README's query after it has run, as a notebook shows it."""
    from pyspark.sql import SparkSession

    import gpujoin
    from benchmarks.data import tpch_directory

    data = tpch_directory(SCALE)
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    gpujoin.enable(spark)
    orders = spark.read.parquet(str(data / "orders.parquet"))
    lineitem = spark.read.parquet(str(data / "lineitem.parquet"))
    late = lineitem.where("l_receiptdate > l_commitdate")
    df = orders.join(late, orders.o_orderkey == late.l_orderkey).groupBy("o_orderpriority").count()
    for _ in range(RUNS):
        df.collect()
    report = gpujoin.metrics(df)._repr_html_().replace(str(data), "/data")
    spark.stop()
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "index.html"
        page.write_text(f"<!doctype html><meta charset=utf-8>{NOTEBOOK}{report}", encoding="utf-8")
        with served(page.parent) as address:
            take(address, PICTURES / "explain.png", 1150, 330)


def take_site() -> None:
    """The first page of the site, with the chooser of versions."""
    if not (SITE / "index.html").exists():
        sys.exit("take_pictures: no site/: run make site")
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(SITE, Path(folder) / __version__)
        versions = [{"version": __version__, "title": __version__, "aliases": ["latest"]}]
        (Path(folder) / "versions.json").write_text(json.dumps(versions))
        with served(Path(folder)) as address:
            take(f"{address}{__version__}/", PICTURES / "site.png", 1200, 800)


KINDS: dict[str, Callable[[], None]] = {"explain": take_explain, "site": take_site}


def main() -> None:
    """Take the named pictures, all by default."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("pictures", nargs="*", choices=[*KINDS, []], help="which (default: all)")
    for name in parser.parse_args().pictures or KINDS:
        KINDS[name]()


if __name__ == "__main__":
    main()
