"""The context of one run of a tree, shared by its nodes: backend, settings, memory, counters, and common results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from gpujoin.config import Options
from gpujoin.engine.memory import HostMemory
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.engine.morsels import ahead
from gpujoin.engine.pipeline.clock import OperationClock
from gpujoin.engine.pipeline.counts import OperationCounts
from gpujoin.engine.pipeline.placement import MixedPipeline
from gpujoin.engine.pipeline.python_calls import CallingRun
from gpujoin.engine.pipeline.repeated import KeptParts
from gpujoin.engine.pipeline.tables import TableCache
from gpujoin.engine.spill import SpillStore
from gpujoin.model.files import ValueRanges
from gpujoin.model.pipeline import AnyPipelineBackend, PipelineMetrics
from gpujoin.model.relations import Relation
from gpujoin.plan.complete_groups import may_stop

Piece: TypeAlias = Any
_T = TypeVar("_T")


@dataclass(frozen=True)
class RunSettings:
    """Arguments of a run besides its tree and inputs."""

    backend: AnyPipelineBackend | MixedPipeline
    options: Options
    requested_options: Options
    """Settings before the system's limits: stored tables are named by these, and are the same with more memory."""
    memory: HostMemory
    piece_bytes: int
    """Bytes of the pieces that scans and sources are cut into."""
    metrics: PipelineMetrics
    join_metrics: JoinMetrics
    cache: TableCache
    """Tables of earlier runs, and room for those of later ones."""
    stored_rows: frozenset[Relation]
    """Build sides whose rows are stored, even if not all of their scans are replicated."""
    calling: CallingRun
    """By which Python functions are called."""


class RunContext(ABC):
    """The state of one run of a tree."""

    def __init__(self, tree: Relation, settings: RunSettings) -> None:
        self.settings = settings
        self.backend = settings.backend
        self.options = settings.options
        self.memory = settings.memory
        self.metrics = settings.metrics
        self.clock = OperationClock(tree, self.metrics.seconds)
        self.counts = OperationCounts(self.clock)
        self.repeated = KeptParts(tree, self.metrics)
        self.places = Counter(tree.walk())
        """How often each node stands in the tree."""
        self.may_stop = may_stop(tree)
        self.computed: dict[Relation, Iterator[Piece]] = {}
        """Pieces of a node that another node has computed, for the first reader."""
        self.match_ranges: defaultdict[Relation, list[tuple[int, ValueRanges]]] = defaultdict(list)
        """Values that rows of a scan need to have a match, by column."""
        self.ascending: dict[Relation, tuple[int, ...]] = {}
        """Columns of scans whose least values to come are needed."""

    @abstractmethod
    def pieces(self, node: Relation) -> Iterator[Piece]:
        """Compute a node."""

    def collected(self, pieces: Iterator[Piece]) -> Iterator[Piece]:
        """Have the rows of pieces in memory."""
        return self.ahead(self.backend.collect, pieces)

    def ahead(self, work: Callable[[Piece], _T], pieces: Iterator[Piece]) -> Iterator[_T]:
        """Return results of work on pieces. With several threads, work on the next piece begins ahead."""
        is_on_device = isinstance(self.backend, MixedPipeline)
        return ahead(work, pieces, 0 if is_on_device or (self.options.cpu_threads or 1) == 1 else 1)

    def new_store(self, stack: ExitStack) -> SpillStore:
        """Make a store that is closed with a stack."""
        return stack.enter_context(SpillStore(self.options, self.metrics))
