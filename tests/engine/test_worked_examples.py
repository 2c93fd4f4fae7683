"""The worked examples of the docstrings return what they say."""

from typing import Any

import pyarrow as pa
import pytest

import gpujoin
from gpujoin import left, right
from gpujoin.engine.ordering import OrderCodec
from gpujoin.model.backend import AnyBackend


def test_null_aware_joins(backend: AnyBackend) -> None:
    """`gpujoin.engine.join.not_in`: of four left rows one is kept."""
    left_table = pa.table({"a": [1, 1, 3, None], "b": [2, 7, None, 2]})
    right_table = pa.table({"x": [1, 1], "y": [2, None]})
    kept = gpujoin.join_tables(
        left_table,
        right_table,
        left_on=["a", "b"],
        right_on=["x", "y"],
        how="null_aware_anti",
        backend=backend,
    )
    assert kept.to_pylist() == [{"a": 3, "b": None}]


@pytest.mark.parametrize(("direction", "rows"), [("backward", [3, None]), ("forward", [2, 1]), ("nearest", [3, 1])])
def test_as_of_joins(direction: Any, rows: list[int | None], backend: AnyBackend) -> None:
    """`gpujoin.engine.join.as_of`: the right rows of the times 5 and 0."""
    right_table = pa.table({"t": [4, 1, 9, 4], "row": range(4)})
    nearest = gpujoin.asof_join_tables(pa.table({"t": [5, 0]}), right_table, "t", direction=direction, backend=backend)
    assert dict(zip(*nearest.to_pydict().values(), strict=True)) == dict(zip([5, 0], rows, strict=True))


def test_range_joins(backend: AnyBackend) -> None:
    """`gpujoin.engine.join.ranges`: one of two left rows has a match."""
    left_table, right_table = pa.table({"a": [10, 50], "b": [30, 60]}), pa.table({"c": [40, 10, 20]})
    condition = (right("c") > left("a")) & (right("c") <= left("b"))
    pairs = gpujoin.join_tables(left_table, right_table, condition=condition, backend=backend)
    assert pairs.to_pylist() == [{"a": 10, "b": 30, "c": 20}]


def test_two_points(backend: AnyBackend) -> None:
    """`gpujoin.backends.ordered.index`: rows 0 and 2 are the intervals that contain 4."""
    intervals = pa.table({"c": [1, 2, 4], "d": [9, 3, 5], "row": range(3)})
    condition = (right("c") <= left("p")) & (right("d") >= left("p"))
    pairs = gpujoin.join_tables(pa.table({"p": [4]}), intervals, condition=condition, backend=backend)
    assert sorted(pairs["row"].to_pylist()) == [0, 2]


def test_a_residual_condition(backend: AnyBackend) -> None:
    """`gpujoin.engine.join.probe`: three candidates of four are pairs, and the rest is one row."""
    left_table = pa.table({"k": [1, 1, 7], "v": [5, 2, 0]})
    right_table = pa.table({"k": [1, 1], "w": [3, 9]})
    joined = gpujoin.join_tables(
        left_table, right_table, on="k", how="left", condition=left("v") < right("w"), backend=backend
    )
    rows = {(row["v"], row["w"]) for row in joined.to_pylist()}
    assert rows == {(5, 9), (2, 3), (2, 9), (0, None)}
    assert joined.num_rows == 4


def test_gather_maps(backend: AnyBackend) -> None:
    """`gpujoin.model.maps`, `gpujoin.engine.join.sinks`: the maps of a left join."""
    maps = gpujoin.gather_maps(pa.array([1, 2, 3]), pa.array([3, 1]), "left", backend=backend)
    assert maps.left is not None
    assert maps.right is not None
    pairs = dict(zip(maps.left.values.tolist(), maps.right.values.tolist(), strict=True))  # type: ignore[union-attr]
    assert pairs == {0: 1, 1: -1, 2: 0}


def test_codes_of_text() -> None:
    """`gpujoin.engine.ordering`: twice the rank, and odd numbers between."""
    codec = OrderCodec.fit(pa.array(["b", "d", "b", "f"]))
    assert codec.codes(pa.array(["b", "d", "b", "f"]))[0].tolist() == [0, 2, 0, 4]
    assert codec.codes(pa.array(["a", "c", "d"]))[0].tolist() == [-1, 1, 2]
