"""Ways to break a Python source, one edit at a time.

Only bodies of functions are edited: signatures, docstrings, annotations, and texts of errors say nothing that a test
should notice.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Mutant:
    """One edit of a source.

    Attributes
    ----------
    file : str
        Path in the package.
    function : str
        Name of the function, with those of the classes around it.
    first_lines : tuple of int
        First lines of the functions that hold the edit, decorators included, the innermost one first.
    operator : str
        Kind of the edit.
    line : int
        From 1.
    before, after : str
        The line, without the space around it.
    text : str
        The whole source with the edit.
    """

    file: str
    function: str
    first_lines: tuple[int, ...]
    operator: str
    line: int
    before: str
    after: str
    text: str

    def rank(self, seed: int) -> str:
        """A number drawn for the edit, the same wherever its line moves to."""
        key = (seed, self.file, self.function, self.operator, self.before, self.after)
        return hashlib.sha256(repr(key).encode()).hexdigest()

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function}: {self.operator}: {self.before} -> {self.after}"


_SIGNS: dict[type[ast.cmpop | ast.operator | ast.boolop], tuple[str, str]] = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"), ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "+"),
    ast.FloorDiv: ("//", "*"), ast.Div: ("/", "*"), ast.Mod: ("%", "+"), ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"), ast.BitAnd: ("&", "|"), ast.And: ("and", "or"), ast.Or: ("or", "and"),
}  # fmt: skip
"""What stands for an operator, and what is put in its place; that between types, ``|``, stays."""
_UNTESTED_FLAGS = {"strict"}
"""Keywords that state what holds anyway."""
_Place = tuple[int, int, int, int]
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def mutants(file: str, source: str) -> Iterator[Mutant]:
    """Every mutant of a source."""
    lines = source.encode().split(b"\n")
    for functions, names, node in _nodes(ast.parse(source)):
        for operator, place, replace in _edits(node):
            first, start, last, end = place
            old = b"\n".join(lines[first - 1 : last])[start:]
            old = old[: len(old) - (len(lines[last - 1]) - end)]
            fresh = replace(old.decode()).encode()
            edited = [*lines[: first - 1], lines[first - 1][:start] + fresh + lines[last - 1][end:], *lines[last:]]
            text = b"\n".join(edited).decode()
            before, after = lines[first - 1].decode().strip(), edited[first - 1].decode().split("\n")[0].strip()
            yield Mutant(file, ".".join(names), functions, operator, first, before, after, text)


def _compiles(text: str) -> bool:
    try:
        compile(text, "mutant", "exec")
    except SyntaxError:
        return False
    return True


def _nodes(tree: ast.Module) -> Iterator[tuple[tuple[int, ...], tuple[str, ...], ast.AST]]:
    """Nodes within functions, with the functions' first lines and names."""

    def within(node: ast.AST, functions: tuple[int, ...], names: tuple[str, ...]) -> Iterator[Any]:
        if isinstance(node, _Function):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            inner, path = (first, *functions), (*names, node.name)
            for statement in node.body:
                yield from within(statement, inner, path)
            return
        if isinstance(node, ast.ClassDef):
            for statement in node.body:
                yield from within(statement, functions, (*names, node.name))
            return
        if isinstance(node, ast.Raise | ast.Assert | ast.Import | ast.ImportFrom) or _says_nothing(node):
            return
        if functions:
            yield functions, names, node
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from within(child, functions, names)

    for statement in tree.body:
        yield from within(statement, (), ())


def _says_nothing(node: ast.AST) -> bool:
    """Whether a node states what holds anyway, or writes to the log."""
    match node:
        case ast.keyword(arg=str() as name):
            return name in _UNTESTED_FLAGS
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name))):
            return name in ("log", "logger")
    return False


def _edits(node: ast.AST) -> Iterator[tuple[str, _Place, Callable[[str], str]]]:
    """Kinds of edits of a node, where they are, and what they put in place of the text there."""
    match node:
        case ast.Compare(left=first, ops=[operation, *_], comparators=[second, *_]):
            yield "comparison changed", _between(first, second), _other(operation)
        case ast.BoolOp(op=operation, values=[first, second, *_]):
            yield "logic swapped", _between(first, second), _other(operation)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "negation dropped", _place(node), lambda _: f"({ast.unparse(operand)})"
        case ast.BinOp(left=first, op=operation, right=second) if type(operation) in _SIGNS:
            yield "operator changed", _between(first, second), _other(operation)
        case ast.Constant(value=bool() as flag):
            yield "flag changed", _place(node), lambda _: str(not flag)
        case ast.Constant(value=int() as number):
            yield "number changed", _place(node), lambda _: str(number + 1)
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            yield "condition negated", _place(test), lambda old: f"(not ({old}))"
        case ast.comprehension(ifs=[test, *_]):
            yield "filter dropped", _place(test), lambda _: "True"
        case ast.Return(value=ast.expr() as value) if not _is_nothing(value):
            yield "result dropped", _place(value), lambda _: "None"
        case ast.Expr(value=ast.Call()):
            yield "statement removed", _place(node), lambda _: "pass"
        case ast.AugAssign():
            yield "statement removed", _place(node), lambda _: "pass"
        case ast.Continue():
            yield "loop left", _place(node), lambda _: "break"
        case ast.Break():
            yield "loop continued", _place(node), lambda _: "continue"


def _is_nothing(value: ast.expr) -> bool:
    """Whether a result is false as None is."""
    return isinstance(value, ast.Constant) and not value.value


def _other(operation: ast.cmpop | ast.operator | ast.boolop) -> Callable[[str], str]:
    """What makes of the text between two operands the same with another operator; parentheses stay."""
    sign, other = _SIGNS[type(operation)]
    return lambda between: between.replace(sign, other, 1)


def _place(node: ast.stmt | ast.expr) -> _Place:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset


def _between(first: ast.expr, second: ast.expr) -> _Place:
    return *_place(first)[2:], *_place(second)[:2]


def sample(edits: list[Mutant], count: int, seed: int) -> list[Mutant]:
    """A mutant of each of so many lines, drawn by hashes: edits elsewhere in the sources change no other's chance."""
    of_lines: dict[tuple[str, int], Mutant] = {}
    for mutant in sorted(edits, key=lambda each: each.rank(seed)):
        if len(of_lines) == count:
            break
        if mutant.before != mutant.after and _compiles(mutant.text):
            of_lines.setdefault((mutant.file, mutant.line), mutant)
    return list(of_lines.values())
