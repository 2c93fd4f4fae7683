"""Calls with constants beside columns: every function of the tables, each subset of its operands constant."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, combinations

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.errors import ConditionError
from gpujoin.functions.signatures import MANY
from gpujoin.functions.spec import FunctionSpec
from gpujoin.model.expressions import Call, ColumnRef, Expression, Function, call, lit
from tests.functions.calls import Column, calls

_MOST = 3
"""Operands of functions that take any number."""
_BESIDE = ("i32", "str", "ints", "strs", "map")
_WORDS: dict[Function, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    Function.TIMESTAMP_DIFF: ("hour", (), ("ts", "ts")),
    Function.DATE_TRUNC: ("hour", (), ("ts",)),
    Function.GET_FIELD: ("x", ("struct",), ()),
}
"""A word, and the kinds of the operands before and after it."""


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
            call(spec.function, *(column(each, place) for place, each in enumerate((kind, *others))))
            for kind, dtype in kinds.items()
            for count in sorted(counts)
            for others in _others(kind, dtype, kinds, count - 1)
        )
    for tree in chain(trees, _of_words(spec, kinds, column)):
        assert isinstance(tree, Call)
        try:
            resolve(tree)
        except ConditionError:
            continue
        yield tree


def _others(kind: str, dtype: pa.DataType, kinds: dict[str, pa.DataType], count: int) -> Iterator[tuple[str, ...]]:
    """Kinds of the operands after the first: its own, and beside a list or a map others too."""
    beside = [each for each in _BESIDE if each in kinds] if pat.is_nested(dtype) else [kind]
    return ((each,) * count for each in beside)


def _of_words(spec: FunctionSpec, kinds: dict[str, pa.DataType], column: Column) -> Iterator[Expression]:
    """Calls of functions of which an operand is a word, and always a constant."""
    word = _WORDS.get(spec.function)
    if word is not None:
        text, before, after = word
        if all(kind in kinds for kind in (*before, *after)):
            operands = [column(kind, place) for place, kind in enumerate((*before, *after))]
            yield call(spec.function, *operands[: len(before)], text, *operands[len(before) :])


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
