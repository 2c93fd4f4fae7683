"""Engine work that spills: a full join and a grouping, small enough to be repeated under hundreds of faults."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from gpujoin.backends.cpu.backend import CpuBackend
from gpujoin.config import Options
from gpujoin.engine import pipeline
from gpujoin.engine.join.hash_join import HashJoin
from gpujoin.model.aggregates import AggregateFunction
from gpujoin.model.expressions import left
from gpujoin.model.jointype import JoinType
from gpujoin.model.relations import PartialAggregate
from tests.engine.support import batches, keyed, sides
from tests.trees import Aggregate, Tree, count


def nothing() -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Work:
    """Something to compute with spill files.

    Attributes
    ----------
    run : callable
        Computes, spilling to a folder; calls a function while what was spilled is still to be read.
    """

    run: Callable[[Path, Callable[[], object]], pa.Table]


def spilled_join(seed: int) -> Work:
    """A full join whose build side is divided on disk."""
    one, two = sides(seed, [pa.int64(), pa.string()], (300, 280))
    spec = keyed(JoinType.FULL, one, two, keys=2)

    def run(folder: Path, between: Callable[[], object] = nothing) -> pa.Table:
        options = Options(spill_dir=str(folder), memory_budget=4000)
        with HashJoin(spec, one.schema, two.schema, options=options, backend=CpuBackend()) as join:
            join.build(batches(two, 60))
            found = list(join.probe(batches(one, 60)))
            assert join.spilled
            between()
            return pa.Table.from_batches([*found, *join.finish()], join.output_schema)

    return Work(run)


def spilled_groups(seed: int) -> Work:
    """Groups that do not fit memory and must come once."""
    rng = np.random.default_rng(seed)
    rows = 6000
    keys = rng.integers(0, 2500, rows)
    texts = [None if key % 7 == 0 else f"text {key % 2}" for key in keys]
    table = pa.table({"k": keys, "t": pa.array(texts, pa.string()), "v": rng.integers(-(1 << 40), 1 << 40, rows)})
    tree = Tree.source(table.schema).group("k", "t", n=count(), least=Aggregate(AggregateFunction.MIN, (left("v"),)))
    assert isinstance(tree.relation, PartialAggregate)
    node = dataclasses.replace(tree.relation, final=True)

    def run(folder: Path, between: Callable[[], object] = nothing) -> pa.Table:
        def rows_in() -> Iterator[pa.RecordBatch]:
            yield from table.to_batches(max_chunksize=rows // 10)
            between()

        options = Options(spill_dir=str(folder), memory_budget=8000)
        out = pipeline.run(node, {0: rows_in()}, piece_bytes=1, options=options)
        return pa.Table.from_batches(out, node.schema)

    return Work(run)


WORKS: dict[str, Callable[[int], Work]] = {"join": spilled_join, "groups": spilled_groups}
"""Work by name, made of a seed."""
