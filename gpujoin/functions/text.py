"""Functions of text and bytes."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.functions.signatures import (
    INT,
    LONG,
    TEXT,
    TEXT_OR_BYTES,
    Parameter,
    Types,
    first,
    kept,
    takes,
    to,
)
from gpujoin.functions.spec import (
    NOT_FUSED,
    NOT_ON_GPU,
    ON_CPU,
    Evaluator,
    FunctionSpec,
    Nulls,
    Order,
    Raises,
    lacking,
)
from gpujoin.model.expressions import Call, Function, Literal
from gpujoin.model.types import is_numeric, is_text, is_whole


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


def _is_exact_number(dtype: pa.DataType) -> bool:
    return is_whole(dtype) or bool(pat.is_decimal128(dtype))


_AFFIX = takes(TEXT_OR_BYTES, TEXT_OR_BYTES, gives=pa.bool_())
_MAPPED = takes(TEXT, gives=first)
_TRIMMED = takes(TEXT, TEXT, gives=first, optional=1)
_PADDED = takes(TEXT, INT, TEXT, gives=first, optional=1)
_GRAPHEMES = lacking("Polars keeps the characters of a grapheme cluster in order", Evaluator.POLARS)
_NO_JAVA_REGEX = NOT_FUSED | lacking("libcudf's regular expressions differ from Java's", Evaluator.CUDF)
_EXACT_NUMBER = Parameter(_is_exact_number, kept(_is_exact_number, to(pa.float64(), is_numeric, is_text)))
_F = Function

TABLE = (
    FunctionSpec(
        _F.LIKE, ("Like",), takes(TEXT, TEXT, TEXT, gives=pa.bool_(), optional=1),
        raises=Raises.PATTERN, safe=is_well_formed, selectivity=0.1,
    ),
    FunctionSpec(
        _F.RLIKE, ("RLike",), takes(TEXT, TEXT, gives=pa.bool_()),
        raises=Raises.PATTERN, safe=lambda node: isinstance(node.arguments[1], Literal), selectivity=0.1,
        lacks=_NO_JAVA_REGEX,
    ),
    FunctionSpec(
        _F.REGEXP_EXTRACT, ("RegExpExtract",), takes(TEXT, TEXT, INT, gives=first, optional=1),
        raises=Raises.ALWAYS, safe=has_constants, lacks=_NO_JAVA_REGEX,
    ),
    FunctionSpec(
        _F.REGEXP_EXTRACT_ALL, ("RegExpExtractAll",),
        takes(TEXT, TEXT, INT, gives=pa.list_(pa.string()), optional=1),
        raises=Raises.ALWAYS, safe=has_constants, lacks=ON_CPU,
    ),
    FunctionSpec(
        _F.REGEXP_REPLACE, ("RegExpReplace",), takes(TEXT, TEXT, TEXT, INT, gives=first, optional=1),
        raises=Raises.ALWAYS, safe=has_constants, lacks=_NO_JAVA_REGEX,
    ),
    FunctionSpec(_F.STARTS_WITH, ("StartsWith",), _AFFIX, selectivity=0.1),
    FunctionSpec(_F.ENDS_WITH, ("EndsWith",), _AFFIX, selectivity=0.1),
    FunctionSpec(_F.CONTAINS, ("Contains",), _AFFIX, selectivity=0.1),
    FunctionSpec(_F.LOWER, ("Lower",), _MAPPED, lacks=NOT_FUSED),
    FunctionSpec(_F.UPPER, ("Upper",), _MAPPED, lacks=NOT_FUSED),
    FunctionSpec(_F.TRIM, ("StringTrim",), _TRIMMED),
    FunctionSpec(_F.TRIM_LEFT, ("StringTrimLeft",), _TRIMMED),
    FunctionSpec(_F.TRIM_RIGHT, ("StringTrimRight",), _TRIMMED),
    FunctionSpec(_F.OCTET_LENGTH, ("OctetLength",), takes(TEXT_OR_BYTES, gives=pa.int32())),
    FunctionSpec(_F.BIT_LENGTH, ("BitLength",), takes(TEXT_OR_BYTES, gives=pa.int32()), lacks=ON_CPU),
    FunctionSpec(_F.REVERSE, ("Reverse",), _MAPPED, lacks=_GRAPHEMES | NOT_ON_GPU),
    FunctionSpec(_F.INSTR, ("StringInstr",), takes(TEXT, TEXT, gives=pa.int32()), lacks=ON_CPU),
    FunctionSpec(_F.LENGTH, ("Length",), takes(TEXT_OR_BYTES, gives=pa.int32())),
    FunctionSpec(_F.SUBSTRING, ("Substring",), takes(TEXT_OR_BYTES, INT, INT, gives=first, optional=1)),
    FunctionSpec(
        _F.CONCAT, ("Concat",), takes(TEXT_OR_BYTES, gives=_text, optional=1, repeated=True), order=Order.ALL
    ),
    FunctionSpec(
        _F.CONCAT_WS, ("ConcatWs",), takes(TEXT, TEXT, gives=pa.string(), optional=1, repeated=True),
        nulls=Nulls.READ, lacks=ON_CPU,
    ),
    FunctionSpec(_F.INITCAP, ("InitCap",), _MAPPED, lacks=ON_CPU),
    FunctionSpec(_F.LPAD, ("StringLPad",), _PADDED, lacks=ON_CPU),
    FunctionSpec(_F.RPAD, ("StringRPad",), _PADDED, lacks=ON_CPU),
    FunctionSpec(_F.REPEAT, ("StringRepeat",), takes(TEXT, INT, gives=first), lacks=ON_CPU),
    FunctionSpec(_F.REPLACE, ("StringReplace",), takes(TEXT, TEXT, TEXT, gives=first), lacks=ON_CPU),
    FunctionSpec(_F.TRANSLATE, ("StringTranslate",), takes(TEXT, TEXT, TEXT, gives=first), lacks=ON_CPU),
    FunctionSpec(_F.SUBSTRING_INDEX, ("SubstringIndex",), takes(TEXT, TEXT, INT, gives=first), lacks=ON_CPU),
    FunctionSpec(
        _F.SPLIT_PART, (), takes(TEXT, TEXT, INT, gives=first),
        raises=Raises.ALWAYS, safe=has_position, lacks=ON_CPU,
    ),
    FunctionSpec(_F.LOCATE, ("StringLocate",), takes(TEXT, TEXT, INT, gives=pa.int32(), optional=1), lacks=ON_CPU),
    FunctionSpec(_F.REGEXP_INSTR, ("RegExpInStr",), takes(TEXT, TEXT, INT, gives=pa.int32(), optional=1),
        raises=Raises.PATTERN, safe=has_constants, lacks=_NO_JAVA_REGEX,
    ),
    FunctionSpec(
        _F.OVERLAY, ("Overlay",), takes(TEXT_OR_BYTES, TEXT_OR_BYTES, INT, INT, gives=first, optional=1), lacks=ON_CPU
    ),
    FunctionSpec(_F.SPACE, ("StringSpace",), takes(INT, gives=pa.string()), lacks=ON_CPU),
    FunctionSpec(_F.FIND_IN_SET, ("FindInSet",), takes(TEXT, TEXT, gives=pa.int32()), lacks=ON_CPU),
    FunctionSpec(
        _F.CONV, ("Conv",), takes(TEXT, INT, INT, gives=pa.string()), raises=Raises.ANSI, lacks=ON_CPU,
    ),
    FunctionSpec(_F.SOUNDEX, ("SoundEx",), takes(TEXT, gives=pa.string()), lacks=ON_CPU),
    FunctionSpec(
        _F.LEVENSHTEIN, ("Levenshtein",), takes(TEXT, TEXT, INT, gives=pa.int32(), optional=1), lacks=ON_CPU
    ),
    FunctionSpec(
        _F.MASK, ("Mask",), takes(TEXT, TEXT, TEXT, TEXT, TEXT, gives=first, optional=4),
        nulls=Nulls.READ, lacks=ON_CPU,
    ),
    FunctionSpec(_F.LUHN_CHECK, (), takes(TEXT, gives=pa.bool_()), lacks=ON_CPU),
    FunctionSpec(_F.QUOTE, (), takes(TEXT, gives=pa.string()), lacks=ON_CPU),
    FunctionSpec(_F.FORMAT_NUMBER, ("FormatNumber",), takes(_EXACT_NUMBER, INT, gives=pa.string()), lacks=ON_CPU),
    FunctionSpec(_F.ASCII, ("Ascii",), takes(TEXT, gives=pa.int32()), lacks=ON_CPU),
    FunctionSpec(_F.CHR, ("Chr",), takes(LONG, gives=pa.string()), lacks=ON_CPU),
)  # fmt: skip
