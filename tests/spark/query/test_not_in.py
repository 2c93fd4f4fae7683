"""NOT IN of exchanged rows: each partition joins what it has, and all of them together give what the whole does."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from gpujoin.config import Strategy
from gpujoin.model.expressions import Call, ColumnRef, Function
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.relations import Join, Scan
from gpujoin.model.spec import JoinSpec, KeyPair, NullEquality
from gpujoin.model.stages import Distribution, Exchange
from gpujoin.plan.parts import ScanFacts, StageLimits
from gpujoin.plan.stages import plan_stages
from gpujoin.spark.shuffle.blobrows import BlobFormat
from gpujoin.spark.shuffle.exchanges import Outlet
from gpujoin.testing import assert_same_rows
from tests.brief import brief, together
from tests.oracle.join import oracle_join
from tests.spark.query.queries import EXCHANGED, FORCED, check_all

LABELS = (5, 6, 7)
LIMITS = StageLimits(cores=len(LABELS), task_bytes=1 << 27, broadcast_threshold=1, partitions=len(LABELS))
EQUAL, UNEQUAL = NullEquality.EQUAL, NullEquality.UNEQUAL
KEYS = {"=": (UNEQUAL,), "= =": (UNEQUAL, UNEQUAL), "= <=>": (UNEQUAL, EQUAL), "<=>": (EQUAL,)}
KINDS = (JoinType.NULL_AWARE_ANTI, JoinType.NULL_AWARE_EXISTENCE)
RIGHTS = {
    "rows": (60, 0.1),
    "nulls": (12, 0.8),
    "no nulls": (60, 0.0),
    "one null": (1, 1.0),
    "empty": (0, 0.0),
}


def schema(*, nullable: bool) -> pa.Schema:
    return pa.schema([pa.field(name, pa.int64(), nullable) for name in ("k", "l", "v")])


def table(rng: np.random.Generator, rows: int, share: float, *, nullable: bool) -> pa.Table:
    columns = [
        pa.array(rng.integers(0, 12, rows), mask=(rng.random(rows) < share) if nullable else None) for _ in range(3)
    ]
    return pa.table(columns, schema=schema(nullable=nullable))


def placed(outlet: Outlet, rows: pa.Table, mappers: int = 2) -> dict[int, pa.Table]:
    found: dict[int, list[pa.RecordBatch]] = {label: [] for label in LABELS}
    step = max(1, -(-rows.num_rows // mappers))
    for salt in range(mappers):
        for made in outlet.split(rows.slice(salt * step, step).to_batches(max_chunksize=20), salt):
            for label, data in zip(made.column(0).to_pylist(), made.column(2), strict=True):
                found[label].append(outlet.form.decode(data.as_buffer(), label))
    return {label: pa.Table.from_batches(batches, outlet.form.schema) for label, batches in found.items()}


@pytest.mark.few
@pytest.mark.parametrize("correlated", [False, True], ids=["", "correlated"])
@pytest.mark.parametrize("nullable", [True, False], ids=["", "no null on the left"])
@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)
def test_partitions_join_as_the_whole(
    kind: JoinType,
    keys: tuple[NullEquality, ...],
    nullable: bool,
    correlated: bool,
    rng: np.random.Generator,
) -> None:
    condition = None
    if correlated:
        sides = [ColumnRef(side=side, name="v", index=2, type=pa.int64()) for side in Side]
        condition = Call(function=Function.LT, arguments=tuple(sides), type=pa.bool_())
    pairs = tuple(KeyPair(n, n, nulls) for n, nulls in enumerate(keys))
    left, right = schema(nullable=nullable), schema(nullable=True)
    spec = JoinSpec(kind, pairs, condition, (0, 1, 2))
    relation = Join(Scan(left, index=0), Scan(right, index=1), spec, Side.RIGHT, Distribution.PARTITIONED)
    stage = plan_stages(relation, {0: ScanFacts(1e6, 1 << 30), 1: ScanFacts(1e6, 1 << 30)}, LIMITS)
    assert stage is not None
    assert isinstance(stage.tree, Join)
    whole = stage.tree
    exchanges: dict[Side, Exchange] = dict(zip((Side.RIGHT, Side.LEFT), stage.inputs, strict=True))
    for rows, share in RIGHTS.values():
        tables = {
            Side.LEFT: table(rng, 80, 0.25, nullable=nullable),
            Side.RIGHT: table(rng, rows, share, nullable=True),
        }
        tables = {side: one.select(exchanges[side].schema.names) for side, one in tables.items()}
        outlets = {
            side: Outlet.from_exchange(each, BlobFormat(each.schema), LABELS, 1 << 12)
            for side, each in exchanges.items()
        }
        parts = {side: placed(outlet, tables[side]) for side, outlet in outlets.items()}
        joined = [oracle_join(parts[Side.LEFT][label], parts[Side.RIGHT][label], whole.spec) for label in LABELS]
        expected = oracle_join(tables[Side.LEFT], tables[Side.RIGHT], whole.spec)
        assert_same_rows(pa.concat_tables(joined), expected, allow_empty=True)
        assert sum(one.num_rows for one in parts[Side.LEFT].values()) == 80, "no left row is sent twice"
        if nullable is False or keys == (EQUAL,):
            assert rows < 60 or max(one.num_rows for one in parts[Side.RIGHT].values()) < rows


ROWS = """
select * from values (1, 1, 10), (1, null, 20), (2, 1, 30), (null, 1, 40), (null, null, 50), (3, 3, 60), (4, 4, 70),
  (5, null, 80), (6, 6, null) as t(k, l, v)
"""
SUBQUERIES = {
    "rows": "select k, l, v from nested where v > 25",
    "no nulls": "select k, l, v from nested where k is not null and l is not null and k < 4",
    "null keys": "select k, l, v from nested where k is null and l = 1",
    "one null": "select k, l, v from nested where k is null and l is null",
    "nothing": "select k, l, v from nested where v > 100",
}


@pytest.fixture(scope="module")
def nested(spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The rows in files, as a view."""
    folder = str(tmp_path_factory.mktemp("nested") / "nested")
    spark_session.sql(ROWS).repartition(3, "v").write.parquet(folder)
    spark_session.read.parquet(folder).createOrReplaceTempView("nested")
    yield
    spark_session.catalog.dropTempView("nested")


QUERIES = {
    "one column": "select k, v from nested where k not in (select k from ({0}))",
    "two columns": "select k, l, v from nested where (k, l) not in (select k, l from ({0}))",
    "correlated": "select k, l, v from nested a where l not in (select b.l from ({0}) b where b.k = a.k)",
    "correlated by <=>": "select k, l, v from nested a where l not in (select b.l from ({0}) b where b.k <=> a.k)",
    "correlated by <": "select k, l, v from nested a where l not in (select b.l from ({0}) b where b.v < a.v)",
    "under or": "select k, l, v from nested where k not in (select k from ({0})) or v = 10",
    "two under or": "select k, v, (k, l) not in (select k, l from ({0})) or v = 10 as f from nested",
}


PAIRS = {
    f"{query}, {subquery}": text.format(rows)
    for query, text in QUERIES.items()
    for subquery, rows in SUBQUERIES.items()
}
BRIEF = ("two columns, no nulls", "correlated by <=>, one null", "under or, nothing")


CORRELATIONS = {
    "l": ("a.l not in (select b.l from ({0}) b where b.k = a.k)", ("l = l", "k <=> k"), None),
    "both may be null": ("(a.k, a.l) not in (select b.k, b.l from ({0}) b where b.v = a.v)", None, None),
    "computed": ("a.l not in (select b.l from ({0}) b where b.k + 1 = a.v div 10)", None, None),
    "and a range": (
        "a.l not in (select b.l from ({0}) b where b.k = a.k and b.v < a.v + 25)",
        ("l = l", "k <=> k"),
        "v",
    ),
    "under or": ("a.l not in (select b.l from ({0}) b where b.k = a.k) or a.v = 10", ("l = l", "k <=> k"), None),
}


@pytest.mark.few
@pytest.mark.spark
@pytest.mark.parametrize("spark", [FORCED, EXCHANGED], indirect=True, ids=["one task", "exchanged"])
@pytest.mark.parametrize("name", brief(CORRELATIONS, "both may be null", "and a range"))
@pytest.mark.parametrize("rows", together(SUBQUERIES, "rows", "null keys", "nothing"))
def test_a_correlation_by_equality_is_a_key(
    spark: SparkSession, nested: None, name: str, rows: tuple[str, ...]
) -> None:
    """Rows with nulls are searched among those with the same key, and compared with no others."""
    text, keys, condition = CORRELATIONS[name]
    asked = {name: f"select k, l, v from nested a where {text.format(SUBQUERIES[name])}" for name in rows}
    for found in check_all({name: spark.sql(query) for name, query in asked.items()}, empty=SUBQUERIES).values():
        assert found.islands
        for join in found.joins:
            assert (join.condition is None) == (condition is None)
            assert set(join.keys) == set(keys or join.keys)
            assert len(join.keys) > 1


@pytest.mark.spark
@pytest.mark.parametrize("spark", [EXCHANGED | {"spark.gpujoin.strategy": "shuffle"}], indirect=True, ids=["exchanged"])
@pytest.mark.parametrize("cases", together(PAIRS, *BRIEF))
def test_through_spark(spark: SparkSession, nested: None, cases: tuple[str, ...]) -> None:
    for found in check_all({case: spark.sql(PAIRS[case]) for case in cases}, empty=PAIRS).values():
        assert [join.strategy for join in found.joins] == [Strategy.SHUFFLE]
        assert [island.tasks for island in found.islands] == [3]
