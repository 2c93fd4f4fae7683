"""Texts and bytes written as other texts and bytes."""

from __future__ import annotations

import base64
import re
import string
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import quote_plus, unquote_to_bytes

import pyarrow as pa

from gpujoin.errors import UnsupportedValueError
from gpujoin.functions.hashes import BYTES_OF_TEXT
from gpujoin.functions.implementation import Run, fail, of_python
from gpujoin.functions.signatures import INT, TEXT, takes, type_of
from gpujoin.functions.spec import FunctionSpec, Raises
from gpujoin.functions.utf8 import as_bytes, check_utf8, is_utf8
from gpujoin.functions.vector import Vector, from_arrow, per_distinct
from gpujoin.model.expressions import Call, EvalMode, Function, Literal
from gpujoin.model.types import is_text, wide_offsets

# -- NumPy and Arrow --------------------------------------------------------------------------------------------------


_HEX = re.compile(r"[0-9A-Fa-f]*")
_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4}|\r\n)*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
_LINE = 76
_BASES = range(2, 37)
_DIGITS = string.digits + string.ascii_uppercase
_BITS = 64
_LARGEST = (1 << _BITS) - 1
_URL = re.compile(r"(?:[^%]|%[0-9A-Fa-f]{2})*", re.DOTALL)


def _unhex(text: str) -> bytes | None:
    """Bytes of hexadecimal digits; the first of an odd number stands alone. ``None`` if a character is no digit."""
    if not _HEX.fullmatch(text):
        return None
    return bytes.fromhex(text if len(text) % 2 == 0 else "0" + text)


def _conv(node: Call, operands: list[Vector], length: int) -> Vector:
    return of_python(partial(_converted, node))(node, operands, length)


def _converted(node: Call, text: str, base: int, to_base: int) -> str | None:
    """Convert a number between bases, as an unsigned 64-bit integer, or a signed one if the target base is negative.

    What follows the first character that is no digit is ignored. A number that is too large is the largest one, or an
    error in ANSI mode. The negative of a number is, unsigned, what is missing to 2**64::

        conv('-1zz', 10, 16)    FFFFFFFFFFFFFFFF        conv('-1zz', 10, -16)    -1
    """
    text = text.strip(" ")
    if base not in _BASES or abs(to_base) not in _BASES or not text:
        return None
    is_negative = text.startswith("-")
    number = _leading_number(text[is_negative:], base)
    if number > _LARGEST:
        if node.mode is EvalMode.ANSI:
            fail(node, "the number is larger than 64 bits")
        number = _LARGEST
    has_high_bit = number > _LARGEST >> 1
    if to_base > 0:
        if is_negative:
            number = _LARGEST if has_high_bit else -number & _LARGEST
        return _digits(number, to_base)
    if has_high_bit:
        number = _LARGEST + 1 - number
    if not is_negative and not has_high_bit:
        return _digits(number, -to_base)
    if to_base == -2 and number.bit_length() == _BITS and len(text) <= _BITS:
        raise UnsupportedValueError(f"{node}: the sign of a number of 64 binary digits is left to Spark")
    return "-" + _digits(number, -to_base)


def _leading_number(text: str, base: int) -> int:
    number = 0
    for char in text:
        digit = _DIGITS.find(char.upper()) if char.isascii() else -1
        if not 0 <= digit < base or number > _LARGEST:
            break
        number = number * base + digit
    return number


def _digits(number: int, base: int) -> str:
    written = ""
    while number or not written:
        number, digit = divmod(number, base)
        written = _DIGITS[digit] + written
    return written


def _base64(value: bytes) -> str:
    """Lines of 76 characters, as MIME has them."""
    text = base64.b64encode(value).decode()
    return "\r\n".join(text[at : at + _LINE] for at in range(0, len(text), _LINE))


def _unbase64(text: str) -> bytes:
    if not _BASE64.fullmatch(text):
        raise UnsupportedValueError(f"unbase64 of {text[:50]!r}, which is no strict Base64, is left to Spark")
    return base64.b64decode(text.replace("\r\n", ""))


def _encode(node: Call, operands: list[Vector], _length: int) -> Vector:
    text = operands[0].values
    check_utf8(text, node)
    return from_arrow(as_bytes(text))


def _decode(node: Call, operands: list[Vector], _length: int) -> Vector:
    """Read bytes as UTF-8. Others are an error in every mode."""
    values = operands[0].values
    text = values.cast(pa.large_binary()).view(pa.large_string()) if not is_text(values.type) else values
    if not is_utf8(text):
        fail(node, "some bytes are no UTF-8")
    return from_arrow(text)


def _url_encode(text: str) -> str:
    return quote_plus(text, safe="*").replace("~", "%7E")


def _url_decode(text: str) -> str:
    try:
        return _unquoted(text)
    except ValueError:
        raise UnsupportedValueError(f"url_decode of {text[:50]!r} is left to Spark") from None


def _unquoted(text: str) -> str:
    if not _URL.fullmatch(text):
        raise ValueError(text)
    return unquote_to_bytes(text.replace("+", " ")).decode()


def _of_bytes(compute: Callable[[bytes], Any]) -> Run:
    """Make an implementation from a function of a value's bytes."""

    def run(node: Call, operands: list[Vector], _length: int) -> Vector:
        values = operands[0].values.cast(pa.large_binary())
        return from_arrow(per_distinct(values, compute, wide_offsets(type_of(node))))

    return run


def is_utf8_named(node: Call) -> bool:
    """Whether the name of a character set is a constant, and UTF-8's."""
    name = node.arguments[1]
    return isinstance(name, Literal) and isinstance(name.value, str) and name.value.upper() == "UTF-8"


# -- URLs -------------------------------------------------------------------------------------------------------------
# As java.net.URI reads them: RFC 2396, and characters beyond ASCII that are no spaces and no controls.


def _characters(others: str) -> str:
    """Write the pattern of a part of a URL, which may have some other characters than letters and digits."""
    beyond = r"[^\x00-\x9f\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
    return rf"(?:[A-Za-z0-9_.!~*'()\-{others}]|%[0-9A-Fa-f]{{2}}|{beyond})*"


_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*")
_PATH = re.compile(_characters(":@&=+$,;/"))
_QUERY = re.compile(_characters(r";/?:@&=+$,\[\]"))
_AUTHORITY = re.compile(_characters("$,;:@&=+"))
_BYTE = r"0*(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[0-9]{1,2})"
_SERVER = re.compile(
    rf"(?:({_characters(';:&=+$,')})@)?"
    rf"({_BYTE}(?:\.{_BYTE}){{3}}|(?:[A-Za-z0-9](?:[A-Za-z0-9\-]*[A-Za-z0-9])?\.)*[A-Za-z](?:[A-Za-z0-9\-]*[A-Za-z0-9])?\.?"
    r"|[A-Za-z0-9](?:[A-Za-z0-9\-]*[A-Za-z0-9])?\.?)(?::0*([0-9]*))?"
)
_MOST_PORT = (1 << 31) - 1
_PORT_DIGITS = 10
_URL_PARTS = frozenset({"PROTOCOL", "AUTHORITY", "USERINFO", "HOST", "PATH", "QUERY", "REF", "FILE"})
_KEY = re.compile(r"[A-Za-z0-9_.\-]*")


def _url_parts(url: str) -> dict[str, str | None] | None:
    """Split a URL into its parts; ``None`` if a text is no URL. Parts may be missing."""
    parts: dict[str, str | None] = dict.fromkeys(_URL_PARTS)
    scheme = re.match("([^/?#:]*):", url)
    if scheme is not None:
        if not _SCHEME.fullmatch(scheme[1]):
            return None
        parts["PROTOCOL"], url = scheme[1], url[scheme.end() :]
    rest, hash_sign, reference = url.partition("#")
    parts["REF"] = reference if hash_sign else None
    if not _QUERY.fullmatch(reference):
        return None
    if scheme is not None and not rest.startswith("/"):  # as that of ``mailto:``
        return parts if rest and _QUERY.fullmatch(rest) else None
    path, question_mark, query = rest.partition("?")
    parts["QUERY"] = query if question_mark else None
    if path.startswith("//"):
        authority, slash, tail = path[2:].partition("/")
        path = slash + tail
        if authority and not _add_authority(parts, authority):
            return None
        if url == "//":
            return None
    parts["PATH"], parts["FILE"] = path, path + question_mark + query
    return parts if _PATH.fullmatch(path) and _QUERY.fullmatch(query) else None


def _add_authority(parts: dict[str, str | None], authority: str) -> bool:
    """Add the parts of an authority. Those of an authority without a server are missing."""
    if "[" in authority or "]" in authority:
        raise UnsupportedValueError(f"parse_url of an address of IPv6, {authority[:50]!r}, is left to Spark")
    if not _AUTHORITY.fullmatch(authority):
        return False
    parts["AUTHORITY"] = authority
    server = _SERVER.fullmatch(authority)
    port = "" if server is None else server[3] or "0"
    if server is not None and len(port) <= _PORT_DIGITS and int(port) <= _MOST_PORT:
        parts["USERINFO"], parts["HOST"] = server[1], server[2]
    return True


def _parse_url(node: Call, operands: list[Vector], length: int) -> Vector:
    def part_of(url: str, part: str, key: str | None = None) -> str | None:
        if key is not None and part != "QUERY":
            return None
        parts = _url_parts(url)
        if parts is None:
            return fail(node, f"{url!r} is no URL") if node.mode is EvalMode.ANSI else None
        value = parts.get(part)
        if key is None or value is None:
            return value
        match = re.search(f"(?:&|^){key}=([^&]*)", value)
        return match[1] if match else None

    return of_python(part_of)(node, operands, length)


def exact_url_part(node: Call) -> bool:
    """Whether the part of a URL is a constant, and so is the name of a value, which as a pattern finds only itself."""
    names = [a.value for a in node.arguments[1:] if isinstance(a, Literal) and isinstance(a.value, str)]
    return len(names) == len(node.arguments) - 1 and all(map(_KEY.fullmatch, names[1:]))


TABLE = (
    FunctionSpec(
        Function.PARSE_URL, ("ParseUrl",), takes(TEXT, TEXT, TEXT, gives=pa.string(), optional=1),
        raises=Raises.ANSI,
        exact=exact_url_part, partial=True, numpy=_parse_url,
    ),
    FunctionSpec(
        Function.CONV, ("Conv",), takes(TEXT, INT, INT, gives=pa.string()), raises=Raises.ANSI, partial=True,
        numpy=_conv,
    ),
    FunctionSpec(Function.UNHEX, ("Unhex",), takes(TEXT, gives=pa.binary()), numpy=of_python(_unhex)),
    FunctionSpec(Function.BASE64, (), takes(BYTES_OF_TEXT, gives=pa.string()), numpy=_of_bytes(_base64)),
    FunctionSpec(
        Function.UNBASE64, ("UnBase64",), takes(TEXT, gives=pa.binary()), partial=True, numpy=of_python(_unbase64),
    ),
    FunctionSpec(Function.ENCODE, (), takes(TEXT, TEXT, gives=pa.binary()), exact=is_utf8_named, numpy=_encode),
    FunctionSpec(
        Function.DECODE, (), takes(BYTES_OF_TEXT, TEXT, gives=pa.string()),
        raises=Raises.ALWAYS,
        exact=is_utf8_named, numpy=_decode,
    ),
    FunctionSpec(Function.URL_ENCODE, (), takes(TEXT, gives=pa.string()), numpy=of_python(_url_encode)),
    FunctionSpec(
        Function.URL_DECODE, (), takes(TEXT, gives=pa.string()),
        raises=Raises.ALWAYS, partial=True, numpy=of_python(_url_decode),
    ),
)  # fmt: skip
