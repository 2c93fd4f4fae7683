"""Tables of benchmarks as Parquet files, written once for each scale; TPC-H's by ``tpchgen-cli``."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from gpujoin.errors import ConfigurationError, GpuJoinError, pip_install
from gpujoin.storage.folders import user_cache

TABLES = ("customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier")


def cache_directory() -> Path:
    """Where generated data is kept: ``$GPUJOIN_CACHE``, else ``gpujoin`` in the user's cache folder."""
    return user_cache("GPUJOIN_CACHE")


def tpch_directory(scale: float, cache: Path | None = None) -> Path:
    """Folder with ``<table>.parquet`` for each TPC-H table of one scale; written first where it is not there yet.

    Scale 1 is about 1 GB of text, some 300 MB of Parquet. Raises ``ConfigurationError`` if the scale is absurd or the
    generator is not installed, ``GpuJoinError`` if the generator failed.
    """
    return cached_directory("tpch", scale, _generate, cache)


def cached_directory(
    name: str, scale: float, generate: Callable[[float, Path], None], cache: Path | None = None
) -> Path:
    """Folder of the tables of one scale, in the cache; generated first, into a folder, where it is not there yet.

    The folder appears whole or not at all. Raises ``ConfigurationError`` if the scale is absurd.
    """
    if not 0.001 <= scale <= 1000:
        raise ConfigurationError(f"scale is {scale:g}; give one between 0.001 and 1000, such as 0.1.")
    cache = cache or cache_directory()
    target = cache / f"{name}-{scale:g}"
    if target.is_dir():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=cache))
    try:
        generate(scale, partial)
        partial.chmod(0o755)
        try:
            partial.rename(target)
        except OSError:
            # Another process was faster; its tables are the same.
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def _generate(scale: float, into: Path) -> None:
    command = [_generator(), "parquet", f"--scale-factor={scale:g}", f"--output-dir={into}", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        said = done.stderr.strip() or f"exit status {done.returncode}"
        raise GpuJoinError(f"tpchgen-cli could not write TPC-H data at scale {scale:g} into {into.parent}: {said}")
    missing = [table for table in TABLES if not (into / f"{table}.parquet").is_file()]
    if missing:
        raise GpuJoinError(
            f"tpchgen-cli wrote no file for {', '.join(missing)}. Is another program of that name on PATH?"
        )


def _generator() -> str:
    beside = Path(sys.executable).parent / "tpchgen-cli"
    command = str(beside) if beside.is_file() else shutil.which("tpchgen-cli")
    if command is None:
        raise ConfigurationError(f"tpchgen-cli, which makes TPC-H tables, is not installed: {pip_install('bench')}")
    return command
