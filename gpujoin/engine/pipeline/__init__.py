"""Runs a tree of relational nodes in one worker: scan, filter, project, join, partial aggregation.

:func:`supports` returns the reasons why a tree cannot be run exactly as Spark would, at plan time. :func:`run` runs a
tree over Parquet files and Arrow batches, piece by piece.
"""

from __future__ import annotations

from gpujoin.engine.pipeline.run import run
from gpujoin.engine.pipeline.support import supports, supports_node

__all__ = ["run", "supports", "supports_node"]
