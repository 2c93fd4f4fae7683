"""Joins of an optimized plan of whose matches only the nearest are needed, run as as-of joins of Spark's rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import Window
from pyspark.sql import functions as sf

from gpujoin.config import Options
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.reasons import Reason, ReasonKind
from gpujoin.model.spec import AsOf, Direction, JoinSpec, KeyPair, NullEquality
from gpujoin.plan.ranges import Shape
from gpujoin.spark.catalyst.columns import SideColumns
from gpujoin.spark.catalyst.joins import read_join
from gpujoin.spark.catalyst.split import split_keys
from gpujoin.spark.classic import register_outputs
from gpujoin.spark.query.rowjoins import RowJoinPlan

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from gpujoin.plan.explain import JoinExplanation
    from gpujoin.plan.strategy import Choice, JoinFacts
    from gpujoin.spark.catalyst.joins import JoinNode
    from gpujoin.spark.catalyst.split import SplitCondition
    from gpujoin.spark.query.nearest.terms import Domain, Nearest
    from gpujoin.spark.query.plans import PlanNode

_FIRST = "gpujoin_first"


class NearestJoinPlan(RowJoinPlan):
    """A join marked by :func:`~gpujoin.spark.query.nearest.marks.mark_nearest`; an inner or outer join of Spark's.

    Its left side is the one whose rows are matched, whichever that is in Spark's join.
    """

    def __init__(
        self,
        spark: SparkSession,
        node: PlanNode,
        fetch: Callable[[], Any],
        conf: Mapping[str, str],
        options: Options,
        join_id: str,
        inputs: tuple[JoinExplanation, ...],
        nearest: Nearest,
        *,
        changed: bool,
    ) -> None:
        self._nearest = nearest
        self._columns: dict[Side, SideColumns] = {}
        self._terms: AsOf | None = None
        self._limits: tuple[int, ...] = ()
        self._conditions: tuple[int, ...] = ()
        self._outer = False
        super().__init__(spark, node, fetch, conf, options, join_id, inputs, changed=changed)

    def decide(self) -> None:
        """Plan the join; see :meth:`JoinPlan.decide`."""
        gateway, nearest = self._builder.gateway, self._nearest
        join = read_join(gateway, self._join)
        if isinstance(join, Reason):
            self.explanation = self._explain_spark((join,))
            return
        if nearest.rows is Side.RIGHT:
            join = _turned(join)
        self._outer = join.join_type is not JoinType.INNER
        returned = join.left_columns
        if nearest.domain is not None:
            join = self._over_domain(join, nearest.domain)
        reasons = self._refusals(join) + self._unlike_planned()
        self._columns = columns = {side: SideColumns(side) for side in Side}
        outputs = register_outputs(dataclasses.replace(join, left_columns=returned), columns)
        split = split_keys(join, nearest.keys, columns, gateway)
        if nearest.domain is not None:
            _add_keys(join, split, nearest.domain)
        reasons += split.reasons
        if reasons:
            self.explanation = self._explain_spark(tuple(reasons), split)
            return
        left, right = columns[Side.LEFT], columns[Side.RIGHT]
        searched = next(one for one in join.right_columns if one.expr_id == nearest.column)
        self._terms = AsOf(
            left.index_of(nearest.bound), right.index_of(searched), nearest.direction, None, nearest.exact
        )
        self._limits = tuple(
            left.index_of(limit.bound if limit.shift is None else limit.shift.attribute)
            for limit in nearest.limits
        )
        self._conditions = tuple(map(left.index_of, nearest.conditions))
        self._decide_strategy(join, split, columns, outputs)

    def run(self) -> DataFrame:
        """Run the join, and keep of the matches found those within the limits."""
        result = super().run()
        assert self._terms is not None
        found = dict(zip(self._names(), result.columns, strict=True))
        order = sf.col(found[Side.RIGHT, self._terms.right])
        tests = [order.isNotNull()]
        for limit, at in zip(self._nearest.limits, self._limits, strict=True):
            bound = sf.col(found[Side.LEFT, at])
            if limit.shift is not None:
                bound += limit.shift.by
            tests.append(_within(order, bound, self._nearest.direction, exact=limit.exact))
        tests += [sf.col(found[Side.LEFT, at]) for at in self._conditions]
        matched = reduce(lambda one, two: one & two, tests)
        if not self._outer:
            return result.where(matched)
        if len(tests) == 1:
            return result
        return result.select(
            *(
                sf.col(name) if side is Side.LEFT else sf.when(matched, sf.col(name)).alias(name)
                for (side, _), name in found.items()
            )
        )

    def _unlike_planned(self) -> list[Reason]:
        """Why a tolerance cannot be computed as it was planned to be."""
        if all(limit.shift is None for limit in self._nearest.limits):
            return []
        if self._conf.get("spark.sql.ansi.enabled", "true").lower() == "true":
            return []
        why = "the tolerance was planned in ANSI mode, which is off by now"
        return [Reason(ReasonKind.UNSUPPORTED, "tolerance", why)]

    def _over_domain(self, join: JoinNode, domain: Domain) -> JoinNode:
        """The same join over the rows whose distinct values its left side is."""
        builder = self._builder
        named = [builder.renamed(value.jvm, attribute.jvm) for attribute, value in domain.values]
        plan = builder.project([*(one.jvm for one in domain.rows.output), *named], domain.rows.jvm)
        columns = (*domain.rows.output, *join.left_columns)
        return dataclasses.replace(join, left=plan, left_columns=columns)

    def _names(self) -> list[tuple[Side, int]]:
        """Side and position of each column of the result."""
        assert self.execution is not None
        spec = self.execution.request.spec
        return [(side, i) for side in Side for i in spec.output_of(side)]

    def _specified(
        self, _join: JoinNode, split: SplitCondition, outputs: dict[Side, list[int]]
    ) -> tuple[JoinSpec, tuple[int, ...]]:
        left = tuple(dict.fromkeys([*outputs[Side.LEFT], *self._limits, *self._conditions]))
        right = tuple(outputs[Side.RIGHT])
        spec = JoinSpec(JoinType.LEFT, tuple(split.keys), None, left, right, as_of=self._terms)
        sources = {
            Side.LEFT: [left.index(i) for i in outputs[Side.LEFT]],
            Side.RIGHT: [len(left) + i for i in range(len(right))],
        }
        rows = self._nearest.rows
        order = (Side.LEFT, Side.RIGHT) if rows is Side.LEFT else (Side.RIGHT, Side.LEFT)
        return spec, tuple(source for side in order for source in sources[side])

    def _prepare(self, join: JoinNode, side: Side, split: SplitCondition, columns: SideColumns) -> DataFrame:
        frame = super()._prepare(join, side, split, columns)
        if side is Side.LEFT or not self._nearest.ties:
            return frame
        return self._first_of_equals(join, split, frame, columns)

    def _first_of_equals(
        self, join: JoinNode, split: SplitCondition, frame: DataFrame, columns: SideColumns
    ) -> DataFrame:
        """Of the right rows with equal keys and order key the one that the ties decide for."""
        assert self._terms is not None
        positions = [*(key.right for key in split.keys), self._terms.right]
        equal = [sf.col(columns.name_of(i)) for i in dict.fromkeys(positions)]
        by_id = {one.expr_id: one for one in join.right_columns}
        order = []
        for tie in self._nearest.ties:
            column = sf.col(columns.name_of(columns.index_of(by_id[tie.expr_id])))
            directed = {
                (True, True): column.desc_nulls_first, (True, False): column.desc_nulls_last,
                (False, True): column.asc_nulls_first, (False, False): column.asc_nulls_last,
            }[tie.descending, tie.nulls_first]  # fmt: skip
            order.append(directed())
        number = sf.row_number().over(Window.partitionBy(*equal).orderBy(*order))
        return frame.withColumn(_FIRST, number).where(sf.col(_FIRST) == 1).drop(_FIRST)

    def _facts(self, join: JoinNode, split: SplitCondition, frames: dict[Side, DataFrame]) -> JoinFacts:
        facts = super()._facts(join, split, frames)
        return dataclasses.replace(facts, join_type=JoinType.LEFT, shape=Shape.AS_OF, condition=False)

    def _explain(self, split: SplitCondition, facts: JoinFacts, choice: Choice) -> JoinExplanation:
        found = super()._explain(split, facts, choice)
        if not found.accelerated:
            return found
        left, right = facts.left.size_bytes, facts.right.size_bytes
        if self._nearest.rows is Side.RIGHT:
            left, right = right, left
        what = "greatest" if self._nearest.direction is Direction.BACKWARD else "least"
        note = f"of each row's matches only the one with the {what} order key is read above"
        return dataclasses.replace(
            found, left_bytes=left, right_bytes=right, build_side=self._nearest.rows.other,
            notes=(note, *found.notes),
        )  # fmt: skip


def _add_keys(join: JoinNode, split: SplitCondition, domain: Domain) -> None:
    by_id = {one.expr_id: one for one in join.right_columns}
    left, right = split.columns[Side.LEFT], split.columns[Side.RIGHT]
    for mine, theirs, safe in domain.keys:
        nulls = NullEquality.EQUAL if safe else NullEquality.UNEQUAL
        split.keys.append(KeyPair(left.index_of(mine), right.index_of(by_id[theirs]), nulls))
        split.key_nodes.append((mine, by_id[theirs]))
        split.shown_keys.append(f"{mine} {'<=>' if safe else '='} {by_id[theirs]}")


def _turned(join: JoinNode) -> JoinNode:
    """The same join with its sides exchanged."""
    kind = JoinType.LEFT if join.join_type is JoinType.RIGHT else join.join_type
    return dataclasses.replace(
        join, join_type=kind, left=join.right, right=join.left, left_columns=join.right_columns,
        right_columns=join.left_columns, left_hint=join.right_hint, right_hint=join.left_hint,
    )  # fmt: skip


def _within(order: Column, bound: Column, direction: Direction, *, exact: bool) -> Column:
    if direction is Direction.BACKWARD:
        return order >= bound if exact else order > bound
    return order <= bound if exact else order < bound
