"""The 22 queries of TPC-H as Polars expressions, for the Polars engine on the CPU and the one on a GPU.

Decimals are read as doubles, as Polars' users do: a product of Polars' decimals keeps the scale of its operands.
Columns are named as in the SQL texts. This module imports Polars alone, so that it runs with the older Polars that
cudf-polars needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import polars as pl
from polars import col

Query: TypeAlias = Callable[["Tables"], pl.LazyFrame]


@dataclass(frozen=True)
class Tables:
    """The tables of TPC-H in a folder, as lazy frames."""

    folder: Path
    """Holds ``<table>.parquet``."""

    def __getattr__(self, name: str) -> pl.LazyFrame:
        """Scan a table, with its decimals as doubles."""
        if name.startswith("_"):
            raise AttributeError(name)
        frame = pl.scan_parquet(self.folder / f"{name}.parquet")
        schema = frame.collect_schema()
        return frame.with_columns(col(c).cast(pl.Float64) for c, t in schema.items() if t.is_decimal())


_REVENUE = col("l_extendedprice") * (1 - col("l_discount"))


def _day(year: int, month: int = 1, day: int = 1) -> pl.Expr:
    return pl.date(year, month, day)


def _within(column: str, start: pl.Expr, end: pl.Expr) -> pl.Expr:
    """Whether a column is in a half-open range."""
    return (col(column) >= start) & (col(column) < end)


def q1(t: Tables) -> pl.LazyFrame:
    """Pricing summary."""
    price, quantity = col("l_extendedprice"), col("l_quantity")
    return (
        t.lineitem.filter(col("l_shipdate") <= _day(1998, 9, 2))
        .group_by("l_returnflag", "l_linestatus")
        .agg(
            quantity.sum().alias("sum_qty"),
            price.sum().alias("sum_base_price"),
            _REVENUE.sum().alias("sum_disc_price"),
            (_REVENUE * (1 + col("l_tax"))).sum().alias("sum_charge"),
            quantity.mean().alias("avg_qty"),
            price.mean().alias("avg_price"),
            col("l_discount").mean().alias("avg_disc"),
            pl.len().alias("count_order"),
        )
        .sort("l_returnflag", "l_linestatus")
    )


def q2(t: Tables) -> pl.LazyFrame:
    """Minimum cost supplier."""
    nations = t.nation.join(t.region.filter(col("r_name") == "EUROPE"), left_on="n_regionkey", right_on="r_regionkey")
    offers = t.partsupp.join(t.supplier, left_on="ps_suppkey", right_on="s_suppkey").join(
        nations, left_on="s_nationkey", right_on="n_nationkey"
    )
    parts = t.part.filter((col("p_size") == 15) & col("p_type").str.ends_with("BRASS"))
    offers = offers.join(parts, left_on="ps_partkey", right_on="p_partkey")
    least = offers.group_by("ps_partkey").agg(col("ps_supplycost").min().alias("least"))
    return (
        offers.join(least, on="ps_partkey")
        .filter(col("ps_supplycost") == col("least"))
        .select(
            "s_acctbal",
            "s_name",
            "n_name",
            col("ps_partkey").alias("p_partkey"),
            "p_mfgr",
            "s_address",
            "s_phone",
            "s_comment",
        )
        .sort("s_acctbal", "n_name", "s_name", "p_partkey", descending=[True, False, False, False])
        .limit(100)
    )


def q3(t: Tables) -> pl.LazyFrame:
    """Shipping priority."""
    customers = t.customer.filter(col("c_mktsegment") == "BUILDING")
    orders = t.orders.filter(col("o_orderdate") < _day(1995, 3, 15))
    lines = t.lineitem.filter(col("l_shipdate") > _day(1995, 3, 15))
    return (
        lines.join(
            orders.join(customers, left_on="o_custkey", right_on="c_custkey"),
            left_on="l_orderkey",
            right_on="o_orderkey",
        )
        .group_by("l_orderkey", "o_orderdate", "o_shippriority")
        .agg(_REVENUE.sum().alias("revenue"))
        .select("l_orderkey", "revenue", "o_orderdate", "o_shippriority")
        .sort("revenue", "o_orderdate", descending=[True, False])
        .limit(10)
    )


def q4(t: Tables) -> pl.LazyFrame:
    """Order priority checking."""
    late = t.lineitem.filter(col("l_commitdate") < col("l_receiptdate"))
    return (
        t.orders.filter(_within("o_orderdate", _day(1993, 7), _day(1993, 10)))
        .join(late, left_on="o_orderkey", right_on="l_orderkey", how="semi")
        .group_by("o_orderpriority")
        .agg(pl.len().alias("order_count"))
        .sort("o_orderpriority")
    )


def q5(t: Tables) -> pl.LazyFrame:
    """Local supplier volume."""
    nations = t.nation.join(t.region.filter(col("r_name") == "ASIA"), left_on="n_regionkey", right_on="r_regionkey")
    suppliers = t.supplier.join(nations, left_on="s_nationkey", right_on="n_nationkey")
    orders = t.orders.filter(_within("o_orderdate", _day(1994), _day(1995)))
    orders = orders.join(t.customer, left_on="o_custkey", right_on="c_custkey")
    return (
        t.lineitem.join(suppliers, left_on="l_suppkey", right_on="s_suppkey")
        .join(orders, left_on=["l_orderkey", "s_nationkey"], right_on=["o_orderkey", "c_nationkey"])
        .group_by("n_name")
        .agg(_REVENUE.sum().alias("revenue"))
        .sort("revenue", descending=True)
    )


def q6(t: Tables) -> pl.LazyFrame:
    """Forecast of revenue change."""
    chosen = _within("l_shipdate", _day(1994), _day(1995)) & col("l_discount").is_between(0.049, 0.071)
    return t.lineitem.filter(chosen & (col("l_quantity") < 24)).select(
        (col("l_extendedprice") * col("l_discount")).sum().alias("revenue")
    )


def q7(t: Tables) -> pl.LazyFrame:
    """Volume of shipping between two nations."""
    nations = t.nation.filter(col("n_name").is_in(["FRANCE", "GERMANY"])).select("n_nationkey", "n_name")
    suppliers = t.supplier.join(
        nations.rename({"n_name": "supp_nation"}), left_on="s_nationkey", right_on="n_nationkey"
    )
    customers = t.customer.join(
        nations.rename({"n_name": "cust_nation"}), left_on="c_nationkey", right_on="n_nationkey"
    )
    orders = t.orders.join(customers, left_on="o_custkey", right_on="c_custkey")
    return (
        t.lineitem.filter(col("l_shipdate").is_between(_day(1995), _day(1996, 12, 31)))
        .join(suppliers, left_on="l_suppkey", right_on="s_suppkey")
        .join(orders, left_on="l_orderkey", right_on="o_orderkey")
        .filter(col("supp_nation") != col("cust_nation"))
        .with_columns(col("l_shipdate").dt.year().alias("l_year"))
        .group_by("supp_nation", "cust_nation", "l_year")
        .agg(_REVENUE.sum().alias("revenue"))
        .sort("supp_nation", "cust_nation", "l_year")
    )


def q8(t: Tables) -> pl.LazyFrame:
    """National share of a market."""
    america = t.nation.join(t.region.filter(col("r_name") == "AMERICA"), left_on="n_regionkey", right_on="r_regionkey")
    customers = t.customer.join(
        america.select("n_nationkey"), left_on="c_nationkey", right_on="n_nationkey", how="semi"
    )
    orders = t.orders.filter(col("o_orderdate").is_between(_day(1995), _day(1996, 12, 31)))
    orders = orders.join(customers, left_on="o_custkey", right_on="c_custkey", how="semi")
    suppliers = t.supplier.join(t.nation.select("n_nationkey", "n_name"), left_on="s_nationkey", right_on="n_nationkey")
    parts = t.part.filter(col("p_type") == "ECONOMY ANODIZED STEEL")
    return (
        t.lineitem.join(parts, left_on="l_partkey", right_on="p_partkey", how="semi")
        .join(orders, left_on="l_orderkey", right_on="o_orderkey")
        .join(suppliers, left_on="l_suppkey", right_on="s_suppkey")
        .with_columns(col("o_orderdate").dt.year().alias("o_year"), _REVENUE.alias("volume"))
        .with_columns(pl.when(col("n_name") == "BRAZIL").then(col("volume")).otherwise(0.0).alias("brazil"))
        .group_by("o_year")
        .agg((col("brazil").sum() / col("volume").sum()).alias("mkt_share"))
        .sort("o_year")
    )


def q9(t: Tables) -> pl.LazyFrame:
    """Profit by nation and year."""
    parts = t.part.filter(col("p_name").str.contains("green", literal=True))
    suppliers = t.supplier.join(t.nation, left_on="s_nationkey", right_on="n_nationkey").select("s_suppkey", "n_name")
    profit = _REVENUE - col("ps_supplycost") * col("l_quantity")
    return (
        t.lineitem.join(parts, left_on="l_partkey", right_on="p_partkey", how="semi")
        .join(t.partsupp, left_on=["l_partkey", "l_suppkey"], right_on=["ps_partkey", "ps_suppkey"])
        .join(suppliers, left_on="l_suppkey", right_on="s_suppkey")
        .join(t.orders, left_on="l_orderkey", right_on="o_orderkey")
        .with_columns(col("o_orderdate").dt.year().alias("o_year"), col("n_name").alias("nation"))
        .group_by("nation", "o_year")
        .agg(profit.sum().alias("sum_profit"))
        .sort("nation", "o_year", descending=[False, True])
    )


def q10(t: Tables) -> pl.LazyFrame:
    """Returned items."""
    orders = t.orders.filter(_within("o_orderdate", _day(1993, 10), _day(1994)))
    revenue = (
        t.lineitem.filter(col("l_returnflag") == "R")
        .join(orders, left_on="l_orderkey", right_on="o_orderkey")
        .group_by("o_custkey")
        .agg(_REVENUE.sum().alias("revenue"))
    )
    return (
        revenue.join(t.customer, left_on="o_custkey", right_on="c_custkey")
        .join(t.nation, left_on="c_nationkey", right_on="n_nationkey")
        .select(
            col("o_custkey").alias("c_custkey"),
            "c_name",
            "revenue",
            "c_acctbal",
            "n_name",
            "c_address",
            "c_phone",
            "c_comment",
        )
        .sort("revenue", descending=True)
        .limit(20)
    )


def q11(t: Tables) -> pl.LazyFrame:
    """Important stock."""
    germany = t.nation.filter(col("n_name") == "GERMANY")
    suppliers = t.supplier.join(germany, left_on="s_nationkey", right_on="n_nationkey", how="semi")
    offers = t.partsupp.join(suppliers, left_on="ps_suppkey", right_on="s_suppkey", how="semi")
    value = (col("ps_supplycost") * col("ps_availqty")).sum()
    total = offers.select((value * 0.0001).alias("least"))
    return (
        offers.group_by("ps_partkey")
        .agg(value.alias("value"))
        .join(total, how="cross")
        .filter(col("value") > col("least"))
        .select("ps_partkey", "value")
        .sort("value", descending=True)
    )


def q12(t: Tables) -> pl.LazyFrame:
    """Shipping modes and order priority."""
    lines = t.lineitem.filter(
        col("l_shipmode").is_in(["MAIL", "SHIP"])
        & (col("l_commitdate") < col("l_receiptdate"))
        & (col("l_shipdate") < col("l_commitdate"))
        & _within("l_receiptdate", _day(1994), _day(1995))
    )
    urgent = col("o_orderpriority").is_in(["1-URGENT", "2-HIGH"]).cast(pl.Int64)
    return (
        lines.join(t.orders, left_on="l_orderkey", right_on="o_orderkey")
        .group_by("l_shipmode")
        .agg(urgent.sum().alias("high_line_count"), (1 - urgent).sum().alias("low_line_count"))
        .sort("l_shipmode")
    )


def q13(t: Tables) -> pl.LazyFrame:
    """Distribution of customers."""
    orders = t.orders.filter(~col("o_comment").str.contains("special.*requests"))
    return (
        t.customer.join(orders, left_on="c_custkey", right_on="o_custkey", how="left")
        .group_by("c_custkey")
        .agg(col("o_orderkey").count().alias("c_count"))
        .group_by("c_count")
        .agg(pl.len().alias("custdist"))
        .sort("custdist", "c_count", descending=True)
    )


def q14(t: Tables) -> pl.LazyFrame:
    """Effect of a promotion."""
    lines = t.lineitem.filter(_within("l_shipdate", _day(1995, 9), _day(1995, 10)))
    promotion = pl.when(col("p_type").str.starts_with("PROMO")).then(_REVENUE).otherwise(0.0)
    return lines.join(t.part, left_on="l_partkey", right_on="p_partkey").select(
        (100 * promotion.sum() / _REVENUE.sum()).alias("promo_revenue")
    )


def q15(t: Tables) -> pl.LazyFrame:
    """Top supplier."""
    revenue = (
        t.lineitem.filter(_within("l_shipdate", _day(1996), _day(1996, 4)))
        .group_by("l_suppkey")
        .agg(_REVENUE.sum().round(4).alias("total_revenue"))
    )
    greatest = revenue.select(col("total_revenue").max().alias("greatest"))
    return (
        revenue.join(greatest, how="cross")
        .filter(col("total_revenue") == col("greatest"))
        .join(t.supplier, left_on="l_suppkey", right_on="s_suppkey")
        .select(col("l_suppkey").alias("s_suppkey"), "s_name", "s_address", "s_phone", "total_revenue")
        .sort("s_suppkey")
    )


def q16(t: Tables) -> pl.LazyFrame:
    """Parts and their suppliers."""
    complained = t.supplier.filter(col("s_comment").str.contains("Customer.*Complaints"))
    parts = t.part.filter(
        (col("p_brand") != "Brand#45")
        & ~col("p_type").str.starts_with("MEDIUM POLISHED")
        & col("p_size").is_in([49, 14, 23, 45, 19, 3, 36, 9])
    )
    return (
        t.partsupp.join(complained, left_on="ps_suppkey", right_on="s_suppkey", how="anti")
        .join(parts, left_on="ps_partkey", right_on="p_partkey")
        .group_by("p_brand", "p_type", "p_size")
        .agg(col("ps_suppkey").n_unique().alias("supplier_cnt"))
        .sort("supplier_cnt", "p_brand", "p_type", "p_size", descending=[True, False, False, False])
    )


def q17(t: Tables) -> pl.LazyFrame:
    """Revenue of small orders."""
    parts = t.part.filter((col("p_brand") == "Brand#23") & (col("p_container") == "MED BOX"))
    lines = t.lineitem.join(parts, left_on="l_partkey", right_on="p_partkey", how="semi")
    means = lines.group_by("l_partkey").agg((0.2 * col("l_quantity").mean()).alias("limit"))
    return (
        lines.join(means, on="l_partkey")
        .filter(col("l_quantity") < col("limit"))
        .select(pl.when(pl.len() > 0).then(col("l_extendedprice").sum() / 7.0).alias("avg_yearly"))
    )


def q18(t: Tables) -> pl.LazyFrame:
    """Customers of large orders."""
    quantities = t.lineitem.group_by("l_orderkey").agg(col("l_quantity").sum().alias("sum_quantity"))
    return (
        quantities.filter(col("sum_quantity") > 300)
        .join(t.orders, left_on="l_orderkey", right_on="o_orderkey")
        .join(t.customer, left_on="o_custkey", right_on="c_custkey")
        .select(
            "c_name",
            col("o_custkey").alias("c_custkey"),
            col("l_orderkey").alias("o_orderkey"),
            "o_orderdate",
            "o_totalprice",
            "sum_quantity",
        )
        .sort("o_totalprice", "o_orderdate", descending=[True, False])
        .limit(100)
    )


def q19(t: Tables) -> pl.LazyFrame:
    """Revenue under one of three conditions."""
    lines = t.lineitem.filter(
        col("l_shipmode").is_in(["AIR", "AIR REG"]) & (col("l_shipinstruct") == "DELIVER IN PERSON")
    )

    def offer(brand: str, containers: list[str], least: int, largest: int) -> pl.Expr:
        return (
            (col("p_brand") == brand)
            & col("p_container").is_in(containers)
            & col("l_quantity").is_between(least, least + 10)
            & col("p_size").is_between(1, largest)
        )

    chosen = (
        offer("Brand#12", ["SM CASE", "SM BOX", "SM PACK", "SM PKG"], 1, 5)
        | offer("Brand#23", ["MED BAG", "MED BOX", "MED PKG", "MED PACK"], 10, 10)
        | offer("Brand#34", ["LG CASE", "LG BOX", "LG PACK", "LG PKG"], 20, 15)
    )
    joined = lines.join(t.part, left_on="l_partkey", right_on="p_partkey")
    return joined.filter(chosen).select(_REVENUE.sum().alias("revenue"))


def q20(t: Tables) -> pl.LazyFrame:
    """Suppliers with more than they need of a part."""
    canada = t.nation.filter(col("n_name") == "CANADA")
    parts = t.part.filter(col("p_name").str.starts_with("forest"))
    sold = (
        t.lineitem.filter(_within("l_shipdate", _day(1994), _day(1995)))
        .group_by("l_partkey", "l_suppkey")
        .agg((0.5 * col("l_quantity").sum()).alias("half"))
    )
    plenty = (
        t.partsupp.join(parts, left_on="ps_partkey", right_on="p_partkey", how="semi")
        .join(sold, left_on=["ps_partkey", "ps_suppkey"], right_on=["l_partkey", "l_suppkey"])
        .filter(col("ps_availqty") > col("half"))
    )
    return (
        t.supplier.join(canada, left_on="s_nationkey", right_on="n_nationkey", how="semi")
        .join(plenty, left_on="s_suppkey", right_on="ps_suppkey", how="semi")
        .select("s_name", "s_address")
        .sort("s_name")
    )


def q21(t: Tables) -> pl.LazyFrame:
    """Suppliers that alone kept orders waiting."""
    arabia = t.nation.filter(col("n_name") == "SAUDI ARABIA")
    suppliers = t.supplier.join(arabia, left_on="s_nationkey", right_on="n_nationkey", how="semi")
    late = t.lineitem.filter(col("l_receiptdate") > col("l_commitdate"))
    several = t.lineitem.group_by("l_orderkey").agg(col("l_suppkey").n_unique().alias("suppliers"))
    alone = late.group_by("l_orderkey").agg(col("l_suppkey").n_unique().alias("late_suppliers"))
    return (
        late.join(suppliers, left_on="l_suppkey", right_on="s_suppkey")
        .join(several.filter(col("suppliers") > 1), on="l_orderkey", how="semi")
        .join(alone.filter(col("late_suppliers") == 1), on="l_orderkey", how="semi")
        .join(t.orders.filter(col("o_orderstatus") == "F"), left_on="l_orderkey", right_on="o_orderkey", how="semi")
        .group_by("s_name")
        .agg(pl.len().alias("numwait"))
        .sort("numwait", "s_name", descending=[True, False])
        .limit(100)
    )


def q22(t: Tables) -> pl.LazyFrame:
    """Customers who may order again."""
    customers = t.customer.with_columns(col("c_phone").str.slice(0, 2).alias("cntrycode")).filter(
        col("cntrycode").is_in(["13", "31", "23", "29", "30", "18", "17"])
    )
    mean = customers.filter(col("c_acctbal") > 0).select(col("c_acctbal").mean().alias("mean"))
    return (
        customers.join(mean, how="cross")
        .filter(col("c_acctbal") > col("mean"))
        .join(t.orders, left_on="c_custkey", right_on="o_custkey", how="anti")
        .group_by("cntrycode")
        .agg(pl.len().alias("numcust"), col("c_acctbal").sum().alias("totacctbal"))
        .sort("cntrycode")
    )


QUERIES: dict[int, Query] = {
    1: q1, 2: q2, 3: q3, 4: q4, 5: q5, 6: q6, 7: q7, 8: q8, 9: q9, 10: q10, 11: q11, 12: q12, 13: q13, 14: q14, 15: q15,
    16: q16, 17: q17, 18: q18, 19: q19, 20: q20, 21: q21, 22: q22,
}  # fmt: skip
"""The queries by number."""
