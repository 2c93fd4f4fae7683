"""Finding heavy keys: a small job that looks at the first rows of each partition of both sides, before the exchange."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import functions as sf

from gpujoin.config import Skew
from gpujoin.engine.hashing import hash_rows
from gpujoin.engine.keys import KeyCodec
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.spec import JoinSpec, KeyPair, NullEquality
from gpujoin.spark.compat import is_connect
from gpujoin.spark.failures import is_survivable
from gpujoin.spark.gateway import first_of_partitions
from gpujoin.spark.portions import Heavy, splittable
from gpujoin.spark.scattering import conform
from gpujoin.spark.stages import stage_function

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from gpujoin.spark.request import JoinRequest
    from gpujoin.spark.worker import Batches, JoinTerms, Task

SAMPLE_ROWS = 1 << 15
"""Rows looked at in each partition of a side."""

SAMPLE_BYTES = 32 << 20
"""Smaller inputs, by Spark's estimate, are not looked at unasked: their join ends sooner than the look would."""

LEAST_SEEN = 16
"""A key seen less often in a partition's sample says nothing."""

MOST_HEAVY = 64
"""So many keys are heavy at most; there cannot be many that each fill a partition."""

SAMPLE_DDL = "input int, hash bigint, seen bigint"
_FIELDS: list[pa.Field[Any]] = [
    pa.field("input", pa.int32()), pa.field("hash", pa.int64()), pa.field("seen", pa.int64()),
]  # fmt: skip
_SCHEMA = pa.schema(_FIELDS)

_log = logging.getLogger("gpujoin")


@dataclass(frozen=True)
class SampleKeys:
    """Counts the keys of a task's first rows.

    Attributes
    ----------
    keys : tuple of NullEquality
        How the keys compare nulls; key ``i`` is column ``i`` of both sides.
    left, right : Schema
        Columns of the keys.
    side : Side
        Which side's rows these are.
    """

    keys: tuple[NullEquality, ...]
    left: pa.Schema
    right: pa.Schema
    side: Side

    @classmethod
    def of(cls, terms: JoinTerms, side: Side) -> SampleKeys:
        """Make the work for one side of a join."""
        schemas = {
            one: pa.schema(
                [
                    terms.schema_of(one).field(key.of(one)).with_name(f"k{i}")
                    for i, key in enumerate(terms.spec.keys)
                ]
            )
            for one in Side
        }
        return cls(tuple(key.nulls for key in terms.spec.keys), schemas[Side.LEFT], schemas[Side.RIGHT], side)

    @property
    def schema(self) -> pa.Schema:
        """Columns of the rows that are sampled."""
        return self.left if self.side is Side.LEFT else self.right

    def run(self, batches: Batches, task: Task) -> Iterator[pa.RecordBatch]:
        """Hashes of keys with the times they were seen; a null hash counts all rows."""
        del task
        pairs = tuple(KeyPair(i, i, nulls) for i, nulls in enumerate(self.keys))
        codec = KeyCodec.of(JoinSpec(JoinType.INNER, pairs), self.left, self.right)
        taken, hashes = 0, []
        for given in batches:
            rows = conform(given, self.schema).slice(0, SAMPLE_ROWS - taken)
            mask = codec.null_mask(rows, self.side)
            found = hash_rows(codec.codes(rows, self.side))
            hashes.append(found if mask is None else found[~mask])
            taken += rows.num_rows
            if rows.num_rows < given.num_rows:
                # Spark ends a worker that leaves input unread; so the input is cut before it comes, where it can be.
                break
        yield counted(list(Side).index(self.side), taken, hashes)


def counted(number: int, rows: int, hashes: Sequence[npt.NDArray[np.uint64]]) -> pa.RecordBatch:
    """What a task has seen of an input, for :func:`samples_of`.

    Parameters
    ----------
    number : int
        Of the input.
    rows : int
        Looked at.
    hashes : sequence of ndarray of uint64
        Of their keys, where they are not null.
    """
    keys, seen = np.unique(np.concatenate([np.zeros(0, np.uint64), *hashes]), return_counts=True)
    often = seen >= LEAST_SEEN
    return pa.RecordBatch.from_arrays(
        [
            pa.array(np.full(int(often.sum()) + 1, number, np.int32)),
            pa.array([None, *keys[often].view(np.int64).tolist()], pa.int64()),
            pa.array([rows, *seen[often].tolist()], pa.int64()),
        ],
        schema=_SCHEMA,
    )


def samples_of(found: pa.Table) -> dict[int, Sample]:
    """Give what tasks have seen, by the number of the input."""
    samples: dict[int, Sample] = defaultdict(Sample)
    for number, key, seen in zip(*(column.to_pylist() for column in found.columns), strict=True):
        samples[number].add(key, seen)
    return samples


def find_heavy(
    request: JoinRequest, terms: JoinTerms, frames: dict[Side, DataFrame], partitions: int
) -> Heavy | None:
    """Look for keys whose rows should be split over partitions; a failure to look is no failure of the join.

    Parameters
    ----------
    request : JoinRequest
        The join.
    terms : JoinTerms
        The same for workers.
    frames : dict from Side to DataFrame
        The inputs; their first rows are computed once more than the join computes them.
    partitions : int
        Of the exchange.
    """
    mode = request.options.exchange_skew
    sides = splittable(request.spec)
    if partitions == 1 or not sides or not request.spec.keys or mode is Skew.OFF:
        return None
    if mode is Skew.AUTO and not _worth_a_look(request):
        return None
    halves = [_sampled(request, SampleKeys.of(terms, side), frames[side]) for side in Side]
    try:
        found = halves[0].union(halves[1]).toArrow()
    except BaseException as problem:  # whatever else is wrong with the input, the join itself will tell
        if not is_survivable(problem):
            raise
        _log.debug("no look for heavy keys: %s", problem)
        return None
    seen = samples_of(found)
    samples = {side: seen[number] for number, side in enumerate(Side)}
    rows = {side: request.side(side).size_bytes for side in Side}
    return heavy_keys(samples, rows, sides, partitions)


def _sampled(request: JoinRequest, work: SampleKeys, frame: DataFrame) -> DataFrame:
    names = [request.side(work.side).spark.names[key.of(work.side)] for key in request.spec.keys]
    keys = frame.select(
        *(sf.col(name).alias(key) for name, key in zip(names, work.schema.names, strict=True))
    )
    if not is_connect(frame.sparkSession):
        keys = first_of_partitions(keys, SAMPLE_ROWS)
    return keys.mapInArrow(stage_function(work, f"{request.join_id}_sample"), SAMPLE_DDL)


def _worth_a_look(request: JoinRequest) -> bool:
    sizes = [request.side(side).size_bytes for side in Side]
    return request.cheap_to_sample and None not in sizes and sum(s or 0 for s in sizes) >= SAMPLE_BYTES


class Sample:
    """Keys seen on one side.

    Attributes
    ----------
    rows : int
        Rows looked at.
    keys : Counter
        How often each key was seen, by hash.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.keys: Counter[int] = Counter()

    def add(self, key: int | None, seen: int) -> None:
        """Take in what a task has seen; without a key: its rows."""
        if key is None:
            self.rows += seen
        else:
            self.keys[key % (1 << 64)] += seen

    def share(self, key: int) -> float:
        """Part of the side's rows that have a key; 0 for one that was not seen often."""
        return self.keys[key] / self.rows if self.rows else 0.0


def heavy_keys(
    samples: Mapping[Side, Sample],
    sizes: Mapping[Side, float | None],
    sides: tuple[Side, ...],
    partitions: int,
) -> Heavy | None:
    """Choose the heavy keys, and the side to split.

    A key is heavy if its rows of the split side are at least an average partition's, or if its pairs are at least as
    many as all those of an average partition, as far as the samples tell. The side is split on which heavy keys have
    more bytes.

    Parameters
    ----------
    samples : mapping from Side to Sample
        What was seen.
    sizes : mapping from Side to float or None
        Estimated bytes of the sides.
    sides : tuple of Side
        Those that may be split.
    partitions : int
        Of the exchange.
    """
    pairs = {
        key: samples[Side.LEFT].share(key) * samples[Side.RIGHT].share(key)
        for key in samples[Side.LEFT].keys.keys() & samples[Side.RIGHT].keys.keys()
    }
    all_pairs = sum(pairs.values())
    best: tuple[float, Heavy] | None = None
    for side in sides:
        found = {
            key: samples[side].share(key)
            for key in samples[side].keys
            if samples[side].share(key) * partitions >= 1 or pairs.get(key, 0.0) * partitions >= all_pairs > 0
        }
        chosen = sorted(found, key=lambda key: -found[key])[:MOST_HEAVY]
        weight = sum(found[key] for key in chosen) * (sizes[side] or 1)
        replicated = sum(samples[side.other].share(key) for key in chosen) * (sizes[side.other] or 1)
        if chosen and weight >= replicated and (best is None or weight > best[0]):
            best = weight, Heavy(tuple(chosen), side)
    return None if best is None else best[1]
