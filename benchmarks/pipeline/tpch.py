"""TPC-H queries as relational trees, each up to its partial aggregation, beside the SQL of the same rows."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa

from gpujoin.model.aggregates import AggregateFunction
from gpujoin.model.expressions import Function, call, left, right, when
from gpujoin.model.jointype import Side
from gpujoin.model.relations import PartialAggregate
from gpujoin.testing import cells
from tests.oracle.aggregates import Finals, group_key
from tests.trees import Aggregate, Tree, average, count, total


@dataclass(frozen=True)
class Query:
    """A query's tree and the SQL that gives its final groups.

    Attributes
    ----------
    tree : callable
        From the folder of the tables to the tree.
    sql : str
        Group columns, then for each call its final value; averages as sum and count.
    """

    tree: Callable[[Path], Tree]
    sql: str


def _table(folder: Path, name: str, columns: str, where: object = None) -> Tree:
    return Tree.scan(folder / f"{name}.parquet", columns.split(), where)  # type: ignore[arg-type]


def _day(text: str) -> dt.date:
    return dt.date.fromisoformat(text)


REVENUE = left("l_extendedprice") * (1 - left("l_discount"))


def q1(folder: Path) -> Tree:
    """Pricing summary."""
    lines = _table(
        folder, "lineitem",
        "l_quantity l_extendedprice l_discount l_tax l_returnflag l_linestatus l_shipdate",
        left("l_shipdate") <= _day("1998-09-02"),
    )  # fmt: skip
    return lines.group(
        "l_returnflag", "l_linestatus",
        quantity=total(left("l_quantity")), base=total(left("l_extendedprice")), discounted=total(REVENUE),
        charge=total(REVENUE * (1 + left("l_tax"))), mean_quantity=average(left("l_quantity")),
        mean_price=average(left("l_extendedprice")), mean_discount=average(left("l_discount")), lines=count(),
    )  # fmt: skip


def q3(folder: Path) -> Tree:
    """Shipping priority."""
    customers = _table(folder, "customer", "c_custkey c_mktsegment", left("c_mktsegment") == "BUILDING")
    orders = _table(
        folder,
        "orders",
        "o_orderkey o_custkey o_orderdate o_shippriority",
        left("o_orderdate") < _day("1995-03-15"),
    )
    lines = _table(
        folder,
        "lineitem",
        "l_orderkey l_extendedprice l_discount l_shipdate",
        left("l_shipdate") > _day("1995-03-15"),
    )
    mine = orders.join(customers, {"o_custkey": "c_custkey"}, keep=("o_orderkey", "o_orderdate", "o_shippriority"))
    joined = mine.join(lines, {"o_orderkey": "l_orderkey"}, build=Side.LEFT)
    return joined.group("l_orderkey", "o_orderdate", "o_shippriority", revenue=total(REVENUE))


def q5(folder: Path) -> Tree:
    """Local supplier volume."""
    region = _table(folder, "region", "r_regionkey r_name", left("r_name") == "ASIA")
    nation = _table(folder, "nation", "n_nationkey n_name n_regionkey")
    nations = nation.join(region, {"n_regionkey": "r_regionkey"}, keep=("n_nationkey", "n_name"))
    suppliers = _table(folder, "supplier", "s_suppkey s_nationkey").join(
        nations, {"s_nationkey": "n_nationkey"}, keep=("s_suppkey", "s_nationkey", "n_name")
    )
    customers = _table(folder, "customer", "c_custkey c_nationkey")
    orders = _table(
        folder, "orders", "o_orderkey o_custkey o_orderdate",
        (left("o_orderdate") >= _day("1994-01-01")) & (left("o_orderdate") < _day("1995-01-01")),
    ).join(customers, {"o_custkey": "c_custkey"}, keep=("o_orderkey", "c_nationkey"))  # fmt: skip
    lines = _table(folder, "lineitem", "l_orderkey l_suppkey l_extendedprice l_discount")
    joined = lines.join(
        suppliers, {"l_suppkey": "s_suppkey"},
        keep=("l_orderkey", "l_extendedprice", "l_discount", "s_nationkey", "n_name"),
    ).join(orders, {"l_orderkey": "o_orderkey", "s_nationkey": "c_nationkey"})  # fmt: skip
    return joined.group("n_name", revenue=total(REVENUE))


def q6(folder: Path) -> Tree:
    """Forecast of revenue change."""
    lines = _table(
        folder, "lineitem", "l_quantity l_extendedprice l_discount l_shipdate",
        (left("l_shipdate") >= _day("1994-01-01")) & (left("l_shipdate") < _day("1995-01-01"))
        & (left("l_discount") >= Decimal("0.05")) & (left("l_discount") <= Decimal("0.07"))
        & (left("l_quantity") < Decimal("24.00")),
    )  # fmt: skip
    return lines.group(revenue=total(left("l_extendedprice") * left("l_discount")))


def q10(folder: Path) -> Tree:
    """Returned items."""
    nation = _table(folder, "nation", "n_nationkey n_name")
    customers = _table(folder, "customer", "c_custkey c_name c_acctbal c_nationkey c_phone").join(
        nation, {"c_nationkey": "n_nationkey"}, keep=("c_custkey", "c_name", "c_acctbal", "c_phone", "n_name")
    )
    orders = _table(
        folder, "orders", "o_orderkey o_custkey o_orderdate",
        (left("o_orderdate") >= _day("1993-10-01")) & (left("o_orderdate") < _day("1994-01-01")),
    ).join(customers, {"o_custkey": "c_custkey"})  # fmt: skip
    lines = _table(
        folder, "lineitem", "l_orderkey l_extendedprice l_discount l_returnflag", left("l_returnflag") == "R"
    )
    joined = lines.join(orders, {"l_orderkey": "o_orderkey"})
    return joined.group("c_custkey", "c_name", "c_acctbal", "c_phone", "n_name", revenue=total(REVENUE))


def q12(folder: Path) -> Tree:
    """Shipping modes."""
    lines = _table(
        folder, "lineitem", "l_orderkey l_shipmode l_commitdate l_receiptdate l_shipdate",
        left("l_shipmode").is_in(["MAIL", "SHIP"]) & (left("l_commitdate") < left("l_receiptdate"))
        & (left("l_shipdate") < left("l_commitdate")) & (left("l_receiptdate") >= _day("1994-01-01"))
        & (left("l_receiptdate") < _day("1995-01-01")),
    ).select("l_orderkey", "l_shipmode")  # fmt: skip
    orders = _table(folder, "orders", "o_orderkey o_orderpriority")
    urgent = (left("o_orderpriority") == "1-URGENT") | (left("o_orderpriority") == "2-HIGH")
    joined = lines.join(orders, {"l_orderkey": "o_orderkey"}, build=Side.LEFT)
    return joined.group(
        "l_shipmode",
        high=total(when(urgent, 1).else_(0)),
        low=total(when(~urgent, 1).else_(0)),
    )


def q14(folder: Path) -> Tree:
    """Promotion effect."""
    lines = _table(
        folder, "lineitem", "l_partkey l_extendedprice l_discount l_shipdate",
        (left("l_shipdate") >= _day("1995-09-01")) & (left("l_shipdate") < _day("1995-10-01")),
    )  # fmt: skip
    joined = lines.join(_table(folder, "part", "p_partkey p_type"), {"l_partkey": "p_partkey"})
    nothing = call(Function.SUBTRACT, REVENUE, REVENUE)
    promotion = when(left("p_type").like("PROMO%"), REVENUE).else_(nothing)
    return joined.group(promotion=total(promotion), revenue=total(REVENUE))


def q18(folder: Path) -> Tree:
    """Large volume customers: the quantity of each order, of which Spark then keeps the large ones."""
    return _table(folder, "lineitem", "l_orderkey l_quantity").group("l_orderkey", quantity=total(left("l_quantity")))


def q19(folder: Path) -> Tree:
    """Discounted revenue, with a disjunction over both sides."""
    lines = _table(
        folder, "lineitem", "l_partkey l_quantity l_extendedprice l_discount l_shipinstruct l_shipmode",
        left("l_shipmode").is_in(["AIR", "AIR REG"]) & (left("l_shipinstruct") == "DELIVER IN PERSON"),
    ).select("l_partkey", "l_quantity", "l_extendedprice", "l_discount")  # fmt: skip
    parts = _table(folder, "part", "p_partkey p_brand p_size p_container")

    def case(brand: str, containers: list[str], low: int, size: int) -> object:
        return (
            (right("p_brand") == brand) & right("p_container").is_in(containers)
            & (left("l_quantity") >= low) & (left("l_quantity") <= low + 10) & right("p_size").between(1, size)
        )  # fmt: skip

    condition = (
        case("Brand#12", ["SM CASE", "SM BOX", "SM PACK", "SM PKG"], 1, 5)
        | case("Brand#23", ["MED BAG", "MED BOX", "MED PKG", "MED PACK"], 10, 10)  # type: ignore[operator]
        | case("Brand#34", ["LG CASE", "LG BOX", "LG PACK", "LG PKG"], 20, 15)
    )
    joined = lines.join(parts, {"l_partkey": "p_partkey"}, condition=condition, keep=("l_extendedprice", "l_discount"))
    return joined.group(revenue=total(REVENUE))


def distinct_counts(folder: Path) -> Tree:
    """Distinct suppliers of each part size: the first phase of ``count(distinct)``."""
    lines = _table(folder, "lineitem", "l_linenumber l_suppkey")
    return lines.group("l_linenumber", "l_suppkey")


def spread(folder: Path) -> Tree:
    """Variance and extremes, over doubles and text."""
    lines = _table(folder, "lineitem", "l_linestatus l_discount l_comment l_shipdate l_tax")
    discount = left("l_discount").cast(pa.float64())
    return lines.group(
        "l_linestatus",
        deviation=Aggregate(AggregateFunction.STDDEV_SAMP, (discount,)),
        least=Aggregate(AggregateFunction.MIN, (left("l_comment"),)),
        last=Aggregate(AggregateFunction.MAX, (left("l_shipdate"),)),
        taxed=count(where=left("l_tax") > 0),
    )


_REVENUE_SQL = "l_extendedprice * (1 - l_discount)"

QUERIES: dict[str, Query] = {
    "q1": Query(
        q1,
        f"""select l_returnflag, l_linestatus, sum(l_quantity), sum(l_extendedprice), sum({_REVENUE_SQL}),
        sum({_REVENUE_SQL} * (1 + l_tax)), row(sum(l_quantity), count(*)), row(sum(l_extendedprice), count(*)),
        row(sum(l_discount), count(*)), count(*)
        from lineitem where l_shipdate <= date '1998-09-02' group by all""",
    ),
    "q3": Query(
        q3,
        f"""select l_orderkey, o_orderdate, o_shippriority, sum({_REVENUE_SQL}) from customer, orders, lineitem
        where c_mktsegment = 'BUILDING' and c_custkey = o_custkey and l_orderkey = o_orderkey
        and o_orderdate < date '1995-03-15' and l_shipdate > date '1995-03-15' group by all""",
    ),
    "q5": Query(
        q5,
        f"""select n_name, sum({_REVENUE_SQL}) from customer, orders, lineitem, supplier, nation, region
        where c_custkey = o_custkey and l_orderkey = o_orderkey and l_suppkey = s_suppkey
        and c_nationkey = s_nationkey and s_nationkey = n_nationkey and n_regionkey = r_regionkey
        and r_name = 'ASIA' and o_orderdate >= date '1994-01-01' and o_orderdate < date '1995-01-01' group by all""",
    ),
    "q6": Query(
        q6,
        """select sum(l_extendedprice * l_discount) from lineitem where l_shipdate >= date '1994-01-01'
        and l_shipdate < date '1995-01-01' and l_discount between 0.05 and 0.07 and l_quantity < 24""",
    ),
    "q10": Query(
        q10,
        f"""select c_custkey, c_name, c_acctbal, c_phone, n_name, sum({_REVENUE_SQL})
        from customer, orders, lineitem, nation where c_custkey = o_custkey and l_orderkey = o_orderkey
        and o_orderdate >= date '1993-10-01' and o_orderdate < date '1994-01-01' and l_returnflag = 'R'
        and c_nationkey = n_nationkey group by all""",
    ),
    "q12": Query(
        q12,
        """select l_shipmode, count(*) filter (o_orderpriority in ('1-URGENT', '2-HIGH')),
        count(*) filter (o_orderpriority not in ('1-URGENT', '2-HIGH'))
        from orders, lineitem where o_orderkey = l_orderkey and l_shipmode in ('MAIL', 'SHIP')
        and l_commitdate < l_receiptdate and l_shipdate < l_commitdate and l_receiptdate >= date '1994-01-01'
        and l_receiptdate < date '1995-01-01' group by all""",
    ),
    "q14": Query(
        q14,
        f"""select sum(case when p_type like 'PROMO%' then {_REVENUE_SQL} else 0 end), sum({_REVENUE_SQL})
        from lineitem, part where l_partkey = p_partkey and l_shipdate >= date '1995-09-01'
        and l_shipdate < date '1995-10-01'""",
    ),
    "q18": Query(q18, "select l_orderkey, sum(l_quantity) from lineitem group by all"),
    "q19": Query(
        q19,
        f"""select sum({_REVENUE_SQL}) from lineitem, part where p_partkey = l_partkey
        and l_shipmode in ('AIR', 'AIR REG') and l_shipinstruct = 'DELIVER IN PERSON' and (
        (p_brand = 'Brand#12' and p_container in ('SM CASE', 'SM BOX', 'SM PACK', 'SM PKG')
        and l_quantity between 1 and 11 and p_size between 1 and 5)
        or (p_brand = 'Brand#23' and p_container in ('MED BAG', 'MED BOX', 'MED PKG', 'MED PACK')
        and l_quantity between 10 and 20 and p_size between 1 and 10)
        or (p_brand = 'Brand#34' and p_container in ('LG CASE', 'LG BOX', 'LG PACK', 'LG PKG')
        and l_quantity between 20 and 30 and p_size between 1 and 15))""",
    ),
    "distinct": Query(distinct_counts, "select distinct l_linenumber, l_suppkey from lineitem"),
    "spread": Query(
        spread,
        """select l_linestatus, stddev_samp(l_discount::double), min(l_comment), max(l_shipdate),
        count(*) filter (where l_tax > 0) from lineitem group by all""",
    ),
}

TABLES = ("lineitem", "orders", "customer", "supplier", "nation", "region", "part")


def finals_of_duckdb(folder: Path, sql: str, node: PartialAggregate) -> Finals:
    """Final values by group, as DuckDB has them."""
    with duckdb.connect() as duck:
        for table in TABLES:
            duck.execute(f"create view {table} as from '{folder}/{table}.parquet'")
        found = duck.execute(sql).to_arrow_table()
    columns = [cells(column) for column in found.columns]
    count = len(node.keys)
    rows = zip(*columns, strict=True)
    return {tuple(map(group_key, row[:count])): tuple(row[count:]) for row in rows}
