"""What runs in Spark's Python workers, and on which device."""
