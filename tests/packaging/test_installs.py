"""Wheel, source and editable installs, made for real in environments of their own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

import hatch_build
from gpujoin import _version

ROOT = Path(__file__).resolve().parents[2]
KERNELS = {path.relative_to(ROOT / "kernels").as_posix() for path in (ROOT / "kernels").rglob("*") if path.is_file()}

FIND_KERNELS = (
    "import gpujoin; from gpujoin.launch.source import kernel_directory; "
    "print(gpujoin.__file__); print(kernel_directory())"
)


def run(*command: object, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, cwd=cwd, env=env)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def pip_install(python: Path, *what: object) -> None:
    run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index",
        "--ignore-installed", "--no-build-isolation", *what)  # fmt: skip


def test_wheel_install_finds_its_kernels(distributions: tuple[Path, Path], environment: Path, tmp_path: Path) -> None:
    pip_install(environment, distributions[1])
    package, kernels = map(Path, run(environment, "-I", "-c", FIND_KERNELS, cwd=tmp_path).split())
    assert package.is_relative_to(environment.parents[1])
    assert kernels == package.parent / "_kernels"
    assert {p.relative_to(kernels).as_posix() for p in kernels.rglob("*") if p.is_file()} == KERNELS
    assert run(environment.parent / "gpujoin", "version", cwd=tmp_path).strip() == _version.__version__
    assert "usage: gpujoin-discover-gpus" in run(environment.parent / "gpujoin-discover-gpus", "--help", cwd=tmp_path)


@pytest.mark.extra
def test_advice_names_what_an_extra_brings(distributions: tuple[Path, Path], environment: Path, tmp_path: Path) -> None:
    """Such advice holds where no index has gpujoin, and extras that an extra includes are in it."""
    program = "from gpujoin.errors import pip_install; print(pip_install('bench')); print(pip_install('cu13'))"
    path = f"import sys; sys.path.insert(0, {str(ROOT)!r})"
    from_source = run(environment, "-I", "-S", "-c", f"{path}; {program}", cwd=tmp_path)
    assert from_source.splitlines()[0] == 'pip install ".[bench]" in a checkout of gpujoin'
    pip_install(environment, distributions[1])
    bench, cu13 = run(environment, "-I", "-c", program, cwd=tmp_path).splitlines()
    assert bench.startswith("pip install ")
    assert {'"duckdb', '"pyspark[sql]'} <= set(re.findall(r'"[a-z\[\]]+', bench))
    assert "pylibcudf-cu13" in cu13
    assert "gpujoin" not in bench + cu13


@pytest.mark.extra
def test_editable_install_finds_the_kernels_of_the_checkout(environment: Path, tmp_path: Path) -> None:
    pip_install(environment, "-e", ROOT)
    package, kernels = map(Path, run(environment, "-I", "-c", FIND_KERNELS, cwd=tmp_path).split())
    assert package == ROOT / "gpujoin" / "__init__.py"
    assert kernels == ROOT / "kernels"
    assert run(environment.parent / "gpujoin", "version", cwd=tmp_path).strip() == _version.__version__


@pytest.mark.program
def test_the_package_runs_from_a_zip(distributions: tuple[Path, Path], environment: Path, tmp_path: Path) -> None:
    """As ``--py-files`` does it on executors."""
    code = (
        f"import sys; sys.path.insert(0, {str(distributions[1])!r}); import gpujoin; "
        "from gpujoin.launch.source import kernel_directory; "
        "print(sorted(p.name for p in kernel_directory().iterdir()))"
    )
    names = run(environment, "-I", "-c", code, cwd=tmp_path)
    assert "README.md" in names


def test_wheel_holds_the_package_and_nothing_else(distributions: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(distributions[1]) as wheel:
        names = set(wheel.namelist())
        metadata = HeaderParser().parsestr(
            wheel.read(next(n for n in names if n.endswith("/METADATA"))).decode("utf-8")
        )
    assert {name.split("/")[0] for name in names} == {
        "gpujoin",
        f"gpujoin-{_version.__version__}.dist-info",
        "_gpujoin_startup.pth",
        "_gpujoin_startup.py",
    }
    assert "gpujoin/py.typed" in names
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    assert metadata["Version"] == _version.__version__
    assert metadata["Requires-Python"] == ">=3.11"
    assert {"spark", "cu12", "cu13", "test", "bench", "dev"} <= set(metadata.get_all("Provides-Extra", []))
    sources = {
        path.relative_to(ROOT).as_posix() for kind in ("*.py", "*.java") for path in (ROOT / "gpujoin").rglob(kind)
    }
    assert "gpujoin/spark/jvm/java/gpujoin/PythonRule.java" in sources
    assert sources <= names


@pytest.mark.extra
def test_a_wheel_has_compiled_kernels(tmp_path: Path, environment: Path) -> None:
    """They are found, by the source that the same wheel has."""
    pytest.importorskip("cupy", reason='no CuPy: pip install ".[cu13]"')
    given = {**os.environ, "GPUJOIN_BUILD_KERNELS": "1"}
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", tmp_path / "dist", ROOT, env=given)
    (wheel,) = (tmp_path / "dist").iterdir()
    assert wheel.stat().st_size < 4 << 20
    pip_install(environment, wheel)
    program = (
        "from gpujoin.launch import images; "
        "print(sum(1 for spec in images.shipped_specialisations() for _ in images.shipped(spec, (9, 0))), "
        "2 * len(images.shipped_specialisations()))"
    )
    there, wanted = run(environment, "-I", "-c", program, cwd=tmp_path).split()
    assert there == wanted


@pytest.mark.extra
def test_a_wheel_has_compiled_java(tmp_path: Path, environment: Path) -> None:
    """In a jar that is found, by the sources that the same wheel has."""
    given = {**os.environ, "GPUJOIN_BUILD_KERNELS": "0", "GPUJOIN_BUILD_JAVA": "1"}
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", tmp_path / "dist", ROOT, env=given)
    (wheel,) = (tmp_path / "dist").iterdir()
    pip_install(environment, wheel)
    program = "from gpujoin.spark.jvm.archive import FOLDER, archive_name; print((FOLDER / archive_name()).is_file())"
    assert run(environment, "-I", "-c", program, cwd=tmp_path).strip() == "True"


@pytest.mark.program
def test_a_build_without_a_compiler_says_that_kernels_are_not_compiled(tmp_path: Path) -> None:
    """In a copy of the checkout whose images cannot be made, as where CuPy is missing."""
    copy = tmp_path / "copy"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "tests", "docs", "benchmarks", "build", "dist"))
    (copy / "gpujoin" / "launch" / "images.py").write_text("raise ImportError('NVRTC is missing')\n")
    command = [
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--wheel",
        "--outdir",
        str(tmp_path / "dist"),
        str(copy),
    ]
    environment = {name: value for name, value in os.environ.items() if name != "GPUJOIN_BUILD_KERNELS"}
    environment["GPUJOIN_BUILD_JAVA"] = "0"
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert "without compiled kernels" in done.stdout + done.stderr
    assert "NVRTC is missing" in done.stdout + done.stderr
    (wheel,) = (tmp_path / "dist").iterdir()
    with zipfile.ZipFile(wheel) as archive:
        assert not any("_images" in name for name in archive.namelist())
    done = subprocess.run(command, capture_output=True, text=True, env={**environment, "GPUJOIN_BUILD_KERNELS": "1"})
    assert done.returncode != 0
    assert "the kernels cannot be compiled: ImportError: NVRTC is missing" in done.stdout + done.stderr


def test_links_of_the_readme_work_on_the_package_index(distributions: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(distributions[1]) as wheel:
        text = wheel.read(f"gpujoin-{_version.__version__}.dist-info/METADATA").decode("utf-8")
    metadata = HeaderParser().parsestr(text)
    urls = dict(entry.split(", ", 1) for entry in metadata.get_all("Project-URL", []))
    assert {"Source", "Documentation", "Changelog", "Issues"} <= set(urls)
    assert metadata["Description-Content-Type"] == "text/markdown"
    links = [*re.findall(r"\]\(([^)\s]+)\)", text), *re.findall(r'src="([^"]+)"', text)]
    assert all(link.startswith(("https://", "#")) for link in links)
    page = f"{urls['Source']}/blob/v{_version.__version__}/"
    files = [link.removeprefix(page).partition("#")[0] for link in links if link.startswith(page)]
    assert "docs/queries.md" in files
    assert all((ROOT / file).exists() for file in files)


def test_links_are_rewritten_once() -> None:
    page = '[![plot](a.svg)](b.md) ![c](d.png) [e](https://f) [g](#h) <img src="i.svg">'
    there = "https://github.com/o/n"
    rewritten = hatch_build.absolute(page, there, "v1")
    assert rewritten == (
        f"[![plot]({there}/raw/v1/a.svg)]({there}/blob/v1/b.md) ![c]({there}/raw/v1/d.png) [e](https://f) [g](#h)"
        f' <img src="{there}/raw/v1/i.svg">'
    )
    assert hatch_build.absolute(rewritten, there, "v1") == rewritten


def test_the_sdist_holds_what_tests_and_documents_need(distributions: tuple[Path, Path]) -> None:
    is_listed = (ROOT / ".git").exists() and shutil.which("git") is not None
    tracked = run("git", "ls-files", cwd=ROOT).split() if is_listed else []
    with tarfile.open(distributions[0]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"docs/guide.md", "docker/Dockerfile", "Makefile", "CONTRIBUTING.md", "scripts/setup_env.sh"} <= names
    wanted = {name for name in tracked if (ROOT / name).is_file() and not name.startswith(".")}
    assert wanted <= names, sorted(wanted - names)


@pytest.mark.extra
def test_the_package_index_takes_the_metadata(distributions: tuple[Path, Path]) -> None:
    pytest.importorskip("twine", reason="no twine, which the extra dev brings")
    run(sys.executable, "-m", "twine", "check", "--strict", *distributions)


def test_the_version_is_written_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "version" in project["dynamic"]
    heading = re.search(r"^## \[(\d[^\]]*)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert heading is not None
    assert heading[1] == _version.__version__


JOB = """
import gpujoin
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
left = spark.range(100).selectExpr("id as k", "id * 2 as x")
right = spark.range(50, 150).selectExpr("id as k", "id * 3 as y")
joined = gpujoin.gpu_join(left, right, "k", strategy="shuffle", backend="cpu")
chosen = gpujoin.explain(joined).joins[0]
rows = sorted((row.k, row.x, row.y) for row in joined.collect())
assert rows == [(k, 2 * k, 3 * k) for k in range(50, 100)], rows
print("from", gpujoin.__file__, "by", chosen.strategy, len(rows), "rows")
"""


@pytest.mark.slow
@pytest.mark.spark
def test_executors_run_gpujoin_from_py_files(
    distributions: tuple[Path, Path], environment: Path, tmp_path: Path
) -> None:
    """Driver and executors have the libraries, but gpujoin only as the archive that spark-submit ships."""
    import pyspark

    job = tmp_path / "job.py"
    job.write_text(JOB)
    # Spark ships .zip, not .whl.
    archive = tmp_path / "gpujoin.zip"
    shutil.copy(distributions[1], archive)
    # A Spark home of links, because executors of a local cluster leave their folders in it.
    home = tmp_path / "spark"
    home.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        (home / entry.name).symlink_to(entry)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYTHONPATH"))}
    done = subprocess.run(
        [home / "bin" / "spark-submit", "--master", "local-cluster[2,1,1024]", "--py-files", archive,
         "--conf", "spark.ui.enabled=false", "--conf", "spark.executor.memory=1g", job],
        capture_output=True, text=True, cwd=tmp_path, timeout=300,
        env={**clean, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": str(environment)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.search(r"^from \S+\.zip/gpujoin/__init__\.py by \S+ 50 rows$", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("constraints", "extras"),
    [
        ("constraints.txt", "spark"),
        ("constraints.txt", "spark,cu13"),
        ("constraints.txt", "dev"),
        ("constraints-cu12.txt", "spark,cu12"),
        ("constraints-oldest.txt", "test"),
    ],
)
def test_extras_resolve_with_their_constraints(constraints: str, extras: str, tmp_path: Path) -> None:
    """Needs the package index; installs nothing."""
    home = tmp_path / "venv"
    run(sys.executable, "-m", "venv", home)
    told = run(
        home / "bin" / "python",
        "-m",
        "pip",
        "install",
        "--dry-run",
        "-c",
        ROOT / constraints,
        f"{ROOT}[{extras}]",
    )
    pins = re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", (ROOT / constraints).read_text(encoding="utf-8"), re.MULTILINE)
    pinned = {f"{normal(name)}-{version}" for name, version in pins} | {f"gpujoin-{_version.__version__}"}
    would = re.search(r"^Would install (.+)$", told, re.MULTILINE)
    assert would is not None
    found = (item.rpartition("-") for item in would[1].split())
    loose = {f"{normal(name)}-{version}" for name, _, version in found} - pinned
    assert loose == set()


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
