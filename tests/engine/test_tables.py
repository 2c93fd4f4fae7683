"""The public edge without Spark: `join_tables` and `gather_maps`, their results, names and refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import gpujoin
from gpujoin import (
    HashJoin,
    JoinSpec,
    JoinType,
    KeyPair,
    Options,
    asof_join_tables,
    gather,
    gather_maps,
    join_tables,
    left,
    lit,
    right,
)
from gpujoin.backends.registry import unavailable
from gpujoin.errors import (
    BackendUnavailableError,
    ConditionError,
    ConfigurationError,
    GpuJoinError,
    JoinSpecError,
    KeyTypeError,
)
from gpujoin.model.backend import AnyBackend, BackendName
from gpujoin.model.jointype import JoinName
from gpujoin.testing import assert_same_rows, row_counts
from tests.engine.support import KEYED, keyed, sides
from tests.generate import KEY_TYPES, KeyShape
from tests.oracle.join import oracle_join

A = pa.table({"k": [1, 2, 2, None], "x": ["p", "q", "r", "s"], "v": [1.0, 2.0, 3.0, 4.0]})
B = pa.table({"k": [2, 2, 3, None], "y": ["P", "Q", "R", "S"], "v": [10.0, 1.5, 30.0, 40.0]})


def in_order(tuples: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(tuples, key=repr)


def rows(table: pa.Table) -> list[tuple[Any, ...]]:
    tuples: list[tuple[Any, ...]] = list(zip(*(c.to_pylist() for c in table.columns), strict=True))
    return in_order(tuples)


PAIRS = [(2, "q", "P"), (2, "q", "Q"), (2, "r", "P"), (2, "r", "Q")]
USING: dict[str, list[tuple[Any, ...]]] = {
    "inner": PAIRS,
    "left": [(1, "p", None), *PAIRS, (None, "s", None)],
    "right": [*PAIRS, (3, None, "R"), (None, None, "S")],
    "full": [(1, "p", None), *PAIRS, (3, None, "R"), (None, None, "S"), (None, "s", None)],
}


@pytest.mark.parametrize("how", USING)
def test_on_merges_the_keys(backend: AnyBackend, how: Any) -> None:
    left_table, right_table = A.drop_columns(["v"]), B.drop_columns(["v"])
    table = join_tables(left_table, right_table, on="k", how=how, backend=backend)
    assert table.schema.names == ["k", "x", "y"]
    assert rows(table) == in_order(USING[how])


def test_left_on_and_right_on_keep_both_keys(backend: AnyBackend) -> None:
    right_table = B.rename_columns(["j", "y", "v"])
    table = join_tables(A, right_table, left_on="k", right_on="j", how="full", backend=backend)
    assert table.schema.names == ["k", "x", "v", "j", "y", "v_right"]
    assert (None, None, None, 3, "R", 30.0) in rows(table)


@pytest.mark.parametrize("how", ["semi", "left_semi", "leftsemi", "LEFT_SEMI", JoinType.LEFT_SEMI])
def test_spellings(backend: AnyBackend, how: Any) -> None:
    assert rows(join_tables(A, B, on="k", how=how, backend=backend)) == [(2, "q", 2.0), (2, "r", 3.0)]


def test_the_other_left_only_joins(backend: AnyBackend) -> None:
    def joined(how: Any, **more: Any) -> list[tuple[Any, ...]]:
        return rows(join_tables(A.select(["k", "x"]), B, on="k", how=how, backend=backend, **more))

    assert joined("anti") == [(1, "p"), (None, "s")]
    assert joined("anti", nulls_equal=True) == [(1, "p")]
    assert joined("existence") == [(1, "p", False), (2, "q", True), (2, "r", True), (None, "s", False)]
    assert joined("null_aware_anti") == []


def test_conditions(backend: AnyBackend) -> None:
    table = join_tables(A, B, on="k", how="left", condition=left("v") < right("v"), backend=backend)
    assert table.schema.names == ["k", "x", "v", "y", "v_right"]
    assert rows(table) == sorted(
        [
            (1, "p", 1.0, None, None),
            (2, "q", 2.0, "P", 10.0),
            (2, "r", 3.0, "P", 10.0),
            (None, "s", 4.0, None, None),
        ],
        key=repr,
    )
    nested = join_tables(A, B, how="inner", condition=left("v") * lit(10.0) == right("v"), backend=backend)
    assert sorted(nested["x"].to_pylist()) == ["p", "r", "s"]
    cross = join_tables(A, B, how="cross", condition=left("v") * lit(10.0) == right("v"), backend=backend)
    assert_same_rows(cross, nested)


def test_cross_join(backend: AnyBackend) -> None:
    table = join_tables(A, B, how="cross", backend=backend)
    assert table.num_rows == 16
    assert table.schema.names == ["k", "x", "v", "k_right", "y", "v_right"]
    assert join_tables(A.select([]), B.select([]), how="cross", backend=backend).num_rows == 16


def test_keys_of_different_types_are_merged_in_their_common_type(backend: AnyBackend) -> None:
    left_table = pa.table({"k": pa.array([1, 2], pa.int8()), "x": [1, 2]})
    right_table = pa.table({"k": pa.array([2, 1 << 40], pa.int64()), "y": [1, 2]})
    table = join_tables(left_table, right_table, on="k", how="full", backend=backend)
    assert table.schema.field("k").type == pa.int64()
    assert sorted(table["k"].to_pylist()) == [1, 2, 1 << 40]


@pytest.mark.parametrize("key", KEY_TYPES)
def test_full_join_merges_keys_of_every_type(backend: AnyBackend, key: str, seed: int) -> None:
    left_table, right_table = sides(seed, [KEY_TYPES[key]], (40, 40))
    left_table, right_table = (
        left_table.select(["k0", "row"]),
        right_table.select(["k0", "row"]).rename_columns(["k0", "row2"]),
    )
    table = join_tables(left_table, right_table, on="k0", how="full", backend=backend)
    expected = oracle_join(left_table, right_table, keyed(JoinType.FULL, left_table, right_table))
    merged = [
        a if ra is not None else b
        for a, ra, b in zip(expected.column(0), expected["row"].to_pylist(), expected.column(2), strict=True)
    ]
    column = pa.array([m.as_py() for m in merged], table.schema.field("k0").type)
    wanted = pa.table({"k0": column, "row": expected["row"], "row2": expected["row2"]})
    assert_same_rows(table, wanted, context=f"seed {seed}")


LAYOUTS = {
    "string_view": pa.array(["a", None, "", "b" * 20], pa.string_view()),
    "binary_view": pa.array([b"a", None, b"", b"b" * 20], pa.binary_view()),
    "run_end_encoded": pa.RunEndEncodedArray.from_arrays([1, 2, 4], ["a", None, ""]),
    "dictionary": pa.DictionaryArray.from_arrays([0, 1, 2, None], pa.array(["a", None, "a"])),
    "dictionary of views": pa.DictionaryArray.from_arrays(
        [0, 1, 2, None], pa.array(["a", None, "a"], pa.string_view())
    ),
}


@pytest.mark.parametrize("options", [Options(), Options(memory_budget=1)], ids=["memory", "spilled"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_full_join_of_layouts_that_arrow_itself_does_not_take(
    backend: AnyBackend, layout: str, options: Options
) -> None:
    values = LAYOUTS[layout]
    plain: list[Any] = values.to_pylist()
    table = pa.table({"k": values, "p": values, "n": list(range(len(values)))})
    other = table.slice(1).rename_columns(["k", "q", "m"])
    result = join_tables(table, other, on="k", how="full", backend=backend, options=options)
    wanted: list[tuple[Any, ...]] = []
    for n, key in enumerate(plain):
        met = [m for m in range(1, len(plain)) if key is not None and plain[m] == key]
        wanted += [(key, key, n, plain[m], m) for m in met] or [(key, key, n, None, None)]
    wanted += [(plain[m], None, None, plain[m], m) for m in range(1, len(plain)) if plain[m] is None]
    assert rows(result) == in_order(wanted)


def test_full_join_merges_a_long_integer_and_a_double_as_doubles(backend: AnyBackend) -> None:
    result = join_tables(
        pa.table({"k": [2**53 + 1]}), pa.table({"k": [2.0**53, 7.0]}), on="k", how="full", backend=backend
    )
    assert rows(result) == in_order([(2.0**53,), (7.0,)])


def test_a_null_column_meets_a_struct(backend: AnyBackend) -> None:
    structs = pa.table({"k": [{"a": 1, "b": "x"}, None]})
    nothing = pa.table({"k": pa.nulls(2)})
    for left_table, right_table in ((structs, nothing), (nothing, structs)):
        result = join_tables(left_table, right_table, on="k", nulls_equal=True, backend=backend)
        assert result.column("k").to_pylist() == [None, None]


def test_a_time_beyond_the_finer_unit_is_refused_as_a_key(backend: AnyBackend) -> None:
    far = pa.table({"k": pa.array([2**40], pa.timestamp("s"))})
    fine = pa.table({"k": pa.array([0], pa.timestamp("ns"))})
    with pytest.raises(KeyTypeError, match="cast both sides to one type"):
        join_tables(far, fine, on="k", backend=backend)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"on": 3}, JoinSpecError, "got 3"),
        ({"on": left("k") == right("k")}, JoinSpecError, "for an expression use condition="),
        ({"on": "k", "nulls_equal": None}, JoinSpecError, "nulls_equal must be a bool"),
        ({"on": "k", "suffixes": ("_r",)}, JoinSpecError, "suffixes must be two texts"),
        ({"on": "k", "suffixes": (None, "x")}, JoinSpecError, "suffixes must be two texts"),
        ({"on": "k", "suffixes": None}, JoinSpecError, "suffixes must be two texts"),
        ({"on": "k", "options": {"batch_bytes": 1}}, ConfigurationError, "options must be gpujoin.Options"),
        ({"on": "k", "metrics": {}}, ConfigurationError, "metrics must be gpujoin.JoinMetrics"),
    ],
)
def test_arguments_of_wrong_types(arguments: dict[str, Any], error: type[GpuJoinError], message: str) -> None:
    with pytest.raises(error, match=message):
        join_tables(A, B, **arguments)


def test_keys_may_be_an_iterator(backend: AnyBackend) -> None:
    names = (name for name in ["k"])
    assert join_tables(A, B, on=names, backend=backend).equals(join_tables(A, B, on="k", backend=backend))  # type: ignore[arg-type]


def test_metrics_and_options_are_used(backend: AnyBackend) -> None:
    metrics = gpujoin.JoinMetrics()
    join_tables(A, B, on="k", backend=backend, metrics=metrics, options=Options(memory_budget=1))
    assert (metrics.build_rows, metrics.probe_rows, metrics.output_rows) == (4, 4, 4)
    assert metrics.spills > 0


def test_the_smaller_side_is_built(backend: AnyBackend) -> None:
    for left_table, right_table, built in ((A, B.slice(0, 2), 2), (A.slice(0, 1), B, 1)):
        metrics = gpujoin.JoinMetrics()
        join_tables(left_table, right_table, on="k", how="full", backend=backend, metrics=metrics)
        assert metrics.build_rows == built


def test_results_come_in_batches_near_the_target(backend: AnyBackend) -> None:
    big = pa.table({"k": pa.array(range(10_000)), "x": pa.array(range(10_000))})
    table = join_tables(big, big, on="k", backend=backend, options=Options(batch_bytes=24_000))
    assert table.column(0).num_chunks >= 10
    assert table.num_rows == 10_000


# -- gather maps -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("equal", [False, True], ids=["=", "<=>"])
@pytest.mark.parametrize("how", ["inner", "left", "right", "full", "left_semi", "left_anti"])
def test_gather_maps_say_which_rows_meet(backend: AnyBackend, how: Any, equal: bool, seed: int) -> None:
    left_table, right_table = sides(seed, [pa.int64(), pa.string()], (60, 50), distinct=4)
    maps = gather_maps(
        left_table.select(["k0", "k1"]),
        right_table.select(["k0", "k1"]),
        how,
        nulls_equal=equal,
        backend=backend,
    )
    spec = keyed(JoinType.parse(how), left_table, right_table, keys=2, equal=equal, left_output=(2,), right_output=(2,))
    expected = oracle_join(left_table, right_table, spec)
    columns = {}
    for side, rowmap in (("left", maps.left), ("right", maps.right)):
        if rowmap is None:
            continue
        assert isinstance(rowmap.values, np.ndarray)  # type: ignore[union-attr]
        assert rowmap.values.dtype == np.int64  # type: ignore[union-attr]
        values = rowmap.values  # type: ignore[union-attr]
        columns[side] = pa.array(values, mask=values < 0).cast(pa.int32())
    actual = pa.table(list(columns.values()), names=expected.schema.names)
    assert_same_rows(actual, expected, context=f"seed {seed}")
    assert maps.length == expected.num_rows


@pytest.mark.parametrize(
    "keys",
    [
        pl.Series,
        lambda values: pl.Series(values).to_pandas(),
        np.array,
        lambda values: pl.DataFrame({"other name": values}),
        lambda values: duckdb.sql("select unnest($values) as k", params={"values": values}),
    ],
    ids=["Polars Series", "pandas Series", "NumPy", "Polars", "DuckDB"],
)
def test_gather_maps_of_what_holds_one_column(backend: AnyBackend, keys: Callable[[list[int]], Any]) -> None:
    maps = gather_maps(keys([1, 2, 2]), keys([5, 2]), backend=backend)
    left_rows, right_rows = (rowmap.values.tolist() for rowmap in (maps.left, maps.right))  # type: ignore[union-attr]
    assert sorted(zip(left_rows, right_rows, strict=True)) == [(1, 1), (2, 1)]


def test_what_gather_maps_does_not_take_is_named_with_its_side() -> None:
    with pytest.raises(JoinSpecError, match="the right input is a list"):
        gather_maps(pa.array([1]), [1])
    with pytest.raises(JoinSpecError, match="the left input is a ndarray"):
        gather_maps(np.ones((2, 2)), pa.array([1]))
    with pytest.raises(JoinSpecError, match=r"the right input is a LazyFrame, which collect\(\) turns into a table"):
        join_tables(A, pl.LazyFrame({"k": [1]}), on="k")


def test_gather_maps_of_arrays(backend: AnyBackend) -> None:
    maps = gather_maps(pa.array([1, 2]), pa.chunked_array([[2], [2, 5]]), backend=backend)
    assert maps.left is not None
    assert maps.right is not None
    assert maps.left.values.tolist() == [1, 1]  # type: ignore[union-attr]
    assert sorted(maps.right.values.tolist()) == [0, 1]  # type: ignore[union-attr]


# -- refusals --------------------------------------------------------------------------------------------------

NESTED = pa.table({"k": pa.array([[1]], pa.list_(pa.int64())), "t": pa.array(["x"])})
REFUSALS: dict[str, tuple[dict[str, Any], type[GpuJoinError], str]] = {
    "unknown join type": ({"on": "k", "how": "iner"}, JoinSpecError, r"'iner'.*Did you mean 'inner'"),
    "join type of another kind": ({"on": "k", "how": 3}, JoinSpecError, "must be a string or JoinType, got 3"),
    "missing column": ({"on": "kk"}, JoinSpecError, r"left input has no column 'kk'.*'k'"),
    "missing right column": ({"on": "x"}, JoinSpecError, r"right input has no column 'x'"),
    "no keys": ({}, JoinSpecError, "joins need keys"),
    "on and left_on": ({"on": "k", "left_on": "k", "right_on": "k"}, JoinSpecError, "not both"),
    "left_on alone": ({"left_on": "k"}, JoinSpecError, "go together"),
    "unpaired": ({"left_on": ["k", "x"], "right_on": ["k"]}, JoinSpecError, "2 keys, right_on has 1"),
    "key twice": ({"on": ["k", "k"]}, JoinSpecError, "given twice"),
    "key that is no name": ({"on": [3]}, JoinSpecError, "given by name, got 3"),
    "keys by a mapping": ({"on": {"k": "x"}}, JoinSpecError, r"write left_on=\['k'\], right_on=\['x'\]"),
    "keys by a pair": ({"on": [("k", "x")]}, JoinSpecError, r"write left_on=\['k'\], right_on=\['x'\]"),
    "keys without an order": ({"on": {"k"}}, JoinSpecError, "sequence of names"),
    "cross with keys": ({"on": "k", "how": "cross"}, JoinSpecError, "takes no keys"),
    "not in without a key": (
        {"how": "null_aware_anti", "condition": left("k") < right("k")}, JoinSpecError, "1 to 62 keys",
    ),
    "incomparable": ({"left_on": "k", "right_on": "y"}, KeyTypeError, r"'k'.*'y'.*bigint.*string"),
    "nulls_equal of wrong length": ({"on": "k", "nulls_equal": [True, False]}, JoinSpecError, "each of the 1 keys"),
    "suffixes alike": ({"on": "k", "suffixes": ("_a", "_a")}, JoinSpecError, r"\['v'\].*must differ"),
    "suffix that clashes": ({"on": "k", "suffixes": ("", "")}, JoinSpecError, "must differ"),
    "unknown column in condition": ({"on": "k", "condition": left("w") > lit(1)}, ConditionError, "'w' does not exist"),
    "condition not boolean": ({"on": "k", "condition": left("v") + lit(1)}, ConditionError, "not boolean"),
    "condition over texts and numbers": ({"on": "k", "condition": left("v").like("a")}, ConditionError, "double"),
    "condition that is none": ({"on": "k", "condition": "v > 1"}, ConditionError, "must be an expression"),
    "unknown backend": ({"on": "k", "backend": "tpu"}, ConfigurationError, r"'tpu'.*'gpu' or 'cpu'"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "error", "message"), REFUSALS.values(), ids=REFUSALS)
def test_refusals(arguments: dict[str, Any], error: type[GpuJoinError], message: str) -> None:
    with pytest.raises(error, match=message):
        join_tables(A, B, **{"backend": "cpu", **arguments})


class UnreadableFrame:
    """As a DataFrame of Spark with timestamps: it asserts, without a word."""

    def toArrow(self) -> pa.Table:  # noqa: N802 - PySpark's name
        return A

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        raise AssertionError


def test_more_refusals() -> None:
    with pytest.raises(KeyTypeError, match=r"array.* cannot be joined on"):
        join_tables(NESTED, NESTED, on="k", backend="cpu")
    with pytest.raises(JoinSpecError, match=r"left input is a list"):
        join_tables([1], B, on="k")
    with pytest.raises(JoinSpecError, match=r"right input is a Int64Array that Arrow cannot read as a table"):
        join_tables(A, pa.array([1]), on="k")
    with pytest.raises(JoinSpecError, match=r"cannot read as a table: AssertionError; .* \(toArrow\(\) gives one\)"):
        join_tables(A, UnreadableFrame(), on="k")
    stream = A.to_reader()
    with pytest.raises(JoinSpecError, match="read only once"):
        join_tables(stream, stream, on="k")
    twice = pa.table([[1], [2]], names=["k", "k"])
    with pytest.raises(JoinSpecError, match=r"right input has the columns \['k'\] twice"):
        join_tables(A, twice, on="k", backend="cpu")
    zoned = pa.table({"k": pa.array([1], pa.timestamp("us", "UTC"))})
    naive = pa.table({"k": pa.array([1], pa.timestamp("us"))})
    with pytest.raises(KeyTypeError, match="time zone"):
        join_tables(zoned, naive, on="k", backend="cpu")
    with pytest.raises(JoinSpecError, match="pair up"):
        gather_maps(A, B.select(["k"]))
    with pytest.raises(JoinSpecError, match="use join_tables"):
        gather_maps(A["k"], B["k"], "cross")
    with pytest.raises(ConditionError, match="no truth value"):
        bool(left("a") == right("b"))
    with pytest.raises(JoinSpecError, match="sequence of names, got 3"):
        asof_join_tables(A, B, "k", by=3)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="metrics must be"):
        asof_join_tables(A, B, "k", metrics={})  # type: ignore[arg-type]
    with pytest.raises(JoinSpecError, match=r"keys must be KeyPair.*got \(\(0, 0\),\)"):
        JoinSpec(JoinType.INNER, ((0, 0),))  # type: ignore[arg-type]


UUIDS = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"a" * 16, b"b" * 16, None], pa.binary(16)))
STRUCTS = pa.array(
    [{"a": 1, "b": "x"}, None, {"a": 2, "b": None}], pa.struct([("a", pa.int64()), ("b", pa.string_view())])
)
VIEWS = pa.array(["x", "longer than twelve bytes", None], pa.string_view())


@pytest.mark.parametrize(
    ("keys", "merged"),
    [
        (UUIDS, None),
        (STRUCTS, None),
        (VIEWS, None),
        (VIEWS.cast(pa.binary_view()), None),
        (pc.run_end_encode(VIEWS.cast(pa.string())), None),
        (VIEWS.cast(pa.string()).dictionary_encode(), pa.string()),
    ],
    ids=["uuid", "struct with a view", "text view", "bytes view", "run-end encoded", "dictionary"],
)
def test_keys_of_any_layout(backend: AnyBackend, keys: pa.Array, merged: pa.DataType | None) -> None:
    """Null structs and null views included; after a full join keys of one type are of that type, dictionaries apart."""
    left_table = pa.table({"k": keys, "a": [1, 2, 3]})
    right_table = pa.table({"k": pa.concat_arrays([keys.slice(0, 2), keys.slice(1, 1)]), "b": [4, 5, 6]})
    expected_rows: dict[JoinName, int] = {"inner": 3 - (keys is STRUCTS) * 2, "full": 4 + (keys is STRUCTS)}
    for how, expected in expected_rows.items():
        result = join_tables(left_table, right_table, on="k", how=how, backend=backend)
        assert result.num_rows == expected
        assert result.schema.field("k").type == (keys.type if merged is None or how == "inner" else merged)
        matched = sorted(zip(result["a"].to_pylist(), result["b"].to_pylist(), strict=True), key=str)
        assert (1, 4) in matched
        assert ((2, 5) in matched) == (keys is not STRUCTS)


@pytest.mark.parametrize(
    "options",
    [{"batch_bytes": 0}, {"memory_budget": -1}, {"candidate_pairs": 0}, {"cpu_threads": 0}, {"batch_bytes": "many"},
     {"gpu_memory_fraction": 2}, {"backend": "tpu"}, {"nonsense": 1}],
    ids=str,
)  # fmt: skip
def test_absurd_options(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ConfigurationError, match=name):
        Options().replace(**options)


def test_a_backend_that_is_not_there_is_named() -> None:
    reason = unavailable(BackendName.GPU)
    if reason is None:
        pytest.skip("there is a GPU here")
    with pytest.raises(BackendUnavailableError, match=reason.why[:20]):
        join_tables(A, B, on="k", backend="gpu")
    assert join_tables(A, B, on="k", backend="auto").num_rows == 4


def test_nothing_is_read_before_arguments_are_checked() -> None:
    class Stream:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            raise AssertionError("was read")

    with pytest.raises(JoinSpecError, match="unknown join type"):
        join_tables(Stream(), Stream(), on="k", how="iner")  # type: ignore[arg-type]


def test_repeated_runs_agree(backend: AnyBackend, seed: int) -> None:
    left_table, right_table = sides(seed, [pa.int64()], (200, 200), KeyShape.ZIPF)
    right_table = right_table.rename_columns(["k0", "row2", "v2", "s2"])
    for join_type in KEYED:
        first, second = (
            join_tables(left_table, right_table, on="k0", how=join_type, backend=backend) for _ in range(2)
        )
        assert row_counts(first) == row_counts(second)


@pytest.mark.parametrize("value", [1.5, None, b"1m"])
def test_a_size_of_a_wrong_type_says_what_a_size_is(value: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"batch_bytes: .* is not a size such as 64m"):
        Options(batch_bytes=value)


@pytest.mark.parametrize("given", [None, 3, [1], [pa.table({"k": [1]})]], ids=repr)
def test_what_is_no_batch_is_refused(given: Any) -> None:
    schema = pa.schema([("k", pa.int64())])
    spec = JoinSpec(JoinType.INNER, (KeyPair(0, 0),), left_output=(0,))
    with HashJoin(spec, schema, schema) as join, pytest.raises(JoinSpecError, match="record batch"):
        join.build(given)


BAD_JOINS: dict[str, tuple[dict[str, Any], type[GpuJoinError], str]] = {
    "spec": ({"spec": "inner"}, JoinSpecError, "spec must be a JoinSpec, got 'inner'"),
    "table as schema": ({"left_schema": A}, JoinSpecError, "left_schema must be a pyarrow Schema, .*got pyarrow.Table"),
    "no schema": ({"right_schema": None}, JoinSpecError, "right_schema must be a pyarrow Schema, .*got NoneType"),
    "name of a side": ({"build_side": "right"}, JoinSpecError, "Side.LEFT or Side.RIGHT, got 'right'"),
    "options": ({"options": {"memory_budget": 5}}, ConfigurationError, "options must be .*memory_budget"),
    "no options": ({"options": {}}, ConfigurationError, "options must be"),
    "name of a backend": ({"backend": "cpu"}, ConfigurationError, "takes a Backend, got 'cpu'"),
    "number as backend": ({"backend": 5}, ConfigurationError, "backend must be .*got 5"),
    "metrics": ({"metrics": {}}, ConfigurationError, "metrics must be"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "error", "message"), BAD_JOINS.values(), ids=BAD_JOINS)
def test_a_hash_join_refuses_arguments_of_wrong_types(
    arguments: dict[str, Any], error: type[GpuJoinError], message: str
) -> None:
    spec = JoinSpec(JoinType.INNER, (KeyPair(0, 0),), left_output=(0,))
    with pytest.raises(error, match=message):
        HashJoin(**{"spec": spec, "left_schema": A.schema, "right_schema": B.schema, **arguments})


def test_gather_refuses_arguments_of_wrong_types() -> None:
    maps = gather_maps(A["k"], B["k"])
    for rows in ([0, 1], np.array([0]), maps):
        with pytest.raises(JoinSpecError, match=r"one side of GatherMaps, such as maps\.left, got"):
            gather(A, rows)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="unknown backend 'tpu'"):
        gather(A, maps.left, backend="tpu")
    with pytest.raises(ConfigurationError, match="options must be"):
        gather(A, maps.left, options={})  # type: ignore[arg-type]
    with pytest.raises(JoinSpecError, match="suffixes must be two texts"):
        maps.apply(A, B, suffixes=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", [None, 5, object()], ids=["none", "number", "object"])
def test_what_is_no_backend_is_refused(backend: Any) -> None:
    table = pa.table({"k": [1]})
    with pytest.raises(ConfigurationError, match="backend must be"):
        join_tables(table, table, "k", backend=backend)
