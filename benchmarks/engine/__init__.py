"""The engine on the CPU against Polars, DuckDB and Acero: ``python -m benchmarks.engine --help``."""
