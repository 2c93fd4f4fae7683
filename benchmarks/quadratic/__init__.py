"""Joins that Spark runs as nested loops: range joins, NOT IN over several columns, as-of joins."""
