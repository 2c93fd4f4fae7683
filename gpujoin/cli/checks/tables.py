"""Packages of Delta and Iceberg: whether their jars are made for the PySpark that is here."""

from __future__ import annotations

import contextlib
import os
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from gpujoin.cli.checks import Check, Status, version_tuple
from gpujoin.cli.checks.software import default_settings, version_in

_DELTA, _ICEBERG = "delta", "iceberg"
_FITTING = {
    _DELTA: {"4.0": "io.delta:delta-spark_4.0_2.13:4.1.0", "4.1": "io.delta:delta-spark_4.1_2.13:4.2.0"},
    _ICEBERG: {
        "4.0": "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.10.1",
        "4.1": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
    },
}
"""The newest package that is known of each format, by the version of Spark that it is made for."""
_NAME = re.compile(
    r"(?P<name>delta-spark|iceberg-spark-runtime)[_-](?:(?P<spark>\d+\.\d+)_)?2\.1\d[:-](?P<version>\d+(?:\.\w+)*?)"
    r"(?=\.jar|,|\s|$)"
)
"""A package of Maven, or the file of its jar."""
_SETTINGS = ("spark.jars.packages", "spark.jars")
_LOST_CLASS = "org/apache/spark/sql/catalyst/plans/logical/IgnoreCachedData.class"
"""What Delta up to 4.2.0 calls, and PySpark 4.1.2 and later do not have."""
_LAST_THAT_CALLS_IT = (4, 2, 0)
_WITH_DELTA = "4.1.1"
"""The newest PySpark that has it."""


@dataclass(frozen=True, slots=True)
class _Package:
    """A package of one of the formats."""

    format: str
    version: str
    spark: str | None
    """The version of Spark that it is made for; ``None``: its name does not tell."""
    place: str
    """Path of its jar, or the setting or the package of pip that names it."""


def tables() -> Iterator[Check]:
    """Check the packages of Delta and Iceberg that sessions have without being given any, or say which would fit."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        return
    home = Path(spec.origin).parent
    pyspark = version_in(home / "version.py")
    jars = Path(os.environ.get("SPARK_HOME") or home) / "jars"
    packages = list(_packages(jars))
    for name in _FITTING:
        own = [package for package in packages if package.format == name]
        if not own:
            yield _advised(name, pyspark)
        for package in own:
            yield _judged(package, pyspark, jars)


def _packages(jars: Path) -> Iterator[_Package]:
    names = [(file.name, str(file)) for file in sorted(jars.glob("*.jar"))] if jars.is_dir() else []
    path, settings = default_settings()
    names += [(settings[key], f"{path}: {key}") for key in _SETTINGS if key in settings]
    for text, place in names:
        for match in _NAME.finditer(text):
            name = _DELTA if match["name"].startswith(_DELTA) else _ICEBERG
            yield _Package(name, match["version"], match["spark"], place)
    with contextlib.suppress(PackageNotFoundError):
        yield _Package(_DELTA, version("delta-spark"), None, "pip's delta-spark")


def _advised(name: str, pyspark: str) -> Check:
    fitting = _FITTING[name].get(_minor(pyspark))
    if fitting is None:
        newest = _FITTING[name][max(_FITTING[name])].rpartition(":")[2]
        last = f"release {newest}, the newest that is known here, is made for PySpark {max(_FITTING[name])}"
        return Check(name, Status.OK, f"no jar here, and none is known for PySpark {pyspark}: {last}")
    says = f"no jar here; sessions get one that fits PySpark {pyspark} by spark.jars.packages={fitting}"
    if name == _DELTA and version_tuple(pyspark) > version_tuple(_WITH_DELTA):
        return Check(name, Status.WARNING, f"{says}, which fails on it", _of_delta(pyspark))
    return Check(name, Status.OK, says)


def _judged(package: _Package, pyspark: str, jars: Path) -> Check:
    finding = f"{package.version} ({package.place})"
    made_for = package.spark
    if package.format == _DELTA and made_for is None and version_tuple(package.version) < (4, 1):
        made_for = _minor(package.version)  # until then its releases were for the Spark of their own number
    if made_for is not None and made_for != _minor(pyspark):
        fitting = _FITTING[package.format].get(_minor(pyspark))
        advice = (
            f"Give sessions {fitting}." if fitting else f"Use PySpark {made_for}: pip install pyspark=={made_for}.*"
        )
        return Check(package.format, Status.WARNING, f"{finding} is made for Spark {made_for}, not {pyspark}", advice)
    if package.format == _DELTA and _calls_what_is_gone(package, jars):
        return Check(package.format, Status.WARNING, f"{finding} fails on PySpark {pyspark}", _of_delta(pyspark))
    return Check(package.format, Status.OK, finding)


def _calls_what_is_gone(package: _Package, jars: Path) -> bool:
    """Whether a release of Delta calls a class of Spark's that Spark's jars do not have."""
    if version_tuple(package.version) > _LAST_THAT_CALLS_IT:
        return False
    for jar in jars.glob("spark-catalyst_*.jar"):
        with zipfile.ZipFile(jar) as archive:
            return _LOST_CLASS not in archive.namelist()
    return False


def _of_delta(pyspark: str) -> str:
    return (
        f"On PySpark {pyspark} Delta's ALTER TABLE fails, and every query of a table after its tenth commit, with and "
        f"without gpujoin: pip install pyspark=={_WITH_DELTA}."
    )


def _minor(text: str) -> str:
    return ".".join(map(str, version_tuple(text)[:2]))
