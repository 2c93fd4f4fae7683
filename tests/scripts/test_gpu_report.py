from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]

SUITE = """
import pytest
pytestmark = pytest.mark.gpu
def test_good(): pass
def test_bad(): assert 1 == 2, "one is not two"
@pytest.mark.skip(reason="no device")
def test_skipped(): pass
"""


@pytest.fixture(scope="module")
def report() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_report", ROOT / "scripts" / "gpu_report.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_report"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "test_it.py").write_text(SUITE)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu\n")
    return tmp_path


def test_results_are_read_as_pytest_writes_them(report: ModuleType, suite: Path) -> None:
    where = ["-q", "-p", "no:cacheprovider", f"--rootdir={suite}", "-c", str(suite / "pytest.ini"), str(suite)]
    status, tests = report.run_tests(suite / "junit.xml", where, 600.0)
    assert status == 1
    assert {test.name.split("::")[1]: test.outcome for test in tests} == {
        "test_good": "passed", "test_bad": "failed", "test_skipped": "skipped",
    }  # fmt: skip
    text = report.render({"polars": "2"}, ["GPU 0: X"], tests, good=report.passed(status, tests))
    assert "**FAILED**: 1 passed, 1 failed, 1 skipped" in text
    assert "one is not two" in text
    assert "no device" in text


def test_tests_without_time_and_files_that_cannot_be_imported_are_told(report: ModuleType, suite: Path) -> None:
    (suite / "test_other.py").write_text("import no_such_package")
    where = ["-q", "-p", "no:cacheprovider", f"--rootdir={suite}", "-c", str(suite / "pytest.ini"), str(suite)]
    status, tests = report.run_tests(suite / "junit.xml", where, 0.0)
    assert status == 1
    told = {test.name.rpartition("::")[2]: (test.outcome, test.message) for test in tests}
    assert told.pop("test_other")[0] == "failed"
    assert told["test_good"] == told["test_bad"] == ("skipped", "no time was left")
    text = report.render({}, [], tests, good=False)
    assert "- 3: no time was left" in text


def test_nothing_run_is_not_a_pass(report: ModuleType) -> None:
    skipped = report.Test("t::t", "skipped", 0.0, "no device")
    good = report.Test("t::t", "passed", 0.0, "")
    assert not report.passed(0, [])
    assert not report.passed(0, [skipped])
    assert not report.passed(1, [good])
    assert report.passed(0, [good, skipped])


def test_without_a_gpu_it_says_so_and_fails(
    report: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert report.main(["--out", str(tmp_path / "out")]) == 1
    assert "nvidia-smi is not on PATH" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_report_is_written_whole(
    report: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu = report.list_gpus.__globals__["Gpu"]("0", "NVIDIA H200", "u", 1 << 37, 0, "580", "9.0", exclusive=False)
    monkeypatch.setattr(report, "list_gpus", lambda: (gpu,))
    monkeypatch.setattr(
        report, "run_tests", lambda path, arguments, seconds: (0, [report.Test("a::b", "passed", 1.5, "")])
    )
    assert report.main(["--out", str(tmp_path)]) == 0
    text = (tmp_path / "report.md").read_text()
    assert "**Passed**: 1 passed, 0 failed, 0 skipped" in text
    assert "NVIDIA H200, 131072 MiB" in text
    record = json.loads((tmp_path / "report.json").read_text())
    assert record["passed"] is True
    assert record["tests"][0]["name"] == "a::b"


def test_the_script_needs_a_gpu() -> None:
    done = subprocess.run(
        ["/bin/sh", ROOT / "scripts" / "gpu_check.sh"],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin"},
    )
    if done.returncode == 0:
        pytest.skip("there is a GPU here")
    assert "no GPU is usable here" in done.stderr
