"""Portions of a shuffled join: parts that are computed by themselves in each partition, whose results are put together.

Most rows are *regular*: both sides go where the hash of their key says. Two kinds of rows cannot.

- A *heavy* key has so many rows that its partition would last longer than all others. Rows of one side, the split one,
  go to all partitions alike, those of the other are replicated to each. Every split row meets every row of its
  key in one place, so what a join returns of split rows is right. What it returns of replicated rows besides pairs is
  not known in any one place; so a side is replicated only where nothing is returned of it, and in full outer joins
  without a condition, whose replicated rows are once more compared with one *witness* of each heavy key that the split
  side has: the *unmet* portion.
- A null key of ``NOT IN`` may match anything. Right rows with a null go to every partition; left rows with a null meet
  all right rows in a partition of their own: the *nulls* portion.

The portions depend on rows and keys alone; that the keys found heavy are the right ones is a matter of speed only.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.spec import JoinSpec, KeyPair
from gpujoin.plan.strategy import broadcast_sides
from gpujoin.spark.blobrows import Portion


@dataclass(frozen=True)
class Heavy:
    """The heavy keys of a join.

    Attributes
    ----------
    hashes : tuple of int
        Hashes of their codes; other keys that share one count as heavy too.
    split : Side
        The side whose rows are split over partitions; the other's are replicated.
    """

    hashes: tuple[int, ...]
    split: Side

    def mask(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Which rows have a heavy key."""
        return np.isin(hashes, np.array(self.hashes, np.uint64))


@dataclass(frozen=True)
class PortionJoin:
    """How a portion is joined.

    Attributes
    ----------
    spec : JoinSpec
        What is computed.
    left, right : Side
        Which side of the whole join is on each side here.
    build : Side
        Which side of the whole join is built.
    """

    spec: JoinSpec
    left: Side
    right: Side
    build: Side

    @property
    def build_side(self) -> Side:
        """The built side in terms of this join."""
        return Side.LEFT if self.left is self.build else Side.RIGHT


def splittable(spec: JoinSpec) -> tuple[Side, ...]:
    """Give the sides whose rows of a heavy key may be split over partitions."""
    if spec.join_type is JoinType.FULL:
        return () if spec.condition is not None else (Side.LEFT, Side.RIGHT)
    return tuple(side.other for side in broadcast_sides(spec.join_type))


def portion_joins(
    spec: JoinSpec, build_side: Side, heavy: Heavy | None, *, nulls_apart: bool
) -> dict[Portion, PortionJoin]:
    """Say how each portion of a join is computed.

    Parameters
    ----------
    spec : JoinSpec
        The whole join.
    build_side : Side
        Which side of regular rows is built.
    heavy : Heavy or None
        Its heavy keys.
    nulls_apart : bool
        Whether left rows with a null key meet all right rows in a partition of their own.
    """
    found = {Portion.REGULAR: PortionJoin(spec, Side.LEFT, Side.RIGHT, build_side)}
    if heavy is not None:
        found[Portion.HEAVY] = PortionJoin(_heavy_spec(spec, heavy), Side.LEFT, Side.RIGHT, heavy.split.other)
        if spec.join_type is JoinType.FULL:
            found[Portion.UNMET] = _unmet(spec, heavy)
    if nulls_apart:
        found[Portion.NULLS] = PortionJoin(spec, Side.LEFT, Side.RIGHT, Side.RIGHT)
    return found


def _heavy_spec(spec: JoinSpec, heavy: Heavy) -> JoinSpec:
    """The join without what it returns of replicated rows besides pairs."""
    if spec.join_type is not JoinType.FULL:
        return spec
    kept = JoinType.LEFT if heavy.split is Side.LEFT else JoinType.RIGHT
    return dataclasses.replace(spec, join_type=kept)


def _unmet(spec: JoinSpec, heavy: Heavy) -> PortionJoin:
    """Replicated rows of heavy keys that the split side does not have."""
    own = heavy.split.other
    keys = tuple(KeyPair(key.of(own), key.of(heavy.split), key.nulls) for key in spec.keys)
    anti = JoinSpec(JoinType.LEFT_ANTI, keys, left_output=spec.output_of(own))
    return PortionJoin(anti, own, heavy.split, heavy.split)


def padded(batch: pa.RecordBatch, portion: PortionJoin, output: pa.Schema, spec: JoinSpec) -> pa.RecordBatch:
    """Rows of a portion's join as rows of the whole join.

    Parameters
    ----------
    batch : RecordBatch
        What the portion's join returned.
    portion : PortionJoin
        That join.
    output : Schema
        Of the whole join.
    spec : JoinSpec
        The whole join.
    """
    columns = list(batch.columns)
    missing = len(output) - len(columns)
    if missing:
        nothing = [pa.nulls(batch.num_rows, field.type) for field in _fields_of(output, portion.right, spec)]
        columns = columns + nothing if portion.left is Side.LEFT else nothing + columns
    if not columns:
        return batch
    return pa.RecordBatch.from_arrays(columns, schema=output)


def _fields_of(output: pa.Schema, side: Side, spec: JoinSpec) -> list[pa.Field]:
    first = len(spec.left_output)
    fields = list(output)
    return fields[:first] if side is Side.LEFT else fields[first : first + len(spec.right_output)]
