"""What calibration times: small queries, and the constant of the cost rule that two of them differ in.

All tables have the columns ``id``, which is unique, ``dimension_id``, ``part_id``, integers, ``a`` to ``h``, and
decimals, ``price`` and ``rate``. ``fact`` is the largest; ``part`` has a sixteenth of its rows, ``dimension`` 1,000,
``tiny`` 100. ``spark_rows`` and ``few_spark_rows`` are no files: Spark computes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Query:
    """A query that is timed."""

    sql: str
    exchanged: bool = False
    """Whether settings forbid that one task reads everything."""
    shuffled: bool = False
    """Whether they forbid that Spark broadcasts a table."""


@dataclass(frozen=True)
class Probe:
    """Two queries whose difference isolates a constant."""

    constant: str
    """Its name; of those that begin with ``spark_`` Spark's seconds count."""
    more: str
    less: str | None = None
    """Names of queries; ``None``: nothing is subtracted."""


VALUES: Mapping[str, int] = dict(zip("abcdefgh", (977, 1009, 1013, 1019, 1021, 1031, 1033, 1039), strict=True))
"""Columns of integers, and how many different ones each has: primes, so that no two columns are alike."""

# No row fulfils the condition of an `exists`: Spark stops at a row's first match, and has to look at all pairs.
# Islands compute no greatest struct: Spark does, and takes all rows of the join from the island.
QUERIES: Mapping[str, Query] = {
    "tiny": Query("select sum(a) from tiny"),
    "tiny joins": Query("select sum(x.a) from tiny x join tiny y on x.id = y.id join tiny z on y.id = z.id"),
    "tiny tasks": Query("select sum(a) from tiny", exchanged=True),
    "tiny exchanges": Query("select sum(x.a) from tiny x join tiny y on x.id = y.id", exchanged=True),
    "column": Query("select sum(a) from fact"),
    "columns": Query("select sum(a), sum(b), sum(c), sum(d), sum(e), sum(f), sum(g), sum(h) from fact"),
    "calls": Query(
        "select sum(a * 3 + 1), sum(b * 3 + 1), sum(c * 3 + 1), sum(d * 3 + 1), sum(e * 3 + 1), sum(f * 3 + 1), "
        "sum(g * 3 + 1), sum(h * 3 + 1) from fact"
    ),
    "decimals": Query("select min(price), min(rate) from fact"),
    "decimal calls": Query("select sum(price * rate), sum(price * (rate + 1)), sum((price + 1) * rate) from fact"),
    "two columns": Query("select sum(a), sum(part_id) from fact"),
    "tiny groups": Query("select sum(s) from (select dimension_id, sum(a) s from tiny group by dimension_id)"),
    "groups": Query("select sum(s) from (select dimension_id, sum(a) s from fact group by dimension_id)"),
    "small join": Query("select sum(f.a) from fact f join dimension d on f.dimension_id = d.id"),
    "large join": Query("select sum(f.a) from fact f join part p on f.part_id = p.id"),
    "shuffled join": Query("select sum(f.a) from fact f join part p on f.part_id = p.id", shuffled=True),
    "rows out": Query("select max(struct(f.a)) from fact f join dimension d on f.dimension_id = d.id"),
    "few rows in": Query("select sum(r.id) from few_spark_rows r join dimension d on r.id % 1000 = d.id"),
    "rows in": Query("select sum(r.id) from spark_rows r join dimension d on r.id % 1000 = d.id"),
    "wide rows in": Query(
        "select sum(r.id), sum(r.a), sum(r.b), sum(r.c), sum(r.d), sum(r.e), sum(r.f), sum(r.g), sum(r.h) "
        "from spark_rows r join dimension d on r.id % 1000 = d.id"
    ),
    "few pairs": Query("select count(*) from tiny t where exists (select 1 from tiny u where t.a * u.a < 0)"),
    "pairs": Query("select count(*) from part p where exists (select 1 from tiny t where p.a * t.a < 0)"),
    "few ranges": Query("select count(*) from tiny t where exists (select 1 from tiny u where t.a < u.a - 2000)"),
    "ranges": Query("select count(*) from part p where exists (select 1 from dimension d where p.a < d.a - 2000)"),
    "windows": Query(
        "select sum(n), sum(part_id) from (select part_id, row_number() over (partition by dimension_id order by a) n "
        "from fact)"
    ),
}  # fmt: skip
HELD_OUT: Mapping[str, Query] = {
    "star": Query(
        "select d.b, sum(f.a), count(*) from fact f join dimension d on f.dimension_id = d.id where f.c > 500 "
        "group by d.b"
    ),
    "two joins": Query(
        "select sum(f.a) from fact f join part p on f.part_id = p.id join dimension d on p.dimension_id = d.id"
    ),
    "many groups": Query("select max(s) from (select part_id, sum(a) s from fact group by part_id)"),
}
"""No constant is taken from these: they show how well the constants predict."""
PROBES = (
    Probe("spark_stage", "tiny joins", "tiny"),
    Probe("spark_query", "tiny"),
    Probe("query", "tiny"),
    Probe("stage", "tiny exchanges", "tiny tasks"),
    Probe("call", "calls", "columns"),
    Probe("spark_call", "calls", "columns"),
    Probe("value", "columns", "column"),
    Probe("spark_value", "columns", "column"),
    Probe("decimal_call", "decimal calls", "decimals"),
    Probe("spark_decimal_call", "decimal calls", "decimals"),
    Probe("group_row", "groups", "tiny groups"),
    Probe("spark_group_row", "groups", "tiny groups"),
    Probe("join_row", "large join", "two columns"),
    Probe("spark_stream_row", "small join", "two columns"),
    Probe("spark_build_row", "large join", "small join"),
    Probe("spark_exchange_row", "shuffled join", "large join"),
    Probe("row_out", "rows out", "small join"),
    Probe("byte_in", "wide rows in", "rows in"),
    Probe("row_in", "rows in", "few rows in"),
    Probe("pair", "pairs", "few pairs"),
    Probe("spark_pair", "pairs", "few pairs"),
    Probe("sort_row", "ranges", "few ranges"),
    Probe("window_row", "windows", "two columns"),
    Probe("spark_window_row", "windows", "two columns"),
)
"""In this order: each uses the constants of those before it. Those that none measures keep their defaults."""
