"""Reads the Arrow C device interface: where a table lies, and the parts of a stream.

Nothing here needs a device or a GPU library. The layout of the structures is that of Arrow's
`C device data interface <https://arrow.apache.org/docs/format/CDeviceDataInterface.html>`_.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gpujoin.errors import JoinSpecError

CUDA = 2
"""Device type of memory that ``cudaMalloc`` gives."""
_CUDA_MANAGED = 13
ON_GPU = frozenset({CUDA, _CUDA_MANAGED})
"""Device types of memory that kernels read without a copy."""

_ARRAY_BYTES = 80
_SCHEMA_BYTES = 72
_DEVICE_ARRAY_BYTES = 128
_RELEASE = 64
"""Position of the function that releases an array. It is null at the end of a stream."""
_SCHEMA_RELEASE = 56
_DEVICE_TYPE = _ARRAY_BYTES + 8

_api = ctypes.pythonapi
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_api.PyCapsule_New.restype = ctypes.py_object
_api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class _Stream(ctypes.Structure):
    """``ArrowDeviceArrayStream``."""


_GetInto = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Stream), ctypes.c_void_p)
_GetText = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_Stream))
_Release = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Stream))
_Stream._fields_ = [
    ("device_type", ctypes.c_int32),
    ("get_schema", _GetInto),
    ("get_next", _GetInto),
    ("get_last_error", _GetText),
    ("release", _Release),
    ("private_data", ctypes.c_void_p),
]


@dataclass(frozen=True)
class SchemaCapsule:
    """An Arrow schema that was given out already."""

    schema: Any
    memory: Any = None
    """Memory of a structure that was read into memory of our own."""

    def __arrow_c_schema__(self) -> Any:
        return self.schema


@dataclass(frozen=True, eq=False)
class TableCapsules:
    """Capsules of a table, or of a part of one, for one reader."""

    schema: Any
    array: Any
    source: Any = None
    """The object that gave them out."""
    memory: tuple[Any, ...] = ()
    """Memory of structures that were read from a stream."""

    @property
    def device_type(self) -> int:
        """Arrow's number of the kind of memory that the table is in."""
        return _at(_pointer(self.array, b"arrow_device_array") + _DEVICE_TYPE, ctypes.c_int32)

    def description(self) -> SchemaCapsule:
        """The schema given out once more: whoever reads a schema takes it."""
        return SchemaCapsule(self.source.__arrow_c_device_array__()[0])

    def __arrow_c_device_array__(self, requested_schema: Any = None, **kwargs: Any) -> tuple[Any, Any]:
        del requested_schema, kwargs
        return self.schema, self.array


@dataclass(frozen=True, eq=False)
class StreamCapsule:
    """The capsule of a stream of parts of a table, for one reader."""

    capsule: Any

    @property
    def _stream(self) -> _Stream:
        return _Stream.from_address(_pointer(self.capsule, b"arrow_device_array_stream"))

    @property
    def device_type(self) -> int:
        """Arrow's number of the kind of memory that the parts are in."""
        return int(self._stream.device_type)

    def description(self) -> SchemaCapsule:
        """The schema of the parts."""
        schema = ctypes.create_string_buffer(_SCHEMA_BYTES)
        self._get(self._stream, self._stream.get_schema, schema)
        return SchemaCapsule(_api.PyCapsule_New(ctypes.addressof(schema), b"arrow_schema", None), schema)

    def parts(self) -> Iterator[TableCapsules]:
        """Read the parts, of which there may be none.

        Raises ``JoinSpecError`` if the stream fails.
        """
        stream = self._stream
        while True:
            schema, array = (ctypes.create_string_buffer(size) for size in (_SCHEMA_BYTES, _DEVICE_ARRAY_BYTES))
            self._get(stream, stream.get_schema, schema)
            self._get(stream, stream.get_next, array)
            if not _at(ctypes.addressof(array) + _RELEASE, ctypes.c_void_p):
                _released(schema)
                return
            yield TableCapsules(
                _api.PyCapsule_New(ctypes.addressof(schema), b"arrow_schema", None),
                _api.PyCapsule_New(ctypes.addressof(array), b"arrow_device_array", None),
                memory=(schema, array),
            )

    @staticmethod
    def _get(stream: _Stream, get: Callable[..., int], into: Any) -> None:
        status = get(ctypes.byref(stream), ctypes.addressof(into))
        if status:
            address = stream.get_last_error(ctypes.byref(stream))
            message = ctypes.string_at(address).decode(errors="replace") if address else ""
            raise JoinSpecError(f"an Arrow device stream fails with status {status}: {message}")


def capsules_of(data: Any) -> TableCapsules | StreamCapsule | None:
    """Ask an object for its Arrow device interface; ``None`` if it has none."""
    if hasattr(type(data), "__arrow_c_device_array__"):
        schema, array = data.__arrow_c_device_array__()
        return TableCapsules(schema, array, source=data)
    if hasattr(type(data), "__arrow_c_device_stream__"):
        return StreamCapsule(data.__arrow_c_device_stream__())
    return None


def _pointer(capsule: Any, name: bytes) -> int:
    return int(_api.PyCapsule_GetPointer(capsule, name))


def _at(address: int, kind: Any) -> Any:
    return kind.from_address(address).value


def _released(schema: Any) -> None:
    address = ctypes.addressof(schema)
    release = _at(address + _SCHEMA_RELEASE, ctypes.c_void_p)
    if release:
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(release)(address)
