"""Footers of Parquet files that planning reads, kept from query to query while the files stay as they are."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpujoin.cache import Cache, object_bytes
from gpujoin.engine.pipeline.support import read_footers
from gpujoin.errors import ScanError
from gpujoin.plan.scanned import ScannedFiles, sample_of
from gpujoin.report.amounts import show_paths
from gpujoin.spark.catalyst.nodes import NotTranslatableError
from gpujoin.spark.query.activity import doing
from gpujoin.storage.locations import is_local

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpujoin.model.relations import FileFooter, FileSlice, Scan

_THREADS = 8
_STORE_THREADS = 32
"""Footers that are read at the same time: those in a store are mostly waited for."""
_MOST_BYTES = 64 << 20
"""Bytes of cached footers, which have the statistics of each row group and column."""
_MOST_REFUSED = 1_000
_footers_by_key: Cache[tuple[Any, ...], FileFooter] = Cache(_MOST_BYTES, object_bytes)
_refused: Cache[str, bool] = Cache(_MOST_REFUSED)
"""Files that workers have refused, by their paths; and other beginnings of what the workers said."""


def scanned_files(scan: Scan, files: tuple[FileSlice, ...], most: int) -> ScannedFiles:
    """Read the footers of a scan's files, as Spark has listed them, of ``most`` files at most.

    What is not looked at here the worker checks that opens the file. Raises ``NotTranslatableError`` if one of those
    that are looked at cannot be read here as Spark reads it, or at all, or is no longer the file that Spark has listed:
    what Spark then makes of it is its own business.
    """
    sample = sample_of(files, most)
    if _refused:
        sample = sorted({*sample, *(number for number, file in enumerate(files) if file.path in _refused)})
        for deletion in (deletion for file in files for deletion in file.deletions):
            if deletion.path in _refused:
                raise NotTranslatableError(f"{deletion.path}: a worker could not read these deletes")
    return ScannedFiles(files, _footers(scan, [files[number] for number in sample]))


def note_scan_error(error: str) -> None:
    """Note the file that a worker's error names, so that later queries read its footer first.

    A ``ScanError`` begins with the path of its file, which may have colons too.
    """
    kind, _, text = error.partition(": ")
    if not kind.endswith(ScanError.__name__):
        return
    parts = text.split(": ")
    for count in range(1, len(parts)):
        _refused.put(": ".join(parts[:count]), True)


def _footers(scan: Scan, files: Sequence[FileSlice]) -> tuple[FileFooter, ...]:
    for file in files:
        if is_local(file.path):
            _check_listed(file)
    columns = tuple((field.name, field.type) for field in scan.columns)
    how = scan.case_sensitive, scan.by_setting, scan.stored_fields, scan.partition_columns
    keys = [(file.path, file.size, file.modified_ms, columns, how) for file in files]
    by_key = {key: footer for key in keys if (footer := _footers_by_key.get(key)) is not None}
    missing = [number for number, key in enumerate(keys) if key not in by_key]
    if missing:
        paths = [files[n].path for n in missing]
        count = f"{len(paths)} files of " if len(paths) > 1 else ""
        began_ms = time.time_ns() // 1_000_000
        try:
            with doing(f"footers of {count}{show_paths(paths)}"):
                threads = _THREADS if is_local(paths[0]) else _STORE_THREADS
                missing_footers = read_footers(scan, paths, threads=threads)
        except ScanError as problem:
            raise NotTranslatableError(str(problem)) from problem
        for number, footer in zip(missing, missing_footers, strict=True):
            by_key[keys[number]] = footer
            if files[number].is_settled(began_ms):
                _footers_by_key.put(keys[number], footer)
    footers = tuple(by_key[key] for key in keys)
    for file, footer in zip(files, footers, strict=True):
        if footer.obstacles:
            raise NotTranslatableError(footer.obstacles[0])
        if footer.size != file.size or file.modified_ms not in (None, footer.modified_ms):
            raise NotTranslatableError(f"{footer.path}: has changed since Spark listed it")
    return footers


def _check_listed(file: FileSlice) -> None:
    """Check that a local file is the one that Spark has listed; footers or workers check other files."""
    try:
        facts = Path(file.path).stat()
    except OSError as problem:
        raise NotTranslatableError(f"{file.path}: {problem.strerror}") from problem
    if facts.st_size != file.size or file.modified_ms not in (None, facts.st_mtime_ns // 1_000_000):
        raise NotTranslatableError(f"{file.path}: has changed since Spark listed it")
