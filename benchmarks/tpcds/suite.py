"""The TPC-DS queries, and their tables as Parquet files, both from DuckDB's extension."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.answers import quoted
from benchmarks.data import cached_directory
from benchmarks.queries.suite import Suite, connect

TABLES = (
    "call_center", "catalog_page", "catalog_returns", "catalog_sales", "customer", "customer_address",
    "customer_demographics", "date_dim", "household_demographics", "income_band", "inventory", "item", "promotion",
    "reason", "ship_mode", "store", "store_returns", "store_sales", "time_dim", "warehouse", "web_page", "web_returns",
    "web_sales", "web_site",
)  # fmt: skip


def tpcds_directory(scale: float, cache: Path | None = None) -> Path:
    """Folder with ``<table>.parquet`` for each TPC-DS table of one scale; written first where it is not there yet.

    Scale 1 takes some 400 MB of Parquet, and half a minute. Raises as ``benchmarks.data.cached_directory``.
    """
    return cached_directory("tpcds", scale, _generate, cache)


def _generate(scale: float, into: Path) -> None:
    with connect("tpcds") as connection:
        connection.execute(f"CALL dsdgen(sf = {scale:g})")
        for table in TABLES:
            connection.execute(f"COPY {table} TO '{quoted(into / f'{table}.parquet')}' (FORMAT parquet)")


def quoted_names(text: str) -> str:
    """Quote names such as ``"order count"`` as Spark does: with backticks. The texts hold nothing else in quotes."""
    return re.sub(r'"([^"]*)"', r"`\1`", text)


SUITE = Suite(
    name="tpcds", title="TPC-DS", tables=TABLES, queries=99, at_scale=tpcds_directory, in_spark=quoted_names,
)  # fmt: skip
"""The 99 queries of TPC-DS."""
