"""Text that is no UTF-8 is data like any other in joins: keys, payload and conditions, in every layout of Arrow."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pyarrow as pa
import pytest

from gpujoin import join_tables
from gpujoin.config import Options
from gpujoin.errors import InvalidTextError
from gpujoin.model.expressions import Expression, Function, call, left, lit, right
from gpujoin.model.jointype import JoinType
from gpujoin.testing import cells

Row = tuple[bytes | None, bytes | None]

TEXTS = [
    b"a", b"\xff", None, b"\xc3\x28", b"", b"a text that is out of line \xfe", b"a text that is out of line",
    b"\xed\xa0\x80", b"\xff\xff", "ä".encode(), "ä".encode()[:1], b"b\xff", b"a%b\xff",
]  # fmt: skip
LEFT = [(TEXTS[i % 13], TEXTS[i * 5 % 13]) for i in range(120)]
RIGHT = [(TEXTS[(i + 4) % 11], TEXTS[i * 3 % 13]) for i in range(40)]


def _view(values: list[bytes | None], dtype: pa.DataType) -> pa.Array:
    byte_types = {
        pa.string(): pa.binary(),
        pa.large_string(): pa.large_binary(),
        pa.string_view(): pa.binary_view(),
    }
    return pa.array(values, pa.binary()).cast(byte_types[dtype]).view(dtype)


LAYOUTS: dict[str, Callable[[list[bytes | None]], pa.Array]] = {
    "string": lambda values: _view(values, pa.string()),
    "large_string": lambda values: _view(values, pa.large_string()),
    "string_view": lambda values: _view(values, pa.string_view()),
    "dictionary": lambda values: _view(values, pa.string()).dictionary_encode(),
}


def table(rows: list[Row], layout: str) -> pa.Table:
    return pa.table(
        {name: LAYOUTS[layout]([row[i] for row in rows]) for i, name in enumerate(("k", "v"))}
        | {"row": range(len(rows))}
    )


def as_bytes(column: pa.ChunkedArray) -> list[bytes | None]:
    return [None if v is None else v.encode(errors="surrogateescape") for v in cells(column)]


def keyed(how: JoinType, test: Callable[[Row, Row], bool]) -> list[tuple[int | None, int | None]]:
    """Row numbers of an equality join with a residual condition, by two loops."""
    pairs = [
        (i, j)
        for (i, left_row), (j, right_row) in itertools.product(enumerate(LEFT), enumerate(RIGHT))
        if left_row[0] is not None and left_row[0] == right_row[0] and test(left_row, right_row)
    ]
    lefts, rights = {i for i, _ in pairs}, {j for _, j in pairs}
    match how:
        case JoinType.LEFT_SEMI:
            return [(i, None) for i in sorted(lefts)]
        case JoinType.LEFT_ANTI:
            return [(i, None) for i in range(len(LEFT)) if i not in lefts]
        case JoinType.INNER:
            return [*pairs]
        case JoinType.LEFT:
            return [*pairs, *((i, None) for i in range(len(LEFT)) if i not in lefts)]
        case _:
            assert how is JoinType.FULL
            unmatched = [(None, j) for j in range(len(RIGHT)) if j not in rights]
            return [*pairs, *((i, None) for i in range(len(LEFT)) if i not in lefts), *unmatched]


def joined(
    how: JoinType, layout: str, condition: Expression | None = None, options: Options | None = None
) -> list[tuple[int | None, int | None]]:
    """Row numbers of the same join here; checks that payload is what it was."""
    left_table, right_table = table(LEFT, layout), table(RIGHT, layout)
    result = join_tables(
        left_table,
        right_table,
        left_on="k",
        right_on="k",
        how=how,
        condition=condition,
        backend="cpu",
        options=options,
    )
    rows = result["row"].to_pylist()
    payload = as_bytes(result["v"])
    assert payload == [None if i is None else LEFT[i][1] for i in rows]
    if how.left_rows_only:
        return [(i, None) for i in rows]
    others = result["row_right"].to_pylist()
    assert as_bytes(result["v_right"]) == [None if j is None else RIGHT[j][1] for j in others]
    return list(zip(rows, others, strict=True))


def ordered(rows: list[tuple[int | None, int | None]]) -> list[tuple[int, int]]:
    return sorted((-1 if i is None else i, -1 if j is None else j) for i, j in rows)


HOWS = [JoinType.INNER, JoinType.LEFT, JoinType.FULL, JoinType.LEFT_SEMI, JoinType.LEFT_ANTI]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("how", HOWS, ids=lambda how: how.value)
def test_keys_and_payload(how: JoinType, layout: str) -> None:
    assert ordered(joined(how, layout)) == ordered(keyed(how, lambda left_row, right_row: True))


@pytest.mark.parametrize("how", HOWS, ids=lambda how: how.value)
def test_keys_and_payload_of_a_join_that_spills(how: JoinType) -> None:
    options = Options(memory_budget=256)
    assert ordered(joined(how, "string", options=options)) == ordered(keyed(how, lambda left_row, right_row: True))


def both(left_row: Row, right_row: Row, test: Callable[[bytes, bytes], bool]) -> bool:
    return left_row[1] is not None and right_row[1] is not None and test(left_row[1], right_row[1])


CONDITIONS: dict[str, tuple[Expression, Callable[[Row, Row], bool]]] = {
    "=": (left("v") == right("v"), lambda a, b: both(a, b, lambda x, y: x == y)),
    "<": (left("v") < right("v"), lambda a, b: both(a, b, lambda x, y: x < y)),
    "<=>": (left("v").equal_null_safe(right("v")), lambda a, b: a[1] == b[1]),
    "in": (call(Function.IN, left("v"), *map(lit, ("a", "b", "c", "d", "", "ä"))),
           lambda a, b: a[1] in (b"a", b"b", b"c", b"d", b"", "ä".encode())),
    "startswith": (call(Function.STARTS_WITH, left("v"), right("v")),
                   lambda a, b: both(a, b, lambda x, y: x.startswith(y))),
    "endswith": (call(Function.ENDS_WITH, left("v"), right("v")),
                 lambda a, b: both(a, b, lambda x, y: x.endswith(y))),
    "contains": (call(Function.CONTAINS, left("v"), right("v")),
                 lambda a, b: both(a, b, lambda x, y: y in x)),
    "like a%": (call(Function.LIKE, left("v"), lit("a%")), lambda a, b: a[1] is not None and a[1][:1] == b"a"),
    "trim": (call(Function.TRIM, left("v")) == right("v"),
             lambda a, b: both(a, b, lambda x, y: x.strip(b" ") == y)),
    "concat": (call(Function.CONCAT, left("v"), right("v")) == call(Function.CONCAT, right("v"), left("v")),
               lambda a, b: both(a, b, lambda x, y: x + y == y + x)),
    "greatest": (call(Function.GREATEST, left("v"), right("v")) == left("v"),
                 lambda a, b: a[1] is not None and (b[1] is None or a[1] >= b[1])),
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CONDITIONS)
def test_conditions_that_compare_bytes(name: str, layout: str) -> None:
    condition, test = CONDITIONS[name]
    for how in (JoinType.INNER, JoinType.LEFT_ANTI):
        assert ordered(joined(how, layout, condition)) == ordered(keyed(how, test))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "condition",
    [
        call(Function.LENGTH, left("v")) > 1,
        call(Function.SUBSTRING, left("v"), lit(1), lit(1)) == "a",
        call(Function.LIKE, left("v"), lit("_")),
        call(Function.LIKE, lit("a"), right("v")),
        call(Function.RLIKE, left("v"), lit("a.b")),
        left("v").cast(pa.int64()) > 0,
    ],
    ids=["length", "substring", "like _", "a pattern", "rlike", "cast"],
)
def test_conditions_that_read_characters_are_refused(condition: Expression, layout: str) -> None:
    with pytest.raises(InvalidTextError, match="UTF-8"):
        joined(JoinType.INNER, layout, condition)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_ranges_are_ordered_by_bytes(layout: str) -> None:
    left_table, right_table = table(LEFT, layout), table(RIGHT, layout)
    result = join_tables(left_table, right_table, how="inner",
        condition=(left("v") >= right("k")) & (left("v") < right("v")),
                        backend="cpu")  # fmt: skip
    expected = [
        (i, j)
        for (i, a), (j, b) in itertools.product(enumerate(LEFT), enumerate(RIGHT))
        if None not in (a[1], b[0], b[1]) and b[0] <= a[1] < b[1]  # type: ignore[operator]
    ]
    assert sorted(zip(result["row"].to_pylist(), result["row_right"].to_pylist(), strict=True)) == expected
    assert expected
