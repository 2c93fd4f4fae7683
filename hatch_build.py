"""Makes the README of the package index from README.md: links lead to the files of this version in the repository."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

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
