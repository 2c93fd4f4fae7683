"""Code of Spark's Python workers, and their choice of a device."""
