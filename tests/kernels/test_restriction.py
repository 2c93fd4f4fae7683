"""Conditions tested by a kernel on what a probe found: whole joins over emulated kernels against the oracle."""

from __future__ import annotations

import functools
import operator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gpujoin.backends.cudf import residual
from gpujoin.backends.cudf.index import IndexProbe
from gpujoin.config import Options
from gpujoin.engine.join.hash_join import HashJoin
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.engine.pipeline import run
from gpujoin.errors import ExpressionEvaluationError
from gpujoin.launch.matches import UniqueMatches
from gpujoin.model.algorithm import Algorithm
from gpujoin.model.expressions import EvalMode, Expression, left, lit, right
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.relations import ExchangeSource, Join
from gpujoin.model.spec import JoinSpec, KeyPair
from gpujoin.plan.resolve import resolve
from gpujoin.testing import assert_same_rows
from tests.backends.cudf.host import HostBackend, HostSource, emulated_ops, on_host
from tests.backends.cudf.pipeline import host_pipeline
from tests.faults import FaultyBackend
from tests.generate import Generator, Mix
from tests.kernels.conftest import MakeDevice
from tests.kernels.emulator import EmulatedDevice
from tests.oracle.join import oracle_join

PROBE_ROWS, BUILD_ROWS = 300, 40
PAYLOAD = pa.schema(
    [
        ("n", pa.int32()),
        ("d", pa.float64()),
        ("m", pa.decimal128(12, 2)),
        ("s", pa.string()),
        ("e", pa.null()),
    ]
)
KEY = len(PAYLOAD)
CONDITIONS: dict[str, Expression] = {
    "integers": left("n") < right("n"),
    "every type": (left("d") <= right("d")) | (left("m") >= right("m")) | right("s").is_null(),
    "nulls of a column of nulls": left("e").is_null() & right("n").is_not_null(),
    "true of none": left("n").is_null() & left("n").is_not_null(),
    "true of all": left("e").is_null(),
}


@pytest.fixture(autouse=True)
def _few_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residual, "FEWEST_PAIRS", 0)


def tables(seed: int, *, duplicates: bool = False, swapped: bool = False) -> tuple[pa.Table, pa.Table]:
    """Unique keys on the right, or on the left where swapped; null keys and keys without a match on the other side."""
    g, rng = Generator(seed, Mix(spread=6)), np.random.default_rng(seed)
    many, few = g.table(PAYLOAD, PROBE_ROWS), g.table(PAYLOAD, BUILD_ROWS)
    probe = pa.array(rng.integers(0, BUILD_ROWS * 3 // 2, PROBE_ROWS), mask=rng.random(PROBE_ROWS) < 0.05)
    keys = rng.permutation(BUILD_ROWS)
    if duplicates:
        keys[:3] = 0
    left_table, right_table = many.append_column("k", probe), few.append_column("k", pa.array(keys))
    return (right_table, left_table) if swapped else (left_table, right_table)


def joined(
    backend: Any,
    sides: tuple[pa.Table, pa.Table],
    kind: JoinType,
    condition: Expression,
    *,
    build_side: Side = Side.RIGHT,
    options: Options | None = None,
    batch: int = 64,
    mode: EvalMode = EvalMode.LEGACY,
) -> JoinMetrics:
    left_table, right_table = sides
    columns = tuple(range(left_table.num_columns))
    tested = resolve(condition, left_table.schema, right_table.schema, mode=mode)
    spec = JoinSpec(kind, (KeyPair(KEY, KEY),), tested, columns, () if kind.left_rows_only else columns)
    metrics = JoinMetrics()
    with HashJoin(
        spec, left_table.schema, right_table.schema, build_side=build_side, options=options or Options(),
        backend=backend, metrics=metrics,
    ) as join:  # fmt: skip
        build, probe = (right_table, left_table) if build_side is Side.RIGHT else (left_table, right_table)
        join.build(build.to_batches())
        batches = [*join.probe(probe.to_batches(max_chunksize=batch)), *join.finish()]
    result = pa.Table.from_batches(batches, join.output_schema)
    assert_same_rows(
        result, oracle_join(left_table, right_table, spec), allow_empty=True, context=f"{kind} {condition}"
    )
    return metrics


LEFT_ONLY = (JoinType.LEFT_SEMI, JoinType.LEFT_ANTI, JoinType.EXISTENCE)
KINDS = [(kind, Side.RIGHT) for kind in (JoinType.INNER, JoinType.LEFT, JoinType.RIGHT, JoinType.FULL, *LEFT_ONLY)]
KINDS += [(kind, Side.LEFT) for kind in (JoinType.INNER, JoinType.LEFT, JoinType.FULL, *LEFT_ONLY)]


@pytest.mark.parametrize(("kind", "build_side"), KINDS, ids=lambda v: v.value)
def test_every_join_type(emulated: EmulatedDevice, kind: JoinType, build_side: Side, seed: int) -> None:
    """No pairs are made for the condition; a build side of the left side is the condition's left side."""
    sides = tables(seed, swapped=build_side is Side.LEFT)
    for name, condition in CONDITIONS.items():
        backend = HostBackend(ops=emulated_ops(emulated))
        metrics = joined(backend, sides, kind, condition, build_side=build_side)
        assert backend.morsel_rows >= PROBE_ROWS
        # Where left rows that have a match need no further right rows, those come in rounds.
        stops_early = build_side is Side.LEFT and kind.left_rows_only
        assert metrics.compiled_probes == (2 if stops_early else 1), name
        assert 0 < metrics.candidate_pairs < PROBE_ROWS
        assert not backend.evaluated
    assert "residual_found" in emulated.launches
    assert not {"residual_mask", "expand_pairs"} & set(emulated.launches)


@pytest.mark.parametrize(
    ("wanted", "probe"),
    [
        (Algorithm.DIRECT, "direct_probe"),
        (Algorithm.UNIQUE, "unique_probe"),
        (Algorithm.CSR, "csr_ranges"),
    ],
    ids=lambda v: getattr(v, "value", v),
)
def test_every_algorithm(emulated: EmulatedDevice, wanted: Algorithm, probe: str, seed: int) -> None:
    """Inner and semi joins are then written at once: no map, no pair, from the probe to the output."""
    options = Options(gpu_algorithm=wanted)
    for kind in (JoinType.INNER, JoinType.LEFT_SEMI):
        left_table, right_table = (t.drop_columns(["s", "e"]) for t in tables(seed))
        left_table, right_table = (
            t.append_column("s", t["n"]).append_column("e", t["n"]).select(["n", "d", "m", "s", "e", "k"])
            for t in (left_table, right_table)
        )
        backend = HostBackend(ops=emulated_ops(emulated))
        metrics = joined(backend, (left_table, right_table), kind, CONDITIONS["integers"], options=options)
        assert metrics.compiled_probes == 1
        assert {probe, "residual_found", "emit_matches"} <= set(emulated.launches)


@pytest.mark.parametrize(
    ("options", "condition", "duplicates"),
    [
        (Options(gpu_algorithm=Algorithm.CUDF), CONDITIONS["integers"], False),
        (Options(), CONDITIONS["integers"], True),
        (Options(), left("s").startswith("a") | right("s").contains("b"), False),
        (Options(), left("n").is_in(list(range(17))), False),
        (Options(), functools.reduce(operator.and_, [left("n") < right("n")] * 60), False),
    ],
    ids=["cudf asked for", "duplicates", "not written as C++", "a long list", "too long to compile"],
)
def test_pairs_are_tested_otherwise(
    emulated: EmulatedDevice, options: Options, condition: Expression, duplicates: bool, seed: int
) -> None:
    for kind in (JoinType.LEFT, JoinType.LEFT_ANTI):
        backend = HostBackend(ops=emulated_ops(emulated))
        metrics = joined(backend, tables(seed, duplicates=duplicates), kind, condition, options=options)
        assert metrics.compiled_probes == 0
        assert metrics.candidate_pairs
        assert backend.evaluated
    assert "residual_found" not in emulated.launches


def test_few_matches_are_not_worth_compiling_for(
    emulated: EmulatedDevice, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(residual, "FEWEST_PAIRS", PROBE_ROWS)
    backend = HostBackend(ops=emulated_ops(emulated))
    assert joined(backend, tables(seed), JoinType.LEFT, CONDITIONS["integers"]).compiled_probes == 0


def test_what_fails_is_decided_by_the_evaluator(emulated: EmulatedDevice, seed: int) -> None:
    """An overflow that the kernel meets beside a false operand is none to Spark; one it meets alone is an error."""
    left_table, right_table = tables(seed)
    most = pa.array([(1 << 31) - 1] * PROBE_ROWS, pa.int32())
    left_table = left_table.set_column(0, "n", most)
    right_table = right_table.set_column(0, "n", pa.array([1] * BUILD_ROWS, pa.int32()))
    overflow = left("n") + right("n") > lit(0)
    backend = HostBackend(ops=emulated_ops(emulated))
    metrics = joined(
        backend, (left_table, right_table), JoinType.LEFT, (right("n") > lit(5)) & overflow, mode=EvalMode.ANSI
    )
    assert metrics.compiled_probes == 0
    assert "residual_found" in emulated.launches
    assert backend.evaluated
    with pytest.raises(ExpressionEvaluationError):
        joined(
            HostBackend(ops=emulated_ops(emulated)),
            (left_table, right_table),
            JoinType.LEFT,
            overflow,
            mode=EvalMode.ANSI,
        )


def test_a_condition_that_does_not_compile_is_named_and_tested_on_pairs(
    make_device: MakeDevice, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    device = make_device({"residual.cu": "no program"})
    with caplog.at_level("WARNING", "gpujoin"):
        metrics = joined(HostBackend(ops=emulated_ops(device)), tables(seed), JoinType.INNER, CONDITIONS["integers"])
    assert metrics.compiled_probes == 0
    assert "residual.cu" in caplog.text


@pytest.mark.parametrize(
    "kind", [JoinType.INNER, JoinType.LEFT, JoinType.FULL, JoinType.EXISTENCE], ids=lambda k: k.value
)
def test_joins_of_frames_that_stay_on_the_device(emulated: EmulatedDevice, kind: JoinType, seed: int) -> None:
    left_table, right_table = (table.drop_columns(["s", "e"]) for table in tables(seed))
    key, columns = left_table.num_columns - 1, tuple(range(left_table.num_columns))
    condition = resolve(CONDITIONS["integers"], left_table.schema, right_table.schema)
    spec = JoinSpec(kind, (KeyPair(key, key),), condition, columns, () if kind.left_rows_only else columns)
    tree = Join(ExchangeSource(0, left_table.schema), ExchangeSource(1, right_table.schema), spec)
    metrics, inputs = JoinMetrics(), {0: left_table.to_batches(), 1: right_table.to_batches()}

    class Restricting(HostBackend):
        """Arrays of the host, but for what a condition is tested on: frames of a pipeline's twin mix them."""

        def restrict(
            self, probe: IndexProbe, condition: Expression, own: Any, other: Any, probe_side: Side
        ) -> IndexProbe | None:
            matches = probe.single()
            assert matches is not None
            source = HostSource({probe_side: own, probe_side.other: other})
            there = UniqueMatches(emulated.upload(matches.row), matches.pairs)
            kept = residual.restrict_matches(
                emulated_ops(emulated), source, condition, there, probe.build_rows, probe_side
            )
            return None if kept is None else probe.restricted_to(UniqueMatches(on_host(kept.row), kept.pairs))

    device = host_pipeline(Restricting())
    result = pa.Table.from_batches(run(tree, inputs, device=device, join_metrics=metrics), tree.schema)
    assert_same_rows(result, oracle_join(left_table, right_table, spec))
    assert metrics.compiled_probes == 1
    assert "residual_found" in emulated.launches


@pytest.mark.parametrize("kind", [JoinType.LEFT, JoinType.FULL, JoinType.LEFT_SEMI], ids=lambda k: k.value)
@pytest.mark.parametrize("after", [2, 9, 12, 14])
def test_a_device_that_fills_up_half_way(emulated: EmulatedDevice, kind: JoinType, after: int, seed: int) -> None:
    """Nothing is lost or repeated, though pairs come in another order on the CPU."""
    backend: Any = FaultyBackend(HostBackend(ops=emulated_ops(emulated)), after=after)
    options = Options(batch_bytes=1500, candidate_pairs=16)
    metrics = joined(backend, tables(seed), kind, CONDITIONS["integers"], options=options)
    assert backend.faults
    assert metrics.fallbacks


def test_a_device_that_gives_up_in_the_middle_of_a_left_join(emulated: EmulatedDevice, seed: int) -> None:
    """Not even its maps can be copied any more: the CPU joins the morsel again, whose output was held back."""
    for after in (1, 2, 4):
        backend: Any = FaultyBackend(
            HostBackend(ops=emulated_ops(emulated)), after=after, operations={"gather", "indices_to_host"}
        )
        metrics = joined(
            backend, tables(seed), JoinType.LEFT, CONDITIONS["integers"], options=Options(batch_bytes=6000)
        )
        assert metrics.compiled_probes == 1
        assert metrics.fallbacks == 1
