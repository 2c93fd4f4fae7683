"""Aggregation before a join whose build side has keys of many rows: eager aggregation (Yan and Larson, VLDB 1995).

Where an aggregation reads the pairs of an inner join, all build rows of a key can be one row that knows how many they
are: the count of the pairs is a sum of such numbers, a sum over the stream side's values is one of products with them,
a sum over the build side's values is one of sums. A key with 10³ × 10⁶ pairs then takes 10⁶ steps.

Only what is exact is transformed: counts, sums of integers, least and greatest values. That nothing overflows on the
way is for the caller to prove from the values, piece by piece; where that fails, pairs are made and go into the same
aggregation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

import pyarrow as pa

from gpujoin.model.aggregates import AggregateCall, AggregateFunction
from gpujoin.model.expressions import Call, Case, Cast, ColumnRef, EvalMode, Expression, Function, Literal
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.relations import ExchangeSource, Join, Output, PartialAggregate, column
from gpujoin.model.spec import JoinSpec, KeyPair
from gpujoin.model.types import is_whole, logical

_INT64 = pa.int64()
_LINEAR = frozenset({Function.ADD, Function.SUBTRACT})


@dataclass(frozen=True)
class EagerAggregation:
    """An aggregation over a join, with the build side aggregated first.

    Attributes
    ----------
    join : Join
        The join as it was.
    built : PartialAggregate
        The build side's keys, each once, and what is known of its rows.
    joined : Join
        The stream side with that.
    aggregated : tuple of Expression
        What :attr:`final` reads, over the rows of ``joined``.
    plain : tuple of Expression
        The same over the rows of ``join``.
    final : PartialAggregate
        The aggregation.
    outputs : tuple of Expression
        The columns of the aggregation as it was, over those of ``final``.
    of_build : tuple of Expression
        Over the build side: must not fail on any of its rows.
    sums : tuple of Expression
        Over the build side: must not leave 64 bits, times the number of its rows.
    of_pairs : tuple of Expression
        Over the stream side's columns, then the build side's: must not fail on any pair.
    of_joined : tuple of Expression
        Over the stream side's columns, then those of ``built``: must not fail on any pair.
    """

    join: Join
    built: PartialAggregate
    joined: Join
    aggregated: tuple[Expression, ...]
    plain: tuple[Expression, ...]
    final: PartialAggregate
    outputs: tuple[Expression, ...]
    of_build: tuple[Expression, ...]
    sums: tuple[Expression, ...]
    of_pairs: tuple[Expression, ...]
    of_joined: tuple[Expression, ...]


def eager_aggregation(node: PartialAggregate) -> EagerAggregation | None:
    """Aggregate the build side of a join first.

    Parameters
    ----------
    node : PartialAggregate
        Aggregation over a join.

    Returns
    -------
    EagerAggregation or None
        ``None`` if it does not stand on an inner join by equality alone, groups by columns of the build side, or
        computes what cannot be computed so.
    """
    join = node.child
    if not isinstance(join, Join) or not node.aggregates:
        return None
    spec = join.spec
    if spec.join_type is not JoinType.INNER or not spec.keys or spec.condition is not None:
        return None
    return _Collapsing(node, join).done()


class _NotCollapsed(Exception):  # noqa: N818  # says what happened, and never reaches a caller
    """Some part cannot be computed from a key's rows as one."""


@dataclass(frozen=True)
class _Weighed:
    """One aggregate's value, of a row that stands for pairs and of a single pair."""

    function: AggregateFunction
    mode: EvalMode
    aggregated: Expression
    plain: Expression


@dataclass
class _Collapsing:
    node: PartialAggregate
    join: Join
    terms: list[AggregateCall] = field(default_factory=list)
    sums: list[Expression] = field(default_factory=list)
    pairs: list[Expression] = field(default_factory=list)

    @property
    def build(self) -> Side:
        return self.join.build_side

    @property
    def stream(self) -> Side:
        return self.build.other

    def done(self) -> EagerAggregation | None:
        try:
            if any(self._sides(key.expression) - {self.stream} for key in self.node.keys):
                return None
            self._term(AggregateCall(function=AggregateFunction.COUNT, name="n"))
            weighed = [self._weighed(call) for call in self.node.aggregates]
        except _NotCollapsed:
            return None
        return self._assembled(weighed)

    # -- aggregates ----------------------------------------------------------------------------------------

    def _weighed(self, call: AggregateCall) -> _Weighed:
        if call.filter is not None:
            raise _NotCollapsed
        sides = frozenset().union(*map(self._sides, call.arguments))
        match call.function:
            case AggregateFunction.COUNT:
                return self._count(call, sides)
            case AggregateFunction.MIN | AggregateFunction.MAX if len(sides) < 2:
                (value,) = call.arguments
                taken = value
                if sides == {self.build}:
                    taken = self._term(
                        AggregateCall(function=call.function, arguments=(self._of_build(value),))
                    )
                return _Weighed(call.function, EvalMode.LEGACY, taken, value)
            case AggregateFunction.SUM if is_whole(call.dtype):
                value = _narrow(call.arguments[0])
                return _Weighed(AggregateFunction.SUM, call.mode, self._total(value), _wide(value))
        raise _NotCollapsed

    def _count(self, call: AggregateCall, sides: frozenset[Side]) -> _Weighed:
        one, none = Literal(value=1, type=_INT64), Literal(value=0, type=_INT64)
        present = [_call(Function.IS_NOT_NULL, pa.bool_(), argument) for argument in call.arguments]
        if not present:
            return _Weighed(AggregateFunction.SUM, EvalMode.LEGACY, self._number, one)
        if len(sides) > 1:
            raise _NotCollapsed
        every = reduce(lambda a, b: _call(Function.AND, pa.bool_(), a, b), present)
        plain = Case(conditions=(every,), values=(one,), otherwise=none, type=_INT64)
        if sides == {self.build}:
            counted = AggregateCall(
                function=AggregateFunction.COUNT, arguments=tuple(map(self._of_build, call.arguments))
            )
            return _Weighed(AggregateFunction.SUM, EvalMode.LEGACY, self._term(counted), plain)
        weight = Case(conditions=(every,), values=(self._number,), otherwise=none, type=_INT64)
        return _Weighed(AggregateFunction.SUM, EvalMode.LEGACY, weight, plain)

    def _total(self, value: Expression) -> Expression:
        """The sum of a value over the pairs that a row stands for; null where there is none that is not null."""
        self.pairs.append(value)
        sides = self._sides(value)
        if sides <= {self.stream}:
            return _product(_wide(value), self._number)
        if sides == {self.build}:
            return self._sum_of_build(value)
        if not isinstance(value, Call) or value.function not in (*_LINEAR, Function.MULTIPLY):
            raise _NotCollapsed
        parts = {self._sides(part): part for part in value.arguments}
        of_stream, of_build = parts.get(frozenset({self.stream})), parts.get(frozenset({self.build}))
        if of_stream is None or of_build is None:
            raise _NotCollapsed
        total = self._sum_of_build(of_build)
        if value.function is Function.MULTIPLY:
            return _product(_wide(of_stream), total)
        counted = self._term(
            AggregateCall(function=AggregateFunction.COUNT, arguments=(self._of_build(of_build),))
        )
        times = _product(_wide(of_stream), counted)
        pair = (times, total) if value.arguments[0] is of_stream else (total, times)
        return Call(function=value.function, arguments=pair, mode=EvalMode.ANSI, type=_INT64)

    def _sum_of_build(self, value: Expression) -> Expression:
        wide = _wide(self._of_build(value))
        self.sums.append(wide)
        return self._term(
            AggregateCall(function=AggregateFunction.SUM, arguments=(wide,), mode=EvalMode.ANSI)
        )

    # -- columns -------------------------------------------------------------------------------------------

    def _sides(self, value: Expression) -> frozenset[Side]:
        return frozenset(self._place(ref.index)[0] for ref in value.columns())

    def _place(self, index: int) -> tuple[Side, int]:
        """Side and position of a column of the join's output."""
        spec = self.join.spec
        first = len(spec.left_output)
        return (Side.LEFT, spec.left_output[index]) if index < first else (
            Side.RIGHT, spec.right_output[index - first],
        )  # fmt: skip

    def _of_build(self, value: Expression) -> Expression:
        schema = self.join.side(self.build).schema
        return _mapped(
            value, {i: column(schema, at) for i, (side, at) in self._places() if side is self.build}
        )

    def _places(self) -> list[tuple[int, tuple[Side, int]]]:
        return [(i, self._place(i)) for i in range(len(self.join.schema))]

    @property
    def _number(self) -> Expression:
        return self._reference(0)

    def _term(self, call: AggregateCall) -> Expression:
        """A reference to what is known of a key's build rows; of equal calls the same one."""
        for at, known in enumerate(self.terms):
            if dataclasses.replace(call, name=known.name) == known:
                return self._reference(at)
        at = len(self.terms)
        self.terms.append(dataclasses.replace(call, name=f"t{at}"))
        return self._reference(at)

    def _reference(self, at: int) -> ColumnRef:
        """A term, for now after all columns of the join's output."""
        (buffer,) = self.terms[at].buffer
        return ColumnRef(side=Side.LEFT, name=buffer.name, index=len(self.join.schema) + at, type=buffer.type)

    def _assembled(self, weighed: Sequence[_Weighed]) -> EagerAggregation:
        join, build, stream = self.join, self.build, self.stream
        spec = join.spec
        below = join.side(build)
        keys = tuple(Output(f"k{n}", column(below.schema, key.of(build))) for n, key in enumerate(spec.keys))
        built = PartialAggregate(below, keys, tuple(self.terms), once=True)
        pairs = tuple(
            KeyPair(key.left, n, key.nulls) if build is Side.RIGHT else KeyPair(n, key.right, key.nulls)
            for n, key in enumerate(spec.keys)
        )
        terms = tuple(len(keys) + n for n in range(len(self.terms)))
        outputs = {stream: spec.output_of(stream), build: terms}
        inner = JoinSpec(
            JoinType.INNER, pairs, None, outputs[Side.LEFT], outputs[Side.RIGHT]
        )  # fmt: skip
        sides = {stream: join.side(stream), build: built}
        joined = Join(sides[Side.LEFT], sides[Side.RIGHT], inner, build)
        of_rows = self._joined_places(joined, terms)
        of_columns = self._apart(len(keys))
        groups = tuple(key.expression for key in self.node.keys)
        plain = (*groups, *(term.plain for term in weighed))
        fed = ExchangeSource(
            0, pa.schema([pa.field(f"c{n}", logical(term.type)) for n, term in enumerate(plain)])
        )
        final = PartialAggregate(
            fed,
            tuple(Output(key.name, column(fed.schema, n)) for n, key in enumerate(self.node.keys)),
            tuple(
                AggregateCall(
                    function=term.function, arguments=(column(fed.schema, len(groups) + n),), name=f"a{n}",
                    mode=term.mode,
                )
                for n, term in enumerate(weighed)
            ),
            once=self.node.once,
        )  # fmt: skip
        return EagerAggregation(
            join, built, joined,
            tuple(_mapped(term, of_rows) for term in (*groups, *(term.aggregated for term in weighed))),
            plain, final, tuple(self._outputs(final)),
            tuple(argument for call in self.terms for argument in call.arguments), tuple(self.sums),
            tuple(_mapped(term, of_columns) for term in self.pairs),
            tuple(_mapped(term.aggregated, of_columns) for term in weighed if term.function is AggregateFunction.SUM),
        )  # fmt: skip

    def _joined_places(self, joined: Join, terms: Sequence[int]) -> dict[int, ColumnRef]:
        """Where the new join gives what the old one's output and the terms were."""
        first = len(joined.spec.left_output)
        starts = {Side.LEFT: 0, Side.RIGHT: first}
        offset = 0 if self.stream is Side.LEFT else len(self.join.spec.left_output)
        references = {
            i: column(joined.schema, starts[self.stream] + i - offset)
            for i, (side, _) in self._places() if side is self.stream
        }  # fmt: skip
        count = len(self.join.schema)
        return references | {
            count + n: column(joined.schema, starts[self.build] + n) for n in range(len(terms))
        }

    def _apart(self, keys: int) -> dict[int, ColumnRef]:
        """The same over the stream side's columns, then the build side's, or those of the aggregated build side."""
        width = len(self.join.side(self.stream).schema)
        references = {}
        for i, (side, at) in self._places():
            ref = column(self.join.side(side).schema, at)
            references[i] = dataclasses.replace(ref, index=at if side is self.stream else width + at)
        for at in range(len(self.terms)):
            term = self._reference(at)
            references[len(self.join.schema) + at] = dataclasses.replace(term, index=width + keys + at)
        return references

    def _outputs(self, final: PartialAggregate) -> list[Expression]:
        count = len(self.node.keys)
        outputs: list[Expression] = [column(final.schema, n) for n in range(count)]
        for n, call in enumerate(self.node.aggregates):
            value: Expression = column(final.schema, count + n)
            if call.function is AggregateFunction.COUNT:
                none = Literal(value=0, type=_INT64)
                value = Call(function=Function.COALESCE, arguments=(value, none), type=_INT64)
            outputs.append(value)
        return outputs


def _mapped(value: Expression, places: Mapping[int, ColumnRef]) -> Expression:
    if isinstance(value, ColumnRef):
        return places[value.index]
    if not value.children:
        return value
    return value.with_children([_mapped(child, places) for child in value.children])


def _narrow(value: Expression) -> Expression:
    """Without a cast of integers to wider ones, which a sum does anyway."""
    while isinstance(value, Cast) and is_whole(logical(value.type)) and _is_wider(value):
        value = value.child
    return value


def _is_wider(cast: Cast) -> bool:
    source = logical(cast.child.type)
    return is_whole(source) and source.bit_width <= logical(cast.type).bit_width


def _wide(value: Expression) -> Expression:
    if logical(value.type) == _INT64:
        return value
    return Cast(child=value, to=_INT64, mode=EvalMode.ANSI, type=_INT64)


def _product(left: Expression, right: Expression) -> Expression:
    return Call(function=Function.MULTIPLY, arguments=(left, right), mode=EvalMode.ANSI, type=_INT64)


def _call(function: Function, dtype: pa.DataType, *arguments: Expression) -> Expression:
    return Call(function=function, arguments=arguments, type=dtype)
