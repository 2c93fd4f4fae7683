"""Join type × null equality × key type × backend × condition × batch size × build side, against the row loop.

Each build side takes one batch size in a test, in turn, so that every two of these meet; the long sweeps take all,
and join by one key with each operator under each condition.
"""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest

from gpujoin.config import Options
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.model.backend import AnyBackend
from gpujoin.model.jointype import JoinType, Side
from gpujoin.testing import Zeros, assert_same_rows
from tests.brief import each_once
from tests.engine.support import (
    CONDITIONS,
    KEYED,
    WHOLE,
    build_sides,
    duckdb_agrees,
    in_duckdb,
    keyed,
    run_join,
    sides,
)
from tests.generate import KEY_TYPES, KeyShape
from tests.oracle.join import oracle_join

BATCH_ROWS = (1, 2, 7, WHOLE)
LEFT_BATCH_ROWS = (2, WHOLE)
"""With the left side built the batching is the same code: two sizes are enough."""

MATRIX_CONDITIONS = ("no condition", "l.v < r.v")
WITHOUT_KEYS: list[JoinType] = [kind for kind in KEYED if kind is not JoinType.NULL_AWARE_ANTI]


def check_all_ways(
    backend: AnyBackend,
    left: pa.Table,
    right: pa.Table,
    join_type: JoinType,
    *,
    keys: int = 1,
    equal: bool | tuple[bool, ...] = False,
    condition: str = "no condition",
    batch_rows: tuple[int, ...] = BATCH_ROWS,
    turn: int | None = None,
    context: str = "",
) -> None:
    """Check both build sides, with every batch size or, for the right and the left side, that of a turn."""
    left_batch_rows: tuple[int, ...] = LEFT_BATCH_ROWS
    if turn is not None:
        batch_rows = (batch_rows[turn % len(batch_rows)],)
        left_batch_rows = (LEFT_BATCH_ROWS[(turn + 1) % 2],)
    spec = keyed(join_type, left, right, keys=keys, equal=equal, condition=CONDITIONS[condition])
    expected = oracle_join(left, right, spec)
    for build_side in build_sides(join_type):
        for rows in batch_rows if build_side is Side.RIGHT else left_batch_rows:
            metrics = JoinMetrics()
            actual = run_join(
                spec, left, right, backend=backend, build_side=build_side, batch_rows=rows, metrics=metrics,
                options=Options(batch_bytes=512 if rows == 7 else 1 << 20),
            )  # fmt: skip
            assert_same_rows(
                actual,
                expected,
                allow_empty=True,
                context=f"{context}, build {build_side.value}, batches of {rows}",
            )
            built, probed = (right, left) if build_side.value == "right" else (left, right)
            # What returns build rows alone reads no other rows where it has none.
            unread = build_side is Side.LEFT and join_type.left_rows_only and not built.num_rows
            read = 0 if unread else probed.num_rows
            assert (metrics.build_rows, metrics.probe_rows) == (built.num_rows, read)
            assert metrics.output_rows == expected.num_rows
            assert metrics.spills == metrics.retries == metrics.fallbacks == 0
            ranged = condition == "l.v < r.v" and not keys
            assert bool(metrics.algorithms) == bool(keys or ranged)


@pytest.mark.few
@pytest.mark.parametrize(("operator", "condition"), each_once(("=", "<=>"), MATRIX_CONDITIONS))
@pytest.mark.parametrize("key", KEY_TYPES)
@pytest.mark.parametrize("join_type", KEYED, ids=lambda t: t.value)
def test_one_key(backend: AnyBackend, join_type: JoinType, key: str, operator: str, condition: str, seed: int) -> None:
    left, right = sides(seed, [KEY_TYPES[key]], (41, 35))
    equal = operator == "<=>"
    # The four tests of a key type and join type take the four batch sizes.
    turn = list(KEY_TYPES).index(key) + KEYED.index(join_type) + 2 * equal + MATRIX_CONDITIONS.index(condition)
    check_all_ways(backend, left, right, join_type, equal=equal, condition=condition, turn=turn, context=f"seed {seed}")


@pytest.mark.slow
@pytest.mark.parametrize("shape", KeyShape, ids=lambda s: s.value)
@pytest.mark.parametrize("key", KEY_TYPES)
@pytest.mark.parametrize("join_type", KEYED, ids=lambda t: t.value)
def test_key_shapes(backend: AnyBackend, join_type: JoinType, key: str, shape: KeyShape, seed: int) -> None:
    for equal in (False, True):
        for condition in MATRIX_CONDITIONS:
            left, right = sides(seed, [KEY_TYPES[key]], (60, 50), shape, nulls=0.05)
            check_all_ways(backend, left, right, join_type, equal=equal, condition=condition, context=f"seed {seed}")


KEY_SETS = {
    "int32, int64": ("int32", "int64"),
    "int64, int64": ("int64", "int64"),
    "string, int8": ("string", "int8"),
    "double, date": ("double", "date"),
    "decimal, string": ("decimal_38_10", "string"),
    "bool, bool, int16": ("bool", "bool", "int16"),
    "null, int32": ("null", "int32"),
    "struct, int32": ("struct", "int32"),
    "five": ("int32", "string", "bool", "timestamp", "float"),
}


@pytest.mark.few
@pytest.mark.parametrize("equal", ["all =", "all <=>", "mixed"])
@pytest.mark.parametrize("names", KEY_SETS.values(), ids=KEY_SETS)
@pytest.mark.parametrize("join_type", WITHOUT_KEYS, ids=lambda t: t.value)
def test_many_keys(backend: AnyBackend, join_type: JoinType, names: tuple[str, ...], equal: str, seed: int) -> None:
    left, right = sides(seed, [KEY_TYPES[n] for n in names], (50, 45), distinct=3)
    choices = {
        "all =": (False,) * len(names),
        "all <=>": (True,) * len(names),
        "mixed": tuple(i % 2 == 0 for i in range(len(names))),
    }
    check_all_ways(
        backend,
        left,
        right,
        join_type,
        keys=len(names),
        equal=choices[equal],
        batch_rows=(7, WHOLE),
        turn=WITHOUT_KEYS.index(join_type) + list(choices).index(equal),
        context=f"seed {seed}",
    )


@pytest.mark.few
@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("join_type", KEYED, ids=lambda t: t.value)
def test_conditions(backend: AnyBackend, join_type: JoinType, condition: str, seed: int) -> None:
    left, right = sides(seed, [pa.int64()], (50, 45), distinct=6)
    check_all_ways(backend, left, right, join_type, condition=condition, context=f"seed {seed}")


@pytest.mark.few
@pytest.mark.parametrize("condition", [c for c in CONDITIONS if c != "no condition"])
@pytest.mark.parametrize("join_type", WITHOUT_KEYS, ids=lambda t: t.value)
def test_without_keys(backend: AnyBackend, join_type: JoinType, condition: str, seed: int) -> None:
    left, right = sides(seed, [], (23, 31))
    check_all_ways(backend, left, right, join_type, keys=0, condition=condition, context=f"seed {seed}")


@pytest.mark.parametrize("join_type", [JoinType.CROSS, *WITHOUT_KEYS], ids=lambda t: t.value)
def test_neither_keys_nor_condition(backend: AnyBackend, join_type: JoinType, seed: int) -> None:
    left, right = sides(seed, [], (13, 11))
    check_all_ways(backend, left, right, join_type, keys=0, context=f"seed {seed}")


@pytest.mark.few(2)
@pytest.mark.parametrize("rows", [(0, 0), (0, 9), (9, 0), (1, 1)], ids=str)
@pytest.mark.parametrize("condition", ["no condition", "l.row > 5", "l.v < r.v"])
@pytest.mark.parametrize("keys", [0, 1, 2])
@pytest.mark.parametrize("join_type", [JoinType.CROSS, *KEYED], ids=lambda t: t.value)
def test_empty_sides(
    backend: AnyBackend, join_type: JoinType, keys: int, condition: str, rows: tuple[int, int], seed: int
) -> None:
    if join_type is JoinType.CROSS and (keys or condition != "no condition"):
        pytest.skip("a cross join has neither keys nor condition")
    if join_type is JoinType.NULL_AWARE_ANTI and keys != 1:
        pytest.skip("a null-aware anti join has one key")
    left, right = sides(seed, [pa.int32(), pa.string()][:keys], rows)
    check_all_ways(
        backend,
        left,
        right,
        join_type,
        keys=keys,
        condition=condition,
        batch_rows=(2, WHOLE),
        context=f"seed {seed}",
    )


MIXED = {
    "int8 = int64": (pa.int8(), pa.int64()),
    "int32 = int16": (pa.int32(), pa.int16()),
    "int64 = decimal(38, 10)": (pa.int64(), pa.decimal128(38, 10)),
    "decimal(7, 2) = decimal(18, 0)": (pa.decimal128(7, 2), pa.decimal128(18, 0)),
    "decimal(38, 38) = decimal(38, 0)": (pa.decimal128(38, 38), pa.decimal128(38, 0)),
    "float = double": (pa.float32(), pa.float64()),
    "int64 = double": (pa.int64(), pa.float64()),
    "string = large_string": (pa.string(), pa.large_string()),
    "dictionary = string": (pa.dictionary(pa.int8(), pa.string()), pa.string()),
    "dictionary = dictionary": (
        pa.dictionary(pa.int8(), pa.string()),
        pa.dictionary(pa.int32(), pa.large_string()),
    ),
    "binary = large_binary": (pa.binary(), pa.large_binary()),
    "null = int32": (pa.null(), pa.int32()),
    "timestamp ms = us": (pa.timestamp("ms"), pa.timestamp("us")),
    "struct": (
        pa.struct([("a", pa.int8()), ("b", pa.string())]),
        pa.struct([("x", pa.int64()), ("y", pa.large_string())]),
    ),
}


@pytest.mark.few
@pytest.mark.parametrize("equal", [False, True], ids=["=", "<=>"])
@pytest.mark.parametrize("dtypes", MIXED.values(), ids=MIXED)
def test_keys_of_different_types(
    backend: AnyBackend, dtypes: tuple[pa.DataType, pa.DataType], equal: bool, seed: int
) -> None:
    left, _ = sides(seed, [dtypes[0]], (60, 60))
    _, right = sides(seed, [dtypes[1]], (60, 60))
    for join_type in (JoinType.FULL, JoinType.LEFT_ANTI, JoinType.NULL_AWARE_ANTI):
        check_all_ways(backend, left, right, join_type, equal=equal, batch_rows=(7, WHOLE), context=f"seed {seed}")


@pytest.mark.few
@pytest.mark.parametrize("shape", KeyShape, ids=lambda s: s.value)
@pytest.mark.parametrize("key", [k for k, t in KEY_TYPES.items() if duckdb_agrees(t)])
def test_larger_against_duckdb(
    backend: AnyBackend, key: str, shape: KeyShape, seed: int, duck: duckdb.DuckDBPyConnection
) -> None:
    hot = shape in (KeyShape.HOT, KeyShape.ZIPF) or key == "bool"
    left, right = sides(seed, [KEY_TYPES[key]], (90, 80) if hot else (900, 800), shape, nulls=0.05)
    turn = list(KEY_TYPES).index(key) + list(KeyShape).index(shape)
    for number, join_type in enumerate(KEYED):
        expected = in_duckdb(duck, join_type, left, right)
        both = build_sides(join_type)
        build_side = both[(turn + number) % len(both)]
        spec = keyed(join_type, left, right)
        actual = run_join(spec, left, right, backend=backend, build_side=build_side, batch_rows=400)
        assert_same_rows(
            actual, expected.rename_columns(actual.schema.names), zeros=Zeros.SAME, check_types=False,
            allow_empty=True, context=f"seed {seed}, {join_type.value}, build {build_side.value}",
        )  # fmt: skip
