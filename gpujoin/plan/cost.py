"""Predicts the seconds that a part of a query takes, here and in Spark, by the operations in it (`gpujoin.costs`).

Rows that cross from Spark to Arrow and back cost more than joining them, so an equi-join that takes rows in and gives
rows out is slower here than in Spark, whatever computes it. What can be won is where files are read here, and where
Spark compares every pair of rows one by one, and they are searched by order here, or compared on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from gpujoin.costs import Costs
from gpujoin.model.expressions import Call
from gpujoin.model.jointype import Side
from gpujoin.model.relations import (
    ConstantTable,
    Join,
    PartialAggregate,
    PythonAggregate,
    PythonCalls,
    PythonCogroups,
    PythonRows,
    PythonWindow,
    Relation,
    Scan,
    SparkSource,
    Window,
)
from gpujoin.model.types import is_wide_decimal
from gpujoin.plan.estimates import Sizes, row_bytes
from gpujoin.plan.ranges import Shape, shape_of_node

PATTERN_SECONDS = 4.0e-7
"""One row of either side through a null-aware anti join over several columns: "costs of shapes" in
`benchmarks/engine/README.md`."""

WORST_RATIO = 1.0
"""A part of a query is taken where its estimate here is below this share of Spark's."""

_VALUE_BYTES = 8
"""Bytes of a value, where it is not known."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Predicted seconds of a part of a query."""

    here: float
    spark: float
    """Seconds in gpujoin and in Spark."""

    @property
    def is_faster(self) -> bool:
        """Whether it is predicted to be faster here."""
        return self.here < WORST_RATIO * self.spark


@dataclass(frozen=True, slots=True)
class SparkTables:
    """Sizes by which Spark decides what it broadcasts; it shuffles both sides of other joins."""

    nbytes: Mapping[int, float]
    """Bytes that are read of the files of each scan, by its index."""
    broadcast_threshold: int
    """Most bytes of a table that is broadcast; negative: none is."""
    row_nbytes: Mapping[int, float] = field(default_factory=dict)
    """Bytes that Spark takes rows of its own to have, by the index of the source."""
    adapts: bool = True
    """Whether Spark broadcasts a side that proves small once it is shuffled."""

    def exchanged_rows(self, node: Join, sizes: Sizes) -> float:
        """Count the rows that Spark shuffles for a join, those of both sides unless it broadcasts one.

        Of a join that may prove to be one with a small side these are the rows of that side alone.
        """
        inputs = [sizes.of(child).rows for child in node.children]
        small = [
            rows
            for rows, side in zip(inputs, Side, strict=True)
            if _may_send(node, side) and rows * row_bytes(node.side(side).schema) <= self.broadcast_threshold
        ]
        return min(small) if small and self.adapts else sum(inputs)

    def shuffled(self, relation: Relation) -> set[Relation]:
        """The joins by equal keys of which Spark shuffles both sides.

        As without statistics of columns, filters leave a table's size as it is, and a join's is the product of both.
        """
        sizes: dict[Relation, float] = {}
        joins: set[Relation] = set()

        def visit(node: Relation) -> float:
            if node in sizes:
                return sizes[node]
            below = [visit(child) for child in node.children]
            size = sum(below)
            match node:
                case Scan():
                    size = self.nbytes.get(node.index, 0.0)
                case SparkSource():
                    size = self.row_nbytes.get(node.index, node.rows * _VALUE_BYTES * max(1, len(node.schema)))
                case Join():
                    join_type = node.spec.join_type
                    size = below[0] if join_type.left_rows_only else below[0] * below[1]
                    may_send = [below[side is Side.RIGHT] for side in Side if _may_send(node, side)]
                    if is_hashed(node) and min(may_send, default=math.inf) > self.broadcast_threshold:
                        joins.add(node)
                case PartialAggregate() if not node.keys:
                    size = 0.0
            sizes[node] = size
            return size

        visit(relation)
        return joins


@dataclass(frozen=True, slots=True)
class Prediction:
    """What is predicted of a part of a query, and of the parts within it."""

    estimate: Estimate
    """Seconds of the whole part."""
    greatest_gain: float
    """Most seconds that the part, or one part within it that ends at any of its operations, may gain over Spark.

    As many as if nothing were exchanged for it, and its rows went on without being given to Spark.
    """


def predict(
    relation: Relation,
    sizes: Sizes,
    cores: int,
    exchanges: int,
    costs: Costs,
    *,
    built_tables: Collection[Relation] = (),
    tables: SparkTables | None = None,
    least: Sizes | None = None,
) -> Prediction:
    """Predict the seconds of a part of a query, here and in Spark, on some cores.

    What Spark computes for it is the same either way, and left out. The part has no runtime filters yet. Build sides in
    ``built_tables`` are there already, built, and cost nothing here. Without ``tables``, Spark shuffles nothing for
    joins. ``least`` are the sizes by which Spark's seconds are predicted, where those of its own rows are only bounded.
    """
    least = least or sizes
    built = {node for table in built_tables for node in table.walk()}
    shuffled = set() if tables is None else tables.shuffled(relation)
    gains: list[float] = []

    def of_node(node: Relation) -> Estimate:
        own = operation_seconds(node, sizes, costs, built=built)
        spark = (own if least is sizes else operation_seconds(node, least, costs)).spark
        if tables is not None and isinstance(node, Join) and node in shuffled:
            spark += tables.exchanged_rows(node, least) * costs.spark_exchange_row
        elif isinstance(node, PartialAggregate) and node.keys:
            spark += least.of(node).rows * costs.spark_exchange_row
        stages = (
            isinstance(node, (PartialAggregate, Window))
            or _sorts_groups(node)
            or (isinstance(node, Join) and not any(map(_is_constant, node.children)))
        )
        here = 0.0 if node in built else own.here / cores
        return Estimate(here=here, spark=spark / cores + stages * costs.spark_stage)

    def of_part(node: Relation) -> Estimate:
        parts = [of_node(node), *map(of_part, node.children)]
        part = Estimate(here=sum(part.here for part in parts), spark=sum(part.spark for part in parts))
        gains.append(part.spark - part.here)
        return part

    part = of_part(relation)
    crossing = sizes.of(relation).rows * costs.row_out / cores
    return Prediction(
        Estimate(
            here=costs.query + exchanges * costs.stage + part.here + crossing, spark=costs.spark_query + part.spark
        ),
        max(gains) + costs.spark_query - costs.query,
    )


def crossing_seconds(rows: float, schema: pa.Schema, costs: Costs) -> float:
    """Predict the seconds of one core that taking rows from Spark takes."""
    return rows * (costs.row_in + row_bytes(schema) * costs.byte_in)


def operation_seconds(
    node: Relation,
    sizes: Sizes,
    costs: Costs,
    *,
    built: Collection[Relation] = (),
) -> Estimate:
    """Predict the seconds of one core that a node takes, without its inputs.

    Nodes in ``built`` are there already.
    """
    rows = [sizes.of(child).rows for child in node.children]
    scan_rows = sizes.of(node).scan_rows if isinstance(node, Scan) else 0.0
    computed = _calls(node, max(rows, default=scan_rows), costs)
    own = Estimate(here=0.0, spark=0.0)
    match node:
        case Scan():
            values = scan_rows * len(node.schema)
            own = Estimate(here=values * costs.value, spark=values * costs.spark_value)
        case SparkSource():
            own = Estimate(here=crossing_seconds(node.rows, node.schema, costs), spark=0.0)
        case PartialAggregate():
            own = Estimate(here=rows[0] * costs.group_row, spark=rows[0] * costs.spark_group_row)
        case Window():
            own = Estimate(here=rows[0] * costs.window_row, spark=rows[0] * costs.spark_window_row)
        case PythonCalls() | PythonRows() | PythonAggregate() | PythonCogroups() | PythonWindow():
            # What the functions themselves take is the same either way. In Spark their rows cross to them and back.
            arguments = node.child.schema
            if isinstance(node, PythonCalls):
                arguments = pa.schema([value.field for value in node.inputs])
            crossing = crossing_seconds(rows[0], arguments, costs) + rows[0] * costs.row_out
            own = Estimate(here=rows[0] * len(node.schema) * costs.value, spark=crossing)
            if _sorts_groups(node):  # as a window does
                sorting = Estimate(here=rows[0] * costs.window_row, spark=rows[0] * costs.spark_window_row)
                own = Estimate(here=own.here + sorting.here, spark=own.spark + sorting.spark)
        case Join():
            is_built = node.side(node.build_side) in built
            own = _join(node, rows[0], rows[1], costs, is_built=is_built)
    return Estimate(here=computed.here + own.here, spark=computed.spark + own.spark)


def _sorts_groups(node: Relation) -> bool:
    """Whether a node calls Python functions of groups, for which rows are exchanged and sorted."""
    if isinstance(node, PythonRows):
        return node.keys is not None
    return isinstance(node, (PythonAggregate, PythonCogroups, PythonWindow))


def looked_up_rows(relation: Relation, sizes: Sizes, threshold: int) -> float:
    """Count the rows of the largest input from Spark that Spark only looks up in tables that it broadcasts.

    Where nothing tells how few rows a condition leaves, Spark learns it as it runs, so the sizes are the least ones.
    """

    def small(node: Join, side: Side) -> bool:
        child = node.side(side)
        return _may_send(node, side) and sizes.of(child).rows * row_bytes(child.schema) <= threshold

    def looked_up(node: Relation) -> list[float]:
        match node:
            case SparkSource():
                return [node.rows]
            case Window():
                return []
            case Join() if not is_hashed(node):
                return []
            case Join():
                pairs = ((Side.LEFT, Side.RIGHT), (Side.RIGHT, Side.LEFT))
                return [rows for side, other in pairs if small(node, other) for rows in looked_up(node.side(side))]
        return [rows for child in node.children for rows in looked_up(child)]

    return max(looked_up(relation), default=0.0)


def _may_send(node: Join, side: Side) -> bool:
    """Whether Spark may broadcast a side of a join."""
    join_type = node.spec.join_type
    return not join_type.preserves(side) and (side is Side.RIGHT or not join_type.left_rows_only)


def is_hashed(node: Join) -> bool:
    """Tell whether Spark looks rows up in a hash table, and compares no pairs without equal keys."""
    match shape_of_node(node):
        case Shape.EQUALITY:
            return True
        case Shape.NOT_IN:
            spec = node.spec
            return len(spec.keys) == 1 and spec.condition is None and not spec.join_type.flags_rows
        case _:
            return False


def _calls(node: Relation, rows: float, costs: Costs) -> Estimate:
    """Predict the seconds of one core that the expressions of a node take on its input's rows."""
    types = [part.type for root in node.expressions() for part in root.walk() if isinstance(part, Call)]
    if isinstance(node, PartialAggregate):
        types += [call.buffer[0].type for call in node.aggregates]
    decimals = sum(dtype is not None and is_wide_decimal(dtype) for dtype in types)
    others = len(types) - decimals
    return Estimate(
        here=rows * (decimals * costs.decimal_call + others * costs.call),
        spark=rows * (decimals * costs.spark_decimal_call + others * costs.spark_call),
    )


def _is_constant(relation: Relation) -> bool:
    """Whether all rows are part of the query: Spark broadcasts them without a stage."""
    return all(isinstance(node, ConstantTable) for node in relation.walk() if not node.children)


def _join(node: Join, left: float, right: float, costs: Costs, *, is_built: bool) -> Estimate:
    """Predict the seconds of one core for a join, without building a side if that is built."""
    pairs, keys = left * right, len(node.spec.keys)
    rows = left + right
    hashed = max(left, right) * costs.spark_stream_row + min(left, right) * costs.spark_build_row
    doublings = math.log2(max(2.0, rows))
    if is_built:
        rows = left if node.build_side is Side.RIGHT else right
    sorted_here = rows * costs.sort_row * doublings
    match shape_of_node(node):
        case Shape.RANGE:
            return Estimate(here=sorted_here, spark=pairs * costs.spark_pair)
        case Shape.AS_OF:
            candidates = left * math.sqrt(right) if keys else pairs
            return Estimate(here=sorted_here, spark=candidates * costs.spark_pair + (hashed if keys else 0.0))
        case Shape.NOT_IN if not is_hashed(node):
            return Estimate(here=rows * PATTERN_SECONDS, spark=pairs * costs.spark_pair)
        case Shape.PRODUCT:
            return Estimate(here=pairs * costs.pair, spark=pairs * costs.spark_pair)
        case _:
            return Estimate(here=rows * costs.join_row, spark=hashed)
