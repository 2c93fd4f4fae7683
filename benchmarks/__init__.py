"""Benchmarks. Each is a program of its own; `python -m benchmarks` runs all of them."""
