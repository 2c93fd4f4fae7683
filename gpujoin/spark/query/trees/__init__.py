"""Optimized plans as trees of relational nodes that a worker runs."""
