"""The site of the documentation: every page has its place, and it is built without warnings."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gpujoin

ROOT = Path(__file__).resolve().parents[2]


def test_every_page_has_its_place_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    named = set(re.findall(r"(\S+\.(?:md|ipynb))$", navigation, re.MULTILINE))
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert pages | {"tutorial.ipynb"} <= named


def test_every_public_name_is_in_the_reference() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "api").glob("*.md"))
    named = set(re.findall(r"^::: gpujoin\.(\w+)$", text, re.MULTILINE))
    errors = {name for name in gpujoin.__all__ if name.endswith("Error")}
    assert set(gpujoin.__all__) - {"__version__"} == (named - {"errors"}) | errors
    assert "errors" in named


@pytest.mark.extra
def test_the_site_is_built_without_warnings(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="no mkdocs-material, which the extra docs brings")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"],
        capture_output=True, text=True, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    reference = (tmp_path / "site" / "api" / "engine" / "index.html").read_text(encoding="utf-8")
    assert "Whether null keys match each other" in reference
    first = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert 'href="queries/' in first
    assert 'href="docs/' not in first
