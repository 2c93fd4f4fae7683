"""When a join that is fed by Spark rows is worth taking from Spark: estimates in seconds of one core.

Rows that cross from Spark to Arrow and back cost more than joining them, so an equi-join that takes rows in and gives
rows out is slower here than in Spark, whatever computes it. What can be won is where Spark compares every pair of rows
one by one, and they are searched by order here, or compared on a GPU.

Only the ratios of the constants matter. They were measured with PySpark 4.3 on two cores of a server CPU:
equality joins of 1 M × 1 M and 10 M × 10 M rows with three payload columns (1.5 to 2.4 times Spark's seconds), and
``a between b - 5 and b + 5`` over 8,000 × 8,000 rows (3 times).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow.types as pat

from gpujoin.costs import Costs
from gpujoin.model.expressions import Call
from gpujoin.model.jointype import JoinType
from gpujoin.model.relations import Join, PartialAggregate, Relation, Scan, SparkSource
from gpujoin.plan import estimates
from gpujoin.plan.ranges import Shape, shape_of_node

ROW_SECONDS = 5.0e-7
"""One row from Spark to Arrow, or back, with a few fixed-width columns."""

START_SECONDS = 0.5
"""What a stage of Python workers costs before its first row."""

SPARK_HASH_SECONDS = 5.0e-7
"""One row of either side through Spark's shuffled hash join."""

HASH_SECONDS = 1.0e-7
"""One row of either side through the gather-map join."""

SPARK_PAIR_SECONDS = 8.0e-9
"""One pair of rows in Spark's nested loop, with a short condition."""

PAIR_SECONDS = 2.5e-8
"""One pair of rows under a residual condition on the CPU backend."""

GPU_PAIR_SECONDS = 1.0e-9
"""One pair of rows under a residual condition on a GPU: a cautious guess from memory traffic, not measured."""

SORT_SECONDS = 1.5e-8
"""One row of either side through a search by order, for each doubling of the rows: "costs of shapes" in
`benchmarks/engine/README.md`."""

PATTERN_SECONDS = 4.0e-7
"""One row of either side through a null-aware anti join over several columns: "costs of shapes" there."""

WORST_RATIO = 1.0
"""A join is taken where its estimate here is below this share of Spark's."""


_LONG_DIGITS = 18
"""Decimals of so many digits are computed as 64-bit integers by Spark."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Predicted cost of one join, in seconds of one core.

    Attributes
    ----------
    here, spark : float
        By gpujoin and by Spark.
    """

    here: float
    spark: float

    @property
    def taken(self) -> bool:
        """Whether it is predicted to be faster here."""
        return self.here < WORST_RATIO * self.spark


def estimate(
    join_type: JoinType,
    left_rows: float,
    right_rows: float,
    *,
    equality: bool,
    condition: bool,
    gpu: bool,
    shape: Shape | None = None,
    keys: int = 0,
) -> Estimate:
    """Estimate what a join costs here and in Spark.

    Parameters
    ----------
    join_type : JoinType
        What is returned.
    left_rows, right_rows : float
        Estimated rows.
    equality : bool
        Whether there is an equality key. Without one every pair of rows is looked at.
    condition : bool
        Whether there is a residual condition.
    gpu : bool
        Whether it would run on a GPU.
    shape : Shape or None
        How matches are found here; ``None``: by equality, or pair by pair.
    keys : int
        How many equality keys there are.

    Notes
    -----
    Spark runs a range join, and ``NOT IN`` over several columns, with a further condition or under ``OR``, as a nested
    loop over all pairs. How many pairs match is not known; one a row is taken for it. Of an as-of join it looks at all
    rows of equal key before each row; how many those are is not known either, and the root of the right rows is taken
    for it.
    """
    rows_in = left_rows + right_rows
    pairs = left_rows * right_rows
    if shape is Shape.RANGE:
        rows_out = left_rows if join_type.left_rows_only else max(left_rows, right_rows)
        crossing = START_SECONDS + (rows_in + rows_out) * ROW_SECONDS
        sorting = rows_in * SORT_SECONDS * math.log2(max(2.0, rows_in))
        return Estimate(here=crossing + sorting, spark=pairs * SPARK_PAIR_SECONDS)
    if shape is Shape.AS_OF:
        crossing = START_SECONDS + (rows_in + left_rows) * ROW_SECONDS
        sorting = rows_in * SORT_SECONDS * math.log2(max(2.0, rows_in))
        candidates = left_rows * math.sqrt(right_rows) if equality else pairs
        spark = candidates * SPARK_PAIR_SECONDS + (rows_in * SPARK_HASH_SECONDS if equality else 0.0)
        return Estimate(here=crossing + sorting, spark=spark)
    if shape is Shape.NOT_IN and (keys > 1 or condition or join_type.flags_rows):
        crossing = START_SECONDS + (rows_in + left_rows) * ROW_SECONDS
        return Estimate(here=crossing + rows_in * PATTERN_SECONDS, spark=pairs * SPARK_PAIR_SECONDS)
    if equality:
        rows_out = left_rows if join_type.left_rows_only else max(left_rows, right_rows)
        crossing = START_SECONDS + (rows_in + rows_out) * ROW_SECONDS
        return Estimate(here=crossing + rows_in * HASH_SECONDS, spark=rows_in * SPARK_HASH_SECONDS)
    crossing = START_SECONDS + rows_in * ROW_SECONDS
    if not condition:
        out = left_rows if join_type.left_rows_only else pairs
        return Estimate(here=crossing + out * ROW_SECONDS, spark=out * SPARK_PAIR_SECONDS)
    pair = GPU_PAIR_SECONDS if gpu else PAIR_SECONDS
    return Estimate(here=crossing + pairs * pair, spark=pairs * SPARK_PAIR_SECONDS)


def predict(
    relation: Relation, scanned: Mapping[int, float], cores: int, exchanges: int, costs: Costs
) -> Estimate:
    """Predict the seconds of a part of a query, here and in Spark, on some cores.

    What Spark computes for it is the same either way, and left out.

    Parameters
    ----------
    relation : Relation
        The part, without runtime filters.
    scanned : mapping of int to float
        Rows of each scan's files, by its index.
    cores : int
        Tasks that run at once.
    exchanges : int
        How many there are here.
    costs : Costs
        Of the machine.
    """
    here, spark, stages = 0.0, 0.0, 0
    for node in relation.walk():
        rows = [estimates.estimate(child, scanned).rows for child in node.children]
        read = scanned.get(node.index, 1.0) if isinstance(node, Scan) else 0.0
        computed = _calls(node, max(rows, default=read), costs)
        here, spark = here + computed.here, spark + computed.spark
        match node:
            case Scan():
                values = read * len(node.schema)
                here, spark = here + values * costs.value, spark + values * costs.spark_value
            case SparkSource():
                here += node.rows * costs.row_in
            case PartialAggregate():
                here, spark = here + rows[0] * costs.group_row, spark + rows[0] * costs.spark_group_row
                stages += 1
            case Join():
                of_join = _join(node, rows[0], rows[1], costs)
                here, spark = here + of_join.here, spark + of_join.spark
                stages += 1
    here += estimates.estimate(relation, scanned).rows * costs.row_out
    return Estimate(
        here=costs.query + exchanges * costs.stage + here / cores,
        spark=costs.spark_query + stages * costs.spark_stage + spark / cores,
    )


def _calls(node: Relation, rows: float, costs: Costs) -> Estimate:
    """Predict the seconds of one core that the expressions of a node take on its input's rows."""
    types = [part.type for root in node.expressions() for part in root.walk() if isinstance(part, Call)]
    if isinstance(node, PartialAggregate):
        types += [call.buffer[0].type for call in node.aggregates]
    decimals = sum(
        dtype is not None and pat.is_decimal(dtype) and dtype.precision > _LONG_DIGITS for dtype in types
    )
    others = len(types) - decimals
    return Estimate(
        here=rows * (decimals * costs.decimal_call + others * costs.call),
        spark=rows * (decimals * costs.spark_decimal_call + others * costs.spark_call),
    )


def _join(node: Join, left: float, right: float, costs: Costs) -> Estimate:
    """Predict the seconds of one core that a join takes."""
    rows, pairs, keys = left + right, left * right, len(node.spec.keys)
    hashed = max(left, right) * costs.spark_stream_row + min(left, right) * costs.spark_build_row
    sorted_here = rows * costs.sort_row * math.log2(max(2.0, rows))
    match shape_of_node(node):
        case Shape.RANGE:
            return Estimate(here=sorted_here, spark=pairs * costs.spark_pair)
        case Shape.AS_OF:
            candidates = left * math.sqrt(right) if keys else pairs
            return Estimate(here=sorted_here, spark=candidates * costs.spark_pair + (hashed if keys else 0.0))
        case Shape.NOT_IN if keys > 1 or node.spec.condition is not None or node.spec.join_type.flags_rows:
            return Estimate(here=rows * PATTERN_SECONDS, spark=pairs * costs.spark_pair)
        case Shape.PRODUCT:
            return Estimate(here=pairs * costs.pair, spark=pairs * costs.spark_pair)
        case _:
            return Estimate(here=rows * costs.join_row, spark=hashed)
