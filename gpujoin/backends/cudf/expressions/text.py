"""Text functions on the device: searches and length."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.backends.cudf.expressions.offer import Active, Offer, types
from gpujoin.backends.cudf.expressions.values import Value, mask_and
from gpujoin.functions.text import is_well_formed, like_constants
from gpujoin.model.expressions import Call, Function

if TYPE_CHECKING:
    from gpujoin.backends.cudf.expressions.evaluator import Evaluator


def _search(run: Evaluator, node: Call, active: Active) -> Value:
    text, wanted = (run.text(a, active) for a in node.arguments)
    return Value(pa.bool_(), text.search(node.function, wanted), mask_and(text.valid, wanted.valid))


def _like(run: Evaluator, node: Call, active: Active) -> Value:
    text, constants = run.text(node.arguments[0], active), like_constants(node)
    assert constants is not None
    return Value(pa.bool_(), text.like(*constants), text.valid)


def _length(run: Evaluator, node: Call, active: Active) -> Value:
    text = run.text(node.arguments[0], active)
    return Value(pa.int32(), text.length(), text.valid)


def _text_pair(node: Call) -> bool:
    return all(map(pat.is_string, types(node)))


def _like_fits(node: Call) -> bool:
    """Whether the pattern is constant, and its escape characters precede wildcards or themselves, as Spark demands."""
    constants = like_constants(node)
    if constants is None or not _text_pair(node):
        return False
    escape = constants[1]
    return len(escape) == 1 and escape.isascii() and escape not in "%_" and is_well_formed(node)


_SEARCH = Offer(_text_pair, _search)
FUNCTIONS: dict[Function, Offer] = {
    Function.STARTS_WITH: _SEARCH,
    Function.ENDS_WITH: _SEARCH,
    Function.CONTAINS: _SEARCH,
    Function.LIKE: Offer(_like_fits, _like),
    Function.LENGTH: Offer(_text_pair, _length),
}
