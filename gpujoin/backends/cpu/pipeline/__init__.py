"""Relational nodes on the CPU: in Polars where that is exactly Spark, by Arrow and NumPy elsewhere."""
