"""Finding the joins of a plan, ours and Spark's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpujoin.backends.cudf import algorithm_rule
from gpujoin.config import BackendChoice, Options, Strategy
from gpujoin.model.jointype import JoinType
from gpujoin.model.reasons import Reason, ReasonKind
from gpujoin.plan.estimates import UNKNOWN_SIZE
from gpujoin.report.explanation import IslandExplanation, JoinExplanation
from gpujoin.report.outcomes import kept
from gpujoin.spark.catalyst.joins import AS_OF_JOIN, JOINS, class_name, join_type_name
from gpujoin.spark.catalyst.nodes import CATALYST
from gpujoin.spark.jvm.rewrite import MARK
from gpujoin.spark.query.asof import AsOfTerms
from gpujoin.spark.settings import GpuOutlook

_ALIAS = CATALYST + "plans.logical.SubqueryAlias"


def joins_in(plan: Any) -> tuple[JoinExplanation | IslandExplanation, ...]:
    """Find the topmost joins of an analyzed plan, those below them being their inputs, and the islands."""
    name = class_name(plan)
    children = plan.children()
    if name == _ALIAS and plan.alias().startswith(MARK):
        known = kept(str(plan.alias()))
        if known is not None:
            return (known, *joins_in(children.apply(0)))
    by_child = [joins_in(children.apply(i)) for i in range(children.size())]
    below = tuple(part for parts in by_child for part in parts)
    if name in JOINS:
        # Of a join Spark knows no better size than the product of those of its inputs.
        sizes = [None if parts else size_of(children.apply(i)) for i, parts in enumerate(by_child)]
        inputs = tuple(part for part in below if isinstance(part, JoinExplanation))
        described = _as_of_join(plan, sizes, inputs) if name == AS_OF_JOIN else _spark_join(plan, sizes, inputs)
        return (described, *(part for part in below if isinstance(part, IslandExplanation)))
    return below


NOT_ENABLED = Reason(
    ReasonKind.CONFIGURED,
    "the session",
    "it is not enabled, and gpu_join did not make the join",
    "gpujoin.enable(spark)",
)


def _spark_join(join: Any, sizes: Sequence[int | None], inputs: tuple[JoinExplanation, ...]) -> JoinExplanation:
    """Describe a Join of a session that is not planned here."""
    condition = join.condition()
    return JoinExplanation(
        join_type=join_type_name(join),
        strategy=Strategy.SPARK,
        backend="spark",
        condition=str(condition.get().sql()) if condition.isDefined() else None,
        left_bytes=sizes[0],
        right_bytes=sizes[1],
        reasons=(NOT_ENABLED,),
        inputs=inputs,
    )


def _as_of_join(join: Any, sizes: Sequence[int | None], inputs: tuple[JoinExplanation, ...]) -> JoinExplanation:
    """Describe an as-of join that Spark runs, as the session is not planned here."""
    return JoinExplanation(
        join_type=JoinType.LEFT.value,
        strategy=Strategy.SPARK,
        backend="spark",
        condition=AsOfTerms.parse(str(join.terms())).shown(str(join.leftOrder().name()), str(join.rightOrder().name())),
        left_bytes=sizes[0],
        right_bytes=sizes[1],
        notes=("gpujoin is disabled in the session",),
        inputs=inputs,
        by_gpu_join=True,
    )


def size_of(plan: Any) -> int | None:
    """Give Spark's estimate of a plan's size in bytes, if it is one."""
    size = int(str(plan.stats().sizeInBytes()))
    return None if size >= UNKNOWN_SIZE else size


def expected_backend(options: Options, outlook: GpuOutlook, *, keyed: bool) -> tuple[str, tuple[str, ...]]:
    """Say which backend the driver expects, how it knows, and by which rule a GPU would find matches."""
    name, notes = _expected(options, outlook)
    return name, (*notes, algorithm_rule(options.gpu_algorithm)) if keyed and name == "gpu" else notes


def _expected(options: Options, outlook: GpuOutlook) -> tuple[str, tuple[str, ...]]:
    if options.backend is not BackendChoice.AUTO:
        return options.backend.value, (f"backend {options.backend.value} was asked for",)
    if outlook is GpuOutlook.EXPECTED:
        return "gpu", ("backend auto: a GPU is expected; a worker that gets none uses the CPU",)
    return "cpu", ()
