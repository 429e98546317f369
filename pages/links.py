"""Where a link to a file of the repository leads on the site."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

LINK: Final = re.compile(r"(?<=\]\()(?P<path>[^)#\s:]+)(?P<anchor>#[^)\s]*)?(?=\))")
AT_THE_TOP: Final = ("ARCHITECTURE.md", "CHANGELOG.md")  # Markdown outside docs/ that is a page as it is
LANGUAGES: Final = {".py": "python", ".sh": "sh", ".yaml": "yaml"}


def name_page(path: Path, root: Path) -> str:
    """Name the page that a file of the repository has on the site, relative to the site's root."""
    docs = root / "docs"
    if path.is_relative_to(docs):
        return path.relative_to(docs).as_posix()
    if path == root / "README.md":
        return "index.md"
    if path.name in AT_THE_TOP:
        return path.name.lower()
    return f"files/{path.relative_to(root).as_posix()}.md"


def list_linked_files(root: Path) -> list[Path]:
    """List the files outside docs/ that are pages of the site: those at the top, and what any page links to."""
    top = [root / name for name in AT_THE_TOP]
    pages = [*top, *sorted((root / "docs").rglob("*.md"))]
    linked = (target for page in pages for target in _list_targets(page))
    outside = (path for path in linked if path.is_file() and not path.is_relative_to(root / "docs"))
    return sorted({*top, *(path for path in outside if path != root / "README.md")})


def _list_targets(page: Path) -> Iterator[Path]:
    for link in LINK.finditer(page.read_text()):
        yield _resolve(page, link["path"])


def _resolve(page: Path, path: str) -> Path:
    return Path(os.path.normpath(page.parent / path))


def write_page(path: Path, root: Path) -> str:
    """Write the page of a file outside docs/: Markdown as it is, its links put right, all else as a block."""
    text = path.read_text()
    if path.suffix == ".md":
        return point_to_pages(text, path, root)
    return f"# {path.relative_to(root).as_posix()}\n\n````{LANGUAGES.get(path.suffix, 'text')}\n{text.rstrip()}\n````\n"


def point_to_pages(text: str, page: str | Path, root: Path) -> str:
    """Let the links of a page lead to where their files are on the site.

    Args:
        text: The page in Markdown.
        page: Its file, to which links are relative.
        root: Folder of the repository.
    """
    here = posixpath.dirname(name_page(Path(page), root))

    def point(link: re.Match[str]) -> str:
        target = _resolve(Path(page), link["path"])
        if not target.is_file() or not target.is_relative_to(root):
            return link[0]
        return posixpath.relpath(name_page(target, root), here or ".") + (link["anchor"] or "")

    return LINK.sub(point, text)
