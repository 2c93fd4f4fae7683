"""Writes Catalyst expressions as whoever wrote the query would.

Spark's ``sql()`` writes what its optimizer made: ``CAST(sales.k AS BIGINT)`` for a conversion that nobody asked for,
``lambdafunction((namedlambdavariable() + 1), namedlambdavariable())`` for ``x -> x + 1``, ``_w0`` for the argument
``weight * 2`` of a window function, ``static_invoke(UrlCodec.decode(s, false))`` for ``url_decode(s)``. Here these are
as they were written. Nothing is asked of the JVM.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Sequence
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import types as t

from gpujoin.model.expressions import EvalMode
from gpujoin.model.sqltext import AND, ATOM, COMPARISON, NOT, OR, PRODUCT, SIGN, SUM, bare_name, shortened, show_value
from gpujoin.spark.catalyst.nodes import Node, NotTranslatableError, python_value

OF_OPTIMIZER = re.compile(r"_(grouping\w+|gen_alias_\d+|we?\d+|extract_\w+|common_expr_\d+)(#\d+)*")
"""Names that Spark's optimizer gives to what it computes apart."""
_OPERATORS = {
    "Or": ("or", OR), "And": ("and", AND),
    "EqualTo": ("=", COMPARISON), "EqualNullSafe": ("<=>", COMPARISON), "LessThan": ("<", COMPARISON),
    "LessThanOrEqual": ("<=", COMPARISON), "GreaterThan": (">", COMPARISON), "GreaterThanOrEqual": (">=", COMPARISON),
    "Like": ("like", COMPARISON), "RLike": ("rlike", COMPARISON),
    "Add": ("+", SUM), "Subtract": ("-", SUM),
    "Multiply": ("*", PRODUCT), "Divide": ("/", PRODUCT), "IntegralDivide": ("div", PRODUCT),
    "Remainder": ("%", PRODUCT), "MultiplyYMInterval": ("*", PRODUCT), "MultiplyDTInterval": ("*", PRODUCT),
    "DivideYMInterval": ("/", PRODUCT), "DivideDTInterval": ("/", PRODUCT),
    "SubtractTimestamps": ("-", SUM), "SubtractDates": ("-", SUM), "TimestampAddInterval": ("+", SUM),
    "DateAddInterval": ("+", SUM), "DateAddYMInterval": ("+", SUM), "TimestampAddYMInterval": ("+", SUM),
}  # fmt: skip
_NEGATED = {"EqualTo": "!=", "Like": "not like", "RLike": "not rlike"}
_TRANSPARENT = frozenset({
    "Alias", "KnownFloatingPointNormalized", "KnownNotContainsNull", "KnownNotNull", "KnownNullable",
    "MapSort", "NormalizeNaNAndZero", "OuterReference", "PromotePrecision", "UpCast", "WindowExpression",
})  # fmt: skip
"""Expressions that their author did not write; what they are of is shown."""
_SUBQUERIES = {
    "ScalarSubquery": "a scalar subquery", "Exists": "an exists subquery", "ListQuery": "a subquery",
    "InSubquery": "an in subquery", "LateralSubquery": "a lateral subquery", "DynamicPruningSubquery": "a subquery",
}  # fmt: skip
_METHODS = {
    ("UrlCodec", "encode"): "url_encode", ("UrlCodec", "decode"): "url_decode", ("Base64", "encode"): "base64",
    ("StringDecode", "decode"): "decode", ("Encode", "encode"): "encode",
    ("ExpressionImplUtils", "isLuhnNumber"): "luhn_check", ("ByteArrayMethods", "startsWith"): "startswith",
    ("ByteArrayMethods", "endsWith"): "endswith", ("StructsToJsonEvaluator", "evaluate"): "to_json",
    ("JsonToStructsEvaluator", "evaluate"): "from_json", ("StructsToCsvEvaluator", "evaluate"): "to_csv",
    ("CsvToStructsEvaluator", "evaluate"): "from_csv",
}  # fmt: skip
"""Functions that Spark writes as calls of Java: by class and method, where the name of neither is the function's."""


def words(node: Node) -> str:
    """Write an expression."""
    return _at(node, OR)


def kind_of_subquery(node: Node) -> str:
    """Name a subquery in the words of SQL."""
    return _SUBQUERIES.get(node.name, "a subquery")


def _at(node: Node, binding: int) -> str:
    text, own = _written(node)
    return f"({text})" if own < binding else text


def _written(node: Node) -> tuple[str, int]:
    """Write a node; also how tightly its parts are bound."""
    if node.name in ("AttributeReference", "NamedLambdaVariable"):
        return _named(node)
    if node.name == "Literal":
        return _constant(node), ATOM
    if "plan" in node.fields:
        return kind_of_subquery(node), ATOM
    if node.children and (node.name in _TRANSPARENT or (node.name == "Cast" and not node.fields.get("@explicit"))):
        return _written(node.children[0])
    if node.name in _OPERATORS and len(node.children) >= 2:
        operator, binding = _OPERATORS[node.name]
        first, second = (_at(node.children[n], binding + (n or binding == COMPARISON)) for n in (0, 1))
        return f"{first} {operator} {second}", binding
    if node.name in _FORMS and node.children:
        return _FORMS[node.name](node)
    return _call(node), ATOM


def _named(node: Node) -> tuple[str, int]:
    """Write a column; one that the optimizer made, by what computes it."""
    source = getattr(node, "source", None)
    if source is not None:  # the node stands for an expression that Spark computes
        return _written(source)
    name = bare_name(str(node.fields["name"]))
    made = node.reading.aliases.get(node.expr_id) if OF_OPTIMIZER.fullmatch(name) else None
    return (name, ATOM) if made is None else _written(made)


def _constant(node: Node) -> str:
    try:
        if isinstance(node.data_type, t.YearMonthIntervalType):
            return f"interval {node.fields['@value']} months"
        if isinstance(node.data_type, t.DayTimeIntervalType):
            return show_value(dt.timedelta(microseconds=int(node.fields["@value"])))
        return show_value(python_value(node.data_type, node.fields["@value"]))
    except (NotTranslatableError, PySparkException, OverflowError, KeyError, TypeError, ValueError):
        return shortened(str(node.fields.get("value")))  # of a type that Python has no values of


def _call(node: Node) -> str:
    if node.name in ("StaticInvoke", "Invoke"):
        return _invoked(node)
    if node.name in ("PythonUDF", "PythonUDAF"):
        name = str(node.fields["name"])
    else:
        name = str(node.fields.get("@called") or node.name.lower())
    return f"{name}({', '.join(map(words, node.children))})"


def _invoked(node: Node) -> str:
    """Write a call of a method of Java as the function that Spark made it of, without what the query does not pass."""
    owner = re.split(r"[.$]", str(node.fields.get("@called", "")).rstrip("$"))[-1]
    method = str(node.fields.get("functionName"))
    name = _METHODS.get((owner, method))
    if name is None:
        name = owner.removesuffix("Evaluator") if method == "evaluate" else method
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    operands = list(node.children)
    if node.name == "Invoke" and operands and operands[0].name == "Literal":
        del operands[0]
    while len(operands) > 1 and operands[-1].name == "Literal" and operands[-1].type_name.lower() == "boolean":
        del operands[-1]
    return f"{name}({', '.join(map(words, operands))})"


def _cast(node: Node) -> tuple[str, int]:
    name = "try_cast" if node.eval_mode is EvalMode.TRY else "cast"
    return f"{name}({words(node.children[0])} as {node.type_name.lower()})", ATOM


def _not(node: Node) -> tuple[str, int]:
    below = node.children[0]
    operands = list(below.children)
    if below.name in _NEGATED and len(operands) >= 2:
        first, second = (_at(operand, SUM) for operand in operands[:2])
        return f"{first} {_NEGATED[below.name]} {second}", COMPARISON
    if below.name in ("In", "InSet"):
        return f"{_at(operands[0], SUM)} not in ({_options(below)})", COMPARISON
    return f"not {_at(below, NOT)}", NOT


def _options(node: Node) -> str:
    if "@values" not in node.fields:
        return ", ".join(map(words, node.children[1:]))
    dtype = node.children[0].data_type

    def option(value: Any) -> str:
        try:
            return show_value(python_value(dtype, value))
        except (NotTranslatableError, OverflowError, TypeError, ValueError):
            return str(value)

    return ", ".join(map(option, node.fields["@values"]))


def _case(node: Node) -> tuple[str, int]:
    operands = list(map(words, node.children))
    otherwise = f" else {operands.pop()}" if len(operands) % 2 else ""
    branches = " ".join(f"when {c} then {v}" for c, v in zip(operands[0::2], operands[1::2], strict=True))
    return f"case {branches}{otherwise} end", ATOM


def _lambda(node: Node) -> tuple[str, int]:
    body, *variables = map(words, node.children)
    named = variables[0] if len(variables) == 1 else f"({', '.join(variables)})"
    return f"{named} -> {body}", OR


def _field(node: Node) -> tuple[str, int]:
    struct = node.children[0].data_type
    if isinstance(struct, t.ArrayType):
        struct = struct.elementType
    assert isinstance(struct, t.StructType)
    return f"{_at(node.children[0], ATOM)}.{struct.names[int(node.fields['ordinal'])]}", ATOM


def _aggregate(node: Node) -> tuple[str, int]:
    function, *condition = node.children
    text = words(function)
    if node.fields.get("isDistinct"):
        text = text.replace("(", "(distinct ", 1)
    return f"{text}{f' filter (where {words(condition[0])})' if condition else ''}", ATOM


def _count(node: Node) -> tuple[str, int]:
    rows = [child.name == "Literal" and child.fields["@value"] is not None for child in node.children]
    return ("count(*)" if all(rows) else _call(node)), ATOM


def _postfix(text: str) -> Callable[[Node], tuple[str, int]]:
    return lambda node: (f"{_at(node.children[0], SUM)} {text}", COMPARISON)


_FORMS: dict[str, Callable[[Node], tuple[str, int]]] = {
    "Cast": _cast,
    "Not": _not,
    "IsNull": _postfix("is null"),
    "IsNotNull": _postfix("is not null"),
    "In": lambda node: (f"{_at(node.children[0], SUM)} in ({_options(node)})", COMPARISON),
    "InSet": lambda node: (f"{_at(node.children[0], SUM)} in ({_options(node)})", COMPARISON),
    "CaseWhen": _case,
    "LambdaFunction": _lambda,
    "UnaryMinus": lambda node: (f"-{_at(node.children[0], SIGN)}", SIGN),
    "GetStructField": _field,
    "GetArrayStructFields": _field,
    "GetArrayItem": lambda node: (f"{_at(node.children[0], ATOM)}[{words(node.children[1])}]", ATOM),
    "GetMapValue": lambda node: (f"{_at(node.children[0], ATOM)}[{words(node.children[1])}]", ATOM),
    "AggregateExpression": _aggregate,
    "Count": _count,
    "SortOrder": lambda node: (words(node.children[0]), ATOM),
}
"""Forms of expressions that are no calls, by class."""


def listed(nodes: Sequence[Node], most: int) -> str:
    """Write the first of some expressions, each once."""
    texts = list(dict.fromkeys(map(words, nodes)))
    return ", ".join(texts[:most]) + (", …" if len(texts) > most else "")
