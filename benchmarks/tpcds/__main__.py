"""Run the TPC-DS queries by Spark itself and accelerated, taking turns in one session.

python -m benchmarks.tpcds [--sf 1] [--queries 1,3,5] [--master 'local[*]'] [--out benchmarks/results]

Every answer is compared with Spark's. The exit status is 1 if any differs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks.queries import program
from benchmarks.tpcds.suite import SUITE


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program."""
    return program.main(SUITE, __doc__.splitlines()[0], argv)


if __name__ == "__main__":
    sys.exit(main())
