"""The engine benchmark: its answers agree, its check can fail, its table says what was measured."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.engine.cases import CASES, Case, scattered
from benchmarks.engine.engines import ENGINES, fingerprint
from benchmarks.engine.report import ratio, table


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_engines_agree(case: Case) -> None:
    left, right = case.tables(3000, 2)
    on = [name for name in left.column_names if name.startswith("k")]
    answers = {name: fingerprint(join(left, right, on, case.how, 1)()) for name, join in ENGINES.items()}
    assert len(set(answers.values())) == 1, answers
    assert answers["gpujoin"][0] > 0


def test_fingerprint_ignores_order_and_sees_every_cell(rng: np.random.Generator) -> None:
    rows = pa.table({"a": rng.integers(0, 9, 500), "b": [f"{i}" for i in range(500)]})
    same = rows.take(pa.array(rng.permutation(500))).select(["b", "a"])
    assert fingerprint(rows) == fingerprint(same)
    changed = rows.set_column(0, "a", pa.array([-1, *rows["a"].to_pylist()[1:]]))
    assert fingerprint(rows) != fingerprint(changed)
    assert fingerprint(rows) != fingerprint(rows.slice(1))
    assert fingerprint(rows) != fingerprint(pa.concat_tables([rows, rows]))
    swapped = pa.table({"a": rows["a"].take(pa.array([*range(1, 500), 0])), "b": rows["b"]})
    assert fingerprint(rows) != fingerprint(swapped)


def test_scattered_keys_stay_distinct() -> None:
    assert len(np.unique(scattered(np.arange(100_000)))) == 100_000


def test_table_compares_with_the_best_other_engine() -> None:
    result = {
        "case": "c", "output_rows": 10, "payload": 1, "threads": 1, "algorithm": "hash", "goal": 1.0,
        "seconds": {"gpujoin": 2.0, "polars": 3.0, "duckdb": 5.0},
        "cpu_seconds": {"gpujoin": 2.0, "polars": 8.0, "duckdb": 4.0},
    }  # fmt: skip
    assert ratio(result, "seconds", "gpujoin", ["polars", "duckdb"]) == 1.5
    text = table([result])
    assert "**1.50**" in text
    assert "2.00" in text
