"""Functions of text and bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from gpujoin.errors import DeviceValueError, UnsupportedValueError
from gpujoin.functions import cases
from gpujoin.functions.device import Active, Offer, Operands, Text, operand_types
from gpujoin.functions.implementation import Run, fail, of_arrow, of_characters, of_python, rows_of
from gpujoin.functions.libraries import pl
from gpujoin.functions.lowered import Lowered, NotLowered, Rule, result_type
from gpujoin.functions.regex import UnsupportedPatternError, java_to_groups, java_to_re2, java_to_rewrite, like_to_re2
from gpujoin.functions.signatures import INT, LONG, TEXT, TEXT_OR_BYTES, Types, first, takes, type_of
from gpujoin.functions.spec import FunctionSpec, Missing, Nulls, Order, Raises
from gpujoin.functions.utf8 import check_utf8
from gpujoin.functions.values import Value
from gpujoin.functions.vector import Mask, Vector, as_numpy_bool, bytes_layout, from_arrow, mask_and, nulls
from gpujoin.model.expressions import Call, Expression, Function, Literal
from gpujoin.model.types import is_bytes, is_text

_NO_JAVA_REGEX = Missing("libcudf's regular expressions differ from Java's")


class LikePatternError(ValueError):
    """A LIKE pattern with a misplaced escape character."""


def like_parts(pattern: str, escape: str) -> list[str | None]:
    """Split a LIKE pattern: literal text, ``""`` for any sequence of characters, ``None`` for any one.

    Raises ``LikePatternError`` if the escape character ends the pattern or precedes something that needs no escape.
    """
    parts: list[str | None] = []
    chars: Iterator[str] = iter(pattern)
    for char in chars:
        if char == escape:
            following = next(chars, None)
            if following is None:
                raise LikePatternError(f"the pattern {pattern!r} ends with its escape character")
            if following not in ("_", "%", escape):
                raise LikePatternError(
                    f"in the pattern {pattern!r} the escape character precedes {following!r}; "
                    f"it may precede only _, % and itself"
                )
            _literal(parts, following)
        elif char == "_":
            parts.append(None)
        elif char == "%":
            if not parts or parts[-1] != "":
                parts.append("")
        else:
            _literal(parts, char)
    return parts


def _literal(parts: list[str | None], char: str) -> None:
    if parts and parts[-1]:
        parts[-1] += char
    else:
        parts.append(char)


def like_constants(node: Call) -> tuple[str, str] | None:
    """Pattern and escape character of a LIKE; ``None`` unless both are constant texts."""
    pattern, *escape = (a.value if isinstance(a, Literal) else None for a in node.arguments[1:])
    character = escape[0] if escape else "\\"
    return (pattern, character) if isinstance(pattern, str) and isinstance(character, str) else None


def is_well_formed(node: Call) -> bool:
    """Whether the pattern of a LIKE is a constant with escape characters where they belong."""
    constants = like_constants(node)
    try:
        return constants is not None and like_parts(*constants) is not None
    except LikePatternError:
        return False


def has_position(node: Call) -> bool:
    """Whether the last operand is a constant other than 0 and null."""
    position = node.arguments[-1]
    return isinstance(position, Literal) and bool(position.value)


def has_constants(node: Call) -> bool:
    """Whether all operands but the first are constants."""
    return all(isinstance(a, Literal) for a in node.arguments[1:])


def _text(types: Types) -> pa.DataType:
    return types[0] if types else pa.string()


_AFFIX = takes(TEXT_OR_BYTES, TEXT_OR_BYTES, gives=pa.bool_())
_MAPPED = takes(TEXT, gives=first)
_TRIMMED = takes(TEXT, TEXT, gives=first, optional=1)
_PADDED = takes(TEXT, INT, TEXT, gives=first, optional=1)


# -- NumPy and Arrow --------------------------------------------------------------------------------------------------


_INT_MAX = (1 << 31) - 1
_COMPARED_BYTES = 1 << 22
_MOST_CHARACTERS = 1 << 28
"""Longest text that ``repeat``, ``lpad`` and the like make here. Spark fails at about eight times that."""

Matcher = Callable[[pa.Array], pa.Array]


def _booleans(booleans: pa.Array, valid: Mask | None) -> Vector:
    return Vector(pa.bool_(), as_numpy_bool(booleans.fill_null(False) if booleans.null_count else booleans), valid)


def _groups(patterns: pa.Array) -> Iterator[tuple[Any, npt.NDArray[np.int64]]]:
    """Distinct values of an array, with the rows of each; nulls are left out."""
    encoded = patterns.dictionary_encode()
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    order = np.argsort(codes, kind="stable")
    starts = np.searchsorted(codes[order], np.arange(len(encoded.dictionary) + 1))
    for i, value in enumerate(encoded.dictionary.to_pylist()):
        yield value, order[starts[i] : starts[i + 1]]


def _by_pattern(text: Vector, patterns: Vector, matcher: Callable[[Any], Matcher]) -> Vector:
    """Match each row against its own pattern, one distinct pattern at a time.

    Rows where text or pattern is null are skipped, so that a malformed pattern raises only where Spark would read it.
    """
    valid = mask_and(text.mask(), patterns.mask())
    if patterns.constant:
        if not patterns.values[0].is_valid or (valid is not None and not valid.any()):
            return nulls(pa.bool_())
        return _booleans(matcher(patterns.values[0].as_py())(text.values), valid)
    length = len(patterns.values)
    result = np.zeros(length, np.bool_)
    values = text.expand(length).values
    for pattern, rows in _groups(patterns.values):
        present = rows if valid is None else rows[np.broadcast_to(valid, length)[rows]]
        if len(present):
            hits = matcher(pattern)(values.take(pa.array(present)))
            result[present] = as_numpy_bool(hits)
    return Vector(pa.bool_(), result, valid)


def _like(node: Call, vectors: list[Vector], _length: int) -> Vector:
    """Compute ``LIKE``; in every mode an error on a row whose pattern misplaces its escape character."""
    check_utf8(vectors[1].values, node)
    escape = vectors[2].values[0].as_py() if len(vectors) > 2 else "\\"

    def matcher(pattern: str) -> Matcher:
        try:
            return _like_matcher(like_parts(pattern, escape), node)
        except LikePatternError as problem:
            fail(node, str(problem))

    return _by_pattern(vectors[0], vectors[1], matcher)


def _like_matcher(parts: list[str | None], node: Call) -> Matcher:
    match parts:
        case []:
            return lambda text: pc.equal(text, "")
        case [str(exact)] if exact:
            return lambda text: pc.equal(text, exact)
        case [str(prefix), ""] if prefix:
            return lambda text: pc.starts_with(text, prefix)
        case ["", str(suffix)] if suffix:
            return lambda text: pc.ends_with(text, suffix)
        case ["", str(inner), ""] if inner:
            return lambda text: pc.match_substring(text, inner)
    regex = like_to_re2(parts)

    def match(text: pa.Array) -> pa.Array:
        check_utf8(text, node)
        return pc.match_substring_regex(text, regex)

    return match


def _rlike(node: Call, vectors: list[Vector], _length: int) -> Vector:
    """Compute ``RLIKE`` for a constant pattern of the supported subset."""
    check_utf8(vectors[0].values, node)
    return _by_pattern(
        vectors[0], vectors[1], lambda pattern: lambda text: pc.match_substring_regex(text, java_to_re2(pattern))
    )


def _affix(node: Call, vectors: list[Vector], _length: int) -> Vector:
    """Compute ``startswith``, ``endswith`` or ``contains``, on text or bytes."""
    text, part = vectors
    if part.constant:
        kernel = {
            Function.STARTS_WITH: pc.starts_with,
            Function.ENDS_WITH: pc.ends_with,
            Function.CONTAINS: pc.match_substring,
        }[node.function]
        return _by_pattern(text, part, lambda pattern: lambda values: kernel(values, pattern))
    length = len(part.values)
    valid = mask_and(text.mask(), part.mask())
    texts, parts = text.expand(length).values, part.values
    if node.function is Function.CONTAINS:
        return Vector(pa.bool_(), _contains(texts, parts), valid)
    return Vector(pa.bool_(), _aligned(texts, parts, at_end=node.function is Function.ENDS_WITH), valid)


def _contains(texts: pa.Array, parts: pa.Array) -> Mask:
    """Search each text for its own part. A Python loop: no kernel searches for one column in another."""
    pairs = zip(_bytes_list(texts), _bytes_list(parts), strict=True)
    return np.fromiter((t is not None and p is not None and p in t for t, p in pairs), np.bool_, len(texts))


def _bytes_list(array: pa.Array) -> list[bytes | None]:
    return array.cast(pa.large_binary()).to_pylist()


def _aligned(texts: pa.Array, parts: pa.Array, *, at_end: bool) -> Mask:
    """Compare each text's first or last bytes with its own part, a bounded number of bytes at a time."""
    text_at, text_bytes = bytes_layout(texts)
    part_at, part_bytes = bytes_layout(parts)
    sizes = np.diff(part_at)
    result = np.asarray(sizes <= np.diff(text_at))
    candidates = np.flatnonzero(result & (sizes > 0))
    totals = np.cumsum(sizes[candidates])
    start = 0
    while start < len(candidates):
        before = totals[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(totals, before + _COMPARED_BYTES)))
        rows = candidates[start:stop]
        count = sizes[rows]
        first = np.cumsum(count) - count
        within = np.arange(int(count.sum())) - np.repeat(first, count)
        origin = text_at[rows + 1] - count if at_end else text_at[rows]
        same = text_bytes[np.repeat(origin, count) + within] == part_bytes[np.repeat(part_at[rows], count) + within]
        result[rows] = np.logical_and.reduceat(same, first)
        start = stop
    return result


def _concat(node: Call, vectors: list[Vector], length: int) -> Vector:
    """Join text or bytes end to end; null if any is null."""
    assert node.type is not None
    wide = pa.large_binary() if is_bytes(node.type) else pa.large_string()
    if not vectors:
        return Vector(node.type, pa.array([""], wide))
    constant = all(v.constant for v in vectors)
    columns = [v.expand(1 if constant else length).values.cast(wide) for v in vectors]
    separator = pa.scalar(b"" if is_bytes(node.type) else "", wide)
    return Vector(node.type, pc.binary_join_element_wise(*columns, separator, null_handling="emit_null"))


def _trim(kernel: Callable[..., pa.Array], by_row: Callable[[str, str], str]) -> Run:
    """Make an implementation that removes spaces, and only spaces, or the characters of a second operand."""
    spaces, characters = of_arrow(lambda text: kernel(text, " ")), of_python(by_row)
    return lambda node, vectors, length: (spaces if len(vectors) == 1 else characters)(node, vectors, length)


def _substring(node: Call, vectors: list[Vector], rows: int) -> Vector:
    """Cut out a part by one-based position, from the end if negative, and length; both may vary by row."""
    text, *numbers = vectors
    check_utf8(text.values, node)
    if all(n.constant for n in numbers):
        if any(n.valid is not None and not n.valid[0] for n in numbers):
            return Vector(text.dtype, pa.nulls(len(text.values), text.values.type))
        position, *length = (int(n.values[0]) for n in numbers)
        if position < 0 and is_bytes(text.dtype):
            # Arrow's kernel fails where the start lies before the first byte.
            return _cut_by_row(node, vectors, rows)
        return Vector(text.dtype, _slice(text, position, length[0] if length else _INT_MAX))
    return _cut_by_row(node, vectors, rows)


def _slice(text: Vector, position: int, length: int) -> pa.Array:
    if length <= 0:
        return pc.if_else(text.values.is_valid(), pa.scalar("" if not is_bytes(text.dtype) else b"", text.values.type),
                          pa.scalar(None, text.values.type))  # fmt: skip
    start = position - 1 if position > 0 else position
    if is_bytes(text.dtype):
        return pc.binary_slice(text.values, start, min(start + length, _INT_MAX))
    to_the_end = start + length > _INT_MAX or position < 0 <= start + length
    return pc.utf8_slice_codeunits(text.values, start, None if to_the_end else start + length)


def _cut(text: Any, position: int, length: int = _INT_MAX) -> Any:
    start = position - 1 if position > 0 else len(text) + position if position < 0 else 0
    return text[max(start, 0) : max(min(start + length, _INT_MAX), 0)] if length > 0 else text[:0]


# No kernel takes positions from a column.
_cut_by_row = of_python(_cut)


def _concat_ws(node: Call, vectors: list[Vector], length: int) -> Vector:
    """Join the texts that are not null, with the first operand between them; null if that is null."""
    rows = rows_of(vectors, length)
    separator, *texts = (v.expand(rows).values.cast(pa.large_string()) for v in vectors)
    if not texts:
        return from_arrow(pc.if_else(separator.is_valid(), pa.scalar("", separator.type), separator))
    # Arrow leaves out the rows in which every text is null.
    nothing = reduce(pc.and_, (text.is_null() for text in texts))
    texts[0] = pc.if_else(nothing, pa.scalar("", texts[0].type), texts[0])
    return Vector(type_of(node), pc.binary_join_element_wise(*texts, separator, null_handling="skip"))


def _spaces(text: str, length: int) -> int:
    """Number of characters that a text lacks of a length."""
    count = length - len(text)
    if count > _MOST_CHARACTERS or count < -(1 << 31):
        raise UnsupportedValueError(f"a text of {length} characters is left to Spark")
    return max(count, 0)


def _fill(count: int, pad: str) -> str:
    return (pad * (count // len(pad) + 1))[:count] if pad else ""


def _lpad(text: str, length: int, pad: str = " ") -> str:
    count = _spaces(text, length)
    return _fill(count, pad) + text if count else text[: max(length, 0)]


def _rpad(text: str, length: int, pad: str = " ") -> str:
    count = _spaces(text, length)
    return text + _fill(count, pad) if count else text[: max(length, 0)]


def _repeat(text: str, times: int) -> str:
    if len(text) * times > _MOST_CHARACTERS:
        raise UnsupportedValueError(f"{times} times {len(text)} characters are left to Spark")
    return text * times


def _replace(node: Call, vectors: list[Vector], length: int) -> Vector:
    """Replace all occurrences; an empty text occurs nowhere."""
    text, search, by = vectors
    if search.constant and by.constant:
        pattern, replacement = search.values[0].as_py(), by.values[0].as_py()
        if pattern is None or replacement is None:
            return nulls(text.dtype)
        if pattern:
            return from_arrow(pc.replace_substring(text.values, pattern, replacement))
        return text
    return _replace_by_row(node, vectors, length)


_replace_by_row = of_python(lambda text, search, by: text.replace(search, by) if search else text)


@lru_cache(maxsize=256)
def _translation(characters: str, replacements: str) -> dict[int, str | None]:
    """What each character becomes: the first of equal ones counts; ``None`` and NUL remove it."""
    table: dict[int, str | None] = {}
    for i, char in enumerate(characters):
        replacement = replacements[i : i + 1]
        table.setdefault(ord(char), None if replacement in ("", "\0") else replacement)
    return table


def _substring_index(text: str, delimiter: str, count: int) -> str:
    """All before the delimiter's occurrence of a number, from the left; or after it, from the right, if negative."""
    if count == -(1 << 31):
        raise UnsupportedValueError(f"substring_index of {count} is left to Spark")
    if not delimiter or not count:
        return ""
    at = -1 if count > 0 else len(text) - len(delimiter) + 1
    for _ in range(abs(count)):
        # Occurrences may overlap.
        at = text.find(delimiter, at + 1) if count > 0 else text.rfind(delimiter, 0, max(at - 1 + len(delimiter), 0))
        if at < 0:
            return text
    return text[:at] if count > 0 else text[at + len(delimiter) :]


def _split_part(node: Call, vectors: list[Vector], length: int) -> Vector:
    """Give the part of a number between delimiters, from the end if negative; an error for number 0."""
    valid = reduce(mask_and, (v.mask() for v in vectors))
    zero = vectors[2].values == 0
    if (zero if valid is None else zero & valid).any():
        fail(node, "parts are numbered from 1")
    return _part_by_row(node, vectors, length)


def _part(text: str, delimiter: str, number: int) -> str:
    parts = text.split(delimiter) if delimiter else [text]
    if not 0 < abs(number) <= len(parts):
        return ""
    return parts[number - 1 if number > 0 else number]


_part_by_row = of_python(_part)


def _locate(node: Call, vectors: list[Vector], length: int) -> Vector:
    part, text, *start = vectors
    return _locate_by_row(node, [text, part, *start], length)


def _position(text: str, part: str, start: int = 1) -> int:
    if start < 1:
        return 0
    return text.find(part, start - 1) + 1 if part else 1


_locate_by_row = of_python(_position)


def _regexp_extract(node: Call, vectors: list[Vector], _length: int) -> Vector:
    """Give a group of the first match, empty if there is none; pattern and group are constants."""
    text = vectors[0].values
    check_utf8(text, node)
    pattern, group = _constant(node, 1), _constant(node, 2, 1)
    matched = pc.extract_regex(text, java_to_groups(pattern).regex)
    extracted = pc.struct_field(matched, [f"g{group}"]).cast(text.type)
    return from_arrow(pc.if_else(text.is_valid(), pc.fill_null(extracted, ""), pa.scalar(None, text.type)))


def _regexp_replace(node: Call, vectors: list[Vector], _length: int) -> Vector:
    """Replace all matches of a constant pattern."""
    text = vectors[0].values
    check_utf8(text, node)
    groups = java_to_groups(_constant(node, 1))
    rewrite = java_to_rewrite(_constant(node, 2), groups.count)
    return from_arrow(pc.replace_substring_regex(text, groups.unnamed, rewrite))


def _regexp_instr(node: Call, vectors: list[Vector], length: int) -> Vector:
    """Position of the first match of a constant pattern; 0 if there is none."""
    check_utf8(vectors[0].values, node)
    text = vectors[0].expand(rows_of(vectors, length)).values
    if any(v.constant and v.mask() is not None for v in vectors[1:]):
        return nulls(pa.int32())
    places = pc.find_substring_regex(text, java_to_re2(_constant(node, 1)))
    positions = np.array(places.fill_null(-1).to_numpy(zero_copy_only=False), np.int32)
    wide = np.flatnonzero((positions > 0) & ~as_numpy_bool(pc.string_is_ascii(text).fill_null(True)))
    prefixes = zip(_bytes_list(text.take(pa.array(wide))), positions[wide], strict=True)
    positions[wide] = [len(value[:at].decode()) if value is not None else 0 for value, at in prefixes]
    return Vector(pa.int32(), positions + 1, reduce(mask_and, (v.mask() for v in vectors)))


def _overlay(text: Any, replacement: Any, position: int, length: int = -1) -> Any:
    """Replace the characters at a position by a text."""
    after = position + (length if length >= 0 else len(replacement))
    if position == -(1 << 31) or after > _INT_MAX:
        raise UnsupportedValueError(
            f"overlay at {position}, which overflows in some versions of Spark, is left to Spark"
        )
    return _cut(text, 1, position - 1) + replacement + _cut(text, after)


def _find_in_set(word: str, words: str) -> int:
    parts = words.split(",")
    return parts.index(word) + 1 if word in parts else 0


def _constant(node: Call, position: int, default: Any = None) -> Any:
    """Value of a constant operand; the default if there is no operand, or no constant."""
    operand = node.arguments[position] if position < len(node.arguments) else None
    return operand.value if isinstance(operand, Literal) else default


def known_groups(node: Call) -> bool:
    """Whether the pattern and the group of a ``regexp_extract`` are constants that mean the same in Java and RE2."""
    pattern, group = _constant(node, 1), _constant(node, 2, 1 if len(node.arguments) == 2 else None)
    if not isinstance(pattern, str) or not isinstance(group, int):
        return False
    try:
        groups = java_to_groups(pattern)
    except UnsupportedPatternError:
        return False
    # The end of a line is part of the match here, and not in Java.
    return 0 <= group <= groups.count and not (group == 0 and groups.at_line_end)


def known_replacement(node: Call) -> bool:
    """Whether ``regexp_replace`` has constants that mean the same in Java and RE2, and replaces no empty match."""
    pattern, replacement = _constant(node, 1), _constant(node, 2)
    if not isinstance(pattern, str) or not isinstance(replacement, str):
        return False
    if len(node.arguments) > 3 and _constant(node, 3) != 1:
        return False
    try:
        groups = java_to_groups(pattern)
        java_to_rewrite(replacement, groups.count)
    except UnsupportedPatternError:
        return False
    return groups.least_width > 0 and not groups.at_line_end


def constant_start(node: Call) -> bool:
    """Whether ``locate`` starts at a constant position; Spark gives 0, not null, for a null one."""
    return len(node.arguments) < 3 or _constant(node, 2) is not None


def constant_escape(node: Call) -> bool:
    """Whether the escape character of a LIKE is the usual one, or a constant."""
    escape = node.arguments[2] if len(node.arguments) > 2 else Literal(value="\\")
    return isinstance(escape, Literal) and len(escape.value or "") == 1


def known_regex(node: Call) -> bool:
    """Whether the pattern of an RLIKE is a constant that means the same in Java and RE2."""
    pattern = node.arguments[1]
    if not isinstance(pattern, Literal):
        return False
    try:
        return pattern.value is None or bool(java_to_re2(pattern.value) or True)
    except UnsupportedPatternError:
        return False


# -- Polars -----------------------------------------------------------------------------------------------------------


def _text_of(node: Expression) -> str:
    if not isinstance(node, Literal) or not isinstance(node.value, str):
        raise NotLowered("a pattern that is no constant text")
    return node.value


def _lower_like(node: Call, values: list[Lowered]) -> Lowered:
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


def _lower_texts(compute: Callable[..., pl.Expr]) -> Rule:
    """Make the rule of a function of texts."""

    def rule(node: Call, values: list[Lowered]) -> Lowered:
        if not values or not all(map(_is_utf8, values)):
            raise NotLowered("bytes")
        return Lowered(compute(*(v.expr for v in values)), result_type(node))

    return rule


def _lower_one_text(compute: Callable[[pl.Expr], pl.Expr]) -> Rule:
    """Make the rule of a function of one text. Calls with further operands are not translated."""

    def rule(node: Call, values: list[Lowered]) -> Lowered:
        if len(values) > 1:
            raise NotLowered("characters to trim")
        return _lower_texts(compute)(node, values)

    return rule


def _lower_search(compute: Callable[[pl.Expr, str], pl.Expr]) -> Rule:
    """Make the rule of a search in texts for a constant."""

    def rule(node: Call, values: list[Lowered]) -> Lowered:
        if not _is_utf8(values[0]):
            raise NotLowered("bytes")
        return Lowered(compute(values[0].expr, _text_of(node.arguments[1])), pa.bool_())

    return rule


def _lower_substring(node: Call, values: list[Lowered]) -> Lowered:
    if not _is_utf8(values[0]):
        raise NotLowered("bytes")
    numbers = [a.value if isinstance(a, Literal) else None for a in node.arguments[1:]]
    start, length = numbers[0], numbers[1] if len(numbers) > 1 else (1 << 31) - 1
    if start is None or length is None or start < 1 or length < 0:
        raise NotLowered("a substring that is not from a constant position")
    return Lowered(values[0].expr.str.slice(start - 1, length), result_type(node))


def _lower_length(node: Call, values: list[Lowered]) -> Lowered:
    (value,) = values
    if not is_bytes(value.dtype) and not _is_utf8(value):
        raise NotLowered("characters of text that is no UTF-8")
    counted = value.expr.bin.size() if is_bytes(value.dtype) else value.expr.str.len_chars()
    return Lowered(counted.cast(pl.Int32), result_type(node), (0, (1 << 31) - 1))


def _lower_octets(node: Call, values: list[Lowered]) -> Lowered:
    (value,) = values
    counted = value.expr.str.len_bytes() if _is_utf8(value) else value.expr.bin.size()
    return Lowered(counted.cast(pl.Int32), result_type(node), (0, (1 << 31) - 1))


# -- device -----------------------------------------------------------------------------------------------------------


def _device_search(operands: Operands, node: Call, active: Active) -> Value:
    text, pattern = (operands.text(a, active) for a in node.arguments)
    return Value(pa.bool_(), text.search(node.function, pattern), mask_and(text.valid, pattern.valid))


def _device_like(operands: Operands, node: Call, active: Active) -> Value:
    text, constants = _device_characters(operands, node, active), like_constants(node)
    assert constants is not None
    return Value(pa.bool_(), text.like(*constants), text.valid)


def _device_length(operands: Operands, node: Call, active: Active) -> Value:
    text = _device_characters(operands, node, active)
    return Value(pa.int32(), text.length(), text.valid)


def _device_octet_length(operands: Operands, node: Call, active: Active) -> Value:
    text = operands.text(node.arguments[0], active)
    return Value(pa.int32(), text.bytes_length(), text.valid)


def _device_concat(operands: Operands, node: Call, active: Active) -> Text:
    first, *others = (operands.text(a, active) for a in node.arguments)
    whole: Text = first.concatenated(others) if others else first
    return whole


def _device_substring(operands: Operands, node: Call, active: Active) -> Text:
    bounds = _bounds(node)
    assert bounds is not None
    part: Text = _device_characters(operands, node, active).substring(*bounds)
    return part


def _device_trim(operands: Operands, node: Call, active: Active) -> Text:
    stripped: Text = operands.text(node.arguments[0], active).stripped(node.function)
    return stripped


def _device_characters(operands: Operands, node: Call, active: Active) -> Text:
    """Evaluate the first operand, whose characters are read."""
    text = operands.text(node.arguments[0], active)
    if not text.is_utf8():
        raise DeviceValueError(f"{node}: reads characters, and a text is no UTF-8")
    return text


def _device_cased(operands: Operands, node: Call, active: Active) -> Text:
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
    return bool(node.arguments) and all(map(pat.is_string, operand_types(node)))


def _like_fits(node: Call) -> bool:
    """Whether the pattern is constant, and its escape characters precede wildcards or themselves, as Spark demands."""
    constants = like_constants(node)
    if constants is None or not _text_pair(node):
        return False
    escape = constants[1]
    return len(escape) == 1 and escape.isascii() and escape not in "%_" and is_well_formed(node)


def _substring_fits(node: Call) -> bool:
    return pat.is_string(operand_types(node)[0]) and _bounds(node) is not None


def _strips_spaces(node: Call) -> bool:
    """Whether spaces are stripped, and no other characters."""
    return _text_pair(node) and len(node.arguments) == 1


_DEVICE_SEARCH = Offer(_device_search, _text_pair)
_DEVICE_STRIP = Offer(_device_trim, _strips_spaces)


TABLE = (
    FunctionSpec(
        Function.LIKE, ("Like",), takes(TEXT, TEXT, TEXT, gives=pa.bool_(), optional=1),
        raises=Raises.PATTERN, safe=is_well_formed, selectivity=0.1,
        exact=constant_escape, numpy=_like, polars=_lower_like, device=Offer(_device_like, _like_fits),
    ),
    FunctionSpec(
        Function.RLIKE, ("RLike",), takes(TEXT, TEXT, gives=pa.bool_()),
        raises=Raises.PATTERN, safe=lambda node: isinstance(node.arguments[1], Literal), selectivity=0.1,
        exact=known_regex, numpy=_rlike, device=_NO_JAVA_REGEX,
    ),
    FunctionSpec(
        Function.REGEXP_EXTRACT, ("RegExpExtract",), takes(TEXT, TEXT, INT, gives=first, optional=1),
        raises=Raises.ALWAYS, safe=has_constants,
        exact=known_groups, numpy=_regexp_extract, device=_NO_JAVA_REGEX,
    ),
    FunctionSpec(
        Function.REGEXP_REPLACE, ("RegExpReplace",), takes(TEXT, TEXT, TEXT, INT, gives=first, optional=1),
        raises=Raises.ALWAYS, safe=has_constants,
        exact=known_replacement, numpy=_regexp_replace, device=_NO_JAVA_REGEX,
    ),
    FunctionSpec(
        Function.STARTS_WITH, ("StartsWith",), _AFFIX,
        selectivity=0.1,
        numpy=_affix, polars=_lower_search(lambda text, part: text.str.starts_with(part)), device=_DEVICE_SEARCH,
    ),
    FunctionSpec(
        Function.ENDS_WITH, ("EndsWith",), _AFFIX,
        selectivity=0.1,
        numpy=_affix, polars=_lower_search(lambda text, part: text.str.ends_with(part)), device=_DEVICE_SEARCH,
    ),
    FunctionSpec(
        Function.CONTAINS, ("Contains",), _AFFIX,
        selectivity=0.1,
        numpy=_affix, polars=_lower_search(lambda text, part: text.str.contains(part, literal=True)),
        device=_DEVICE_SEARCH,
    ),
    FunctionSpec(
        Function.LOWER, ("Lower",), _MAPPED,
        partial=True, numpy=cases.lower, device=Offer(_device_cased, _text_pair),
    ),
    FunctionSpec(
        Function.UPPER, ("Upper",), _MAPPED,
        partial=True, numpy=cases.upper, device=Offer(_device_cased, _text_pair),
    ),
    FunctionSpec(
        Function.TRIM, ("StringTrim",), _TRIMMED,
        numpy=_trim(pc.ascii_trim, str.strip), polars=_lower_one_text(lambda text: text.str.strip_chars(" ")),
        device=_DEVICE_STRIP,
    ),
    FunctionSpec(
        Function.TRIM_LEFT, ("StringTrimLeft",), _TRIMMED,
        numpy=_trim(pc.ascii_ltrim, str.lstrip), polars=_lower_one_text(lambda text: text.str.strip_chars_start(" ")),
        device=_DEVICE_STRIP,
    ),
    FunctionSpec(
        Function.TRIM_RIGHT, ("StringTrimRight",), _TRIMMED,
        numpy=_trim(pc.ascii_rtrim, str.rstrip), polars=_lower_one_text(lambda text: text.str.strip_chars_end(" ")),
        device=_DEVICE_STRIP,
    ),
    FunctionSpec(
        Function.OCTET_LENGTH, ("OctetLength",), takes(TEXT_OR_BYTES, gives=pa.int32()),
        numpy=of_arrow(pc.binary_length), polars=_lower_octets, device=Offer(_device_octet_length, _text_pair),
    ),
    FunctionSpec(
        Function.BIT_LENGTH, ("BitLength",), takes(TEXT_OR_BYTES, gives=pa.int32()),
        numpy=of_arrow(lambda v: pc.multiply(pc.binary_length(v), 8)),
    ),
    FunctionSpec(
        Function.REVERSE, ("Reverse",), _MAPPED,
        numpy=of_characters(pc.utf8_reverse),
        polars=Missing("Polars keeps the characters of a grapheme cluster in order"),
    ),
    FunctionSpec(
        Function.INSTR, ("StringInstr",), takes(TEXT, TEXT, gives=pa.int32()),
        numpy=of_python(lambda text, part: text.find(part) + 1),
    ),
    FunctionSpec(
        Function.LENGTH, ("Length",), takes(TEXT_OR_BYTES, gives=pa.int32()),
        numpy=of_characters(lambda v: pc.utf8_length(v) if is_text(v.type) else pc.binary_length(v)),
        polars=_lower_length, device=Offer(_device_length, _text_pair),
    ),
    FunctionSpec(
        Function.SUBSTRING, ("Substring",), takes(TEXT_OR_BYTES, INT, INT, gives=first, optional=1),
        numpy=_substring, polars=_lower_substring, device=Offer(_device_substring, _substring_fits),
    ),
    FunctionSpec(
        Function.CONCAT, ("Concat",), takes(TEXT_OR_BYTES, gives=_text, optional=1, repeated=True),
        order=Order.ALL,
        numpy=_concat, polars=_lower_texts(lambda *texts: pl.concat_str(texts, ignore_nulls=False)),
        device=Offer(_device_concat, _text_pair),
    ),
    FunctionSpec(
        Function.CONCAT_WS, ("ConcatWs",), takes(TEXT, TEXT, gives=pa.string(), optional=1, repeated=True),
        nulls=Nulls.OWN_RULE,
        numpy=_concat_ws,
    ),
    FunctionSpec(Function.INITCAP, ("InitCap",), _MAPPED, partial=True, numpy=cases.initcap),
    FunctionSpec(Function.LPAD, ("StringLPad",), _PADDED, partial=True, numpy=of_python(_lpad)),
    FunctionSpec(Function.RPAD, ("StringRPad",), _PADDED, partial=True, numpy=of_python(_rpad)),
    FunctionSpec(
        Function.REPEAT, ("StringRepeat",), takes(TEXT, INT, gives=first), partial=True, numpy=of_python(_repeat),
    ),
    FunctionSpec(Function.REPLACE, ("StringReplace",), takes(TEXT, TEXT, TEXT, gives=first), numpy=_replace),
    FunctionSpec(
        Function.TRANSLATE, ("StringTranslate",), takes(TEXT, TEXT, TEXT, gives=first),
        numpy=of_python(lambda text, characters, by: text.translate(_translation(characters, by))),
    ),
    FunctionSpec(
        Function.SUBSTRING_INDEX, ("SubstringIndex",), takes(TEXT, TEXT, INT, gives=first),
        partial=True, numpy=of_python(_substring_index),
    ),
    FunctionSpec(
        Function.SPLIT_PART, (), takes(TEXT, TEXT, INT, gives=first),
        raises=Raises.ALWAYS, safe=has_position,
        numpy=_split_part,
    ),
    FunctionSpec(
        Function.LOCATE, ("StringLocate",), takes(TEXT, TEXT, INT, gives=pa.int32(), optional=1),
        exact=constant_start, numpy=_locate,
    ),
    FunctionSpec(
        Function.REGEXP_INSTR, ("RegExpInStr",), takes(TEXT, TEXT, INT, gives=pa.int32(), optional=1),
        raises=Raises.PATTERN, safe=has_constants,
        exact=known_regex, numpy=_regexp_instr, device=_NO_JAVA_REGEX,
    ),
    FunctionSpec(
        Function.OVERLAY, ("Overlay",), takes(TEXT_OR_BYTES, TEXT_OR_BYTES, INT, INT, gives=first, optional=1),
        partial=True, numpy=of_python(_overlay),
    ),
    FunctionSpec(
        Function.SPACE, ("StringSpace",), takes(INT, gives=pa.string()),
        partial=True, numpy=of_python(lambda length: " " * _spaces("", length)),
    ),
    FunctionSpec(
        Function.FIND_IN_SET, ("FindInSet",), takes(TEXT, TEXT, gives=pa.int32()), numpy=of_python(_find_in_set),
    ),
    FunctionSpec(
        Function.ASCII, ("Ascii",), takes(TEXT, gives=pa.int32()),
        numpy=of_python(lambda text: ord(text[0]) if text else 0),
    ),
    FunctionSpec(
        Function.CHR, ("Chr",), takes(LONG, gives=pa.string()),
        numpy=of_python(lambda number: chr(number & 255) if number >= 0 else ""),
    ),
)  # fmt: skip
