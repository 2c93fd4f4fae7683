"""What tests of kernels share: the emulated device, and the reason why it is missing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.kernels.devices import RecordingDevice, cuda_device
from tests.kernels.emulator import EmulatedDevice, EmulatorOptions, why_no_compiler
from tests.kernels.emulator.device import CACHE_VARIABLE, cache_directory

MakeDevice: TypeAlias = Callable[..., EmulatedDevice]


@pytest.fixture(scope="session")
def emulator_cache(pytestconfig: pytest.Config) -> Path:
    """Where compiled modules are kept between runs; skips where kernels cannot be compiled."""
    reason = why_no_compiler()
    if reason is not None:
        pytest.skip(reason)
    cache = getattr(pytestconfig, "cache", None)
    if os.environ.get(CACHE_VARIABLE) or cache is None:
        return cache_directory()
    path: Path = cache.mkdir("emulator")
    return path


@pytest.fixture
def make_device(emulator_cache: Path, seed: int) -> MakeDevice:
    """Makes emulated devices; options are those of :class:`EmulatorOptions`, and ``sources``."""

    def make(sources: dict[str, str] | None = None, **options: Any) -> EmulatedDevice:
        given = {"seed": seed, "cache": emulator_cache, **options}
        return EmulatedDevice(EmulatorOptions(**given), sources)

    return make


@pytest.fixture
def emulated(make_device: MakeDevice) -> EmulatedDevice:
    """An emulated device; its order of threads and blocks comes from the run's seed."""
    return make_device()


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[RecordingDevice]:
    """The emulated device and, where there is one, the GPU."""
    if request.param == "emulated":
        yield request.getfixturevalue("emulated")
        return
    with cuda_device() as device:
        yield device
