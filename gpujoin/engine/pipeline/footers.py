"""Reading the footers of a scan's files, before it is divided among tasks."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from gpujoin.backends.registry import BackendRequest, create_pipeline
from gpujoin.errors import RelationError
from gpujoin.model.relations import Constant, FileFooter, Scan


def read_footers(
    scan: Scan,
    paths: Sequence[str],
    constants: Sequence[tuple[Constant, ...]] | None = None,
    *,
    threads: int = 8,
) -> list[FileFooter]:
    """Read the footers of files.

    Parameters
    ----------
    scan : Scan
        Says which columns will be read, and how they must be readable.
    paths : sequence of str
        The files.
    constants : sequence of tuple or None
        The partition columns' values for each file.
    threads : int
        How many files are opened at once.

    Raises
    ------
    ScanError
        If a file cannot be opened or is no Parquet file; the message names it. A file that is readable, but not here as
        Spark reads it, says so in its ``obstacles``.
    RelationError
        If there are not as many constants as paths.
    """
    values = [()] * len(paths) if constants is None else list(constants)
    if len(values) != len(paths):
        raise RelationError(f"{len(values)} tuples of constants for {len(paths)} files")
    backend = create_pipeline(BackendRequest())

    def read(path: str, mine: tuple[Constant, ...]) -> FileFooter:
        return backend.footer(scan, path, mine)

    if len(paths) < 2:
        return [read(path, mine) for path, mine in zip(paths, values, strict=True)]
    with ThreadPoolExecutor(min(threads, len(paths))) as pool:
        return list(pool.map(read, paths, values))
