"""Pipelines over TPC-H data, in one process and on one thread."""
