"""NumPy arrays that keep to what CuPy's can do: device memory does not mix with host memory unnoticed."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np


@dataclass
class Operations:
    """What array operations would do on a device.

    Attributes
    ----------
    launches : int
        Operations that compute or move elements: a kernel each in CuPy.
    nbytes : int
        Bytes of the arrays that these read and write, each whole.
    """

    launches: int = 0
    nbytes: int = 0

    def count(self, *values: Any) -> None:
        """Count an operation on arrays, its results among them; other values take no part."""
        self.launches += 1
        self.nbytes += sum(value.nbytes for value in values if isinstance(value, np.ndarray))


operations = Operations()
"""Of this process. Threads may lose some counts: what counts them runs in one."""

UNSET_BYTE = 0xEF
"""What memory holds that nothing has written."""
_UNSET = frozenset({"empty", "empty_like"})
_VIEWS = frozenset(
    {"asarray", "ascontiguousarray", "broadcast_to", "ndarray", "empty", "empty_like", "dtype", "result_type"}
)
"""Functions that launch nothing where their argument is an array that fits."""


class DeviceArray(np.ndarray[Any, Any]):
    """An array that counts as lying on the emulated device.

    As with CuPy, an operation that mixes it with a host array raises ``TypeError``, and taking one element or reducing
    all of them gives a device array without dimensions, not a scalar.
    """

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
        given = [*inputs, *(out or ())]
        for value in given:
            refuse_host(value)
        plain = [value.view(np.ndarray) if isinstance(value, DeviceArray) else value for value in inputs]
        if out is not None:
            options["out"] = tuple(o.view(np.ndarray) if isinstance(o, DeviceArray) else o for o in out)
        options = {name: _plain(value) for name, value in options.items()}
        result = getattr(ufunc, method)(*plain, **options)
        operations.count(*inputs, *(result if isinstance(result, tuple) else (result,)))
        if out is not None:
            return out[0] if len(out) == 1 else out
        return on_device(result)

    def __getitem__(self, index: Any) -> Any:
        result = super().__getitem__(_plain(index))
        if _has_array(index):
            operations.count(index, result, result)
        return result if isinstance(result, DeviceArray) else np.asarray(result).view(DeviceArray)

    def __setitem__(self, index: Any, value: Any) -> None:
        refuse_host(value)
        operations.count(index, value, value)
        super().__setitem__(_plain(index), value)

    def astype(self, dtype: Any, *arguments: Any, **options: Any) -> Any:
        """The elements in another type, counted where that is a copy."""
        target = np.dtype(dtype)
        if self.dtype.kind == "f" and target.kind in "iu":
            result: Any = _as_integers(self.view(np.ndarray), target).view(DeviceArray)
        else:
            result = super().astype(dtype, *arguments, **options)
        operations.count(self, result)
        return result

    def get(self) -> np.ndarray[Any, Any]:
        """A copy on the host, as in CuPy."""
        return np.array(self.view(np.ndarray))


def _as_integers(values: np.ndarray[Any, Any], target: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Floating-point numbers as integers, as PTX converts them.

    What is out of range becomes the nearest integer, and NaN becomes 0. x86 makes the least integer of
    both. Narrower types than 32 bits are cut from 32 bits on either.
    """
    wide = target if target.itemsize >= 4 else np.dtype(np.int32)
    limits = np.iinfo(wide)
    # The greatest integers of 64 bits are no doubles: 2^63 is out of range, and its neighbour below is not.
    over, under = values >= float(limits.max) + (wide.itemsize < 8), values <= limits.min
    inside = np.where(over | under | np.isnan(values), 0, values).astype(wide)
    most, least = wide.type(limits.max), wide.type(limits.min)
    return np.where(over, most, np.where(under, least, inside)).astype(target)


def _has_array(index: Any) -> bool:
    return any(isinstance(part, np.ndarray) for part in (index if isinstance(index, tuple) else (index,)))


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    return value.view(np.ndarray) if isinstance(value, DeviceArray) else value


def refuse_host(value: Any) -> None:
    """Raise ``TypeError`` for a host array that has dimensions."""
    if isinstance(value, np.ndarray) and not isinstance(value, DeviceArray) and value.ndim:
        raise TypeError(f"a host array of {value.dtype}{list(value.shape)} meets a device array; upload it first")


def on_device(value: Any) -> Any:
    """Arrays and NumPy scalars of a result as device arrays."""
    if isinstance(value, tuple):
        return tuple(map(on_device, value))
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value).view(DeviceArray)
    return value


class DeviceModule:
    """NumPy as the array module of the emulated device: every array that it makes lies there."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(np, name)
        if isinstance(value, type | ModuleType | np.ufunc) or not callable(value):
            return value

        def function(*arguments: Any, **options: Any) -> Any:
            if name not in ("asarray", "array", "ascontiguousarray"):
                for argument in (*arguments, *options.values()):
                    for part in argument if isinstance(argument, list | tuple) else (argument,):
                        refuse_host(part)
            plain = [_plain_deep(argument) for argument in arguments]
            result = value(*plain, **{key: _plain_deep(option) for key, option in options.items()})
            if name in _UNSET and result.nbytes:
                result.reshape(-1).view(np.uint8)[:] = UNSET_BYTE
            if name not in _VIEWS:
                operations.count(*plain, *(result if isinstance(result, tuple) else (result,)))
            return on_device(result)

        return function


def _plain_deep(value: Any) -> Any:
    return [_plain(part) for part in value] if isinstance(value, list) else _plain(value)
