"""Joins of Parquet files, by `gpujoin.accelerate` and by Spark's own strategies."""
