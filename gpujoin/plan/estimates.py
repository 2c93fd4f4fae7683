"""Estimates numbers of rows, by which build sides are chosen and stages are planned."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from gpujoin.errors import ProductSizeError
from gpujoin.model.expressions import Literal
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.relations import (
    ConstantTable,
    ExchangeSource,
    Expand,
    Explode,
    Filter,
    Join,
    Limit,
    PartialAggregate,
    Project,
    PythonAggregate,
    Relation,
    Scan,
    SparkSource,
    TopN,
    Union,
    column,
)
from gpujoin.plan.distinct import DistinctValues, distinct_groups, distinct_in_node, distinct_keys
from gpujoin.plan.merging import merges
from gpujoin.plan.ranges import Shape, shape_of_node
from gpujoin.plan.selectivity import selectivity

UNKNOWN_SIZE = 1 << 50
"""Sizes from here on mean that Spark knows nothing: it then says the largest long, and parts of it above."""
_GROUPS = 0.2
_MATCHED = 0.5
_FEW = 1 << 20
"""Rows that take some tens of milliseconds more to build than to probe with."""
_FEW_READ = 1 << 22
"""Rows that are no more than a few times :data:`_FEW` if a filter keeps all of them."""
_MUCH_SMALLER = 0.2
USUAL_ELEMENTS = 4.0
"""Taken for the elements of a list or a map."""
_TEXT_BYTES = 24.0


@dataclass(frozen=True)
class Estimate:
    """Estimated size of a relation."""

    rows: float
    """Rows of the relation."""
    selectivity: float
    """Share of the rows that filters keep, and so of the keys that another relation may find."""
    scan_rows: float
    """Rows of all scans below."""
    distinct: DistinctValues = ()
    """The most different values of each column."""


class Sizes:
    """Estimates the sizes of relations over the same files, of each relation once.

    Joins are taken to follow foreign keys to primary keys.

    Parameters
    ----------
    scanned : mapping from int to float
        Rows of each scan's files, by its index.
    sources : mapping from int to Estimate, optional
        Relations whose rows come in from elsewhere, by the index of the source.
    spark_rows : mapping from int to float, optional
        Rows that Spark computes, by the index of the source, where they are taken to be others than the source says.

    Attributes
    ----------
    scanned : dict from int to float
        Rows of each scan's files; more may be added.
    """

    def __init__(
        self,
        scanned: Mapping[int, float] | None = None,
        sources: Mapping[int, Estimate] | None = None,
        spark_rows: Mapping[int, float] | None = None,
    ) -> None:
        self.scanned = dict(scanned or {})
        self._sources = sources or {}
        self._spark_rows = spark_rows or {}
        self._estimates: dict[Relation, Estimate] = {}

    def of(self, relation: Relation) -> Estimate:
        """Estimate the size of a relation."""
        estimate = self._estimates.get(relation)
        if estimate is None:
            estimate = self._estimates[relation] = self._estimate_with_distinct(relation)
        return estimate

    def _estimate_with_distinct(self, relation: Relation) -> Estimate:
        if isinstance(relation, ExchangeSource) and relation.index in self._sources:
            estimate = self._sources[relation.index]
            return estimate if estimate.distinct else replace(estimate, distinct=(None,) * len(relation.schema))
        below = [self.of(child) for child in relation.children]
        distinct = distinct_in_node(relation, [each.distinct for each in below])
        own = self._estimate(relation, below)
        return Estimate(own.rows, own.selectivity, own.scan_rows, distinct)

    def _estimate(self, relation: Relation, below: Sequence[Estimate]) -> Estimate:
        """Estimate a relation, given its inputs, but for the different values."""
        match relation:
            case Scan():
                share = relation.selectivity
                if share is None:
                    share = math.prod(map(selectivity, relation.filters))
                rows = self.scanned.get(relation.index, 1.0)
                return Estimate(max(1.0, rows * share), share, rows)
            case SparkSource():
                rows = self._spark_rows.get(relation.index, relation.rows)
                return Estimate(max(1.0, rows), min(1.0, max(1.0, rows) / max(1.0, relation.rows)), rows)
            case ConstantTable():
                return Estimate(max(1.0, relation.rows), 1.0, relation.rows)
            case Filter():
                share = selectivity(relation.condition, below[0].distinct)
                return Estimate(max(1.0, below[0].rows * share), below[0].selectivity * share, below[0].scan_rows)
            case Join():
                return _joined(relation, *below)
            case PartialAggregate():
                most = distinct_groups([key.expression for key in relation.keys], below[0].distinct)
                groups = below[0].rows * (1.0 if merges(relation) else _GROUPS) if relation.keys else 1.0
                rows = max(1.0, groups if most is None else min(groups, most))
                return Estimate(rows, below[0].selectivity, below[0].scan_rows)
            case PythonAggregate():
                keys = [column(relation.child.schema, key) for key in relation.keys]
                most = distinct_groups(keys, below[0].distinct) if keys else 1.0
                groups = below[0].rows * _GROUPS
                rows = max(1.0, groups if most is None else min(groups, most))
                return Estimate(rows, below[0].selectivity, below[0].scan_rows)
            case Project():
                return below[0]
            case TopN() | Limit():
                return Estimate(min(below[0].rows, float(max(1, relation.count))), 1.0, below[0].scan_rows)
            case Expand():
                return Estimate(below[0].rows * len(relation.projections), below[0].selectivity, below[0].scan_rows)
            case Explode():
                return Estimate(below[0].rows * _elements(relation), below[0].selectivity, below[0].scan_rows)
            case Union():
                return Estimate(
                    sum(child.rows for child in below),
                    max(child.selectivity for child in below),
                    sum(child.scan_rows for child in below),
                )
            case _:
                return Estimate(
                    max((child.rows for child in below), default=1.0),
                    max((child.selectivity for child in below), default=1.0),
                    sum(child.scan_rows for child in below),
                )


def _elements(relation: Explode) -> float:
    """Elements of a list that is exploded: of a constant one as many as it has."""
    child = relation.child
    value = child.outputs[relation.column].expression if isinstance(child, Project) else None
    if isinstance(value, Literal) and isinstance(value.value, (list, tuple)):
        return float(len(value.value))
    return USUAL_ELEMENTS


def build_side(kind: JoinType, left: Relation, right: Relation, sizes: Sizes) -> Side:
    """Choose the side to hold in memory: the smaller one of an inner join, else the one whose rows are not preserved.

    A side without joins that reads few rows is held even if the other, which has joins, is expected to have fewer: of
    several filters and joins estimates may be wrong by orders of magnitude, and building a million rows costs little. A
    side of a semi or anti join whose rows are returned is held where it is much smaller than the other.
    """
    sides = sizes.of(left), sizes.of(right)
    rows = sides[0].rows, sides[1].rows
    match kind:
        case JoinType.INNER | JoinType.CROSS | JoinType.FULL:
            sure = [_is_surely_small(side, each) for side, each in zip((left, right), sides, strict=True)]
            if sure[0] is not sure[1]:
                return Side.LEFT if sure[0] else Side.RIGHT
            return Side.LEFT if rows[0] < rows[1] else Side.RIGHT
        case JoinType.LEFT_SEMI | JoinType.LEFT_ANTI:
            return Side.LEFT if rows[0] < _MUCH_SMALLER * rows[1] else Side.RIGHT
        case _:
            return Side.LEFT if kind is JoinType.RIGHT else Side.RIGHT


def _is_surely_small(relation: Relation, expected: Estimate) -> bool:
    """Whether a relation has few rows whatever its filters keep; a join in it may return a row several times."""
    if expected.rows > _FEW or expected.scan_rows > _FEW_READ:
        return False
    return not any(isinstance(node, Join) and not node.spec.join_type.left_rows_only for node in relation.walk())


def row_bytes(schema: pa.Schema) -> float:
    """Estimate how many bytes a row takes."""
    return sum(_width(field.type) for field in schema)


def _width(dtype: pa.DataType) -> float:
    try:
        return max(1.0, dtype.bit_width / 8)
    except ValueError:
        return _TEXT_BYTES


def _joined(relation: Join, left: Estimate, right: Estimate) -> Estimate:
    kind, scan_rows = relation.spec.join_type, left.scan_rows + right.scan_rows
    match kind:
        case JoinType.LEFT_SEMI:
            share = min(max(right.selectivity, _matched_share(relation, Side.LEFT, left, right)), 1.0)
        case JoinType.LEFT_ANTI | JoinType.NULL_AWARE_ANTI:
            share = _MATCHED
        case JoinType.EXISTENCE | JoinType.NULL_AWARE_EXISTENCE:
            return Estimate(left.rows, left.selectivity, scan_rows)
        case JoinType.LEFT:
            return Estimate(max(left.rows, _pairs(relation, left, right)), left.selectivity, scan_rows)
        case JoinType.RIGHT:
            return Estimate(max(right.rows, _pairs(relation, left, right)), right.selectivity, scan_rows)
        case JoinType.FULL:
            return Estimate(max(left.rows + right.rows, _pairs(relation, left, right)), 1.0, scan_rows)
        case _ if not relation.spec.keys and shape_of_node(relation) is Shape.ONE_ROW:
            streamed = left if relation.build_side is Side.RIGHT else right
            condition = relation.spec.condition
            share = 1.0 if condition is None else selectivity(condition)
            return Estimate(max(1.0, streamed.rows * share), streamed.selectivity * share, scan_rows)
        case _ if not relation.spec.keys and shape_of_node(relation) is Shape.RANGE:
            return Estimate(max(left.rows, right.rows), left.selectivity * right.selectivity, scan_rows)
        case _ if not relation.spec.keys:
            return Estimate(left.rows * right.rows, left.selectivity * right.selectivity, scan_rows)
        case _:
            if left.rows / left.selectivity >= right.rows / right.selectivity:
                side, referencing, referenced = Side.LEFT, left, right
            else:
                side, referencing, referenced = Side.RIGHT, right, left
            share = max(referenced.selectivity, _matched_share(relation, side, referencing, referenced))
            rows = max(1.0, referencing.rows * share, _pairs(relation, left, right))
            return Estimate(rows, referencing.selectivity * share, scan_rows)
    return Estimate(max(1.0, left.rows * share), left.selectivity * share, scan_rows)


def _matched_share(relation: Join, side: Side, own: Estimate, other: Estimate) -> float:
    """Estimate the share of a side's keys that the other side has; 0 if the other side may have further keys.

    A calendar has 73,049 days, the sales 1,827 of them. So the days of a year are a fifth of the sales.
    """
    pairs = relation.spec.keys
    values = [own.distinct[pair.of(side)] for pair in pairs]
    others = [other.distinct[pair.of(side.other)] for pair in pairs]
    if not pairs or None in values or None in others:
        return 0.0
    most = min(math.prod(number for number in values if number is not None), own.rows / own.selectivity)
    looked_up = min(math.prod(number for number in others if number is not None), other.rows)
    return looked_up / most if looked_up <= most else 0.0


def _pairs(relation: Join, left: Estimate, right: Estimate) -> float:
    """Estimate the pairs of a join whose keys are spread evenly over their values; 0 for unknown values.

    No side has more different keys than it has rows without its filters.
    """
    keys = distinct_keys(relation, left.distinct, right.distinct) if relation.spec.keys else None
    if keys is None or relation.spec.as_of is not None:
        return 0.0
    keys = min(keys, max(left.rows / left.selectivity, right.rows / right.selectivity))
    condition = relation.spec.condition
    return left.rows * right.rows / keys * (1.0 if condition is None else selectivity(condition))


@dataclass(frozen=True)
class Product:
    """The pairs of a join without keys or ranges."""

    left: float
    right: float
    """Estimated rows of the sides."""

    @property
    def pairs(self) -> float:
        """Number of pairs."""
        return self.left * self.right

    def __str__(self) -> str:
        return f"about {self.left:.0f} × {self.right:.0f} rows without keys or ranges are {self.pairs:.3g} pairs"


def products_in(relation: Relation, sizes: Sizes) -> Iterator[Product]:
    """Give the products of a tree, parents first, without those over sides of unknown size."""
    for node in relation.walk():
        if not isinstance(node, Join) or shape_of_node(node) is not Shape.PRODUCT:
            continue
        if not any(isinstance(below, SparkSource) and below.guessed for below in node.walk()):
            yield Product(sizes.of(node.left).rows, sizes.of(node.right).rows)


def refuse_products(products: Iterable[Product], most: int | None) -> None:
    """Raise ``ProductSizeError`` for a product of more pairs than ``spark.gpujoin.maxProductRows``."""
    for product in products:
        if most is not None and product.pairs > most:
            raise ProductSizeError(
                f"{product}, more than spark.gpujoin.maxProductRows ({most}); add an equality or a comparison by"
                " order, or raise the setting"
            )


def product_warnings(products: Iterable[Product], most: int | None) -> tuple[str, ...]:
    """A warning for each product of more pairs than ``spark.gpujoin.warnProductRows``."""
    return tuple(str(product) for product in products if most is not None and product.pairs > most)
