"""Every call of a GPU library in the backend, checked against the installed library: it exists and fits.

The libraries import without a device. Type checking covers pylibcudf and RMM by their stubs; this covers CuPy and the
CUDA bindings too, and the stubs themselves.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gpujoin.backends.cudf
import gpujoin.backends.ordered

cupy = pytest.importorskip("cupy", reason='no CuPy: pip install ".[cu13]"')
plc = pytest.importorskip("pylibcudf", reason='no cuDF: pip install ".[cu13]"')
rmm = pytest.importorskip("rmm", reason='no RMM: pip install ".[cu13]"')

FOLDER = Path(gpujoin.backends.cudf.__file__).parent
MODULES = {path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.py")}
DEVICE_MODULES = {
    "adoption.py", "backend.py", "device.py", "frames.py", "gathering.py", "keys.py", "pipeline/library.py", "text.py",
}  # fmt: skip
SHARED_MODULES = MODULES - DEVICE_MODULES
"""Those that compute on NumPy's arrays as on CuPy's."""


def roots() -> dict[str, Any]:
    from cuda.bindings import driver, runtime

    return {"cupy": cupy, "plc": plc, "rmm": rmm, "runtime": runtime, "driver": driver}


def chain(node: ast.expr) -> list[str] | None:
    """``a.b.c`` as its parts."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [node.id, *reversed(parts)] if isinstance(node, ast.Name) else None


def imported(tree: ast.Module) -> set[str]:
    """Names that a module's imports bind."""
    return {
        alias.asname or alias.name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }


def uses() -> Iterator[tuple[str, str, ast.Call | None]]:
    """File and line, dotted name, and the call if it is called, of every use of a library below a known root."""
    for path in sorted(FOLDER.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        known = roots().keys() & imported(tree)
        if not known:
            continue
        called = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
        inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and id(node) not in inner:
                parts = chain(node)
                if parts is not None and parts[0] in known:
                    yield f"{path.relative_to(FOLDER).as_posix()}:{node.lineno}", ".".join(parts), called.get(id(node))


USES = list(uses())
CALLS = [(where, name, call) for where, name, call in USES if call is not None]


def resolved(name: str) -> Any:
    first, *rest = name.split(".")
    value = roots()[first]
    for part in rest:
        value = getattr(value, part)
    return value


def test_the_backend_uses_the_libraries_where_it_says() -> None:
    assert {where.split(":")[0] for where, _, _ in USES} == DEVICE_MODULES
    assert len(CALLS) > 40
    for name in SHARED_MODULES:
        tree = ast.parse((FOLDER / name).read_text(encoding="utf-8"))
        assert not imported(tree) & {"cupy", "pylibcudf", "plc", "rmm"}, name


@pytest.mark.parametrize(("where", "name"), sorted({(w, n) for w, n, _ in USES}))
def test_names_exist(where: str, name: str) -> None:
    resolved(name)


@pytest.mark.parametrize(("where", "name", "call"), CALLS, ids=lambda value: value if isinstance(value, str) else "")
def test_arguments_fit(where: str, name: str, call: ast.Call) -> None:
    target = resolved(name)
    try:
        signature = inspect.signature(target)
    except (ValueError, TypeError):
        assert name in WITHOUT_SIGNATURE, f"{name} has no signature to check against; list it"
        return
    if any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords):
        return
    signature.bind(*[None] * len(call.args), **{k.arg: None for k in call.keywords if k.arg})


def test_every_call_that_takes_a_stream_is_given_one() -> None:
    """Else libcudf uses the legacy default stream, on which nothing waits for what this thread has asked for."""
    missing = []
    for where, name, call in CALLS:
        takes_stream = "stream" in (resolved(name).__doc__ or "").partition(")")[0]
        with contextlib.suppress(ValueError, TypeError):
            takes_stream = "stream" in inspect.signature(resolved(name)).parameters
        if name.startswith("plc.") and takes_stream and not any(k.arg in ("stream", None) for k in call.keywords):
            missing.append(f"{where} {name}")
    assert not missing
    assert sum(any(k.arg == "stream" for k in call.keywords) for _, _, call in CALLS) > 20


WITHOUT_SIGNATURE = {
    "cupy.asarray", "cupy.ascontiguousarray", "cupy.cuda.Device", "cupy.cuda.MemoryPointer",
    "cupy.cuda.UnownedMemory", "cupy.cuda.runtime.getDevice", "cupy.cuda.runtime.getDeviceCount", "cupy.int64",
    "cupy.ndarray", "plc.Column", "plc.DataType", "plc.Table", "plc.gpumemoryview",
    "rmm.mr.CudaAsyncViewMemoryResource",
    "rmm.mr.CudaMemoryResource", "rmm.mr.FailureCallbackResourceAdaptor",
    "rmm.mr.LimitingResourceAdaptor", "rmm.mr.PoolMemoryResource",
    "rmm.mr.available_device_memory", "rmm.mr.set_per_device_resource", "driver.cuuint64_t", "cupy.where",
    "plc.expressions.ColumnNameReference", "plc.expressions.Literal", "plc.expressions.Operation",
    "plc.groupby.GroupBy", "plc.groupby.GroupByRequest", "plc.io.types.SourceInfo",
}  # fmt: skip
"""Compiled calls that tell no signature; those of pylibcudf and RMM are checked by their stubs."""


def test_a_misspelled_call_would_be_found() -> None:
    with pytest.raises(AttributeError):
        resolved("plc.copying.gathr")
    call = ast.parse("plc.copying.gather(a, b, strem=c)").body[0]
    assert isinstance(call, ast.Expr)
    assert isinstance(call.value, ast.Call)
    with pytest.raises(TypeError):
        test_arguments_fit("", "plc.copying.gather", call.value)


ORDERED = Path(gpujoin.backends.ordered.__file__).parent
SHARED_USES = {
    (node.attr, called.get(id(node)))
    for path in (*(FOLDER / name for name in SHARED_MODULES), *ORDERED.rglob("*.py"))
    for tree in [ast.parse(path.read_text(encoding="utf-8"))]
    for called in [{id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}]
    for node in ast.walk(tree)
    if isinstance(node, ast.Attribute) and (chain(node) or [""])[-2:-1] == ["xp"]
}
"""Functions of the array module by name, and their calls."""


@pytest.mark.parametrize("name", sorted({name for name, _ in SHARED_USES}))
def test_what_runs_on_numpy_fits_cupy(name: str) -> None:
    target = getattr(cupy, name)
    try:
        signature = inspect.signature(target)
    except (ValueError, TypeError):  # a compiled function, or a type
        return
    for call in (call for other, call in SHARED_USES if other == name and call is not None):
        if not any(isinstance(argument, ast.Starred) for argument in call.args):
            signature.bind(*[None] * len(call.args), **{k.arg: None for k in call.keywords if k.arg})


def test_enumerations_have_the_values_used() -> None:
    """Stubs cannot say that a member of a compiled enumeration exists."""
    assert plc.copying.OutOfBoundsPolicy.NULLIFY != plc.copying.OutOfBoundsPolicy.DONT_CHECK
    for kind in ("INT32", "INT64", "STRING", "BOOL8", "STRUCT", "LIST", "DECIMAL128"):
        assert plc.DataType(getattr(plc.types.TypeId, kind)).id() == getattr(plc.types.TypeId, kind)
    from gpujoin.backends.cudf.device import STREAM

    assert STREAM.__cuda_stream__() == (0, cupy.cuda.Stream.ptds.ptr)
