"""``gpujoin demo``: queries run by Spark alone and with gpujoin, whose rows and seconds are compared."""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from gpujoin.cli.checks import import_check, require
from gpujoin.cli.checks.software import java
from gpujoin.cli.session import key_value, open_session
from gpujoin.errors import ConfigurationError, GpuJoinError, pip_install
from gpujoin.storage.folders import user_cache

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from pyspark.sql import SparkSession

    from gpujoin.report.profile import QueryProfile

_LINES = 6_000_000
"""Order lines at scale 1, as in TPC-H; a customer has ten orders of four lines each."""
_SETTINGS = {
    "spark.driver.memory": "2g",
    "spark.log.level": "ERROR",
    "spark.gpujoin.costs": "start=0",  # each query is timed after a run of its own
    "spark.gpujoin.fallback": "silent",
}
_TABLES = {
    "customers": """
        select id as customer_id, concat('country ', pmod(xxhash64(id, 1), 25)) as country from range({customers})""",
    "orders": """
        select id as order_id, pmod(xxhash64(id, 2), {buyers}) as customer_id,
            date_add(date '2024-01-01', int(pmod(xxhash64(id, 3), 366))) as ordered,
            concat('priority ', pmod(xxhash64(id, 4), 5)) as priority,
            elt(1 + int(pmod(xxhash64(id, 5), 5)), 'CHF', 'EUR', 'GBP', 'JPY', 'USD') as currency
        from range({orders})""",
    "lines": """
        select pmod(xxhash64(id, 6), {orders}) as order_id, id as line, int(1 + pmod(xxhash64(id, 7), 50)) as quantity,
            cast(pmod(xxhash64(id, 8), 10000000) / 100 as decimal(12, 2)) as price,
            cast(pmod(xxhash64(id, 9), 11) / 100 as decimal(4, 2)) as discount,
            date_add(date '2024-01-01', int(pmod(xxhash64(id, 10), 400))) as promised,
            date_add(date '2024-01-01', int(pmod(xxhash64(id, 11), 400))) as received
        from range({lines})""",
    "promotions": """
        select concat('promotion ', id) as promotion, int(pmod(xxhash64(id, 12), 50)) as least,
            date_add(date '2024-01-01', int(2 * id)) as begins, date_add(date '2024-01-08', int(2 * id)) as ends
        from range(200)""",
    "rates": """
        select elt(1 + int(id % 5), 'CHF', 'EUR', 'GBP', 'JPY', 'USD') as currency,
            date_add(date '2024-01-01', int(2 * (id div 5))) as day,
            cast(pmod(xxhash64(id, 13), 200000) / 100000 as decimal(8, 5)) as rate
        from range(1000)""",
}
QUERIES = {
    "revenue by country": """
        select country, sum(price * (1 - discount)) as revenue, count(*) as lines
        from customers join orders using (customer_id) join lines using (order_id)
        where ordered >= date '2024-07-01' group by country""",
    "late orders by priority": """
        select priority, count(*) as orders from orders o
        where exists (select 1 from lines l where l.order_id = o.order_id and l.received > l.promised)
        group by priority""",
    "customers by number of orders": """
        select orders, count(*) as customers
        from (select customer_id, count(order_id) as orders from customers left join orders using (customer_id)
              group by customer_id) group by orders""",
    "customers without orders": """
        select country, count(*) as customers from customers left anti join orders using (customer_id)
        group by country""",
    "two largest lines of each order": """
        select place, sum(price) as price, count(*) as lines
        from (select price, row_number() over (partition by order_id order by price desc, line) as place from lines)
        where place <= 2 group by place""",
    "lines within promotions (range join)": """
        select promotion, count(*) as lines, sum(price) as price
        from lines join promotions on received between begins and ends and quantity >= least group by promotion""",
    "orders at the rate of the day (as-of join)": """
        select currency, count(*) as orders, sum(rate) as rates
        from (select o.order_id, o.currency, max_by(r.rate, r.day) as rate
              from orders o join rates r on r.currency = o.currency and r.day <= o.ordered
              group by o.order_id, o.currency) group by currency""",
}


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``demo`` to the command line."""
    parser = commands.add_parser(
        "demo",
        help="run queries by Spark alone and with gpujoin, and compare rows and seconds",
        description="Make tables of customers, orders and lines, run queries over them by Spark alone and with "
        "gpujoin, and print the seconds of both and whether the rows are equal. Exit status 0 if all are, 1 if not.",
    )
    parser.add_argument(
        "--sf", type=scale_factor, default=0.1, metavar="SF", help="6 M order lines at scale 1 (default: 0.1)"
    )
    parser.add_argument("--backend", choices=("auto", "cpu", "gpu"), default="auto", help="where gpujoin runs queries")
    parser.add_argument("--master", default="local[*]", help="Spark master (default: local[*])")
    parser.add_argument(
        "--conf", action="append", default=[], type=key_value, metavar="KEY=VALUE",
        help="a Spark setting; may be given again and again",
    )  # fmt: skip
    parser.add_argument("--only", default="", metavar="TEXT", help="only queries whose title holds this text")
    parser.set_defaults(run=run)


def scale_factor(text: str) -> float:
    """Read the argument of ``--sf``."""
    scale = float(text)
    if not 0.001 <= scale <= 1000:
        raise argparse.ArgumentTypeError(f"{text} is no scale between 0.001 and 1000")
    return scale


def run(arguments: argparse.Namespace) -> int:
    """Run the queries, and give the exit status: 1 if rows differ. PySpark is imported only here."""
    queries = {title: text for title, text in QUERIES.items() if arguments.only.lower() in title}
    if not queries:
        raise ConfigurationError(f"no title holds {arguments.only!r}. Titles: {', '.join(map(repr, QUERIES))}.")
    require(import_check("pyspark", minimum="4.0", below="5", advice=pip_install("spark")), java())
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from gpujoin import profile
    from gpujoin.report.profile import Equality

    # Executors in other containers or on other machines see this folder, where users have set it to be shared.
    cache = user_cache("GPUJOIN_CACHE")
    cache.mkdir(parents=True, exist_ok=True)
    settings = {**_SETTINGS, "spark.gpujoin.backend": arguments.backend, **dict(arguments.conf)}
    spark = open_session("gpujoin demo", arguments.master, settings)
    try:
        with tempfile.TemporaryDirectory(prefix="demo-", dir=cache, ignore_cleanup_errors=True) as folder:
            _write_tables(spark, Path(folder).absolute().as_uri(), round(_LINES * arguments.sf))
            print(_row("query", "seconds here", "in Spark", "times faster", "runs", "rows"), flush=True)
            equal = 0
            for title, text in queries.items():
                try:
                    result = profile(spark.sql(text))
                except (PySparkException, Py4JError, GpuJoinError) as problem:  # the others still run
                    print(f"{title:<42}  failed: {str(problem).splitlines()[0]}", flush=True)
                    continue
                equal += result.equality is not Equality.DIFFERENT
                print(_row(title, *_cells(result)), flush=True)
    finally:
        spark.stop()
    print(f"\n{equal} of {len(queries)} results equal")
    return 0 if equal == len(queries) else 1


def _cells(result: QueryProfile) -> tuple[str, ...]:
    here, spark = statistics.median(result.gpujoin_seconds), statistics.median(result.spark_seconds)
    runs = "here" if result.ran_here else "in Spark"
    rows = "\n".join(filter(None, (f"{result.rows:,}, {result.equality.value}", result.difference)))
    return f"{here:.2f}", f"{spark:.2f}", f"{result.speedup:.1f}", runs, rows


def _row(title: str, here: str, spark: str, times: str, runs: str, rows: str) -> str:
    return f"{title:<42}  {here:>12}  {spark:>8}  {times:>12}  {runs:<8}  {rows}"


def _write_tables(spark: SparkSession, folder: str, lines: int) -> None:
    """Write the tables as Parquet files of a folder, by its address, the same at each run, and make views of them."""
    rows = {"lines": lines, "orders": lines // 4, "customers": lines // 40, "buyers": max(1, lines // 60)}
    for name, text in _TABLES.items():
        spark.sql(text.format(**rows)).write.parquet(f"{folder}/{name}")
        spark.read.parquet(f"{folder}/{name}").createOrReplaceTempView(name)
