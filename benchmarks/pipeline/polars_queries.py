"""The same queries by hand for Polars: money as unscaled integers, since Polars' own decimals are not Spark's."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import polars as pl

_MONEY = ("l_quantity", "l_extendedprice", "l_discount", "l_tax")


def _lines(folder: Path, *names: str) -> pl.LazyFrame:
    money = [pl.col(name).to_physical().cast(pl.Int64) for name in names if name in _MONEY]
    return pl.scan_parquet(folder / "lineitem.parquet").select(names).with_columns(money)


def q1(folder: Path) -> pl.LazyFrame:
    """Pricing summary."""
    price, discount, tax = pl.col("l_extendedprice"), pl.col("l_discount"), pl.col("l_tax")
    revenue = price * (100 - discount)
    lines = _lines(folder, *_MONEY, "l_returnflag", "l_linestatus", "l_shipdate")
    return (
        lines.filter(pl.col("l_shipdate") <= pl.date(1998, 9, 2))
        .group_by("l_returnflag", "l_linestatus")
        .agg(
            pl.col("l_quantity").sum(), price.sum().alias("base"), revenue.sum().alias("discounted"),
            (revenue * (100 + tax)).sum().alias("charge"), discount.sum().alias("discount"), pl.len(),
        )
    )  # fmt: skip


def q5(folder: Path) -> pl.LazyFrame:
    """Local supplier volume."""

    def table(name: str) -> pl.LazyFrame:
        return pl.scan_parquet(folder / f"{name}.parquet")

    nations = table("nation").join(
        table("region").filter(pl.col("r_name") == "ASIA"), left_on="n_regionkey", right_on="r_regionkey"
    )
    suppliers = table("supplier").join(nations, left_on="s_nationkey", right_on="n_nationkey")
    year = (pl.col("o_orderdate") >= pl.date(1994, 1, 1)) & (pl.col("o_orderdate") < pl.date(1995, 1, 1))
    orders = table("orders").filter(year).join(table("customer"), left_on="o_custkey", right_on="c_custkey")
    lines = _lines(folder, "l_orderkey", "l_suppkey", "l_extendedprice", "l_discount")
    joined = lines.join(suppliers, left_on="l_suppkey", right_on="s_suppkey").join(
        orders, left_on=["l_orderkey", "s_nationkey"], right_on=["o_orderkey", "c_nationkey"]
    )
    revenue = pl.col("l_extendedprice") * (100 - pl.col("l_discount"))
    return joined.group_by("n_name").agg(revenue.sum().alias("revenue"))


def q6(folder: Path) -> pl.LazyFrame:
    """Forecast of revenue change."""
    lines = _lines(folder, "l_quantity", "l_extendedprice", "l_discount", "l_shipdate")
    day, discount = pl.col("l_shipdate"), pl.col("l_discount")
    kept = lines.filter(
        (day >= pl.date(1994, 1, 1)) & (day < pl.date(1995, 1, 1)) & discount.is_between(5, 7)
        & (pl.col("l_quantity") < 2400)
    )  # fmt: skip
    return kept.select((pl.col("l_extendedprice") * discount).sum().alias("revenue"))


QUERIES = {"q1": q1, "q5": q5, "q6": q6}


def money(name: str, found: pl.DataFrame) -> dict[tuple[object, ...], Decimal]:
    """One of a query's sums by group, with its point."""
    keys, column, scale, _ = SUMS[name]
    return {tuple(row[key] for key in keys): Decimal(row[column]).scaleb(-scale) for row in found.iter_rows(named=True)}


SUMS: dict[str, tuple[tuple[str, ...], str, int, int]] = {
    "q1": (("l_returnflag", "l_linestatus"), "charge", 6, 3),
    "q5": (("n_name",), "revenue", 4, 0),
    "q6": ((), "revenue", 4, 0),
}
"""Group columns, a sum, its scale, and its place among the tree's aggregates: what is compared."""
