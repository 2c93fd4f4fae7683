"""Reads footers and statistics of Parquet files, for both backends."""
