"""Functions of text and bytes, with Arrow's kernels where these are exact."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gpujoin.backends.cpu.expressions import cases
from gpujoin.backends.cpu.expressions.implementation import Run, fail, of_arrow, of_characters, of_python
from gpujoin.backends.cpu.expressions.regex import (
    UnsupportedPatternError,
    java_to_groups,
    java_to_re2,
    java_to_rewrite,
    like_to_re2,
)
from gpujoin.backends.cpu.expressions.vector import (
    Mask,
    Vector,
    as_numpy_bool,
    bytes_layout,
    from_arrow,
    mask_and,
    nulls,
)
from gpujoin.backends.cpu.utf8 import check_utf8
from gpujoin.errors import UnsupportedValueError
from gpujoin.functions.text import LikePatternError, like_parts
from gpujoin.model.expressions import Call, Function, Literal
from gpujoin.model.types import is_bytes, is_text

_INT_MAX = (1 << 31) - 1
_COMPARED_BYTES = 1 << 22
_MOST_CHARACTERS = 1 << 28
"""Longest text that is made here of a shorter one; Spark fails at some eight times that."""

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
        wanted = rows if valid is None else rows[np.broadcast_to(valid, length)[rows]]
        if len(wanted):
            hits = matcher(pattern)(values.take(pa.array(wanted)))
            result[wanted] = as_numpy_bool(hits)
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
        vectors[0],
        vectors[1],
        lambda pattern: lambda text: pc.match_substring_regex(text, java_to_re2(pattern)),
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
    assert node.type is not None
    rows = 1 if all(v.constant for v in vectors) else length
    separator, *texts = (v.expand(rows).values.cast(pa.large_string()) for v in vectors)
    if not texts:
        return from_arrow(pc.if_else(separator.is_valid(), pa.scalar("", separator.type), separator))
    # Arrow leaves out the rows in which every text is null.
    nothing = reduce(pc.and_, (text.is_null() for text in texts))
    texts[0] = pc.if_else(nothing, pa.scalar("", texts[0].type), texts[0])
    return Vector(node.type, pc.binary_join_element_wise(*texts, separator, null_handling="skip"))


def _spaces(text: str, length: int) -> int:
    """How many characters a text lacks of a length; none if it is long enough."""
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
    text = vectors[0].expand(1 if all(v.constant for v in vectors) else length).values
    if any(v.constant and v.mask() is not None for v in vectors[1:]):
        return nulls(pa.int32())
    places = pc.find_substring_regex(text, java_to_re2(_constant(node, 1)))
    positions = np.array(places.fill_null(-1).to_numpy(zero_copy_only=False), np.int32)
    wide = np.flatnonzero((positions > 0) & ~as_numpy_bool(pc.string_is_ascii(text).fill_null(True)))
    prefixes = zip(_bytes_list(text.take(pa.array(wide))), positions[wide], strict=True)
    positions[wide] = [len(value[:at].decode()) if value is not None else 0 for value, at in prefixes]
    return Vector(pa.int32(), positions + 1, reduce(mask_and, (v.mask() for v in vectors)))


def _overlay(text: Any, replacement: Any, position: int, length: int = -1) -> Any:
    """Put a text in place of what is at a position."""
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


FUNCTIONS: dict[Function, Run] = {
    Function.LIKE: _like,
    Function.RLIKE: _rlike,
    Function.STARTS_WITH: _affix,
    Function.ENDS_WITH: _affix,
    Function.CONTAINS: _affix,
    Function.TRIM: _trim(pc.ascii_trim, str.strip),
    Function.TRIM_LEFT: _trim(pc.ascii_ltrim, str.lstrip),
    Function.TRIM_RIGHT: _trim(pc.ascii_rtrim, str.rstrip),
    Function.LENGTH: of_characters(lambda v: pc.utf8_length(v) if is_text(v.type) else pc.binary_length(v)),
    Function.OCTET_LENGTH: of_arrow(pc.binary_length),
    Function.BIT_LENGTH: of_arrow(lambda v: pc.multiply(pc.binary_length(v), 8)),
    Function.REVERSE: of_characters(pc.utf8_reverse),
    Function.INSTR: of_python(lambda text, part: text.find(part) + 1),
    Function.SUBSTRING: _substring,
    Function.CONCAT: _concat,
    Function.CONCAT_WS: _concat_ws,
    Function.LOWER: cases.lower,
    Function.UPPER: cases.upper,
    Function.INITCAP: cases.initcap,
    Function.LPAD: of_python(_lpad),
    Function.RPAD: of_python(_rpad),
    Function.REPEAT: of_python(_repeat),
    Function.REPLACE: _replace,
    Function.TRANSLATE: of_python(lambda text, characters, by: text.translate(_translation(characters, by))),
    Function.SUBSTRING_INDEX: of_python(_substring_index),
    Function.SPLIT_PART: _split_part,
    Function.LOCATE: _locate,
    Function.ASCII: of_python(lambda text: ord(text[0]) if text else 0),
    Function.CHR: of_python(lambda number: chr(number & 255) if number >= 0 else ""),
    Function.REGEXP_EXTRACT: _regexp_extract,
    Function.REGEXP_REPLACE: _regexp_replace,
    Function.REGEXP_INSTR: _regexp_instr,
    Function.OVERLAY: of_python(_overlay),
    Function.SPACE: of_python(lambda length: " " * _spaces("", length)),
    Function.FIND_IN_SET: of_python(_find_in_set),
}
