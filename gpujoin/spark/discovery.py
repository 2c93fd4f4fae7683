"""Tells which NVIDIA GPUs a machine has, and tells Spark in the form its discovery scripts use.

Installed as ``gpujoin-discover-gpus``, for ``spark.worker.resource.gpu.discoveryScript`` and its kin. Needs nothing
but ``nvidia-smi``, and does not import PySpark, so that cluster managers can run it outside any job.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from gpujoin.errors import BackendUnavailableError

_TIMEOUT_SECONDS = 30
_FIELDS = (
    "index",
    "name",
    "uuid",
    "memory.total",
    "memory.used",
    "driver_version",
    "compute_cap",
    "compute_mode",
)


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, as the driver tells it."""

    index: str
    """The driver's index, which is Spark's resource address."""
    name: str
    uuid: str
    """Model, and the identity that survives a change of order."""
    memory_total: int
    memory_used: int
    """Bytes of device memory; 0 where the driver does not say."""
    driver_version: str
    compute_capability: str
    """Such as ``"580.65.06"`` and ``"9.0"``."""
    exclusive: bool
    """Whether the GPU admits only one process at a time."""


def list_gpus() -> tuple[Gpu, ...]:
    """Ask ``nvidia-smi`` for the GPUs of this machine, in the driver's order; never empty.

    Raises ``BackendUnavailableError`` if there is no ``nvidia-smi``, it fails or hangs, or it lists no GPU; the
    message says what to do.
    """
    command = ["nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        process = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except FileNotFoundError:
        raise BackendUnavailableError(
            "nvidia-smi is not on PATH, so no GPU can be found. Install the NVIDIA driver; in a container, start it "
            "with GPU access (docker run --gpus all, or the NVIDIA device plugin on Kubernetes)."
        ) from None
    except subprocess.TimeoutExpired:
        raise BackendUnavailableError(
            f"nvidia-smi did not answer within {_TIMEOUT_SECONDS} s. The driver may hang: see dmesg."
        ) from None
    except OSError as problem:
        raise BackendUnavailableError(
            f"nvidia-smi cannot be run: {problem}. Check its permissions and the driver's installation."
        ) from None
    if process.returncode != 0:
        said = " ".join((process.stdout + " " + process.stderr).split())
        raise BackendUnavailableError(
            f"nvidia-smi failed with status {process.returncode}: {said or 'no message'}. "
            "Check that the driver is loaded and that this process may use /dev/nvidia*."
        )
    gpus = tuple(_gpu(row) for row in csv.reader(process.stdout.splitlines(), skipinitialspace=True) if row)
    if not gpus:
        raise BackendUnavailableError(
            "nvidia-smi lists no GPU. Check that one is plugged in and given to this machine."
        )
    return gpus


def _gpu(row: Sequence[str]) -> Gpu:
    if len(row) != len(_FIELDS):
        raise BackendUnavailableError(
            f"nvidia-smi answered {','.join(row)!r} where {len(_FIELDS)} values were expected. "
            "Update the NVIDIA driver."
        )
    index, name, uuid, total, in_use, driver, capability, mode = (value.strip() for value in row)
    return Gpu(
        index=index,
        name=name,
        uuid=uuid,
        memory_total=_mebibytes(total),
        memory_used=_mebibytes(in_use),
        driver_version=driver,
        compute_capability=capability,
        exclusive=mode.startswith("Exclusive"),
    )


def _mebibytes(text: str) -> int:
    """Bytes; 0 for ``[N/A]``, which integrated GPUs and MIG parents give."""
    return int(text) << 20 if text.isdigit() else 0


def spark_resource(gpus: Sequence[Gpu]) -> str:
    """The line that Spark expects from a discovery script: ``{"name": "gpu", "addresses": ["0", "1"]}``."""
    return json.dumps({"name": "gpu", "addresses": [gpu.index for gpu in gpus]})


def main(argv: Sequence[str] | None = None) -> int:
    """Print this machine's GPUs for Spark; the entry point of ``gpujoin-discover-gpus``.

    The exit status is 0, or 1 after one line on standard error.
    """
    parser = argparse.ArgumentParser(
        prog="gpujoin-discover-gpus",
        description="Print this machine's NVIDIA GPUs in the form of Spark's discovery scripts.",
    )
    parser.parse_args(argv)
    try:
        line = spark_resource(list_gpus())
    except BackendUnavailableError as problem:
        print(f"gpujoin-discover-gpus: {problem}", file=sys.stderr)  # noqa: T201
        return 1
    print(line)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
