"""Nested values of other names, other case and other nullability in every function: the values and the planned type."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import pytest

from gpujoin.errors import ExpressionEvaluationError
from gpujoin.functions.evaluate import evaluate_column
from gpujoin.functions.spec import SPECS, Evaluator
from gpujoin.functions.support import is_supported
from gpujoin.model.expressions import Call, Case, Expression, Function, call, coalesce, left, when
from gpujoin.plan.resolve import resolve_value
from gpujoin.testing import cells
from tests.functions.nested import VARIANTS, Example, all_examples, array_of, batches, changed

BY_NAME: dict[str, list[Example]] = defaultdict(list)
for example in all_examples():
    node = example.node
    BY_NAME[node.function.value if isinstance(node, Call) else type(node).__name__.lower()].append(example)


MOST = 8
"""About how many calls of a function `make test` tries, of different kinds of operands."""


def values(node: Expression, batch: pa.RecordBatch) -> list[object]:
    """What a call gives for each row, in exactly its type; of rows for which it fails, the failure."""
    try:
        computed = evaluate_column(node, batch, batch, batch.num_rows)
    except ExpressionEvaluationError:
        if batch.num_rows == 1:
            return ["fails"]
        rows = [batch.slice(row, 1) for row in range(batch.num_rows)]
        return [value for row in rows for value in values(node, row)]
    assert computed.type == node.type
    computed.validate(full=True)
    return cells(computed)


def ways(number: int, operands: Sequence[str], *, every: bool) -> Iterator[dict[str, str]]:
    """Variants of operands: all combinations, or each variant of each once, beside others from call to call."""
    names = list(VARIANTS)
    combined = itertools.product(names, repeat=len(operands))
    turned = (
        tuple(names[(turn + place * number) % len(names)] for place in range(len(operands)))
        for turn in range(len(names))
    )
    return (dict(zip(operands, way, strict=True)) for way in (combined if every else turned))


@pytest.mark.parametrize("every", [pytest.param(True, marks=pytest.mark.extra), False], ids=["all", "each"])
@pytest.mark.parametrize("name", BY_NAME)
def test_functions_bring_nested_values_together_by_position(name: str, every: bool) -> None:
    several = BY_NAME[name]
    for number, example in enumerate(several if every else several[:: 1 + len(several) // MOST]):
        for variants in ways(number, [column.name for column in example.operands], every=every):
            plain, rows, other, renamed = batches(example, variants)
            assert is_supported(plain), plain
            assert is_supported(other), other
            expected = values(plain, rows)
            assert values(other, renamed) == expected, f"{other}\n{variants}"
            assert any(value != "fails" for value in expected)


def _nested_in(kind: str, item: pa.DataType, *, nullable: bool) -> pa.DataType:
    if kind == "list":
        return pa.list_(pa.field("item", item, nullable))
    if kind == "map":
        return pa.map_(pa.string(), pa.field("value", item, nullable))
    return pa.struct([pa.field("x" if nullable else "X", item, nullable)])


_WITHIN: dict[str, Callable[[object], object]] = {
    "struct": lambda item: (item,),
    "list": lambda item: [item],
    "map": lambda item: [("p", item)],
}


@pytest.mark.parametrize("inner", _WITHIN)
@pytest.mark.parametrize("outer", _WITHIN)
def test_parts_are_nullable_where_those_of_any_branch_are(outer: str, inner: str) -> None:
    first, second = (
        _nested_in(outer, _nested_in(inner, pa.int32(), nullable=nullable), nullable=nullable)
        for nullable in (False, True)
    )
    rows = [
        array_of([_WITHIN[outer](_WITHIN[inner](number))] * 2, dtype) for number, dtype in ((5, first), (None, second))
    ]
    batch = pa.RecordBatch.from_arrays([pa.array([True, False]), *rows], names=["flag", "one", "other"])
    united = changed(second, str.upper)
    lists = pa.list_(pa.field("item", united))
    one, other = left("one"), left("other")
    for node, dtype in (
        (when(left("flag"), one).else_(other), united),
        (coalesce(one, other), united),
        (call(Function.ARRAY, one, other), lists),
        (call(Function.CONCAT_LISTS, call(Function.ARRAY, one), call(Function.ARRAY, other)), lists),
        (call(Function.ARRAY_APPEND, call(Function.ARRAY, one), other), lists),
    ):
        resolved = resolve_value(node, batch.schema, batch.schema)
        assert resolved.type == dtype, node
        assert is_supported(resolved), resolved
        assert evaluate_column(resolved, batch, batch, 2).type == dtype


def test_every_function_of_nested_values_is_among_them() -> None:
    """What is called here is derived from the tables; a few functions of nested values show that it is."""
    known = {Function.ARRAY_UNION, Function.AGGREGATE, Function.MAP_FROM_ENTRIES, Function.GET_FIELD, Function.COALESCE}
    assert {function.value for function in known} <= BY_NAME.keys()
    assert not [spec for spec in SPECS.values() if spec.missing(Evaluator.NUMPY) and spec.function.value in BY_NAME]
    assert isinstance(BY_NAME["case"][0].node, Case)
