"""Ways to break a CUDA source, one edit at a time.

Edits are made by regular expressions on code whose comments, preprocessor lines and ``static_assert`` are left alone.
So a mutant may fail to compile; it then counts for nothing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """One edit of a source.

    Attributes
    ----------
    file : str
        Name of the source in the kernel folder.
    function : str
        Kernel or helper that holds the line.
    operator : str
        Name of the kind of edit.
    line : int
        From 1.
    before, after : str
        The line, without the space around it.
    text : str
        The whole source with the edit.
    """

    file: str
    function: str
    operator: str
    line: int
    before: str
    after: str
    text: str

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        """What tells it from other mutants wherever its line moves to."""
        return (self.file, self.function, self.operator, self.before, self.after)


Edit = Callable[[re.Match[str]], str | None]


def _swap(**pairs: str) -> Edit:
    return lambda match: pairs.get(match[0])


_COMPARISONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
_PLAIN = {
    "atomicAdd": "mutated_add", "atomicSub": "mutated_sub", "atomicOr": "mutated_or", "atomicAnd": "mutated_and",
    "atomicMin": "mutated_min", "atomicMax": "mutated_max", "atomicExch": "mutated_exchange",
    "atomicCAS": "mutated_compare_exchange",
}  # fmt: skip

PRELUDE = "\n".join(
    [
        *(
            f"template <class T, class V> static inline __device__ T mutated_{name}(T* p, V v) "
            f"{{ const T old = *p; *p = {fresh}; return old; }}"
            for name, fresh in (
                ("add", "(T)(old + v)"),
                ("sub", "(T)(old - v)"),
                ("or", "(T)(old | v)"),
                ("and", "(T)(old & v)"),
                ("min", "(T)v < old ? (T)v : old"),
                ("max", "(T)v > old ? (T)v : old"),
                ("exchange", "(T)v"),
            )
        ),
        (
            "template <class T, class U, class V> static inline __device__ T mutated_compare_exchange(T* p, U u, V v) "
            "{ const T old = *p; if (old == (T)u) *p = (T)v; return old; }"
        ),
        "",
    ]
)
"""What atomic operations become: the same without being atomic."""

_OPERATORS: dict[str, tuple[str, Edit]] = {
    "barrier removed": (r"\b__syncthreads\s*\(\s*\)", lambda _: "(void)0"),
    "warp barrier removed": (r"\b__syncwarp\s*\([^()]*\)", lambda _: "(void)0"),
    "fence removed": (r"\b__threadfence(?:_block)?\s*\(\s*\)", lambda _: "(void)0"),
    "atomic made plain": (r"\batomic[A-Z]\w*(?=\s*\()", lambda match: _PLAIN.get(match[0])),
    "volatile dropped": (r"\bvolatile\s+", lambda _: ""),
    "mask bit dropped": (r"\bFULL_WARP\b|\b0xffffffffu\b", lambda _: "0x7fffffffu"),
    "bound shifted": (r"(?<![<>=!\-])(<=|>=|<|>)(?![<>=])", lambda match: _COMPARISONS[match[0]]),
    "comparison flipped": (r"==|!=", lambda match: _COMPARISONS[match[0]]),
    "off by one": (r"(?<=[\w)\]] )([+-]) 1(?![\w.])u?", lambda match: f"{match[1]} 0"),
    "step by one more": (r"\+= (?=[A-Za-z_])", lambda _: "+= 1 + "),
    "condition always true": (r"\bif \((?=.*\)$|.*\) \{$)", lambda _: "if (true || "),
    "condition never true": (r"\bif \((?=.*\)$|.*\) \{$)", lambda _: "if (false && "),
    "logic swapped": (r"&&|\|\|", _swap(**{"&&": "||", "||": "&&"})),
    "sign swapped": (r"(?<=[\w)\]]) [+-] (?=[\w(])", _swap(**{" + ": " - ", " - ": " + "})),
    "number changed": (r"(?<== )0(?=;)", lambda _: "1"),
    "sum overwritten": (r"\+=", lambda _: "="),
    "negation dropped": (r"(?<=[(&| ])!(?=[\w(])", lambda _: ""),
    "shift changed": (r"(?<=[\w)\]]) >> (?=[\w(])", lambda _: " >> 1 + "),
    "index shifted": (r"\[(?=[^\]\[]+\] =[^=])", lambda _: "[1 + "),
    "case removed": (r"\bcase \w+:", lambda _: "case 77:"),
    "statement removed": (
        r"^\s*(?!return|const|continue|break)[\w*&>.\[\]()-]+(?:\[.*\])? [|+&]?= [^;{]*;$",
        lambda _: ";",
    ),
}

OPERATORS = tuple(_OPERATORS)
"""Names of the edits."""

_ALWAYS = ("barrier removed", "warp barrier removed", "fence removed", "atomic made plain")


def mutants(file: str, text: str) -> Iterator[Mutant]:
    """Every mutant of a source, in the order of its lines."""
    lines = text.split("\n")
    in_comment = False
    functions = _functions(lines)
    for number, line in enumerate(lines):
        if in_comment or line.lstrip().startswith(("//", "#", "static_assert", "/*")):
            in_comment = "*/" not in line and (in_comment or line.lstrip().startswith("/*"))
            continue
        if not functions[number]:
            continue
        code = line.split("//", maxsplit=1)[0].rstrip()
        for operator, (pattern, edit) in _OPERATORS.items():
            for match in re.finditer(pattern, code):
                fresh = edit(match)
                if fresh is None:
                    continue
                edited = code[: match.start()] + fresh + code[match.end() :]
                if operator.startswith("condition"):
                    edited = _close_condition(code, match.end(), edited, len(fresh) - (match.end() - match.start()))
                if edited == code or _harmless(operator, code, match):
                    continue
                mutated = "\n".join([*lines[:number], edited, *lines[number + 1 :]])
                yield Mutant(file, functions[number], operator, number + 1, code.strip(), edited.strip(), mutated)


def _close_condition(code: str, start: int, edited: str, longer: int) -> str:
    """Put what followed ``if (`` in parentheses of its own."""
    depth = 1
    for position in range(start, len(code)):
        depth += {"(": 1, ")": -1}.get(code[position], 0)
        if depth == 0:
            opened, closed = start + longer, position + longer
            return f"{edited[:opened]}({edited[opened:closed]}){edited[closed:]}"
    return code


def _harmless(operator: str, code: str, match: re.Match[str]) -> bool:
    """Template brackets, arrows and includes, which look like comparisons."""
    if operator != "bound shifted":
        return False
    return bool(re.search(r"\b(template|reinterpret_cast|static_cast)\s*<", code)) or code[match.start() - 1] == "-"


def _functions(lines: list[str]) -> list[str]:
    """The function that each line is in the body of; empty outside of functions."""
    inside = [""] * len(lines)
    depth, function, body = 0, "", -1
    head = ""
    for number, line in enumerate(lines):
        code = line.split("//", maxsplit=1)[0]
        if body >= 0:
            inside[number] = function
        if code.lstrip().startswith("#"):
            continue
        for position, character in enumerate(code):
            if character == "{":
                called = re.search(r"\b(\w+)\s*\((?:[^;{}]*)\)\s*(?:const\s*)?$", head + code[:position], re.DOTALL)
                if body < 0 and called and called[1] != "alignas":
                    function, body = _name(head + code[:position]) or called[1], depth
                    inside[number] = function
                depth += 1
            elif character == "}":
                depth -= 1
                if depth == body:
                    body = -1
        ends = code.rstrip().endswith((";", "}")) or (code.rstrip().endswith("{") and body < 0)
        head = "" if ends or body >= 0 else head + code + "\n"
    return inside


def _name(head: str) -> str | None:
    match = re.search(r"\b(?!__)(\w+)\s*\((?![^()]*\)\s*\w+\s*\()", head)
    return match[1] if match else None


def sample(match: list[Mutant], most: int) -> list[Mutant]:
    """Some mutants of each function: all of synchronisation, then other kinds in turn until there are ``most``.

    Of a kind they are chosen by a hash of the edit, so an edit elsewhere in the file leaves the choice alone.
    """
    chosen = []
    for function in dict.fromkeys(mutant.function for mutant in match):
        own = [mutant for mutant in match if mutant.function == function]
        kinds = [[m for m in own if m.operator == operator] for operator in OPERATORS]
        queues = [sorted(kind, key=_hash) for kind in kinds if kind and kind[0].operator not in _ALWAYS]
        picked = [mutant for mutant in own if mutant.operator in _ALWAYS]
        while len(picked) < most and any(queues):
            for queue in queues:
                if queue and len(picked) < most:
                    picked.append(queue.pop(0))
        chosen += sorted(picked, key=lambda mutant: mutant.line)
    return chosen


def _hash(mutant: Mutant) -> str:
    return hashlib.sha256(repr(mutant.key).encode()).hexdigest()
