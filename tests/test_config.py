from __future__ import annotations

from typing import Any

import pytest

from gpujoin.config import SETTINGS, BackendChoice, FallbackMode, Options, parse_bytes
from gpujoin.costs import Costs
from gpujoin.errors import ConfigurationError
from gpujoin.logs import warn_once


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), (" 64m ", 64 << 20), ("1g", 1 << 30), ("1GiB", 1 << 30), ("2kb", 2048), ("-1", -1), (7, 7)],
)
def test_sizes(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "m", "1.5g", "1 g b", "64x", "１g", True, None, 1.0])
def test_what_is_no_size(text: Any) -> None:
    with pytest.raises(ValueError, match="is not a size such as 64m"):
        parse_bytes(text)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no number": ({"cpu_threads": "x"}, r"cpu_threads: 'x' is not a whole number"),
    "fraction of a whole": ({"gpu_concurrent_tasks": 1.5}, "1.5 is not a whole number"),
    "nothing at all": ({"gpu_concurrent_tasks": None}, "None is not a whole number"),
    "too small": ({"gpu_concurrent_tasks": 0}, "0 must be between 1 and"),
    "no real number": ({"gpu_memory_fraction": "most"}, "'most' is not a number"),
    "not a number": ({"gpu_memory_fraction": float("nan")}, "nan must be between"),
    "over all": ({"gpu_memory_fraction": 1.01}, "must be between 0.01 and 1"),
    "unknown store": ({"scan_schemes": "file,viewfs"}, "'viewfs' is not covered"),
    "no class": ({"scan_parquet_formats": "a.B, no class"}, "'no class' is no name of a class"),
    "no size": ({"memory_budget": "lots"}, "'lots' is not a size"),
    "empty size": ({"memory_budget": 0}, "0 must be between 1 byte"),
    "absurd size": ({"memory_budget": "9999t"}, "must be between 1 byte and 1024 TiB"),
    "no choice": ({"backend": "tpu"}, "'tpu' must be one of auto, gpu, cpu"),
    "no flag": ({"enabled": "yes"}, "'yes' must be true or false"),
    "nothing to switch off": ({"disable": "window, roundd"}, r"'roundd' is nothing that can be.*Did you mean.*'round'"),
    "a source without its format": ({"disable": "icberg"}, "Did you mean 'iceberg'"),
    "a type of joins": ({"disable": "left semi"}, "Did you mean 'left_semi_join'"),
    "no text": ({"spill_dir": 3}, "3 must be text"),
}


@pytest.mark.parametrize(("arguments", "message"), BAD.values(), ids=BAD)
def test_bad_values_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Options(**arguments)
    with pytest.raises(ConfigurationError, match=message):
        Options().replace(**arguments)


@pytest.mark.parametrize("name", ["exchange.skew", "scan.repeatedBytes", "scan.smallestBytes"])
def test_settings_of_an_earlier_version_are_ignored_with_a_warning(name: str, caplog: pytest.LogCaptureFixture) -> None:
    warn_once.cache_clear()
    key = f"spark.gpujoin.{name}"
    assert Options.from_conf({key: "off", "spark.gpujoin.batchBytes": "1m"}) == Options(batch_bytes=1 << 20)
    assert f"{key} is gone: " in caplog.text


def test_names_of_what_is_disabled_are_those_that_explain_prints() -> None:
    options = Options.from_conf({"spark.gpujoin.disable": "Round, left semi join,as-of join,,is null,-,iceberg"})
    assert options.disable == ("-", "as_of_join", "iceberg", "is_null", "left_semi_join", "round")
    assert Options(disable=("window",)).disable == ("window",)
    assert Options.from_conf({"spark.gpujoin.disable": ""}) == Options()


@pytest.mark.parametrize(
    ("name", "instead"), [("scan.fuse", "scan"), ("aggregate.fuse", "aggregate"), ("streaming", "streams")]
)
def test_switches_of_an_earlier_version_are_refused(name: str, instead: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"{name} is gone: .*write spark\.gpujoin\.disable={instead}$"):
        Options.from_conf({f"spark.gpujoin.{name}": "false"})


def test_unknown_names_are_refused_with_near_ones() -> None:
    with pytest.raises(ConfigurationError, match=r"batchBites.*Did you mean.*batchBytes"):
        Options.from_conf({"spark.gpujoin.batchBites": "1m"})
    with pytest.raises(ConfigurationError, match=r"batch_bites.*Did you mean.*batch_bytes"):
        Options().replace(batch_bites=1)
    with pytest.raises(ConfigurationError, match=r"batch_bites.*Did you mean.*batch_bytes"):
        Options(batch_bites=1)  # type: ignore[call-arg]


def test_a_spark_configuration_is_read() -> None:
    conf = {"spark.gpujoin.backend": "CPU", "spark.gpujoin.fallback": " raise ", "spark.app.name": "x"}
    options = Options.from_conf(conf)
    assert options == Options(backend=BackendChoice.CPU, fallback=FallbackMode.RAISE)


def test_every_setting_is_told_and_accepts_its_own_default() -> None:
    for setting in SETTINGS:
        assert setting.key.startswith("spark.gpujoin.")
        assert setting.doc.endswith(".")
        assert getattr(Options(**{setting.name: setting.default}), setting.name) == setting.default


def test_costs_are_read_by_name() -> None:
    costs = Options().replace(costs="row_in=1e-6, start = 0").costs
    assert (costs.row_in, costs.start, costs.stage) == (1e-6, 0.0, Costs().stage)
    assert Costs.parse(str(costs)) == costs


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("row=1", "unknown cost 'row'. Did you mean"),
        ("row_in=fast", "give seconds, such as 5e-7"),
        ("row_in", "give seconds"),
        ("stage=-1", "0 or more"),
        ("stage=nan", "0 or more"),
        (5, "5 must be text such as"),
        (None, "None must be text such as"),
    ],
)
def test_bad_costs_are_refused(text: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Options().replace(costs=text)
