"""Text functions on the device: searches, lengths, parts, spaces at the ends, and texts put together."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.backends.cudf.expressions.offer import Offer, types
from gpujoin.backends.cudf.expressions.operands import Active, Operands, Text
from gpujoin.backends.cudf.expressions.values import Value, mask_and
from gpujoin.errors import DeviceValueError
from gpujoin.functions.text import is_well_formed, like_constants
from gpujoin.model.expressions import Call, Function, Literal

_INT_MAX = (1 << 31) - 1


def _search(operands: Operands, node: Call, active: Active) -> Value:
    text, wanted = (operands.text(a, active) for a in node.arguments)
    return Value(pa.bool_(), text.search(node.function, wanted), mask_and(text.valid, wanted.valid))


def _like(operands: Operands, node: Call, active: Active) -> Value:
    text, constants = _characters(operands, node, active), like_constants(node)
    assert constants is not None
    return Value(pa.bool_(), text.like(*constants), text.valid)


def _length(operands: Operands, node: Call, active: Active) -> Value:
    text = _characters(operands, node, active)
    return Value(pa.int32(), text.length(), text.valid)


def _octet_length(operands: Operands, node: Call, active: Active) -> Value:
    text = operands.text(node.arguments[0], active)
    return Value(pa.int32(), text.bytes_length(), text.valid)


def _concat(operands: Operands, node: Call, active: Active) -> Text:
    first, *others = (operands.text(a, active) for a in node.arguments)
    whole: Text = first.concatenated(others) if others else first
    return whole


def _substring(operands: Operands, node: Call, active: Active) -> Text:
    bounds = _bounds(node)
    assert bounds is not None
    part: Text = _characters(operands, node, active).substring(*bounds)
    return part


def _trim(operands: Operands, node: Call, active: Active) -> Text:
    stripped: Text = operands.text(node.arguments[0], active).stripped(node.function)
    return stripped


def _characters(operands: Operands, node: Call, active: Active) -> Text:
    """Evaluate the first operand, of which characters are read."""
    text = operands.text(node.arguments[0], active)
    if not text.is_utf8():
        raise DeviceValueError(f"{node}: reads characters, and a text is no UTF-8")
    return text


def _cased(operands: Operands, node: Call, active: Active) -> Text:
    """Map ASCII. Of other characters libcudf has a table of its own, which may not be that of Java's Unicode."""
    text = operands.text(node.arguments[0], active)
    if not text.is_ascii():
        raise DeviceValueError(f"{node}: a text is not ASCII, and the case of other characters is told by the CPU")
    mapped: Text = text.cased(node.function)
    return mapped


def _bounds(node: Call) -> tuple[int, int] | None:
    """First character of a part, and the one after its last; ``None`` unless they are the same for each text."""
    numbers = [a.value for a in node.arguments[1:] if isinstance(a, Literal) and isinstance(a.value, int)]
    if len(numbers) < len(node.arguments) - 1 or numbers[0] < 0:  # negative: counted from the end of each text
        return None
    start, length = max(numbers[0] - 1, 0), numbers[1] if len(numbers) > 1 else _INT_MAX
    return start, min(start + max(length, 0), _INT_MAX)


def _text_pair(node: Call) -> bool:
    return bool(node.arguments) and all(map(pat.is_string, types(node)))


def _like_fits(node: Call) -> bool:
    """Whether the pattern is constant, and its escape characters precede wildcards or themselves, as Spark demands."""
    constants = like_constants(node)
    if constants is None or not _text_pair(node):
        return False
    escape = constants[1]
    return len(escape) == 1 and escape.isascii() and escape not in "%_" and is_well_formed(node)


def _substring_fits(node: Call) -> bool:
    return pat.is_string(types(node)[0]) and _bounds(node) is not None


def _spaces(node: Call) -> bool:
    """Whether spaces are stripped, and no other characters."""
    return _text_pair(node) and len(node.arguments) == 1


_SEARCH = Offer(_text_pair, _search)
_STRIP = Offer(_spaces, _trim)
FUNCTIONS: dict[Function, Offer] = {
    Function.STARTS_WITH: _SEARCH,
    Function.ENDS_WITH: _SEARCH,
    Function.CONTAINS: _SEARCH,
    Function.LIKE: Offer(_like_fits, _like),
    Function.LENGTH: Offer(_text_pair, _length),
    Function.OCTET_LENGTH: Offer(_text_pair, _octet_length),
    Function.CONCAT: Offer(_text_pair, _concat),
    Function.SUBSTRING: Offer(_substring_fits, _substring),
    Function.LOWER: Offer(_text_pair, _cased),
    Function.UPPER: Offer(_text_pair, _cased),
    Function.TRIM: _STRIP,
    Function.TRIM_LEFT: _STRIP,
    Function.TRIM_RIGHT: _STRIP,
}
