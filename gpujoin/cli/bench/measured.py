"""What was measured of one query."""

from __future__ import annotations

import statistics
from dataclasses import dataclass


@dataclass(frozen=True)
class Measured:
    """One query.

    Attributes
    ----------
    number : int
        Which.
    spark, accelerated : tuple of float
        Seconds from the text to the rows in the driver, of each timed run.
    joins, joins_here : int
        Joins of the optimized plan, and how many of them run here.
    explanation : str
        As ``explain`` says it.
    differences : tuple of str
        What is wrong with the accelerated answer; empty if nothing is.
    """

    number: int
    spark: tuple[float, ...]
    accelerated: tuple[float, ...]
    joins: int
    joins_here: int
    explanation: str
    differences: tuple[str, ...]

    @property
    def medians(self) -> tuple[float, float]:
        """Median seconds of Spark and accelerated."""
        return statistics.median(self.spark), statistics.median(self.accelerated)

    @property
    def ratio(self) -> float:
        """How many times faster than Spark."""
        spark, accelerated = self.medians
        return spark / accelerated
