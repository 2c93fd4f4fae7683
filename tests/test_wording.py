"""The texts of reasons and errors, as they are written in the source, are in the words of users."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpujoin
from tests.wording import words_of_the_inside

PACKAGE = Path(gpujoin.__file__).parent
TOLD = {
    "Reason", "NotTranslatableError", "BrokenError", "LeftToSparkError", "UnsupportedValueError",
    "UnsupportedPatternError", "InvalidTextError", "DeviceValueError", "ScanError",
}  # fmt: skip
"""What users are told by: calls of these classes."""
INSIDE_NAMES = {"class_name", "type", "dtype"}
"""Attributes whose text is Arrow's, Java's or ours."""


def texts(node: ast.AST) -> Iterator[tuple[str, set[str]]]:
    """Each text within an expression, with the attributes that it shows as they are."""
    for part in ast.walk(node):
        if isinstance(part, ast.JoinedStr):
            shown = {
                value.value.attr
                for value in part.values
                if isinstance(value, ast.FormattedValue) and isinstance(value.value, ast.Attribute)
            }
            constants = [value.value for value in part.values if isinstance(value, ast.Constant)]
            yield " … ".join(map(str, constants)), shown
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value, set()


@functools.cache
def templates() -> tuple[tuple[str, str, frozenset[str]], ...]:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in TOLD:
                place = f"{path.relative_to(PACKAGE)}:{node.lineno}"
                found += [(place, text, frozenset(shown)) for argument in node.args for text, shown in texts(argument)]
    return tuple(found)


def test_every_text_of_a_reason_is_in_the_words_of_users() -> None:
    assert len(templates()) > 200
    wrong = [f"{place}: {text!r}: {inside}" for place, text, _ in templates() if (inside := words_of_the_inside(text))]
    assert not wrong, "\n".join(wrong)


def test_no_reason_shows_a_type_or_a_class_as_it_is_inside() -> None:
    wrong = [
        f"{place}: {text!r} shows {sorted(shown & INSIDE_NAMES)}"
        for place, text, shown in templates()
        if shown & INSIDE_NAMES
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "text",
    [
        "collect_list(left.item#12) over rows",
        "partialaggregate column 'i0': type map<string, int32> is not aggregated",
        "project expression: array_union(ds, ds)",
        "stddev_samp(_w0) over a frame",
        "the aggregation by _groupingmapsort",
        "lambdafunction((namedlambdavariable() % 9))",
        "column 'a' is Decimal to Polars",
        "leave the query to Spark",
        "gpujoin.errors.ScanError: gone",
        "static_invoke(UrlCodec.decode(s, false)) follows a setting",
        "the sum of a1.sum",
        "ScalarSubquery outside of a filter",
        "keys of type interval are not covered",
    ],
)
def test_words_of_the_inside_are_known(text: str) -> None:
    assert words_of_the_inside(text)


@pytest.mark.parametrize(
    "text",
    [
        "the aggregation by k: collect_set(weight): whether 0.0 and -0.0 are one value follows from how Spark hashes",
        "the inner join on k < k: a shuffled join needs an equality between the sides",
        "workers: Spark starts them with python3, which lacks numpy, polars, pyarrow",
    ],
)
def test_words_of_users_are_let_through(text: str) -> None:
    assert not words_of_the_inside(text)
