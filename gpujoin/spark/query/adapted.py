"""Describes to the JVM how the tasks of a stage are made once the sizes of partitions are known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpujoin.model.jointype import Side
from gpujoin.spark.shuffle.shares import share_packets

if TYPE_CHECKING:
    from gpujoin.model.stages import Stage
    from gpujoin.plan.coalescing import Coalescing
    from gpujoin.spark.query.runs import SplitRun


def described_coalescing(stage: Stage, coalescing: Coalescing | None, split: SplitRun | None) -> dict[str, Any] | None:
    """Describe how small partitions of a stage are coalesced and heavy ones split; ``None``: neither is done."""
    if coalescing is None:
        return None
    return {
        "tasks": coalescing.tasks,
        "least": coalescing.least_bytes,
        "most": coalescing.most_bytes,
        "copies": [exchange.replicated for exchange in stage.inputs],
        "splitting": None if split is None else _described_splitting(stage, split),
    }


def _described_splitting(stage: Stage, split: SplitRun) -> dict[str, Any]:
    places = {exchange.index: place for place, exchange in enumerate(stage.inputs)}
    return {
        "left": places[split.planned.left],
        "right": places[split.planned.right],
        "divided": [side in split.planned.sides for side in Side],
        "unmatched": split.planned.finds_unmatched,
        "factor": split.splitting.factor,
        "threshold": split.splitting.threshold,
        "bytes": split.splitting.share_bytes,
        "packets": list(share_packets().values()),
    }
