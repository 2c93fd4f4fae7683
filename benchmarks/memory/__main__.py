"""Measure the memory of pipelines: ``python -m benchmarks.memory``."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks.memory.cases import CASES, write
from benchmarks.memory.measure import measured
from gpujoin.config import parse_bytes


def main() -> None:
    """Print a table: for each case and budget the growth over the base in MiB, and the seconds."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows of the largest input")
    parser.add_argument("--budgets", default="128m,256m,512m,2g", help="values of memoryBudget")
    parser.add_argument("--cases", default=",".join(CASES).replace(", ", "; "), help="names; ';' within a name")
    parser.add_argument("--data", type=Path, help="folder with the input; else it is written")
    parser.add_argument("--address-space", help="RLIMIT_AS of the process")
    arguments = parser.parse_args()
    budgets = arguments.budgets.split(",")
    space = None if arguments.address_space is None else parse_bytes(arguments.address_space)
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.data or Path(temporary)
        if not (folder / "texts.parquet").exists():
            folder.mkdir(exist_ok=True)
            write(folder, arguments.rows)
        print("| pipeline | " + " | ".join(budgets) + " |")
        print("|---|" + "---:|" * len(budgets))
        for name in arguments.cases.split(","):
            cells = []
            for budget in budgets:
                use = measured(name.replace("; ", ", "), folder, {"memory_budget": budget}, space)
                cells.append(use.error or f"{use.growth >> 20} MiB, {use.seconds:.1f} s, {use.rows}")
            print(f"| {name.replace('; ', ', ')} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
