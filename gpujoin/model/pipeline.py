"""The protocol of a pipeline backend, which runs relational nodes over pieces of rows, and its counters.

A *piece* is some rows of a relation in the backend's own form. It may be a query not yet run: filters and projections
on it cost nothing until the rows are asked for, so that a backend can fuse them with the scan below or the aggregation
above.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol, TypeAlias, TypeVar

import pyarrow as pa

from gpujoin.errors import DeviceLostError, DeviceMemoryError
from gpujoin.model.backend import AnyBackend, AnyDeviceBackend, CodedRows
from gpujoin.model.expressions import Expression
from gpujoin.model.files import Floor, ValueRanges
from gpujoin.model.jointype import Side
from gpujoin.model.maps import RowMap
from gpujoin.model.ranges import Axis
from gpujoin.model.reasons import Reason
from gpujoin.model.relations import (
    FileFooter,
    FileSlice,
    Join,
    PartialAggregate,
    Relation,
    Scan,
    SortKey,
    Window,
)

FAN_OUT = 16
"""Parts into which rows are divided when they exceed their share of memory.

Enough that one division lets sixteen times as many rows fit, and few enough that each part is written in blobs near a
megabyte."""

PIECE_BYTES = 64 << 20
"""Bytes of the pieces that the CPU's pipeline cuts scans and sources into; measured in `benchmarks/pipeline/README.md`,
"pieces". About so much is copied or kept at a time elsewhere too: late values gathered for a join, batches merged into
a morsel, an input kept for a second run; a single row, or one batch that arrives, may be larger."""

_counting = threading.Lock()

Piece = TypeVar("Piece")
State = TypeVar("State")


class Rung(Enum):
    """How cautiously a pipeline runs. What fails on one rung runs again on a lower one (`engine.pipeline.recovery`).

    Lower rungs are slower and rely on less of the libraries below.
    """

    DEVICE = "on the GPU"
    FAST = "as Polars queries"
    ARROW_SCANS = "as Polars queries over files decoded by PyArrow"
    CAREFUL = "in small pieces, each expression and join by itself"


@dataclass(slots=True)
class PipelineMetrics:
    """Counters of pipelines in one task; :meth:`merge` adds up tasks."""

    files: int = 0
    """File slices read."""
    row_groups: int = 0
    skipped_row_groups: int = 0
    """Row groups read, and those left out by their statistics."""
    skipped_files: int = 0
    """File slices left out by their constants."""
    key_filters: int = 0
    """Times that rows without a match for a join above were left out as they were read: for each piece and join."""
    scanned_rows: int = 0
    source_rows: int = 0
    output_rows: int = 0
    output_batches: int = 0
    """Rows of the row groups read, of sources, and of the result."""
    evaluated: int = 0
    """Expressions computed outside the backend's query, once for each piece."""
    ordered_pieces: int = 0
    """Pieces in the order of their grouping keys, so that each run of equal keys is a group."""
    query_joins: int = 0
    gather_joins: int = 0
    """Pieces joined within the query, and by the gather-map engine."""
    eager_aggregations: int = 0
    """Joins whose build side was aggregated before they were aggregated themselves."""
    regrouped_sets: int = 0
    """Grouping sets that were merged from the groups of a finer one."""
    late_keys: int = 0
    """Aggregations that gathered keys from a build side for groups, not for rows."""
    parts_reused: int = 0
    """Times the rows of a part of the tree were taken from an equal part, not computed again."""
    tables_kept: int = 0
    """Build sides that the process had kept from an earlier run."""
    groups: int = 0
    """Groups that partial aggregations gave out."""
    early_groups: int = 0
    """Groups given out before all input was seen, which more rows may have belonged to."""
    complete_groups: int = 0
    """Groups given out before all input was seen, as files in the order of a key had no more rows of theirs."""
    device_steps: int = 0
    host_steps: int = 0
    """Pieces that a pipeline on a device computed there, and on the host instead."""
    device_joins: int = 0
    """Pieces joined on the device without passing through Arrow."""
    device_retries: int = 0
    """Times device memory ran out for a piece."""
    cpu_runs: int = 0
    """Pipelines begun on a device that were run on the CPU instead."""
    output_bytes: int = 0
    """Bytes of the result, as Arrow data."""
    spills: int = 0
    spill_bytes: int = 0
    """Parts into which groups beyond the memory budget were divided on disk, and bytes written."""
    windows: int = 0
    """Pieces over which window functions were computed, each of whole partitions."""
    oversized_parts: int = 0
    """Parts that were merged in memory although they are over their share of the budget: divided as often as is
    allowed, they are still."""
    recovered: dict[str, int] = field(default_factory=dict)
    """Why parts were computed again on a lower rung (:class:`Rung`), and how many; what failed counts in the other
    counters too."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Time in each operation, without that in its inputs. What a backend puts off counts where it is run: a scan's
    rows may be read only when a join or an aggregation above asks for them. Of what is done ahead by another thread
    the time counts in which it is waited for."""
    rows: dict[str, int] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    """Rows and bytes of the operations whose rows were in memory by themselves, under the same names."""
    read_rows: dict[str, int] = field(default_factory=dict)
    """Rows of the row groups that each scan read, before its filters."""

    def count(self, name: str) -> None:
        """Count one more, under a lock: pieces that are computed ahead are counted by other threads."""
        with _counting:
            setattr(self, name, getattr(self, name) + 1)

    def count_device_retry(self, problem: DeviceMemoryError) -> None:
        """Count work that did not fit a device; a lost device is kept as the reason."""
        self.device_retries += 1
        if isinstance(problem, DeviceLostError):
            why = f"on the CPU: {problem}"
            self.recovered[why] = self.recovered.get(why, 0) + 1

    def merge(self, other: PipelineMetrics) -> None:
        """Add another task's counters to this one's."""
        for item in dataclasses.fields(self):
            own, added = getattr(self, item.name), getattr(other, item.name)
            if isinstance(own, dict):
                for key, amount in added.items():
                    own[key] = own.get(key, 0) + amount
            else:
                setattr(self, item.name, own + added)


class AggregateState(Protocol[Piece, State]):
    """Aggregates rows by key into states, one row for each group, that can be merged exactly."""

    @property
    def merged_rows(self) -> int:
        """Number of rows from which on merging new states pays."""

    def reduce(self, piece: Piece) -> Sequence[State]:
        """Aggregate the rows of a piece into states; into several where memory is short.

        Raises
        ------
        DeviceMemoryError
            If not even a small part of the rows fits the device.
        """

    def merge(self, states: Sequence[State]) -> State:
        """Merge states into one. A single state is merged with itself: its groups may occur several times."""

    def nothing(self) -> State:
        """State of an aggregation without keys over no rows: one row."""

    def finish(self, state: State) -> Piece:
        """Convert a state to the keys and Spark's aggregation buffers."""

    def size(self, state: State) -> tuple[int, int]:
        """Rows and bytes."""

    def slices(self, state: State) -> Iterator[State]:
        """Cut a state of some groups into runs of groups, each of which is copied or converted in little memory.

        Once the first run of a result was given out, the task cannot be tried again in less memory.
        """

    def divide(self, state: State, division: int) -> Sequence[pa.Table]:
        """Divide a state by the hash of its keys, as it goes to disk. Each division uses another hash."""

    def restore(self, batch: pa.RecordBatch) -> State:
        """Read back a state that was on disk."""


class OrderedState(AggregateState[Piece, State], Protocol[Piece, State]):
    """States of groups that are complete before all rows were seen."""

    def below(self, state: State, key: int, floor: Any) -> tuple[State, State]:
        """Divide a state into the groups whose key, by position, is less than a floor, and all others."""

    def merge_ascending(self, states: Sequence[State], key: int) -> Sequence[State]:
        """Merge states so that each group is there once, with little work if the keys at some positions ascend."""


class RegroupingState(OrderedState[Piece, State], Protocol[Piece, State]):
    """States that groups of fewer keys can be made of."""

    def regroup(self, state: State, keys: Sequence[int], numbers: Renumbering | None = None) -> State:
        """Merge the groups with equal values of some keys, by position; the other keys become null.

        With ``numbers``, the first key is a row's number, and is replaced first.
        """


Renumbering: TypeAlias = Any
"""For each row of a build side, by number, the number that replaces its own: a column of the backend's library."""


class NumberedRows(Protocol[Piece]):
    """Rows of a build side by number, of which some columns are gathered later than the others."""

    @property
    def rows(self) -> int:
        """Number of rows."""

    def numbered(self, columns: Sequence[int]) -> Piece:
        """Columns of the rows, and their numbers."""

    def alike(self, late: Sequence[int]) -> Renumbering:
        """Give each row the number of the first row equal to it in some late columns; rows of nulls alone get null."""

    def renumbered(self, piece: Piece, numbers: Renumbering) -> Piece:
        """Replace the numbers in a piece's last column. Nulls stay nulls."""

    def appended(self, piece: Piece, position: int) -> Piece:
        """Append the late columns to a piece, by its column of numbers; nulls for null."""


class Lookup(Protocol[Piece]):
    """A join with a ready build side that the backend runs within its own query."""

    def join(self, piece: Piece) -> Iterator[Piece]:
        """Join rows of the stream side; output as the join's schema says."""

    def finish(self) -> Iterator[Piece]:
        """Rows that are returned only after the stream side has ended."""


class PipelineBackend(Protocol[Piece]):
    """Runs relational nodes over pieces of rows."""

    @property
    def faults(self) -> tuple[type[BaseException], ...]:
        """Exceptions by which the backend's library reports faults of its own, not of the data."""

    @property
    def joins(self) -> AnyBackend | None:
        """Backend for joins by the gather-map engine; ``None``: the CPU backend."""

    def budget(self, host_budget: int) -> int:
        """Bytes that a build side may take here, given its budget in host memory."""

    def scan(self, node: Scan, piece_bytes: int, metrics: PipelineMetrics) -> Iterator[Piece]:
        """Read Parquet. Raises :class:`~gpujoin.errors.ScanError`."""

    def footer(self, node: Scan, path: str) -> FileFooter:
        """Read what planning needs to know of a file. Raises :class:`~gpujoin.errors.ScanError`."""

    def take_in(self, batches: Sequence[pa.RecordBatch], schema: pa.Schema, metrics: PipelineMetrics) -> Piece:
        """Convert Arrow batches, in any layout of the schema's values, to a piece."""

    def give_out(self, piece: Piece, schema: pa.Schema, batch_bytes: int) -> Iterator[pa.RecordBatch]:
        """Convert a piece to batches of exactly a schema, none of them empty."""

    def filter(self, piece: Piece, condition: Expression) -> Piece:
        """Keep the rows for which a condition is true."""

    def project(self, piece: Piece, expressions: Sequence[Expression]) -> Piece:
        """Compute one column for each expression."""

    def collect(self, piece: Piece) -> Piece:
        """Run the query of a piece that is not computed yet."""

    def size(self, piece: Piece) -> tuple[int, int]:
        """Rows and bytes of a collected piece."""

    def concat(self, pieces: Sequence[Piece], schema: pa.Schema, metrics: PipelineMetrics) -> Piece:
        """Put pieces together, collected."""

    def aggregate(self, node: PartialAggregate, metrics: PipelineMetrics) -> RegroupingState[Piece, Any]:
        """Make the aggregation state of a node."""

    def window(self, piece: Piece, node: Window) -> Piece:
        """Compute window functions over a collected piece that has all rows of its partitions."""

    def divide(self, piece: Piece, columns: Sequence[int], division: int) -> Sequence[Piece]:
        """Divide a collected piece by the hash of columns, collected. Each division uses another hash."""

    def top(self, piece: Piece, order: Sequence[SortKey], count: int) -> Piece:
        """The first rows in an order, collected; any ``count`` rows if it is empty."""

    def lookup(self, node: Join, build: Piece) -> Lookup[Piece] | None:
        """Prepare a join within the backend's query; ``None`` if that would be inexact or slow."""

    def heaviest(self, piece: Piece, keys: Sequence[int]) -> int:
        """Rows that the commonest key of a collected piece has at least, by a sample or the number of possible keys."""

    def numbered_rows(self, piece: Piece, late: Sequence[Expression]) -> NumberedRows[Piece]:
        """Number the rows of a collected piece; late columns are computed of all of them."""

    def value_ranges(self, piece: Piece, column: int, most: int) -> ValueRanges | None:
        """Ranges of a column's values, nulls aside, in a collected piece; ``None`` if none are made.

        Of more than ``most`` rows only the least and the greatest value are told.
        """

    def floor(self, piece: Piece) -> Floor | None:
        """Lower bound of a scan's column in the rows after a piece; ``None`` if none is known."""

    def proves(self, expressions: Sequence[Expression], pieces: Sequence[Piece]) -> bool:
        """Whether expressions over the columns of two pieces cannot fail, whichever rows are paired."""

    def join_schema(self, node: Join, side: Side, *, values: bool) -> pa.Schema:
        """Layout of one side's rows for the gather-map engine.

        With ``values`` rows have all that they need; else a backend may keep columns that neither keys nor the
        condition read, and have numbers of their values in the rows.
        """

    def to_join(self, piece: Piece, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Rows of a collected piece for the gather-map engine, in that layout."""

    def from_join(
        self,
        batches: Iterable[pa.RecordBatch],
        node: Join,
        sides: dict[Side, Piece | None],
        metrics: PipelineMetrics,
    ) -> Iterator[Piece]:
        """Convert the output of the gather-map engine to pieces.

        ``sides`` are the pieces that were joined, as far as they are known, with the bounds of their columns, and the
        values that numbers stand for.
        """


AnyPipelineBackend: TypeAlias = PipelineBackend[Any]
"""A pipeline backend whose pieces do not matter to the caller."""


class DevicePipelineBackend(Protocol[Piece]):
    """Runs relational nodes over frames on a device.

    All methods but the scan raise ``DeviceMemoryError`` where frames do not fit.
    """

    @property
    def backend(self) -> AnyDeviceBackend:
        """Backend that joins the frames."""

    def budget(self, host_budget: int) -> int:
        """Bytes that a build side may take here, given its budget in host memory."""

    def obstacles(self, node: Relation) -> tuple[Reason, ...]:
        """Reasons why one node, without its inputs, cannot be computed on the device exactly as Spark would."""

    def carries(self, schema: pa.Schema) -> bool:
        """Whether rows of these types can be on the device."""

    def computes(self, expressions: Sequence[Expression]) -> bool:
        """Whether expressions are computed on the device exactly as in Spark."""

    def scan(self, node: Scan, piece_bytes: int, metrics: PipelineMetrics) -> Iterator[Piece | FileSlice]:
        """Read Parquet. Slices of files that must be read on the host are passed through."""

    def take_in(self, table: pa.Table, schema: pa.Schema) -> Piece:
        """Copy rows, in any layout of a schema's values, to the device."""

    def give_out(self, frame: Piece, schema: pa.Schema) -> pa.RecordBatch:
        """Copy a frame to the host as one batch; text and bytes may have 64-bit offsets."""

    def filter(self, frame: Piece, condition: Expression) -> Piece:
        """Keep the rows for which a condition is true."""

    def project(self, frame: Piece, expressions: Sequence[Expression]) -> Piece:
        """Compute one column for each expression."""

    def size(self, frame: Piece) -> tuple[int, int]:
        """Rows and bytes."""

    def concat(self, frames: Sequence[Piece]) -> Piece:
        """Put frames of the same types together; at least one."""

    def aggregate(self, node: PartialAggregate) -> AggregateState[Piece, Any]:
        """Make the aggregation state of a node."""

    def window(self, frame: Piece, node: Window) -> Piece:
        """Compute window functions of all rows of the node's partitions.

        Raises ``DeviceValueError`` if the device does not compute them of these rows as Spark does.
        """

    def top(self, frame: Piece, order: Sequence[SortKey], count: int) -> Piece:
        """The first rows in an order; any ``count`` rows if it is empty."""

    def slice(self, frame: Piece, start: int, length: int) -> Piece:
        """Rows ``start`` to ``start + length - 1``."""

    def keys(self, frame: Piece, types: Sequence[pa.DataType], null_safe: Sequence[bool]) -> Piece:
        """Make a key frame of :attr:`backend` of key columns, which the device normalises.

        Keys are equal as in Spark: NaN equals NaN, −0.0 equals 0.0, text and bytes compare by bytes.

        Parameters
        ----------
        frame : Frame
            The key columns.
        types : sequence of DataType
            Type in which each is compared with that of the other side; integers are widened to it.
        null_safe : sequence of bool
            For each key whether null equals null; otherwise a row with a null matches nothing.
        """

    def select(self, frame: Piece, at: Sequence[int]) -> Piece:
        """Select columns by position."""

    def hstack(self, frames: Sequence[Piece]) -> Piece:
        """Put the columns of frames side by side."""

    def mask_column(self, mask: Any, rows: int) -> Piece:
        """Make a boolean column of a mask of :attr:`backend`."""

    def takes_keys(self, left: pa.DataType, right: pa.DataType) -> bool:
        """Whether keys of two types are compared on the device, without a cast of values."""

    def row_numbers(self, rows: int) -> Piece:
        """Frame of one int32 column of row numbers."""

    def positions(self, frame: Piece, at: int) -> Any:
        """Values of an int32 column as a vector of :attr:`backend`, with −1 for null."""

    def rows_by_nulls(self, keys: Piece, null_safe: Sequence[bool], but: Any | None) -> dict[int, RowMap]:
        """Divide rows by null pattern, a number whose bit ``i`` is set if key ``i`` is null.

        Only numbers that occur; rows ascend. A null-safe key counts as not null. Rows that a mask ``but`` marks are
        left out.
        """

    def coalesce(self, frame: Piece, first: int, second: int, dtype: pa.DataType) -> Piece:
        """Coalesce two key columns, in their common type, to a frame of one column."""

    def searches(self, axes: Sequence[Axis]) -> bool:
        """Whether rows are searched by these ranges on the device."""

    def ranges(
        self, frame: Piece, axes: Sequence[Axis], key_types: Sequence[pa.DataType], null_safe: Sequence[bool]
    ) -> CodedRows[Piece]:
        """Code rows of a frame for a search by ranges, whose expressions name its columns by position.

        Raises ``ExpressionEvaluationError`` if an operand has no value for some row, and ``DeviceValueError`` if the
        device does not compute it; so does the coding of probe rows.

        Parameters
        ----------
        frame : Frame
            Build rows: the equality keys, then the columns that axes read. So are probe rows.
        axes : sequence of Axis
            One or two, for which :meth:`searches` is true.
        key_types, null_safe
            Type in which each equality key is compared, and whether null equals null.
        """

    def as_of(self, frame: Piece, key_types: Sequence[pa.DataType], null_safe: Sequence[bool]) -> CodedRows[Piece]:
        """Code rows of a frame for a search of the nearest one.

        Parameters
        ----------
        frame : Frame
            Right rows: the equality keys, then the order key. So are left rows.
        key_types, null_safe
            Type in which each equality key is compared, and whether null equals null.
        """


AnyDevicePipeline: TypeAlias = DevicePipelineBackend[Any]
"""A device's pipeline backend whose frames do not matter to the caller."""
