from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import gpujoin
from benchmarks.data import tpch_directory
from tests.spark.leaks import leaks

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
        set(re.findall(r"`make ([a-z-]+)`", text)) | set(re.findall(r"^make ([a-z-]+)", text, re.MULTILINE)) <= targets
    )
    known = {setting.key for setting in SETTINGS}
    if page.name == "CHANGELOG.md":  # which names what an earlier version had, too
        return
    assert set(re.findall(r"spark\.gpujoin\.[A-Za-z.]*[A-Za-z]", text)) <= known


def test_quoted_explanations_have_no_words_but_those_of_sql() -> None:
    guide = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
    quoted = re.findall(r"<!-- generated: [^>]+? -->\n```\n((?:(?!```).*\n)*)```", guide)
    assert len(quoted) >= 3
    assert [leaks(text) for text in quoted] == [[]] * len(quoted)


@pytest.mark.spark
def test_the_quick_start_runs(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    whole, joined = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    try:
        exec(whole.replace('parquet("', f'parquet("{tpch_directory(0.001)}/'), names)  # noqa: S102
        shown = capsys.readouterr().out
        exec(joined, names)  # noqa: S102
        print(names["gpujoin"].explain(names["df"]))
    finally:
        gpujoin.disable(spark)
    assert "o_orderpriority" in shown
    assert "inner join" in shown
    assert "left join" in capsys.readouterr().out
    assert names["df"].count() > names["orders"].count()
