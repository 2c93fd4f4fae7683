"""What all nodes of one run of a tree share: backend, settings, memory, counters, and what nodes tell one another."""

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
    """What a run is given besides its tree and inputs."""

    backend: AnyPipelineBackend | MixedPipeline
    options: Options
    requested_options: Options
    """Settings before memory was looked at: what is kept is named by them, and is the same with more memory."""
    memory: HostMemory
    piece_bytes: int
    """Bytes of the pieces that scans and sources are cut into."""
    metrics: PipelineMetrics
    join_metrics: JoinMetrics
    cache: TableCache
    """What it may take of earlier runs where it runs, and store for later ones."""
    stored_rows: frozenset[Relation]
    """Build sides whose rows are stored whatever they are made of."""


class RunContext(ABC):
    """One run of a tree, as its nodes see it."""

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
        """Pieces of nodes that were computed by another node; taken by the first that asks for them."""
        self.match_ranges: defaultdict[Relation, list[tuple[int, ValueRanges]]] = defaultdict(list)
        """Values that rows of a scan need to have a match, by column."""
        self.ascending: dict[Relation, tuple[int, ...]] = {}
        """Columns of scans whose smallest value to come is asked for."""

    @abstractmethod
    def pieces(self, node: Relation) -> Iterator[Piece]:
        """Compute a node."""

    def collected(self, pieces: Iterator[Piece]) -> Iterator[Piece]:
        """Have the rows of pieces in memory."""
        return self.ahead(self.backend.collect, pieces)

    def ahead(self, work: Callable[[Piece], _T], pieces: Iterator[Piece]) -> Iterator[_T]:
        """Give results of work on pieces: with several threads that on the next piece is done while one is used."""
        is_on_device = isinstance(self.backend, MixedPipeline)
        return ahead(work, pieces, 0 if is_on_device or (self.options.cpu_threads or 1) == 1 else 1)

    def new_store(self, stack: ExitStack) -> SpillStore:
        """Make a store that is closed with a stack."""
        return stack.enter_context(SpillStore(self.options, self.metrics))
