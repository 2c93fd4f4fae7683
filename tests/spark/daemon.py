"""The daemon that forks Spark's Python workers in tests: gpujoin's, with what each worker imports besides.

A worker takes half a second of a core to import Pandas and Polars. gpujoin's own daemon leaves Polars to the workers:
importing it starts threads, of its allocator and for its files on disk, which a fork loses and no test misses.
"""
# ruff: noqa: I001

from __future__ import annotations

import os

os.environ.setdefault("POLARS_MAX_THREADS", "1")  # as a task of one core sets it before it imports Polars

from gpujoin.spark.daemon import main  # before the others, whose libraries it keeps from starting threads

import gpujoin.backends.cpu.backend
import gpujoin.backends.cpu.pipeline.backend  # noqa: F401
import pandas  # noqa: F401
import polars  # noqa: F401

if __name__ == "__main__":
    main()
