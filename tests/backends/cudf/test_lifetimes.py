"""What pylibcudf keeps alive of what it is given: C++ objects hold references that Python does not count.

The library imports and makes these objects without a device.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pylibcudf", reason='no cuDF: pip install ".[cu13]"')
pytest.importorskip("cupy", reason='no CuPy: pip install ".[cu13]"')
pytest.importorskip("rmm", reason='no RMM: pip install ".[cu13]"')

import pylibcudf as plc
import rmm.mr

from gpujoin.backends.cudf.pipeline import library
from gpujoin.backends.cudf.pipeline.columns import FilterTerm
from tests.backends.cudf.test_calls import CALLS

E = plc.expressions


class ReadError(Exception):
    """Raised in place of reading, which needs a device."""


def comparison() -> Any:
    return E.Operation(E.ASTOperator.EQUAL, E.ColumnNameReference("a"), E.ColumnNameReference("b"))


def column() -> Any:
    return plc.Column(plc.DataType(plc.types.TypeId.INT32), 0, None, None, 0, 0, [])


def options_of(path: Path) -> Any:
    return plc.io.parquet.ParquetReaderOptions.builder(plc.io.types.SourceInfo([str(path)])).build()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"a": [1, 2], "b": [2, 2]}), path)
    return path


KEEPERS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "plc.expressions.Operation": (lambda: E.ColumnNameReference("a"), lambda a: E.Operation(E.ASTOperator.NOT, a)),
    "plc.Table": (column, lambda c: plc.Table([c])),
    "plc.groupby.GroupBy": (
        lambda: plc.Table([column()]),
        lambda t: plc.groupby.GroupBy(t, plc.types.NullPolicy.INCLUDE),
    ),
    "plc.groupby.GroupByRequest": (
        column,
        lambda c: plc.groupby.GroupByRequest(c, [plc.aggregation.sum()]),
    ),
    "rmm.mr.FailureCallbackResourceAdaptor": (
        rmm.mr.CudaMemoryResource,
        lambda m: rmm.mr.FailureCallbackResourceAdaptor(m, lambda _: False),
    ),
    "rmm.mr.LimitingResourceAdaptor": (rmm.mr.CudaMemoryResource, lambda m: rmm.mr.LimitingResourceAdaptor(m, 1)),
}
"""Objects that are made of others by reference, and live after the call that makes them: what they are given, and how
they are made of it."""


@pytest.mark.parametrize("name", KEEPERS)
def test_objects_keep_what_they_refer_to(name: str) -> None:
    make_given, make = KEEPERS[name]
    given = make_given()
    before = sys.getrefcount(given)
    made = make(given)
    assert sys.getrefcount(given) > before, f"{name} leaves it to its caller to keep what it was given"
    del made
    assert sys.getrefcount(given) == before


def test_a_source_lives_as_long_as_the_options_made_of_it(file: Path) -> None:
    source = plc.io.types.SourceInfo([str(file)])
    before = sys.getrefcount(source)
    options = plc.io.parquet.ParquetReaderOptions.builder(source).use_pandas_metadata(False).build()
    assert sys.getrefcount(source) > before
    del options


def test_options_do_not_keep_their_filter(file: Path) -> None:
    """If this fails, pylibcudf has begun to keep it, and the callers need not."""
    options, expression = options_of(file), comparison()
    before = sys.getrefcount(expression)
    options.set_filter(expression)
    assert sys.getrefcount(expression) == before


def test_a_filter_lives_until_the_file_is_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expression = comparison()
    held: list[int] = []

    def read(options: Any, stream: Any = None) -> Any:
        held.append(sys.getrefcount(expression))
        raise ReadError

    # A literal needs device memory.
    monkeypatch.setattr(library, "_filter", lambda terms: expression)
    monkeypatch.setattr(plc.io.parquet, "read_parquet", read)
    before = sys.getrefcount(expression)
    columns = library.CudfColumns.__new__(library.CudfColumns)
    terms = [FilterTerm("a", "=", pa.scalar(2))]
    with pytest.raises(ReadError):
        columns.read(str(file), ["a", "b"], [pa.int64(), pa.int64()], [0], terms)
    assert held == [before + 1]


def test_setters_are_given_values_or_what_a_name_keeps() -> None:
    """A temporary object passed to a setter is gone when the setter returns; lists and numbers are copied."""
    copied = {"list"}
    for where, name, call in setter_calls():
        for argument in call.args:
            if isinstance(argument, ast.Call):
                made_by = argument.func.id if isinstance(argument.func, ast.Name) else ""
                assert made_by in copied, f"{where}: {name} is given a temporary object"


def setter_calls() -> list[tuple[str, str, ast.Call]]:
    """Calls of methods ``set_…`` of objects of the libraries, in the modules that use these."""
    folder = Path(library.__file__).parent.parent
    modules = {where.split(":")[0] for where, _, _ in CALLS}
    calls = []
    for module in sorted(modules):
        for node in ast.walk(ast.parse((folder / module).read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr.startswith("set_")
            ):
                calls.append((f"{module}:{node.lineno}", node.func.attr, node))
    assert {"set_filter", "set_column_names", "set_per_device_resource"} <= {name for _, name, _ in calls}
    return calls
