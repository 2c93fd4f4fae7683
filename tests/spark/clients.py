"""Stand-ins for Hadoop's clients of stores, on Spark's side: classes with the clients' names that read a folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from xml.sax.saxutils import escape

import pyspark

ROOT = Path(__file__).parents[2]
_SOURCE = Path(__file__).with_name("stores") / "FolderAsStore.java"


def compile_clients(names: Iterable[str], folder: Path) -> None:
    """Compile classes with some names into a folder."""
    sources = [_SOURCE]
    for name in names:
        package, _, short = name.rpartition(".")
        source = folder / f"{short}.java"
        source.write_text(f"package {package}; public class {short} extends gpujoin.tests.FolderAsStore {{}}")
        sources.append(source)
    jars = Path(pyspark.__file__).parent / "jars" / "*"
    javac = Path(os.environ["JAVA_HOME"]) / "bin" / "javac"
    subprocess.run([javac, "-cp", str(jars), "-d", str(folder), *map(str, sources)], check=True)


def write_core_site(folder: Path, settings: Mapping[str, str]) -> None:
    """Write Hadoop's configuration."""
    properties = "".join(
        f"<property><name>{name}</name><value>{escape(value)}</value></property>" for name, value in settings.items()
    )
    (folder / "core-site.xml").write_text(f"<configuration>{properties}</configuration>")


def environment_of(root: Path, class_path: Iterable[Path], settings: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment of a program whose Spark reads a folder by the stand-ins in its class path."""
    arguments = ["--driver-class-path", os.pathsep.join(map(str, class_path))]
    for name, value in (settings or {}).items():
        arguments += ["--conf", f"{name}={value}"]
    arguments += ["--driver-java-options", f"-Dgpujoin.tests.stores={root}", "pyspark-shell"]
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
        "PYSPARK_SUBMIT_ARGS": " ".join(arguments), "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT),
        "AWS_EC2_METADATA_DISABLED": "true",
    }  # fmt: skip
