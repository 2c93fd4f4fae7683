"""What of the device on a GPU needs none."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cupy", reason='no CuPy: pip install ".[cu13]"')

from gpujoin.errors import KernelArgumentError
from gpujoin.launch.cuda import CudaDevice


def test_arrays_behind_pointers_must_lie_on_the_gpu() -> None:
    """Their addresses alone go to the kernel: nothing later would tell an array of the host from one of the device."""
    device = object.__new__(CudaDevice)  # to make one takes a GPU
    device._ordinal = 0
    with pytest.raises(KernelArgumentError, match="Array 1 of a pointer table does not lie on GPU 0"):
        device.pointers([None, np.zeros(3)])
