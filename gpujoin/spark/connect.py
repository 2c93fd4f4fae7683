"""Joins over Spark Connect, by public DataFrame methods alone: columns of equal name on both sides, any join type.

A Connect client sees schemas, but no plans: no conditions, hints or sizes. So only joins by name are taken, and the
columns of a USING join are put together here as Spark does.
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

from gpujoin.config import Options, Strategy
from gpujoin.errors import JoinSpecError
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.reasons import Reason, ReasonKind
from gpujoin.model.spec import JoinSpec, KeyPair
from gpujoin.plan.explain import Explanation, JoinExplanation
from gpujoin.plan.strategy import JoinFacts, SideFacts, choose
from gpujoin.spark.catalyst.joins import join_type_called
from gpujoin.spark.compat import arrow_schema
from gpujoin.spark.explaining import expected_backend
from gpujoin.spark.gateway import plan_text
from gpujoin.spark.outcomes import keep, kept, tell
from gpujoin.spark.request import JoinRequest, PreparedSide
from gpujoin.spark.rewrite import MARK
from gpujoin.spark.runtime import execute
from gpujoin.spark.settings import gpu_outlook

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
"""Whose key columns the result is made of, where not the left side's alone."""

_left_to_spark: WeakKeyDictionary[DataFrame, JoinExplanation] = WeakKeyDictionary()


@dataclass(frozen=True)
class _Using:
    """A join by names.

    Attributes
    ----------
    kind : JoinType
        What is returned.
    keys : tuple of (int, int)
        Positions of the keys on the two sides.
    schemas : dict from Side to StructType
        Schemas of the two sides.
    """

    kind: JoinType
    keys: tuple[tuple[int, int], ...]
    schemas: dict[Side, t.StructType]

    def key_positions(self, side: Side) -> list[int]:
        """Give the positions of a side's keys, in the order of the names."""
        return [pair[0] if side is Side.LEFT else pair[1] for pair in self.keys]

    def rest(self, side: Side) -> list[int]:
        """Give the positions of a side's columns that are no keys; none where the side is not returned."""
        if side is Side.RIGHT and self.kind.left_rows_only:
            return []
        taken = self.key_positions(side)
        return [i for i in range(len(self.schemas[side])) if i not in taken]

    def output(self, side: Side) -> list[int]:
        """Give the positions of the columns that the engine is to return from a side."""
        holds = side in _KEY_HOLDERS.get(self.kind, (Side.LEFT,))
        return (self.key_positions(side) if holds else []) + self.rest(side)


def join(
    left: DataFrame,
    right: DataFrame,
    on: str | list[str] | Column | list[Column] | None,
    how: str | None,
    *,
    conf: Mapping[str, str],
    options: Options,
    join_id: str,
) -> DataFrame:
    """Do what :func:`gpujoin.gpu_join` does, for Spark Connect.

    Parameters
    ----------
    left, right, on, how
        As there.
    conf : mapping
        The session's configuration.
    options : Options
        Settings and arguments.
    join_id : str
        The join's id.
    """
    native = left.join(right, on, how)
    schema = native.schema  # Spark checks the join here
    explanation = JoinExplanation(
        join_type=JoinType.parse(how or "inner").value, strategy=Strategy.SPARK, backend="spark", join_id=join_id,
        keys=tuple(_names(on) or ()), inputs=_topmost(left) + _topmost(right),
    )  # fmt: skip
    using = _read(left, right, on, explanation, conf) if options.enabled else _off()
    planned = using if isinstance(using, Reason) else _request(using, conf, options, explanation)
    if isinstance(planned, Reason):
        return _leave(native, dataclasses.replace(explanation, reasons=(planned,)), options)
    assert isinstance(using, _Using)
    request, explanation = planned
    tell(explanation, options)
    keep(join_id, explanation)
    result = execute(request, left.toDF(*request.left.arrow.names), right.toDF(*request.right.arrow.names))
    joined = result.alias(join_id).select(*_columns(using))
    if joined.schema != schema:
        why = f"the result's schema would be {joined.schema.simpleString()}, not {schema.simpleString()}"
        reason = Reason(ReasonKind.UNEXPECTED, "schema", why)
        return _leave(
            native, dataclasses.replace(explanation, strategy=Strategy.SPARK, reasons=(reason,)), options
        )
    return joined


def _topmost(frame: DataFrame) -> tuple[JoinExplanation, ...]:
    return tuple(root for root in explain(frame).roots if isinstance(root, JoinExplanation))


def explain(frame: DataFrame) -> Explanation:
    """Do what :func:`gpujoin.explain` does, for Spark Connect: from the text of the analyzed plan.

    Why a join was left to Spark is known for the very DataFrame that ``gpu_join`` returned, not for what is made of
    it: a Connect client cannot mark a plan without changing it.
    """
    known = _left_to_spark.get(frame)
    if known is not None:
        return Explanation((known,))
    lines = [
        (len(line) - len(line.lstrip(" :+-")), line.lstrip(" :+-")) for line in plan_text(frame).splitlines()
    ]
    return Explanation(tuple(_joins(lines)))


def _joins(lines: list[tuple[int, str]]) -> Iterator[JoinExplanation]:
    """The topmost joins of an indented plan."""
    position = 0
    while position < len(lines):
        depth, text = lines[position]
        end = position + 1
        while end < len(lines) and lines[end][0] > depth:
            end += 1
        mark = re.match(rf"SubqueryAlias ({MARK}\w+)", text)
        known = kept(mark[1]) if mark else None
        found = re.match(r"Join (\w+)(?:\([^)]*\))?(?:, (.*))?$", text)
        if known is not None:
            yield known
        elif found:
            yield JoinExplanation(
                join_type=join_type_called(found[1]), strategy=Strategy.SPARK, backend="spark", condition=found[2],
                inputs=tuple(_joins(lines[position + 1 : end])),
            )  # fmt: skip
        else:
            end = position + 1
        position = end


def _off() -> Reason:
    return Reason(ReasonKind.CONFIGURED, "settings", "gpujoin is switched off", "spark.gpujoin.enabled")


def _names(on: object) -> list[str] | None:
    if isinstance(on, str):
        return [on]
    if isinstance(on, list) and on and all(isinstance(name, str) for name in on):
        return on
    return None


def _read(
    left: DataFrame, right: DataFrame, on: object, explanation: JoinExplanation, conf: Mapping[str, str]
) -> _Using | Reason:
    names = _names(on)
    if names is None:
        return _refuse("condition", "over Spark Connect only joins by column names are covered", "on='name'")
    if left.isStreaming or right.isStreaming:
        return _refuse("sides", "one of them is a stream")
    kind = JoinType.parse(explanation.join_type)
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
        for i, found in enumerate(schema.names)
        if (found == name if exact else found.lower() == name.lower())
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


def _request(
    using: _Using, conf: Mapping[str, str], options: Options, explanation: JoinExplanation
) -> tuple[JoinRequest, JoinExplanation] | Reason:
    outlook = gpu_outlook(conf)
    choice = choose(
        JoinFacts(
            using.kind, equality=True, condition=False, left=SideFacts(), right=SideFacts(), gpu=outlook
        ),
        options,
    )
    if choice.build_side is None:
        return choice.reasons[0]
    try:
        prepared = {side: _prepared(using.schemas[side], side, conf) for side in Side}
    except JoinSpecError as problem:
        return _refuse("columns", str(problem))
    backend, notes = expected_backend(options, outlook, keyed=True)
    explanation = dataclasses.replace(
        explanation,
        strategy=choice.strategy,
        backend=backend,
        build_side=choice.build_side,
        notes=choice.notes + notes,
    )
    assert explanation.join_id is not None
    request = JoinRequest(
        spec=JoinSpec(
            using.kind,
            tuple(KeyPair(*pair) for pair in using.keys),
            left_output=tuple(using.output(Side.LEFT)),
            right_output=tuple(using.output(Side.RIGHT)),
        ),
        left=prepared[Side.LEFT],
        right=prepared[Side.RIGHT],
        strategy=choice.strategy,
        build_side=choice.build_side,
        options=options,
        partitions=options.exchange_partitions,
        join_id=explanation.join_id,
        description=f"{using.kind.value} join using {', '.join(explanation.keys)}",
    )
    return request, explanation


def _prepared(schema: t.StructType, side: Side, conf: Mapping[str, str]) -> PreparedSide:
    fields = [
        t.StructField(f"{side.value[0]}{i}", one.dataType, one.nullable, one.metadata)
        for i, one in enumerate(schema)
    ]
    renamed = t.StructType(fields)
    large = conf.get("spark.sql.execution.arrow.useLargeVarTypes", "false").lower() == "true"
    return PreparedSide(spark=renamed, arrow=arrow_schema(renamed, large=large))


def _columns(using: _Using) -> list[Column]:
    """The columns of a USING join: keys first, then what is left of either side."""
    columns = []
    for one, two in using.keys:
        left, right = using.schemas[Side.LEFT][one].name, using.schemas[Side.RIGHT][two].name
        if using.kind is JoinType.FULL:
            columns.append(sf.coalesce(sf.col(f"l{one}"), sf.col(f"r{two}")).alias(left))
        elif using.kind is JoinType.RIGHT:
            columns.append(sf.col(f"r{two}").alias(right))
        else:
            columns.append(sf.col(f"l{one}").alias(left))
    for side in Side:
        columns += [
            sf.col(f"{side.value[0]}{i}").alias(using.schemas[side][i].name) for i in using.rest(side)
        ]
    return columns


def _leave(native: DataFrame, explanation: JoinExplanation, options: Options) -> DataFrame:
    explanation = dataclasses.replace(
        explanation, strategy=Strategy.SPARK, backend="spark", build_side=None, notes=()
    )
    tell(explanation, options)
    _left_to_spark[native] = explanation
    return native


def _refuse(what: str, why: str, setting: str | None = None) -> Reason:
    return Reason(ReasonKind.UNSUPPORTED, what, why, setting)
