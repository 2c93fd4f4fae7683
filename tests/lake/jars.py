"""Jars of Delta and Iceberg, which Spark itself gets from Maven Central: ``python -m tests.lake.jars``."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from gpujoin.storage.folders import user_cache

PYSPARK = "4.1.1"
"""The newest release on which both packages work: Delta 4.2.0 fails on later ones of 4.1, and has no jar for 4.2."""
PACKAGES = {
    "delta": "io.delta:delta-spark_4.1_2.13:4.2.0",
    "iceberg": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
}
AWS = "org.apache.iceberg:iceberg-aws-bundle:1.12.0"
"""What Iceberg needs beside its package to open files of S3 by itself."""
FOLDER_VARIABLE = "GPUJOIN_TEST_JARS"
"""Folder of the jars, where it is not in the cache of the user."""


def why_missing() -> str | None:
    """Give the reason why tables of these formats cannot be tested here; ``None``: they can."""
    try:
        installed = version("pyspark")
    except PackageNotFoundError:
        return "no PySpark: make test-lake"
    if installed != PYSPARK:
        return f"Delta and Iceberg are tested on PySpark {PYSPARK}, and this is {installed}: make test-lake"
    missing = [package for package in PACKAGES.values() if not jar_of(package).is_file()]
    return f"no {' and no '.join(missing)}: make test-lake gets them from Maven Central" if missing else None


def jars() -> list[Path]:
    """Give all jars of the packages."""
    return sorted((_folder() / "jars").glob("*.jar"))


def get_jars() -> None:
    """Have Spark get what is missing, with what it depends on.

    Raises ``subprocess.CalledProcessError`` if Maven Central cannot be reached.
    """
    packages = (*PACKAGES.values(), AWS)
    if all(jar_of(package).is_file() for package in packages):
        return
    import pyspark

    with tempfile.NamedTemporaryFile(suffix=".py") as nothing:
        submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
        subprocess.run(
            [submit, "--packages", ",".join(packages), "--conf", f"spark.jars.ivy={_folder()}", nothing.name],
            check=True,
            stdout=sys.stderr,
        )


def _folder() -> Path:
    return user_cache(FOLDER_VARIABLE, "lake")


def jar_of(package: str) -> Path:
    """Give the place of a package's own jar."""
    group, artifact, number = package.split(":")
    return _folder() / "jars" / f"{group}_{artifact}-{number}.jar"


if __name__ == "__main__":
    get_jars()
