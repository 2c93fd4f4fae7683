"""The algorithms by which a device finds the matches of a key."""

from __future__ import annotations

from enum import Enum

ASKED_FOR = "asked for by spark.gpujoin.gpu.algorithm"
"""Reason given for an algorithm that the setting demands."""


class Algorithm(Enum):
    """Algorithms by which a device finds the matches of a key."""

    AUTO = "auto"
    """Any of the others, by the facts of the keys."""
    DIRECT = "direct"
    """Direct address: a table indexed by the key's distance from the smallest build key."""
    UNIQUE = "unique"
    """Hash table with one row for each key."""
    CSR = "csr"
    """Hash table with any number of rows for each key, in compressed sparse row form."""
    CUDF = "cudf"
    """Operations of libcudf and CuPy, without gpujoin's own kernels."""

    @property
    def uses_kernels(self) -> bool:
        """Whether gpujoin's own kernels may be used, for keys and for all else."""
        return self is not Algorithm.CUDF
