"""Relations: what a pipeline computes in one worker, as a tree of nodes over Arrow schemas.

Expressions in a node are resolved (a type on every node) and refer to the child's output by position, with
``side=Side.LEFT``; use :func:`column`. Only a join's residual condition reads two sides. Trees are values: frozen,
picklable, hashable, equal if they say the same. A node checks itself when it is made.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.errors import RelationError
from gpujoin.model.aggregates import AggregateCall
from gpujoin.model.expressions import Expression
from gpujoin.model.files import (
    Constant,
    FileFooter,
    FileFormat,
    FileSlice,
    ForeignColumn,
    StoredField,
    ValueRanges,
)
from gpujoin.model.jointype import Side
from gpujoin.model.python_calls import (
    PythonAggregate,
    PythonCalls,
    PythonCogroups,
    PythonRows,
    PythonStep,
    PythonWindow,
)
from gpujoin.model.relation import (
    OneInput,
    Output,
    Relation,
    SortKey,
    check_over,
    check_position,
    check_unique,
    column,
)
from gpujoin.model.spec import JoinSpec
from gpujoin.model.sqltext import show_type
from gpujoin.model.stages import DeterminismLevel, Distribution
from gpujoin.model.windows import AnyWindowCall, RankLimit, range_obstacle

__all__ = [
    "Constant",
    "ConstantTable",
    "ExchangeSource",
    "Expand",
    "Explode",
    "FileFooter",
    "FileFormat",
    "FileSlice",
    "Filter",
    "Join",
    "Limit",
    "OneInput",
    "Output",
    "PartialAggregate",
    "Project",
    "PythonAggregate",
    "PythonCalls",
    "PythonCogroups",
    "PythonRows",
    "PythonStep",
    "PythonWindow",
    "Relation",
    "Scan",
    "SortKey",
    "SparkSource",
    "TopN",
    "Union",
    "Window",
    "bind_slices",
    "column",
    "operation_name",
]  # fmt: skip


@dataclass(frozen=True, eq=False)
class Scan(Relation):
    """Rows of Parquet or ORC files."""

    columns: pa.Schema
    """Output columns with the types they have in Spark: first those read from the files, found by name, then the
    partition columns."""
    partition_columns: int = 0
    """How many of the last columns are constants of each file."""
    filters: tuple[Expression, ...] = ()
    """Only rows for which all of these are true are returned. Columns that only a filter reads must be in
    ``columns``; a :class:`Project` above drops them, and they are not kept."""
    slices: tuple[FileSlice, ...] | None = None
    """What to read; ``None``: given to each task when the tree runs (see :func:`bind_slices`)."""
    index: int = 0
    """Number of the scan among those of the tree, by which slices are given."""
    case_sensitive: bool = False
    """Whether names are matched as written; otherwise without regard to case, as Spark does by default."""
    selectivity: float | None = None
    """Share of the rows that the filters are expected to keep, by the files; ``None``: not known."""
    distinct: tuple[float | None, ...] = ()
    """The most different values of each column; ``None``, or nothing at all, where that is not known."""
    match_ranges: tuple[tuple[int, ValueRanges], ...] = ()
    """Columns, and the values of each that a join above has a match for, known while the tree runs. Rows with other
    values may be left out."""
    ascending: tuple[int, ...] = ()
    """Columns of which one is looked for in whose order the files are, known while the tree runs."""
    format: FileFormat = FileFormat.PARQUET
    """What its files are."""
    by_statistics: bool = True
    """Whether row groups may be left out by what their file says of the values in them."""
    by_setting: tuple[tuple[ForeignColumn, str], ...] = ()
    """Kinds of columns of Parquet files that a setting lets Spark read in another way, and how that setting is."""
    stored_fields: tuple[StoredField, ...] = ()
    """How each column read from the files is found there; nothing: all by their names."""

    def __post_init__(self) -> None:
        check_unique(self.columns)
        if not 0 <= self.partition_columns <= len(self.columns):
            raise RelationError(
                f"a scan of {len(self.columns)} columns cannot have {self.partition_columns} partition columns"
            )
        for condition in self.filters:
            check_over(condition, self.columns, boolean=True)
        if self.stored_fields and len(self.stored_fields) != len(self.file_columns):
            raise RelationError(f"{len(self.stored_fields)} places in files for {len(self.file_columns)} columns")
        _check_constants(self.slices or (), self.partition_columns)

    def reading(self, slices: Sequence[FileSlice]) -> Scan:
        """The same scan of some slices."""
        _check_constants(slices, self.partition_columns)
        return self._unchecked(slices=tuple(slices))

    @property
    def schema(self) -> pa.Schema:
        return self.columns

    @property
    def file_columns(self) -> pa.Schema:
        """The columns read from the files."""
        return pa.schema(list(self.columns)[: len(self.columns) - self.partition_columns])

    def expressions(self) -> tuple[Expression, ...]:
        return self.filters


@dataclass(frozen=True, eq=False)
class ExchangeSource(Relation):
    """Rows given to the pipeline when it runs: Arrow batches, or an Arrow IPC file."""

    index: int
    """Which input."""
    columns: pa.Schema
    """Its columns. Batches may come in another layout of the same values (dictionaries, large or view text)."""

    def __post_init__(self) -> None:
        if self.index < 0:
            raise RelationError(f"a source's index is 0 or more, not {self.index}")

    @property
    def schema(self) -> pa.Schema:
        return self.columns


@dataclass(frozen=True, eq=False)
class SparkSource(Relation):
    """Rows that Spark computes: a leaf of a part of a query before that is cut into stages.

    No pipeline runs it. The stage planner puts an :class:`ExchangeSource` in its place, which takes the rows in.
    """

    index: int
    """Which of the part's inputs from Spark."""
    columns: pa.Schema
    """Its columns."""
    rows: float = 1.0
    """Estimated rows."""
    level: DeterminismLevel = DeterminismLevel.INDETERMINATE
    """What is known of the rows when Spark computes them again."""
    guessed: bool = False
    """Whether nothing is known of the number of rows."""

    def __post_init__(self) -> None:
        check_unique(self.columns)
        if not self.columns.names:
            raise RelationError("rows from Spark need a column, by which they are counted")

    @property
    def schema(self) -> pa.Schema:
        return self.columns


@dataclass(frozen=True, eq=False)
class ConstantTable(Relation):
    """Rows that are part of the query, such as those of ``VALUES``: each task has them with its plan."""

    columns: pa.Schema
    """Their columns, of which there is one at least."""
    rows: int
    """How many there are."""
    data: bytes = field(repr=False)
    """They themselves, as an Arrow IPC stream."""

    def __post_init__(self) -> None:
        check_unique(self.columns)
        if not self.columns.names:
            raise RelationError("a constant table needs a column, by which its rows are counted")

    @classmethod
    def from_batch(cls, batch: pa.RecordBatch) -> ConstantTable:
        """Make one of a batch."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return cls(batch.schema, batch.num_rows, sink.getvalue().to_pybytes())

    @property
    def schema(self) -> pa.Schema:
        return self.columns

    @property
    def batch(self) -> pa.RecordBatch:
        """The rows."""
        with pa.ipc.open_stream(self.data) as reader:
            return reader.read_next_batch()


@dataclass(frozen=True, eq=False)
class Filter(OneInput):
    """Rows for which a condition is true."""

    condition: Expression

    def __post_init__(self) -> None:
        check_over(self.condition, self.child.schema, boolean=True)

    def expressions(self) -> tuple[Expression, ...]:
        return (self.condition,)


@dataclass(frozen=True, eq=False)
class Project(OneInput):
    """One output column per expression."""

    outputs: tuple[Output, ...]

    def __post_init__(self) -> None:
        for output in self.outputs:
            check_over(output.expression, self.child.schema)

    @cached_property
    def schema(self) -> pa.Schema:
        return pa.schema([output.field for output in self.outputs])

    def expressions(self) -> tuple[Expression, ...]:
        return tuple(output.expression for output in self.outputs)


@dataclass(frozen=True, eq=False)
class Join(Relation):
    """A join of two inputs."""

    left: Relation
    right: Relation
    """Inputs."""
    spec: JoinSpec
    """What to compute; its positions are those of the inputs' outputs."""
    build_side: Side = Side.RIGHT
    """Which input is held in memory (or spilled); the other is streamed."""
    distribution: Distribution = Distribution.ANY
    """How the rows of several tasks are to be brought together."""

    def __post_init__(self) -> None:
        left, right = self.left.schema, self.right.schema
        for key in self.spec.keys:
            check_position(key.left, left, "left key")
            check_position(key.right, right, "right key")
        for position in self.spec.left_output:
            check_position(position, left, "left output")
        for position in self.spec.right_output:
            check_position(position, right, "right output")
        if self.spec.as_of is not None:
            check_position(self.spec.as_of.left, left, "left order key")
            check_position(self.spec.as_of.right, right, "right order key")
        if self.spec.condition is not None:
            check_over(self.spec.condition, left, right, boolean=True)

    @cached_property
    def schema(self) -> pa.Schema:
        return self.spec.output_schema(self.left.schema, self.right.schema)

    @property
    def children(self) -> tuple[Relation, ...]:
        return (self.left, self.right)

    def with_children(self, children: Sequence[Relation]) -> Relation:
        left, right = children
        if left is self.left and right is self.right:
            return self
        if left.schema is self.left.schema and right.schema is self.right.schema:
            return self._unchecked(left=left, right=right)
        return dataclasses.replace(self, left=left, right=right)

    def side(self, side: Side) -> Relation:
        """One of the inputs."""
        return self.left if side is Side.LEFT else self.right

    def expressions(self) -> tuple[Expression, ...]:
        return () if self.spec.condition is None else (self.spec.condition,)


@dataclass(frozen=True, eq=False)
class PartialAggregate(OneInput):
    """Partial aggregation: per group, buffers that Spark's own final aggregation can merge.

    A group may come out more than once; the buffers of all its rows together are what is defined. Without aggregates it
    is a partial ``DISTINCT``, from which ``count(distinct)`` and ``sum(distinct)`` are made. Without keys there is
    exactly one output row, also for empty input.
    """

    keys: tuple[Output, ...]
    """Grouping expressions. Nulls are one group, all NaNs are one, −0.0 is 0.0 and comes out as 0.0."""
    aggregates: tuple[AggregateCall, ...] = ()
    """What is computed; the output has the keys, then each call's buffer."""
    final: bool = False
    """Whether each group must come out once only, so that its buffers are final; beyond the memory budget they go to
    disk."""

    def __post_init__(self) -> None:
        if not self.keys and not self.aggregates:
            raise RelationError("an aggregation needs keys or aggregates")
        for expression in self.expressions():
            check_over(expression, self.child.schema)
        check_unique(self.schema)

    @cached_property
    def schema(self) -> pa.Schema:
        return pa.schema([key.field for key in self.keys] + [part for call in self.aggregates for part in call.buffer])

    def expressions(self) -> tuple[Expression, ...]:
        calls = tuple(e for call in self.aggregates for e in call.expressions())
        return (*(key.expression for key in self.keys), *calls)


@dataclass(frozen=True, eq=False)
class Window(OneInput):
    """Each row with the results of window functions; the rows come out in any order."""

    partition: tuple[int, ...]
    """Columns by whose values rows are divided into partitions; equal as grouping keys are. Empty: one partition."""
    order: tuple[SortKey, ...]
    """The order within a partition; which of two peers is first is not said."""
    calls: tuple[AnyWindowCall, ...]
    """What is computed. The output has the input's columns, then those of each call."""
    limit: RankLimit | None = None
    """Which rows may be left out; ``None``: none."""

    def __post_init__(self) -> None:
        if not self.calls:
            raise RelationError("a window needs a function")
        for position in self.partition:
            check_position(position, self.child.schema, "partition column")
        for expression in self.expressions():
            check_over(expression, self.child.schema)
        if self.limit is not None and not self.order:
            raise RelationError("rows are limited by rank, but have no order")
        if any(call.frame.has_distance for call in self.calls):
            if len(self.order) != 1:
                raise RelationError(f"a range of distances needs one order key, not {len(self.order)}")
            why = range_obstacle(self.order[0].expression.type)
            if why is not None:
                raise RelationError(why)

    @cached_property
    def schema(self) -> pa.Schema:
        """Columns of the node's output."""
        return pa.schema([*self.child.schema, *(field for call in self.calls for field in call.outputs)])

    def expressions(self) -> tuple[Expression, ...]:
        calls = (expression for call in self.calls for expression in call.expressions())
        return (*(key.expression for key in self.order), *calls)


@dataclass(frozen=True, eq=False)
class TopN(OneInput):
    """The first rows in an order; which of equal rows is not said. Output is in no promised order."""

    order: tuple[SortKey, ...]
    count: int
    final: bool = False
    """Whether they are the first ones of all tasks' rows together, so that one task has to see them."""

    def __post_init__(self) -> None:
        if self.count < 0 or not self.order:
            raise RelationError(f"a top-n needs keys and a count of 0 or more, not {self.count}")
        for key in self.order:
            check_over(key.expression, self.child.schema)

    def expressions(self) -> tuple[Expression, ...]:
        return tuple(key.expression for key in self.order)


@dataclass(frozen=True, eq=False)
class Limit(OneInput):
    """Any rows, at most ``count`` of them; nothing is read once they are there."""

    count: int
    final: bool = False
    """Whether that is the number of all tasks' rows together."""

    def __post_init__(self) -> None:
        if self.count < 0:
            raise RelationError(f"a limit is 0 or more, not {self.count}")


@dataclass(frozen=True, eq=False)
class Union(Relation):
    """All rows of several inputs with the same column types; names are the first input's."""

    inputs: tuple[Relation, ...] = field(default=())

    def __post_init__(self) -> None:
        if not self.inputs:
            raise RelationError("a union needs an input")
        first = self.inputs[0].schema.types
        for other in self.inputs[1:]:
            if other.schema.types != first:
                raise RelationError(f"a union's inputs must have one row type: {other.schema.types}, {first}")

    @cached_property
    def schema(self) -> pa.Schema:
        """Columns of the node's output; nullable where any input's column is."""
        schemas = [child.schema for child in self.inputs]
        return pa.schema([f.with_nullable(any(s.field(i).nullable for s in schemas)) for i, f in enumerate(schemas[0])])

    @property
    def children(self) -> tuple[Relation, ...]:
        return self.inputs

    def with_children(self, children: Sequence[Relation]) -> Relation:
        same = len(children) == len(self.inputs) and all(map(operator.is_, children, self.inputs))
        return self if same else Union(tuple(children))


@dataclass(frozen=True, eq=False)
class Expand(OneInput):
    """Each row of an input several times, projected in several ways.

    Grouping sets are made of it, and distinct aggregates of several columns.
    """

    projections: tuple[tuple[Output, ...], ...]
    """What each input row becomes, once for each projection. All give the same types; names are those of the first."""

    def __post_init__(self) -> None:
        if not self.projections:
            raise RelationError("an expansion needs a projection")
        first = [output.field.type for output in self.projections[0]]
        for projection in self.projections:
            for output in projection:
                check_over(output.expression, self.child.schema)
            types = [output.field.type for output in projection]
            if types != first:
                raise RelationError(f"an expansion's projections must have one row type: {types}, {first}")

    @cached_property
    def schema(self) -> pa.Schema:
        """Columns of the node's output; nullable where any projection's column is."""
        columns = zip(*self.projections, strict=True)
        return pa.schema([column[0].field.with_nullable(any(o.nullable for o in column)) for column in columns])

    def expressions(self) -> tuple[Expression, ...]:
        return tuple(output.expression for projection in self.projections for output in projection)


@dataclass(frozen=True, eq=False)
class Explode(OneInput):
    """Each row once for each element of a list, or entry of a map, or as often as a number says.

    The output has the columns that are passed through, then the position if asked for, then the element, or the key and
    the value::

        k  list    with k and positions       outer
        1  [7, 8]  1  0  7                    1  0     7
        2  []      1  1  8                    1  1     8
                                              2  null  null
    """

    column: int
    """A column of lists, maps or 64-bit integers."""
    passthrough: tuple[int, ...]
    """Columns that are passed on."""
    outer: bool = False
    """Whether a row without elements is given once, with nulls in their place."""
    positions: bool = False
    """Whether there is a column of positions, from 0 on."""

    def __post_init__(self) -> None:
        schema = self.child.schema
        for position in (self.column, *self.passthrough):
            check_position(position, schema, "column")
        dtype = schema.field(self.column).type
        if not (pat.is_list(dtype) or pat.is_map(dtype) or pat.is_int64(dtype)):
            raise RelationError(f"rows are made of lists, maps and numbers, not of {show_type(dtype)}")
        if pat.is_int64(dtype) and (self.outer or self.positions):
            raise RelationError("a repeated row has no position, and is not given where the number is 0")

    @property
    def element_fields(self) -> tuple[pa.Field, ...]:
        """The columns that come after those of the input."""
        dtype = self.child.schema.field(self.column).type
        fields = [pa.field("pos", pa.int32(), self.outer)] if self.positions else []
        if pat.is_map(dtype):
            fields += [pa.field("key", dtype.key_type, self.outer), pa.field("value", dtype.item_type)]
        elif pat.is_list(dtype):
            fields.append(pa.field("element", dtype.value_type))
        return tuple(fields)

    @cached_property
    def schema(self) -> pa.Schema:
        """Columns of the node's output."""
        return pa.schema([*(self.child.schema.field(i) for i in self.passthrough), *self.element_fields])


def _check_constants(slices: Sequence[FileSlice], count: int) -> None:
    for part in slices:
        if len(part.constants) != count:
            raise RelationError(f"{part.path}: {len(part.constants)} constants for {count} partition columns")


def bind_slices(tree: Relation, slices: Mapping[int, Sequence[FileSlice]]) -> Relation:
    """Give scans, by their ``index``, the slices that a task is to read; scans not named keep what they have."""
    if isinstance(tree, Scan):
        return tree.reading(slices[tree.index]) if tree.index in slices else tree
    if not tree.children:
        return tree
    return tree.with_children([bind_slices(child, slices) for child in tree.children])


_NAMES: dict[type[Relation], str] = {
    Scan: "the scan", Filter: "the filter", Project: "the select", Join: "the join",
    PartialAggregate: "the aggregation", Window: "the window", TopN: "the limit", Limit: "the limit",
    Union: "the union", Expand: "the grouping sets", Explode: "explode",
    PythonCalls: "the Python function", PythonRows: "the Python function",
    PythonAggregate: "the Python function", PythonCogroups: "the Python function",
    PythonWindow: "the Python function",
}  # fmt: skip


def operation_name(node: Relation) -> str:
    """Name what a relation does in the words of SQL."""
    return _NAMES.get(type(node), "the input")
