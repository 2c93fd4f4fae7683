"""Run every benchmark and write its page to `benchmarks/results/`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
PROGRAMS = {
    "files": [],
    "fixed": [],
    "exchange": [],
    "engine": ["--rows", "2000000", "--repeats", "3", "--memory", "gpujoin"],
    "pipeline": [],
    "quadratic": [],
    "script": [],
    "spark": [],
    "lists": [],
    "streams": [],
    "windows": [],
}


def main() -> None:
    """Run the programs named as arguments, or all."""
    names = sys.argv[1:] or list(PROGRAMS)
    unknown = set(names) - PROGRAMS.keys()
    if unknown:
        raise SystemExit(f"no benchmark {sorted(unknown)}; there are {sorted(PROGRAMS)}")
    for name in names:
        out = os.path.relpath(RESULTS / f"{name}-cpu.json")
        subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *PROGRAMS[name], "--out", out], check=True)


if __name__ == "__main__":
    main()
