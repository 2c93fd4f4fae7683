"""Parses text by Spark's rules. Each function takes one text, and returns ``None`` if the text is malformed.

They are called once per distinct text: no vectorised parser accepts exactly what Spark accepts.
"""

from __future__ import annotations

import datetime as dt
import re

from gpujoin.errors import UnsupportedValueError
from gpujoin.functions.decimals import divide_half_up_int
from gpujoin.model.types import MAX_PRECISION

BLANK = "".join(map(chr, range(0x21))) + "\x7f"
"""Characters that Spark strips before parsing: ASCII white space and control characters."""

_JAVA_BLANK = "".join(map(chr, range(0x21)))
_LEGACY_WHOLE = re.compile(r"([+-]?)(\d*)(?:\.\d*)?\Z", re.ASCII)
_ANSI_WHOLE = re.compile(r"([+-]?)(\d+)\Z", re.ASCII)
_FLOAT = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?=[fFdD]?\Z)", re.ASCII)
_HEX_FLOAT = re.compile(r"[+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?\d+(?=[fFdD]?\Z)", re.ASCII)
_DECIMAL = re.compile(r"([+-]?)(\d+(?:\.\d*)?|\.\d+)(?:[eE]([+-]?\d{1,10}))?\Z")
_DATE = re.compile(r"([+-]?)(\d{4,7})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T].*)?)?)?\Z", re.ASCII | re.DOTALL)
_SPECIAL = {
    "inf": "inf", "+inf": "inf", "infinity": "inf", "+infinity": "inf",
    "-inf": "-inf", "-infinity": "-inf", "nan": "nan",
}  # fmt: skip
_EPOCH = dt.date(1970, 1, 1).toordinal()


def whole(text: str, bits: int, *, fraction: bool) -> int | None:
    """Parse an integer of some width; without ANSI mode a fraction is allowed and dropped."""
    text = text.strip(BLANK)
    match = (_LEGACY_WHOLE if fraction else _ANSI_WHOLE).match(text)
    if match is None or text in ("", "+", "-"):
        return None
    value = int(match[1] + (match[2] or "0"))
    return value if -(1 << bits - 1) <= value < 1 << bits - 1 else None


def double(text: str) -> float | None:
    """Parse a double as ``Double.parseDouble`` does, or one of Spark's names for infinity and NaN."""
    text = text.strip(_JAVA_BLANK)
    match = _FLOAT.match(text)
    if match is not None:
        return float(match[0])
    match = _HEX_FLOAT.match(text)
    if match is not None:
        try:
            return float.fromhex(match[0])
        except OverflowError:
            return float("-inf") if text.startswith("-") else float("inf")
    special = "nan" if text in ("+NaN", "-NaN") else _SPECIAL.get(text.lower())
    return None if special is None else float(special)


def decimal(text: str, precision: int, scale: int) -> int | None:
    """Parse a decimal to its unscaled value, rounded half up; ``None`` also for too many digits."""
    match = _DECIMAL.match(text.strip(_JAVA_BLANK))
    if match is None or not all(ord(c) < 0x10000 for c in match[0]):
        return None
    before, _, after = match[2].partition(".")
    exponent = int(match[3] or 0)
    digits = int(before + after or "0")
    if digits == 0:
        return 0
    own_scale = len(after) - exponent
    if not -(1 << 31) <= own_scale < 1 << 31 or len(str(digits)) - own_scale > MAX_PRECISION:
        return None
    shift = scale - own_scale
    if shift >= 0:
        unscaled = digits * 10**shift
    elif -shift > len(str(digits)) + 1:
        unscaled = 0
    else:
        unscaled = divide_half_up_int(digits, 10**-shift)
    if unscaled >= 10**precision:
        return None
    return -unscaled if match[1] == "-" else unscaled


def date(text: str) -> int | None:
    """Parse a date to days since 1970. A time after it is ignored."""
    match = _DATE.match(text.strip(BLANK))
    if match is None:
        return None
    year = int(match[1] + match[2])
    return days_from_civil(year, int(match[3] or 1), int(match[4] or 1))


def days_from_civil(year: int, month: int, day: int) -> int | None:
    """Count days since 1970 in the proleptic Gregorian calendar, for any year; ``None`` if there is no such day."""
    cycles, within = divmod(year - 1, 400)
    try:
        ordinal = dt.date(within + 1, month, day).toordinal()
    except ValueError:
        return None
    days = ordinal + cycles * 146_097 - _EPOCH
    return days if -(1 << 31) <= days < 1 << 31 else None


_TIMESTAMP = re.compile(
    r"([+-]?)(\d{4,6})(?:-(\d{1,2})(?:-(\d{1,2})"
    r"(?:[ T](\d{1,2})(?::(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?(\D.*)?)?)?)?)?)?\Z",
    re.ASCII | re.DOTALL,
)
_TIME_ALONE = re.compile(r"T\d|\d{1,2}:\d", re.ASCII)
_OFFSET = re.compile(r"([+-])(\d{1,2}):(\d{1,2})\Z", re.ASCII)
_ZONE = re.compile(r"[+-].*|[A-Za-z][A-Za-z0-9~/._+-]+\Z", re.ASCII)
_UTC_NAMES = frozenset({"Z", "UTC", "GMT"})


def timestamp(text: str, *, zoned: bool) -> tuple[int, bool] | None:
    """Parse a timestamp to microseconds since 1970, and whether these are a clock's, without a zone.

    If it is to have no zone, a zone in the text is ignored. Raises ``UnsupportedValueError`` over a time without a date
    and over the name of a zone.
    """
    text = text.strip(BLANK)
    if _TIME_ALONE.match(text):
        if zoned:
            raise UnsupportedValueError(f"{text!r} is of the current day, which Spark knows")
        return None
    match = _TIMESTAMP.match(text)
    if match is None:
        return None
    days = days_from_civil(int(match[1] + match[2]), int(match[3] or 1), int(match[4] or 1))
    hour, minute, second = (int(match[i] or 0) for i in (5, 6, 7))
    if days is None or hour > 23 or minute > 59 or second > 59:
        return None
    ahead = None if match[9] is None else _offset(match[9].strip(_JAVA_BLANK))
    if match[9] is not None and ahead is None:
        return None
    micros = ((days * 24 + hour) * 60 + minute) * 60_000_000 + second * 1_000_000
    micros += int((match[8] or "").ljust(6, "0")[:6]) - (ahead or 0) * (1_000_000 if zoned else 0)
    return (micros, ahead is None or not zoned) if -(1 << 63) <= micros < 1 << 63 else None


def _offset(zone: str) -> int | None:
    """Seconds ahead of UTC of a zone; ``None`` if there is none of that name."""
    if zone in _UTC_NAMES:
        return 0
    match = _OFFSET.match(zone)
    if match is None:
        if _ZONE.match(zone):
            raise UnsupportedValueError(f"the time zone {zone!r} in a text is left to Spark")
        return None
    seconds = int(match[2]) * 3600 + int(match[3]) * 60
    if int(match[3]) > 59 or seconds > 18 * 3600:
        return None
    return -seconds if match[1] == "-" else seconds


TRUE_WORDS = ("t", "true", "y", "yes", "1")
FALSE_WORDS = ("f", "false", "n", "no", "0")
