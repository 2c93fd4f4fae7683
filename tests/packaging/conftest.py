"""The distributions, built once, and environments to install them in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.packaging.test_installs import ROOT, pip_install, run


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, and the wheel that was built from it alone."""
    out = tmp_path_factory.mktemp("dist")
    environment = {**os.environ, "GPUJOIN_BUILD_KERNELS": "0", "GPUJOIN_BUILD_JAVA": "0"}  # it takes most of a minute
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT, env=environment)
    (sdist,) = out.glob("*.tar.gz")
    (wheel,) = out.glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="session")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of virtual environments that tests take copies of."""
    return tmp_path_factory.mktemp("environments")


@pytest.fixture(scope="session")
def pristine_environment(environments: Path) -> Path:
    """A virtual environment that sees this one's libraries but not its gpujoin; gives its Python."""
    home = environments / "bare"
    run(sys.executable, "-m", "venv", "--without-pip", home)
    site = Path(run(home / "bin" / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    # Only the named folder is added: .pth files inside it, editable installs among them, are not read.
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = home / "bin" / "python"
    assert subprocess.run([python, "-I", "-c", "import gpujoin"], capture_output=True, cwd=home).returncode != 0
    return python


@pytest.fixture(scope="session")
def pristine_editable(pristine_environment: Path, environments: Path) -> Path:
    """The Python of an environment in which this checkout is installed editable."""
    python = copied(pristine_environment, environments / "editable")
    pip_install(python, "-e", ROOT)
    return python


def copied(python: Path, home: Path) -> Path:
    """Copy a Python's environment; gives the copy's Python. Programs of packages in it keep the first one's."""
    shutil.copytree(python.parents[1], home, symlinks=True)
    return home / "bin" / python.name


@pytest.fixture
def environment(pristine_environment: Path, tmp_path: Path) -> Path:
    """A new virtual environment that sees this one's libraries but not its gpujoin; gives its Python."""
    return copied(pristine_environment, tmp_path / "venv")
