"""A daemon for Spark's workers in which a fix is taken back, to show that the sweep finds what it has mended.

The variable ``GPUJOIN_TEST_REVERTED`` names the fix. The driver takes it back in its own process by :func:`revert`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

VARIABLE = "GPUJOIN_TEST_REVERTED"


def _believe_order() -> None:
    from gpujoin.backends.parquet.metadata import ParquetFooter

    unset = property(lambda _footer: False, lambda _footer, _value: None)
    mock.patch.object(ParquetFooter, "claims_order", unset, create=True).start()


def _believe_types() -> None:
    from gpujoin.backends.cpu.pipeline import decoding

    mock.patch.object(decoding, "_is_decoded_as", return_value=True).start()


def _believe_pages() -> None:
    from gpujoin.backends.cpu.pipeline import decoding

    mock.patch.object(decoding, "have_first_version", return_value=True).start()


def _believe_arrow_schema() -> None:
    from gpujoin.backends.parquet.metadata import ParquetFooter

    def as_written(footer: Any) -> bytes:
        data: bytes = footer._data
        return b"PAR1" + data + len(data).to_bytes(4, "little") + b"PAR1"

    mock.patch.object(ParquetFooter, "without_claims", as_written).start()


@dataclass(frozen=True)
class Fix:
    """A fix that is taken back."""

    mistake: str
    """What is done again without it."""
    revert: Callable[[], None]
    claim: str
    """The claim of generated files that shows the mistake, one of :data:`tests.sweep.files.CLAIMS`."""
    sign: str
    """Text in the context of a table that makes it."""
    samples: str = ""
    """Pattern of the samples that are compared first, if any show the mistake."""


FIXES = {
    "order": Fix("Polars decodes files that say that their rows are sorted", _believe_order, "sorting", "sorted by"),
    "types": Fix("Polars decodes columns to whatever types files claim", _believe_types, "arrow", "ARROW:schema"),
    "pages": Fix(
        "Polars decodes pages that say how many nulls they have",
        _believe_pages,
        "statistics",
        "statistics",
        "pyarrow-3*-v2.parquet",
    ),
    "lists": Fix(
        "PyArrow decodes to claimed types: lists of fixed size, zones by offset",
        _believe_arrow_schema,
        "arrow",
        "ARROW:schema",
    ),
}


def revert() -> None:
    """Take back the fix that the variable names, if it does."""
    name = os.environ.get(VARIABLE)
    if name:
        FIXES[name].revert()


def main() -> None:
    """Serve Spark's requests for workers, without the fix."""
    from gpujoin.spark import daemon

    revert()
    daemon.main()


if __name__ == "__main__":
    main()
