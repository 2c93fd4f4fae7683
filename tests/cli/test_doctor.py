from __future__ import annotations

import dataclasses
import itertools
import json
import os
import platform
import re
import stat
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpujoin import cli
from gpujoin.backends.cudf import discovery
from gpujoin.cli import checks, doctor
from gpujoin.cli.checks import Check, Status, gpu, host, software, tables
from gpujoin.cli.doctor import Report
from gpujoin.errors import BackendUnavailableError, pip_install
from gpujoin.spark.discovery import Gpu
from tests.environments import environment_without
from tests.lake.jars import PACKAGES

ROOT = Path(__file__).resolve().parents[2]
H200 = Gpu("0", "NVIDIA H200", "GPU-1", 141 << 30, 0, "580.65.06", "9.0", exclusive=False)


def report(**statuses: Status) -> Report:
    groups = ("engine", "spark", "tables", "gpu", "host")
    return Report(tuple((g, (Check(g, statuses.get(g, Status.OK), "found"),)) for g in groups))


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture(scope="module")
def this_machine() -> Report:
    """What is found on this machine, which takes seconds."""
    return doctor.examine()


@pytest.fixture
def examined(this_machine: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the command print what was found already."""
    monkeypatch.setattr(doctor, "examine", lambda: this_machine)


@pytest.mark.usefixtures("examined")
def test_doctor_on_this_machine_prints_every_group(capsys: pytest.CaptureFixture[str]) -> None:
    status = cli.main(["doctor"])
    printed = capsys.readouterr().out
    for heading in ("engine", "spark", "tables", "gpu", "host"):
        assert f"\n{heading}\n" in printed
    assert status == (0 if "with and without Spark" in printed else 1)


@pytest.mark.usefixtures("examined")
def test_json_is_whole_and_agrees_with_the_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    status = cli.main(["doctor", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"version", "usable", "checks"}
    assert set(found["usable"]) == {"engine", "spark", "gpu"}
    assert status == (0 if found["usable"]["spark"] else 1)
    assert {check["group"] for check in found["checks"]} == {"engine", "spark", "tables", "gpu", "host"}
    for check in found["checks"]:
        assert set(check) == {"group", "name", "status", "found", "advice"}
        assert check["found"]
        assert check["status"] == "ok" or check["advice"]


@pytest.mark.parametrize(
    ("statuses", "usable"),
    [
        ({}, {"engine", "spark", "gpu"}),
        ({"engine": Status.MISSING}, set()),
        ({"spark": Status.MISSING}, {"engine", "gpu"}),
        ({"gpu": Status.MISSING}, {"engine", "spark"}),
        ({"host": Status.MISSING, "engine": Status.WARNING}, {"engine", "spark", "gpu"}),
    ],
)
def test_what_is_usable_follows_from_the_checks(statuses: dict[str, Status], usable: set[str]) -> None:
    assert {g for g in ("engine", "spark", "gpu") if report(**statuses).usable(g)} == usable


@pytest.mark.parametrize(
    ("broken", "status", "verdict"),
    [
        ("host", 0, "gpujoin can run here, on the CPU and on the GPU, with and without Spark."),
        ("gpu", 0, "gpujoin can run here, on the CPU, with and without Spark."),
        ("spark", 1, "without Spark only: spark-submit needs what is missing under spark."),
        ("engine", 1, "gpujoin cannot run here: mend what is missing under engine."),
    ],
)
def test_the_exit_status_says_whether_spark_submit_would_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], broken: str, status: int, verdict: str
) -> None:
    monkeypatch.setattr(doctor, "examine", lambda: report(**{broken: Status.MISSING}))
    assert cli.main(["doctor"]) == status
    assert verdict in capsys.readouterr().out


@pytest.mark.parametrize(
    ("script", "status", "said"),
    [
        ("echo '   /_/ version 4.1.2' >&2", Status.OK, "Spark 4.1.2"),
        ("echo 'no JVM of 64 bits' >&2; exit 1", Status.MISSING, "does not work: no JVM of 64 bits"),
        (None, Status.MISSING, "cannot be run"),
    ],
)
def test_spark_submit_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, status: Status, said: str
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    if script is not None:
        executable(tmp_path / "bin" / "spark-submit", script)
    found = software.spark_submit()
    assert found.status is status
    assert said in found.finding
    assert ("SPARK_HOME" in found.advice) == (status is Status.MISSING)


def test_a_failing_probe_is_a_finding_and_keeps_what_came_before() -> None:
    def probe() -> Iterator[Check]:
        yield Check("first", Status.OK, "fine")
        raise RuntimeError("boom")

    found = dict(doctor.examine([("engine", probe), ("spark", tuple)]).groups)
    assert [check.name for check in found["engine"]] == ["first", "engine checks"]
    assert found["engine"][1].finding == "RuntimeError: boom"
    assert found["spark"] == ()


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("4.3.0", (4, 3, 0)), ("4.3.0.dev1", (4, 3, 0)), ("26.10.00", (26, 10, 0)), ("x", ())],
)
def test_version_tuple(text: str, numbers: tuple[int, ...]) -> None:
    assert checks.version_tuple(text) == numbers


def test_a_crashing_library_is_told_as_such() -> None:
    assert checks.run_python("import os; os.kill(os.getpid(), 9)") == (False, "killed by signal 9")
    assert checks.run_python("import time; time.sleep(60)", timeout=0.2) == (False, "no answer within 0.2 s")
    assert checks.run_python("raise ValueError('no')") == (False, "ValueError: no")


@pytest.mark.parametrize(
    ("minimum", "below", "status"),
    [("1.0", None, Status.OK), ("99", None, Status.MISSING), ("1.0", "2", Status.MISSING)],
)
def test_versions_out_of_range_are_not_usable(minimum: str, below: str | None, status: Status) -> None:
    found = checks.import_check("numpy", minimum=minimum, below=below, advice="do this")
    assert found.status is status
    assert found.advice == ("" if status is Status.OK else "do this")


def test_a_missing_and_a_broken_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = checks.import_check("no_such_module_here", minimum="1", below=None, advice="install it")
    assert (missing.status, missing.finding) == (Status.MISSING, "not installed")
    (tmp_path / "broken_module_here.py").write_text("raise ImportError('libfoo.so.1 is gone')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    broken = checks.import_check("broken_module_here", minimum="1", below=None, advice="install it")
    assert "cannot be imported: ImportError: libfoo.so.1 is gone" in broken.finding


def test_library_versions_are_those_of_pyproject() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    expected = {
        name + f">={minimum}" + (f",<{below}" if below else "") for name, minimum, below in software.ENGINE_LIBRARIES
    }
    assert set(project["dependencies"]) == expected


ANSWER = """[ "$1" = -version ] && echo 'openjdk version "%s" 2024' >&2 || echo %s"""


def java_home(tmp_path: Path, text: str) -> str:
    executable(tmp_path / "jvm" / "bin" / "java", text)
    return str(tmp_path / "jvm")


@pytest.mark.parametrize(
    ("script", "status", "said"),
    [
        (ANSWER % ("21.0.4", "jdk.incubator.vector@21"), Status.OK, "21.0.4"),
        (ANSWER % ("17.0.2", "java.base@17"), Status.MISSING, "lacks the module"),
        ("echo 'java version \"1.8.0_392\"' >&2", Status.MISSING, "Spark 4 needs 17 or newer"),
        ("echo 'Error: no libjvm.so' >&2; exit 1", Status.MISSING, "no libjvm.so"),
    ],
)  # fmt: skip
def test_java_is_judged_by_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, status: Status, said: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", java_home(tmp_path, script))
    found = software.java()
    assert found.status is status
    assert said in found.finding
    assert (found.advice == "") == (status is Status.OK)


def test_no_java_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "java is not on PATH" in software.java().finding
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    assert "cannot be run" in software.java().finding


def test_the_python_of_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = executable(tmp_path / "bin/python3", f'exec "{sys.executable}" -I -S "$@"\n')
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setenv("PATH", f"{bare.parent}:/usr/bin:/bin")
    found = software.workers()
    assert found.status is Status.WARNING
    assert str(bare) in found.finding
    assert "it lacks gpujoin, numpy, polars, pyarrow" in found.finding
    assert f"export PYSPARK_PYTHON={sys.executable}" in found.advice
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    assert software.workers() == Check("workers' python", Status.OK, f"{sys.executable}, by PYSPARK_PYTHON")
    monkeypatch.setenv("PYSPARK_PYTHON", str(tmp_path / "gone"))
    assert "not found" in software.workers().finding
    assert software.workers().status is Status.MISSING, "spark-submit starts programs by it too"


def test_a_foreign_spark_home_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    monkeypatch.setattr(software, "import_check", lambda *a, **k: Check("pyspark", Status.OK, "4.3.0"))
    monkeypatch.setattr(software, "java", lambda: Check("java", Status.OK, "17"))

    def found() -> Check:
        _, home = itertools.islice(software.spark(), 2)
        return home

    assert "holds no PySpark" in found().finding
    package = tmp_path / "python" / "pyspark"
    package.mkdir(parents=True)
    (package / "version.py").write_text('__version__: str = "3.5.1"\n')
    assert found().status is Status.WARNING
    (package / "version.py").write_text('__version__: str = "4.3.0"\n')
    assert found().status is Status.OK


Gpus = Callable[[], tuple[Gpu, ...]]


def gpu_checks(
    monkeypatch: pytest.MonkeyPatch,
    gpus: Gpus,
    cuda: tuple[int, int] | None = (13, 0),
    works: bool = True,
    installed: str | None = None,
) -> dict[str, Check]:
    def fake_import(module: str, *, advice: str, **_: object) -> Check:
        return Check(module, Status.OK, "26.10") if works else Check(module, Status.MISSING, "not installed", advice)

    monkeypatch.setattr(gpu, "list_gpus", gpus)
    for module in (gpu, discovery):
        monkeypatch.setattr(module, "driver_cuda_version", lambda: cuda)
    monkeypatch.setattr(gpu, "installed_extra", lambda: installed)
    monkeypatch.setattr(gpu, "import_check", fake_import)
    monkeypatch.setattr(gpu, "run_python", lambda code, timeout: (works, "said"))
    return {check.name: check for check in gpu.gpu()}


def no_gpus() -> tuple[Gpu, ...]:
    raise BackendUnavailableError("nvidia-smi is not on PATH. Install the driver.")


def test_a_good_gpu_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    found = gpu_checks(monkeypatch, lambda: (H200,))
    assert all(check.status is Status.OK for check in found.values())
    assert "141.0 GiB" in found["gpu 0"].finding
    assert found["driver"].finding == "580.65.06, CUDA 13.0"
    assert re.match(r"2, \d taken; lock files in /", found["gpu slots"].finding)
    assert "gpu self test" in found


def test_no_gpu_gives_the_advice_and_no_device_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    found = gpu_checks(monkeypatch, no_gpus, cuda=None, works=False)
    assert (found["gpu"].finding, found["gpu"].advice) == ("nvidia-smi is not on PATH", "Install the driver.")
    assert set(found) == {"gpu", "pylibcudf", "rmm", "cupy", "gpu slots"}


def test_slots_that_cannot_be_locked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GPUJOIN_SLOT_DIR", str(tmp_path / "file" / "slots"))
    found = gpu_checks(monkeypatch, lambda: (H200,))
    assert found["gpu slots"].status is Status.MISSING
    assert "GPUJOIN_SLOT_DIR" in found["gpu slots"].advice


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("# spark.task.resource.gpu.amount 1\n\nspark.ui.enabled=false\n", Status.OK),
        ("spark.task.resource.gpu.amount   0.5\n", Status.WARNING),
        ("spark.master spark://host:7077\nspark.task.resource.gpu.amount=1\n", Status.OK),
    ],
)
def test_defaults_that_keep_local_sessions_from_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, status: Status
) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert list(software.defaults()) == []
    (tmp_path / "spark-defaults.conf").write_text(text)
    (found,) = software.defaults()
    assert found.status is status
    assert str(tmp_path) in found.finding
    assert ("Leave the setting" in found.advice) == (status is Status.WARNING)


def _spark_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, jars: tuple[str, ...]) -> None:
    """A Spark of some version that has jars, and of Spark's own classes the one that Delta calls until 4.1.1."""
    folder = tmp_path / "jars"
    folder.mkdir()
    for name in jars:
        (folder / name).write_bytes(b"")
    with zipfile.ZipFile(folder / f"spark-catalyst_2.13-{version}.jar", "w") as archive:
        archive.writestr(tables._LOST_CLASS if version <= "4.1.1" else "other", "")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    monkeypatch.setattr(tables, "version_in", lambda file: version)


@pytest.mark.parametrize(
    ("version", "jar", "status", "said"),
    [
        ("4.1.1", "delta-spark_4.1_2.13-4.2.0.jar", Status.OK, "delta 4.2.0 ("),
        ("4.1.4", "delta-spark_4.1_2.13-4.2.0.jar", Status.WARNING, "delta 4.2.0 … fails on PySpark 4.1.4"),
        ("4.1.4", "delta-spark_4.1_2.13-4.3.0.jar", Status.OK, "delta 4.3.0 ("),
        ("4.1.1", "io.delta_delta-spark_2.13-4.0.0.jar", Status.WARNING, "delta 4.0.0 … is made for Spark 4.0, not"),
        ("4.0.2", "delta-spark_4.1_2.13-4.2.0.jar", Status.WARNING, "delta 4.2.0 … is made for Spark 4.1, not 4.0.2"),
        ("4.1.4", "iceberg-spark-runtime-4.1_2.13-1.12.0.jar", Status.OK, "iceberg 1.12.0 ("),
        ("4.3.0", "iceberg-spark-runtime-4.1_2.13-1.12.0.jar", Status.WARNING, "iceberg 1.12.0 … is made for Spark"),
    ],
)  # fmt: skip
def test_jars_of_delta_and_iceberg_are_judged_by_the_pyspark_they_are_made_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, jar: str, status: Status, said: str
) -> None:
    _spark_with(tmp_path, monkeypatch, version, (jar,))
    name, _, rest = said.partition(" ")
    first, _, last = rest.partition(" … ")
    (found,) = (check for check in tables.tables() if check.name == name)
    assert found.status is status
    assert found.finding.startswith(first)
    assert last in found.finding
    assert (found.advice == "") == (status is Status.OK)


def test_the_package_that_fits_is_told_where_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _spark_with(tmp_path, monkeypatch, "4.1.1", ())
    assert [check.finding.rpartition("=")[2] for check in tables.tables()] == list(PACKAGES.values())
    monkeypatch.setattr(tables, "version_in", lambda file: "4.1.4")
    assert [check.status for check in tables.tables()] == [Status.WARNING, Status.OK]


def test_packages_of_the_defaults_are_judged_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _spark_with(tmp_path, monkeypatch, "4.1.1", ())
    (tmp_path / "conf").mkdir()
    packages = "io.delta:delta-spark_2.13:4.0.1,org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
    (tmp_path / "conf" / "spark-defaults.conf").write_text(f"spark.jars.packages {packages}\n")
    delta, iceberg = tables.tables()
    assert delta.status is Status.WARNING
    assert "spark-defaults.conf: spark.jars.packages) is made for Spark 4.0, not 4.1.1" in delta.finding
    assert PACKAGES["delta"] in delta.advice
    assert iceberg.status is Status.OK


@pytest.mark.parametrize(("cuda", "extra"), [((12, 8), "cu12"), ((13, 1), "cu13"), (None, "cu13")])
def test_the_extra_named_fits_the_driver(
    monkeypatch: pytest.MonkeyPatch, cuda: tuple[int, int] | None, extra: str
) -> None:
    found = gpu_checks(monkeypatch, lambda: (H200,), cuda=cuda, works=False)
    assert found["pylibcudf"].advice == pip_install(extra)
    assert re.search(rf"pylibcudf-{extra}|\.\[{extra}\]", found["pylibcudf"].advice)


def test_old_small_and_exclusive_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    old = Gpu("0", "Tesla P100", "GPU-1", 16 << 30, 0, "535", "6.0", exclusive=False)
    full = Gpu("1", "T4", "GPU-2", 16 << 30, (16 << 30) - (1 << 20), "535", "7.5", exclusive=True)
    found = gpu_checks(monkeypatch, lambda: (old, full), cuda=(11, 8))
    assert found["gpu 0"].status is Status.MISSING
    assert found["gpu 1"].status is Status.WARNING
    assert found["driver"].status is Status.MISSING
    assert "--compute-mode=DEFAULT" in found["gpu slots"].advice


@pytest.mark.parametrize(
    ("installed", "cuda", "missing"),
    [
        ("cu13", (13, 0), {"gpu 0"}), ("cu13", (12, 8), {"gpu 0", "driver"}), ("cu12", (12, 8), set()),
        (None, (12, 8), set()), (None, (13, 0), {"gpu 0"}), ("cu12", (12, 1), {"driver"}),
    ],
)  # fmt: skip
def test_what_a_gpu_and_a_driver_must_be_depends_on_the_extra(
    monkeypatch: pytest.MonkeyPatch, installed: str | None, cuda: tuple[int, int], missing: set[str]
) -> None:
    volta = dataclasses.replace(H200, name="Tesla V100", compute_capability="7.0")
    found = gpu_checks(monkeypatch, lambda: (volta,), cuda=cuda, installed=installed)
    assert {name for name, check in found.items() if check.status is Status.MISSING} == missing
    assert all("extra cu12" in found[name].advice for name in missing if installed != "cu12")


def test_local_directories_follow_spark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in ("SPARK_EXECUTOR_DIRS", "LOCAL_DIRS", "SPARK_LOCAL_DIRS"):
        monkeypatch.delenv(variable, raising=False)
    assert len(host.local_directories()) == 1
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path}/a,{tmp_path}/b")
    assert host.local_directories() == [tmp_path / "a", tmp_path / "b"]
    monkeypatch.setenv("LOCAL_DIRS", str(tmp_path))
    assert host.local_directories() == [tmp_path]
    found = {check.name: check for check in host.host()}
    assert found[f"local disk {tmp_path}"].status is not Status.MISSING
    monkeypatch.setenv("LOCAL_DIRS", str(tmp_path / "gone"))
    found = {check.name: check for check in host.host()}
    assert found[f"local disk {tmp_path / 'gone'}"].status is Status.MISSING


def test_another_system_than_linux_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert software.system().status is Status.OK
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(host, "_PROC", tmp_path / "gone")
    assert (software.system().status, software.system().finding.split(";")[0]) == (Status.WARNING, "Darwin")
    assert list(host.host()) == []


def test_few_open_files_are_a_warning() -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))\n"
        "from gpujoin.cli.checks.host import host\n"
        "print([c.status.value for c in host() if c.name == 'open files'][0])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "warning"


def test_a_container_limit_is_the_memory_that_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "memory.max").write_text(f"{2 << 30}\n")
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    monkeypatch.setattr(host, "_CGROUP", tmp_path)
    found = {check.name: check for check in host.host()}
    assert found["memory"].status is Status.WARNING
    assert found["memory"].finding == "2.0 GiB (the container's limit)"
    assert found["cores"].finding.startswith("0.5 ")


def test_doctor_needs_no_gpujoin_dependency_to_report(tmp_path: Path) -> None:
    """With an empty Python it says what is missing, and exits with 1."""
    (tmp_path / "gpujoin").symlink_to(ROOT / "gpujoin")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    code = "import sys; from gpujoin.cli import main; sys.exit(main(['doctor', '--json']))"
    # -S keeps site-packages away, here and in the Pythons that the doctor starts.
    wrapper = executable(tmp_path / "python", f'exec {sys.executable} -S "$@"\n')
    done = subprocess.run(
        [wrapper, "-c", f"import sys; sys.executable = {str(wrapper)!r}\n{code}"],
        capture_output=True, text=True, env=environment,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    found = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert re.search("not installed", found["polars"]["found"])
    assert found["polars"]["advice"] == 'pip install --force-reinstall "polars>=2.1,<3"'


@pytest.mark.program
def test_a_driver_without_pandas_cannot_use_spark(tmp_path: Path) -> None:
    """PySpark imports without pandas; its ``mapInArrow`` does not work."""
    python = environment_without(tmp_path / "environment", "pandas")
    done = subprocess.run(
        [python, "-m", "gpujoin", "doctor", "--json"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert (report["usable"]["engine"], report["usable"]["spark"]) == (True, False)
    (missing,) = (check for check in report["checks"] if check["group"] == "spark" and check["status"] == "missing")
    assert missing["name"] == "driver's libraries"
    assert "Pandas" in missing["found"]
    assert missing["advice"] == 'pip install ".[spark]" in a checkout of gpujoin in the environment of the driver'
