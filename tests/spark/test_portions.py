"""Heavy keys, and nulls of NOT IN, in the exchange: every join type against the oracle, then through Spark."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from gpujoin import gpu_join
from gpujoin.config import Options, Skew, Strategy
from gpujoin.engine.hashing import hash_rows
from gpujoin.model.expressions import Expression, left, right
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.spec import AsOf, JoinSpec, KeyPair
from gpujoin.model.stages import DeterminismLevel
from gpujoin.plan.resolve import resolve
from gpujoin.spark.blobrows import Portion, Role
from gpujoin.spark.metrics import Part
from gpujoin.spark.portions import Heavy, splittable
from gpujoin.spark.skew import Sample, heavy_keys
from gpujoin.spark.worker import JoinPartitions, JoinTerms, Split, Task
from gpujoin.testing import assert_same_rows
from tests.oracle.join import oracle_join
from tests.spark.joins import join, join_reports

LEFT = pa.schema([("l0", pa.int64()), ("l1", pa.int64()), ("l2", pa.int32())])
RIGHT = pa.schema([("r0", pa.int32()), ("r1", pa.int64()), ("r2", pa.int32())])
HEAVY = 7
LABELS, NULLS_LABEL = (0, 1, 2, 3), 9
TYPES = [how for how in JoinType if how is not JoinType.CROSS]
CONDITION = resolve(left("l1") < right("r1"), LEFT, RIGHT)


def rows(
    rng: np.random.Generator, schema: pa.Schema, count: int, *, heavy: bool, nulls: float
) -> pa.RecordBatch:
    keys = rng.integers(0, 20, count)
    keys = np.where(rng.random(count) < 0.4, HEAVY, keys) if heavy else np.where(keys == HEAVY, 1, keys)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(keys, schema.field(0).type, mask=rng.random(count) < nulls),
            pa.array(rng.integers(0, 5, count)),
            pa.array(rng.integers(0, 3, count), pa.int32(), mask=rng.random(count) < nulls / 2),
        ],
        schema=schema,
    )


def hashes(*keys: int) -> tuple[int, ...]:
    return tuple(int(h) for h in hash_rows(pa.table({"k": pa.array(keys, pa.int64())})))


def exchanged(
    terms: JoinTerms, sides: dict[Side, pa.RecordBatch], mappers: int = 3
) -> tuple[pa.Table, pa.Table]:
    """What the join gives, and the blob rows, with Spark's part done here."""
    made: list[pa.RecordBatch] = []
    for role in Role:
        some = sides[terms.side(role)]
        step = -(-max(1, some.num_rows) // mappers)
        for number in range(mappers):
            made += Split(terms, role, LABELS).run([some.slice(number * step, step)], Task(partition=number))
    blobs = pa.Table.from_batches(made).sort_by([("p", "ascending"), ("side", "ascending")])
    found: list[pa.RecordBatch] = []
    for label in pc.unique(blobs["p"]).to_pylist():
        part = blobs.filter(pc.equal(blobs["p"], label))
        found += JoinPartitions(terms).run(part.to_batches(max_chunksize=3), Task())
    return pa.Table.from_batches(found, terms.spec.output_schema(LEFT, RIGHT)), blobs


def portions(blobs: pa.Table) -> set[Portion]:
    return {Portion(side // 2) for side in blobs["side"].to_pylist()}


@pytest.mark.parametrize("condition", [None, CONDITION], ids=["keys alone", "condition"])
@pytest.mark.parametrize("how", TYPES, ids=lambda how: how.value)
def test_heavy_keys_change_no_answer(
    how: JoinType, condition: Expression | None, rng: np.random.Generator
) -> None:
    spec = JoinSpec(how, (KeyPair(0, 0),), condition, (0, 1), () if how.left_rows_only else (0, 1))
    in_all = splittable(spec)
    assert bool(in_all) is not (how is JoinType.FULL and condition is not None)
    apart = how.null_aware
    for split in in_all:
        for here in ((True, True), (True, False), (False, True)):
            sides = {
                Side.LEFT: rows(rng, LEFT, 200, heavy=here[0], nulls=0.1),
                Side.RIGHT: rows(rng, RIGHT, 150, heavy=here[1], nulls=0.0 if apart else 0.1),
            }
            expected = oracle_join(pa.table(sides[Side.LEFT]), pa.table(sides[Side.RIGHT]), spec)
            for build in (Side.RIGHT,) if apart else Side:
                terms = JoinTerms(
                    "j", spec, LEFT, RIGHT, build, Options(), 1 << 12, Heavy(hashes(HEAVY, 11), split),
                    NULLS_LABEL if apart else None,
                )  # fmt: skip
                found, blobs = exchanged(terms, sides)
                assert Portion.HEAVY in portions(blobs)
                assert (Portion.UNMET in portions(blobs)) is (how is JoinType.FULL)
                homes = blobs.filter(pc.equal(blobs["side"], 2 * Portion.HEAVY + Role.STREAM))["p"]
                if here[0 if split is Side.LEFT else 1]:
                    assert set(homes.to_pylist()) == set(LABELS), (
                        "heavy rows were not split over all partitions"
                    )
                assert_same_rows(found, expected, allow_empty=True, context=f"{split}, {here}, {build}")


@pytest.mark.parametrize("outputs", [((), ()), ((1,), ()), ((), (1,))], ids=["none", "left", "right"])
@pytest.mark.parametrize("how", [JoinType.INNER, JoinType.LEFT, JoinType.FULL], ids=lambda how: how.value)
def test_heavy_keys_where_a_side_gives_no_columns(
    how: JoinType, outputs: tuple[tuple[int, ...], tuple[int, ...]], rng: np.random.Generator
) -> None:
    """As in ``count(*)``: rows without columns come with a stand-in for them."""
    spec = JoinSpec(how, (KeyPair(0, 0),), None, *outputs)
    for split in splittable(spec):
        keys = [rng.integers(0, 20, 200), rng.integers(0, 20, 150)]
        keys[0 if split is Side.LEFT else 1] = rng.integers(
            0, 7, 100
        )  # heavy rows of the other side meet none
        schemas = dict(zip(Side, (LEFT, RIGHT), strict=True))
        sides = {
            side: pa.RecordBatch.from_arrays(
                [pa.array(some, f.type) for f in schemas[side]], schema=schemas[side]
            )
            for side, some in zip(Side, keys, strict=True)
        }
        terms = JoinTerms("j", spec, LEFT, RIGHT, Side.RIGHT, Options(), 1 << 12, Heavy(hashes(3, 11), split))
        batches = [
            batch
            for role in Role
            for batch in Split(terms, role, LABELS).run([sides[terms.side(role)]], Task())
        ]
        blobs = pa.Table.from_batches(batches).sort_by([("p", "ascending"), ("side", "ascending")])
        found = [
            batch
            for label in LABELS
            for batch in JoinPartitions(terms).run(
                blobs.filter(pc.equal(blobs["p"], label)).to_batches(), Task()
            )
        ]
        counted = JoinSpec(how, (KeyPair(0, 0),), None, (1,), (1,))
        expected = oracle_join(pa.table(sides[Side.LEFT]), pa.table(sides[Side.RIGHT]), counted)
        assert sum(batch.num_rows for batch in found) == expected.num_rows
        if any(outputs):
            kept = expected.select([0 if outputs[0] else 1])
            schema = spec.output_schema(LEFT, RIGHT)
            assert_same_rows(pa.Table.from_batches(found, schema), kept.cast(schema))


@pytest.mark.parametrize("condition", [None, CONDITION], ids=["keys alone", "condition"])
@pytest.mark.parametrize("heavy", [None, Heavy(hashes(HEAVY), Side.LEFT)], ids=["even", "heavy"])
def test_not_in_over_two_columns(
    heavy: Heavy | None, condition: Expression | None, rng: np.random.Generator
) -> None:
    """Nulls on both sides: right ones go everywhere, left ones meet all right rows."""
    spec = JoinSpec(JoinType.NULL_AWARE_ANTI, (KeyPair(0, 0), KeyPair(2, 2)), condition, (0, 1, 2))
    if heavy is not None:
        keys = pa.table({"a": pa.array([HEAVY] * 3), "b": pa.array([0, 1, 2], pa.int32())})
        heavy = Heavy(tuple(int(h) for h in hash_rows(keys)), Side.LEFT)
    kept = 0
    for nulls in (0.0, 0.02, 0.3):
        sides = {
            Side.LEFT: rows(rng, LEFT, 200, heavy=True, nulls=0.1),
            Side.RIGHT: rows(rng, RIGHT, 30, heavy=False, nulls=nulls),
        }
        terms = JoinTerms("j", spec, LEFT, RIGHT, Side.RIGHT, Options(), 1 << 12, heavy, NULLS_LABEL)
        found, blobs = exchanged(terms, sides)
        assert Portion.NULLS in portions(blobs)
        kept += found.num_rows
        assert_same_rows(
            found,
            oracle_join(pa.table(sides[Side.LEFT]), pa.table(sides[Side.RIGHT]), spec),
            allow_empty=True,
        )
    assert kept


def test_as_of_joins_split_their_left_side(rng: np.random.Generator) -> None:
    spec = JoinSpec(JoinType.LEFT, (KeyPair(0, 0),), None, (0, 1), (1,), as_of=AsOf(1, 1))
    sides = {
        Side.LEFT: rows(rng, LEFT, 200, heavy=True, nulls=0.1),
        Side.RIGHT: rows(rng, RIGHT, 150, heavy=True, nulls=0.1),
    }
    plain = JoinTerms("j", spec, LEFT, RIGHT, Side.RIGHT, Options(), 1 << 12)
    split = JoinTerms("j", spec, LEFT, RIGHT, Side.RIGHT, Options(), 1 << 12, Heavy(hashes(HEAVY), Side.LEFT))
    assert_same_rows(exchanged(split, sides)[0], exchanged(plain, sides)[0])


def test_placement_does_not_depend_on_order(rng: np.random.Generator) -> None:
    """Spark may run a mapper again, its rows in another order, and mix what the two runs made."""
    one_key = pa.schema([("l0", pa.int64())])
    spec = JoinSpec(JoinType.INNER, (KeyPair(0, 0),), None, (0,), (0,))
    keys = pa.RecordBatch.from_arrays([pa.array(np.where(rng.random(500) < 0.5, HEAVY, 11))], schema=one_key)
    terms = JoinTerms(
        "j", spec, one_key, RIGHT, Side.RIGHT, Options(), 1 << 10, Heavy(hashes(HEAVY, 11), Side.LEFT)
    )

    def placed(batches: list[pa.RecordBatch]) -> dict[tuple[int, int], int]:
        found: dict[tuple[int, int], int] = {}
        form = terms.forms_of(Portion.HEAVY, terms.portions()[Portion.HEAVY])[1]
        for batch in Split(terms, Role.STREAM, LABELS).run(batches, Task()):
            for label, data in zip(batch["p"].to_pylist(), batch["data"], strict=True):
                for key in form.decode(data.as_buffer(), label)["l0"].to_pylist():
                    found[label, key] = found.get((label, key), 0) + 1
        return found

    forward = placed([keys])
    turned = keys.take(pa.array(rng.permutation(500)))
    assert placed([turned.slice(0, 100), turned.slice(100)]) == forward
    for key in (HEAVY, 11):
        counts = [count for (_, own), count in forward.items() if own == key]
        assert len(counts) == len(LABELS)
        assert max(counts) - min(counts) <= 1, "rows of keys alone were not split evenly"


def test_rows_in_one_order_are_dealt_out_however_they_are_cut(rng: np.random.Generator) -> None:
    """Rows alike are spread evenly, and a second run places each as the first did."""
    given = pa.RecordBatch.from_arrays(
        [
            pa.array(np.where(rng.random(600) < 0.5, HEAVY, 1), mask=rng.random(600) < 0.3),
            pa.array(np.zeros(600, np.int64)), pa.array(np.zeros(600, np.int32)),
        ],
        schema=LEFT,
    )  # fmt: skip
    spec = JoinSpec(JoinType.LEFT, (KeyPair(0, 0),), None, (0, 1), (0,))
    terms = JoinTerms(
        "j", spec, LEFT, RIGHT, Side.RIGHT, Options(), 1 << 10, Heavy(hashes(HEAVY), Side.LEFT),
        determinism=dict.fromkeys(Side, DeterminismLevel.DETERMINATE),
    )  # fmt: skip
    forms = {
        form.number: form
        for portion, one in terms.portions().items()
        for form in terms.forms_of(portion, one)
    }

    def placed(batches: list[pa.RecordBatch]) -> Counter[tuple[int, int | None]]:
        found: Counter[tuple[int, int | None]] = Counter()
        for batch in Split(terms, Role.STREAM, LABELS).run(batches, Task()):
            for label, side, data in zip(
                *(batch[name].to_pylist() for name in ("p", "side", "data")), strict=True
            ):
                found.update(
                    (label, key) for key in forms[side].decode(pa.py_buffer(data), label)["l0"].to_pylist()
                )
        return found

    whole = placed([given])
    assert placed([given.slice(start, 7) for start in range(0, 600, 7)]) == whole
    for key in (HEAVY, None):
        counts = [whole[label, key] for label in LABELS]
        assert max(counts) - min(counts) <= 1 < min(counts)


def test_choosing_heavy_keys() -> None:
    def sample(rows_: int, **seen: int) -> Sample:
        made = Sample()
        made.add(None, rows_)
        for name, count in seen.items():
            made.add(int(name[1:]), count)
        return made

    sizes: dict[Side, int | None] = {Side.LEFT: 1000, Side.RIGHT: 1000}
    both = (Side.LEFT, Side.RIGHT)
    even = {side: sample(1000, k1=20, k2=20) for side in Side}
    assert heavy_keys({Side.LEFT: even[Side.LEFT], Side.RIGHT: sample(1000)}, sizes, both, 8) is None
    one = {Side.LEFT: sample(1000, k1=500), Side.RIGHT: sample(1000, k1=20)}
    assert heavy_keys(one, sizes, both, 8) == Heavy((1,), Side.LEFT)
    assert heavy_keys(one, sizes, (Side.RIGHT,), 8) is None, "replicating the larger side is no gain"
    pairs = {Side.LEFT: sample(1000, k1=100, k2=20), Side.RIGHT: sample(1000, k1=90, k2=16)}
    assert heavy_keys(pairs, sizes, both, 8) == Heavy((1,), Side.LEFT), "its pairs are nearly all"
    assert heavy_keys({side: sample(0) for side in Side}, sizes, both, 8) is None


@pytest.mark.spark
@pytest.mark.parametrize("how", ["inner", "full", "left_anti"])
def test_through_spark(spark: SparkSession, how: str) -> None:
    one = spark.range(4000).selectExpr("if(id % 2 = 0, 7, id % 50) as k", "id as i")
    two = spark.range(300).selectExpr("if(id % 20 = 0, 7, id % 90 * 2) as k", "id as j")
    for name, value in {"skew": "on", "partitions": "4"}.items():
        spark.conf.set(f"spark.gpujoin.exchange.{name}", value)
    try:
        found = gpu_join(one, two, "k", how, strategy="shuffle", backend="cpu")
        assert_same_rows(found.toArrow(), one.join(two, "k", how).toArrow())
        (report,) = join_reports(found)
        assert report.exchanges[Part.STREAM_EXCHANGE].heavy > 1000
        assert "of heavy keys" in str(report)
    finally:
        for name in ("skew", "partitions"):
            spark.conf.unset(f"spark.gpujoin.exchange.{name}")


@pytest.mark.spark
def test_a_sample_that_fails_fails_nothing(spark: SparkSession) -> None:
    one = spark.range(100).selectExpr("if(id < 0, raise_error('no'), id % 5) as l0", "id as l1")
    broken = one.selectExpr("if(l1 = 3, raise_error('sampled'), l0) as l0", "l1")
    two = spark.range(100).selectExpr("id % 5 as r0")
    options = Options(exchange_skew=Skew.ON, fallback="raise")  # type: ignore[arg-type]
    joined = join(broken, two, JoinType.INNER, Strategy.SHUFFLE, options=options, partitions=4)
    with pytest.raises(Exception, match="sampled"):
        joined.count()
