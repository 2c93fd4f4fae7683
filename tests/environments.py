"""Virtual environments that see what this one has, but for what a test wants to be missing."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[1]


def environment_without(home: Path, *names: str) -> Path:
    """Make an environment with this checkout and all installed libraries but those named; give its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    (site,) = home.glob("lib/python*/site-packages")
    for installed in Path(sysconfig.get_path("purelib")).iterdir():
        # Neither .pth files, such as those of editable installs, nor gpujoin itself.
        if installed.suffix != ".pth" and not installed.name.startswith((*names, "gpujoin", "_gpujoin")):
            (site / installed.name).symlink_to(installed)
    (site / "gpujoin.pth").write_text(f"{ROOT}\n")
    return home / "bin" / "python"
