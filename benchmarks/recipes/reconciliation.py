"""Reconciliation: what was booked of each account beside what the bank has, in two frames of pandas'.

`cogroup` gives a function the rows of both tables with one key. Spark exchanges and sorts both, and sends them to
Python; here both are exchanged as Arrow data, and the function gets them where they arrive.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from benchmarks.recipes.files import put, texts

TABLES = ("bookings", "statements", "accounts")


def write(folder: Path, rows: int) -> None:
    """Write the tables; ``rows`` are those of the bookings."""
    rng = np.random.default_rng(16)
    accounts = max(1, rows // 100)
    for name, count in (("bookings", rows), ("statements", rows * 9 // 10)):
        cents = {"account": rng.integers(0, accounts, count), "cents": rng.integers(1, 100_000, count)}
        put(folder, name, pa.table(cents), files=4)
    put(folder, "accounts", pa.table({"account": np.arange(accounts), "branch": texts("branch", accounts, 20)}))


def run(spark: SparkSession, folder: Path) -> Sequence[DataFrame]:  # noqa: ARG001 - every recipe takes it
    """Give the difference of both for each account of a branch."""

    def compared(booked: pd.DataFrame, stated: pd.DataFrame) -> pd.DataFrame:
        account = (booked if len(booked) else stated)["account"].iloc[0]
        missing = len(set(booked["cents"]).difference(stated["cents"]))
        difference = int(booked["cents"].sum() - stated["cents"].sum())
        return pd.DataFrame({"account": [account], "difference": [difference], "missing": [missing]})

    branch = spark.table("accounts").where("branch < 'branch 2'").select("account")
    bookings, statements = (spark.table(name).join(branch, "account", "left_semi") for name in TABLES[:2])
    together = bookings.groupBy("account").cogroup(statements.groupBy("account"))
    return [together.applyInPandas(compared, "account long, difference long, missing long")]
