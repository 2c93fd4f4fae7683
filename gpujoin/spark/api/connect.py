"""Joins over Spark Connect, by public DataFrame methods alone: columns of equal name on both sides, any join type.

A Connect client sees schemas, but no plans: no conditions, hints or sizes. So only joins by name are taken, and the
columns of a USING join are put together here as Spark does. Rows are exchanged by key unless a broadcast is asked for;
then every task is sent one side.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from pyspark.sql import types as t
from pyspark.sql.connect import functions as sf

from gpujoin.config import BackendChoice, Options, Strategy
from gpujoin.errors import JoinSpecError
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.reasons import Reason, ReasonKind
from gpujoin.model.spec import JoinSpec, KeyPair
from gpujoin.model.stages import Distribution
from gpujoin.plan.distribution import asked_distribution
from gpujoin.report.explanation import Explanation
from gpujoin.report.operations import IslandOperation, JoinOperation, Operation, spark_join
from gpujoin.report.outcomes import explanation_named, keep, tell_query, text_of
from gpujoin.spark import server
from gpujoin.spark.api.frames import FrameInput, FrameJoin
from gpujoin.spark.catalyst.joins import join_type_called
from gpujoin.spark.jvm.gateway import plan_text
from gpujoin.spark.jvm.rewrite import MARK
from gpujoin.spark.settings import disabled_reason

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_INTEGERS = (t.ByteType, t.ShortType, t.IntegerType, t.LongType)
_KEYS = (
    *_INTEGERS, t.BooleanType, t.FloatType, t.DoubleType, t.DecimalType, t.StringType, t.BinaryType, t.DateType,
    t.TimestampType, t.TimestampNTZType,
)  # fmt: skip
_KEY_HOLDERS = {
    JoinType.RIGHT: (Side.RIGHT,),
    JoinType.FULL: (Side.LEFT, Side.RIGHT),
}
"""Sides whose key columns the result has, if not the left side's alone."""

_left_to_spark: WeakKeyDictionary[DataFrame, JoinOperation] = WeakKeyDictionary()


@dataclass(frozen=True)
class _Using:
    """A join by names."""

    kind: JoinType
    """The type of the join."""
    keys: tuple[tuple[int, int], ...]
    """Positions of the keys on the two sides."""
    schemas: dict[Side, t.StructType]
    """Schemas of the two sides."""

    def rest(self, side: Side) -> list[int]:
        """Give the positions of a side's other columns; none if the side is not returned."""
        if side is Side.RIGHT and self.kind.left_rows_only:
            return []
        key_positions = self._key_positions(side)
        return [i for i in range(len(self.schemas[side])) if i not in key_positions]

    def input(self, side: Side, frame: DataFrame) -> FrameInput:
        """Give the columns that the join reads of a side: the keys by name, then the other ones."""
        columns = [*self._key_positions(side), *self.rest(side)]
        named = frame.toDF(*(f"c{n}" for n in range(len(self.schemas[side]))))
        schema = t.StructType([self.schemas[side][i] for i in columns])
        return FrameInput(named.select(*(f"c{i}" for i in columns)), schema)

    @property
    def spec(self) -> JoinSpec:
        """The join over the columns that it reads."""
        keys = range(len(self.keys))
        outputs = {}
        for side in Side:
            holds = side in _KEY_HOLDERS.get(self.kind, (Side.LEFT,))
            outputs[side] = (*(keys if holds else ()), *range(len(keys), len(keys) + len(self.rest(side))))
        pairs = tuple(KeyPair(n, n) for n in keys)
        return JoinSpec(self.kind, pairs, left_output=outputs[Side.LEFT], right_output=outputs[Side.RIGHT])

    def _key_positions(self, side: Side) -> list[int]:
        return [pair[0] if side is Side.LEFT else pair[1] for pair in self.keys]


def join(
    left: DataFrame,
    right: DataFrame,
    on: str | list[str] | Column | list[Column] | None,
    how: str | None,
    *,
    conf: Mapping[str, str],
    options: Options,
    join_id: str,
    is_asked_for: bool,
) -> DataFrame:
    """Do what :func:`gpujoin.gpu_join` does, for Spark Connect.

    Where the server plans queries itself, it plans this join with the rest of its query, unless a strategy or a backend
    of this join ``is_asked_for``.
    """
    native = left.join(right, on, how)
    schema = native.schema  # Spark checks the join here
    if not is_asked_for and options.enabled and server.plans_queries(native.sparkSession):
        return native
    kind, names = JoinType.parse(how or "inner"), _names(on)

    def leave(*reasons: Reason) -> DataFrame:
        """Leave the join to Spark, and tell why."""
        described = spark_join(kind.value, *reasons, keys=tuple(names or ()), by_gpu_join=True)
        tell_query(Explanation((described,)), options, lambda: text_of(native))
        _left_to_spark[native] = described
        return native

    if not options.enabled:
        return leave(disabled_reason())
    using = _using_columns(left, right, names, kind, conf)
    if isinstance(using, Reason):
        return leave(using)
    distribution = _distribution(using.kind, options)
    if isinstance(distribution, Reason):
        return leave(distribution)
    built = Side.LEFT if using.kind is JoinType.RIGHT else Side.RIGHT
    planned = FrameJoin(
        left=using.input(Side.LEFT, left), right=using.input(Side.RIGHT, right), spec=using.spec,
        build_side=built, distribution=distribution, options=options, conf=conf, join_id=join_id,
    )  # fmt: skip
    obstacles = planned.obstacles
    if obstacles:
        return leave(*obstacles)
    joined = planned.execute().alias(join_id).select(*_columns(using))
    if joined.schema != schema:
        why = f"the result's schema would be {joined.schema.simpleString()}, not {schema.simpleString()}"
        return leave(Reason(ReasonKind.UNEXPECTED, "schema", why))
    reason = "the sizes of the sides are unknown"
    if options.strategy is not Strategy.AUTO:
        reason = f"{options.strategy.value} was asked for"
    explained = planned.explained(reason)
    tell_query(Explanation((explained,)), options, lambda: text_of(native))
    keep(join_id, Explanation((explained,)))
    return joined


def explain(frame: DataFrame) -> Explanation:
    """Do what :func:`gpujoin.explain` does, for Spark Connect: from the server, or the text of the analyzed plan.

    Joins that this client runs are known by the names in the text, and the server does not know them. Why a join was
    left to Spark is known for the very DataFrame that ``gpu_join`` returned, not for what is made of it: a Connect
    client cannot mark a plan without changing it.
    """
    text = plan_text(frame)
    is_own = frame in _left_to_spark or any(map(explanation_named, re.findall(rf"{MARK}\w+", text)))
    planned = None if is_own else server.explain(frame)
    if planned is not None:
        return planned
    lines = [(len(line) - len(line.lstrip(" :+-")), line.lstrip(" :+-")) for line in text.splitlines()]
    join, roots = _left_to_spark.get(frame), tuple(_joins(lines))
    if join is not None and roots and isinstance(roots[0], JoinOperation):
        roots = (dataclasses.replace(join, inputs=roots[0].inputs), *roots[1:])
    return Explanation(roots)


def _joins(lines: list[tuple[int, str]]) -> Iterator[Operation]:
    """The topmost joins and the islands of an indented plan."""
    position = 0
    while position < len(lines):
        depth, text = lines[position]
        end = position + 1
        while end < len(lines) and lines[end][0] > depth:
            end += 1
        mark = re.match(rf"SubqueryAlias ({MARK}\w+)", text)
        explanation = explanation_named(mark[1]) if mark else None
        native = re.match(r"Join (\w+)(?:\([^)]*\))?(?:, (.*))?$", text)
        below = tuple(_joins(lines[position + 1 : end])) if explanation is not None or native else ()
        if explanation is not None:
            yield from explanation.operations
            yield from below
        elif native:
            yield spark_join(join_type_called(native[1]), condition=native[2], inputs=below)
            yield from (part for part in below if isinstance(part, IslandOperation))
        else:
            end = position + 1
        position = end


def _names(on: object) -> list[str] | None:
    if isinstance(on, str):
        return [on]
    if isinstance(on, list) and on and all(isinstance(name, str) for name in on):
        return on
    return None


def _using_columns(
    left: DataFrame, right: DataFrame, names: list[str] | None, kind: JoinType, conf: Mapping[str, str]
) -> _Using | Reason:
    if names is None:
        return _refuse("condition", "over Spark Connect only joins by column names are covered", "on='name'")
    if left.isStreaming or right.isStreaming:
        return _refuse("sides", "one of them is a stream")
    schemas = {Side.LEFT: left.schema, Side.RIGHT: right.schema}
    exact = conf.get("spark.sql.caseSensitive", "false").lower() == "true"
    keys = []
    for name in names:
        pair = (
            _position(schemas[Side.LEFT], name, exact=exact),
            _position(schemas[Side.RIGHT], name, exact=exact),
        )
        refusal = _key_refusal(schemas[Side.LEFT][pair[0]].dataType, schemas[Side.RIGHT][pair[1]].dataType)
        if refusal is not None:
            return _refuse(f"key {name}", refusal)
        keys.append(pair)
    return _Using(JoinType.INNER if kind is JoinType.CROSS else kind, tuple(dict.fromkeys(keys)), schemas)


def _position(schema: t.StructType, name: str, *, exact: bool) -> int:
    """The one column of a name: that there is one, Spark has checked."""
    same = [
        i
        for i, candidate in enumerate(schema.names)
        if (candidate == name if exact else candidate.lower() == name.lower())
    ]
    if len(same) != 1:
        raise JoinSpecError(f"{len(same)} columns are named {name!r}")
    return same[0]


def _key_refusal(left: t.DataType, right: t.DataType) -> str | None:
    for dtype in (left, right):
        if not isinstance(dtype, _KEYS):
            return f"keys of type {dtype.simpleString()} are not covered over Spark Connect"
        if getattr(dtype, "collation", "UTF8_BINARY") != "UTF8_BINARY":
            return f"its type is {dtype.simpleString()}; only strings compared by bytes are covered"
    if left != right and not (isinstance(left, _INTEGERS) and isinstance(right, _INTEGERS)):
        return f"its types differ, {left.simpleString()} and {right.simpleString()}: cast one side"
    return None


def _distribution(kind: JoinType, options: Options) -> Distribution | Reason:
    """How rows are brought together: as is asked for; else by key, as no sizes are known."""
    distribution = asked_distribution(options.strategy, {}, kind, keys=True)
    if distribution is not Distribution.ANY:
        return distribution
    if options.backend is BackendChoice.AUTO:
        why = "sizes are unknown, and rows that cross between Spark and Arrow usually cost more than the join gains"
        return Reason(ReasonKind.SLOWER, "cost", why, "strategy= or backend=")
    return Distribution.PARTITIONED


def _columns(using: _Using) -> list[Column]:
    """The columns of a USING join: keys first, then what is left of either side."""
    columns = []
    for n, (left, right) in enumerate(using.keys):
        names = using.schemas[Side.LEFT][left].name, using.schemas[Side.RIGHT][right].name
        if using.kind is JoinType.FULL:
            columns.append(sf.coalesce(sf.col(f"l{n}"), sf.col(f"r{n}")).alias(names[0]))
        elif using.kind is JoinType.RIGHT:
            columns.append(sf.col(f"r{n}").alias(names[1]))
        else:
            columns.append(sf.col(f"l{n}").alias(names[0]))
    for side in Side:
        columns += [
            sf.col(f"{side.value[0]}{n}").alias(using.schemas[side][i].name)
            for n, i in enumerate(using.rest(side), len(using.keys))
        ]
    return columns


def _refuse(what: str, why: str, setting: str | None = None) -> Reason:
    return Reason(ReasonKind.UNSUPPORTED, what, why, setting)
