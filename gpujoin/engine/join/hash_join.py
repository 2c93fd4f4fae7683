"""The engine's interface: a join that is built once and probed any number of times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Self, TypeAlias

import pyarrow as pa

from gpujoin.backends.registry import BackendRequest, create
from gpujoin.config import Options
from gpujoin.engine.join.build import BuiltSide
from gpujoin.engine.join.layout import JoinLayout, SideLayout
from gpujoin.engine.join.probe import Run
from gpujoin.engine.join.sinks import Sink
from gpujoin.engine.join.spill import Spilled, SpilledRun, take_in
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.errors import ConditionError, JoinSpecError, ProductSizeError
from gpujoin.model.backend import AnyBackend, BackendName
from gpujoin.model.expressions import Expression
from gpujoin.model.jointype import Side
from gpujoin.model.spec import JoinSpec

Batches: TypeAlias = Iterable[pa.RecordBatch]


class HashJoin:
    """A join whose build side is read once and probed by any number of batches.

    Parameters
    ----------
    spec : JoinSpec
        What to compute.
    left_schema, right_schema : Schema
        Columns of the two sides.
    build_side : Side
        Side that is built; the other one is streamed.
    options : Options
        Batch sizes, memory budget, spill directory.
    backend : Backend or None
        Backend to run on; ``None``: the CPU backend with ``options.cpu_threads`` threads.
    metrics : JoinMetrics or None
        Counters to add to.
    probe_rows : int or None
        Expected rows of all probe batches together, from which a device's algorithm may be chosen; ``None``: not
        known.

    Raises
    ------
    JoinSpecError, KeyTypeError, ConditionError
        If the specification does not fit the schemas.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from gpujoin import HashJoin, JoinSpec, JoinType, KeyPair
    >>> table = pa.table({"k": [1, 2, 2]})
    >>> spec = JoinSpec(JoinType.INNER, (KeyPair(0, 0),), left_output=(0,), right_output=())
    >>> with HashJoin(spec, table.schema, table.schema) as join:
    ...     join.build(table.to_batches())
    ...     rows = sum(batch.num_rows for batch in join.probe(table.to_batches()))
    ...     rows += sum(batch.num_rows for batch in join.finish())
    >>> rows
    5
    """

    def __init__(
        self,
        spec: JoinSpec,
        left_schema: pa.Schema,
        right_schema: pa.Schema,
        *,
        build_side: Side = Side.RIGHT,
        options: Options | None = None,
        backend: AnyBackend | None = None,
        metrics: JoinMetrics | None = None,
        probe_rows: int | None = None,
    ) -> None:
        self.options = options or Options()
        self.metrics = metrics if metrics is not None else JoinMetrics()
        self.layout = JoinLayout.of(spec, left_schema, right_schema, build_side)
        self.backend = backend or create(BackendName.CPU, BackendRequest(threads=self.options.cpu_threads or 1))
        check_evaluable(spec.condition)
        self._sink = Sink(self.layout, self.backend, self.options, probe_rows)
        self._built: BuiltSide | Spilled | None = None
        self._run: JoinRun | None = None

    @property
    def output_schema(self) -> pa.Schema:
        """Schema of every batch returned."""
        return self.layout.output_schema

    @property
    def spilled(self) -> bool:
        """Whether the build side is on disk."""
        return isinstance(self._built, Spilled)

    @property
    def build_bytes(self) -> int:
        """Memory of the build side's rows and of their search structure; 0 where they are on disk, or not built yet."""
        return self._built.nbytes if isinstance(self._built, BuiltSide) else 0

    def build(self, batches: Batches) -> None:
        """Read the build side. Beyond the memory budget it goes to disk.

        Raises
        ------
        JoinSpecError
            If called twice.
        """
        if self._built is not None:
            raise JoinSpecError("build() was called twice on one HashJoin; make a new one")
        self._built = take_in(self._sink, self._counted(batches), self.metrics)

    def _counted(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in _checked(batches, self.layout.build):
            self.metrics.build_rows += batch.num_rows
            self.metrics.build_bytes += batch.nbytes
            yield batch

    def start(self, metrics: JoinMetrics | None = None) -> JoinRun:
        """Start an independent pass of probe rows over the build side, which all passes share.

        Parameters
        ----------
        metrics : JoinMetrics or None
            Counters of this pass; ``None``: the join's.
        """
        if self._built is None:
            raise JoinSpecError("call build() before probing")
        return JoinRun(self._built, metrics if metrics is not None else self.metrics)

    def _started(self) -> JoinRun:
        if self._run is None:
            self._run = self.start()
        return self._run

    def probe(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        """Join some probe rows; may be called many times. See :meth:`JoinRun.probe`."""
        return self._started().probe(batches)

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Return the rows that can only be returned after the last probe. See :meth:`JoinRun.finish`."""
        return self._started().finish()

    @property
    def can_stop(self) -> bool:
        """Whether no further probe row can change the result, so that the caller may stop reading them."""
        return self._run is not None and self._run.can_stop

    def close(self) -> None:
        """Free the build side and the space of spilled rows."""
        if self._run is not None:
            self._run.close()
        if isinstance(self._built, Spilled):
            self._built.close()
        self._built = self._run = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_evaluable(condition: Expression | None) -> None:
    """Raise for a condition that the CPU backend, the fallback of every join, does not evaluate as Spark does."""
    if condition is None:
        return
    can_evaluate = create(BackendName.CPU, BackendRequest()).can_evaluate
    for part in condition.walk():
        if not can_evaluate(part) and all(map(can_evaluate, part.children)):
            over = ", ".join(str(child.type) for child in part.children)
            raise ConditionError(
                f"the condition's part {part}{f' over {over}' if over else ''} cannot be evaluated exactly as Spark"
                " does; compute it as a column before the join"
            )


class JoinRun:
    """One pass of probe batches over a built side.

    Made by :meth:`HashJoin.start`. :meth:`finish` must be called, and its batches taken, for every join type: where the
    build side was spilled, all output comes from there.
    """

    def __init__(self, built: BuiltSide | Spilled, metrics: JoinMetrics) -> None:
        self.metrics = metrics
        self._sink = built.sink
        self._build_rows = built.num_rows
        self._probe_rows = 0
        self._run = SpilledRun(built, metrics) if isinstance(built, Spilled) else Run.with_fallback(built, metrics)

    def probe(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        """Join some probe rows.

        Parameters
        ----------
        batches : iterable of RecordBatch
            Rows of the side that is not built, all columns of its schema. Not read to its end where the rest would
            change nothing.

        Yields
        ------
        RecordBatch
            Rows of ``output_schema``, in batches near ``options.batch_bytes``.
        """
        counted = self._counted(batches)
        if isinstance(self._run, SpilledRun):
            self._run.take(counted)
            return
        for batch in self._run.probe_all(counted):
            yield self._out(batch)

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Return the rows that can only be returned when all probe rows have been seen."""
        source = self._run.finish() if isinstance(self._run, SpilledRun) else self._run.rest_of_build()
        for batch in source:
            yield self._out(batch)

    @property
    def can_stop(self) -> bool:
        """Whether no further probe row can change the result: only build rows are returned, and all have a match."""
        return isinstance(self._run, Run) and self._run.progress.complete

    def close(self) -> None:
        """Free the space of the rows that this pass spilled."""
        if isinstance(self._run, SpilledRun):
            self._run.close()

    def _counted(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        layout = self._sink.layout
        for batch in _checked(batches, layout.probe):
            self.metrics.probe_rows += batch.num_rows
            self.metrics.probe_bytes += batch.nbytes
            self._probe_rows += batch.num_rows
            check_product(layout, self._sink.options, self._build_rows, self._probe_rows)
            yield batch

    def _out(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.metrics.output_batches += 1
        self.metrics.output_rows += batch.num_rows
        self.metrics.output_bytes += batch.nbytes
        return batch


def check_product(layout: JoinLayout, options: Options, build_rows: int, probe_rows: int) -> None:
    """Raise ``ProductSizeError`` for a join without keys and ranges of more pairs than ``options.max_product_rows``."""
    most, pairs = options.max_product_rows, build_rows * probe_rows
    ranged = options.range_index and (layout.axes or layout.ranged is not None)
    if most is None or pairs <= most or layout.spec.keys or ranged or layout.spec.as_of:
        return
    raise ProductSizeError(
        f"{build_rows} × {probe_rows} rows without keys or ranges are {pairs} pairs, more than"
        f" spark.gpujoin.maxProductRows ({most}); add an equality or a comparison by order, or raise the setting"
    )


def _checked(batches: Iterable[pa.RecordBatch], side: SideLayout) -> Iterator[pa.RecordBatch]:
    """Check that batches have the column types that the join was made for."""
    if isinstance(batches, pa.Table):
        batches = batches.to_batches()
    if not isinstance(batches, Iterable):
        raise JoinSpecError(f"the {side.side.value} side is given as record batches, got {batches!r}")
    for batch in batches:
        if not isinstance(batch, pa.RecordBatch):
            raise JoinSpecError(
                f"the {side.side.value} side is given as record batches, got one {type(batch).__name__}"
            )
        if batch.schema.types != side.schema.types:
            raise JoinSpecError(
                f"a {side.side.value} batch has columns {batch.schema.types} where the join was made for"
                f" {side.schema.types}; cast it first"
            )
        yield batch
