"""Translates functions of valid UTF-8 to Polars expressions."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl
import pyarrow as pa

from gpujoin.backends.cpu.pipeline.lowering.lowered import Lowered, NotLowered, Rule, result_type
from gpujoin.functions.text import LikePatternError, like_parts
from gpujoin.model.expressions import Call, Expression, Function, Literal
from gpujoin.model.types import is_bytes, is_text


def _text_of(node: Expression) -> str:
    if not isinstance(node, Literal) or not isinstance(node.value, str):
        raise NotLowered("a pattern that is no constant text")
    return node.value


def _like(node: Call, values: list[Lowered]) -> Lowered:
    escape = _text_of(node.arguments[2]) if len(node.arguments) > 2 else "\\"
    try:
        parts = like_parts(_text_of(node.arguments[1]), escape)
    except LikePatternError:
        raise NotLowered("a malformed pattern") from None
    if values[0].wide:
        raise NotLowered("characters of text that is no UTF-8")
    text = values[0].expr
    match parts:
        case []:
            return Lowered(text == "", pa.bool_())
        case [str(exact)] if exact:
            return Lowered(text == exact, pa.bool_())
        case [str(prefix), ""] if prefix:
            return Lowered(text.str.starts_with(prefix), pa.bool_())
        case ["", str(suffix)] if suffix:
            return Lowered(text.str.ends_with(suffix), pa.bool_())
        case ["", str(inner), ""] if inner:
            return Lowered(text.str.contains(inner, literal=True), pa.bool_())
    body = "".join("." if p is None else ".*" if p == "" else _quoted(p) for p in parts)
    return Lowered(text.str.contains(rf"(?s)\A{body}\z"), pa.bool_())


def _is_utf8(value: Lowered) -> bool:
    return is_text(value.dtype) and not value.wide


def _quoted(text: str) -> str:
    """Quote text for a regular expression: ASCII punctuation is escaped."""
    return "".join(f"\\x{{{ord(c):x}}}" if ord(c) < 128 and not c.isalnum() and c != " " else c for c in text)


def _of_texts(compute: Callable[..., pl.Expr]) -> Rule:
    """Make the rule of a function of texts."""

    def rule(node: Call, values: list[Lowered]) -> Lowered:
        if not values or not all(map(_is_utf8, values)):
            raise NotLowered("bytes")
        return Lowered(compute(*(v.expr for v in values)), result_type(node))

    return rule


def _of_one_text(compute: Callable[[pl.Expr], pl.Expr]) -> Rule:
    """Make the rule of a function of a text; with further operands it is not translated."""

    def rule(node: Call, values: list[Lowered]) -> Lowered:
        if len(values) > 1:
            raise NotLowered("characters to trim")
        return _of_texts(compute)(node, values)

    return rule


def _of_constant(compute: Callable[[pl.Expr, str], pl.Expr]) -> Rule:
    """Make the rule of a search in texts for a constant."""

    def rule(node: Call, values: list[Lowered]) -> Lowered:
        if not _is_utf8(values[0]):
            raise NotLowered("bytes")
        return Lowered(compute(values[0].expr, _text_of(node.arguments[1])), pa.bool_())

    return rule


def _substring(node: Call, values: list[Lowered]) -> Lowered:
    if not _is_utf8(values[0]):
        raise NotLowered("bytes")
    numbers = [a.value if isinstance(a, Literal) else None for a in node.arguments[1:]]
    start, length = numbers[0], numbers[1] if len(numbers) > 1 else (1 << 31) - 1
    if start is None or length is None or start < 1 or length < 0:
        raise NotLowered("a substring that is not from a constant position")
    return Lowered(values[0].expr.str.slice(start - 1, length), result_type(node))


def _length(node: Call, values: list[Lowered]) -> Lowered:
    (value,) = values
    if not is_bytes(value.dtype) and not _is_utf8(value):
        raise NotLowered("characters of text that is no UTF-8")
    counted = value.expr.bin.size() if is_bytes(value.dtype) else value.expr.str.len_chars()
    return Lowered(counted.cast(pl.Int32), result_type(node), (0, (1 << 31) - 1))


def _octets(node: Call, values: list[Lowered]) -> Lowered:
    (value,) = values
    counted = value.expr.str.len_bytes() if _is_utf8(value) else value.expr.bin.size()
    return Lowered(counted.cast(pl.Int32), result_type(node), (0, (1 << 31) - 1))


FUNCTIONS: dict[Function, Rule] = {
    Function.LIKE: _like,
    Function.STARTS_WITH: _of_constant(lambda text, part: text.str.starts_with(part)),
    Function.ENDS_WITH: _of_constant(lambda text, part: text.str.ends_with(part)),
    Function.CONTAINS: _of_constant(lambda text, part: text.str.contains(part, literal=True)),
    Function.TRIM: _of_one_text(lambda text: text.str.strip_chars(" ")),
    Function.TRIM_LEFT: _of_one_text(lambda text: text.str.strip_chars_start(" ")),
    Function.TRIM_RIGHT: _of_one_text(lambda text: text.str.strip_chars_end(" ")),
    Function.LENGTH: _length,
    Function.OCTET_LENGTH: _octets,
    Function.SUBSTRING: _substring,
    Function.CONCAT: _of_texts(lambda *texts: pl.concat_str(texts, ignore_nulls=False)),
}
