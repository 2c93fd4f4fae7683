"""Calls of the user's Python functions, as a node of a tree.

A function is what PySpark has pickled, with its result type: nothing here looks into it. Its arguments are expressions
like any others, its results are columns like any others::

    select k, plus(v * 2, g) from t         inputs        v * 2, g
                                            call          plus, of inputs 0 and 1
    k  v  g        k  v  g  plus(v * 2, g)
    1  2  3        1  2  3  7

A function of ``mapInPandas`` or ``mapInArrow`` is given all rows of a task, one of ``applyInPandas`` or
``applyInArrow`` the rows of each group, and gives others in their place. An aggregate function is given columns of
each group, and gives one value::

    select k, range(v) from t group by k

    k  v        k  range(v)
    1  2        1  7
    1  9        2  0
    2  5
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from gpujoin.errors import RelationError
from gpujoin.model.expressions import ColumnRef
from gpujoin.model.relation import OneInput, Output, check_over, check_position, column
from gpujoin.model.trees import Structural
from gpujoin.model.windows import Frame

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpujoin.model.expressions import Expression


GROUPS_TOGETHER = 1024
"""Results of at most so many groups become one batch; a concatenation of them takes less than one call."""
ROWS_TOGETHER = 1 << 14
"""Rows of groups that become one frame, or results that become one batch; more save nothing."""


@dataclass(frozen=True, eq=False)
class PythonCall(Structural):
    """One call, perhaps of a function of another one's result."""

    names: tuple[str, ...]
    """Names of the functions, for people, the innermost first."""
    functions: tuple[bytes, ...]
    """The functions, pickled: each takes the result of the one before it."""
    arguments: tuple[int, ...]
    """Which of the node's inputs the innermost takes by position."""
    keywords: tuple[tuple[str, int], ...]
    """Which it takes by name."""
    name: str
    """Name of the result's column."""
    type: pa.DataType
    """Its type here."""


@dataclass(frozen=True)
class PythonSettings:
    """What calls depend on besides their functions."""

    kind: int
    """PySpark's number of how functions are called (``PythonEvalType``)."""
    input_type: str
    """Type of the columns that are given, as Spark writes it in JSON."""
    result_type: str
    """Type of those that are taken."""
    settings: tuple[tuple[str, str], ...]
    """Settings of the session that PySpark's conversions depend on."""
    batch_rows: int
    """Most rows that a function is given at a time."""
    batch_bytes: int
    """About as many bytes at most."""
    simplified_tracebacks: bool = True
    """Whether PySpark leaves its own frames out of the tracebacks of errors."""

    def rows_at_a_time(self, batch: pa.RecordBatch) -> int:
        """Give the most rows of a batch that a function is given at a time."""
        return min(self.batch_rows, max(1, int(batch.num_rows * self.batch_bytes / max(1, batch.nbytes))))


@dataclass(frozen=True, eq=False)
class PythonStep(OneInput):
    """A node that calls Python functions: no rewrite has it computed twice for a row, or for other rows than Spark."""


@dataclass(frozen=True, eq=False)
class PythonRows(PythonStep):
    """The rows that a Python function makes of all rows of a task, or of those of each group."""

    name: str
    """Name of the function, for people."""
    function: bytes
    """The function, pickled."""
    columns: pa.Schema
    """Columns of the rows that it gives."""
    settings: PythonSettings
    arguments: tuple[int, ...] = (0,)
    """What PySpark is told of the columns that are keys and values: ``resolveArgOffsets`` of Spark's."""
    keys: tuple[int, ...] | None = None
    """Columns by whose values rows are grouped; all rows of a group are in one task. ``None``: there are no groups."""

    @property
    def schema(self) -> pa.Schema:
        return self.columns

    def __post_init__(self) -> None:
        for position in self.keys or ():
            check_position(position, self.child.schema, "group's key")


@dataclass(frozen=True, eq=False)
class PythonCogroups(PythonStep):
    """The rows that a Python function makes of the rows of two inputs with equal keys.

    The rows of both come as those of one, with their keys and the columns of both::

        left   k  v     right  k  w         k  side   k  v  k  w
               1  7            1  5         1  false  1  7  -  -
               2  8                         2  false  2  8  -  -
                                            1  true   -  -  1  5
    """

    name: str
    """Name of the function, for people."""
    function: bytes
    """The function, pickled."""
    columns: pa.Schema
    """Columns of the rows that it gives."""
    settings: PythonSettings
    arguments: tuple[int, ...]
    """What PySpark is told of the columns of each input that are keys and values."""
    keys: tuple[int, ...]
    """Columns by whose values rows are grouped; all rows of a group are in one task."""
    side: int
    """Column that tells whether a row is one of the right input."""
    left: tuple[int, ...]
    """Columns of the left input's rows."""
    right: tuple[int, ...]
    """Columns of the right input's rows."""
    right_type: str
    """Type of those, as Spark writes it in JSON; that of the left input's is among the settings."""

    @property
    def schema(self) -> pa.Schema:
        return self.columns

    def __post_init__(self) -> None:
        for position in (*self.keys, self.side, *self.left, *self.right):
            check_position(position, self.child.schema, "cogroup's column")


@dataclass(frozen=True, eq=False)
class PythonAggregate(PythonStep):
    """The keys of each group with the results of Python functions of all its rows."""

    keys: tuple[int, ...]
    """Columns by whose values rows are grouped; all rows of a group are in one task. Empty: all rows are one group,
    and without rows there is none."""
    inputs: tuple[int, ...]
    """Columns that the calls take."""
    calls: tuple[PythonCall, ...]
    """The output has the keys, then the result of each call."""
    settings: PythonSettings

    def __post_init__(self) -> None:
        if not self.calls:
            raise RelationError("there is no function to call")
        for position in self.keys:
            check_position(position, self.child.schema, "group's key")
        for position in self.inputs:
            check_position(position, self.child.schema, "function's input")

    @cached_property
    def results(self) -> pa.Schema:
        """Columns of the results."""
        return results_of(self.calls)

    @cached_property
    def schema(self) -> pa.Schema:
        """Columns of the node's output."""
        return pa.schema([*(self.child.schema.field(key) for key in self.keys), *self.results])


@dataclass(frozen=True, eq=False)
class PythonWindow(PythonStep):
    """Each row with the results of Python functions of rows of its partition.

    A function of a whole partition is called once for it, one of a frame once for each row, with the places of the
    frame's first row and of the row after its last, which are columns of the input::

        select k, v, range(v) over (partition by k order by v rows 1 preceding) from t

        k  v  begin  end        k  v  range(v)
        1  2  0      1          1  2  0
        1  9  0      2          1  9  7
        1  9  1      3          1  9  0
    """

    keys: tuple[int, ...]
    """Columns by whose values rows are divided into partitions; empty: there is one partition."""
    order: int | None
    """Column of the number of each row in its partition; ``None``: they are in any order."""
    inputs: tuple[int, ...]
    """Columns that the calls take, those of bounds first."""
    calls: tuple[PythonCall, ...]
    """The output has the input's columns, then the result of each call; that of a frame takes its bounds first."""
    frames: tuple[Frame, ...]
    """The rows that each call takes."""
    settings: PythonSettings

    def __post_init__(self) -> None:
        if not self.calls or len(self.calls) != len(self.frames):
            raise RelationError(f"there are {len(self.calls)} functions to call, over {len(self.frames)} frames")
        for position in (*self.keys, *self.inputs, *(() if self.order is None else (self.order,))):
            check_position(position, self.child.schema, "window's column")

    @cached_property
    def results(self) -> pa.Schema:
        """Columns of the results."""
        return results_of(self.calls)

    @cached_property
    def schema(self) -> pa.Schema:
        """Columns of the node's output."""
        return pa.schema([*self.child.schema, *self.results])


@dataclass(frozen=True, eq=False)
class PythonCalls(PythonStep):
    """Each row with the results of Python functions, all of which are called for the same batches of rows."""

    inputs: tuple[Output, ...]
    """What the calls take."""
    calls: tuple[PythonCall, ...]
    """The output has the input's columns, then the result of each call."""
    settings: PythonSettings

    def __post_init__(self) -> None:
        if not self.calls:
            raise RelationError("there is no function to call")
        for expression in self.expressions():
            check_over(expression, self.child.schema)

    @cached_property
    def results(self) -> pa.Schema:
        """Columns of the results."""
        return results_of(self.calls)

    @cached_property
    def schema(self) -> pa.Schema:
        """Columns of the node's output."""
        return pa.schema([*self.child.schema, *self.results])

    def expressions(self) -> tuple[Expression, ...]:
        return tuple(value.expression for value in self.inputs)

    @cached_property
    def with_inputs(self) -> tuple[Output, ...]:
        """The input's columns, and the values that are computed of them for the calls."""
        fields = enumerate(self.child.schema)
        own = [Output(field.name, column(self.child.schema, n), field.nullable) for n, field in fields]
        return (*own, *(value for value in self.inputs if not isinstance(value.expression, ColumnRef)))

    @cached_property
    def input_places(self) -> tuple[int, ...]:
        """The position of each value that the calls take among :attr:`with_inputs`."""
        computed = iter(range(len(self.child.schema), len(self.with_inputs)))
        values = (value.expression for value in self.inputs)
        return tuple(value.index if isinstance(value, ColumnRef) else next(computed) for value in values)


def results_of(calls: Sequence[PythonCall]) -> pa.Schema:
    """Give the columns of the results of some calls."""
    return pa.schema([pa.field(call.name, call.type) for call in calls])


@dataclass(frozen=True)
class GroupedRows:
    """Rows of whole groups, those of a group one after another."""

    rows: pa.RecordBatch
    bounds: Sequence[int]
    """The place of the first row of each group, in order, and the number of rows."""


class PythonCaller(Protocol):
    """Calls the functions of nodes."""

    def results(self, node: PythonCalls, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Call the functions of a node for batches of its inputs.

        Gives as many rows, in the same order, in batches with the columns of ``node.results``; not always as many
        batches.
        """

    def rows(self, node: PythonRows, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Call the function of a node for batches of its input; gives batches with the node's columns."""

    def of_groups(self, node: PythonRows, groups: Iterator[GroupedRows]) -> Iterator[pa.RecordBatch]:
        """Call the function of a node for each group of rows; gives batches with the node's columns."""

    def of_cogroups(
        self, node: PythonCogroups, groups: Iterator[tuple[GroupedRows, GroupedRows]]
    ) -> Iterator[pa.RecordBatch]:
        """Call the function of a node for each group of both inputs' rows; gives batches with the node's columns.

        Both have as many groups, those with equal keys at the same place; a group of one of them may have no rows.
        """

    def of_inputs(
        self, node: PythonAggregate | PythonWindow, groups: Iterator[GroupedRows]
    ) -> Iterator[pa.RecordBatch]:
        """Call the functions of a node for each group of its inputs.

        Gives a row for each group, or of a window for each row, in the same order, in batches with the columns of
        ``node.results``.
        """
