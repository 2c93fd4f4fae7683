"""Disks that fail, and the files without names that are spilled to them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Mount(Protocol):
    """Mounts a file system in memory."""

    def __call__(self, options: str) -> Path: ...


def mounts(folder: Path) -> Iterator[Mount]:
    """Give a function that mounts file systems in memory below a folder; they go when the generator ends."""
    mounted: list[Path] = []

    def mount(options: str) -> Path:
        place = folder / f"disk{len(mounted)}"
        place.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"mounting takes rights that this user lacks: {done.stderr.strip()}")
        mounted.append(place)
        return place

    yield mount
    for place in mounted:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@contextmanager
def little_disk_for_blocks(session: SparkSession, options: str) -> Iterator[Path]:
    """Have Spark's exchanges, sorts and blocks go to a file system in memory with such options, in local mode."""
    (place,) = Path(session.sparkContext.getConf().get("spark.local.dir", "")).glob("blockmgr-*")
    _make_block_folders(place)  # Spark makes each once, so one first used in the mounted disk would be missing below
    folder = str(place)
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mounting takes rights that this user lacks: {done.stderr.strip()}")
    try:
        _make_block_folders(place)
        yield place
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def _make_block_folders(place: Path) -> None:
    """Make the folders that Spark divides its blocks among (``spark.diskStore.subDirectories``)."""
    for number in range(64):
        (place / f"{number:02x}").mkdir(exist_ok=True)


def spill_files(directory: Path, process: int | str = "self") -> list[int]:
    """Descriptors of the files without names that a process has open in a directory."""
    descriptors = []
    for entry in Path(f"/proc/{process}/fd").iterdir():
        try:
            target = str(entry.readlink())
        except FileNotFoundError:  # that of the listing itself
            continue
        if target.startswith(f"{directory}/") and target.endswith(" (deleted)"):
            descriptors.append(int(entry.name))
    return sorted(descriptors)


def flip_bit(file: int, bit: int) -> None:
    """Change one bit of an open file."""
    place, shift = divmod(bit, 8)
    (byte,) = os.pread(file, 1, place)
    os.pwrite(file, bytes([byte ^ 1 << shift]), place)
