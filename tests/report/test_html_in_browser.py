"""The report in a browser: light and dark, on a phone and on a desk, with mouse and with keyboard."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from autotune.profiles.schema import TunedProfile
from autotune.report.render import render_html
from tests.builders import make_full_profile
from tests.report.hostile import make_hostile_profile

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Dialog, Page

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (make test-all installs it)")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)
PHONE = {"width": 360, "height": 740}
DESK = {"width": 1280, "height": 900}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (apt-get install chromium)"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        yield started
        started.close()


class Visit:
    """An open page, with its messages and requests."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.messages: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: self.messages.append(message.text))
        page.on("pageerror", lambda error: self.messages.append(str(error)))
        page.on("dialog", self._dismiss)
        page.on("request", lambda request: self.requests.append(request.url))

    def _dismiss(self, dialog: Dialog) -> None:
        self.messages.append(dialog.message)
        dialog.dismiss()

    def open(self, profile: TunedProfile, folder: Path) -> None:
        path = folder / "report.html"
        path.write_text(render_html(profile, "dltune.json"), encoding="utf-8")
        self.page.goto(path.as_uri())
        assert self.requests == [path.as_uri()]


@pytest.fixture
def visit(browser: Browser, tmp_path: Path) -> Iterator[Visit]:
    with browser.new_context(viewport=DESK) as context:
        found = Visit(context.new_page())
        found.open(make_full_profile(), tmp_path)
        yield found
        assert found.messages == []
        assert len(found.requests) == 1


@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
def test_the_result_both_charts_and_the_code_to_paste_are_in_the_first_screen(
    visit: Visit, size: dict[str, int]
) -> None:
    page = visit.page
    page.set_viewport_size(size)
    charts = ("Throughput (samples/s) over workers", "Where the time for 64 samples goes")
    parts = [page.get_by_role("img", name=name, exact=True) for name in charts]
    parts += [
        page.get_by_role("heading", level=1),
        page.get_by_text("95% CI 1,750-1,850"),
        page.get_by_role("tabpanel"),
    ]
    parts += [page.get_by_role("table").first, page.get_by_role("list", name="Warnings")]
    boxes = [part.first.bounding_box() for part in parts]
    bottoms = [box["y"] + box["height"] for box in boxes if box is not None and box["height"] > 10]
    assert len(bottoms) == len(parts)
    assert max(bottoms) <= size["height"]
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]


def test_the_keyboard_switches_the_tabs_and_the_button_copies_the_code_that_is_shown(visit: Visit) -> None:
    tabs = visit.page.get_by_role("tablist", name="Training code").get_by_role("tab")
    panel = visit.page.get_by_role("tabpanel")
    assert panel.inner_text().startswith("loader = DataLoader(")
    tabs.first.focus()
    for key, chosen in (("ArrowRight", 1), ("ArrowRight", 0), ("ArrowLeft", 1), ("Home", 0), ("End", 1)):
        visit.page.keyboard.press(key)
        assert [tab.get_attribute("aria-selected") for tab in tabs.all()].index("true") == chosen
        assert tabs.nth(chosen).evaluate("element => element === document.activeElement")
    assert panel.count() == 1
    assert "autotune.load" in panel.inner_text()
    visit.page.get_by_role("button", name="Copy").click()
    visit.page.context.grant_permissions(["clipboard-read"])
    assert visit.page.evaluate("navigator.clipboard.readText()").startswith("import autotune\n")


def test_nothing_of_a_hostile_file_runs(browser: Browser, tmp_path: Path) -> None:
    with browser.new_context(viewport=PHONE) as context:
        visit = Visit(context.new_page())
        visit.open(make_hostile_profile(), tmp_path)
        visit.page.wait_for_timeout(200)
        assert visit.messages == []
        assert len(visit.requests) == 1
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        assert "alert" in visit.page.get_by_role("list", name="Warnings").inner_text()
