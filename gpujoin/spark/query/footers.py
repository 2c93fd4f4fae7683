"""Footers of Parquet files, kept from query to query while the files stay as they are."""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpujoin.engine.pipeline.support import read_footers
from gpujoin.errors import ScanError
from gpujoin.spark.catalyst.translate import NotTranslatableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpujoin.model.relations import FileFooter, FileSlice, Scan

MOST_FILES = 10_000
"""Scans of more files are left to Spark, which plans them without opening any."""

_KEPT = 20_000
_lock = threading.Lock()
_known: OrderedDict[tuple[Any, ...], FileFooter] = OrderedDict()


def footers_of(scan: Scan, files: Sequence[FileSlice]) -> tuple[FileFooter, ...]:
    """Read the footers of a scan's files, as Spark has listed them.

    Raises ``NotTranslatableError`` if there are too many files, or one of them cannot be read here as Spark reads it,
    or at all, or is no longer the file that Spark has listed: what Spark then makes of it is its own business.
    """
    if len(files) > MOST_FILES:
        raise NotTranslatableError(f"it has {len(files)} files, more than {MOST_FILES}")
    for file in files:
        _check_listed(file)
    columns = tuple((field.name, field.type) for field in scan.columns)
    keys = [(file.path, file.size, file.modified_ms, file.constants, columns) for file in files]
    with _lock:
        by_key = {key: _known[key] for key in keys if key in _known}
        for key in by_key:
            _known.move_to_end(key)
    missing = [number for number, key in enumerate(keys) if key not in by_key]
    if missing:
        try:
            read = read_footers(scan, [files[n].path for n in missing], [files[n].constants for n in missing])
        except ScanError as problem:
            raise NotTranslatableError(str(problem)) from problem
        with _lock:
            for number, footer in zip(missing, read, strict=True):
                by_key[keys[number]] = _known[keys[number]] = footer
            while len(_known) > _KEPT:
                _known.popitem(last=False)
    footers = tuple(by_key[key] for key in keys)
    for file, footer in zip(files, footers, strict=True):
        if footer.obstacles:
            raise NotTranslatableError(footer.obstacles[0])
        if (footer.size, footer.modified_ms) != (file.size, file.modified_ms):
            raise NotTranslatableError(f"{footer.path}: has changed since Spark listed it")
    return footers


def _check_listed(file: FileSlice) -> None:
    try:
        facts = Path(file.path).stat()
    except OSError as problem:
        raise NotTranslatableError(f"{file.path}: {problem.strerror}") from problem
    if (facts.st_size, facts.st_mtime_ns // 1_000_000) != (file.size, file.modified_ms):
        raise NotTranslatableError(f"{file.path}: has changed since Spark listed it")
