"""Rows that a local checkpoint keeps, which go no sooner than Java collects its garbage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession


@contextmanager
def checkpoints_dropped(session: SparkSession) -> Iterator[None]:
    """Drop the rows that are checkpointed meanwhile: other tests look at what is kept."""
    context = session.sparkContext._jsc
    before = set(context.getPersistentRDDs())
    try:
        yield
    finally:
        for number, rows in dict(context.getPersistentRDDs()).items():
            if number not in before:
                rows.unpersist()
