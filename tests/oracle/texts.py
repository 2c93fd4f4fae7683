"""Spark's text functions, one value at a time."""

from __future__ import annotations

import functools
import re
from decimal import Decimal

from gpujoin.errors import ExpressionEvaluationError


def like(text: str, pattern: str, escape: str = "\\") -> bool:
    """SQL ``LIKE``: ``%`` any run of characters, ``_`` one, the escape takes the next of these literally."""
    return _like_pattern(pattern, escape).fullmatch(text) is not None


@functools.lru_cache(maxsize=256)
def _like_pattern(pattern: str, escape: str) -> re.Pattern[str]:
    parts = []
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            following = next(characters, None)
            if following is None or following not in ("%", "_", escape):
                raise ExpressionEvaluationError(
                    f"the LIKE pattern {pattern!r} has an escape {escape!r} before neither '%', '_' nor itself"
                )
            parts.append(re.escape(following))
        else:
            parts.append({"%": ".*", "_": "."}.get(character, re.escape(character)))
    return re.compile("".join(parts), re.DOTALL)


def rlike(text: str, pattern: str) -> bool:
    """Whether a regular expression is found; only for patterns that Java and Python read alike."""
    return re.search(pattern, text, re.ASCII) is not None


def substring(text: str | bytes, position: int, length: int = (1 << 31) - 1) -> str | bytes:
    """SQL ``substring``: positions count from 1, negative ones from the end, 0 is 1."""
    start = position - 1 if position > 0 else len(text) + position if position < 0 else 0
    return text[max(start, 0) : max(start + length, 0)]


def pad(text: str, length: int, filling: str, *, left: bool) -> str:
    """``lpad`` and ``rpad``: cut to a length, or filled up to it."""
    lacking = length - len(text)
    if lacking <= 0 or not filling:
        return text[: max(length, 0)]
    added = "".join(filling[i % len(filling)] for i in range(lacking))
    return added + text if left else text + added


def translate(text: str, characters: str, replacements: str) -> str:
    """Characters at one place become those at the same place; those without one, or with NUL, are dropped."""
    out = []
    for char in text:
        place = characters.find(char)
        if place < 0:
            out.append(char)
        elif replacements[place : place + 1] != "\0":
            out.append(replacements[place : place + 1])
    return "".join(out)


def substring_index(text: str, delimiter: str, count: int) -> str:
    """All before the occurrence of a number, or after it, counted from the end; occurrences overlap."""
    if not delimiter or not count:
        return ""
    places = [i for i in range(len(text)) if text.startswith(delimiter, i)]
    if abs(count) > len(places):
        return text
    return text[: places[count - 1]] if count > 0 else text[places[count] + len(delimiter) :]


def soundex(text: str) -> str:
    """The first letter, and digits for up to three groups of like consonants."""
    if not re.match("[A-Za-z]", text):
        return text
    groups = {
        letter: str(n) for n, letters in enumerate(("BFPV", "CGJKQSXZ", "DT", "L", "MN", "R"), 1) for letter in letters
    }
    code, last = text[0].upper(), "7" if text[0] in "HhWw" else _sound(text[0], groups)
    for sound in [_sound(char, groups) for char in text[1:] if char not in "HhWw"]:
        if sound not in ("0", last):
            code += sound
        last = sound
    return (code + "000")[:4]


def conv(text: str, base: int, to_base: int, *, ansi: bool) -> str | None:
    """Digits of a base as those of another, by arithmetic of 64 bits that wraps."""
    text = text.strip(" ")
    if not (2 <= base <= 36 and 2 <= abs(to_base) <= 36 and text):
        return None
    minus, digits = text[:1] == "-", "0123456789abcdefghijklmnopqrstuvwxyz"[:base]
    read = re.match(f"[{digits}]*", text[minus:], re.IGNORECASE | re.ASCII)
    number = int((read and read[0]) or "0", base)
    if number >= 1 << 64:
        if ansi:
            raise ExpressionEvaluationError("more than 64 bits")
        number = (1 << 64) - 1
    signed = number - (number >> 63 << 64)
    if to_base > 0 and minus:
        signed = -1 if signed < 0 else -signed
    elif to_base < 0:
        minus, signed = minus or signed < 0, abs(signed)
    number, out = signed % (1 << 64), ""
    while number or not out:
        out = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"[number % abs(to_base)] + out
        number //= abs(to_base)
    return f"-{out}" if minus and to_base < 0 else out


def _sound(char: str, groups: dict[str, str]) -> str:
    return groups.get(char.upper(), "0") if char.isascii() else "0"


def levenshtein(text: str, other: str, limit: int | None = None) -> int:
    """Edits that make one text of another, by the recursion that defines them."""

    @functools.cache
    def edits(i: int, j: int) -> int:
        if not i or not j:
            return i + j
        return min(edits(i - 1, j) + 1, edits(i, j - 1) + 1, edits(i - 1, j - 1) + (text[i - 1] != other[j - 1]))

    distance = edits(len(text), len(other))
    return -1 if limit is not None and distance > limit else distance


def split_part(text: str, delimiter: str, number: int) -> str:
    """The part of a number, from the end if negative; empty if there is none."""
    if number == 0:
        raise ExpressionEvaluationError("split_part has no part 0")
    parts = text.split(delimiter) if delimiter else [text]
    if number < 0:
        parts.reverse()
    return (parts[abs(number) - 1 :] or [""])[0]


def locate(part: str, text: str, start: int = 1) -> int:
    """Position of a part from a start on; 0 if there is none."""
    if start < 1:
        return 0
    if not part:
        return 1
    return next((i + 1 for i in range(start - 1, len(text)) if text.startswith(part, i)), 0)


def initcap(text: str) -> str:
    """The first letter of each word upper case, the others lower."""
    starts = [i == 0 or text[i - 1] == " " for i in range(len(text))]
    return "".join(c.upper() if first else c.lower() for c, first in zip(text, starts, strict=True))


def regexp_extract(text: str, pattern: str, group: int = 1) -> str:
    """A group of the first match; only for patterns that Java and Python read alike."""
    match = re.search(pattern, text, re.ASCII)
    return (match[group] or "") if match else ""


def regexp_extract_all(text: str, pattern: str, group: int = 1) -> list[str]:
    """A group of each match; only for patterns that Java and Python read alike."""
    return [match[group] or "" for match in re.finditer(pattern, text, re.ASCII)]


def regexp_replace(text: str, pattern: str, replacement: str, position: int = 1) -> str:
    """All matches replaced; groups are written ``$1``."""
    start = position - 1
    template = re.sub(
        r"\\(.)|\$(\d)", lambda part: f"\\g<{part[2]}>" if part[2] else part[1].replace("\\", r"\\"), replacement
    )
    return text[:start] + re.sub(pattern, template, text[start:], flags=re.ASCII)


def regexp_instr(text: str, pattern: str, _group: int = 0) -> int:
    """Position of the first match, 0 if there is none; only for patterns that Java and Python read alike."""
    match = re.search(pattern, text, re.ASCII)
    return match.start() + 1 if match else 0


def overlay(text: str, replacement: str, position: int, length: int = -1) -> str | bytes:
    """A text put in place of what is at a position."""
    end = position + (length if length >= 0 else len(replacement))
    return text[: max(position - 1, 0)] + replacement + str(substring(text, end))


def mask(
    text: str, upper: str | None = "X", lower: str | None = "x", digit: str | None = "n", other: str | None = None
) -> str:
    """Other characters in place of capitals, small letters, digits and all else."""
    out = []
    for char in text:
        kind = upper if char.isupper() else lower if char.islower() else digit if char.isdigit() else other
        out.append(char if kind is None else kind)
    return "".join(out)


def luhn_check(text: str) -> bool:
    """Whether the last digit is the check digit of those before it."""
    if not text or not all(char in "0123456789" for char in text):
        return False
    total = 0
    for place, char in enumerate(reversed(text)):
        value = int(char) * (1 + place % 2)
        total += value - 9 if value > 9 else value
    return total % 10 == 0


def format_number(value: int | Decimal, digits: int) -> str | None:
    """Rounded half to even, with commas between groups of three digits."""
    if digits < 0:
        return None
    scaled = Decimal(value).copy_abs().scaleb(digits)
    whole = int(scaled)
    rest = scaled - whole
    if rest > Decimal("0.5") or (rest == Decimal("0.5") and whole % 2):
        whole += 1
    text = str(whole).rjust(digits + 1, "0")
    before, after = text[: len(text) - digits], text[len(text) - digits :]
    groups = [before[max(i - 3, 0) : i] for i in range(len(before), 0, -3)][::-1]
    return ("-" if value < 0 else "") + ",".join(groups) + ("." + after if digits else "")


def unhex(text: str) -> bytes | None:
    """Bytes of hexadecimal digits; null if there is anything else."""
    if any(char not in "0123456789abcdefABCDEF" for char in text):
        return None
    padded = text if len(text) % 2 == 0 else "0" + text
    return bytes(int(padded[i : i + 2], 16) for i in range(0, len(padded), 2))


_UNRESERVED = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-*_"


def url_encode(text: str) -> str:
    """Form encoding: spaces as plus signs, other bytes in hexadecimal."""
    return "".join(
        c if c in _UNRESERVED else "+" if c == " " else "".join(f"%{b:02X}" for b in c.encode()) for c in text
    )


def url_decode(text: str) -> str:
    """Form encoding undone."""
    return re.sub(rb"%(..)", lambda part: bytes([int(part[1], 16)]), text.replace("+", " ").encode()).decode()
