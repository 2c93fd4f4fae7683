"""What explanations say of how a GPU finds matches. No Spark runs here."""

from __future__ import annotations

import pyarrow as pa
import pytest

from gpujoin.config import AlgorithmChoice, Options
from gpujoin.model.expressions import Expression, left, right
from gpujoin.plan.algorithm import rule
from gpujoin.plan.resolve import resolve
from gpujoin.spark.explaining import expected_backend
from gpujoin.spark.settings import GpuOutlook


@pytest.mark.parametrize("wanted", AlgorithmChoice, ids=lambda w: w.value)
def test_the_setting_and_what_it_means_are_told(wanted: AlgorithmChoice) -> None:
    for options in (Options(backend="gpu", gpu_algorithm=wanted), Options(gpu_algorithm=wanted)):  # type: ignore[arg-type]
        backend, notes = expected_backend(options, GpuOutlook.EXPECTED, keyed=True)
        assert backend == "gpu"
        assert notes[-1] == rule(wanted)
        assert f"GPU algorithm {wanted.value}" in notes[-1]
        assert rule(wanted) not in expected_backend(options, GpuOutlook.EXPECTED, keyed=False)[1]


@pytest.mark.parametrize("outlook", [GpuOutlook.ABSENT, GpuOutlook.UNKNOWN], ids=lambda o: o.value)
def test_nothing_is_said_of_it_on_the_cpu(outlook: GpuOutlook) -> None:
    backend, notes = expected_backend(Options(), outlook, keyed=True)
    assert backend == "cpu"
    assert not any("algorithm" in note for note in notes)
    assert expected_backend(Options(backend="cpu"), GpuOutlook.EXPECTED, keyed=True)[0] == "cpu"  # type: ignore[arg-type]


def test_the_rule_names_every_choice_and_threshold() -> None:
    for part in ("direct up to 4 slots", "csr from 1.5 rows a key", "unique within 50% of L2", "partitioned"):
        assert part in rule(AlgorithmChoice.AUTO)


INTEGERS = pa.schema([("n", pa.int64()), ("s", pa.string())])


@pytest.mark.parametrize(
    ("condition", "told"),
    [
        (left("n") < right("n"), "compiled by NVRTC"),
        (left("s").startswith("a"), "not written as C++"),
        (None, None),
    ],
    ids=["numbers", "text", "none"],
)
def test_how_a_condition_is_tested_is_told(condition: Expression | None, told: str | None) -> None:
    tested = None if condition is None else resolve(condition, INTEGERS, INTEGERS)
    _, notes = expected_backend(Options(), GpuOutlook.EXPECTED, keyed=True, condition=tested)
    assert [note for note in notes if "condition" in note] == [
        note for note in notes if told and told in note
    ]
    assert len([note for note in notes if "condition" in note]) == (told is not None)
    asked = Options(gpu_algorithm=AlgorithmChoice.CUDF)
    notes = expected_backend(asked, GpuOutlook.EXPECTED, keyed=True, condition=tested)[1]
    assert not any("compiled" in note for note in notes)
