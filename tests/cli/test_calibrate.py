"""Calibration: the line, the size where two lines meet, the file, and one real measurement of tiny tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gpujoin.cli.calibrate import SETTING, Line, break_even, fitted, measure, put


def test_a_line_is_found_again() -> None:
    found = fitted([(x, 0.2 + 3e-8 * x) for x in (10_000, 1_000_000, 20_000_000)])
    assert found.fixed == pytest.approx(0.2)
    assert found.per_byte == pytest.approx(3e-8)
    assert fitted([(1, 2.0), (100, 1.0)]).per_byte == 0.0


@pytest.mark.parametrize(
    ("spark", "here", "size"),
    [
        (Line(0.1, 2e-7), Line(0.3, 1e-7), 2_000_000),
        (Line(0.3, 2e-7), Line(0.2, 1e-7), 64 << 10),
        (Line(0.1, 1e-7), Line(0.3, 2e-7), 1 << 30),
        (Line(0.1, 2e-7), Line(0.1 + 1e-9, 1e-7), 64 << 10),
    ],
    ids=["meet", "always", "never", "tiny"],
)
def test_where_lines_meet(spark: Line, here: Line, size: int) -> None:
    assert break_even(spark, here) == pytest.approx(size)


def test_the_setting_is_put_into_a_file(tmp_path: Path) -> None:
    path = tmp_path / "spark-defaults.conf"
    put(path, SETTING, "1")
    path.write_text(f"# mine\nspark.x 1\n{SETTING}=77\n", encoding="utf-8")
    put(path, SETTING, "2")
    assert path.read_text(encoding="utf-8") == f"# mine\nspark.x 1\n{SETTING} 2\n"


@pytest.mark.spark
@pytest.mark.slow
def test_measuring(spark: SparkSession) -> None:
    spark.conf.set("spark.gpujoin.backend", "auto")
    one, two = measure("local[2]", 1, (1_000, 50_000))
    assert 0 < one.nbytes < two.nbytes
    assert min(one.spark, one.here, two.spark, two.here) > 0
    assert spark.conf.get("spark.gpujoin.backend") == "auto"
