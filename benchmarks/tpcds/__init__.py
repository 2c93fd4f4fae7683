"""Whole TPC-DS queries by Spark itself and accelerated: ``python -m benchmarks.tpcds --help``."""
