"""Measures the seconds of the cost rule, `spark.gpujoin.costs`, on this machine."""
