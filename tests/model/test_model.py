"""Invariants of the values that rooms hand to each other."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpujoin import GatherMaps
from gpujoin.errors import ConditionError, FallbackError, GpuJoinError, JoinSpecError, did_you_mean
from gpujoin.model.expressions import (
    Call,
    EvalMode,
    Expression,
    Function,
    as_expression,
    call,
    coalesce,
    conjuncts,
    left,
    lit,
    right,
    when,
)
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.maps import (
    AllNull,
    Indices,
    OutOfBounds,
    Repeat,
    RowMap,
    Span,
    Tile,
    cross_maps,
    slice_map,
)
from gpujoin.model.reasons import Reason, ReasonKind
from gpujoin.model.spec import JoinSpec, KeyPair, NullEquality

# -- join types ------------------------------------------------------------------------------------------------

SPARKS = {
    "inner": JoinType.INNER,
    "cross": JoinType.CROSS,
    "outer": JoinType.FULL, "full": JoinType.FULL, "fullouter": JoinType.FULL, "full_outer": JoinType.FULL,
    "left": JoinType.LEFT, "leftouter": JoinType.LEFT, "left_outer": JoinType.LEFT,
    "right": JoinType.RIGHT, "rightouter": JoinType.RIGHT, "right_outer": JoinType.RIGHT,
    "semi": JoinType.LEFT_SEMI, "leftsemi": JoinType.LEFT_SEMI, "left_semi": JoinType.LEFT_SEMI,
    "anti": JoinType.LEFT_ANTI, "leftanti": JoinType.LEFT_ANTI, "left_anti": JoinType.LEFT_ANTI,
}  # fmt: skip


@pytest.mark.parametrize("how", SPARKS)
def test_every_spelling_of_dataframe_join(how: str) -> None:
    assert JoinType.parse(how) is JoinType.parse(how.upper()) is SPARKS[how]


@pytest.mark.parametrize("join_type", JoinType)
def test_join_types_parse_as_themselves(join_type: JoinType) -> None:
    assert JoinType.parse(join_type.value) is JoinType.parse(join_type) is join_type


@pytest.mark.parametrize("how", ["", "iner", "left semi anti", "left-outer"])
def test_unknown_join_types(how: str) -> None:
    with pytest.raises(JoinSpecError, match="unknown join type"):
        JoinType.parse(how)


def test_preserved_sides() -> None:
    assert {t for t in JoinType if t.preserves(Side.LEFT)} == {
        JoinType.LEFT,
        JoinType.FULL,
        JoinType.EXISTENCE,
        JoinType.NULL_AWARE_EXISTENCE,
    }
    assert {t for t in JoinType if t.preserves(Side.RIGHT)} == {JoinType.RIGHT, JoinType.FULL}


# -- specifications --------------------------------------------------------------------------------------------


def test_specs_that_contradict_themselves() -> None:
    key = KeyPair(0, 0)
    with pytest.raises(JoinSpecError, match="no keys and no condition"):
        JoinSpec(JoinType.CROSS, (key,))
    with pytest.raises(JoinSpecError, match="no keys and no condition"):
        JoinSpec(JoinType.CROSS, condition=lit(True))
    with pytest.raises(JoinSpecError, match="needs 1 to 62 keys, got 0"):
        JoinSpec(JoinType.NULL_AWARE_ANTI)
    with pytest.raises(JoinSpecError, match=r"such as JoinType\.LEFT, got 'left'"):
        JoinSpec("left", (key,))  # type: ignore[arg-type]
    with pytest.raises(JoinSpecError, match="by position"):
        KeyPair("k", "k")  # type: ignore[arg-type]
    with pytest.raises(JoinSpecError, match=r"left_output .*by position"):
        JoinSpec(JoinType.LEFT, (key,), left_output=("k",))  # type: ignore[arg-type]
    with pytest.raises(JoinSpecError, match=r"left_output .*as a tuple, got 0"):
        JoinSpec(JoinType.LEFT, (key,), left_output=0)  # type: ignore[arg-type]
    with pytest.raises(JoinSpecError, match=r"by position in the schema, as a tuple, got \(True, 0\)"):
        KeyPair(True, 0)
    with pytest.raises(JoinSpecError, match=r"NullEquality\.UNEQUAL, got True"):
        KeyPair(0, 0, True)  # type: ignore[arg-type]
    with pytest.raises(JoinSpecError, match="in a tuple, got KeyPair"):
        JoinSpec(JoinType.LEFT, key)  # type: ignore[arg-type]
    with pytest.raises(JoinSpecError, match=r"condition must be an expression .*got 'x > 1'"):
        JoinSpec(JoinType.LEFT, (key,), "x > 1")  # type: ignore[arg-type]
    with pytest.raises(JoinSpecError, match="existence_name must be a column's name, got 5"):
        JoinSpec(JoinType.EXISTENCE, (key,), existence_name=5)  # type: ignore[arg-type]
    with pytest.raises(JoinSpecError, match=r"as_of must be AsOf\(...\), got 5"):
        JoinSpec(JoinType.LEFT, (key,), as_of=5)  # type: ignore[arg-type]
    with pytest.raises(JoinSpecError, match="left columns only"):
        JoinSpec(JoinType.LEFT_SEMI, (key,), right_output=(0,))


@pytest.mark.parametrize("join_type", [t for t in JoinType if t is not JoinType.CROSS])
def test_output_schema(join_type: JoinType) -> None:
    metadata = {b"comment": b"kept"}
    schema = pa.schema([pa.field("a", pa.int32(), nullable=False, metadata=metadata), pa.field("b", pa.string())])
    right_output = () if join_type.left_rows_only else (0,)
    spec = JoinSpec(join_type, (KeyPair(0, 0),), left_output=(1, 0), right_output=right_output)
    output = spec.output_schema(schema, schema)
    assert output.names[:2] == ["b", "a"]
    assert output.field(1).metadata == metadata
    assert output.field(1).nullable is (join_type in (JoinType.RIGHT, JoinType.FULL))
    if join_type.flags_rows:
        assert output.field(2).equals(pa.field("exists", pa.bool_(), nullable=False))
    elif join_type.left_rows_only:
        assert len(output) == 2
    else:
        assert output.field(2).nullable is (join_type in (JoinType.LEFT, JoinType.FULL))


def test_specs_travel() -> None:
    spec = JoinSpec(JoinType.LEFT, (KeyPair(0, 1, NullEquality.EQUAL),), left("a") < right("b"), (0,), (1,), "found")
    again = pickle.loads(pickle.dumps(spec))  # noqa: S301
    assert again == spec
    assert again.condition.same_as(spec.condition)


# -- gather maps -----------------------------------------------------------------------------------------------


def rows_of(rowmap: RowMap) -> list[int]:
    match rowmap:
        case Indices(values):
            return [int(v) for v in values]
        case Span(start, length):
            return list(range(start, start + length))
        case Repeat(start, length, times):
            return [(start + i) // times for i in range(length)]
        case Tile(start, length, period):
            return [(start + i) % period for i in range(length)]
        case AllNull(length):
            return [-1] * length


MAPS = st.one_of(
    st.lists(st.integers(-1, 50), max_size=20).map(
        lambda v: Indices(np.array(v, np.int32), len(v), OutOfBounds.NULLIFY)
    ),
    st.builds(Span, st.integers(0, 9), st.integers(0, 20)),
    st.builds(Repeat, st.integers(0, 9), st.integers(0, 20), st.integers(1, 5)),
    st.builds(Tile, st.integers(0, 9), st.integers(0, 20), st.integers(1, 5)),
    st.builds(AllNull, st.integers(0, 20)),
)


@given(rowmap=MAPS, data=st.data())
def test_slices_of_maps(rowmap: RowMap, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, rowmap.length))
    length = data.draw(st.integers(0, rowmap.length - start))
    part = slice_map(rowmap, start, length)
    assert part.length == length
    assert rows_of(part) == rows_of(rowmap)[start : start + length]


@given(outer=st.integers(0, 12), inner=st.integers(0, 12), most=st.integers(1, 30))
def test_cross_maps_make_every_pair_once(outer: int, inner: int, most: int) -> None:
    pairs: list[tuple[int, int]] = []
    for outer_map, inner_map in cross_maps(outer, inner, most):
        assert 0 < outer_map.length == inner_map.length <= most
        pairs += zip(rows_of(outer_map), rows_of(inner_map), strict=True)
    assert pairs == [(i, j) for i in range(outer) for j in range(inner)]


def test_gather_maps_need_one_length() -> None:
    assert GatherMaps(Span(0, 3), None).length == GatherMaps(None, AllNull(3)).length == 3
    with pytest.raises(GpuJoinError, match=r"one common length, got \[2, 3\]"):
        GatherMaps(Span(0, 3), AllNull(2))
    with pytest.raises(GpuJoinError, match=r"got \[\]"):
        GatherMaps(None, None)


# -- expressions -----------------------------------------------------------------------------------------------

TREES: list[tuple[Expression, str]] = [
    (left("a") < right("b"), "left.a < right.b"),
    (~(left("a") == 1) | right("b").is_null(), "left.a != 1 or right.b is null"),
    (left("a") + 1 - left("a") * 2, "a + 1 - a * 2"),
    (1 + left("a"), "1 + a"),
    (2 / left("a") % 3, "2 / a % 3"),
    (-abs(left("a")), "-abs(a)"),
    (left("a").between(1, right("b")), "left.a >= 1 and left.a <= right.b"),
    (left("a").is_in([1, None]), "a in (1, null)"),
    (left("s").like("x%"), "s like 'x%'"),
    (left("a").cast(pa.int8()), "cast(a as tinyint)"),
    (when(left("a") > 1, 2).else_(left("b")), "case when a > 1 then 2 else b end"),
    (coalesce(left("a"), 0), "coalesce(a, 0)"),
    (left("a").equal_null_safe(right("b")), "left.a <=> right.b"),
    (left("t").field("x"), "t.x"),
    (True & left("p"), "true and p"),
]


@pytest.mark.parametrize(("tree", "text"), TREES, ids=[text for _, text in TREES])
def test_expressions_print_rebuild_and_travel(tree: Expression, text: str) -> None:
    assert str(tree) == text
    assert tree.same_as(tree.with_children(tree.children))
    assert pickle.loads(pickle.dumps(tree)).same_as(tree)  # noqa: S301
    others = [other for other, _ in TREES if other is not tree]
    assert not any(tree.same_as(other) for other in others)


def test_same_as_tells_types_and_modes_apart() -> None:
    assert not lit(1).same_as(lit(1, pa.int64()))
    assert not lit(1).same_as(lit(True))
    assert not lit(0.0).same_as(lit(-0.0))
    assert lit(float("nan")).same_as(lit(float("nan")))
    assert not left("a").same_as(right("a"))
    legacy, ansi = (call(Function.ADD, left("a"), 1, mode=mode) for mode in (EvalMode.LEGACY, EvalMode.ANSI))
    assert not legacy.same_as(ansi)


def test_structures_of_deep_trees_are_made_without_recursion() -> None:
    trees: list[Expression] = [lit(1), lit(1)]
    for _ in range(2000):
        trees = [tree + 1 for tree in trees]
    assert hash(trees[0].structure) == hash(trees[1].structure)
    assert trees[0].structure in {trees[0].structure: None}


def test_walking() -> None:
    tree = (left("a") < right("b")) & (left("a") > 1)
    assert [str(c) for c in tree.columns()] == ["a", "b"]
    assert tree.sides() == {Side.LEFT, Side.RIGHT}
    assert lit(1).sides() == frozenset()
    assert next(tree.walk()) is tree
    assert len(list(tree.walk())) == 7
    assert [str(c) for c in conjuncts(tree & lit(True))] == ["left.a < right.b", "a > 1", "true"]
    assert as_expression(tree) is tree


def test_expressions_are_no_truth_values() -> None:
    with pytest.raises(ConditionError, match=r"& \| ~"):
        assert left("a") == left("b")
    with pytest.raises(TypeError, match="unhashable"):
        hash(left("a"))
    tree = left("a") == left("b")
    assert isinstance(tree, Call)


# -- reasons and errors ----------------------------------------------------------------------------------------


def test_errors_carry_reasons_and_travel() -> None:
    reasons = (
        Reason(ReasonKind.SLOWER, "size", "3 rows", "spark.gpujoin.strategy"),
        Reason(ReasonKind.UNSUPPORTED, "key 1", "collated text"),
    )
    error = FallbackError("left to Spark", reasons)
    assert str(error) == (
        "left to Spark\n  - size: 3 rows (change with spark.gpujoin.strategy)\n  - key 1: collated text"
    )
    again = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert (str(again), again.reasons) == (str(error), reasons)


def test_suggestions() -> None:
    assert did_you_mean("prise", ["price", "rise", "x"]) == " Did you mean 'rise' or 'price'?"
    assert did_you_mean("zzz", ["price", "x"]) == " Known: 'price', 'x'."
    assert did_you_mean("zzz", []) == ""
    assert did_you_mean("PRISE", ["Price", "price", "x"]) == " Did you mean 'Price' or 'price'?"
    names = ["a.long.prefix.strategy", "a.long.prefix.batch"]
    assert did_you_mean("a.long.prefix.stratgy", names, prefix="a.long.prefix.") == f" Did you mean {names[0]!r}?"
    assert did_you_mean("zzz", [f"column{i}" for i in range(20)]).endswith("'column11', ….")
