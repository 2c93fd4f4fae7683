"""Texts and bytes written as other texts and bytes."""

from __future__ import annotations

import pyarrow as pa

from gpujoin.functions.hashes import BYTES_OF_TEXT
from gpujoin.functions.signatures import TEXT, takes
from gpujoin.functions.spec import ON_CPU, FunctionSpec, Raises
from gpujoin.model.expressions import Function

_F = Function

TABLE = (
    FunctionSpec(_F.UNHEX, ("Unhex",), takes(TEXT, gives=pa.binary()), lacks=ON_CPU),
    FunctionSpec(_F.BASE64, (), takes(BYTES_OF_TEXT, gives=pa.string()), lacks=ON_CPU),
    FunctionSpec(_F.UNBASE64, ("UnBase64",), takes(TEXT, gives=pa.binary()), lacks=ON_CPU),
    FunctionSpec(_F.ENCODE, (), takes(TEXT, TEXT, gives=pa.binary()), lacks=ON_CPU),
    FunctionSpec(_F.DECODE, (), takes(BYTES_OF_TEXT, TEXT, gives=pa.string()), raises=Raises.ALWAYS, lacks=ON_CPU),
    FunctionSpec(_F.URL_ENCODE, (), takes(TEXT, gives=pa.string()), lacks=ON_CPU),
    FunctionSpec(_F.URL_DECODE, (), takes(TEXT, gives=pa.string()), raises=Raises.ALWAYS, lacks=ON_CPU),
)
