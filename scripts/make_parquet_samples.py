"""Writes the Parquet files of tests/data/parquet: the same rows by each library that writes Parquet, old and new.

Run by hand, for a new writer or a new version of one: ``python scripts/make_parquet_samples.py [NAME…]``, with the
names of ``WRITERS``. Each writer has an environment of its own, that is thrown away. Needs Java 17, Maven, and the
Pythons named below, which pyenv has, or any ``pythonX.Y`` on the path.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROGRAMS = ROOT / "scripts" / "parquetwriters"
SAMPLES = ROOT / "tests" / "data" / "parquet"
MOST_BYTES = 1_000_000


@dataclass(frozen=True)
class Writer:
    """A library that writes Parquet, from PyPI."""

    program: str
    """A program of the folder ``parquetwriters``."""
    python: str
    requirements: tuple[str, ...]


WRITERS = {
    "pyarrow-0.8": Writer("byarrow", "3.6", ("pyarrow==0.8.0", "numpy")),
    "pyarrow-0.15": Writer("byarrow", "3.7", ("pyarrow==0.15.1", "numpy")),
    "pyarrow-3": Writer("byarrow", "3.7", ("pyarrow==3.0.0",)),
    "pyarrow-12": Writer("byarrow", "3.7", ("pyarrow==12.0.1",)),
    "pyarrow-26": Writer("byarrow", "3.11", ("pyarrow==26.0.1",)),
    "encrypted": Writer("encrypted", "3.11", ("pyarrow==26.0.1",)),
    "polars-0.13": Writer("bypolars", "3.7", ("polars==0.13.62", "pyarrow==12.0.1")),
    "polars-0.20": Writer("bypolars", "3.11", ("polars==0.20.31", "pyarrow==15.0.2", "numpy<2")),
    "polars-2": Writer("bypolars", "3.11", ("polars==2.1.0", "pyarrow==26.0.1")),
    "duckdb-0.2": Writer("byduckdb", "3.7", ("duckdb==0.2.9", "numpy")),
    "duckdb-1": Writer("byduckdb", "3.11", ("duckdb==1.5.5",)),
    "duckdb-2": Writer("byduckdb", "3.11", ("duckdb==2.0.0",)),
    "fastparquet-0.8": Writer("byfastparquet", "3.7", ("fastparquet==0.8.1", "numpy<1.22")),
    "fastparquet-2026": Writer("byfastparquet", "3.11", ("fastparquet==2026.9.0",)),
    "datafusion-55": Writer("byrust", "3.11", ("datafusion==55.0.0", "pyarrow==26.0.1")),
    "arro3-0.9": Writer("byrust", "3.11", ("arro3-io==0.9.1", "arro3-core==0.9.1", "pyarrow==26.0.1")),
    "deltalake-1": Writer("byrust", "3.11", ("deltalake==1.6.6", "pyarrow==26.0.1")),
    "spark-3.3": Writer("byspark", "3.10", ("pyspark==3.3.4",)),
    "spark-4.3": Writer("byspark", "3.11", ("pyspark==4.3.0",)),
    "hive-2.3": Writer("byhive", "3.11", ("pyspark==4.3.0",)),
}
MESSAGES = "parquet-mr"
"""Files that parquet-mr writes from schemas of any kind, as Impala and Hive have them."""
OLD_MR = "com.twitter:parquet-hadoop-bundle:1.6.0"


def main() -> None:
    """Write the samples named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"one of {', '.join([*WRITERS, MESSAGES])}; default: all"
    )
    names = parser.parse_args().names or [*WRITERS, MESSAGES]
    unknown = set(names) - {*WRITERS, MESSAGES}
    if unknown:
        parser.error(f"no such writers: {', '.join(sorted(unknown))}")
    SAMPLES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            made = Path(scratch) / name
            made.mkdir()
            if name == MESSAGES:
                _write_messages(made)
            else:
                _write(WRITERS[name], made)
            files = sorted(made.glob("*.parquet"))
            for file in files:
                shutil.copy(file, SAMPLES / file.name)
            print(f"{name}: {', '.join(file.name for file in files)}")
    size = sum(file.stat().st_size for file in SAMPLES.iterdir())
    if size > MOST_BYTES:
        sys.exit(f"{size} bytes in {SAMPLES}, more than {MOST_BYTES}: write fewer rows")


def _python(version: str) -> str:
    """Find a Python of a version."""
    for home in sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*")):
        return str(home / "bin" / "python")
    found = shutil.which(f"python{version}")
    if found is None:
        sys.exit(f"there is no Python {version}")
    return found


def _environment(folder: Path, writer: Writer) -> str:
    """Make an environment with a writer; give its Python."""
    subprocess.run([_python(writer.python), "-m", "venv", str(folder)], check=True)
    python = str(folder / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", "pandas", *writer.requirements], check=True)
    return python


def _write(writer: Writer, folder: Path) -> None:
    python = _environment(folder / "environment", writer)
    environment = os.environ | {"PYSPARK_PYTHON": python}
    environment.pop("PYTHONPATH", None)
    subprocess.run([python, f"{writer.program}.py", str(folder)], check=True, cwd=PROGRAMS, env=environment)


def _write_messages(folder: Path) -> None:
    """Write messages by the parquet-mr that PySpark brings, and by one of 2015, whose classes have other names."""
    sys.path.insert(0, str(PROGRAMS))
    import messages  # type: ignore[import-not-found]
    import pyspark

    jars = f"{Path(pyspark.__file__).parent}/jars/*"
    [jar] = Path(jars[:-1]).glob("parquet-hadoop-[0-9]*.jar")
    version = re.sub(r"parquet-hadoop-(.*)\.jar", r"\1", jar.name)
    source = PROGRAMS / "Messages.java"
    _run_java(source, jars, folder, f"parquet-mr-{version}", {**messages.OLD, **messages.NEW})
    subprocess.run(
        [
            "mvn",
            "-q",
            "dependency:copy",
            f"-Dartifact={OLD_MR}",
            f"-DoutputDirectory={folder}",
            "-Dmdep.useBaseVersion",
        ],
        check=True,
    )
    older = folder / "Messages.java"
    text = (
        source.read_text().replace("org.apache.parquet.", "parquet.").replace("fromConstantByteArray", "fromByteArray")
    )
    older.write_text(text)
    [bundle] = folder.glob("parquet-hadoop-bundle-*.jar")
    _run_java(older, f"{bundle}:{jars}", folder, "parquet-mr-1.6.0", messages.OLD)


def _run_java(source: Path, classes: str, folder: Path, prefix: str, messages: dict[str, str]) -> None:
    java = str(Path(os.environ["JAVA_HOME"]) / "bin" / "java")
    arguments = [text for pair in messages.items() for text in pair]
    subprocess.run([java, "-cp", classes, str(source), str(folder), prefix, *arguments], check=True)


if __name__ == "__main__":
    main()
