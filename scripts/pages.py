"""Writes pages of the documentation that are generated, or checks that they are up to date."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path


def write_or_check(target: Path, page: Callable[[], str], description: str | None) -> int:
    """Write a page, or with ``--check`` show how it differs; returns 1 if it does.

    ``description`` is that of the command, whose first line is shown.
    """
    return write_or_check_all({target: page}, description)


def write_or_check_all(pages: Mapping[Path, Callable[[], str]], description: str | None) -> int:
    """Write several pages, or with ``--check`` show how they differ; returns 1 if any does."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0] if description else None)
    parser.add_argument("--check", action="store_true", help="only say whether the files are up to date")
    check = parser.parse_args().check
    is_stale = False
    for target, page in pages.items():
        new, old = page(), target.read_text(encoding="utf-8") if target.exists() else ""
        if new == old:
            continue
        if not check:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(new, encoding="utf-8")
            continue
        is_stale = True
        names = f"{target.name} as it is", f"{target.name} as it should be"
        sys.stdout.writelines(difflib.unified_diff(old.splitlines(True), new.splitlines(True), *names))
    return int(is_stale)
