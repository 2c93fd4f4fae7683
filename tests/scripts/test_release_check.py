from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from gpujoin import _version
from scripts.release_check import changelog, problems

ROOT = Path(__file__).resolve().parents[2]
TAG = "v1.2.3"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A project whose version 1.2.3 may be released."""
    (tmp_path / "gpujoin").mkdir()
    (tmp_path / "gpujoin" / "_version.py").write_text('"""The "version"."""\n\n__version__ = "1.2.3"\n')
    (tmp_path / "pyproject.toml").write_text('[project.urls]\nSource = "https://github.com/owner/name"\n')
    parts = "# Changelog\n\n## [Unreleased]\n\n## [1.2.3] - 2030-01-02\n\n- New.\n\n## [1.2.2] - 2029-12-24\n\n- Old.\n"
    (tmp_path / "CHANGELOG.md").write_text(parts)
    return tmp_path


def test_a_release_has_its_part_of_the_changelog(checkout: Path) -> None:
    assert problems(checkout, TAG, "owner/name") == []
    assert changelog(checkout) == {"Unreleased": "\n\n", "1.2.3": "\n\n- New.\n\n", "1.2.2": "\n\n- Old.\n"}


@pytest.mark.parametrize(
    ("file", "old", "new", "why"),
    [
        ("gpujoin/_version.py", "1.2.3", "1.2.4", "the version of the package is v1.2.4"),
        ("CHANGELOG.md", "[1.2.3] - 2030-01-02", "[1.2.3]", "no text under"),
        ("CHANGELOG.md", "- New.", "", "no text under"),
        ("CHANGELOG.md", "[Unreleased]", "[Unreleased]\n\n- Newest.", "text under '## [Unreleased]'"),
        ("pyproject.toml", "owner", "other", "https://github.com/other/name, and owner/name releases"),
    ],
    ids=["version", "no date", "no text", "unreleased", "addresses"],
)
def test_what_keeps_a_tag_from_being_released(checkout: Path, file: str, old: str, new: str, why: str) -> None:
    text = (checkout / file).read_text()
    (checkout / file).write_text(text.replace(old, new))
    (problem,) = problems(checkout, TAG, "owner/name")
    assert why in problem


def test_the_program_fails_and_says_why() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "release_check.py", "v0.0.0"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert f"release_check: the tag is v0.0.0, and the version of the package is v{_version.__version__}" in done.stderr


def test_the_workflow_publishes_what_it_has_checked() -> None:
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    jobs = yaml.safe_load(text)["jobs"]
    assert jobs["publish"]["needs"] == "test"
    assert jobs["test"]["needs"] == "build"
    assert jobs["publish"]["permissions"]["id-token"] == "write"
    assert "password" not in text
    for script in re.findall(r"scripts/\S+\.(?:py|sh)", text):
        assert (ROOT / script).is_file()


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == _version.__version__


@pytest.mark.parametrize(
    "form", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda form: form.stem
)
def test_forms_of_issues_are_complete(form: Path) -> None:
    text = form.read_text()
    described = yaml.safe_load(text)
    if form.stem == "config":
        assert all(link["url"].startswith("https://") for link in described["contact_links"])
        return
    assert described["name"]
    assert described["description"]
    identifiers = [field["id"] for field in described["body"]]
    assert len(set(identifiers)) == len(identifiers)
    assert all(field["attributes"]["label"] for field in described["body"])
