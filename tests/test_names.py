"""Variables, arguments and classes are named by nouns, functions by verbs: a participle says nothing of a thing."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_imports import modules

PARTICIPLES = frozenset(
    {
        "asked", "chosen", "done", "found", "given", "held", "kept", "known", "lost", "made", "needed", "read", "seen",
        "sent", "shown", "taken", "told", "used", "wanted",
    }
)  # fmt: skip
VERBS = frozenset({"read"})
"""Participles that are verbs, too, and so names of functions."""
PUBLIC = frozenset({("gpujoin.spark.worker.record", "sent")})
"""Names that users read metrics by."""


def names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Lines and names of what a module binds."""
    for node in ast.walk(tree):
        match node:
            case (
                ast.Name(id=name, ctx=ast.Store())
                | ast.Attribute(attr=name, ctx=ast.Store())
                | ast.arg(arg=name)
                | ast.ClassDef(name=name)
            ):
                yield node.lineno, name
            case ast.FunctionDef(name=name) if name.strip("_") not in VERBS:
                yield node.lineno, name


def participles(source: str) -> list[tuple[int, str]]:
    """Lines and names of bare participles in a module."""
    return [(line, name) for line, name in names(ast.parse(source)) if name.strip("_").lower() in PARTICIPLES]


@pytest.mark.parametrize("module", modules())
def test_no_participle_names_a_thing(module: str) -> None:
    path: Path = modules()[module]
    assert [
        f"{path}:{line} {name}" for line, name in participles(path.read_text()) if (module, name) not in PUBLIC
    ] == []


def test_participles_are_found_wherever_something_is_bound() -> None:
    source = (
        "def f(kept, *, given=1):\n    for taken in kept:\n        made = taken\ndef read(): ...\nclass Known: ...\n"
        "f.lost = 1\n"
    )
    assert sorted(participles(source)) == [
        (1, "given"), (1, "kept"), (2, "taken"), (3, "made"), (5, "Known"), (6, "lost")
    ]  # fmt: skip
