"""Java for Spark's driver, and its compilation."""
