"""Reads a report as a page."""

from __future__ import annotations

from html.parser import HTMLParser

from autotune.profiles.schema import TunedProfile
from autotune.report.html import render_html

VOID = {"meta", "img", "br", "link"}


class Reader(HTMLParser):
    """Reads a page: its elements with their attributes, and the text in each kind of element."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(page)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        for tag in set(self._open):
            self.texts.setdefault(tag, []).append(data)

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.elements)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts["main"]).split())


def read(profile: TunedProfile, file: str = "dltune.json") -> Reader:
    return Reader(render_html(profile, file))
