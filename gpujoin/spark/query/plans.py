"""Optimized logical plans as Python trees, and putting changed plans together again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gpujoin.config import Strategy
from gpujoin.functions import BY_CLASS
from gpujoin.model.jointype import Side
from gpujoin.model.stages import DeterminismLevel
from gpujoin.model.trees import preorder
from gpujoin.plan.distribution import Hint
from gpujoin.plan.estimates import UNKNOWN_SIZE, USUAL_ELEMENTS
from gpujoin.spark.catalyst.joins import join_type_in
from gpujoin.spark.catalyst.nodes import Node, Reading
from gpujoin.spark.jvm.compiled import plan_reader
from gpujoin.spark.jvm.gateway import unpacked
from gpujoin.spark.query.refusals import Tables, refused_operations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpujoin.config import Options
    from gpujoin.spark.jvm.gateway import JvmNames

_ROW_OVERHEAD = 8
"""Bytes that Spark adds to the width of a row where it estimates sizes."""
_FILE_VALUE_BYTES = 3.0
_TEXT_VALUE_BYTES = 8.0
"""Bytes of a value in files of columns, and of text. TPC-H's lineitem has 2.1 as Parquet, orders 4.4; as CSV 7.6."""
_OF_TEXT = ("CSVFileFormat", "JsonFileFormat", "TextFileFormat", "XmlFileFormat")


@dataclass(eq=False)
class PlanNode:
    """One node of a logical plan."""

    class_name: str
    """Its Java class."""
    fields: Mapping[str, Any] = field(repr=False)
    """Constructor arguments, and what the node says of itself."""
    reading: Reading = field(repr=False)
    """Which the node is of."""
    children: tuple[PlanNode, ...] = ()
    """Its inputs."""
    _trees: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def gateway(self) -> JvmNames:
        """Names of the JVM."""
        return self.reading.gateway

    @property
    def number(self) -> int:
        """Number of the JVM object."""
        return int(self.fields["@number"])

    @cached_property
    def jvm(self) -> Any:
        """The JVM object."""
        return self.reading.handle.plan(self.number)

    @cached_property
    def name(self) -> str:
        """Class name without the package."""
        return self.class_name.rpartition(".")[2]

    @property
    def request(self) -> Mapping[str, str] | None:
        """Give the arguments of the ``gpu_join`` that made this, by parameter; ``None`` if none did."""
        return self.fields.get("@gpu_join")

    def strategy(self, options: Options) -> Strategy:
        """Give the strategy of a join: the argument of ``gpu_join``, else that of the settings."""
        request = (self.request or {}).get("strategy")
        return options.strategy if request is None else Strategy(request)

    @property
    def hints(self) -> Mapping[Side, Hint]:
        """Give the user's hints on the sides of a join."""
        names = dict(zip(Side, self.fields.get("@hints", ()), strict=False))
        return {side: hint for side, name in names.items() for hint in Hint if hint.value == name}

    @property
    def streaming(self) -> bool:
        """Whether it reads a stream; in a micro-batch, whether it reads rows of one."""
        return "@streaming" in self.fields

    @property
    def deterministic(self) -> bool:
        """Whether it and all below give the same rows each time."""
        return bool(self.fields.get("@deterministic", True))

    @property
    def level(self) -> DeterminismLevel:
        """What is known of the rows in each partition when a task runs again."""
        return DeterminismLevel[self.fields["@level"]]

    @property
    def size_bytes(self) -> int | None:
        """Spark's estimate of the size of its rows; ``None`` if nothing is known."""
        size = self.fields["@size"][0] if "@size" in self.fields else None
        return None if size is None or size >= UNKNOWN_SIZE else int(size)

    @property
    def has_statistics(self) -> bool:
        """Whether Spark has an estimate of the number of its rows."""
        return "@size" in self.fields and self.fields["@size"][1] is not None

    @cached_property
    def estimated_rows(self) -> float | None:
        """Estimate its rows, by Spark or from its inputs; ``None`` if nothing is known.

        Spark takes a join without statistics to be as large as the product of its inputs, and functions that make rows
        to make one of each, which whatever is above them passes on. What is made of rows of which nothing is known is
        not known either.
        """
        size, (_, rows, width) = self.size_bytes, self.fields.get("@size", (None, None, 0))
        rows = self._catalog_rows if rows is None else rows
        inputs = [child.estimated_rows for child in self.children]
        counts = [number for number in inputs if number is not None]
        if rows is not None and (len(inputs) != 1 or not counts):
            return float(rows)
        if not inputs or len(counts) < len(inputs):
            return None if inputs or size is None else max(1.0, size / self._stored_bytes)
        match self.name:
            case "Join" | "GpuAsOfJoin":
                return self._joined_rows(*counts)
            case "Union":
                return sum(counts)
            case "Generate":
                return counts[0] * _made_rows(self.expression("generator"))
            case "Expand":
                return counts[0] * len(self.fields["projections"])
            case "Aggregate" if not self.fields["groupingExpressions"]:
                return 1.0
            case "GlobalLimit" if rows is not None:
                return min(counts[0], float(rows))
            case _ if rows is not None and self.children[0].has_statistics:
                return counts[0] * float(rows) / max(1.0, float(self.children[0].fields["@size"][1]))
            case "Sample":
                return None if size is None else size / (width + _ROW_OVERHEAD)
            case _:
                return max(counts)

    @property
    def _stored_bytes(self) -> float:
        """About how many bytes a row has where it is stored: in files fewer than Spark's width of its types."""
        width = self.fields["@size"][2] + _ROW_OVERHEAD
        file_format = self.fields.get("@relation", {}).get("format")
        if file_format is None and self.name != "DataSourceV2ScanRelation":
            return float(width)
        value = _TEXT_VALUE_BYTES if str(file_format).endswith(_OF_TEXT) else _FILE_VALUE_BYTES
        return min(width, value * max(1, len(self.output)))

    @cached_property
    def usual_share(self) -> float:
        """Share of the rows that the filters in it keep, if they are as conditions usually are."""
        return math.prod(usual_share(node.expression("condition")) for node in self.walk() if node.name == "Filter")

    def _joined_rows(self, left: float, right: float) -> float:
        """Rows of a join, which is taken to follow foreign keys; one without equal keys gives all pairs."""
        kind = None if self.name != "Join" else join_type_in(self.fields["joinType"])[0]
        if kind is None or kind.left_rows_only:
            return left
        equal = {"EqualTo", "EqualNullSafe"}
        keyed = self.condition is not None and any(part.name in equal for part in conjuncts(self.condition))
        return max(left, right) if keyed else left * right

    @property
    def _catalog_rows(self) -> float | None:
        """Rows of the table that it reads, by the catalog; a filter may leave fewer."""
        if self.name in ("Filter", "Project"):
            return self.children[0]._catalog_rows  # noqa: SLF001
        rows = self.fields.get("@relation", {}).get("statistics", {}).get("rows")
        return None if rows is None else float(rows)

    @property
    def distinct_values(self) -> Mapping[str, float]:
        """Numbers of different values of a relation's columns, by their names, as far as the catalog has them."""
        counts: Mapping[str, float] = self.fields.get("@relation", {}).get("statistics", {}).get("distinct", {})
        return counts

    def walk(self) -> Iterator[PlanNode]:
        """Yield this node and all below it, parents first."""
        return preorder(self)

    def child(self, side: Side) -> PlanNode:
        """Give one input of a join."""
        return self.children[0 if side is Side.LEFT else 1]

    @cached_property
    def output(self) -> tuple[Node, ...]:
        """The columns, as attribute references."""
        return self.expressions("@output")

    @cached_property
    def condition(self) -> Node | None:
        """The condition of a join."""
        return None if self.fields["condition"] is None else self.expression("condition")

    def expression(self, name: str) -> Node:
        """Give one expression of the node, such as a filter's ``condition``."""
        return self._parsed(name, self.reading.tree)

    def expressions(self, name: str) -> tuple[Node, ...]:
        """Give a sequence of expressions of the node, such as a projection's ``projectList``."""
        return self._parsed(name, lambda every: tuple(map(self.reading.tree, every)))

    def expression_lists(self, name: str) -> tuple[tuple[Node, ...], ...]:
        """Give a sequence of sequences of expressions of the node, such as the ``projections`` of an ``Expand``."""
        return self._parsed(name, lambda every: tuple(tuple(map(self.reading.tree, part)) for part in every))

    def _parsed(self, name: str, parse: Callable[[Any], Any]) -> Any:
        if name not in self._trees:
            self._trees[name] = parse(self.fields[name])
        return self._trees[name]

    @cached_property
    def subqueries(self) -> tuple[Node, ...]:
        """Give the expressions of this node that hold a plan."""
        if "@subqueries" not in self.fields:
            return ()
        return tuple(node for node in self.own_expressions() if "plan" in node.fields)

    def own_expressions(self) -> Iterator[Node]:
        """Yield all expressions of this node, not of those below, with their operands."""
        for tree in self.own_trees():
            yield from tree.walk()

    def own_trees(self) -> Iterator[Node]:
        """Yield the expressions of this node, not of those below."""
        for value in self.fields.values():
            yield from self.reading.trees(value)

    @cached_property
    def iceberg_facts(self) -> Mapping[str, Any]:
        """What a scan of Iceberg reads, for which Iceberg plans its tasks (``IcebergScan.java``)."""
        facts: Mapping[str, Any] = unpacked(self.reading.handle.icebergFiles(self.number))
        return facts

    @property
    def iceberg_configuration(self) -> Any:
        """What Hadoop is told where it opens the files of that scan."""
        return self.reading.handle.opener(self.number)

    @cached_property
    def iceberg_properties(self) -> Mapping[str, Any]:
        """What Iceberg was told where it opens the files of that scan by itself, secrets included."""
        properties: Mapping[str, Any] = unpacked(self.reading.handle.openerProperties(self.number))
        return properties

    def files(self, conditions: Sequence[Node]) -> Mapping[str, Any]:
        """Have Spark list a relation's files of the partitions that conditions leave."""
        numbers = ",".join(str(condition.number) for condition in conditions)
        listing: Mapping[str, Any] = unpacked(self.reading.handle.files(self.number, numbers))
        return listing


def read_plan(plan: Any, gateway: JvmNames, conf: Mapping[str, str]) -> PlanNode:
    """Read a logical plan, with the plans in its expressions, in two calls; ``conf`` is the session's."""
    reading = Reading(gateway, plan_reader(gateway).plan(plan), conf)
    root = _tree(reading, reading.rows)
    reading.refused = refused_operations(tables_of(root))
    return root


def tables_of(root: PlanNode) -> Tables:
    """Tell the tables of a plan: files by their folders, others by their kind and columns."""
    return frozenset(_table(node) for node in root.walk() if not node.children)


def _table(node: PlanNode) -> str:
    relation: Mapping[str, object] = node.fields.get("@relation", {})
    names = [str(column.fields["name"]) for column in node.output]
    table = relation.get("table") or node.fields.get("@scan", {}).get("table")
    return repr((node.name, table, relation.get("paths"), names))


def subquery_plan(expression: Node) -> PlanNode:
    """Give the plan that an expression holds."""
    return _tree(expression.reading, expression.fields["plan"])


def first_alike(expression: Node) -> int:
    """Number of the plan of the first expression in a query whose plan has the same rows as the given one's."""
    return int(expression.fields["@first"])


def with_subqueries(nodes: Iterable[PlanNode], visited: set[int]) -> Iterator[PlanNode]:
    """Yield nodes, each followed by those of the plans in its expressions; of plans alike only the first."""
    for node in nodes:
        yield node
        for subquery in node.subqueries:
            if first_alike(subquery) not in visited:
                visited.add(first_alike(subquery))
                yield from with_subqueries(subquery_plan(subquery).walk(), visited)


def _made_rows(generator: Node) -> float:
    """Rows that a function such as ``explode`` makes of a row: as many as a constant list has, else a guess."""
    values = generator.children[0].fields.get("@value") if generator.children else None
    match generator.name:
        case "Explode" | "PosExplode" | "Inline" if isinstance(values, (list, tuple)):
            return float(len(values))
        case "Stack" if isinstance(values, int):
            return float(values)
        case _:
            return USUAL_ELEMENTS


def _tree(reading: Reading, rows: Iterable[dict[str, Any]]) -> PlanNode:
    rest = iter(rows)

    def take() -> PlanNode:
        row = next(rest)
        children = tuple(take() for _ in range(row["num-children"]))
        return PlanNode(row["class"], row, reading, children)

    return take()


def usual_share(condition: Node) -> float:
    """Share of rows for which conditions like one are usually true."""
    match condition.name:
        case "And":
            return math.prod(map(usual_share, condition.children))
        case "Or":
            return min(1.0, sum(map(usual_share, condition.children)))
        case "Not":
            return 1.0 - usual_share(condition.children[0])
        case _:
            spec = BY_CLASS.get(condition.name)
            return 0.5 if spec is None or spec.selectivity is None else spec.selectivity


def conjuncts(node: Node) -> tuple[Node, ...]:
    """Give the operands of nested ``AND``s.

    A dynamic pruning filter is none: it repeats for whole partitions what a join above it asks of every row.
    """
    if node.name == "DynamicPruningSubquery":
        return ()
    if node.name == "And":
        return tuple(part for child in node.children for part in conjuncts(child))
    return (node,)
