"""Java that runs in Spark's driver, and what compiles it."""
