"""Calibration: constants from differences, the file of settings, and the program over small tables."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from benchmarks.calibrate.__main__ import SETTING, Measurement, Seconds, fit, main, put
from benchmarks.calibrate.probes import HELD_OUT, PROBES, QUERIES, Probe
from gpujoin.costs import Costs

AMOUNTS: dict[str, dict[str, float]] = {
    "tiny": {"query": 1, "spark_query": 1, "spark_stage": 1},
    "joins": {"query": 1, "spark_query": 1, "spark_stage": 3},
    "column": {"query": 1, "value": 1e6},
    "columns": {"query": 1, "value": 4e6, "join_row": 1e6},
}
"""How much of each constant is in a query."""


def predict(name: str, costs: Costs) -> Seconds:
    """A cost rule without Spark."""
    parts = [(constant, amount * getattr(costs, constant)) for constant, amount in AMOUNTS[name].items()]
    spark = sum(seconds for constant, seconds in parts if constant.startswith("spark_"))
    return Seconds(sum(seconds for _, seconds in parts) - spark, spark)


def seconds_of(costs: Costs) -> dict[str, Seconds]:
    return {name: predict(name, costs) for name in AMOUNTS}


def test_constants_are_recovered_from_differences() -> None:
    machine = Costs(query=0.3, spark_query=0.2, spark_stage=0.01, value=2e-8)
    probes = (
        Probe("spark_stage", "joins", "tiny"),
        Probe("spark_query", "tiny"),
        Probe("query", "tiny"),
        Probe("value", "columns", "column"),
    )
    costs, measured = fit(probes, seconds_of(machine), predict)
    assert {each.constant: each.seconds for each in measured} == {
        name: pytest.approx(getattr(machine, name)) for name in ("spark_stage", "spark_query", "query", "value")
    }
    assert all(each.plausible for each in measured)
    assert costs == dataclasses.replace(Costs(), **{each.constant: each.seconds for each in measured})


def test_an_implausible_constant_keeps_its_default_for_those_after_it() -> None:
    seconds = {**seconds_of(Costs()), "joins": Seconds(0.0, 0.01)}
    costs, (stage, query) = fit((Probe("spark_stage", "joins", "tiny"), Probe("spark_query", "tiny")), seconds, predict)
    assert stage.seconds < 0
    assert not stage.plausible
    assert query.seconds == pytest.approx(Costs().spark_query)
    assert costs.spark_stage == Costs().spark_stage


def test_a_constant_that_no_query_holds_is_implausible() -> None:
    costs, (measured,) = fit((Probe("row_in", "columns", "column"),), seconds_of(Costs()), predict)
    assert math.isnan(measured.seconds)
    assert not measured.plausible
    assert costs == Costs()


@pytest.mark.parametrize(
    ("factor", "plausible"),
    [(1, True), (10, True), (0.1, True), (100, False), (0.01, False), (0, False), (-1, False)],
)
def test_constants_far_from_the_default_are_implausible(factor: float, plausible: bool) -> None:
    assert Measurement("value", factor * Costs().value).plausible is plausible


def test_each_constant_is_measured_once_by_known_queries() -> None:
    constants = [probe.constant for probe in PROBES]
    of_new_programs = ["start", "spark_start"]  # the second each keeps its default: it takes a new JVM
    assert sorted([*constants, *of_new_programs]) == sorted(each.name for each in dataclasses.fields(Costs))
    used = {probe.more for probe in PROBES} | {probe.less for probe in PROBES} - {None}
    assert used == set(QUERIES)


def test_the_setting_is_put_into_a_file(tmp_path: Path) -> None:
    path = tmp_path / "spark-defaults.conf"
    put(path, SETTING, "query=1")
    path.write_text(f"# mine\nspark.x 1\n{SETTING}=query=77\n", encoding="utf-8")
    put(path, SETTING, "query=2")
    assert path.read_text(encoding="utf-8") == f"# mine\nspark.x 1\n{SETTING} query=2\n"


@pytest.mark.parametrize(("option", "least"), [("--repeats", 1), ("--rows", 20_000)])
def test_too_low_numbers_are_refused(option: str, least: int, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([option, str(least - 1)])
    assert f"{option} is {least - 1}; give at least {least}" in capsys.readouterr().err


def test_a_folder_that_does_not_exist_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--write", str(tmp_path / "none" / "spark-defaults.conf")])
    assert "its folder does not exist" in capsys.readouterr().err


@pytest.mark.spark
@pytest.mark.slow
def test_the_program_measures_and_writes(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spark.conf.set("spark.gpujoin.backend", "auto")
    path = tmp_path / "spark-defaults.conf"
    arguments = ["--master", "local[2]", "--repeats", "1", "--rows", "20000", "--write", str(path)]
    main(arguments)
    *lines, setting = capsys.readouterr().out.splitlines()
    assert path.read_text(encoding="utf-8") == f"{setting}\n"
    key, _, pairs = setting.partition(" ")
    assert key == SETTING
    shown = {line.split()[0]: line for line in lines if not line.startswith("held out")}
    assert shown.keys() == {each.name for each in dataclasses.fields(Costs)} - {"spark_start"}
    written = {name for name, line in shown.items() if "the default is kept" not in line}
    assert {pair.partition("=")[0] for pair in filter(None, pairs.split(","))} == written
    assert all(getattr(Costs.parse(pairs), name) == getattr(Costs(), name) for name in shown.keys() - written)
    assert not [line for line in lines if "nan" in line]
    assert [line.split("  ")[0].removeprefix("held out: ") for line in lines if line.startswith("held out")] == [
        *HELD_OUT
    ]
    assert spark.conf.get("spark.gpujoin.backend") == "auto"
    assert not spark.catalog.tableExists("fact")
