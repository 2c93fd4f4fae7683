"""Text that is no UTF-8 in pipelines: carried as bytes from files and inputs to the output, and compared as such."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpujoin.engine.pipeline import run
from gpujoin.errors import InvalidTextError
from gpujoin.model.aggregates import AggregateFunction
from gpujoin.model.expressions import Case, Expression, Function, call, left, lit
from gpujoin.model.pipeline import PipelineMetrics, Rung
from gpujoin.testing import cells
from tests.trees import Aggregate, Tree, count, total

Row = tuple[Any, ...]
Rows = list[Row]

TEXTS = [
    b"a", b"\xff", None, b"\xc3\x28", b"", b"a text that is out of line \xfe", b"a text that is out of line",
    b"\xed\xa0\x80", b"\xff\xff", "ä".encode(), "ä".encode()[:1], b"b\xff", None, b"a%b\xff",
]  # fmt: skip
VALID = [None, b"a", b"b", "ä".encode(), b"a text that is out of line", None]
SCHEMA = pa.schema([("s", pa.string()), ("t", pa.string()), ("n", pa.int64())])

FIRST: Rows = [(VALID[i % 6], VALID[i * 5 % 6], i) for i in range(60)]
"""Rows of valid text: the first row group, or the first file."""
SECOND: Rows = [(TEXTS[i % 14], TEXTS[i * 5 % 14], i) for i in range(60, 200)]
ROWS = FIRST + SECOND
ITEMS: Rows = [(text, text, i) for i, text in enumerate(dict.fromkeys(TEXTS[:8]))]
"""Each key once."""


def text(values: list[bytes | None]) -> pa.Array:
    return pa.array(values, pa.binary()).view(pa.string())


def table(rows: Rows) -> pa.Table:
    s, t, n = (list(column) for column in zip(*rows, strict=True))
    return pa.table([text(s), text(t), pa.array(n, pa.int64())], schema=SCHEMA)


def rows_of(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Counter[Row]:
    """Rows, text as bytes."""
    actual = pa.Table.from_batches(batches, schema)
    columns = [
        [v.encode(errors="surrogateescape") if isinstance(v, str) else v for v in cells(column)]
        for column in actual.columns
    ]
    return Counter(zip(*columns, strict=True))


FILES: dict[str, dict[str, Any]] = {
    "dictionary": {},
    "plain": {"use_dictionary": False, "write_statistics": False},
}


@pytest.fixture(params=[*FILES, "two files", "batches", "one input"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Tree, dict[int, Any]]:
    """The rows as files or inputs, in pieces with and without text that is no UTF-8."""
    whole = table(ROWS)
    if request.param == "batches":
        return Tree.source(SCHEMA), {0: [b for rows in (FIRST, SECOND) for b in table(rows).to_batches(30)]}
    if request.param == "one input":
        return Tree.source(SCHEMA), {0: iter(whole.to_batches())}
    if request.param == "two files":
        paths = [tmp_path / "first.parquet", tmp_path / "second.parquet"]
        for path, rows in zip(paths, (FIRST, SECOND), strict=True):
            pq.write_table(table(rows), path)
        return Tree.scan(paths), {}
    path = tmp_path / "rows.parquet"
    pq.write_table(whole, path, row_group_size=len(FIRST), **FILES[request.param])
    return Tree.scan(path), {}


def result(tree: Tree, inputs: dict[int, Any], rung: Rung | None = None) -> Counter[Row]:
    """Rows of a pipeline; nothing but files that Polars does not decode is computed again."""
    metrics = PipelineMetrics()
    # Row groups of more than four pieces are decoded by PyArrow at once.
    size = 1 << 10 if inputs.get(0) is not None else 1 << 12
    actual = rows_of(run(tree.relation, inputs, metrics=metrics, piece_bytes=size, rung=rung), tree.relation.schema)
    again = [f"computed again {Rung.ARROW_SCANS.value}, after DecodeError {Rung.FAST.value}"]
    assert list(metrics.recovered) == ([] if inputs.get(0) is not None or rung is not None else again)
    return actual


def known(test: Callable[[bytes], bool]) -> Callable[[Row], bool]:
    return lambda row: row[0] is not None and test(row[0])


CONDITIONS: dict[str, tuple[Expression, Callable[[Row], bool]]] = {
    "= constant": (left("s") == "a", known(lambda s: s == b"a")),
    "= column": (left("s") == left("t"), lambda row: row[0] is not None and row[0] == row[1]),
    "<=> column": (left("s").equal_null_safe(left("t")), lambda row: row[0] == row[1]),
    "<": (left("s") < left("t"), lambda row: None not in row and row[0] < row[1]),
    "> constant": (left("s") > "ä", known(lambda s: s > "ä".encode())),
    "in": (left("s").is_in(["a", "b", "ä", ""]), known(lambda s: s in (b"a", b"b", "ä".encode(), b""))),
    "startswith": (left("s").startswith("a"), known(lambda s: s.startswith(b"a"))),
    "like %a%": (left("s").like("%a%"), known(lambda s: b"a" in s)),
    "is null": (left("s").is_null(), lambda row: row[0] is None),
    "not": (~(left("s") == "a"), known(lambda s: s != b"a")),
    "coalesce": (call(Function.COALESCE, left("s"), left("t")) == "a",
                 lambda row: (row[1] if row[0] is None else row[0]) == b"a"),
    "case": (Case(conditions=(left("n") > 100,), values=(left("s"),), otherwise=left("t")) == "a",
             lambda row: (row[0] if row[2] > 100 else row[1]) == b"a"),
    "concat": (call(Function.CONCAT, left("s"), lit("!")) == "a!", known(lambda s: s == b"a")),
    "trim": (call(Function.TRIM, left("s")) == "a", known(lambda s: s == b"a")),
}  # fmt: skip


def test_every_row_as_it_is(source: tuple[Tree, dict[int, Any]]) -> None:
    assert result(*source) == Counter(ROWS)


@pytest.mark.few
@pytest.mark.parametrize("name", CONDITIONS)
def test_conditions_on_bytes(name: str, source: tuple[Tree, dict[int, Any]]) -> None:
    tree, inputs = source
    condition, test = CONDITIONS[name]
    expected = Counter(row for row in ROWS if test(row))
    assert result(tree.where(condition), inputs) == expected
    assert expected


def test_computed_columns(source: tuple[Tree, dict[int, Any]]) -> None:
    tree, inputs = source
    shown = tree.select("n", both=call(Function.CONCAT, left("s"), lit("-"), left("t")), other=left("t"))
    expected = Counter((n, None if s is None or t is None else s + b"-" + t, t) for s, t, n in ROWS)
    assert result(shown, inputs) == expected


def test_groups_least_and_greatest(source: tuple[Tree, dict[int, Any]]) -> None:
    tree, inputs = source
    least, greatest = (Aggregate(function, (left("t"),)) for function in (AggregateFunction.MIN, AggregateFunction.MAX))
    actual = result(tree.group("s", n=total(left("n")), least=least, greatest=greatest, rows=count()), inputs)
    groups: dict[Any, list[Row]] = {}
    for row in ROWS:
        groups.setdefault(row[0], []).append(row)
    expected = []
    for key, rows in groups.items():
        texts = [t for _, t, _ in rows if t is not None]
        expected.append((key, sum(n for *_, n in rows), min(texts, default=None), max(texts, default=None), len(rows)))
    assert actual == Counter(expected)


@pytest.mark.few
@pytest.mark.parametrize("how", ["inner", "left", "left_semi", "left_anti", "full"])
@pytest.mark.parametrize("items", [ITEMS, [*ITEMS, *ITEMS * 5], [row for row in ITEMS if row[0] == b"a"]],
                         ids=["unique", "repeated", "valid"])  # fmt: skip
def test_joins(how: str, items: Rows, source: tuple[Tree, dict[int, Any]]) -> None:
    tree, inputs = source
    other = Tree.source(pa.schema([("k", pa.string()), ("v", pa.string()), ("m", pa.int64())]), 1)
    node = tree.join(other, {"s": "k"}, how, keep=["t", "n", "v", "m"])
    pairs = [
        (left_row, right_row)
        for left_row, right_row in itertools.product(ROWS, items)
        if left_row[0] is not None and left_row[0] == right_row[0]
    ]
    met = {id(left_row) for left_row, _ in pairs}
    alone = [left_row for left_row in ROWS if id(left_row) not in met]
    expected = {
        "inner": [(*left_row[1:], *right_row[1:]) for left_row, right_row in pairs],
        "left": [
            *((*left_row[1:], *right_row[1:]) for left_row, right_row in pairs),
            *((*left_row[1:], None, None) for left_row in alone),
        ],
        "left_semi": [left_row[1:] for left_row in ROWS if id(left_row) in met],
        "left_anti": [left_row[1:] for left_row in alone],
    }
    others = {id(right_row) for _, right_row in pairs}
    expected["full"] = [
        *expected["left"],
        *((None, None, *right_row[1:]) for right_row in items if id(right_row) not in others),
    ]
    names = other.schema.names
    actual = result(node, inputs | {1: table(items).rename_columns(names)})
    assert actual == Counter(expected[how])


def test_the_first_in_order(source: tuple[Tree, dict[int, Any]]) -> None:
    tree, inputs = source
    actual = result(tree.select("s", "n").top(20, ("s", True), ("n", False)), inputs)
    last = sorted(((s, n) for s, _, n in ROWS if s is not None), key=lambda row: row[1])
    assert actual == Counter(sorted(last, key=lambda row: row[0], reverse=True)[:20])


def test_the_careful_rung(source: tuple[Tree, dict[int, Any]]) -> None:
    tree, inputs = source
    condition, test = CONDITIONS["<"]
    actual = result(tree.where(condition).group("s", rows=count()), inputs, Rung.CAREFUL)
    assert actual == Counter(Counter(row[0] for row in ROWS if test(row)).items())


@pytest.mark.parametrize(
    "expression",
    [
        call(Function.LENGTH, left("s")),
        call(Function.SUBSTRING, left("s"), lit(1), lit(1)),
        left("s").like("_"),
    ],
    ids=["length", "substring", "like _"],
)
def test_functions_that_read_characters_refuse(expression: Expression, source: tuple[Tree, dict[int, Any]]) -> None:
    tree, inputs = source
    with pytest.raises(InvalidTextError, match="UTF-8"):
        list(run(tree.select(x=expression).relation, inputs, piece_bytes=1 << 10))
