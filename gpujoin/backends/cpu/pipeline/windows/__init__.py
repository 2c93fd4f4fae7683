"""Window functions on the CPU: rows are sorted once, then each function is computed for all rows at a time."""

from __future__ import annotations

from gpujoin.backends.cpu.pipeline.windows.evaluate import window

__all__ = ["window"]
