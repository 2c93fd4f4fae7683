"""Explanations are kept within a number of bytes."""

from __future__ import annotations

import dataclasses
import gc
import pickle
import sys
import tracemalloc

import pytest

pytest.importorskip("pyspark.sql", reason="no PySpark: pip install gpujoin[spark]")

from gpujoin.cache import Cache, object_bytes
from gpujoin.report import outcomes
from gpujoin.report.explanation import Explanation
from gpujoin.report.operations import NoteKind, notes_of
from tests.report.test_report import ISLAND


def test_explanations_take_no_more_than_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a session does that plans queries for days: each has notes of its own."""
    monkeypatch.setattr(outcomes, "_explanations", Cache(300_000, object_bytes))
    tracemalloc.start()
    try:
        for number in range(400):
            notes = notes_of(NoteKind.DECISION, *(f"{number}: {'why ' * 50}{place}" for place in range(20)))
            outcomes.keep(f"q{number}", Explanation((dataclasses.replace(ISLAND, notes=notes),)))
        gc.collect()  # what Python keeps of tuples for new ones
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 350_000
    assert outcomes.explanation_named("q399") is not None
    assert outcomes.explanation_named("q0") is None


def test_an_explanation_takes_about_what_is_counted() -> None:
    data = pickle.dumps(ISLAND)
    pickle.loads(data)  # noqa: S301 - what is shared by all, such as the names of fields
    tracemalloc.start()
    try:
        copies = [pickle.loads(data) for _ in range(50)]  # noqa: S301 - its own
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    values: Cache[int, object] = Cache(sys.maxsize, object_bytes)
    for number, copy in enumerate(copies):
        values.put(number, copy)
    assert 0.5 < values.total / taken < 2
