"""Says whether a tag may be released, and prints its part of CHANGELOG.md.

    python scripts/release_check.py v1.2.3 --repository owner/name

Fails unless the tag is the package's version, CHANGELOG.md has a dated part for it with some text, nothing is left
under "Unreleased", and the package's addresses are those of the repository that releases it.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def problems(root: Path, tag: str, repository: str | None) -> list[str]:
    """Reasons not to release."""
    version_file = (root / "gpujoin" / "_version.py").read_text(encoding="utf-8")
    version = re.search(r'^__version__ = "([^"]+)"', version_file, re.MULTILINE)
    wanted = f"v{version[1]}" if version else "none"
    parts = changelog(root)
    name = tag.removeprefix("v")
    reasons = []
    if tag != wanted:
        reasons.append(f"the tag is {tag}, and the version of the package is {wanted}")
    if not parts.get(name, "").strip():
        reasons.append(f"CHANGELOG.md has no text under '## [{name}] - DATE'")
    if parts.get("Unreleased", "").strip():
        reasons.append("CHANGELOG.md has text under '## [Unreleased]': move it to the version")
    urls = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    if repository is not None and urls["Source"] != f"https://github.com/{repository}":
        reasons.append(f"project.urls of pyproject.toml name {urls['Source']}, and {repository} releases")
    return reasons


def changelog(root: Path) -> dict[str, str]:
    """Text of each part of CHANGELOG.md, by version; of released versions only those with a date."""
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    pieces = re.split(r"^## \[([^\]]+)\](.*)$", text, flags=re.MULTILINE)[1:]
    parts = zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True)
    dated = re.compile(r"\s*-\s*\d{4}-\d{2}-\d{2}\s*")
    return {name: body for name, rest, body in parts if name == "Unreleased" or dated.fullmatch(rest)}


def main(argv: list[str] | None = None) -> int:
    """Check and print; 1 if there is a reason not to release."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tag", help="for example v1.2.3")
    parser.add_argument("--repository", metavar="OWNER/NAME", help="the repository on GitHub that releases")
    arguments = parser.parse_args(argv)
    reasons = problems(ROOT, arguments.tag, arguments.repository)
    for problem in reasons:
        print(f"release_check: {problem}", file=sys.stderr)
    if reasons:
        return 1
    print(changelog(ROOT)[arguments.tag.removeprefix("v")].strip())
    return 0


if __name__ == "__main__":
    sys.exit(main())
