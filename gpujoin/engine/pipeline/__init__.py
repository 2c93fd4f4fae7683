"""Running a tree of relational nodes in one worker: scan, filter, project, join, partial aggregation.

:func:`supports` says at plan time why a tree cannot be run exactly as Spark would; :func:`run` runs it over Parquet
files and Arrow batches, a piece at a time.
"""

from __future__ import annotations

from gpujoin.engine.pipeline.run import run
from gpujoin.engine.pipeline.support import supports, supports_node

__all__ = ["run", "supports", "supports_node"]
