"""Hooks of MkDocs: files outside docs/ become pages of the site, and other links lead to the repository.

README.md is the first page. A link is read as it is on the repository's own pages, from the folder of its file.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
    "docker/README.md": "docker.md",
}
"""Files of the repository, and the pages of the site that they become."""
_SOURCES = {page: source for source, page in PAGES.items()}
_LINK = re.compile(r"(?P<before>\]\()(?P<target>(?!https?://|mailto:|#)[^)\s#]+)(?P<anchor>#[^)\s]*)?(?=\))")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages whose files lie outside docs/."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite the links of a page, but not those within code."""
    name = page.file.src_uri
    source = _SOURCES.get(name, f"docs/{name}")
    repository = str(config.repo_url).rstrip("/")

    def rewritten(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), match["target"]))
        anchor = match["anchor"] or ""
        return f"{match['before']}{_address(path, name, repository, files)}{anchor}"

    pieces: list[str] = []
    at = 0
    for code in _FENCE.finditer(markdown):
        pieces += [_LINK.sub(rewritten, markdown[at : code.start()]), code[0]]
        at = code.end()
    return "".join([*pieces, _LINK.sub(rewritten, markdown[at:])])


def _address(path: str, page: str, repository: str, files: Any) -> str:
    """Where a file of the repository is found from a page: on the site, or else in the repository."""
    inside = PAGES.get(path, path.removeprefix("docs/") if path.startswith("docs/") else None)
    if inside is not None and files.get_file_from_path(inside) is not None and not inside.endswith(".py"):
        return posixpath.relpath(inside, posixpath.dirname(page) or ".")
    kind = "tree" if (ROOT / path).is_dir() else "raw" if path.endswith((".svg", ".png")) else "blob"
    return f"{repository}/{kind}/main/{path}"
