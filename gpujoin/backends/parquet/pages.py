"""Looks at headers of pages in local Parquet files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from io import RawIOBase
from pathlib import Path

from gpujoin.backends.parquet.footers import Source
from gpujoin.backends.parquet.metadata import ColumnChunk, ParquetFooter
from gpujoin.errors import ScanError

_FIRST_VERSION = bytes([0x15, 0x00])
"""How a header begins: field 1, the type of the page, is the integer 0, ``DATA_PAGE``."""


def have_first_version(parquet: ParquetFooter, sources: Sequence[Source], groups: Iterable[int]) -> bool:
    """Whether the pages of some columns are of the format's first version, by the first page of each chunk.

    Headers of the second version say how many values are null, which Polars and libcudf believe. In files by PyArrow 3
    they say 0 of dictionaries with nulls; Spark and PyArrow count the levels, as all must in the first version.
    Raises ``ScanError`` if the file cannot be read.
    """
    leaves = [leaf for source in sources for leaf in source.leaves]
    chunks = (parquet.chunk(group, leaf) for group in groups for leaf in leaves)
    try:
        with Path(parquet.path).open("rb", buffering=0) as file:
            return all(_begins_with_first_version(file, chunk) for chunk in chunks if chunk.values)
    except OSError as problem:
        raise ScanError(f"{parquet.path}: cannot be read: {problem}") from problem


def _begins_with_first_version(file: RawIOBase, chunk: ColumnChunk) -> bool:
    file.seek(chunk.start + chunk.dictionary)
    return file.read(len(_FIRST_VERSION)) == _FIRST_VERSION
