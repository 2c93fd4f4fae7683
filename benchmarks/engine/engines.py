"""The engines compared, each as a function from two Arrow tables to a join ready to run.

What an engine does to take the tables in happens before the clock starts: Polars converts strings to its own layout
there. What comes out is the engine's own columnar result: Arrow tables, from Polars a data frame.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

Join = Callable[[], Any]
HOW_ACERO = {"inner": "inner", "semi": "left semi", "anti": "left anti"}


def gpujoin(left: pa.Table, right: pa.Table, on: list[str], how: Any, threads: int) -> Join:
    from gpujoin import join_tables
    from gpujoin.config import Options

    options = Options(cpu_threads=threads)
    return lambda: join_tables(left, right, on=on, how=how, backend="cpu", options=options)


def polars(left: pa.Table, right: pa.Table, on: list[str], how: str, threads: int) -> Join:  # noqa: ARG001
    import polars as pl

    lhs, rhs = pl.from_arrow(left), pl.from_arrow(right)
    assert isinstance(lhs, pl.DataFrame)
    assert isinstance(rhs, pl.DataFrame)
    return lambda: lhs.join(rhs, on=on, how=how)  # type: ignore[arg-type]


def duckdb(left: pa.Table, right: pa.Table, on: list[str], how: str, threads: int) -> Join:
    import duckdb as db

    connection = db.connect(config={"threads": threads})
    connection.register("l", left)
    connection.register("r", right)
    rest = [f"l.{name}" for name in left.column_names]
    if how == "inner":
        rest += [f"r.{name}" for name in right.column_names if name not in on]
    kind = {"inner": "join", "semi": "semi join", "anti": "anti join"}[how]
    condition = " and ".join(f"l.{name} = r.{name}" for name in on)
    query = f"select {', '.join(rest)} from l {kind} r on {condition}"
    return lambda: connection.execute(query).to_arrow_table()


def acero(left: pa.Table, right: pa.Table, on: list[str], how: str, threads: int) -> Join:
    return lambda: left.join(right, on, join_type=HOW_ACERO[how], use_threads=threads > 1)


ENGINES: dict[str, Callable[[pa.Table, pa.Table, list[str], str, int], Join]] = {
    "gpujoin": gpujoin,
    "polars": polars,
    "duckdb": duckdb,
    "acero": acero,
}


def as_arrow(result: Any) -> pa.Table:
    """A result as an Arrow table."""
    return result if isinstance(result, pa.Table) else result.to_arrow()


def fingerprint(result: Any) -> tuple[int, int]:
    """Row count, and a checksum over all columns that does not depend on the order of rows or columns."""
    import numpy as np
    import polars as pl

    frame = pl.from_arrow(as_arrow(result))
    assert isinstance(frame, pl.DataFrame)
    frame = frame.select(sorted(frame.columns))
    total = 0
    for start in range(0, frame.height, 1 << 20):
        hashes = frame.slice(start, 1 << 20).hash_rows(1).to_numpy()
        total += int(np.add.reduce(hashes, dtype=np.uint64))
    return frame.height, total % (1 << 64)
