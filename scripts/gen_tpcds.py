#!/usr/bin/env python3
"""Write docs/tpcds.md from how each TPC-DS query is planned, or check that it is up to date.

Usage: ``python scripts/gen_tpcds.py`` writes; with ``--check`` the exit status is 1 when the file would change. Needs
PySpark, Java and DuckDB's TPC-DS extension (the extra ``bench``).
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.queries.page import main
from benchmarks.tpcds.suite import SUITE

if __name__ == "__main__":
    sys.exit(main(SUITE))
