"""Columns of rows in host memory, which are copied to a device when they are first asked for."""

from __future__ import annotations

import pyarrow as pa

from gpujoin.engine.join.devicerows import UploadedRows
from gpujoin.model.maps import Span
from tests.backends.cudf.resident import CountingBackend

ROWS = pa.record_batch({"k": pa.array([1, None, 3], pa.int32()), "s": ["a", "b", None], "v": [0.5, 1.5, 2.5]})


def uploaded() -> tuple[UploadedRows, CountingBackend]:
    backend = CountingBackend()
    return UploadedRows(backend.pipeline, ROWS), backend


def copies(backend: CountingBackend) -> int:
    return backend.rows_copied.get("rows up", 0) // ROWS.num_rows


def test_a_column_is_copied_once() -> None:
    rows, backend = uploaded()
    first = rows.columns((0, 2))
    assert first.column(0).to_pylist() == [1, None, 3]
    assert copies(backend) == 1, "both columns together"
    assert rows.columns((2, 0)).column(1).to_pylist() == [1, None, 3]
    assert rows.operands((2,), (pa.float64(),)).column(0).to_pylist() == [0.5, 1.5, 2.5]
    assert copies(backend) == 1
    rows.columns((1, 2))
    assert copies(backend) == 2


def test_columns_are_converted_to_compare_them() -> None:
    """The same column may be needed as it is, too."""
    rows, backend = uploaded()
    frame = rows.operands((0, 1, 0), (pa.int64(), pa.string(), pa.int32()))
    assert frame.column(0).to_pylist() == frame.column(2).to_pylist() == [1, None, 3]
    assert [column.type for column in frame.columns] == [pa.int64(), pa.string(), pa.int32()]
    assert copies(backend) == 2, "one as it is, two that are converted together"
    rows.operands((1, 0), (pa.string(), pa.int64()))
    assert copies(backend) == 2


def test_what_was_copied_is_let_go_of() -> None:
    rows, backend = uploaded()
    rows.operands((0, 1), (pa.int64(), pa.string()))
    rows.columns((2,))
    assert rows.copied
    rows.release()
    assert not rows.copied
    before = copies(backend)
    rows.columns((2,))
    assert copies(backend) == before + 1
    assert rows.to_host() is ROWS


def test_payload_in_its_place_is_not_copied() -> None:
    rows, backend = uploaded()
    payload = rows.payload((1, 2), kernels=False)
    schema = pa.schema([ROWS.schema.field(at) for at in (1, 2)])
    assert [array.to_pylist() for array in payload.gather(Span(1, 2), schema)] == [["b", None], [1.5, 2.5]]
    assert not copies(backend)


def test_rows_without_columns_have_a_number() -> None:
    rows, _ = uploaded()
    assert rows.columns(()).num_rows == 3
    assert rows.slice(1, 2).num_rows == 2
