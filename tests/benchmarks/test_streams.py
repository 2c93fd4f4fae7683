"""The benchmark of joined streams: its answers are checked, and a wrong one is noticed."""

from __future__ import annotations

import pyarrow as pa
import pytest

from benchmarks.machine import describe
from benchmarks.streams import tables
from benchmarks.streams.__main__ import KINDS, case, check, page, rows, stream_join
from benchmarks.streams.running import compare
from gpujoin.model.jointype import JoinType


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)
def test_a_small_stream_agrees_with_one_join_of_all_its_rows(kind: JoinType) -> None:
    measured = case(kind, late=40, batch_rows=400, kept=10)
    assert measured["output_rows"] > 2000
    assert 0 < measured["state_bytes"] < measured["arrow_bytes"]
    assert f"| {kind.value} | 40 | 400 |" in page({"machine": describe(), "cases": [measured]})


def test_a_wrong_answer_is_noticed() -> None:
    import numpy as np

    rng = np.random.default_rng(1)
    sides = ([rows(rng, 0, 50, 0)], [rows(rng, 0, 50, 0)])
    spec = stream_join(JoinType.INNER).spec
    schema = spec.output_schema(sides[0][0].schema, sides[1][0].schema)
    with pytest.raises(SystemExit, match="DuckDB's"):
        check(JoinType.INNER, sides, pa.Table.from_batches([], schema))


def test_wrong_rows_of_a_stream_with_tables_are_noticed() -> None:
    batch = {"batch": 0, "rows": 10, "sums": [5], "seconds": 1.0, "cpu": 1.0}
    records = [{"where": where, "batches": [batch]} for where in tables.WHERE]
    compare("range", records)
    shown = tables.page({"machine": describe(), "cases": {"range": records}}, timed=1)
    assert "| range, left, 10,000 bands | 20,000 | 10 | Spark | 1.00 | 1.0 | 1.00 | 1.0 | 1.0 |" in shown
    for wrong in ({"rows": 9}, {"sums": [6]}, {"batch": 1}):
        with pytest.raises(SystemExit, match="differ"):
            compare("range", [records[0], {"where": "spark", "batches": [{**batch, **wrong}]}])
    with pytest.raises(SystemExit, match="none"):
        compare("range", [{"batches": [{**batch, "rows": 0}]}] * 2)
