"""The engine's interface: a join that is built once and probed any number of times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Self, TypeAlias

import pyarrow as pa

from gpujoin.backends.registry import BackendRequest, create
from gpujoin.config import BackendChoice, Options
from gpujoin.engine.arguments import backend_choice, check_metrics, options_of
from gpujoin.engine.devicetables import DeviceTable, OpenedTable, adopt_each, concat, open_batches
from gpujoin.engine.join.build import BuiltSide
from gpujoin.engine.join.checks import check_evaluable, check_product, check_tables
from gpujoin.engine.join.devicerows import ResidentRows
from gpujoin.engine.join.layout import JoinLayout, SideLayout
from gpujoin.engine.join.passes import Pass
from gpujoin.engine.join.sinks import DeviceSink, sink_of_batches
from gpujoin.engine.join.spill import Spilled, SpilledRun, take_in
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.errors import ConfigurationError, JoinSpecError, type_name
from gpujoin.model.backend import AnyBackend, BackendName
from gpujoin.model.hostgather import buffer_bytes
from gpujoin.model.jointype import Side
from gpujoin.model.pipeline import AnyDevicePipeline
from gpujoin.model.spec import JoinSpec

Batches: TypeAlias = Iterable[pa.RecordBatch] | Any
"""Record batches; or a table on a GPU, or several of them."""


class HashJoin:
    """A join whose build side is read once and probed by any number of batches.

    Batches are record batches, or tables on a GPU (:class:`gpujoin.DeviceTable`, ``pylibcudf.Table``,
    ``cudf.DataFrame``, anything with the Arrow C device interface) on both sides; then the result stays there too, as
    tables of the kind of the probe's. Such a table is one morsel, and is not spilled. A join of record batches of which
    a GPU lacks a part runs on the CPU as a whole.

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

    Raises
    ------
    JoinSpecError, KeyTypeError, ConditionError
        If the specification does not fit the schemas.
    ConfigurationError
        If options, backend or metrics are none.

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
    ) -> None:
        _check(spec, left_schema, right_schema, build_side)
        if backend is not None and isinstance(backend_choice(backend), BackendChoice):
            raise ConfigurationError(f"a HashJoin takes a Backend, got {backend!r}; leave it out to run on the CPU")
        check_metrics(metrics)
        self.options = options_of(options)
        self.metrics = metrics if metrics is not None else JoinMetrics()
        self.layout = JoinLayout.from_spec(spec, left_schema, right_schema, build_side)
        self.backend = backend or create(BackendName.CPU, BackendRequest(threads=self.options.cpu_threads or 1))
        check_evaluable(spec.condition)
        self._sink = sink_of_batches(self.layout, self.backend, self.options)
        self._given_backend = backend
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
        """Read the build side. Beyond the memory budget it goes to disk; on a GPU it has to fit.

        Raises
        ------
        JoinSpecError
            If called twice.
        DeviceMemoryError
            If tables on a GPU do not fit there.
        """
        if self._built is not None:
            raise JoinSpecError("build() was called twice on one HashJoin; make a new one")
        opened, batches = open_batches(batches)
        if opened is None:
            self._built = take_in(self._sink, self._counted(batches), self.metrics)
            return
        backend = self._given_backend or BackendChoice.AUTO
        self._built = self._build_tables([table for _, table in adopt_each(opened, batches, backend)])

    def _build_tables(self, tables: list[DeviceTable]) -> BuiltSide:
        """Build tables on a device.

        Raises ``JoinSpecError`` for a join that the device does not compute, ``DeviceMemoryError`` if it does not fit.
        """
        layout, device = self.layout, tables[0].device
        check_tables(layout, device)
        for table in tables:
            _check_table(table, layout.build, device)
        build_table = concat(tables, layout.build.schema, device)
        self.metrics.build_rows += build_table.num_rows
        self.metrics.build_bytes += build_table.nbytes
        sink = DeviceSink.for_frames(layout, device, self.options, device.budget(0))
        return BuiltSide(sink, ResidentRows(device, layout.build.schema, build_table.frame), self.metrics)

    def _counted(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in _checked(batches, self.layout.build):
            self.metrics.build_rows += batch.num_rows
            self.metrics.build_bytes += buffer_bytes(batch)
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


class JoinRun:
    """One pass of probe rows over a built side.

    Made by :meth:`HashJoin.start`. :meth:`finish` must be called, and its batches taken, for every join type: where the
    build side was spilled, all output comes from there.
    """

    def __init__(self, built: BuiltSide | Spilled, metrics: JoinMetrics) -> None:
        self.metrics = metrics
        self._sink = built.sink
        self._build_rows = built.num_rows
        self._probe_rows = 0
        self._run = SpilledRun(built, metrics) if isinstance(built, Spilled) else Pass(built, metrics)
        self._kind: OpenedTable | None = None
        """Kind of the tables on a GPU that are probed with."""

    def probe(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        """Join some probe rows.

        Parameters
        ----------
        batches : iterable of RecordBatch
            Rows of the side that is not built, all columns of its schema. Not read to its end where the rest would
            change nothing. Or a table on a GPU, or several, where the build side is there.

        Yields
        ------
        RecordBatch
            Rows of ``output_schema``, in batches near ``options.batch_bytes``. Or tables, of the kind of those given.
        """
        opened, batches = open_batches(batches)
        if self._sink.resident and opened is None:
            if isinstance(batches, (list, tuple)) and not batches:
                return
            raise JoinSpecError("the build side is on a GPU, the probe side on the host; copy one of them")
        if not self._sink.resident and opened is not None:
            raise JoinSpecError("the build side is on the host, the probe side on a GPU; copy one of them")
        if isinstance(self._run, SpilledRun):
            self._run.take(self._batches(batches))
            return
        for rows in self._run.probe(self._batches(batches) if opened is None else self._tables(opened, batches)):
            yield self._out(rows)

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Return the rows that can only be returned when all probe rows have been seen."""
        source = self._run.finish() if isinstance(self._run, SpilledRun) else self._run.rest()
        for rows in source:
            yield self._out(rows)

    @property
    def can_stop(self) -> bool:
        """Whether no further probe row can change the result: only build rows are returned, and all have a match."""
        return isinstance(self._run, Pass) and self._run.complete

    def close(self) -> None:
        """Free the space of the rows that this pass spilled."""
        if isinstance(self._run, SpilledRun):
            self._run.close()

    def _batches(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in _checked(batches, self._sink.layout.probe):
            self._count(batch)
            yield batch

    def _tables(self, opened: OpenedTable, tables: Iterable[Any]) -> Iterator[ResidentRows]:
        assert isinstance(self._sink, DeviceSink)
        device, side = self._sink.device, self._sink.layout.probe
        for kind, table in adopt_each(opened, tables, device.backend):
            self._kind = kind
            _check_table(table, side, device)
            self._count(table)
            if table.num_rows:
                yield ResidentRows(device, side.schema, table.frame)

    def _count(self, rows: pa.RecordBatch | DeviceTable) -> None:
        self.metrics.probe_rows += rows.num_rows
        self.metrics.probe_bytes += bytes_of(rows)
        self._probe_rows += rows.num_rows
        check_product(self._sink.layout, self._sink.options, self._build_rows, self._probe_rows)

    def _out(self, rows: Any) -> Any:
        """Count output, and give tables the kind of those that were probed with."""
        if isinstance(self._sink, DeviceSink) and self._sink.resident:
            device, schema = self._sink.device, self._sink.layout.output_schema
            if isinstance(rows, pa.RecordBatch):  # finished on the CPU
                rows = device.take_in(pa.Table.from_batches([rows]), schema)
            rows = DeviceTable(schema, rows, device)
        self.metrics.output_batches += 1
        self.metrics.output_rows += rows.num_rows
        self.metrics.output_bytes += bytes_of(rows)
        return rows if self._kind is None else self._kind.to_same_kind(rows)


def bytes_of(rows: pa.RecordBatch | DeviceTable) -> int:
    """Bytes of rows, wherever they lie."""
    return rows.nbytes if isinstance(rows, DeviceTable) else buffer_bytes(rows)


def _check(spec: object, left_schema: object, right_schema: object, build_side: object) -> None:
    if not isinstance(spec, JoinSpec):
        raise JoinSpecError(f"spec must be a JoinSpec, got {spec!r}")
    for name, schema in (("left_schema", left_schema), ("right_schema", right_schema)):
        if not isinstance(schema, pa.Schema):
            raise JoinSpecError(f"{name} must be a pyarrow Schema, such as table.schema, got {type_name(schema)}")
    if not isinstance(build_side, Side):
        raise JoinSpecError(f"build_side must be Side.LEFT or Side.RIGHT, got {build_side!r}")


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
        _check_types("batch", batch.schema, side)
        yield batch


def _check_table(table: DeviceTable, side: SideLayout, device: AnyDevicePipeline) -> None:
    if table.device.backend is not device.backend:
        raise JoinSpecError("the tables belong to two backends; take both in with the same backend=")
    _check_types("table", table.schema, side)


def _check_types(what: str, schema: pa.Schema, side: SideLayout) -> None:
    if schema.types != side.schema.types:
        raise JoinSpecError(
            f"a {side.side.value} {what} has columns {schema.types} where the join was made for {side.schema.types};"
            " cast it first"
        )
