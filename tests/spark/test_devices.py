"""Which GPUs a task may use, and when it runs on the CPU instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpujoin.backends.registry import unavailable
from gpujoin.config import Options
from gpujoin.errors import BackendUnavailableError
from gpujoin.model.backend import BackendName
from gpujoin.spark.worker.devices import Device, allocate_backend, devices
from gpujoin.spark.worker.slots import DIRECTORY_VARIABLE, GpuSlots


@pytest.mark.parametrize(
    ("addresses", "visible", "expected"),
    [
        (["1"], None, [("1", 1)]),
        (["0", "3"], None, [("0", 0), ("3", 3)]),
        ([], "2,5", [("2", 0), ("5", 1)]),
        (["5"], "2,5", [("5", 1)]),
        (["GPU-b"], "GPU-a, GPU-b", [("GPU-b", 1)]),
        (["0"], "GPU-a", [("GPU-a", 0)]),
        (["1"], "7,8", [("8", 1)]),
        (["9"], "7,8", []),
        (["0"], "", []),
        ([], "", []),
        (["MIG-1"], None, [("MIG-1", 0)]),
        ([], "MIG-1,MIG-2", [("MIG-1", 0)]),
        (["MIG-1"], "MIG-1,MIG-2", [("MIG-1", 0)]),
        (["MIG-2"], "MIG-1,MIG-2", []),
    ],
)
def test_addresses_become_ordinals(addresses: list[str], visible: str | None, expected: list[tuple[str, int]]) -> None:
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert devices(addresses, environment) == tuple(Device(*pair) for pair in expected)


def test_the_cpu_is_taken_without_a_word_when_asked_for() -> None:
    with allocate_backend(Options(backend="cpu"), ["0"]) as chosen:  # type: ignore[arg-type]
        assert chosen.backend.name is BackendName.CPU
        assert chosen.backend.threads == 1
        assert chosen.notes == ()
        assert chosen.slot is None


@pytest.mark.skipif(unavailable(BackendName.GPU) is None, reason="there is a GPU here")
def test_auto_takes_the_cpu_and_says_why_where_spark_gave_the_task_a_gpu() -> None:
    with allocate_backend(Options(), ["0"]) as chosen:
        assert chosen.backend.name is BackendName.CPU
        (note,) = chosen.notes
        assert note.startswith("on the CPU: ")


@pytest.mark.skipif(
    unavailable(BackendName.GPU) is None or bool(devices(())), reason="there is a GPU, or its driver, here"
)
def test_a_machine_without_a_gpu_needs_no_note() -> None:
    with allocate_backend(Options(), []) as chosen:
        assert chosen.backend.name is BackendName.CPU
        assert chosen.notes == ()
    with pytest.raises(BackendUnavailableError), allocate_backend(Options(backend="gpu"), []):  # type: ignore[arg-type]
        pytest.fail("there is no GPU")


@pytest.mark.gpu
def test_a_gpu_is_taken_with_a_slot_and_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    options = Options(gpu_concurrent_tasks=1, gpu_slot_timeout=0.2)
    slots = GpuSlots(1)
    with allocate_backend(options, ["0"]) as chosen:
        assert chosen.backend.name is BackendName.GPU
        assert chosen.notes == ()
        assert slots.count_held("0") == 1
        with allocate_backend(options, ["0"]) as second:
            assert second.backend.name is BackendName.CPU
            assert "slotTimeout" in second.notes[0]
            assert second.waited == pytest.approx(0.2)
        strict = options.replace(backend="gpu", fallback="raise")
        with pytest.raises(BackendUnavailableError, match="slot"), allocate_backend(strict, ["0"]):
            pytest.fail("the slot was taken")
    assert slots.count_held("0") == 0
