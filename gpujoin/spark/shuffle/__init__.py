"""Rows between stages, as Arrow blobs through Spark's own shuffle."""
