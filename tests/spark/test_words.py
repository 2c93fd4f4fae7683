"""Catalyst expressions in the words of the query, from nodes as Spark's optimizer leaves them; no Spark is started."""

from __future__ import annotations

from typing import Any, cast

import pytest
from pyspark.sql import types as t

from gpujoin.spark.catalyst.nodes import Node, Reading


class Types:
    """Stands for what was read of a plan: the types of nodes, and what the optimizer has named."""

    def __init__(self) -> None:
        self.known: list[tuple[str, str]] = []
        self.aliases: dict[int, Node] = {}

    def number(self, dtype: t.DataType) -> int:
        self.known.append((dtype.json(), dtype.simpleString()))
        return len(self.known) - 1

    def type_of(self, number: int) -> tuple[str, str]:
        return self.known[number]


TYPES = Types()


def node(kind: str, /, *children: Node, dtype: t.DataType | None = None, **fields: Any) -> Node:
    fields = {key.replace("at_", "@"): value for key, value in fields.items()}
    if dtype is not None:
        fields["@type"] = TYPES.number(dtype)
    return Node(f"org.apache.spark.sql.catalyst.expressions.{kind}", fields, children, reading=cast("Reading", TYPES))


def attribute(name: str, number: int = 0, dtype: t.DataType | None = None) -> Node:
    return node("AttributeReference", name=name, exprId={"id": number}, dtype=dtype or t.LongType())


def constant(value: Any, dtype: t.DataType) -> Node:
    return node("Literal", at_value=value, value=str(value), dtype=dtype)


def number(value: int) -> Node:
    return constant(value, t.IntegerType())


def text(value: str) -> Node:
    return constant(value, t.StringType())


def variable(name: str) -> Node:
    return node("NamedLambdaVariable", name=name, exprId={"id": 99})


A, B, S = attribute("a"), attribute("b"), attribute("s", dtype=t.StringType())
TYPES.aliases[7] = node("Multiply", A, number(2))
POINT = t.StructType([t.StructField("x", t.LongType()), t.StructField("y", t.LongType())])
EXPRESSIONS: list[tuple[Node, str]] = [
    (node("Multiply", node("Add", A, B), number(2)), "(a + b) * 2"),
    (node("Subtract", A, node("Subtract", B, number(1))), "a - (b - 1)"),
    (node("And", node("GreaterThan", A, number(1)), node("Or", node("IsNull", B), node("EqualTo", S, text("x")))),
     "a > 1 and (b is null or s = 'x')"),
    (node("Not", node("EqualTo", A, B)), "a != b"),
    (node("Not", node("Like", S, text("a%"))), "s not like 'a%'"),
    (node("Not", node("In", A, number(1), number(2))), "a not in (1, 2)"),
    (node("InSet", A, at_values=[1, 2]), "a in (1, 2)"),
    (node("Not", node("And", A, B)), "not (a and b)"),
    (node("UnaryMinus", node("Add", A, B)), "-(a + b)"),
    (node("Cast", A, dtype=t.LongType()), "a"),
    (node("Cast", A, dtype=t.LongType(), at_explicit=True, evalMode="LEGACY"), "cast(a as bigint)"),
    (node("Cast", S, dtype=t.DoubleType(), at_explicit=True, evalMode="TRY"), "try_cast(s as double)"),
    (node("CaseWhen", node("IsNotNull", A), B, number(0)), "case when a is not null then b else 0 end"),
    (node("ArrayTransform", attribute("xs"), node("LambdaFunction", node("Add", variable("x"), A), variable("x")),
          at_called="transform"), "transform(xs, x -> x + a)"),
    (node("ArraySort", attribute("xs"),
          node("LambdaFunction", node("Subtract", variable("l"), variable("r")), variable("l"), variable("r")),
          at_called="array_sort"), "array_sort(xs, (l, r) -> l - r)"),
    (node("GetStructField", attribute("p", dtype=POINT), ordinal=1), "p.y"),
    (node("GetArrayItem", attribute("xs"), number(0)), "xs[0]"),
    (node("Count", number(1)), "count(*)"),
    (node("AggregateExpression", node("Sum", A), node("GreaterThan", B, number(1)), isDistinct=True),
     "sum(distinct a) filter (where b > 1)"),
    (node("CollectSet", attribute("_w0", 7), at_called="collect_set"), "collect_set(a * 2)"),
    (attribute("_w0", 8), "_w0"),
    (node("StaticInvoke", S, constant(value=True, dtype=t.BooleanType()), functionName="decode",
          at_called="org.apache.spark.sql.catalyst.expressions.UrlCodec"), "url_decode(s)"),
    (node("Invoke", node("Literal", at_value=None, value="Evaluator"), S, functionName="evaluate",
          at_called="org.apache.spark.sql.catalyst.expressions.json.StructsToJsonEvaluator"), "to_json(s)"),
    (node("Invoke", node("Literal", at_value=None, value="Evaluator"), S, functionName="evaluate",
          at_called="org.apache.spark.sql.catalyst.expressions.url.ParseUrlEvaluator"), "parse_url(s)"),
    (node("PythonUDF", A, name="slug", at_called="pythonudf"), "slug(a)"),
    (node("ScalarSubquery", plan=[]), "a scalar subquery"),
    (node("Md5", S), "md5(s)"),
    (text("x" * 200), f"'{'x' * 79}…'"),
]  # fmt: skip


@pytest.mark.parametrize(("expression", "shown"), EXPRESSIONS, ids=[shown[:40] for _, shown in EXPRESSIONS])
def test_expressions_are_written_as_the_query_has_them(expression: Node, shown: str) -> None:
    assert str(expression) == shown
