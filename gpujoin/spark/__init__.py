"""Joins on Spark DataFrames. This module imports nothing: PySpark may be missing."""
