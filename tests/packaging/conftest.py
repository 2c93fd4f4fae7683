"""The distributions, built once, and environments to install them in."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.packaging.test_installs import ROOT, run


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, and the wheel that was built from it alone."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT)
    (sdist,) = out.glob("*.tar.gz")
    (wheel,) = out.glob("*.whl")
    return sdist, wheel


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A new virtual environment that sees this one's libraries but not its gpujoin; gives its Python."""
    home = tmp_path / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", home)
    site = Path(
        run(home / "bin" / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    )
    # Only the named folder is added: .pth files inside it, editable installs among them, are not read.
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = home / "bin" / "python"
    assert (
        subprocess.run([python, "-I", "-c", "import gpujoin"], capture_output=True, cwd=tmp_path).returncode
        != 0
    )
    return python
