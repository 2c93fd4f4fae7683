"""Sessions: windows of time that end when nothing has happened for a while (``session_window``).

Spark gives each row a session of its own, from its time to the end of its gap, and marks the column. An aggregation by
such a column merges the sessions of a group that touch. Here each row is given its merged session before it is
aggregated. Three rows of a group, with gaps of 10 minutes::

    own session      ends before   begins one   number   merged session
    12:00 to 12:10   null          yes          1        12:00 to 12:20
    12:10 to 12:20   12:10         no           1        12:00 to 12:20
    12:30 to 12:40   12:20         yes          2        12:30 to 12:40
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.functions.signatures import type_of
from gpujoin.model.aggregates import AggregateCall, AggregateFunction
from gpujoin.model.expressions import Call, Case, Expression, Function, Literal
from gpujoin.model.relations import Output, Project, Relation, SortKey, Window, column
from gpujoin.model.windows import WHOLE_PARTITION, Frame, FramedAggregate
from gpujoin.spark.catalyst.nodes import Node, NotTranslatableError
from gpujoin.spark.query.trees.builder import (
    Fragment,
    TreeBuilder,
    passed_on,
    with_outputs,
)
from gpujoin.spark.query.trees.keys import with_keys


def with_sessions(builder: TreeBuilder, below: Fragment, keys: Sequence[Node]) -> Fragment:
    """Merge the sessions of rows if one of the keys is a column of sessions."""
    sessions = [key for key in keys if key.fields.get("@session")]
    if not sessions:
        return below
    if len(sessions) > 1:
        raise NotTranslatableError("an aggregation by several session windows is not computed here")
    (session,) = sessions
    others = [key for key in keys if key is not session]
    keyed, places = with_keys(builder, below, others, frozenset(below.positions), pat.is_nested)
    return _Sessions(keyed, session.expr_id, tuple(places)).merged()


@dataclass(frozen=True)
class _Sessions:
    """The sessions of rows."""

    below: Fragment
    """The rows."""
    session: int
    """Their own sessions, by expression id."""
    places: tuple[int, ...]
    """Columns by which they are grouped."""

    def merged(self) -> Fragment:
        """The same rows, each with its merged session."""
        relation = self._and(self.below.relation, start=self._bound("start"), end=self._bound("end"))
        start, end = (column(relation.schema, len(relation.schema) - n) for n in (2, 1))
        before = self._over_frame(AggregateFunction.MAX, end, Frame(end=-1))
        window = Window(relation, self.places, (SortKey(start),), (before,))
        relation = self._and(window, begins=_begins(start, column(window.schema, len(window.schema) - 1)))
        begins = column(relation.schema, len(relation.schema) - 1)
        number = self._over_frame(AggregateFunction.COUNT, _or_null(begins), Frame(end=0))
        # Of several rows with one start the one that begins a session is the first in this order, too.
        order = SortKey(start), SortKey(begins, descending=True)
        window = Window(relation, self.places, order, (number,))
        bounds = (
            self._over_frame(AggregateFunction.MIN, start, WHOLE_PARTITION),
            self._over_frame(AggregateFunction.MAX, end, WHOLE_PARTITION),
        )
        window = Window(window, (*self.places, len(window.schema) - 1), (), bounds)
        first, last = (column(window.schema, len(window.schema) - n) for n in (2, 1))
        return self._with_sessions(window, first, last)

    def _bound(self, name: str) -> Expression:
        value = self.below.reference(self.session)
        dtype = type_of(value).field(name).type
        return Call(function=Function.GET_FIELD, arguments=(value, _text(name)), type=dtype)

    def _and(self, relation: Relation, **more: Expression) -> Project:
        """A relation's columns, and more, under names that no other column has."""
        schema = relation.schema
        columns = (Output(field.name, column(schema, n), field.nullable) for n, field in enumerate(schema))
        added = (Output(f"{name}#{self.session}", value) for name, value in more.items())
        return Project(relation, (*columns, *added))

    def _over_frame(self, function: AggregateFunction, value: Expression, frame: Frame) -> FramedAggregate:
        name = f"{function.value}#{self.session}"
        return FramedAggregate(AggregateCall(function=function, arguments=(value,), name=name), frame)

    def _with_sessions(self, window: Window, start: Expression, end: Expression) -> Fragment:
        arguments = (_text("start"), start, _text("end"), end)
        dtype = self.below.reference(self.session).type
        merged = Call(function=Function.NAMED_STRUCT, arguments=arguments, type=dtype)
        outputs = passed_on(self.below, self.below.positions)
        outputs[self.session] = dataclasses.replace(outputs[self.session], expression=merged)
        return with_outputs(window, outputs)


def _begins(start: Expression, before: Expression) -> Expression:
    """Whether all earlier sessions have ended before one starts."""
    touches = Call(function=Function.LE, arguments=(start, before), type=pa.bool_())
    nothing = Literal(value=False, type=pa.bool_())
    is_touching = Call(function=Function.COALESCE, arguments=(touches, nothing), type=pa.bool_())
    return Call(function=Function.NOT, arguments=(is_touching,), type=pa.bool_())


def _or_null(condition: Expression) -> Expression:
    """True, or null where a condition is not true."""
    true, null = (Literal(value=value, type=pa.bool_()) for value in (True, None))
    return Case(conditions=(condition,), values=(true,), otherwise=null, type=pa.bool_())


def _text(value: str) -> Literal:
    return Literal(value=value, type=pa.string())
