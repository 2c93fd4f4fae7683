#!/usr/bin/env python3
"""Ask Spark for its answers to all expressions of the tests, and write them to tests/expressions/recorded.

Usage: ``python scripts/record_answers.py``, with the extra ``test`` and Java (``make answers``); a minute or two. The
questions are those that `tests/expressions` asks: every function of the tables, over special values, with and without
ANSI mode. Expected values come from Spark alone; the run fails where the package differs from them, and still writes.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import pytest  # noqa: E402

from tests.expressions.answers import FOLDER, RECORD, VARIABLE  # noqa: E402


def main() -> int:
    """Record, and say how much."""
    os.environ[VARIABLE] = RECORD
    status = pytest.main(["-q", "-p", "no:xdist", "-m", "not slow", str(ROOT / "tests" / "expressions"), *sys.argv[1:]])
    files = list(FOLDER.glob("*.arrow"))
    print(f"{len(files)} files, {sum(path.stat().st_size for path in files) / 1e6:.1f} MB")
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
