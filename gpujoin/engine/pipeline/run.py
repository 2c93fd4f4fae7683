"""Runs a tree of relational nodes, piece by piece."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa

from gpujoin.backends.registry import BackendRequest, create, create_pipeline, device_pipeline
from gpujoin.config import BackendChoice, Options
from gpujoin.engine.join.hash_join import AnyRun, HashJoin
from gpujoin.engine.memory import HostMemory, prepare_libraries
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.engine.morsels import ahead
from gpujoin.engine.pipeline.aggregation import Aggregation, SetLevel, aggregated_by_sets
from gpujoin.engine.pipeline.clock import OUTPUT, OperationClock
from gpujoin.engine.pipeline.counts import OperationCounts
from gpujoin.engine.pipeline.opaque import OpaquePipeline, renamed
from gpujoin.engine.pipeline.placement import MixedAggregation, MixedPiece, MixedPipeline
from gpujoin.engine.pipeline.recovery import KEPT_INPUT_BYTES, Attempt, ReplayableInput, run_attempts
from gpujoin.engine.pipeline.repeated import KeptParts
from gpujoin.engine.pipeline.resident import ResidentTables
from gpujoin.engine.pipeline.tables import BuiltTable, BuiltTables, TableRows, unnumbered
from gpujoin.engine.pipeline.windows import WindowRun
from gpujoin.engine.spill import SpillStore
from gpujoin.errors import CorruptBlobError, RelationError
from gpujoin.model.backend import BackendName
from gpujoin.model.expressions import Call, EvalMode, Function, Literal
from gpujoin.model.files import Floor, ValueRanges
from gpujoin.model.jointype import Side
from gpujoin.model.pipeline import AnyDevicePipeline, AnyPipelineBackend, NumberedRows, PipelineMetrics, Rung
from gpujoin.model.relations import (
    ConstantTable,
    ExchangeSource,
    Expand,
    Explode,
    FileSlice,
    Filter,
    Join,
    Limit,
    PartialAggregate,
    Project,
    Relation,
    Scan,
    TopN,
    Union,
    Window,
    bind_slices,
)
from gpujoin.plan.complete_groups import may_stop, scanned_keys
from gpujoin.plan.eager_aggregation import EagerAggregation, eager_aggregation
from gpujoin.plan.grouping_sets import GroupingSets, grouping_sets, most_held
from gpujoin.plan.late_keys import LateKeys, late_keys
from gpujoin.plan.runtime_filters import keys_of, may_raise
from gpujoin.plan.skipping import matching_keys, scans_of
from gpujoin.plan.tables import is_table, kept_tables

Input: TypeAlias = Iterable[pa.RecordBatch] | pa.Table | Path
"""Rows of a source: batches, or the path of an Arrow IPC file, which is mapped into memory."""

PIECE_BYTES = 64 << 20
"""Bytes of the pieces that scans and sources are cut into; measured in `benchmarks/pipeline/README.md`, "pieces"."""

CAREFUL_PIECE_BYTES = 8 << 20
"""Bytes of pieces on the lowest rung, where memory may have been short: an eighth of :data:`PIECE_BYTES`."""

DEVICE_PIECE_BYTES = 512 << 20
"""Bytes of pieces for a device: enough rows that launching a kernel takes little time compared with running it."""

HEAVY = 8
"""Eager aggregation is used where this many rows of a sample of the build side have the same key."""

MOST_KEYS = 1 << 18
"""Most keys of a build side that are looked up while the other side is read; measured in `docs/performance.md`.

Sorting them takes some 5 ms. With more, looking them up costs as much as the join that it saves rows for.
"""

MOST_KEYS_OF_CONDITIONS = 1 << 21
"""The same for joins with a condition, which cost several times as much a row. Sorting takes some 70 ms."""

_OF_TABLES = 8
"""A table that takes more than this part of the memory for tables is read by each task: others would have no room."""

_Piece: TypeAlias = Any
_T = TypeVar("_T")


def run(
    tree: Relation,
    inputs: Mapping[int, Input] | None = None,
    slices: Mapping[int, Sequence[FileSlice]] | None = None,
    *,
    options: Options | None = None,
    metrics: PipelineMetrics | None = None,
    join_metrics: JoinMetrics | None = None,
    piece_bytes: int | None = None,
    device: AnyDevicePipeline | None = None,
    rung: Rung | None = None,
    tables: BuiltTables | None = None,
    residents: ResidentTables | None = None,
    keep_tables: bool = False,
    whole: Collection[int] = (),
) -> Iterator[pa.RecordBatch]:
    """Run a tree, as :func:`~gpujoin.engine.pipeline.supports` admits it, over its inputs.

    Failures of memory or of a library are retried (`engine.pipeline.recovery`). Batches have exactly ``tree.schema``,
    about ``options.batch_bytes``, and no promised order; without columns, only batches with rows are given.

    Inputs and slices are by the index of the source or scan. An iterator is used up by the first source that reads
    it; a scan that is not named has slices of its own. ``backend=gpu`` asks for a GPU; otherwise the pipeline runs on
    the CPU, unless a device is given. What a device does not compute, and what does not fit there, runs on the CPU:
    from ``rung`` on, which is ``Rung.CAREFUL`` for a task that has failed before, and otherwise the highest. Scans
    and sources are cut into pieces of ``piece_bytes``, or of what suits the backend.

    What is kept in ``tables`` makes room for build sides that need it. With ``keep_tables`` those that are made of
    files alone, and probed by others, are taken from there, and kept there, on the CPU's highest rung. So are the rows
    of build sides that are made of the scans in ``whole`` alone, which all tasks read whole, while they are small. On a
    device both are kept in ``residents``, which are those of that device.

    Raises ``RelationError`` if an input is missing or has other columns, ``ScanError``, naming the file, if one
    cannot be read as planned, ``ExpressionEvaluationError`` where Spark raises in ANSI mode, and ``InvalidTextError``
    if a function that reads characters meets text that is no UTF-8.
    """
    options = options or Options()
    metrics = metrics if metrics is not None else PipelineMetrics()
    join_metrics = join_metrics if join_metrics is not None else JoinMetrics()
    tree, inputs = bind_slices(tree, slices or {}), inputs or {}
    if device is None and options.backend is BackendChoice.GPU and rung is None:
        device = device_pipeline(create(BackendName.GPU, BackendRequest(threads=options.cpu_threads or 1)))
    prepare_libraries()
    start = _start(device, rung)
    # The libraries of the backend count as base memory, which the budget does not include.
    first = _backend_of(start, options)
    memory = HostMemory.of(options.memory_budget)
    asked, options = options, memory.bounded(options)
    kept = min(KEPT_INPUT_BYTES, options.memory_budget // 8)
    replayable = {
        number: ReplayableInput(source, kept)
        for number, source in inputs.items()
        if not isinstance(source, (pa.Table, Path, Sequence))
    }
    sources = {**inputs, **replayable}

    def attempt(rung: Rung) -> Attempt:
        settings, size = options, piece_bytes or memory.piece_bytes(PIECE_BYTES)
        host = first if rung is start else _backend_of(rung, options)
        backend: AnyPipelineBackend | MixedPipeline = host
        if rung is Rung.CAREFUL:
            settings, size = dataclasses.replace(options, cpu_threads=1), min(size, CAREFUL_PIECE_BYTES)
        elif rung is Rung.DEVICE:
            assert device is not None
            size = piece_bytes or DEVICE_PIECE_BYTES
            backend = MixedPipeline(device, host, options, metrics, join_metrics, size, residents)
        opaque = not all(backend.carries(node.schema) and not isinstance(node, Explode) for node in tree.walk())
        placed = OpaquePipeline(backend, metrics, size) if opaque else backend
        if tables is not None and rung is Rung.CAREFUL:
            tables.clear()
        fast, on_device = rung is Rung.FAST, rung is Rung.DEVICE
        runner = _Runner(
            placed, sources, settings, metrics, join_metrics, memory, size, None if on_device else tables, asked,
            keeps_tables=keep_tables and fast, whole=frozenset(whole if fast or on_device else ()),
        )  # fmt: skip
        if keep_tables and on_device:
            runner.keep_rows_of(kept_tables(tree))
        return Attempt(rung, runner.run(tree), backend.faults)

    return run_attempts(start, attempt, list(replayable.values()), metrics, options.fallback)


def _start(device: AnyDevicePipeline | None, rung: Rung | None) -> Rung:
    if rung is not None:
        return rung
    return Rung.FAST if device is None else Rung.DEVICE


def _backend_of(rung: Rung, options: Options) -> AnyPipelineBackend:
    """The CPU's pipeline for a rung, which also computes what a device does not."""
    threads = 1 if rung is Rung.CAREFUL else options.cpu_threads or 1
    return create_pipeline(BackendRequest(threads=threads), Rung.FAST if rung is Rung.DEVICE else rung)


class _Runner:
    def __init__(
        self,
        backend: AnyPipelineBackend | MixedPipeline | OpaquePipeline,
        inputs: Mapping[int, Input],
        options: Options,
        metrics: PipelineMetrics,
        join_metrics: JoinMetrics,
        memory: HostMemory,
        piece_bytes: int,
        tables: BuiltTables | None,
        asked: Options,
        *,
        keeps_tables: bool,
        whole: frozenset[int],
    ) -> None:
        self._backend = backend
        self._inputs = inputs
        self._options = options
        self._metrics = metrics
        self._join_metrics = join_metrics
        self._memory = memory
        self._piece_bytes = piece_bytes
        self._tables = tables
        self._asked = asked
        """Settings before memory was looked at: what is kept is named by them, and is the same with more memory."""
        self._keeps_tables = keeps_tables
        self._whole = whole
        self._with_kept_rows: frozenset[int] = frozenset()

    def keep_rows_of(self, build_sides: Sequence[Relation]) -> None:
        """Keep the rows of build sides, whatever they are made of."""
        self._with_kept_rows = frozenset(map(id, build_sides))

    def run(self, tree: Relation) -> Iterator[pa.RecordBatch]:
        self._clock = OperationClock(tree, self._metrics.seconds)
        self._counts = OperationCounts(self._clock)
        self._repeated = KeptParts(tree, self._metrics)
        self._places = Counter(id(node) for node in tree.walk())
        self._may_stop = may_stop(tree)
        self._given: dict[int, Iterator[_Piece]] = {}
        self._wanted: defaultdict[int, list[tuple[int, ValueRanges]]] = defaultdict(list)
        self._ascending: dict[int, tuple[int, ...]] = {}
        with self._counts.added_to(self._metrics):
            output = self._clock.timed(OUTPUT, self._output(tree))
            yield from self._counts.returned(tree, output)

    def _output(self, tree: Relation) -> Iterator[pa.RecordBatch]:
        for piece in self._pieces(tree):
            yield from self._backend.give_out(piece, tree.schema, self._options.batch_bytes)

    def _pieces(self, node: Relation) -> Iterator[_Piece]:
        given = self._given.pop(id(node), None)
        if given is not None:
            return given
        if node not in self._repeated:
            return self._computed(node)
        pieces = self._repeated.pieces(
            node,
            lambda: map(self._backend.collect, self._computed(node)),
            lambda piece: self._backend.size(piece)[1],
            self._backend.budget(self._memory.build_bytes),
        )
        return (renamed(piece, node.schema) for piece in pieces)

    def _computed(self, node: Relation) -> Iterator[_Piece]:
        return self._watched(self._clock.timed(self._clock.name(node), self._pieces_of(node)))

    def _watched(self, pieces: Iterator[_Piece]) -> Iterator[_Piece]:
        """Check the memory taken whenever a node has made a piece."""
        for piece in pieces:
            self._memory.watch()
            yield piece

    def _pieces_of(self, node: Relation) -> Iterator[_Piece]:
        match node:
            case Scan():
                if node.slices is None:
                    raise RelationError(f"scan {node.index} has no slices; give them to run()")
                wanted, ascending = self._wanted.get(id(node), ()), self._ascending.get(id(node), ())
                known = wanted or ascending
                scan = dataclasses.replace(node, wanted=tuple(wanted), ascending=ascending) if known else node
                return self._counts.read(
                    node, iter(self._backend.scan(scan, self._piece_bytes, self._metrics)), self._metrics
                )
            case ExchangeSource() | ConstantTable():
                return self._source(node)
            case Filter():
                return self._mapped(node.child, lambda piece: self._backend.filter(piece, node.condition))
            case Project():
                return self._mapped(node.child, lambda piece: self._backend.project(piece, node.expressions()))
            case Expand():
                return self._expand(node)
            case Explode():
                return self._explode(node)
            case Join():
                return self._join(node)
            case PartialAggregate():
                return self._aggregate(node)
            case Window():
                return self._window(node)
            case TopN():
                return self._top(node)
            case Limit():
                return self._limit(node)
            case Union():
                return itertools.chain.from_iterable(self._pieces(child) for child in node.inputs)
        raise RelationError(f"{type(node).__name__} is no node that a pipeline runs")

    def _collected(self, pieces: Iterator[_Piece]) -> Iterator[_Piece]:
        return self._ahead(self._backend.collect, pieces)

    def _ahead(self, work: Callable[[_Piece], _T], pieces: Iterator[_Piece]) -> Iterator[_T]:
        """Results of work on pieces: with several threads that on the next piece is done while one is used."""
        is_on_device = isinstance(self._plain_backend, MixedPipeline)
        return ahead(work, pieces, 0 if is_on_device or (self._options.cpu_threads or 1) == 1 else 1)

    def _mapped(self, child: Relation, function: Callable[[_Piece], _Piece]) -> Iterator[_Piece]:
        return map(function, self._pieces(child))

    def _expand(self, node: Expand) -> Iterator[_Piece]:
        for piece in map(self._backend.collect, self._pieces(node.child)):
            for projection in node.projections:
                yield self._backend.project(piece, [output.expression for output in projection])

    def _explode(self, node: Explode) -> Iterator[_Piece]:
        assert isinstance(self._backend, OpaquePipeline)
        for piece in map(self._backend.collect, self._pieces(node.child)):
            yield from self._backend.explode(piece, node)

    # -- sources ---------------------------------------------------------------------------------------------

    def _source(self, node: ExchangeSource | ConstantTable) -> Iterator[_Piece]:
        if isinstance(node, ConstantTable):
            self._counts.give(node, node.rows)
            yield self._backend.take_in([node.batch], node.columns, self._metrics)
            return
        if node.index not in self._inputs:
            raise RelationError(f"source {node.index} has no input; inputs are {sorted(self._inputs)}")
        batches: list[pa.RecordBatch] = []
        size = 0
        for batch in self._batches(self._inputs[node.index]):
            if len(batch.schema) != len(node.columns):
                raise RelationError(
                    f"source {node.index} has {len(node.columns)} columns, its input {batch.schema.names}"
                )
            if batches and batch.schema != batches[0].schema:
                yield self._backend.take_in(batches, node.columns, self._metrics)
                batches, size = [], 0
            self._metrics.source_rows += batch.num_rows
            nbytes = batch.nbytes
            self._counts.give(node, batch.num_rows, nbytes)
            batches.append(batch)
            size += nbytes
            if size >= self._piece_bytes:
                yield self._backend.take_in(batches, node.columns, self._metrics)
                batches, size = [], 0
        if batches:
            yield self._backend.take_in(batches, node.columns, self._metrics)

    def _batches(self, source: Input) -> Iterator[pa.RecordBatch]:
        if isinstance(source, pa.Table):
            yield from source.to_batches()
        elif isinstance(source, Path):
            try:
                with pa.memory_map(str(source)) as mapped, pa.ipc.open_file(mapped) as reader:
                    for i in range(reader.num_record_batches):
                        yield reader.get_batch(i)
            except (OSError, pa.ArrowInvalid) as problem:
                raise CorruptBlobError(f"{source}: no readable Arrow file: {problem}") from problem
        else:
            yield from source

    # -- joins ---------------------------------------------------------------------------------------------

    def _join(self, node: Join) -> Iterator[_Piece]:
        side = node.build_side
        name = self._table_name(node)
        kept = None if name is None or self._tables is None else self._tables.get(name)
        if kept is not None:
            self._metrics.tables_kept += 1
            yield from self._probed(node, kept.join.start(self._join_metrics), kept.piece, self._streamed(node))
            return
        pieces, rest = self._build_pieces(node.side(side))
        if rest is not None:
            yield from self._gather_join(node, itertools.chain(pieces, rest), None, self._streamed(node))
            return
        build = self._backend.concat(pieces, node.side(side).schema, self._metrics)
        pieces.clear()
        if name is None:
            self._skip_without_match(node, build)
            yield from self._joined(node, build, self._streamed(node))
        else:
            yield from self._gather_join(node, iter([build]), build, self._streamed(node), name)

    def _skip_without_match(self, node: Join, build: _Piece) -> None:
        """Have scans of the streamed side leave out row groups without a row for the build side."""
        side = node.build_side.other
        streamed, read = node.side(side), keys_of(node, side)
        most = MOST_KEYS if node.spec.condition is None else MOST_KEYS_OF_CONDITIONS
        for of_build, of_streamed in matching_keys(node):
            scans = [
                (scan, column)
                for scan, column in scans_of(streamed, of_streamed, read, self._repeated)
                if self._places[id(scan)] == 1  # a node that stands elsewhere, too, gives all rows there
            ]
            ranges = self._backend.value_ranges(build, of_build, most) if scans else None
            if ranges is not None:
                for scan, column in scans:
                    self._wanted[id(scan)].append((column, ranges))

    def _streamed(self, node: Join) -> Iterator[_Piece]:
        return self._pieces(node.side(node.build_side.other))

    def _table_name(self, node: Join) -> Hashable | None:
        """What a join's build side is kept under; ``None`` where it is not."""
        side = node.build_side
        table, streamed = node.side(side), node.side(side.other)
        if not self._keeps_tables or not is_table(table) or is_table(streamed) or not _is_settled(table):
            return None
        # A node, which compares conditions, as specifications of joins do not.
        sides = {side: unnumbered(table), side.other: ExchangeSource(0, streamed.schema)}
        named = dataclasses.replace(node, left=sides[Side.LEFT], right=sides[Side.RIGHT])
        schemas = tuple(self._backend.join_schema(node, side) for side in Side)
        return type(self._backend), named.signature(), schemas, self._asked

    def _build_pieces(self, node: Relation) -> tuple[list[_Piece], Iterator[_Piece] | None]:
        """The pieces of a build side; beyond the memory budget the first pieces, and an iterator over the others."""
        name = self._rows_name(node)
        kept = None if name is None else self._kept_rows(name)
        if kept is not None:
            self._metrics.tables_kept += 1
            for piece in kept:
                self._counts.take(node, *self._backend.size(piece))
            return list(kept), None
        pieces: list[_Piece] = []
        size = 0
        source = self._collected(self._pieces(node))
        for piece in source:
            pieces.append(piece)
            rows, nbytes = self._backend.size(piece)
            self._counts.take(node, rows, nbytes)
            size += nbytes
            while size > self._backend.budget(self._memory.build_bytes):
                if self._tables is None or not self._tables.drop():
                    return pieces, source
        if name is not None:
            pieces = self._keep_rows(name, node, pieces, size)
        return pieces, None

    def _kept_rows(self, name: Hashable) -> Sequence[_Piece] | None:
        """The pieces of a build side that an earlier run has kept."""
        if isinstance(self._plain_backend, MixedPipeline):
            piece = self._plain_backend.kept(name)
            return None if piece is None else (piece,)
        rows = None if self._tables is None else self._tables.rows(name)
        return None if rows is None else rows.pieces

    def _keep_rows(self, name: Hashable, node: Relation, pieces: list[_Piece], size: int) -> list[_Piece]:
        """Keep the pieces of a build side for later runs, on the device as one; gives them as they are kept."""
        if isinstance(self._plain_backend, MixedPipeline):
            pieces = [self._backend.concat(pieces, node.schema, self._metrics)]
            if isinstance(pieces[0], MixedPiece):
                self._plain_backend.keep(name, pieces[0])
        elif self._tables is not None and size <= self._memory.tables_bytes // _OF_TABLES:
            self._tables.put(name, TableRows(tuple(pieces), size), self._memory.tables_bytes)
        return pieces

    def _rows_name(self, node: Relation) -> Hashable | None:
        """What the rows of a build side are kept under; ``None`` where they are not.

        Not those of which this run reads only a part, or that it has or keeps otherwise.
        """
        scans = [scan for scan in node.walk() if isinstance(scan, Scan)]
        is_whole = id(node) in self._with_kept_rows or all(scan.index in self._whole for scan in scans)
        if not scans or not is_whole or any(id(scan) in self._wanted for scan in scans):
            return None
        if not is_table(node) or not _is_settled(node):
            return None
        if any(id(part) in self._given or part in self._repeated for part in node.walk()):
            return None
        return "rows", type(self._backend), unnumbered(node).signature(), self._asked

    def _joined(self, node: Join, build: _Piece, streamed: Iterator[_Piece]) -> Iterator[_Piece]:
        """Join pieces of the stream side with a build side in memory."""
        lookup = self._backend.lookup(node, build)
        if lookup is None:
            yield from self._gather_join(node, iter([build]), build, streamed)
            return
        for piece in streamed:
            self._metrics.query_joins += 1
            yield from lookup.join(piece)
        yield from lookup.finish()

    def _gather_join(
        self,
        node: Join,
        built: Iterator[_Piece],
        known: _Piece | None,
        pieces: Iterator[_Piece],
        name: Hashable | None = None,
    ) -> Iterator[_Piece]:
        """Build one side, which is kept under a name if one is given, and join the pieces of the other with it."""
        backend, side = self._backend, node.build_side
        with ExitStack() as stack:
            join = stack.enter_context(
                HashJoin(
                    node.spec, backend.join_schema(node, Side.LEFT), backend.join_schema(node, Side.RIGHT),
                    build_side=side, options=self._options, backend=self._backend.joins,
                    metrics=self._join_metrics,
                )
            )  # fmt: skip
            join.build(batch for piece in built for batch in backend.to_join(piece, node, side))
            if name is not None and self._tables is not None and not join.spilled:
                stack.pop_all()  # it stays open
                self._tables.put(name, BuiltTable(join, known), self._memory.tables_bytes)
            passed = join.start()
            if join.spilled:  # in one call: each call would write its own files
                stack.callback(passed.close)
                for _ in passed.probe(self._to_probe(node, pieces)):
                    raise AssertionError("a join whose build side is on disk gives rows when it is finished only")
            yield from self._probed(node, passed, known, pieces)

    def _probed(self, node: Join, passed: AnyRun, known: _Piece | None, pieces: Iterator[_Piece]) -> Iterator[_Piece]:
        """Join pieces of the streamed side with a built side."""
        backend, side = self._backend, node.build_side
        for streamed in self._collected(pieces):
            if passed.can_stop:
                break
            self._metrics.gather_joins += 1
            joined = self._pairs(node, passed.probe(backend.to_join(streamed, node, side.other)))
            yield from backend.from_join(joined, node, {side: known, side.other: streamed}, self._metrics)
        last = self._pairs(node, passed.finish())
        yield from backend.from_join(last, node, {side: known, side.other: None}, self._metrics)

    def _pairs(self, node: Join, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self._counts.given(node, iter(batches), lambda batch: (batch.num_rows, batch.nbytes))

    def _to_probe(self, node: Join, pieces: Iterator[_Piece]) -> Iterator[pa.RecordBatch]:
        for piece in self._collected(pieces):
            self._metrics.gather_joins += 1
            yield from self._backend.to_join(piece, node, node.build_side.other)

    # -- aggregation and limits ----------------------------------------------------------------------------

    def _aggregate(self, node: PartialAggregate) -> Iterator[_Piece]:
        eager = eager_aggregation(node)
        if eager is not None:
            return self._aggregated_eagerly(node, eager)
        backend = self._plain_backend
        if isinstance(backend, MixedPipeline):
            return self._groups_of(node, self._aggregated(node, self._pieces(node.child)))
        sets = None if node.child in self._repeated else grouping_sets(node)
        if sets is not None and not backend.carries(sets.finest.child.schema):
            sets = None  # a column that no set reads is opaque, so the rows below the Expand are Arrow tables
        late = late_keys(node if sets is None else sets.finest, self._repeated)
        if late is not None and backend.carries(late.built.schema) and backend.carries(late.numbered.child.schema):
            return self._aggregated_late(backend, node, sets, late)
        if sets is None:
            return self._groups_of(node, self._aggregated_in_order(node))
        return self._grouped(backend, node, sets.finest, sets, self._pieces(sets.finest.child))

    def _groups_of(self, node: PartialAggregate, pieces: Iterator[_Piece]) -> Iterator[_Piece]:
        """Count the groups of an aggregation."""
        return self._counts.given(node, pieces, self._backend.size)

    def _grouped(
        self,
        backend: AnyPipelineBackend,
        node: PartialAggregate,
        finest: PartialAggregate,
        sets: GroupingSets | None,
        pieces: Iterator[_Piece],
    ) -> Iterator[_Piece]:
        """Aggregate rows by all keys or, where there are sets, by all of these; groups count as those of ``node``."""
        if sets is None:
            yield from self._groups_of(node, self._aggregated(finest, pieces))
            return
        levels = [SetLevel(each.source, each.kept) for each in sets.sets]
        for place, groups in self._groups_of_sets(backend, node, finest, levels, pieces):
            yield backend.project(groups, sets.sets[place].outputs)

    @property
    def _plain_backend(self) -> AnyPipelineBackend | MixedPipeline:
        """The backend of rows without opaque columns, as those of aggregations are."""
        return self._backend.inner if isinstance(self._backend, OpaquePipeline) else self._backend

    def _aggregated_eagerly(self, node: PartialAggregate, eager: EagerAggregation) -> Iterator[_Piece]:
        """Aggregate over a join, with eager aggregation of the build side where it has keys of many rows."""
        backend, join = self._backend, eager.join
        side = join.build_side
        pieces, rest = self._build_pieces(join.side(side))
        if rest is not None:
            pairs = self._gather_join(join, itertools.chain(pieces, rest), None, self._streamed(join))
            yield from self._groups_of(node, self._aggregated(node, pairs))
            return
        build = backend.concat(pieces, join.side(side).schema, self._metrics)
        self._skip_without_match(join, build)
        streamed = self._streamed(join)
        rows = backend.size(build)[0]
        pieces.clear()
        keys = [key.of(side) for key in join.spec.keys]
        most_pairs = Literal(value=rows, type=pa.int64())
        sums = [
            Call(function=Function.MULTIPLY, arguments=(total, most_pairs), mode=EvalMode.ANSI, type=pa.int64())
            for total in eager.sums
        ]
        if backend.heaviest(build, keys) < HEAVY or not backend.proves([*eager.of_build, *sums], [build]):
            yield from self._groups_of(node, self._aggregated(node, self._joined(join, build, streamed)))
            return
        self._metrics.eager_aggregations += 1
        groups = list(self._aggregated(eager.built, iter([build])))
        grouped_build = backend.concat(groups, eager.built.schema, self._metrics)
        joined = self._pairs_or_sums(eager, build, grouped_build, streamed)
        for piece in self._groups_of(node, self._aggregated(eager.final, joined)):
            yield backend.project(piece, eager.outputs)

    def _pairs_or_sums(
        self, eager: EagerAggregation, build: _Piece, built: _Piece, streamed: Iterator[_Piece]
    ) -> Iterator[_Piece]:
        """Input of the final aggregation: sums over all pairs of a key where nothing can fail, else single pairs."""
        backend = self._backend

        def is_exact(piece: _Piece) -> bool:
            return backend.proves(eager.of_pairs, [piece, build]) and backend.proves(eager.of_joined, [piece, built])

        for exact, pieces in itertools.groupby(self._collected(streamed), is_exact):
            node, side, values = (eager.joined, built, eager.aggregated) if exact else (eager.join, build, eager.plain)
            for joined in self._joined(node, side, pieces):
                yield backend.project(joined, values)

    def _aggregated(
        self, node: PartialAggregate, pieces: Iterator[_Piece], scanned: Mapping[int, int] = MappingProxyType({})
    ) -> Iterator[_Piece]:
        """Aggregate pieces. ``scanned`` are keys, by columns of a scan, that may tell which groups are complete."""
        backend, budget = self._plain_backend, 2 * self._memory.state_bytes
        with ExitStack() as stack:
            new_store = partial(self._new_store, stack)
            if isinstance(backend, MixedPipeline):
                mixed = MixedAggregation(backend, node, budget, new_store)
                for piece in pieces:
                    yield from mixed.add(piece)
                yield from mixed.finish()
                return
            state = backend.aggregate(node, self._metrics)
            aggregation = Aggregation(state, node, budget, self._metrics, new_store, ordered=state)
            for states, floor in self._ahead(lambda piece: (state.reduce(piece), backend.floor(piece)), pieces):
                key = None if floor is None else scanned.get(floor.column)
                of_key = None if floor is None or key is None else Floor(key, floor.value)
                yield from aggregation.add_groups(states, of_key)
            yield from aggregation.finish()

    def _aggregated_in_order(self, node: PartialAggregate) -> Iterator[_Piece]:
        """Aggregate, and give out groups once the files that are scanned tell that no more rows of theirs come."""
        stopped = id(node) in self._may_stop and may_raise(node)
        read = None if stopped else scanned_keys(node, self._repeated)
        if read is not None:
            self._ascending[id(read.scan)] = tuple(read.keys)
        return self._aggregated(node, self._pieces(node.child), {} if read is None else read.keys)

    def _aggregated_late(
        self, backend: AnyPipelineBackend, node: PartialAggregate, sets: GroupingSets | None, late: LateKeys
    ) -> Iterator[_Piece]:
        """Aggregate over a join by numbers of the build side's rows, where more rows come than half of these."""
        pieces, rest = self._build_pieces(late.built)
        build = None if rest is not None else backend.concat(pieces, late.built.schema, self._metrics)
        if build is None or not backend.proves(late.keys, [build]):
            self._given[id(late.built)] = itertools.chain(pieces, rest or ())
            finest = node if sets is None else sets.finest
            yield from self._grouped(backend, node, finest, sets, self._pieces(finest.child))
            return
        rows = backend.numbered_rows(build, late.keys)
        pieces.clear()
        self._given[id(late.given)] = iter([rows.kept(late.kept)])
        joined = self._collected(self._pieces(late.numbered.child))
        first, joined_rows = [], 0
        for piece in joined:
            first.append(piece)
            joined_rows += backend.size(piece)[0]
            if joined_rows > rows.rows // 2:
                break
        else:
            number = len(late.numbered.child.schema) - 1
            whole = (backend.project(rows.appended(piece, number), late.of_rows) for piece in first)
            yield from self._grouped(backend, node, late.by_rows, sets, whole)
            return
        self._metrics.late_keys += 1
        alike = rows.alike(range(len(late.keys)))
        renumbered = (rows.renumbered(piece, alike) for piece in itertools.chain(first, joined))
        if sets is None:
            for groups in self._groups_of(node, self._aggregated(late.numbered, renumbered)):
                yield backend.project(rows.appended(groups, 0), late.of_groups)
            return
        levels = _numbered_levels(sets, late, rows)
        for place, groups in self._groups_of_sets(backend, node, late.numbered, levels, renumbered):
            whole = backend.project(rows.appended(groups, 0), late.of_groups)
            yield backend.project(whole, sets.sets[place].outputs)

    def _groups_of_sets(
        self,
        backend: AnyPipelineBackend,
        node: PartialAggregate,
        finest: PartialAggregate,
        levels: Sequence[SetLevel],
        pieces: Iterator[_Piece],
    ) -> Iterator[tuple[int, _Piece]]:
        """Aggregate rows by several sets; groups come with the place of their set, and count as those of ``node``."""
        budget = 2 * self._memory.state_bytes // most_held(finest, [level.source for level in levels])
        with ExitStack() as stack:
            state = backend.aggregate(finest, self._metrics)
            new_store = partial(self._new_store, stack)
            reduced = self._ahead(state.reduce, pieces)
            for place, groups in aggregated_by_sets(state, finest, levels, reduced, budget, self._metrics, new_store):
                self._counts.give(node, *self._backend.size(groups))
                yield place, groups

    def _new_store(self, stack: ExitStack) -> SpillStore:
        """Make a store that is closed with a stack."""
        return stack.enter_context(SpillStore(self._options, self._metrics))

    def _window(self, node: Window) -> Iterator[_Piece]:
        with ExitStack() as stack:
            new_store = partial(self._new_store, stack)
            run = WindowRun(node, self._backend, self._memory, self._metrics, self._options.batch_bytes, new_store)
            yield from self._counts.given(node, run.pieces(self._pieces(node.child)), self._backend.size)

    def _top(self, node: TopN) -> Iterator[_Piece]:
        best: list[_Piece] = []
        if node.count == 0:
            return
        for piece in self._pieces(node.child):
            best.append(self._backend.top(piece, node.order, node.count))
            if sum(self._backend.size(kept)[0] for kept in best) > max(8 * node.count, 1 << 16):
                best = [self._best(best, node)]
        if best:
            yield from self._counts.given(node, iter([self._best(best, node)]), self._backend.size)

    def _best(self, pieces: Sequence[_Piece], node: TopN) -> _Piece:
        whole = self._backend.concat(pieces, node.schema, self._metrics)
        return self._backend.top(whole, node.order, node.count)

    def _limit(self, node: Limit) -> Iterator[_Piece]:
        left = node.count
        if left == 0:
            return
        for piece in self._pieces(node.child):
            taken = self._backend.head(piece, left)
            rows, nbytes = self._backend.size(taken)
            self._counts.give(node, rows, nbytes)
            left -= rows
            yield taken
            if left <= 0:
                return


def _numbered_levels(sets: GroupingSets, late: LateKeys, rows: NumberedRows[_Piece]) -> list[SetLevel]:
    """The sets over groups by number; each has the numbers of the late keys that it keeps."""
    kept = [late.standing_for(each.kept) for each in sets.sets]
    alike = {late_kept: rows.alike(late_kept) for _, late_kept in kept if late_kept}
    levels = []
    for each, (keys, late_kept) in zip(sets.sets, kept, strict=True):
        is_same = each.source is None or late_kept == kept[each.source][1]
        levels.append(SetLevel(each.source, keys, None if is_same else alike.get(late_kept)))
    return levels


def _is_settled(table: Relation) -> bool:
    """Whether no later version of a file that a table is made of could be taken for what is read now."""
    now_ms = time.time_ns() // 1_000_000
    return all(part.is_settled(now_ms) for scan in table.walk() if isinstance(scan, Scan) for part in scan.slices or ())
