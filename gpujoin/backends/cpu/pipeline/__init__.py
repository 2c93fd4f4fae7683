"""Relational nodes on the CPU: in Polars where the result is exactly Spark's, with Arrow and NumPy elsewhere."""
