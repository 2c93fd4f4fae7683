"""The engine: joins Arrow batches on one backend, without Spark."""
