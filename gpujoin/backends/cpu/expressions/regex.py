r"""Translates LIKE patterns and java.util.regex patterns to RE2 patterns with exactly the same matches.

RE2 and Java agree on less than it seems: ``.``, ``\s``, ``$`` and case folding differ, and Java has constructs that
RE2 lacks. :func:`java_to_re2` therefore accepts a subset and refuses everything else.
"""

from __future__ import annotations

from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

_LINE_ENDS = r"\n\r\x{85}\x{2028}\x{2029}"
_MAX_REPEAT = 1000


class UnsupportedPatternError(ValueError):
    """The pattern is outside the subset that is known to mean the same in Java and RE2."""


def quote(text: str) -> str:
    """Escape text for RE2."""
    return "".join(_quote_char(c) for c in text)


def _quote_char(char: str) -> str:
    if char.isascii() and not char.isalnum():
        return f"\\x{{{ord(char):x}}}"
    return char


def like_to_re2(parts: list[str | None]) -> str:
    """Write the parts of a LIKE pattern as an RE2 pattern that must match from start to end."""
    body = "".join("." if p is None else ".*" if p == "" else quote(p) for p in parts)
    return rf"(?s)\A{body}\z"


@lru_cache(maxsize=1024)
def java_to_re2(pattern: str) -> str:
    """Translate a java.util.regex pattern, searched anywhere in a text.

    Raises ``UnsupportedPatternError`` if the pattern leaves the subset in which the two engines agree.
    """
    translated = _Translator(pattern).translate()
    try:
        pc.match_substring_regex(pa.array([""]), translated)
    except pa.ArrowException as problem:
        raise UnsupportedPatternError(f"{pattern!r}: {problem}") from None
    return translated


_CLASSES = {"d": "0-9", "w": "a-zA-Z0-9_", "s": r"\t\n\x{b}\f\r "}
_CONTROLS = {"n": r"\n", "t": r"\t", "r": r"\r", "f": r"\f"}


class _Translator:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._depth = 0
        self._saw_return = False

    def translate(self) -> str:
        out = [r"(?s)"]
        while self._at < len(self._pattern):
            out.append(self._element())
        if self._depth:
            self._refuse("an unclosed group")
        return "".join(out)

    def _refuse(self, why: str) -> None:
        raise UnsupportedPatternError(f"{self._pattern!r}: {why}")

    def _peek(self) -> str:
        return self._pattern[self._at] if self._at < len(self._pattern) else ""

    def _next(self) -> str:
        char = self._peek()
        self._at += 1
        return char

    def _element(self) -> str:
        char = self._next()
        match char:
            case "(":
                return self._open()
            case ")":
                self._depth -= 1
                if self._depth < 0:
                    self._refuse("an unopened group")
                return ")" + self._quantifier()
            case "|":
                return "|"
            case "^":
                if self._peek() and self._peek() in "*+?{":
                    self._refuse("a repeated anchor")
                return r"\A"
            case "$":
                return self._end()
            case "*" | "+" | "?" | "{":
                self._refuse("a dangling quantifier")
        atom = self._atom(char)
        return atom + self._quantifier()

    def _open(self) -> str:
        self._depth += 1
        if self._peek() != "?":
            return "(?:"
        if self._pattern.startswith("?:", self._at):
            self._at += 2
            return "(?:"
        self._refuse("a special group")
        return ""

    def _end(self) -> str:
        """Translate ``$``: the end, or before a last line end, but never inside a Windows line end."""
        if self._peek() not in ("", "|", ")"):
            self._refuse("$ inside a pattern")
        if self._saw_return:
            self._refuse("$ after something that may match a carriage return")
        return rf"(?:(?:\r\n|[{_LINE_ENDS}])?\z)"

    def _atom(self, char: str) -> str:
        match char:
            case ".":
                return f"[^{_LINE_ENDS}]"
            case "[":
                return self._class()
            case "\\":
                kind, text = self._escape()
                self._saw_return |= text == r"\r" or (kind == "class" and text.startswith(("^", r"\t")))
                return f"[{text}]" if kind == "class" else text
            case "]" | "}":
                return "\\" + char
        self._saw_return |= char == "\r"
        return quote(char)

    def _escape(self) -> tuple[str, str]:
        char = self._next()
        if char in _CONTROLS:
            return "char", _CONTROLS[char]
        if char in _CLASSES:
            return "class", _CLASSES[char]
        if char.lower() in _CLASSES and char:
            return "class", "^" + _CLASSES[char.lower()]
        if char and char.isascii() and not char.isalnum():
            return "char", quote(char)
        self._refuse(f"the escape \\{char}")
        return "", ""

    def _class(self) -> str:
        negated = self._peek() == "^"
        if negated:
            self._at += 1
        items: list[str] = []
        has_return = negated
        while True:
            char = self._next()
            if char == "]":
                break
            if char in ("", "[", "&", "^"):
                self._refuse("a character class that Java may read differently")
            item = self._class_item(char)
            if self._peek() == "-" and self._pattern[self._at + 1 : self._at + 2] not in ("]", ""):
                item = self._range(item)
            has_return = has_return or "\\r" in item or item == quote("\r")
            items.append(item)
        if not items:
            self._refuse("an empty character class")
        self._saw_return |= has_return
        return f"[{'^' if negated else ''}{''.join(items)}]"

    def _class_item(self, char: str) -> str:
        if char == "-":
            if self._peek() != "]":
                self._refuse("a hyphen inside a character class")
            return quote("-")
        if char != "\\":
            return quote(char)
        kind, text = self._escape()
        if kind == "class" and text.startswith("^"):
            self._refuse("a negated class inside a character class")
        return text

    def _range(self, first: str) -> str:
        self._at += 1
        last = self._next()
        if not (len(first) == 1 and len(last) == 1 and first.isalnum() and last.isalnum()):
            self._refuse("a range between other than letters and digits")
        if not (first.isascii() and last.isascii()) or first > last:
            self._refuse("a range outside ASCII, or reversed")
        return f"{first}-{last}"

    def _quantifier(self) -> str:
        char = self._peek()
        if char and char in "*+?":
            self._at += 1
            text = char
        elif char == "{":
            text = self._counted()
        else:
            return ""
        if self._peek() == "+":
            self._refuse("a possessive quantifier")
        if self._peek() == "?":
            self._at += 1
        if self._peek() and self._peek() in "*+?{":
            self._refuse("a quantifier on a quantifier")
        return text

    def _counted(self) -> str:
        end = self._pattern.find("}", self._at)
        low, _, high = self._pattern[self._at + 1 : end].partition(",")
        bounds = [b for b in (low, high) if b]
        if end < 0 or not low or not all(b.isascii() and b.isdigit() and int(b) <= _MAX_REPEAT for b in bounds):
            self._refuse("a repetition count")
        if len(bounds) == 2 and int(bounds[0]) > int(bounds[1]):
            self._refuse("a reversed repetition count")
        text = self._pattern[self._at : end + 1]
        self._at = end + 1
        return text
