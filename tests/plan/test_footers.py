"""What several files tell of their columns together."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

from gpujoin.model.files import Bounds, FileFooter
from gpujoin.plan.scanned import ScannedFiles


def test_bounds_of_several_files() -> None:
    def footer(*bounds: Bounds | None) -> FileFooter:
        return FileFooter("f", 1, 1, (1,), (1,), bounds)

    def bounds_of(footers: list[FileFooter]) -> tuple[Bounds | None, ...]:
        return ScannedFiles((), tuple(footers)).bounds

    assert bounds_of([footer((1, 5), (Decimal(2), Decimal(3))), footer((0, 2), (Decimal(9), Decimal(10)))]) == (
        (0, 5),
        (Decimal(2), Decimal(10)),
    )
    assert bounds_of([footer((1, 5), None), footer((0, 2), (1, 2))]) == ((0, 5), None)
    assert bounds_of([footer((1, 5)), footer()]) == ()
    moments = [(dt.datetime(2024, 1, 1, tzinfo=zone),) * 2 for zone in (dt.UTC, None)]
    assert bounds_of([footer((dt.date(2024, 1, 1),) * 2), footer(moments[1])]) == (None,)
    assert bounds_of([footer(pair) for pair in moments]) == (None,), "with and without a zone"
    assert bounds_of([]) == ()


def test_numbers_of_values_of_several_files() -> None:
    def footer(*different: float | None) -> FileFooter:
        return FileFooter("f", 1, 1, (1,), (1,), different=different)

    assert ScannedFiles((), (footer(3.0, None), footer(5.0, 2.0))).different == (5.0, None)
    assert ScannedFiles((), (footer(3.0), footer())).different == ()
