"""Calls with constants beside columns: every function of the tables, each subset of its operands constant."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

import pyarrow as pa

from gpujoin.errors import ConditionError
from gpujoin.functions.signatures import MANY
from gpujoin.functions.spec import FunctionSpec
from gpujoin.model.expressions import Call, ColumnRef, Expression, call, lit
from tests.functions.calls import Column, calls

_MOST = 3
"""Operands of functions that take any number."""


def calls_over_columns(
    spec: FunctionSpec, kinds: dict[str, pa.DataType], column: Column, resolve: Callable[[Expression], Expression]
) -> Iterator[Call]:
    """Calls whose operands are columns wherever they may be; of functions without parameters over one kind each."""
    if spec.signature.parameters:
        trees = calls(spec, kinds, column)
    else:
        least, most = spec.signature.arity
        counts = {max(least, 1), min(most, max(least, _MOST) if most == MANY else most)}
        trees = (
            call(spec.function, *(column(kind, place) for place in range(count)))
            for kind in kinds
            for count in sorted(counts)
        )
    for tree in trees:
        assert isinstance(tree, Call)
        try:
            resolve(tree)
        except ConditionError:
            continue
        yield tree


def with_constants(tree: Call, value: Callable[[ColumnRef], tuple[object, pa.DataType]]) -> Iterator[Call]:
    """The same call with each subset of its columns, all of them too, in place of which there are constants."""
    places = [place for place, operand in enumerate(tree.arguments) if isinstance(operand, ColumnRef)]
    for count in range(1, len(places) + 1):
        for chosen in combinations(places, count):
            yield _with(tree, chosen, value)


def _with(tree: Call, chosen: Sequence[int], value: Callable[[ColumnRef], tuple[object, pa.DataType]]) -> Call:
    operands: list[Expression] = []
    for place, operand in enumerate(tree.arguments):
        if place in chosen and isinstance(operand, ColumnRef):
            operands.append(lit(*value(operand)))
        else:
            operands.append(operand)
    made = call(tree.function, *operands)
    assert isinstance(made, Call)
    return made
