#!/usr/bin/env python3
"""Write docs/tpch.md from how each TPC-H query is planned, or check that it is up to date.

Usage: ``python scripts/gen_tpch.py`` writes; with ``--check`` the exit status is 1 when the file would change. Needs
PySpark, Java, ``tpchgen-cli`` and DuckDB's TPC-H extension (the extra ``bench``).
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.queries.page import main
from benchmarks.tpch.answers import SUITE

if __name__ == "__main__":
    sys.exit(main(SUITE))
