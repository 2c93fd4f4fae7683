r"""Translates LIKE patterns and java.util.regex patterns to RE2 patterns with exactly the same matches.

RE2 and Java agree on less than it seems: ``.``, ``\s``, ``$`` and case folding differ, and Java has constructs that
RE2 lacks. :func:`java_to_re2` therefore accepts a subset and refuses everything else.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from gpujoin.model.expressions import Call

_LINE_ENDS = r"\n\r\x{85}\x{2028}\x{2029}"
_MAX_REPEAT = 1000


class UnsupportedPatternError(ValueError):
    """The pattern is outside the subset that is known to mean the same in Java and RE2."""


def reads_alike(parse: Callable[[Call], object]) -> Callable[[Call], bool]:
    """Make a test of calls: whether ``parse``, which raises ``UnsupportedPatternError``, reads their patterns."""

    def is_read(node: Call) -> bool:
        try:
            parse(node)
        except UnsupportedPatternError:
            return False
        return True

    return is_read


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
    return _compiled(_Translator(pattern).translate(), pattern)


def _compiled(translated: str, pattern: str) -> str:
    """Give a translated pattern if RE2 takes it; the pattern itself is for the error."""
    try:
        pc.match_substring_regex(pa.array([""]), translated)
    except pa.ArrowException as problem:
        raise UnsupportedPatternError(f"{pattern!r}: {problem}") from None
    return translated


def only_text(pattern: str) -> str | None:
    r"""The text that a java.util.regex pattern such as ``\|`` matches; ``None`` if it may match others too."""
    return _ESCAPED.sub(r"\1", pattern) if _LITERAL.fullmatch(pattern) else None


_LITERAL = re.compile(r"(?:[^\\\[\](){}.*+?^$|]|\\[!-/:-@\[-`{-~])+")
_ESCAPED = re.compile(r"\\(.)")


@dataclass(frozen=True)
class Groups:
    """A pattern whose groups capture in RE2 what they capture in Java."""

    regex: str
    """Pattern with named groups: the whole match is ``g0``, and group ``n`` is ``gn``."""
    unnamed: str
    """The same with groups that have numbers only."""
    count: int
    """Number of groups, the whole match not counted."""
    least_width: int
    """Least number of characters that it matches."""
    at_line_end: bool
    """Whether it has a ``$``, which takes a line end into the whole match."""


@lru_cache(maxsize=1024)
def java_to_groups(pattern: str) -> Groups:
    """Translate a java.util.regex pattern so that its groups are the same.

    Both engines prefer the same match: the leftmost one, and of those the one that comes first by the order of
    alternatives and quantifiers. They differ where a quantifier repeats what may be empty, or a group: such patterns
    are refused. Raises ``UnsupportedPatternError``, as :func:`java_to_re2` does.
    """
    translator = _Translator(pattern, captures=True)
    named = _compiled(f"{_DOT_ALL}(?P<g0>{translator.translate().removeprefix(_DOT_ALL)})", pattern)
    unnamed = _Translator(pattern, captures=True, named=False).translate()
    return Groups(named, unnamed, translator.groups, translator.width, translator.saw_end)


def java_to_rewrite(replacement: str, groups: int) -> str:
    r"""Translate a replacement of java.util.regex, with groups as ``$1``, to one of RE2, with groups as ``\1``.

    Raises ``UnsupportedPatternError`` if Java refuses it, or RE2 cannot express it.
    """
    out: list[str] = []
    at = 0
    while at < len(replacement):
        char = replacement[at]
        at += 1
        if char == "$":
            number, at = _group_number(replacement, at, groups)
            out.append(f"\\{number}")
            continue
        if char == "\\":
            char = replacement[at : at + 1]
            at += 1
            if not char:
                raise UnsupportedPatternError(f"{replacement!r}: a backslash at the end")
        out.append("\\\\" if char == "\\" else char)
    return "".join(out)


def _group_number(replacement: str, at: int, groups: int) -> tuple[int, int]:
    """Read a group's number: as many digits as make the number of a group; and where it ends."""
    digit = replacement[at : at + 1]
    if not (digit.isascii() and digit.isdigit()) or int(digit) > groups:
        raise UnsupportedPatternError(f"{replacement!r}: a group that does not exist, or has a name")
    number, at = int(digit), at + 1
    following = replacement[at : at + 1]
    if following.isascii() and following.isdigit() and number * 10 + int(following) <= groups:
        raise UnsupportedPatternError(f"{replacement!r}: a group of two digits")
    return number, at


_DOT_ALL = "(?s)"
_CLASSES = {"d": "0-9", "w": "a-zA-Z0-9_", "s": r"\t\n\x{b}\f\r "}
_CONTROLS = {"n": r"\n", "t": r"\t", "r": r"\r", "f": r"\f"}


@dataclass
class _Branches:
    """Alternatives of a group that is being read, or of the whole pattern."""

    captures: bool = False
    """Whether it captures, or a group inside of it does."""
    width: int = 0
    """Least width of the alternative so far."""
    least: int | None = None
    """Least width of the alternatives before it."""

    def close(self) -> int:
        """End an alternative; give the least width of all."""
        self.least = self.width if self.least is None else min(self.least, self.width)
        self.width = 0
        return self.least


class _Translator:
    def __init__(self, pattern: str, *, captures: bool = False, named: bool = True) -> None:
        self._pattern = pattern
        self._at = 0
        self._branches = [_Branches()]
        self._captures = captures
        self._named = named
        self._saw_return = False
        self.saw_end = False
        self.groups = 0
        self.width = 0

    def translate(self) -> str:
        out = [_DOT_ALL]
        while self._at < len(self._pattern):
            out.append(self._element())
        if len(self._branches) > 1:
            self._refuse("an unclosed group")
        self.width = self._branches[0].close()
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
                if len(self._branches) == 1:
                    self._refuse("an unopened group")
                group = self._branches.pop()
                self._branches[-1].captures |= group.captures
                return ")" + self._quantifier(group.close(), captures=group.captures)
            case "|":
                self._branches[-1].close()
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
        return atom + self._quantifier(1)

    def _open(self) -> str:
        self._branches.append(_Branches())
        if self._peek() != "?":
            if not self._captures:
                return "(?:"
            self._branches[-1].captures = True
            self.groups += 1
            return f"(?P<g{self.groups}>" if self._named else "("
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
        if self._captures and len(self._branches) > 1:
            self._refuse("$ inside a group")
        self.saw_end = True
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

    def _quantifier(self, width: int, *, captures: bool = False) -> str:
        """Translate the quantifier of an atom, if it has one, and count the atom's least width."""
        char = self._peek()
        if char and char in "*+?":
            self._at += 1
            text, least = char, int(char == "+")
        elif char == "{":
            text = self._counted()
            least = int(text[1:-1].partition(",")[0])
        else:
            self._branches[-1].width += width
            return ""
        if self._captures and (captures or not width):
            self._refuse("a repeated group, or what may be empty")
        self._branches[-1].width += least * width
        if self._peek() == "+":
            self._refuse("a possessive quantifier")
        if self._peek() == "?":
            self._at += 1
            text += "?"
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
