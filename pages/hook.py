"""What mkdocs calls while it builds the site (mkdocs.yml names this file).

Pages link to files of the repository, which is right for whoever reads them there. The site has no other files than
its own, so what is linked becomes a page of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mkdocs.structure.files import File

from pages.links import list_linked_files, name_page, point_to_pages, write_page
from pages.parts import BUILT, KEPT, ROOT, fill

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add a page for each file of the repository that pages link to."""
    for path in list_linked_files(ROOT):
        files.append(File.generated(config, name_page(path, ROOT), content=write_page(path, ROOT)))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Make the parts of a page, and let its links lead to pages."""
    source = page.file.abs_src_path
    return (
        fill(markdown, {**KEPT, **BUILT})
        if source is None
        else point_to_pages(fill(markdown, {**KEPT, **BUILT}), source, ROOT)
    )
