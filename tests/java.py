"""Options of the Java that tests start for Spark."""

from __future__ import annotations

import os

CODEGEN_VARIABLE = "GPUJOIN_TEST_CODEGEN"

SHORT_LIVED = (
    "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xms1g", "-Xmn640m", "-XX:MetaspaceSize=256m",
    "-XX:ReservedCodeCacheSize=256m", "-XX:+IgnoreUnrecognizedVMOptions", "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
)  # fmt: skip
"""For drivers of many small queries, for which Spark generates many classes that run once.

Compiling them well, verifying them and growing the heap step by step costs a fifth of a driver's time. With one tier
of compilation Java keeps 48 MiB for code, and once that is full searches it all the time for what may go.
"""
_INTERPRETED = ("-Dspark.sql.codegen.wholeStage=false", "-Dspark.sql.codegen.factoryMode=NO_CODEGEN")
"""Has Spark interpret queries; it does not if GPUJOIN_TEST_CODEGEN is set, as users have it."""


def options() -> str:
    """Give the options for ``SPARK_SUBMIT_OPTS``."""
    return " ".join((*SHORT_LIVED, *(() if os.environ.get(CODEGEN_VARIABLE) else _INTERPRETED)))
