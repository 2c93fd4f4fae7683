"""Finds the joins of Spark's own plans, of sessions in which queries are not planned here."""

from __future__ import annotations

from typing import Any

from gpujoin.backends.cudf import algorithm_rule
from gpujoin.config import BackendChoice, Options
from gpujoin.model.jointype import JoinType
from gpujoin.model.reasons import Reason, ReasonKind
from gpujoin.plan.estimates import UNKNOWN_SIZE
from gpujoin.report.operations import JoinOperation, NoteKind, notes_of, spark_join
from gpujoin.spark.catalyst.joins import AS_OF_JOIN, JOINS, class_name, join_type_name
from gpujoin.spark.query.asof import AsOfTerms
from gpujoin.spark.settings import GpuOutlook

NOT_ENABLED = Reason(
    ReasonKind.CONFIGURED,
    "the session",
    "it is not enabled, and gpu_join did not make the join",
    "gpujoin.enable(spark)",
)


def joins_in(plan: Any) -> tuple[JoinOperation, ...]:
    """Find the topmost joins of an analyzed plan, those below them being their inputs."""
    name, children = class_name(plan), plan.children()
    inputs = [joins_in(children.apply(i)) for i in range(children.size())]
    below = tuple(join for joins in inputs for join in joins)
    if name not in JOINS:
        return below
    # Of a join Spark knows no better size than the product of those of its inputs.
    left, right = (None if joins else size_of(children.apply(i)) for i, joins in enumerate(inputs))
    if name == AS_OF_JOIN:
        terms = AsOfTerms.parse(str(plan.terms()))
        condition = terms.shown(str(plan.leftOrder().name()), str(plan.rightOrder().name()))
        notes = notes_of(NoteKind.DECISION, "gpujoin is disabled in the session")
        return (
            spark_join(
                JoinType.LEFT.value, condition=condition, left_bytes=left, right_bytes=right, notes=notes, inputs=below,
                by_gpu_join=True,
            ),
        )  # fmt: skip
    native = plan.condition()
    asked = str(native.get().sql()) if native.isDefined() else None
    return (
        spark_join(
            join_type_name(plan), NOT_ENABLED, condition=asked, left_bytes=left, right_bytes=right, inputs=below
        ),
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
