"""What the build of a distribution adds: the README of the package index, compiled kernels and compiled Java.

Links of README.md lead to the files of this version in the repository. Kernels are compiled into the wheel where the
Python that builds it has CuPy and NVRTC (``python -m build --no-isolation`` in an environment with the extra ``cu13``
or ``dev``), Java where it has PySpark and finds a Java 17; elsewhere the wheel has their sources alone, and the build
says so. ``GPUJOIN_BUILD_KERNELS=0`` and ``GPUJOIN_BUILD_JAVA=0`` leave them out, ``1`` fails where they cannot be
compiled.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(?P<image>!?)(?P<text>\[(?:[^\[\]]|\[[^\]]*\]\([^)]*\))*\])\((?!https?://|#)(?P<target>[^)\s]+)\)")
_SOURCE = re.compile(r"(?<=src=\")(?!https?://)(?P<target>[^\"]+)")


def absolute(text: str, repository: str, revision: str) -> str:
    """Give a page whose relative links lead to the files of a revision; images are linked as they are, not as pages."""

    def linked(match: re.Match[str]) -> str:
        inner = absolute(match["text"], repository, revision) if "](" in match["text"] else match["text"]
        kind = "raw" if match["image"] else "blob"
        return f"{match['image']}{inner}({repository}/{kind}/{revision}/{match['target']})"

    return _SOURCE.sub(lambda match: f"{repository}/raw/{revision}/{match['target']}", _LINK.sub(linked, text))


class ReadmeHook(MetadataHookInterface):
    """Sets ``readme``."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Rewrite README.md for the package index."""
        root = Path(self.root)
        match = re.search(r'__version__ = "([^"]+)"', (root / "gpujoin" / "_version.py").read_text(encoding="utf-8"))
        assert match is not None
        text = (root / "README.md").read_text(encoding="utf-8")
        page = absolute(text, metadata["urls"]["Source"], f"v{match[1]}")
        metadata["readme"] = {"content-type": "text/markdown", "text": page}


class Part(NamedTuple):
    """A part of the package that is compiled into the wheel by a program, into a folder."""

    name: str
    variable: str
    module: str
    folder: str
    otherwise: str
    """What becomes of it in a wheel that lacks it."""


PARTS = (
    Part("kernels", "GPUJOIN_BUILD_KERNELS", "gpujoin.launch.images", "gpujoin/_images", "compiled where they run"),
    Part("Java", "GPUJOIN_BUILD_JAVA", "gpujoin.spark.jvm.archive", "gpujoin/_java", "compiled by each Spark driver"),
)


class CompiledParts(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles kernels and Java into the wheel."""

    _folder: str | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, but for an editable install, which has the sources."""
        if version == "editable":
            return
        self._folder = tempfile.mkdtemp(prefix="gpujoin-compiled-")
        for part in PARTS:
            self._compile(part, Path(self._folder) / Path(part.folder).name, build_data)

    def _compile(self, part: Part, folder: Path, build_data: dict[str, Any]) -> None:
        asked = os.environ.get(part.variable, "")
        if asked == "0":
            return
        command = [sys.executable, "-m", part.module, str(folder)]
        done = subprocess.run(command, cwd=self.root, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            build_data["force_include"][str(folder)] = part.folder
            self.app.display_info(f"compiled {part.name}: {done.stdout.strip().splitlines()[-1]}")
            return
        reason = (done.stderr.strip().splitlines() or ["unknown"])[-1]
        if asked == "1":
            raise RuntimeError(f"the {part.name} cannot be compiled: {reason}")
        self.app.display_warning(f"without compiled {part.name}, {part.otherwise}: {reason}")

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled."""
        del version, build_data, artifact_path
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
