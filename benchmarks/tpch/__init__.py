"""Whole TPC-H queries by Spark itself and accelerated: ``python -m benchmarks.tpch --help``."""
