"""Calls of every function that has parameters, over columns of every kind they take: no test lists functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

from gpujoin.functions.signatures import Parameter
from gpujoin.functions.spec import FunctionSpec
from gpujoin.model.expressions import Expression, call
from tests.functions.examples import example

Column = Callable[[str, int], Expression]
"""A column of a kind; operands of one kind are told apart by position."""
_SAMPLE = "a"


def calls(spec: FunctionSpec, kinds: dict[str, pa.DataType], column: Column) -> Iterator[Expression]:
    """Calls over columns alone, with and without optional ones, and over the first with constants after it."""
    parameters = spec.signature.parameters
    rest = list(zip(parameters, example(spec), strict=True))[1:] if parameters else []
    for kind, dtype in kinds.items():
        if not parameters or not parameters[0].accepts(dtype):
            continue
        operands = [_operand(place, *each, kind, kinds, column) for place, each in enumerate(rest, 1)]
        yield call(spec.function, column(kind, 0), *operands)
        least, _ = spec.signature.arity
        if least < len(parameters):
            yield call(spec.function, column(kind, 0), *operands[: least - 1])
        constants = [_SAMPLE if value is None and p.accepts(pa.string()) else value for p, value in rest]
        if constants and all(constant is not None for constant in constants):
            yield call(spec.function, column(kind, 0), *constants)


def _operand(
    place: int, parameter: Parameter, value: object, kind: str, kinds: dict[str, pa.DataType], column: Column
) -> object:
    """A column where the function computes with more than constants."""
    fitting = [k for k in (kind, *kinds) if parameter.accepts(kinds[k])]
    constant = not fitting or isinstance(value, (str, bool, Expression))
    return value if constant else column(fitting[0], place)
