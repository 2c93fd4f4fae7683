"""What explanations say of how a GPU finds matches. No Spark runs here."""

from __future__ import annotations

import pytest

from gpujoin.backends.cudf.algorithm import rule
from gpujoin.config import Options
from gpujoin.model.algorithm import Algorithm
from gpujoin.report.parts import expected_backend
from gpujoin.spark.settings import GpuOutlook


@pytest.mark.parametrize("wanted", Algorithm, ids=lambda w: w.value)
def test_the_setting_and_what_it_means_are_told(wanted: Algorithm) -> None:
    for options in (Options(backend="gpu", gpu_algorithm=wanted), Options(gpu_algorithm=wanted)):  # type: ignore[arg-type]
        backend, notes = expected_backend(options, GpuOutlook.EXPECTED, keyed=True)
        assert backend == "gpu"
        assert notes[-1] == rule(wanted)
        assert f"GPU algorithm {wanted.value}" in notes[-1]
        assert rule(wanted) not in expected_backend(options, GpuOutlook.EXPECTED, keyed=False)[1]


@pytest.mark.parametrize("outlook", [GpuOutlook.ABSENT, GpuOutlook.UNKNOWN], ids=lambda o: o.value)
def test_nothing_is_said_of_it_on_the_cpu(outlook: GpuOutlook) -> None:
    backend, notes = expected_backend(Options(), outlook, keyed=True)
    assert (backend, notes) == ("cpu", ())
    assert expected_backend(Options(backend="cpu"), GpuOutlook.EXPECTED, keyed=True)[0] == "cpu"  # type: ignore[arg-type]


def test_the_rule_names_every_choice_and_threshold() -> None:
    for part in ("direct up to 4 slots", "csr where a sample has duplicates", "unique elsewhere"):
        assert part in rule(Algorithm.AUTO)
