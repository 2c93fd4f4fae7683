"""Shows that the sweep over files finds each mistake that was mended: takes a fix back, and runs it until it does.

``python scripts/revert_check.py [NAME…]``, with the names of ``tests.sweep.reverted.FIXES``; some minutes. Exits with 1
if the sweep finds nothing without one.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests import java  # noqa: E402
from tests.sweep.reverted import FIXES, VARIABLE, revert  # noqa: E402

MOST_TABLES = 60
SEED = 20260807


def main() -> None:
    """Run the sweep without each of the fixes named, or of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(FIXES)}")
    parser.add_argument("--tables", type=int, default=MOST_TABLES, help="generated tables that are tried")
    arguments = parser.parse_args()
    if VARIABLE in os.environ:
        sys.exit(_search(arguments.tables))
    missed = []
    for name in arguments.names or FIXES:
        environment = os.environ | {VARIABLE: name, "PYTHONPATH": str(ROOT), "SPARK_SUBMIT_OPTS": java.options()}
        environment.setdefault("PYSPARK_PYTHON", sys.executable)
        program = [sys.executable, __file__, "--tables", str(arguments.tables)]
        told = subprocess.run(program, check=False, env=environment, capture_output=True, text=True)
        print(f"{name}: {FIXES[name].mistake}\n{told.stdout.strip()}", flush=True)
        if told.returncode:
            missed.append(name)
            print(told.stderr[-3000:])
    sys.exit(f"not found: {', '.join(missed)}" if missed else 0)


def _search(most: int) -> int:
    """Compare samples and generated tables until there is a difference; gives the exit status."""
    import numpy as np
    from pyspark.sql import SparkSession

    from tests.sweep.files import write_table
    from tests.sweep.operations import Table, compare, sessions_of

    revert()
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    settings = {
        "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.driver.memory": "1500m",
        "spark.sql.session.timeZone": "UTC", "spark.log.level": "ERROR",
        "spark.python.daemon.module": "tests.sweep.reverted",
    }  # fmt: skip
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    compared = 0
    with tempfile.TemporaryDirectory() as folder, sessions_of(spark) as sessions:
        fix = FIXES[os.environ[VARIABLE]]
        samples = sorted((ROOT / "tests" / "data" / "parquet").glob(fix.samples)) if fix.samples else []
        tables = [Table(str(path)) for path in samples]
        written = (write_table(Path(folder), SEED, n, sessions.native, claims=(fix.claim,)) for n in range(most))
        claiming = (table for table in written if fix.sign in table.context)
        for number, table in enumerate(itertools.chain(tables, claiming)):
            report = compare(sessions, table, np.random.default_rng([SEED, number]))
            compared += report.compared
            if report.problems:
                print(f"  found by table {number + 1}, after {compared} comparisons: {report.problems[0][:600]}")
                return 0
    print(f"  not found in {compared} comparisons")
    return 1


if __name__ == "__main__":
    main()
