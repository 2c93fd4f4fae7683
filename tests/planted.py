"""What another user may have put where a process looks for a directory of its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

UNSAFE = ("writable for others", "of another user", "a link", "a file")


def plant(path: Path, how: str) -> None:
    """Put something unsafe at a path: one of :data:`UNSAFE`."""
    match how:
        case "writable for others":
            path.mkdir()
            path.chmod(0o770)
        case "of another user":
            path.mkdir()
            if os.getuid():
                pytest.skip("giving a directory away takes root")
            os.chown(path, 12345, -1)
        case "a link":
            target = path.with_name("elsewhere")
            target.mkdir()
            path.symlink_to(target)
        case "a file":
            path.write_text("")
