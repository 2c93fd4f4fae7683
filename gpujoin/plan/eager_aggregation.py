"""Eager aggregation: aggregates the build side of a join before the join (Yan and Larson, VLDB 1995).

An aggregation over an inner join reads every pair of rows. Where many build rows have the same key, all of them can be
replaced by a single row that says how many they are and what their values sum up to. A key with 10³ rows on one side
and 10⁶ on the other then takes 10⁶ steps, not 10⁹. An example:
``SELECT l.g, count(*), sum(r.w), sum(l.v) FROM l JOIN r ON l.k = r.k GROUP BY l.g``, right side built::

    l   g  k  v        r   k  w        r aggregated   k  n  sum(w)       joined   g  v  n  sum(w)
        x  1  7            1 10                       1  2      30                x  7  2      30
        x  1  8            1 20                       2  1       5                x  8  2      30
        y  2  9            2  5                                                   y  9  1       5

    result   g  count(*) = sum(n)  sum(w) = sum of sum(w)  sum(v) = sum(n * v)
             x                  4                      60                   30
             y                  1                       5                    9

The join has three rows, one for each left row, and not the five pairs. Least and greatest values need no weights. In an
outer join that keeps the rows of the other side, a row without a match counts once, and has no values of the build
side.

Only exact functions are rewritten: counts, sums of integers, least and greatest values. The caller must prove from the
values of each piece that nothing overflows on the way. Where it cannot, pairs are made and go into the same
aggregation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce

import pyarrow as pa

from gpujoin.model.aggregates import AggregateCall, AggregateFunction
from gpujoin.model.expressions import Attribute, Call, Case, Cast, ColumnId, EvalMode, Expression, Function, Literal
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.relations import ExchangeSource, Join, Output, PartialAggregate, column
from gpujoin.model.spec import JoinSpec, KeyPair
from gpujoin.model.types import is_whole, logical
from gpujoin.plan.fragments import ColumnTree, all_bound, attributes, bound, positions

_INT64 = pa.int64()
_LINEAR = frozenset({Function.ADD, Function.SUBTRACT})
_STRICT = frozenset({Function.ADD, Function.SUBTRACT, Function.MULTIPLY, Function.NEGATE, Function.ABS})
"""Functions that are null where an argument is."""
_OUTER = {Side.LEFT: JoinType.LEFT, Side.RIGHT: JoinType.RIGHT}
"""The outer join that keeps all rows of one side."""


@dataclass(frozen=True)
class EagerAggregation:
    """An aggregation over a join, with the build side aggregated first."""

    join: Join
    """The original join."""
    built: PartialAggregate
    """The aggregated build side: each key once, with the terms of its rows (their number, sums, …)."""
    joined: Join
    """Join of the stream side with ``built``."""
    aggregated: tuple[Expression, ...]
    """Input columns of :attr:`final`, computed from rows of ``joined``."""
    plain: tuple[Expression, ...]
    """The columns of the original aggregation, computed from rows of ``join``."""
    final: PartialAggregate
    """Aggregation of either input."""
    outputs: tuple[Expression, ...]
    """Columns of the original aggregation, computed from those of ``final``."""
    of_build: tuple[Expression, ...]
    """Expressions over the build side that must not fail for any of its rows."""
    sums: tuple[Expression, ...]
    """Expressions over the build side whose sum over all of its rows must fit 64 bits."""
    of_pairs: tuple[Expression, ...]
    """Expressions over the columns of the stream side and of the build side that must not fail for any pair."""
    of_joined: tuple[Expression, ...]
    """Expressions over the columns of the stream side and of ``built`` that must not fail for any pair."""


def eager_aggregation(node: PartialAggregate) -> EagerAggregation | None:
    """Rewrite an aggregation over a join so that the build side is aggregated first.

    ``None`` if the input is no join by equality alone, inner or one that keeps all rows of the other side, if groups
    depend on the build side, or if an aggregate cannot be computed this way.
    """
    join = node.child
    if not isinstance(join, Join) or not node.aggregates:
        return None
    spec = join.spec
    if spec.join_type not in (JoinType.INNER, _OUTER[join.build_side.other]) or not spec.keys:
        return None
    if spec.condition is not None or spec.as_of is not None:
        return None
    (tree,) = ColumnTree.from_relation(node).inputs
    return _Rewrite(node, join, tree).rewrite()


class _NotApplicable(Exception):  # noqa: N818  # says what happened, and never reaches a caller
    """An aggregate cannot be computed from an aggregated build side."""


@dataclass(frozen=True)
class _Rewritten:
    """An aggregate, with its argument over a row of the new join and over a single pair of the original one.

    In a rewrite, columns are known by their identities: those of both sides, and the terms.
    """

    function: AggregateFunction
    mode: EvalMode
    aggregated: Expression
    plain: Expression


@dataclass
class _Rewrite:
    node: PartialAggregate
    join: Join
    tree: ColumnTree
    """The join with its columns' identities."""
    terms: dict[ColumnId, AggregateCall] = field(default_factory=dict)
    sums: list[Expression] = field(default_factory=list)
    pairs: list[Expression] = field(default_factory=list)

    @property
    def build(self) -> Side:
        return self.join.build_side

    @property
    def stream(self) -> Side:
        return self.build.other

    def rewrite(self) -> EagerAggregation | None:
        try:
            keys = [self.tree.named(key.expression) for key in self.node.keys]
            if any(self._sides(key) - {self.stream} for key in keys):
                return None
            self._count_term = self._term(AggregateCall(function=AggregateFunction.COUNT, name="n"))
            rewritten = [self._rewrite(call.mapped(self.tree.named)) for call in self.node.aggregates]
        except _NotApplicable:
            return None
        return self._assemble(keys, rewritten)

    # -- aggregates ----------------------------------------------------------------------------------------

    def _rewrite(self, call: AggregateCall) -> _Rewritten:
        if call.filter is not None:
            raise _NotApplicable
        sides = frozenset().union(*map(self._sides, call.arguments))
        match call.function:
            case AggregateFunction.COUNT:
                return self._count(call, sides)
            case AggregateFunction.MIN | AggregateFunction.MAX if len(sides) < 2:
                (value,) = call.arguments
                of_joined = value
                if sides == {self.build}:
                    of_joined = self._term(AggregateCall(function=call.function, arguments=(self._of_build(value),)))
                return _Rewritten(call.function, EvalMode.LEGACY, of_joined, value)
            case AggregateFunction.SUM if is_whole(call.dtype) and call.mode is not EvalMode.TRY:
                value = _narrow(call.arguments[0])
                return _Rewritten(AggregateFunction.SUM, call.mode, self._total(value), _wide(value))
        raise _NotApplicable

    def _count(self, call: AggregateCall, sides: frozenset[Side]) -> _Rewritten:
        unit, zero = Literal(value=1, type=_INT64), Literal(value=0, type=_INT64)
        present = [_call(Function.IS_NOT_NULL, pa.bool_(), argument) for argument in call.arguments]
        if not present:
            return _Rewritten(AggregateFunction.SUM, EvalMode.LEGACY, self._build_count, unit)
        if len(sides) > 1:
            raise _NotApplicable
        every = reduce(lambda a, b: _call(Function.AND, pa.bool_(), a, b), present)
        plain = Case(conditions=(every,), values=(unit,), otherwise=zero, type=_INT64)
        if sides == {self.build}:
            counted = AggregateCall(
                function=AggregateFunction.COUNT, arguments=tuple(map(self._of_build, call.arguments))
            )
            return _Rewritten(AggregateFunction.SUM, EvalMode.LEGACY, self._or(self._term(counted), 0), plain)
        weight = Case(conditions=(every,), values=(self._build_count,), otherwise=zero, type=_INT64)
        return _Rewritten(AggregateFunction.SUM, EvalMode.LEGACY, weight, plain)

    def _total(self, value: Expression) -> Expression:
        """Sum a value over the pairs that a row of the new join replaces; null where it is null in all of them."""
        self.pairs.append(value)
        sides = self._sides(value)
        if sides <= {self.stream}:
            return _product(_wide(value), self._build_count)
        if sides == {self.build}:
            return self._sum_of_build(value)
        if not isinstance(value, Call) or value.function not in (*_LINEAR, Function.MULTIPLY):
            raise _NotApplicable
        parts = {self._sides(part): part for part in value.arguments}
        of_stream, of_build = parts.get(frozenset({self.stream})), parts.get(frozenset({self.build}))
        if of_stream is None or of_build is None:
            raise _NotApplicable
        total = self._sum_of_build(of_build)
        if value.function is Function.MULTIPLY:
            return _product(_wide(of_stream), total)
        counted = self._term(AggregateCall(function=AggregateFunction.COUNT, arguments=(self._of_build(of_build),)))
        times = _product(_wide(of_stream), self._or(counted, 0))
        pair = (times, total) if value.arguments[0] is of_stream else (total, times)
        return Call(function=value.function, arguments=pair, mode=EvalMode.ANSI, type=_INT64)

    def _sum_of_build(self, value: Expression) -> Expression:
        wide = _wide(self._of_build(value))
        self.sums.append(wide)
        return self._term(AggregateCall(function=AggregateFunction.SUM, arguments=(wide,), mode=EvalMode.ANSI))

    # -- columns -------------------------------------------------------------------------------------------

    def _sides(self, value: Expression) -> frozenset[Side]:
        columns = attributes([value])
        return frozenset(side for side in Side if columns & self.tree.side(side).positions.keys())

    def _of_build(self, value: Expression) -> Expression:
        """Express a value of a pair over the build side's rows; it is null for a row without a match."""
        if self.join.spec.join_type is not JoinType.INNER and not _is_null_for_nulls(value):
            raise _NotApplicable
        return value

    @property
    def _build_count(self) -> Expression:
        """Number of the pairs that a row of the new join replaces; a row without a match stands for itself."""
        return self._or(self._count_term, 1)

    def _or(self, counted: Expression, unmatched: int) -> Expression:
        """A count of build rows, with that of a row without a match."""
        if self.join.spec.join_type is JoinType.INNER:
            return counted
        return Call(function=Function.COALESCE, arguments=(counted, Literal(value=unmatched, type=_INT64)), type=_INT64)

    def _term(self, call: AggregateCall) -> Expression:
        """Add an aggregate of a key's build rows, and refer to it. Equal aggregates are added once."""
        for id_, term in self.terms.items():
            if dataclasses.replace(call, name=term.name) == term:
                return _reference(id_, term)
        id_ = ColumnId(f"t{len(self.terms)}")
        self.terms[id_] = dataclasses.replace(call, name=id_.name)
        return _reference(id_, self.terms[id_])

    def _assemble(self, keys: Sequence[Expression], rewritten: Sequence[_Rewritten]) -> EagerAggregation:
        join, build, stream = self.join, self.build, self.stream
        spec, of_stream, of_build = join.spec, self.tree.side(stream), self.tree.side(build)
        below = of_build.relation
        build_keys = tuple(Output(f"k{n}", column(below.schema, key.of(build))) for n, key in enumerate(spec.keys))
        terms = tuple(call.mapped(lambda value: bound(value, of_build.positions)) for call in self.terms.values())
        built = PartialAggregate(below, build_keys, terms, final=True)
        pairs = tuple(
            KeyPair(key.left, n, key.nulls) if build is Side.RIGHT else KeyPair(n, key.right, key.nulls)
            for n, key in enumerate(spec.keys)
        )
        first = len(build_keys)
        outputs = {stream: spec.output_of(stream), build: tuple(range(first, first + len(terms)))}
        of_groups = JoinSpec(spec.join_type, pairs, None, outputs[Side.LEFT], outputs[Side.RIGHT])
        sides = {stream: of_stream.relation, build: built}
        joined = Join(sides[Side.LEFT], sides[Side.RIGHT], of_groups, build)
        ids = {stream: [of_stream.ids[n] for n in outputs[stream]], build: [*self.terms]}
        of_joined = positions([*ids[Side.LEFT], *ids[Side.RIGHT]])
        of_pairs = positions([*of_stream.ids, *of_build.ids])
        width = len(of_stream.ids) + first
        of_groups_of_pairs = positions(of_stream.ids) | {id_: width + n for n, id_ in enumerate(self.terms)}
        plain = [*keys, *(call.plain for call in rewritten)]
        source = ExchangeSource(0, pa.schema([pa.field(f"c{n}", logical(call.type)) for n, call in enumerate(plain)]))
        final = PartialAggregate(
            source,
            tuple(Output(key.name, column(source.schema, n)) for n, key in enumerate(self.node.keys)),
            tuple(
                AggregateCall(
                    function=call.function, arguments=(column(source.schema, len(keys) + n),), name=f"a{n}",
                    mode=call.mode,
                )
                for n, call in enumerate(rewritten)
            ),
            final=self.node.final,
        )  # fmt: skip
        totals = [call.aggregated for call in rewritten if call.function is AggregateFunction.SUM]
        return EagerAggregation(
            join, built, joined,
            all_bound([*keys, *(call.aggregated for call in rewritten)], of_joined),
            all_bound(plain, self.tree.positions), final, tuple(self._outputs(final)),
            tuple(argument for call in terms for argument in call.arguments),
            all_bound(self.sums, of_build.positions),
            all_bound(self.pairs, of_pairs), all_bound(totals, of_groups_of_pairs),
        )  # fmt: skip

    def _outputs(self, final: PartialAggregate) -> list[Expression]:
        count = len(self.node.keys)
        outputs: list[Expression] = [column(final.schema, n) for n in range(count)]
        for n, call in enumerate(self.node.aggregates):
            value: Expression = column(final.schema, count + n)
            if call.function is AggregateFunction.COUNT:
                zero = Literal(value=0, type=_INT64)
                value = Call(function=Function.COALESCE, arguments=(value, zero), type=_INT64)
            outputs.append(value)
        return outputs


def _is_null_for_nulls(value: Expression) -> bool:
    """Whether a value is provably null where all columns are."""
    match value:
        case Attribute():
            return True
        case Cast():
            return _is_null_for_nulls(value.child)
        case Call() if value.function in _STRICT:
            return any(map(_is_null_for_nulls, value.arguments))
    return False


def _reference(id_: ColumnId, term: AggregateCall) -> Expression:
    (buffer,) = term.buffer
    return Attribute(id=id_, name=buffer.name, type=buffer.type)


def _narrow(value: Expression) -> Expression:
    """Drop a cast of integers to wider ones, which a sum does anyway."""
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
