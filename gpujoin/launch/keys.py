"""Key codes as kernels take them, and the launchers' common checks of arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpujoin.errors import KernelArgumentError
from gpujoin.launch.device import Array, Device, ModuleSpec, blocks_for

MAX_ROWS = (1 << 31) - 1
"""Most rows of one side, and of a device column: row numbers are 32-bit integers."""

ROW_NUMBER_BYTES = 4
"""Bytes of a row number, as slots of tables and entries of maps have them."""

BLOCK_THREADS = 256
"""Threads of a block, as in ``base.cuh``."""


@dataclass(frozen=True)
class KeyCodes:
    """Codes of the rows of a key frame. Equal keys have equal codes; the converse holds unless codes are hashes."""

    codes: Array
    """int32 or int64 of shape ``(rows,)``, or uint64 of shape ``(rows, 2)``: low and high word. Meaningless where a
    row matches nothing."""
    valid: Array | None
    """False where a row matches nothing; ``None``: no such row."""

    @property
    def rows(self) -> int:
        """Row count."""
        return int(self.codes.shape[0])

    @property
    def key_bytes(self) -> int:
        """Width of a code: 4, 8 or 16."""
        return int(self.codes.dtype.itemsize) * (2 if self.codes.ndim == 2 else 1)

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return int(self.codes.nbytes) + (0 if self.valid is None else int(self.valid.nbytes))


def checked_keys(keys: KeyCodes, *, ranged: bool = False) -> KeyCodes:
    """Raise for arrays that kernels cannot read as key codes; with ``ranged`` also for other than 4 or 8 bytes."""
    codes, valid = keys.codes, keys.valid
    single = codes.ndim == 1 and codes.dtype in (np.dtype(np.int32), np.dtype(np.int64))
    double = codes.ndim == 2 and codes.shape[1] == 2 and codes.dtype == np.dtype(np.uint64)
    if not (single or (double and not ranged)):
        requirement = "int32 or int64 of one dimension" + ("" if ranged else ", or uint64 of shape (rows, 2)")
        raise KernelArgumentError(f"key codes are {codes.dtype} of shape {codes.shape}; pass {requirement}")
    check_rows(keys.rows)
    check_contiguous("key codes", codes)
    if valid is not None:
        check_column("the validity of key codes", valid, np.bool_, keys.rows)
    return keys


def check_width(probe: KeyCodes, key_bytes: int) -> None:
    """Raise for codes of another width than those of the build side."""
    if probe.key_bytes != key_bytes:
        raise KernelArgumentError(
            f"probe keys have codes of {probe.key_bytes} bytes, the build side's have {key_bytes};"
            " pack both by one layout"
        )


def check_rows(rows: int) -> None:
    """Raise for more rows than 32-bit row numbers can count."""
    if rows > MAX_ROWS:
        raise KernelArgumentError(f"{rows} rows are over the {MAX_ROWS} of one side; pass fewer at a time")


def check_contiguous(name: str, array: Array) -> None:
    """Raise for an array that is not contiguous."""
    if not array.flags.c_contiguous:
        raise KernelArgumentError(f"{name} has strides {array.strides}; pass a contiguous array")


def check_column(name: str, array: Array, dtype: type[np.generic], rows: int | None = None) -> None:
    """Raise for an array of another type or length, or that is not one contiguous dimension.

    Raises ``KernelArgumentError`` if it is; names the array and the problem.
    """
    if array.dtype != np.dtype(dtype):
        raise KernelArgumentError(f"{name} is {array.dtype}; pass {np.dtype(dtype)}")
    if array.ndim != 1 or (rows is not None and array.shape[0] != rows):
        requirement = "one dimension" if rows is None else f"shape ({rows},)"
        raise KernelArgumentError(f"{name} has shape {array.shape}; pass {requirement}")
    check_contiguous(name, array)


def grid_of(device: Device, items: int, per_block: int = BLOCK_THREADS) -> int:
    """Number of blocks of a kernel in which each thread, or each block, takes several items in turn."""
    return blocks_for(items, per_block, device.properties.blocks)


def launch_over_keys(device: Device, source: str, name: str, keys: KeyCodes, *arguments: Any) -> None:
    """Launch a kernel with codes, valid and rows of keys as its first arguments, if there are any keys.

    The source is compiled for the width of the keys.
    """
    _launch(device, source, name, keys, grid_of(device, keys.rows), arguments)


def launch_inserts(device: Device, source: str, name: str, keys: KeyCodes, *arguments: Any) -> None:
    """Launch a kernel that enters keys in a hash table, likewise, on half as many threads.

    With more of them, sectors of a large table leave L2 between the read of a slot and its exchange: of 2^27 such
    pairs of accesses an H200 did 17.7 G/s with 8 blocks a multiprocessor, and 19.7 G/s with 4.
    """
    _launch(
        device,
        source,
        name,
        keys,
        blocks_for(keys.rows, BLOCK_THREADS, max(1, device.properties.blocks // 2)),
        arguments,
    )


def _launch(device: Device, source: str, name: str, keys: KeyCodes, blocks: int, arguments: tuple[Any, ...]) -> None:
    if keys.rows:
        kernel = device.kernel(ModuleSpec(source, (("KEY_BYTES", keys.key_bytes),)), name)
        device.launch(kernel, blocks, BLOCK_THREADS, [keys.codes, keys.valid, np.uint64(keys.rows), *arguments])


def total(device: Device) -> Array:
    """Allocate a 64-bit counter on the device, set to zero."""
    return device.zeros(1, np.uint64)


def value_of(device: Device, counter: Array) -> int:
    """Read a counter, after the kernels queued before."""
    return int(device.download(counter)[0])
