"""Encodings, masks and formats of texts, against Spark."""

from __future__ import annotations

import math
from collections.abc import Callable

import pyarrow as pa
import pytest

from gpujoin.errors import ExpressionEvaluationError, UnsupportedValueError
from gpujoin.functions.evaluate import evaluate_column
from gpujoin.functions.support import is_supported
from gpujoin.model.expressions import EvalMode, Expression, Function, call, left, lit, right
from gpujoin.plan.resolve import resolve_value
from tests.expressions.judge import Judge
from tests.expressions.values import VALUES

KINDS = ["str", "bin", "i8", "i32", "i64", "d9_2", "d38_18", "num_str"]
MODES = [pytest.param(EvalMode.LEGACY, marks=pytest.mark.extra), EvalMode.ANSI]
"""The mode decides little of what these functions give."""
_F = Function


@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
def test_encodings(judge: Callable[..., Judge], mode: EvalMode) -> None:
    text, blob = left("str"), left("bin")
    long = call(_F.CONCAT, text, right("str"), "~*-_. /?é" * 20)
    trees: list[Expression] = [
        *(call(_F.BASE64, x) for x in (blob, text, long, lit(b""), lit(None))),
        *(call(_F.UNHEX, x) for x in (text, left("num_str"), call(_F.HEX, blob), "abc", "", "é", "0x1f", None)),
        call(_F.UNHEX, call(_F.CONCAT, "f", call(_F.HEX, blob))),
        *(call(_F.UNBASE64, x) for x in ("", "YWI=", "YQ==", None)),
        call(_F.UNBASE64, call(_F.BASE64, call(_F.CONCAT, text, right("str")))),
        *(call(_F.ENCODE, x, "utf-8") for x in (text, long)),
        *(call(_F.DECODE, x, "UTF-8") for x in (text, blob, call(_F.ENCODE, long, "UTF-8"))),
        *(call(_F.URL_ENCODE, x) for x in (text, long, "")),
        *(call(_F.URL_DECODE, x) for x in (call(_F.URL_ENCODE, long), "a+b%20", None)),
        *(call(_F.QUOTE, x) for x in (text, "it's", "a\\'b")),
    ]
    judge(*KINDS).check(trees, mode)


@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
def test_formats(judge: Callable[..., Judge], mode: EvalMode) -> None:
    ascii_text = left("num_str")
    trees: list[Expression] = [
        *(
            call(_F.FORMAT_NUMBER, left(k), n)
            for k in ("i8", "i32", "i64", "d9_2", "d38_18")
            for n in (-1, 0, 1, 2, 20)
        ),
        call(_F.FORMAT_NUMBER, left("d9_2"), call(_F.REMAINDER, right("i32"), 9)),
        call(_F.FORMAT_NUMBER, left("i32"), None),
        call(_F.MASK, ascii_text),
        call(_F.MASK, "Ab1-_ z"),
        call(_F.MASK, ascii_text, "Q"),
        call(_F.MASK, ascii_text, None, "q", "d", "o"),
        call(_F.MASK, ascii_text, "Q", None, None, "*"),
        call(_F.LUHN_CHECK, ascii_text),
        call(_F.LUHN_CHECK, left("i64")),
        *(call(_F.LUHN_CHECK, x) for x in ("79927398713", "79927398714", "0", "")),
        *(call(_F.SPACE, x) for x in (0, 1, -1, left("i8"), None)),
    ]
    judge(*KINDS).check(trees, mode)


URLS = (
    "https://user:pw@www.example.com:8080/a/b.html;v=1?x=1&y=%C3%A9&x=2#top", "http://example.com", "HTTP://a.b.c/?",
    "http://example.com?x", "http://example.com/#", "ftp://1.2.3.4/f", "http://1.2.3.256/f", "http://01.2.3.4:/f",
    "http://1.2.3/", "http://1.2.3.4.com/", "http://my_host/p", "http://a-b.c-d/", "http://a-.com/", "http://-a.com/",
    "http://a.1b/", "http://1b", "http://a.", "http://a..b/", "http://a:b/", "http://a:99999999999/", "http://a:/",
    "http://u@h@i/", "http://@h/", "http://:80/", "http:///p?q#r", "http://", "//h/p", "//", "///", "/p?x=1", "p q", "",
    "?x=1", "#r", "mailto:a@b.c", "mailto:", "mailto:a?x=1#r", "a:b:c", ":a", "1a://h/", "a+b.c-d://h/p", "http://h/%zz",
    "http://h/%2", "http://h/%C3%A9?q=%41", "http://h/é?ü=ß#ö", "http://h/\u00a0", "http://h/\u2028", "http://é.com/",
    "http://h/a|b", "http://h/{a}", "http://h/a?b[0]=1", "http://h/a[0]", "http://h/^", 'http://h/"', "http://h/a\\b",
    "http://h/p?x=1?y=2", "http://h/p#a#b", "http://h/p?a=&b=2&ab=3&x.y=4", "http://h/\t", "http://h/\U0001f600",
    "http://h%41/", "http://u;:&=+$,x@h/", "x://a$b/", "http://h/;/:@&=+$,!~*'()-_.", "http://h:٨٠/",
    "http://١٢٣.1.1.1/", f"http://h:{'0' * 5000}80/", f"http://h:{'9' * 5000}/", "http://h:02147483647/", None,
)  # fmt: skip


@pytest.mark.parametrize("mode", [EvalMode.LEGACY, EvalMode.ANSI], ids=lambda m: m.value)
def test_urls(judge_of: Callable[[pa.Table], Judge], mode: EvalMode) -> None:
    texts = [*URLS, *(f"https://h/{text or ''}" for text in VALUES["str"][1]), *VALUES["str"][1]]
    parts = ("PROTOCOL", "AUTHORITY", "USERINFO", "HOST", "PATH", "QUERY", "REF", "FILE", "host")
    url = left("url")
    trees: list[Expression] = [
        *(call(_F.PARSE_URL, url, part) for part in parts),
        *(call(_F.PARSE_URL, url, "QUERY", key) for key in ("x", "b", "a", "x.y", "")),
        call(_F.PARSE_URL, url, "HOST", "x"),
        *(call(_F.PARSE_URL, text, "HOST") for text in (URLS[0], "http://1.2.3.256/f", "p q", None)),
    ]
    judge_of(pa.table({"id": pa.array(range(len(texts)), pa.int32()), "left_url": texts})).check(trees, mode)


PATTERNS = (
    "%s", "%5s|", "%-5s|", "%.2s", "%-6.3s|", "%d", "%5d", "%-5d|", "%05d", "%+d", "% d", "%,d", "%,015d", "%+,d", "%x",
    "%X", "%08x", "%-9x|", "%1$s-%1$s", "a%%b%s", "é%sü", "%s%s", "%2$s %s %1$d %s",
)  # fmt: skip


def test_patterns(judge: Callable[..., Judge]) -> None:
    j = judge(*KINDS, "i16", "bool", "f32")
    eighths = call(_F.DIVIDE, left("i32").cast(pa.float64()), 8.0)
    numbers = (eighths, right("d9_2").cast(pa.float64()), left("i16").cast(pa.float32()), 0.125, -0.0, 1e-7, 2.675)
    trees: list[Expression] = [
        *(
            call(_F.FORMAT_STRING, pattern, left(kind), right(kind))
            for pattern in PATTERNS
            for kind in ("str", "num_str", "i8", "i16", "i32", "i64", "bool")
            if kind != "str" or "." not in pattern
        ),
        *(
            call(_F.FORMAT_STRING, pattern, x)
            for x in (*numbers, math.nan, math.inf, -math.inf)
            for pattern in ("%f", "%.0f", "%.1f", "%.2f", "%10.3f|", "%-10.2f|", "%010.2f", "%+,.4f", "% .15f")
        ),
        call(_F.FORMAT_STRING, "no directive"),
        call(_F.FORMAT_STRING, "%s %d", "a", 1),
        call(_F.FORMAT_STRING, "%s %.1f %d", lit(None, pa.string()), lit(None, pa.float64()), lit(None, pa.int32())),
    ]
    trees = [tree for tree in trees if is_supported(j.resolve(tree, EvalMode.ANSI))]
    assert len(trees) > 100
    j.check(trees, EvalMode.ANSI)


@pytest.mark.parametrize(
    "pattern",
    [
        "%",
        "%5",
        "%-s",
        "%n",
        "%t",
        "%S",
        "%<s",
        "%3$s",
        "%0$s",
        "%-05d",
        "%+ d",
        "%.2d",
        "%#x",
        "%(d",
        "%e",
        "%c",
        "%00d",
        "%5%",
        "%,s",
        "%+x",
        "%.16f",
        "%s %s",
    ],
)
def test_patterns_that_are_left_to_spark(pattern: str) -> None:
    schema = pa.schema({"i": pa.int32()})
    assert not is_supported(resolve_value(call(_F.FORMAT_STRING, pattern, left("i")), schema, schema))


@pytest.mark.parametrize("kind", [pa.float64(), pa.decimal128(9, 2), pa.date32(), pa.binary()], ids=str)
def test_values_that_are_not_written_by_a_pattern(kind: pa.DataType) -> None:
    schema = pa.schema({"x": kind})
    assert not is_supported(resolve_value(call(_F.FORMAT_STRING, "%s", left("x")), schema, schema))


DIGITS = (
    "255", "-255", " 12 ", "-", "", "0", "-0", "+5", "7f", "7FG", "zz", "1é1", "9223372036854775807",
    "-9223372036854775808", "18446744073709551615", "-18446744073709551615", "8000000000000000", "FFFFFFFFFFFFFFFF",
    "-8000000000000001", "1" * 64, "1" * 65, "9" * 30, "-" + "z" * 40,
)  # fmt: skip
BASES = [(10, 16), (16, 10), (16, -10), (36, -36), (2, 8), (10, 2), (10, -16), (1, 10), (10, 37), (10, 0), (3, -3)]


@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
def test_digits_of_other_bases(judge: Callable[..., Judge], mode: EvalMode) -> None:
    """Up to the first character that is none; in ANSI mode, of numbers that have 64 bits in any base."""
    short = call(_F.SUBSTRING, left("num_str"), 1, 11)
    digits = [text for text in DIGITS if len(text) < 12 or mode is EvalMode.LEGACY]
    trees: list[Expression] = [call(_F.CONV, text, *bases) for text in (short, *digits) for bases in BASES]
    trees += [call(_F.CONV, short, left("i8"), right("i8")), call(_F.CONV, None, 10, 2), call(_F.CONV, short, None, 2)]
    judge(*KINDS).check(trees, mode)


def test_a_number_of_more_than_64_bits_is_an_error_in_ansi_mode() -> None:
    batch = pa.record_batch({"s": ["18446744073709551616"]})
    tree = resolve_value(call(_F.CONV, left("s"), 10, 16, mode=EvalMode.ANSI), batch.schema, batch.schema)
    with pytest.raises(ExpressionEvaluationError, match="larger than 64 bits"):
        evaluate_column(tree, batch, batch, 1)


@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
def test_parts(judge: Callable[..., Judge], mode: EvalMode) -> None:
    text, other, blob = left("str"), right("str"), left("bin")
    positions = (-2147483647, -3, -1, 0, 1, 2, 3, 50, 2147483000)
    trees: list[Expression] = [call(_F.OVERLAY, text, other, n) for n in positions]
    trees += [call(_F.OVERLAY, text, "日b", n, size) for n in positions for size in (-1, 0, 1, 600)]
    trees += [call(_F.OVERLAY, blob, right("bin"), n) for n in positions]
    trees += [call(_F.OVERLAY, blob, right("bin"), n, 1) for n in positions]
    trees += [call(_F.OVERLAY, text, other, right("i8"), left("i8"))]
    words = call(_F.CONCAT_WS, ",", text, "x", other, "", "ab")
    trees += [call(_F.FIND_IN_SET, x, words) for x in (other, "ab", "", "a,b", "x", "zz", None)]
    trees += [call(_F.FIND_IN_SET, other, text)]
    trees += [call(_F.SOUNDEX, x) for x in (text, words, "Robert", "Tymczak", "Honeyman", "hh", "_x", "", "é")]
    trees += [call(_F.LEVENSHTEIN, text, x) for x in (other, words, "ab", "", None)]
    trees += [call(_F.LEVENSHTEIN, words, other, n) for n in (-1, 0, 2, 50)]
    patterns = ("a", "b", "^a", "b$", "日.", "[a-c]+", "(a)(b?)", "", "a|b", "x$", "\\d", ".$", "$")
    texts = (text, call(_F.CONCAT, "é日", text, other))
    trees += [call(_F.REGEXP_INSTR, x, p) for x in texts for p in patterns]
    trees += [call(_F.REGEXP_INSTR, text, "a", n) for n in (0, 1, 5, -1, right("i32"))]
    trees += [call(_F.REGEXP_INSTR, text, None), call(_F.REGEXP_INSTR, text, "a", None)]
    judge(*KINDS).check(trees, mode)


@pytest.mark.parametrize(
    ("function", "text"),
    [(_F.UNBASE64, "YQ"), (_F.UNBASE64, "Y W I="), (_F.UNBASE64, "YQ=\r\n="),
     (_F.URL_DECODE, "%zz"), (_F.URL_DECODE, "%ff"), (_F.MASK, "é"),
     (_F.LUHN_CHECK, "\u0661")],
    ids=lambda value: value.value if isinstance(value, Function) else repr(value),
)  # fmt: skip
def test_values_that_are_left_to_spark(function: Function, text: str) -> None:
    batch = pa.record_batch({"s": [text]})
    with pytest.raises(UnsupportedValueError, match="left to Spark"):
        evaluate_column(resolve_value(call(function, left("s")), batch.schema, batch.schema), batch, batch, 1)


def test_bytes_that_are_no_utf_8_are_an_error() -> None:
    batch = pa.record_batch({"b": [b"a", None, b"\xff"]})
    tree = resolve_value(call(_F.DECODE, left("b"), "UTF-8"), batch.schema, batch.schema)
    assert evaluate_column(tree, batch.slice(0, 2), batch, 2).to_pylist() == ["a", None]
    with pytest.raises(ExpressionEvaluationError, match="no UTF-8"):
        evaluate_column(tree, batch, batch, 3)


@pytest.mark.parametrize(
    "tree",
    [
        call(_F.ENCODE, left("s"), "UTF-16"),
        call(_F.DECODE, left("b"), left("s")),
        call(_F.MASK, left("s"), left("s")),
        call(_F.MASK, left("s"), "é"),
        call(_F.REGEXP_INSTR, left("s"), left("s")),
        call(_F.FORMAT_NUMBER, left("d"), 2),
        call(_F.LEVENSHTEIN, left("s"), left("s"), left("i")),
        call(_F.LEVENSHTEIN, left("s"), left("s"), None),
    ],
    ids=str,
)
def test_calls_that_are_left_to_spark(tree: Expression) -> None:
    schema = pa.schema([("s", pa.string()), ("b", pa.binary()), ("d", pa.float64()), ("i", pa.int32())])
    assert not is_supported(resolve_value(tree, schema, schema))
