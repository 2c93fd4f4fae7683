"""Relational nodes on the CPU: in Polars where the result is exactly Spark's, with Arrow and NumPy elsewhere."""

from gpujoin.backends.cpu import interrupts  # noqa: F401  # before any module imports Polars
