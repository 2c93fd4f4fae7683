"""Looks at headers of pages in local Parquet files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from gpujoin.backends.parquet.footers import Source
from gpujoin.backends.parquet.metadata import ParquetFooter

_FIRST_VERSION = bytes([0x15, 0x00])
"""How a header begins: field 1, the type of the page, is the integer 0, ``DATA_PAGE``."""


def have_first_version(parquet: ParquetFooter, sources: Sequence[Source], groups: Iterable[int]) -> bool:
    """Whether the pages of some columns are of the format's first version, by the first page of each chunk.

    Headers of the second version say how many values are null, which Polars and libcudf believe. In files by PyArrow 3
    they say 0 of dictionaries with nulls; Spark and PyArrow count the levels, as all must in the first version.
    """
    with Path(parquet.path).open("rb", buffering=0) as file:
        for group in groups:
            for leaf in (leaf for source in sources for leaf in source.leaves):
                chunk = parquet.chunk(group, leaf)
                file.seek(chunk.start + chunk.dictionary)
                if chunk.values and file.read(len(_FIRST_VERSION)) != _FIRST_VERSION:
                    return False
    return True
