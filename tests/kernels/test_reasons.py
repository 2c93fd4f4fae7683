"""Why an algorithm was chosen, in the metrics of a join by the engine."""

from __future__ import annotations

import pyarrow as pa
import pytest

from gpujoin.config import Options
from gpujoin.engine.join.hash_join import HashJoin
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.model.algorithm import Algorithm
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.spec import JoinSpec, KeyPair
from tests.backends.cudf.host import HostBackend, emulated_ops
from tests.kernels.emulator import EmulatedDevice


@pytest.mark.parametrize(
    ("keys", "wanted", "algorithm", "reason"),
    [
        ([1, 2, 3], Algorithm.AUTO, "direct", "direct: 3 keys in a range of 3: at most 4 slots a key"),
        ([1, 2, 2], Algorithm.UNIQUE, "csr", "unique: asked for by spark.gpujoin.gpu.algorithm"),
        ([1, 2, 3], Algorithm.CUDF, "cudf direct", "cudf: asked for by spark.gpujoin.gpu.algorithm"),
    ],
)
def test_metrics_say_what_was_chosen_and_why(
    emulated: EmulatedDevice, keys: list[int], wanted: Algorithm, algorithm: str, reason: str
) -> None:
    metrics = JoinMetrics()
    table = pa.table({"k": keys})
    with HashJoin(
        JoinSpec(JoinType.INNER, (KeyPair(0, 0),), None, (0,), (0,)),
        table.schema,
        table.schema,
        build_side=Side.RIGHT,
        options=Options(gpu_algorithm=wanted),
        backend=HostBackend(ops=emulated_ops(emulated)),
        metrics=metrics,
    ) as join:
        join.build(table.to_batches())
    assert metrics.algorithms == {algorithm: 1}
    assert metrics.algorithm_reasons == {algorithm: reason}


def test_merged_metrics_keep_one_reason_each() -> None:
    metrics = JoinMetrics(algorithms={"csr": 1}, algorithm_reasons={"csr": "first"})
    metrics.merge(
        JoinMetrics(algorithms={"csr": 1, "direct": 1}, algorithm_reasons={"csr": "second", "direct": "third"})
    )
    assert metrics.algorithms == {"csr": 2, "direct": 1}
    assert metrics.algorithm_reasons == {"csr": "first", "direct": "third"}
