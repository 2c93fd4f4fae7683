from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpujoin.cli.demo.data import tpch_directory

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("docker/**/*.md"), ROOT / "kernels/README.md"]
)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def prose(page: Path) -> str:
    """A page without its code blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(prose(page)):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert target.is_relative_to(ROOT), link
        if anchor:
            assert anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_make_targets_and_settings_that_pages_name_exist(page: Path) -> None:
    from gpujoin.config import SETTINGS

    text = page.read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert (
        set(re.findall(r"`make ([a-z-]+)`", text)) | set(re.findall(r"^make ([a-z-]+)", text, re.MULTILINE))
        <= targets
    )
    known = {setting.key for setting in SETTINGS}
    assert set(re.findall(r"spark\.gpujoin\.[A-Za-z.]*[A-Za-z]", text)) <= known


@pytest.mark.spark
def test_the_quick_start_runs(tmp_path: Path) -> None:
    whole, one = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL
    )
    for table in ("orders", "lineitem"):
        (tmp_path / f"{table}.parquet").symlink_to(tpch_directory(0.001) / f"{table}.parquet")
    (tmp_path / "start.py").write_text(
        whole + one + "print(df.count(), 'rows')\nprint(gpujoin.explain(df))\n"
    )
    done = subprocess.run(
        [sys.executable, "start.py"], capture_output=True, text=True, cwd=tmp_path, timeout=300,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shown, counted = done.stdout.split(" rows\n")
    assert "o_orderpriority" in shown
    assert "inner join" in shown
    assert "left join" in counted
