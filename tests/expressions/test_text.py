"""Functions of text and bytes, against Spark."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from gpujoin.backends.cpu.expressions.evaluate import can_evaluate, evaluate
from gpujoin.errors import ExpressionEvaluationError
from gpujoin.model.expressions import EvalMode, Expression, Function, call, left, lit, right
from gpujoin.plan.resolve import resolve
from tests.expressions.oracle import Judge

KINDS = ["str", "bin", "i32", "date", "num_str"]


@pytest.mark.spark
def test_functions(judge: Callable[..., Judge]) -> None:
    text, blob = left("str"), left("bin")
    trees: list[Expression] = [
        call(f, x, y)
        for f in (Function.STARTS_WITH, Function.ENDS_WITH, Function.CONTAINS)
        for x, y in [(text, right("str")), (text, lit("a")), (text, lit("")), (text, lit("語")), (blob, right("bin")),
                     (blob, lit(b"ab")), (lit("abc"), right("str")), (text, lit(None))]
    ]  # fmt: skip
    trees += [call(f, x) for f in (Function.LENGTH,) for x in (text, blob, left("i32"), lit("日本"))]
    trees += [call(Function.TRIM, text), call(Function.TRIM, left("num_str"))]
    trees += [call(Function.CONCAT, text, right("str")), call(Function.CONCAT, blob, right("bin"))]
    trees += [call(Function.CONCAT, text, "-", left("i32"), right("date")), call(Function.CONCAT, "a", "b")]
    judge(*KINDS).check(trees)


@pytest.mark.spark
@pytest.mark.parametrize("mode", [EvalMode.LEGACY, EvalMode.ANSI], ids=lambda m: m.value)
def test_substring(judge: Callable[..., Judge], mode: EvalMode) -> None:
    trees: list[Expression] = []
    for column in (left("str"), left("bin")):
        trees += [call(Function.SUBSTRING, column, p) for p in (-2, 0, 2)]
        trees += [call(Function.SUBSTRING, column, p, n) for p in (-5, -3, -1, 0, 1, 2, 9) for n in (-1, 0, 1, 3)]
        trees.append(call(Function.SUBSTRING, column, 1, 2147483647))
        trees.append(call(Function.SUBSTRING, column, -2, 2147483647))
        trees.append(call(Function.SUBSTRING, column, left("i32"), right("i32")))
        trees.append(call(Function.SUBSTRING, column, 2, right("i32")))
        trees.append(call(Function.SUBSTRING, column, None, 2))
    judge(*KINDS).check(trees, mode)


LIKES = [
    "", "%", "_", "a", "a%", "%a", "%b%", "a_c", "%a%c%", "_%", "__", "\\%", "\\_", "%\\%%", "日_", "_😀%", "😀x",
    "(.*)[a]", "a\\\\b", "%\n%", "a^$b",
]  # fmt: skip


@pytest.mark.spark
def test_like(judge: Callable[..., Judge]) -> None:
    trees: list[Expression] = [left("str").like(p) for p in LIKES]
    trees += [left("str").like("a!%", "!"), left("str").like("%!_%", "!"), left("str").like("!!%", "!")]
    trees += [left("str").like(right("str")), lit("a%").like(right("str"), "%")]  # type: ignore[arg-type]
    judge(*KINDS).check(trees)


REGEXES = [
    "", "a", "^a", "c$", "^a.c$", "^$", "[a-c]+", "[^a-c]", "a|b", "(ab)+c", "(?:ab){1,2}", r"\d", r"\D", r"\w+$",
    r"\s", r"\S", ".", "^.$", "^..$", "日.", "😀", r"a\.b", r"[\d_%]", "a{2,}?", "^(a|b)*$", r"\n", r"[.]",
    "b$|^a", "a??b", r"[\s]b", "x{0}",
]  # fmt: skip


@pytest.mark.spark
def test_rlike(judge: Callable[..., Judge]) -> None:
    j = judge(*KINDS)
    trees: list[Expression] = [left("str").rlike(p) for p in REGEXES]
    j.check(trees)


@pytest.mark.parametrize(
    "pattern",
    ["(?i)a", "a++", r"\bword", r"(a)\1", "(?=a)", "[a&&b]", "[[a]b]", r"\p{L}", r"\Qa\E", "a{1001}", "\\r$", "a$b",
     "^[^a]*$", r"\x41", "(a", "a)", "*a", r"[\W]", "[z-a]", "a**", r"\u0041", "^*", r"(\r)$", r"\s$"],
)  # fmt: skip
def test_rlike_patterns_that_are_left_to_spark(pattern: str) -> None:
    schema = pa.schema([("s", pa.string())])
    assert not can_evaluate(resolve(left("s").rlike(pattern), schema, schema))


@pytest.mark.spark
@pytest.mark.parametrize(
    "text", ["a\r\n", "\r\n", "a\n\n", "a\r", "\u2028", "a\u2028", "a\u0085", "\r", "a\x0b", "\x0b", "b\ra", "\u2029\n"]
)  # fmt: skip
def test_rlike_line_ends(judge: Callable[..., Judge], text: str) -> None:
    judge(*KINDS).check([lit(text).rlike(p) for p in ("a$", "^$", ".", "^.$", r"\s", "a.", "^a", r"\w$", "[ab]$")])


@pytest.mark.parametrize(("pattern", "why"), [("a\\", "ends with its escape"), ("\\a", "precedes 'a'")])
def test_like_with_a_misplaced_escape(pattern: str, why: str) -> None:
    batch = pa.record_batch({"s": ["a", None], "p": [pattern, pattern]})
    nulls = pa.record_batch({"s": pa.array([None, None], pa.string()), "p": [pattern, pattern]})
    for tree in (left("s").like(pattern), call(Function.LIKE, left("s"), left("p"))):
        resolved = resolve(tree, batch.schema, batch.schema)
        with pytest.raises(ExpressionEvaluationError, match=why):
            evaluate(resolved, batch, batch, 2)
        assert evaluate(resolved, nulls, nulls, 2).tolist() == [False, False]


def test_case_mapping_is_left_to_spark() -> None:
    schema = pa.schema([("s", pa.string())])
    for function in (Function.LOWER, Function.UPPER):
        assert not can_evaluate(resolve(call(function, left("s")) == "a", schema, schema))
