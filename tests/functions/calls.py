"""Calls of every function that has parameters, over columns of every kind they take: no test lists functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from gpujoin.functions.signatures import Parameter
from gpujoin.functions.spec import FunctionSpec
from gpujoin.model.expressions import Expression, call

Column = Callable[[str, int], Expression]
"""A column of a kind; operands of one kind are told apart by position."""
_SAMPLE = "a"


def calls(spec: FunctionSpec, kinds: dict[str, pa.DataType], column: Column) -> Iterator[Expression]:
    """Calls over columns alone, with and without optional ones, and over the first with constants after it."""
    parameters = spec.signature.parameters
    for kind, dtype in kinds.items():
        if not parameters or not parameters[0].accepts(dtype):
            continue
        rest = parameters[1:]
        yield call(spec.function, column(kind, 0), *_columns(rest, kind, kinds, column))
        least, _ = spec.signature.arity
        if least < len(parameters):
            yield call(spec.function, column(kind, 0), *_columns(parameters[1:least], kind, kinds, column))
        constants = [_SAMPLE if p.example is None and p.accepts(pa.string()) else p.example for p in rest]
        if constants and all(constant is not None for constant in constants):
            yield call(spec.function, column(kind, 0), *constants)


def _columns(
    parameters: Sequence[Parameter], kind: str, kinds: dict[str, pa.DataType], column: Column
) -> Iterator[object]:
    for position, parameter in enumerate(parameters, 1):
        fitting = [k for k in (kind, *kinds) if parameter.accepts(kinds[k])]
        constant = not fitting or parameter.constant or isinstance(parameter.example, str)
        yield parameter.example if constant else column(fitting[0], position)
