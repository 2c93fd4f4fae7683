"""Where a pipeline of a test runs: on the CPU, on the device pipeline's code over NumPy, on a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from gpujoin.backends.cudf.pipeline.backend import DevicePipeline
from gpujoin.config import Options
from gpujoin.engine import pipeline
from gpujoin.model.relations import FileFooter, FileSlice, Relation
from tests.backends.cudf.pipeline import host_pipeline

everywhere = pytest.mark.parametrize(
    "place", ["cpu", "twin", pytest.param("gpu", marks=pytest.mark.gpu)], indirect=True
)
"""Runs a test in every place; others run on the CPU only."""

_devices: list[DevicePipeline[Any] | None] = [None]


def one_place(argument: str, cases: Iterable[str]) -> pytest.MarkDecorator:
    """Run each case in every place; of the CPU and the twin, `make test` takes one, in turn."""
    parameters = [
        pytest.param(place, case, id=f"{case}-{place}", marks=marks)
        for turn, case in enumerate(cases)
        for place, marks in (
            ("cpu", [pytest.mark.extra] * (turn % 2)),
            ("twin", [pytest.mark.extra] * (1 - turn % 2)),
            ("gpu", [pytest.mark.gpu]),
        )
    ]
    return pytest.mark.parametrize(("place", argument), parameters, indirect=["place"])


def on_device() -> bool:
    """Whether the test runs on a device or its twin."""
    return _devices[-1] is not None


def run(tree: Relation, *args: Any, options: Options | None = None, **kwargs: Any) -> Iterator[pa.RecordBatch]:
    """`gpujoin.engine.pipeline.run` in the test's place; a device has memory for builds of ``memory_budget``.

    Without options the CPU has two threads, so that pieces are computed ahead.
    """
    device = _devices[-1]
    if device is not None and options is not None:
        device = DevicePipeline(device.columns, device.entered, 4 * options.memory_budget)
    if device is None and options is None:
        options = Options(cpu_threads=2)
    return pipeline.run(tree, *args, **{"options": options, "device": device, **kwargs})


def whole(footer: FileFooter) -> FileSlice:
    """The file of a footer."""
    return FileSlice(footer.path, footer.size, footer.modified_ms)


def enter(name: str, gpu: Any) -> None:
    """Settle the place of the tests that follow."""
    if name == "cpu":
        _devices.append(None)
    else:
        _devices.append(host_pipeline() if gpu is None else gpu.pipeline)


def leave() -> None:
    """Back to the place before."""
    _devices.pop()
