"""A stand-in for HDFS: Hadoop's C library over a folder, which PyArrow loads as it would load Hadoop's own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpujoin.storage import locations
from tests.compiling import shared_library

FOLDER_VARIABLE = "GPUJOIN_TEST_HDFS"
_SOURCE = Path(__file__).with_name("hdfs.c")


@dataclass(frozen=True)
class Hdfs:
    """A folder whose subfolders are what name nodes have."""

    root: Path

    def fail(self, call: str, errno: int, position: int = 0) -> None:
        """Make calls fail from now on: ``connect``, ``info``, ``open``, or ``read`` of what lies from a position on."""
        (self.root / f"fail-{call}").write_text(f"{errno} {position}")

    def mend(self) -> None:
        """Make no call fail any more."""
        for file in self.root.glob("fail-*"):
            file.unlink()

    @property
    def connections(self) -> list[str]:
        """Those made so far: URI, port, user, ticket cache or ``-``, settings."""
        log = self.root / "connections"
        return log.read_text().splitlines() if log.exists() else []

    @property
    def java_options(self) -> str:
        """Those of the last connection."""
        return (self.root / "options").read_text()


def library_folder(base: Path) -> Path:
    """Compile the library; skip where PyArrow would not come to load it."""
    if not list(Path(os.environ.get("JAVA_HOME", "/nonexistent")).glob("lib/server/libjvm.*")):
        pytest.skip("PyArrow loads Java before Hadoop's library: JAVA_HOME has no lib/server/libjvm.so")
    folder = base / "hadoop"
    folder.mkdir()
    shared_library(_SOURCE, folder / "libhdfs.so")
    return folder


def running(library: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hdfs]:
    """Give a stand-in that this process reads from now on; it keeps the library that it has loaded first."""
    monkeypatch.setenv("ARROW_LIBHDFS_DIR", str(library))
    monkeypatch.setenv(FOLDER_VARIABLE, str(root))
    locations._opened.cache_clear()
    yield Hdfs(root)
    locations._opened.cache_clear()
