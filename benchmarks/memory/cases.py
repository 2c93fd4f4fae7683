"""Pipelines whose memory is measured, and their input."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gpujoin import left, lit
from gpujoin.config import Options
from gpujoin.engine.memory import HostMemory
from gpujoin.engine.pipeline import run
from gpujoin.model.aggregates import AggregateFunction
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.relations import Join, PartialAggregate, Relation
from gpujoin.model.spec import AsOf, JoinSpec, KeyPair
from gpujoin.model.stages import NullKeys
from gpujoin.spark.shuffle.blobrows import BlobFormat
from gpujoin.spark.shuffle.exchanges import Outlet
from tests.trees import Aggregate, Tree, count, total

_BATCH = 1 << 18


@dataclass(frozen=True)
class Case:
    """A pipeline that is measured.

    Attributes
    ----------
    run : callable (Path, Options) -> iterator of RecordBatch
        Runs it over the files of a folder.
    """

    run: Callable[[Path, Options], Iterator[pa.RecordBatch]]


def write(folder: Path, rows: int) -> None:
    """Write the files that the cases read.

    Parameters
    ----------
    folder : Path
        Where to; it exists.
    rows : int
        Rows of the larger table; the smaller one has half as many, that of words too, that of texts an eighth.
    """
    _written(folder / "facts.parquet", rows, rows // 2, rows // 4 + 1, _facts)
    _written(folder / "others.parquet", rows // 2, rows // 2, rows // 4 + 1, _facts)
    _written(folder / "texts.parquet", rows // 8, rows // 2, rows // 4 + 1, _texts)
    _written(folder / "words.parquet", rows // 2, rows // 8, rows // 4 + 1, _words)


def _written(path: Path, rows: int, keys: int, group: int, make: Callable[[np.ndarray, int], pa.RecordBatch]) -> None:
    first = make(np.arange(1), keys)
    with pq.ParquetWriter(path, first.schema, dictionary_pagesize_limit=1 << 24) as writer:
        for start in range(0, rows, group):
            parts = [
                make(np.arange(at, min(at + _BATCH, start + group, rows)), keys)
                for at in range(start, min(start + group, rows), _BATCH)
            ]
            writer.write_table(pa.Table.from_batches(parts), row_group_size=group)


def _facts(numbers: np.ndarray, keys: int) -> pa.RecordBatch:
    """Each key comes at places far from each other."""
    key = numbers * 7_919 % max(1, keys)
    return pa.RecordBatch.from_pydict(
        {
            "k": key,
            "t": numbers,
            "v": numbers % 1000,
            "x": numbers * 0.5,
            "w": (numbers % 77).astype(np.int32),
        }
    )


def _texts(numbers: np.ndarray, keys: int) -> pa.RecordBatch:
    """Texts of 400 bytes of which there are few: their dictionaries are far smaller than what they decode to."""
    words = pa.array([f"{word:03d}" * 133 for word in range(1000)])
    return pa.RecordBatch.from_pydict(
        {"k": numbers * 7_919 % max(1, keys), "s": words.take(pa.array(numbers % 1000)), "v": numbers}
    )


def _words(numbers: np.ndarray, keys: int) -> pa.RecordBatch:
    words = pa.array([f"word {word}" for word in range(1000)])
    return pa.RecordBatch.from_pydict({"k": numbers * 7_919 % max(1, keys), "s": words.take(pa.array(numbers % 1000))})


def _aggregate(folder: Path, options: Options) -> Iterator[pa.RecordBatch]:
    tree = Tree.scan(folder / "facts.parquet", ["k", "v", "x"]).where(left("v") < lit(990))
    return run(tree.group("k", n=count(), s=total(left("v")), y=total(left("x"))).relation, options=options)


def _joined(folder: Path) -> Tree:
    return Tree.scan(folder / "facts.parquet").join(
        Tree.scan(folder / "others.parquet", ["k", "v", "x"], index=1).select(k2=left("k"), v2=left("v"), x2=left("x")),
        {"k": "k2"},
    )


def _join(folder: Path, options: Options) -> Iterator[pa.RecordBatch]:
    return run(_joined(folder).relation, options=options)


def _join_aggregate(folder: Path, options: Options) -> Iterator[pa.RecordBatch]:
    return run(_joined(folder).group("w", n=count(), s=total(left("v2"))).relation, options=options)


def _build_text(folder: Path, options: Options) -> Iterator[pa.RecordBatch]:
    facts = Tree.scan(folder / "facts.parquet", ["k", "v"]).select(k2=left("k"), v2=left("v"))
    tree = facts.join(Tree.scan(folder / "texts.parquet", ["k", "s"], index=1), {"k2": "k"})
    return run(tree.relation, options=options)


def _text(folder: Path, options: Options) -> Iterator[pa.RecordBatch]:
    return run(Tree.scan(folder / "texts.parquet").where(left("v") >= lit(10)).relation, options=options)


def _top(folder: Path, options: Options) -> Iterator[pa.RecordBatch]:
    return run(Tree.scan(folder / "texts.parquet").top(5000, ("k", True)).relation, options=options)


def _exchange(folder: Path, options: Options) -> Iterator[pa.RecordBatch]:
    tree = Tree.scan(folder / "facts.parquet").relation
    yield from _outlet(tree.schema, options).split(
        run(tree, options=options), 0, round_bytes=HostMemory.from_budget(options.memory_budget).round_bytes
    )


def _exchange_text(folder: Path, options: Options) -> Iterator[pa.RecordBatch]:
    tree = Tree.scan(folder / "texts.parquet").relation
    yield from _outlet(tree.schema, options).split(
        run(tree, options=options), 0, round_bytes=HostMemory.from_budget(options.memory_budget).round_bytes
    )


def _outlet(schema: pa.Schema, options: Options) -> Outlet:
    return Outlet(
        BlobFormat(schema), (0,), (pa.int64(),), (False,), NullKeys.DROP, frozenset(), tuple(range(40)),
        options.exchange_blob_bytes,
    )  # fmt: skip


def _collect(file: str, column: str) -> Callable[[Path, Options], Iterator[pa.RecordBatch]]:
    """Lists of a column's values by key, where each group is returned once."""

    def run_case(folder: Path, options: Options) -> Iterator[pa.RecordBatch]:
        tree = Tree.scan(folder / file, ["k", column])
        node = tree.group("k", values=Aggregate(AggregateFunction.COLLECT_LIST, (left(column),))).relation
        assert isinstance(node, PartialAggregate)
        return run(dataclasses.replace(node, final=True), options=options)

    return run_case


def _as_of(folder: Path, options: Options) -> Iterator[pa.RecordBatch]:
    """All rows have one key."""
    facts = Tree.scan(folder / "facts.parquet", ["t", "v"]).select("t", "v", one=lit(1))
    others = Tree.scan(folder / "others.parquet", ["t", "v", "x"], index=1).select("t", "v", "x", one=lit(1))
    return run(_nearest(facts.relation, others.relation), options=options)


def _nearest(one: Relation, two: Relation) -> Join:
    spec = JoinSpec(JoinType.LEFT, (KeyPair(2, 3),), left_output=(0, 1), right_output=(0, 1, 2), as_of=AsOf(0, 0))
    return Join(one, two, spec, Side.RIGHT)


CASES = {
    "aggregate": Case(_aggregate),
    "join": Case(_join),
    "join, aggregated": Case(_join_aggregate),
    "texts built": Case(_build_text),
    "texts": Case(_text),
    "top of texts": Case(_top),
    "exchange": Case(_exchange),
    "exchange of texts": Case(_exchange_text),
    "lists": Case(_collect("facts.parquet", "v")),
    "lists of texts": Case(_collect("words.parquet", "s")),
    "as-of, one key": Case(_as_of),
}
