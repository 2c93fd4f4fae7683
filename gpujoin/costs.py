"""Costs of the cost rule: seconds that parts of a query take here and in Spark."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from gpujoin.errors import did_you_mean


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of one core that parts of a query take.

    Defaults were measured with PySpark 4.3 on two cores of a server CPU: `docs/performance.md`, "Cost rule".
    """

    start: float = 1.0
    """Seconds, of all cores, until the first workers of an application are there."""
    spark_start: float = 0.8
    """Seconds, of all cores, that Spark's first query of an application takes longer than the same query later, beyond
    those that it takes longer here: Java's classes are loaded, and Spark's generated code is compiled."""
    query: float = 0.1
    spark_query: float = 0.1
    """The same of a query, before its first row."""
    stage: float = 0.06
    spark_stage: float = 0.05
    """The same of each exchange here, and of each join or aggregation in Spark."""
    value: float = 8e-9
    spark_value: float = 2e-8
    """One value of a column that is read from files."""
    row_in: float = 3e-7
    """One row from Spark to a worker, besides its values."""
    byte_in: float = 2.2e-8
    """One byte of its values."""
    row_out: float = 1.6e-7
    """One row from a worker to Spark."""
    join_row: float = 3e-8
    """One row of either side of a join."""
    spark_stream_row: float = 6e-8
    spark_build_row: float = 5e-7
    """One row of the larger and of the smaller side."""
    spark_exchange_row: float = 3e-7
    """One row of either side of a join that Spark shuffles and sorts, and one group that it shuffles."""
    group_row: float = 3e-8
    spark_group_row: float = 5e-8
    """One row that is aggregated."""
    call: float = 2e-9
    spark_call: float = 5e-9
    """One function, operator or aggregate function on one row."""
    decimal_call: float = 1e-8
    spark_decimal_call: float = 6e-8
    """The same where its result is a decimal of more than 18 digits."""
    sort_row: float = 1.5e-8
    """One row of a range join or as-of join, for each doubling of the rows."""
    window_row: float = 1e-7
    spark_window_row: float = 4e-7
    """One row that is sorted for window functions, with a function of it."""
    pair: float = 2.5e-8
    spark_pair: float = 8e-9
    """One pair of rows whose condition is looked at."""

    @classmethod
    def parse(cls, text: str | Costs) -> Costs:
        """Read ``name=seconds`` pairs, separated by commas; what is not named is as measured.

        Raises ``ValueError`` if a name is unknown, or a value is no number of seconds.
        """
        if isinstance(text, Costs):
            return text
        if not isinstance(text, str):
            raise ValueError(f"{text!r} must be text such as 'query=0.2,value=5e-8', or Costs(...)")
        names = [cost.name for cost in dataclasses.fields(cls)]
        costs: dict[str, float] = {}
        for pair in filter(None, (part.strip() for part in text.split(","))):
            name, _, value = (part.strip() for part in pair.partition("="))
            if name not in names:
                raise ValueError(f"unknown cost {name!r}.{did_you_mean(name, names)}")
            try:
                costs[name] = float(value)
            except ValueError:
                raise ValueError(f"cost {name!r} is {value!r}; give seconds, such as 5e-7") from None
            if not 0 <= costs[name] < float("inf"):
                raise ValueError(f"cost {name!r} is {value}; seconds are 0 or more")
        return cls(**costs)

    def __str__(self) -> str:
        return ", ".join(f"{cost.name}={getattr(self, cost.name):.3g}" for cost in dataclasses.fields(self))
