"""Launchers: one module per CUDA source file, and the way to that source."""
