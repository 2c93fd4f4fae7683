"""``gpu_join`` against Spark's own joins, fed by rows."""
