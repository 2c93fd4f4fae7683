"""The joins of the demo: of every type, over TPC-H tables, each with its DuckDB twin."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    Tables = Mapping[str, DataFrame]
    Sides = tuple[DataFrame, DataFrame, Any]


@dataclass(frozen=True, slots=True)
class DemoJoin:
    """One join, said twice."""

    title: str
    """What it asks for, in a few words."""
    how: str
    """Join type, as ``DataFrame.join`` spells it."""
    sides: Callable[[Tables], Sides]
    """From the TPC-H tables to the left side, the right side, and the ``on`` argument."""
    sql: str
    """The same for DuckDB, with the columns in the same order."""


def _lines_of_orders(t: Tables) -> Sides:
    lines = t["lineitem"].select("l_orderkey", "l_partkey", "l_quantity", "l_extendedprice", "l_shipdate")
    orders = t["orders"].select("o_orderkey", "o_custkey", "o_orderdate", "o_totalprice")
    return lines, orders, lines.l_orderkey == orders.o_orderkey


def _lines_with_part(t: Tables) -> Sides:
    lines = t["lineitem"].select("l_orderkey", "l_linenumber", "l_partkey", "l_quantity")
    parts = t["part"].select("p_partkey", "p_name", "p_brand", "p_retailprice")
    return lines, parts, lines.l_partkey == parts.p_partkey


def _large_orders(t: Tables) -> Sides:
    customers = t["customer"].select("c_custkey", "c_name", "c_acctbal")
    orders = t["orders"].select("o_custkey", "o_orderkey", "o_totalprice")
    on = (customers.c_custkey == orders.o_custkey) & (orders.o_totalprice > customers.c_acctbal * 30)
    return customers, orders, on


def _orders_of_builders(t: Tables) -> Sides:
    builders = t["customer"].where("c_mktsegment = 'BUILDING'").select("c_custkey", "c_name", "c_phone")
    orders = t["orders"].select("o_custkey", "o_orderkey", "o_orderpriority")
    return builders, orders, builders.c_custkey == orders.o_custkey


def _same_number(t: Tables) -> Sides:
    customers = t["customer"].where("c_nationkey < 20").select("c_custkey", "c_name", "c_acctbal")
    parts = t["part"].where("p_size > 10").select("p_partkey", "p_mfgr", "p_size")
    return customers, parts, customers.c_custkey == parts.p_partkey


def _late_orders(t: Tables) -> Sides:
    orders = t["orders"].select("o_orderkey", "o_orderdate", "o_orderpriority")
    late = t["lineitem"].where("l_commitdate < l_receiptdate").select("l_orderkey")
    return orders, late, orders.o_orderkey == late.l_orderkey


def _without_orders(t: Tables) -> Sides:
    customers = t["customer"].select("c_custkey", "c_name", "c_address", "c_acctbal")
    orders = t["orders"].select("o_custkey")
    return customers, orders, customers.c_custkey == orders.o_custkey


def _every_pair(t: Tables) -> Sides:
    return t["supplier"].select("s_suppkey", "s_name"), t["nation"].select("n_nationkey", "n_name"), None


def _cost_of_lines(t: Tables) -> Sides:
    lines = t["lineitem"].selectExpr(
        "l_partkey as partkey", "l_suppkey as suppkey", "cast(l_quantity as double) as quantity", "l_comment"
    )
    costs = t["partsupp"].selectExpr("ps_partkey as partkey", "ps_suppkey as suppkey", "ps_supplycost")
    return lines, costs, ["partkey", "suppkey"]


def _states_with_unknown(t: Tables) -> Sides:
    orders = t["orders"].selectExpr("o_orderkey", "nullif(o_orderstatus, 'P') as status")
    states = t["region"].selectExpr("r_name", "case r_regionkey when 0 then 'F' when 1 then 'O' end as state")
    return orders, states, orders.status.eqNullSafe(states.state)


def _same_brand_and_container(t: Tables) -> Sides:
    parts = t["part"].select("p_partkey", "p_brand", "p_container")
    small = t["part"].where("p_size <= 5")
    small = small.selectExpr("p_partkey as small", "p_brand as brand", "p_container as container")
    return parts, small, (parts.p_brand == small.brand) & (parts.p_container == small.container)


def _sold_at_list_price(t: Tables) -> Sides:
    lines = t["lineitem"].where("l_quantity = 1")
    lines = lines.select("l_orderkey", "l_linenumber", "l_partkey", "l_extendedprice")
    parts = t["part"].where("p_size <> 7").select("p_partkey", "p_retailprice", "p_type")
    return lines, parts, [lines.l_partkey == parts.p_partkey, lines.l_extendedprice == parts.p_retailprice]


def _two_suppliers(t: Tables) -> Sides:
    from pyspark.sql.functions import expr

    lines = t["lineitem"].select("l_orderkey", "l_linenumber", "l_suppkey", "l_shipmode")
    others = t["lineitem"].select("l_orderkey", "l_suppkey")
    on = expr("a.l_orderkey = b.l_orderkey and a.l_suppkey <> b.l_suppkey")
    return lines.alias("a"), others.alias("b"), on


def _affordable_nations(t: Tables) -> Sides:
    suppliers = t["supplier"].select("s_suppkey", "s_acctbal")
    nations = t["nation"].select("n_nationkey", "n_name")
    return suppliers, nations, suppliers.s_acctbal > nations.n_nationkey * 400


def _ordinary_orders(t: Tables) -> Sides:
    customers = t["customer"].select("c_custkey", "c_mktsegment")
    orders = t["orders"].select("o_custkey", "o_orderkey", "o_comment")
    on = (customers.c_custkey == orders.o_custkey) & ~orders.o_comment.like("%special%requests%")
    return customers, orders, on


JOINS: tuple[DemoJoin, ...] = (
    DemoJoin(
        "lines of orders", "inner", _lines_of_orders,
        "select l_orderkey, l_partkey, l_quantity, l_extendedprice, l_shipdate, "
        "o_orderkey, o_custkey, o_orderdate, o_totalprice from lineitem join orders on l_orderkey = o_orderkey",
    ),
    DemoJoin(
        "lines with their part", "inner", _lines_with_part,
        "select l_orderkey, l_linenumber, l_partkey, l_quantity, p_partkey, p_name, p_brand, p_retailprice "
        "from lineitem join part on l_partkey = p_partkey",
    ),
    DemoJoin(
        "large orders of each customer", "left", _large_orders,
        "select c_custkey, c_name, c_acctbal, o_custkey, o_orderkey, o_totalprice "
        "from customer left join orders on c_custkey = o_custkey and o_totalprice > c_acctbal * 30",
    ),
    DemoJoin(
        "orders, the customer if a builder", "right", _orders_of_builders,
        "select c_custkey, c_name, c_phone, o_custkey, o_orderkey, o_orderpriority "
        "from (from customer where c_mktsegment = 'BUILDING') right join orders on c_custkey = o_custkey",
    ),
    DemoJoin(
        "customers and parts by number", "full", _same_number,
        "select c_custkey, c_name, c_acctbal, p_partkey, p_mfgr, p_size from (from customer where c_nationkey < 20) "
        "full join (from part where p_size > 10) on c_custkey = p_partkey",
    ),
    DemoJoin(
        "orders with a late line", "left_semi", _late_orders,
        "select o_orderkey, o_orderdate, o_orderpriority from orders "
        "semi join (from lineitem where l_commitdate < l_receiptdate) on o_orderkey = l_orderkey",
    ),
    DemoJoin(
        "customers without orders", "left_anti", _without_orders,
        "select c_custkey, c_name, c_address, c_acctbal from customer anti join orders on c_custkey = o_custkey",
    ),
    DemoJoin(
        "suppliers times nations", "cross", _every_pair,
        "select s_suppkey, s_name, n_nationkey, n_name from supplier cross join nation",
    ),
    DemoJoin(
        "cost of each line, USING 2 keys", "inner", _cost_of_lines,
        "select l_partkey, l_suppkey, l_quantity::double, l_comment, ps_supplycost "
        "from lineitem join partsupp on l_partkey = ps_partkey and l_suppkey = ps_suppkey",
    ),
    DemoJoin(
        "order states, null-safe", "inner", _states_with_unknown,
        "select o_orderkey, nullif(o_orderstatus, 'P') as status, r_name, state from orders "
        "join (select r_name, case r_regionkey when 0 then 'F' when 1 then 'O' end as state from region) "
        "on nullif(o_orderstatus, 'P') is not distinct from state",
    ),
    DemoJoin(
        "same brand and container, strings", "inner", _same_brand_and_container,
        "select a.p_partkey, a.p_brand, a.p_container, b.p_partkey, b.p_brand, b.p_container "
        "from part a join part b on a.p_brand = b.p_brand and a.p_container = b.p_container where b.p_size <= 5",
    ),
    DemoJoin(
        "sold at list price, decimal key", "left", _sold_at_list_price,
        "select l_orderkey, l_linenumber, l_partkey, l_extendedprice, p_partkey, p_retailprice, p_type "
        "from (from lineitem where l_quantity = 1) "
        "left join (from part where p_size <> 7) on l_partkey = p_partkey and l_extendedprice = p_retailprice",
    ),
    DemoJoin(
        "orders of two suppliers, self join", "left_semi", _two_suppliers,
        "select l_orderkey, l_linenumber, l_suppkey, l_shipmode from lineitem a "
        "where exists (from lineitem b where a.l_orderkey = b.l_orderkey and a.l_suppkey <> b.l_suppkey)",
    ),
    DemoJoin(
        "nations a supplier could afford", "left", _affordable_nations,
        "select s_suppkey, s_acctbal, n_nationkey, n_name from supplier "
        "left join nation on s_acctbal > n_nationkey * 400",
    ),
    DemoJoin(
        "ordinary orders, LIKE condition", "left", _ordinary_orders,
        "select c_custkey, c_mktsegment, o_custkey, o_orderkey, o_comment from customer "
        "left join orders on c_custkey = o_custkey and o_comment not like '%special%requests%'",
    ),
)  # fmt: skip
