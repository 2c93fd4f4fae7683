"""Runs a tree of relational nodes, piece by piece."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa

from gpujoin.backends.cpu import create_pipeline
from gpujoin.backends.cudf import device_pipeline
from gpujoin.backends.registry import BackendRequest, create
from gpujoin.config import BackendChoice, Options
from gpujoin.engine.memory import HostMemory, prepare_libraries
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.engine.pipeline.aggregate_nodes import AggregateNodes
from gpujoin.engine.pipeline.clock import OUTPUT
from gpujoin.engine.pipeline.context import Piece, RunContext, RunSettings
from gpujoin.engine.pipeline.explode import exploded
from gpujoin.engine.pipeline.join_nodes import JoinNodes
from gpujoin.engine.pipeline.partitions import PartitionRun
from gpujoin.engine.pipeline.placement import MixedPipeline
from gpujoin.engine.pipeline.python_calls import CallingRun
from gpujoin.engine.pipeline.recovery import Attempt, ReplayableInput, run_attempts
from gpujoin.engine.pipeline.tables import TableCache
from gpujoin.engine.pipeline.windows import WindowRun
from gpujoin.errors import CorruptBlobError, RelationError
from gpujoin.model.backend import BackendName
from gpujoin.model.hostgather import buffer_bytes
from gpujoin.model.pipeline import PIECE_BYTES, AnyDevicePipeline, AnyPipelineBackend, PipelineMetrics, Rung
from gpujoin.model.python_calls import PythonCaller
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
    PythonAggregate,
    PythonCalls,
    PythonCogroups,
    PythonRows,
    PythonWindow,
    Relation,
    Scan,
    TopN,
    Union,
    Window,
    bind_slices,
)
from gpujoin.plan.distribution import kept_tables

Input: TypeAlias = Iterable[pa.RecordBatch] | pa.Table | Path
"""Rows of a source: batches, or the path of an Arrow IPC file, which is mapped into memory."""

CAREFUL_PIECE_BYTES = 8 << 20
"""Bytes of pieces on the lowest rung, where memory may have been short: an eighth of
:data:`~gpujoin.model.pipeline.PIECE_BYTES`."""

DEVICE_PIECE_BYTES = 512 << 20
"""Bytes of pieces for a device: launching a kernel takes little time compared with running it over so many."""


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
    cache: TableCache | None = None,
    caller: PythonCaller | None = None,
) -> Iterator[pa.RecordBatch]:
    """Run a tree, as :func:`~gpujoin.engine.pipeline.supports` admits it, over its inputs.

    Failures of memory or of a library are retried (`engine.pipeline.recovery`). Batches have exactly ``tree.schema``,
    about ``options.batch_bytes``, and no promised order; without columns, only batches with rows are given.

    Inputs and slices are by the index of the source or scan. An iterator is used up by the first source that reads
    it; a scan that is not named has slices of its own. ``backend=gpu`` asks for a GPU; otherwise the pipeline runs on
    the CPU, unless a device is given. What a device does not compute, and what does not fit there, runs on the CPU:
    from ``rung`` on, which is ``Rung.CAREFUL`` for a task that has failed before, and otherwise the highest. Scans
    and sources are cut into pieces of ``piece_bytes``, or of what suits the backend.

    Tables are taken from ``cache`` and stored there on a device, and on the CPU's highest rung. Python functions are
    called by ``caller``; once one has been called, nothing is retried.

    Raises ``RelationError`` if an input is missing or has other columns, ``ScanError``, naming the file, if one
    cannot be read as planned, ``ExpressionEvaluationError`` where Spark raises in ANSI mode, ``InvalidTextError`` if a
    function that reads characters meets text that is no UTF-8, and ``PythonFunctionError`` if a Python function fails.
    """
    options, cache = options or Options(), cache or TableCache()
    metrics = metrics if metrics is not None else PipelineMetrics()
    join_metrics = join_metrics if join_metrics is not None else JoinMetrics()
    tree, inputs = bind_slices(tree, slices or {}), inputs or {}
    if device is None and options.backend is BackendChoice.GPU and rung is None:
        device = device_pipeline(create(BackendName.GPU, BackendRequest(threads=options.cpu_threads or 1)))
    prepare_libraries()
    start = _start(device, rung)
    # The libraries of the backend count as base memory, which the budget does not include.
    first = _backend_of(start, options)
    memory = HostMemory.from_budget(options.memory_budget)
    requested_options, options = options, memory.bounded(options)
    replay_bytes = min(PIECE_BYTES, options.memory_budget // 8)
    replayable = {
        number: ReplayableInput(source, replay_bytes)
        for number, source in inputs.items()
        if not isinstance(source, (pa.Table, Path, Sequence))
    }
    sources = {**inputs, **replayable}
    calling = CallingRun(caller)

    def attempt(rung: Rung) -> Attempt:
        settings, size = options, piece_bytes or memory.piece_bytes(PIECE_BYTES)
        host = first if rung is start else _backend_of(rung, options)
        backend: AnyPipelineBackend | MixedPipeline = host
        if rung is Rung.CAREFUL:
            settings, size = dataclasses.replace(options, cpu_threads=1), min(size, CAREFUL_PIECE_BYTES)
        elif rung is Rung.DEVICE:
            assert device is not None
            size = piece_bytes or DEVICE_PIECE_BYTES
            backend = MixedPipeline(device, host, options, metrics, join_metrics, size, cache.resident)
        if cache.built is not None and rung is Rung.CAREFUL:
            cache.built.clear()
        stored_rows = kept_tables(tree) if cache.stores_build_sides and rung is Rung.DEVICE else ()
        of_run = RunSettings(
            backend,
            settings,
            requested_options,
            memory,
            size,
            metrics,
            join_metrics,
            cache.on_rung(rung),
            frozenset(stored_rows),
            calling,
        )
        return Attempt(rung, _Run(tree, sources, of_run).batches(), backend.faults)

    return run_attempts(start, attempt, [*replayable.values(), calling], metrics, options.fallback)


def _start(device: AnyDevicePipeline | None, rung: Rung | None) -> Rung:
    if rung is not None:
        return rung
    return Rung.FAST if device is None else Rung.DEVICE


def _backend_of(rung: Rung, options: Options) -> AnyPipelineBackend:
    """The CPU's pipeline for a rung, also used beside a device."""
    threads = 1 if rung is Rung.CAREFUL else options.cpu_threads or 1
    return create_pipeline(BackendRequest(threads=threads), Rung.FAST if rung is Rung.DEVICE else rung)


class _Run(RunContext):
    """One attempt at a tree: computes each node from the pieces of its children."""

    def __init__(self, tree: Relation, inputs: Mapping[int, Input], settings: RunSettings) -> None:
        super().__init__(tree, settings)
        self._tree = tree
        self._inputs = inputs

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Compute the tree."""
        with self.counts.added_to(self.metrics):
            output = self.clock.timed(OUTPUT, self._output())
            yield from self.counts.returned(self._tree, output)

    def _output(self) -> Iterator[pa.RecordBatch]:
        for piece in self.pieces(self._tree):
            yield from self.backend.give_out(piece, self._tree.schema, self.options.batch_bytes)

    def pieces(self, node: Relation) -> Iterator[Piece]:
        """Compute a node, or return its pieces if they were computed before."""
        pieces = self.computed.pop(node, None)
        if pieces is not None:
            return pieces
        if node not in self.repeated:
            return self._computed(node)
        return self.repeated.pieces(
            node,
            lambda: map(self.backend.collect, self._computed(node)),
            lambda piece: self.backend.size(piece)[1],
            self.backend.budget(self.memory.build_bytes),
        )

    def _computed(self, node: Relation) -> Iterator[Piece]:
        return self._watched(self.clock.timed(self.clock.name(node), self._pieces_of(node)))

    def _watched(self, pieces: Iterator[Piece]) -> Iterator[Piece]:
        """Check the memory taken whenever a node has made a piece."""
        for piece in pieces:
            self.memory.watch()
            yield piece

    def _pieces_of(self, node: Relation) -> Iterator[Piece]:
        match node:
            case Scan():
                if node.slices is None:
                    raise RelationError(f"scan {node.index} has no slices; give them to run()")
                ranges, ascending = self.match_ranges.get(node, ()), self.ascending.get(node, ())
                is_narrowed = ranges or ascending
                scan = (
                    dataclasses.replace(node, match_ranges=tuple(ranges), ascending=ascending) if is_narrowed else node
                )
                return self.counts.read(
                    node, iter(self.backend.scan(scan, self.settings.piece_bytes, self.metrics)), self.metrics
                )
            case ExchangeSource() | ConstantTable():
                return self._source(node)
            case Filter():
                return self._mapped(node.child, lambda piece: self.backend.filter(piece, node.condition))
            case Project():
                return self._mapped(node.child, lambda piece: self.backend.project(piece, node.expressions()))
            case Expand():
                return self._expand(node)
            case Explode():
                return self._explode(node)
            case PythonCalls() | PythonRows() | PythonAggregate() | PythonCogroups() | PythonWindow():
                return self.counts.pass_on(node, self._called(node), self.backend.size)
            case Join():
                return JoinNodes(self).pieces(node)
            case PartialAggregate():
                return AggregateNodes(self).pieces(node)
            case Window():
                return self._window(node)
            case TopN() | Limit():
                return self._top(node) if isinstance(node, TopN) else self._limit(node)
            case Union():
                return itertools.chain.from_iterable(self.pieces(child) for child in node.inputs)
        raise RelationError(f"{type(node).__name__} is no node that a pipeline runs")

    def _mapped(self, child: Relation, function: Callable[[Piece], Piece]) -> Iterator[Piece]:
        return map(function, self.pieces(child))

    def _expand(self, node: Expand) -> Iterator[Piece]:
        for piece in map(self.backend.collect, self.pieces(node.child)):
            for projection in node.projections:
                yield self.backend.project(piece, [output.expression for output in projection])

    def _explode(self, node: Explode) -> Iterator[Piece]:
        for piece in map(self.backend.collect, self.pieces(node.child)):
            for batch in self.backend.give_out(piece, node.child.schema, self.settings.piece_bytes):
                for rows in exploded(batch, node):
                    yield self.backend.take_in([rows], node.schema, self.metrics)

    def _called(
        self, node: PythonCalls | PythonRows | PythonAggregate | PythonCogroups | PythonWindow
    ) -> Iterator[Piece]:
        with ExitStack() as stack:
            pieces, keys = self.pieces(node.child), None if isinstance(node, PythonCalls) else node.keys
            if keys is not None:
                whole_groups = PartitionRun(
                    node.child.schema, keys, self.backend, self.memory, self.metrics, self.options.batch_bytes,
                    partial(self.new_store, stack),
                )  # fmt: skip
                pieces = whole_groups.pieces(pieces)
            calling, piece_bytes = self.settings.calling, self.settings.piece_bytes
            yield from calling.pieces(node, pieces, self.backend, self.metrics, piece_bytes)

    # -- sources ---------------------------------------------------------------------------------------------

    def _source(self, node: ExchangeSource | ConstantTable) -> Iterator[Piece]:
        if isinstance(node, ConstantTable):
            self.counts.give(node, node.rows)
            yield self.backend.take_in([node.batch], node.columns, self.metrics)
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
                yield self.backend.take_in(batches, node.columns, self.metrics)
                batches, size = [], 0
            self.metrics.source_rows += batch.num_rows
            nbytes = buffer_bytes(batch)
            self.counts.give(node, batch.num_rows, nbytes)
            batches.append(batch)
            size += nbytes
            if size >= self.settings.piece_bytes:
                yield self.backend.take_in(batches, node.columns, self.metrics)
                batches, size = [], 0
        if batches:
            yield self.backend.take_in(batches, node.columns, self.metrics)

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

    def _window(self, node: Window) -> Iterator[Piece]:
        with ExitStack() as stack:
            new_store = partial(self.new_store, stack)
            run = WindowRun(
                node.child.schema, node.partition, self.backend, self.memory, self.metrics, self.options.batch_bytes,
                new_store, node,
            )  # fmt: skip
            yield from self.counts.pass_on(node, run.pieces(self.pieces(node.child)), self.backend.size)

    def _top(self, node: TopN) -> Iterator[Piece]:
        best: list[Piece] = []
        if node.count == 0:
            return
        for piece in self.pieces(node.child):
            best.append(self.backend.top(piece, node.order, node.count))
            if sum(self.backend.size(each)[0] for each in best) > max(8 * node.count, 1 << 16):
                best = [self._best(best, node)]
        if best:
            yield from self.counts.pass_on(node, iter([self._best(best, node)]), self.backend.size)

    def _best(self, pieces: Sequence[Piece], node: TopN) -> Piece:
        candidates = self.backend.concat(pieces, node.schema, self.metrics)
        return self.backend.top(candidates, node.order, node.count)

    def _limit(self, node: Limit) -> Iterator[Piece]:
        left = node.count
        if left == 0:
            return
        for piece in self.pieces(node.child):
            head = self.backend.top(piece, (), left)
            rows, nbytes = self.backend.size(head)
            self.counts.give(node, rows, nbytes)
            left -= rows
            yield head
            if left <= 0:
                return
