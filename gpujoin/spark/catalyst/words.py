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
from gpujoin.model.sqltext import (
    ATOM,
    SIGN,
    Words,
    arrow,
    bare_name,
    case,
    cast_to,
    function_call,
    infix,
    one_of,
    postfix,
    shorten,
    show_value,
)
from gpujoin.spark.catalyst.nodes import Node, NotTranslatableError, python_value

OF_OPTIMIZER = re.compile(r"(_(grouping\w+|gen_alias_\d+|we?\d+|extract_\w+|common_expr_\d+)|pythonUDF\d+)(#\d+)*")
"""Names that Spark's optimizer gives to what it computes apart."""
_OPERATORS = {
    "Or": "or", "And": "and", "EqualTo": "=", "EqualNullSafe": "<=>", "LessThan": "<", "LessThanOrEqual": "<=",
    "GreaterThan": ">", "GreaterThanOrEqual": ">=", "Like": "like", "RLike": "rlike",
    "Add": "+", "Subtract": "-", "SubtractTimestamps": "-", "SubtractDates": "-", "TimestampAddInterval": "+",
    "DateAddInterval": "+", "DateAddYMInterval": "+", "TimestampAddYMInterval": "+",
    "Multiply": "*", "Divide": "/", "IntegralDivide": "div", "Remainder": "%", "MultiplyYMInterval": "*",
    "MultiplyDTInterval": "*", "DivideYMInterval": "/", "DivideDTInterval": "/",
}  # fmt: skip
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
    return _words(node).text


def kind_of_subquery(node: Node) -> str:
    """Name a subquery in the words of SQL."""
    return _SUBQUERIES.get(node.name, "a subquery")


def _words(node: Node) -> Words:
    if node.name in ("AttributeReference", "NamedLambdaVariable"):
        return _column(node)
    if node.name == "Literal":
        return Words(_constant(node))
    if "plan" in node.fields:
        return Words(kind_of_subquery(node))
    if node.children and (node.name in _TRANSPARENT or (node.name == "Cast" and not node.fields.get("@explicit"))):
        return _words(node.children[0])
    if node.name in _OPERATORS and len(node.children) >= 2:
        return infix(_OPERATORS[node.name], *map(_words, node.children[:2]))
    if node.name in _FORMS and node.children:
        return _FORMS[node.name](node)
    return _call(node)


def _column(node: Node) -> Words:
    """Write a column; a generated one by the expression that computes it."""
    source = getattr(node, "source", None)
    if source is not None:  # the node stands for an expression that Spark computes
        return _words(source)
    name = bare_name(str(node.fields["name"]))
    source_of_alias = node.reading.aliases.get(node.expr_id) if OF_OPTIMIZER.fullmatch(name) else None
    return Words(name) if source_of_alias is None else _words(source_of_alias)


def _constant(node: Node) -> str:
    try:
        if isinstance(node.data_type, t.YearMonthIntervalType):
            return f"interval {node.fields['@value']} months"
        if isinstance(node.data_type, t.DayTimeIntervalType):
            return show_value(dt.timedelta(microseconds=int(node.fields["@value"])))
        return show_value(python_value(node.data_type, node.fields["@value"]))
    except (NotTranslatableError, PySparkException, OverflowError, KeyError, TypeError, ValueError):
        return shorten(str(node.fields.get("value")))  # of a type that Python has no values of


def _call(node: Node) -> Words:
    if node.name in ("StaticInvoke", "Invoke"):
        return _write_invoke(node)
    name = node.fields["name"] if node.name in ("PythonUDF", "PythonUDAF") else node.fields.get("@called")
    return function_call(str(name or node.name.lower()), map(_words, node.children))


def _write_invoke(node: Node) -> Words:
    """Write a call of a Java method as the SQL function behind it, without arguments that Spark added."""
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
    return function_call(name, map(_words, operands))


def _cast(node: Node) -> Words:
    return cast_to(_words(node.children[0]), node.type_name.lower(), tries=node.eval_mode is EvalMode.TRY)


def _in(node: Node) -> Words:
    value = node.children[0]

    def option(constant: Any) -> str:
        try:
            return show_value(python_value(value.data_type, constant))
        except (NotTranslatableError, OverflowError, TypeError, ValueError):
            return str(constant)

    constants = node.fields.get("@values")
    return one_of(_words(value), map(words, node.children[1:]) if constants is None else map(option, constants))


def _case(node: Node) -> Words:
    operands = list(map(_words, node.children))
    otherwise = operands.pop() if len(operands) % 2 else None
    return case(zip(operands[0::2], operands[1::2], strict=True), otherwise)


def _lambda(node: Node) -> Words:
    body, *variables = map(_words, node.children)
    return arrow(variables, body)


def _field(node: Node) -> Words:
    struct = node.children[0].data_type
    if isinstance(struct, t.ArrayType):
        struct = struct.elementType
    assert isinstance(struct, t.StructType)
    return Words(f"{_words(node.children[0]).at(ATOM)}.{struct.names[int(node.fields['ordinal'])]}")


def _item(node: Node) -> Words:
    return Words(f"{_words(node.children[0]).at(ATOM)}[{words(node.children[1])}]")


def _aggregate(node: Node) -> Words:
    function, *condition = node.children
    text = words(function)
    if node.fields.get("isDistinct"):
        text = text.replace("(", "(distinct ", 1)
    return Words(f"{text}{f' filter (where {words(condition[0])})' if condition else ''}")


def _count(node: Node) -> Words:
    rows = [child.name == "Literal" and child.fields["@value"] is not None for child in node.children]
    return Words("count(*)") if all(rows) else _call(node)


_FORMS: dict[str, Callable[[Node], Words]] = {
    "Cast": _cast,
    "Not": lambda node: _words(node.children[0]).opposite,
    "IsNull": lambda node: postfix(_words(node.children[0]), "is null"),
    "IsNotNull": lambda node: postfix(_words(node.children[0]), "is not null"),
    "In": _in,
    "InSet": _in,
    "CaseWhen": _case,
    "LambdaFunction": _lambda,
    "UnaryMinus": lambda node: Words(f"-{_words(node.children[0]).at(SIGN)}", SIGN),
    "GetStructField": _field,
    "GetArrayStructFields": _field,
    "GetArrayItem": _item,
    "GetMapValue": _item,
    "AggregateExpression": _aggregate,
    "Count": _count,
    "SortOrder": lambda node: Words(words(node.children[0])),
}
"""Forms of expressions that are no calls, by class."""


def listed(nodes: Sequence[Node], most: int) -> str:
    """Write the first of some expressions, each once."""
    texts = list(dict.fromkeys(map(words, nodes)))
    return ", ".join(texts[:most]) + (", …" if len(texts) > most else "")
