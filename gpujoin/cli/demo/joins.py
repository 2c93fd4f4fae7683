"""The joins of the demo: of every type, over TPC-H tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from gpujoin.model.jointype import SparkJoinName

_IN_DUCKDB = {"left_semi": "semi", "left_anti": "anti"}


@dataclass(frozen=True, slots=True)
class DemoJoin:
    """A join of two queries, which Spark and DuckDB understand alike."""

    title: str
    """What it asks for, in a few words."""
    how: SparkJoinName
    """Join type, as ``DataFrame.join`` spells it."""
    left: str
    right: str
    """The two sides."""
    on: str | tuple[str, ...] | None
    """Condition over ``l`` and ``r``, or names of columns that both sides have."""

    def sides(self, spark: SparkSession) -> tuple[DataFrame, DataFrame, Any]:
        """The left side, the right side, and the ``on`` argument of ``DataFrame.join``."""
        from pyspark.sql.functions import expr

        left, right = spark.sql(self.left).alias("l"), spark.sql(self.right).alias("r")
        if isinstance(self.on, str):
            return left, right, expr(self.on)
        return left, right, None if self.on is None else list(self.on)

    @property
    def duckdb(self) -> str:
        """The join in DuckDB's SQL, with the columns in the same order."""
        joined = f"from ({self.left}) l {_IN_DUCKDB.get(self.how, self.how)} join ({self.right}) r"
        if isinstance(self.on, str):
            return f"{joined} on {self.on}"
        return joined if self.on is None else f"{joined} using ({', '.join(self.on)})"


JOINS: tuple[DemoJoin, ...] = (
    DemoJoin(
        "lines of orders", "inner",
        "select l_orderkey, l_partkey, l_quantity, l_extendedprice, l_shipdate from lineitem",
        "select o_orderkey, o_custkey, o_orderdate, o_totalprice from orders",
        "l_orderkey = o_orderkey",
    ),
    DemoJoin(
        "lines with their part", "inner",
        "select l_orderkey, l_linenumber, l_partkey, l_quantity from lineitem",
        "select p_partkey, p_name, p_brand, p_retailprice from part",
        "l_partkey = p_partkey",
    ),
    DemoJoin(
        "large orders of each customer", "left",
        "select c_custkey, c_name, c_acctbal from customer",
        "select o_custkey, o_orderkey, o_totalprice from orders",
        "c_custkey = o_custkey and o_totalprice > c_acctbal * 30",
    ),
    DemoJoin(
        "orders, the customer if a builder", "right",
        "select c_custkey, c_name, c_phone from customer where c_mktsegment = 'BUILDING'",
        "select o_custkey, o_orderkey, o_orderpriority from orders",
        "c_custkey = o_custkey",
    ),
    DemoJoin(
        "customers and parts by number", "full",
        "select c_custkey, c_name, c_acctbal from customer where c_nationkey < 20",
        "select p_partkey, p_mfgr, p_size from part where p_size > 10",
        "c_custkey = p_partkey",
    ),
    DemoJoin(
        "orders with a late line", "left_semi",
        "select o_orderkey, o_orderdate, o_orderpriority from orders",
        "select l_orderkey from lineitem where l_commitdate < l_receiptdate",
        "o_orderkey = l_orderkey",
    ),
    DemoJoin(
        "customers without orders", "left_anti",
        "select c_custkey, c_name, c_address, c_acctbal from customer",
        "select o_custkey from orders",
        "c_custkey = o_custkey",
    ),
    DemoJoin(
        "suppliers times nations", "cross",
        "select s_suppkey, s_name from supplier",
        "select n_nationkey, n_name from nation",
        None,
    ),
    DemoJoin(
        "cost of each line, USING 2 keys", "inner",
        "select l_partkey as partkey, l_suppkey as suppkey, cast(l_quantity as double) as quantity, l_comment "
        "from lineitem",
        "select ps_partkey as partkey, ps_suppkey as suppkey, ps_supplycost from partsupp",
        ("partkey", "suppkey"),
    ),
    DemoJoin(
        "order states, null-safe", "inner",
        "select o_orderkey, nullif(o_orderstatus, 'P') as status from orders",
        "select r_name, case r_regionkey when 0 then 'F' when 1 then 'O' end as state from region",
        "status is not distinct from state",
    ),
    DemoJoin(
        "same brand and container, strings", "inner",
        "select p_partkey, p_brand, p_container from part",
        "select p_partkey as small, p_brand as brand, p_container as container from part where p_size <= 5",
        "p_brand = brand and p_container = container",
    ),
    DemoJoin(
        "sold at list price, decimal key", "left",
        "select l_orderkey, l_linenumber, l_partkey, l_extendedprice from lineitem where l_quantity = 1",
        "select p_partkey, p_retailprice, p_type from part where p_size <> 7",
        "l_partkey = p_partkey and l_extendedprice = p_retailprice",
    ),
    DemoJoin(
        "orders of two suppliers, self join", "left_semi",
        "select l_orderkey, l_linenumber, l_suppkey, l_shipmode from lineitem",
        "select l_orderkey, l_suppkey from lineitem",
        "l.l_orderkey = r.l_orderkey and l.l_suppkey <> r.l_suppkey",
    ),
    DemoJoin(
        "nations a supplier could afford", "left",
        "select s_suppkey, s_acctbal from supplier",
        "select n_nationkey, n_name from nation",
        "s_acctbal > n_nationkey * 400",
    ),
    DemoJoin(
        "ordinary orders, LIKE condition", "left",
        "select c_custkey, c_mktsegment from customer",
        "select o_custkey, o_orderkey, o_comment from orders",
        "c_custkey = o_custkey and o_comment not like '%special%requests%'",
    ),
)  # fmt: skip
