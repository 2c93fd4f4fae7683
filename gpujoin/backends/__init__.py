"""Backends: interchangeable implementations of joins and relational nodes, on the CPU and on GPUs."""
