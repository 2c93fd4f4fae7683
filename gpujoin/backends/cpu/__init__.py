"""The CPU backend: direct addressing and hashing in NumPy, gathering in NumPy and Arrow, conditions in Arrow."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from gpujoin.model.pipeline import Rung

if TYPE_CHECKING:
    import pyarrow as pa

    from gpujoin.backends.cpu.backend import CpuBackend
    from gpujoin.backends.cpu.pipeline.backend import CpuPipeline
    from gpujoin.backends.cpu.ranges import CpuGrouper
    from gpujoin.backends.registry import BackendRequest
    from gpujoin.model.backend import ColumnEvaluator
    from gpujoin.model.reasons import Reason
    from gpujoin.model.relations import Relation

__all__ = ["column_evaluator", "create", "create_pipeline", "make_grouper", "node_obstacles", "unavailable"]


def unavailable() -> Reason | None:
    """``None``: what this backend needs is always installed."""
    return None


def create(request: BackendRequest) -> CpuBackend:
    """Make the backend."""
    from gpujoin.backends.cpu.backend import CpuBackend

    return CpuBackend(request.threads)


def create_pipeline(request: BackendRequest, rung: Rung = Rung.FAST) -> CpuPipeline:
    """Make the pipeline backend for a rung.

    Polars reads its number of threads when a process first imports it. ``request.threads`` has an effect only then, and
    only if ``POLARS_MAX_THREADS`` is not set.
    """
    if "polars" not in sys.modules:
        os.environ.setdefault("POLARS_MAX_THREADS", str(request.threads))
    from gpujoin.backends.cpu.pipeline.backend import CpuPipeline

    return CpuPipeline(rung)


def node_obstacles(node: Relation) -> tuple[Reason, ...]:
    """Reasons why a pipeline does not compute a node, without its inputs, exactly as Spark does."""
    from gpujoin.backends.cpu.pipeline.offers import node_obstacles

    return node_obstacles(node)


def column_evaluator() -> ColumnEvaluator:
    """The function that computes single expressions."""
    from gpujoin.functions.evaluate import evaluate_column

    return evaluate_column


def make_grouper(codes: pa.Table) -> CpuGrouper:
    """Number the rows of a table of key codes by key."""
    from gpujoin.backends.cpu.ranges import CpuGrouper

    return CpuGrouper(codes)
