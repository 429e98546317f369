"""Writes the parts of README and pages that stand in the repository again, after a new result was kept."""

from __future__ import annotations

from pages.parts import KEPT, ROOT, fill


def main() -> None:
    """Write them, and name the pages that changed."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        before = page.read_text()
        after = fill(before, KEPT)
        if after != before:
            page.write_text(after)
            print(page.relative_to(ROOT))


if __name__ == "__main__":
    main()
