"""Writes a page of the documentation that is generated, or checks that it is up to date."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable
from pathlib import Path


def write_or_check(target: Path, page: Callable[[], str], description: str | None) -> int:
    """Write a page, or with ``--check`` show how it differs; returns 1 if it does.

    ``description`` is that of the command, whose first line is shown.
    """
    parser = argparse.ArgumentParser(description=description.splitlines()[0] if description else None)
    parser.add_argument("--check", action="store_true", help="only say whether the file is up to date")
    check = parser.parse_args().check
    new, old = page(), target.read_text(encoding="utf-8") if target.exists() else ""
    if not check:
        target.write_text(new, encoding="utf-8")
        return 0
    sys.stdout.writelines(difflib.unified_diff(old.splitlines(True), new.splitlines(True), "is", "should be"))
    return int(new != old)
