"""The report in a real browser, in light and dark, on a desk and in a hand, with mouse and with keyboard."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from autotune.profiles.schema import TunedProfile
from autotune.report.html import render_html
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
CHARTS = {"Throughput against workers", "What each setting gave"}
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
    """A page that is looked at, and all that it did besides."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", self._dismiss)
        page.on("request", lambda request: self.requests.append(request.url))

    def _dismiss(self, dialog: Dialog) -> None:
        self.complaints.append(dialog.message)
        dialog.dismiss()

    def open(self, profile: TunedProfile, folder: Path) -> None:
        path = folder / "report.html"
        path.write_text(render_html(profile, "dltune.json"), encoding="utf-8")
        self.page.goto(path.as_uri())
        assert self.requests == [path.as_uri()]

    def read_column(self, heading: str) -> list[str]:
        """Read a column of the table of trials, from top to bottom."""
        headings = self.page.locator("#trial-table th").all_inner_texts()
        column = [text.strip(" \u2009▲▼") for text in headings].index(heading)
        return [row.locator("td").nth(column).inner_text() for row in self.page.locator("#trial-table tbody tr").all()]


@pytest.fixture
def visit(browser: Browser, tmp_path: Path) -> Iterator[Visit]:
    with browser.new_context(viewport=DESK) as context:
        found = Visit(context.new_page())
        found.open(make_full_profile(), tmp_path)
        yield found
        assert found.complaints == []


def test_the_page_asks_for_nothing_and_complains_of_nothing(visit: Visit) -> None:
    visit.page.wait_for_timeout(200)
    assert len(visit.requests) == 1
    assert visit.complaints == []


def test_every_chart_can_be_found_by_its_name(visit: Visit) -> None:
    for name in CHARTS:
        chart = visit.page.get_by_role("img", name=name, exact=True)
        assert chart.count() == 1, name
        box = chart.bounding_box()
        assert box is not None
        assert box["height"] > 60
    assert visit.page.get_by_role("img").count() == len(CHARTS)


def test_the_table_is_sorted_by_the_keyboard_alone(visit: Visit) -> None:
    button = visit.page.get_by_role("button", name="Samples/s")
    button.focus()
    visit.page.keyboard.press("Enter")
    assert visit.read_column("Samples/s") == ["990", "1,200", "1,750", "1,790", "-"]
    visit.page.keyboard.press("Space")
    assert visit.read_column("Samples/s") == ["1,790", "1,750", "1,200", "990", "-"]


def test_every_heading_is_reached_by_the_tab_key(visit: Visit) -> None:
    headings = visit.page.locator("#trial-table thead button")
    headings.first.focus()
    for number in range(headings.count()):
        assert headings.nth(number).evaluate("element => element === document.activeElement")
        visit.page.keyboard.press("Tab")


def test_the_table_says_what_it_is_sorted_by(visit: Visit) -> None:
    sorted_ones = visit.page.locator("#trial-table th[aria-sort]")
    assert sorted_ones.all_inner_texts()[0].startswith("Trial")
    visit.page.get_by_role("button", name="Workers").click()
    assert sorted_ones.count() == 1
    assert sorted_ones.inner_text().startswith("Workers")
    assert sorted_ones.get_attribute("aria-sort") == "ascending"
    assert visit.read_column("Workers") == ["0", "2", "4", "8", "16"]
    visit.page.get_by_role("button", name="Workers").click()
    assert sorted_ones.get_attribute("aria-sort") == "descending"


def test_words_are_sorted_as_words(visit: Visit) -> None:
    visit.page.get_by_role("button", name="What became of it").click()
    fates = visit.read_column("What became of it")
    assert fates == sorted(fates)


def test_the_page_follows_the_scheme_of_the_reader(visit: Visit) -> None:
    grounds = []
    for scheme in ("light", "dark"):
        visit.page.emulate_media(color_scheme=scheme)
        grounds.append(visit.page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert grounds == ["rgb(244, 245, 247)", "rgb(14, 18, 22)"]


def test_paper_is_white_even_for_those_who_read_in_the_dark(visit: Visit) -> None:
    visit.page.emulate_media(color_scheme="dark", media="print")
    assert (
        visit.page.evaluate("getComputedStyle(document.querySelector('.card')).backgroundColor") == "rgb(255, 255, 255)"
    )


@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
def test_how_much_faster_which_settings_what_to_paste_and_what_else_would_help_are_in_the_first_screen(
    visit: Visit, size: dict[str, int]
) -> None:
    visit.page.set_viewport_size(size)
    answers = (
        visit.page.get_by_role("heading", level=1),
        visit.page.get_by_role("list", name="Settings"),
        visit.page.get_by_label("Training code", exact=True),
        visit.page.get_by_role("heading", name="What else would help"),
        visit.page.get_by_text(make_full_profile().result.advice[0]),
    )
    boxes = [answer.bounding_box() for answer in answers]
    bottoms = [box["y"] + box["height"] for box in boxes if box is not None]
    assert len(bottoms) == len(answers)
    assert max(bottoms) <= size["height"]


def test_a_phone_scrolls_the_page_downward_only(visit: Visit) -> None:
    visit.page.set_viewport_size(PHONE)
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_on_a_phone_the_table_scrolls_within_its_own_box(visit: Visit) -> None:
    visit.page.set_viewport_size(PHONE)
    box = visit.page.get_by_role("region", name="Every trial")
    inside, outside = box.evaluate("element => [element.scrollWidth, element.clientWidth]")
    assert inside > outside
    box.focus()
    visit.page.keyboard.press("ArrowRight")
    assert await_number(lambda: box.evaluate("element => element.scrollLeft")) > 0


def await_number(read: Callable[[], float]) -> float:
    """Wait up to two seconds for a number above 0; the page's policy forbids that the browser waits for it."""
    deadline = time.monotonic() + 2
    while not (number := read()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return number


def test_letters_of_a_chart_can_be_read_on_a_phone(visit: Visit) -> None:
    visit.page.set_viewport_size(PHONE)
    heights = visit.page.locator("svg.chart text").evaluate_all(
        "texts => texts.map(text => text.getScreenCTM().d * parseFloat(getComputedStyle(text).fontSize))"
    )
    assert min(heights) >= 9


@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
def test_no_text_leaves_its_chart(visit: Visit, size: dict[str, int]) -> None:
    visit.page.set_viewport_size(size)
    places = visit.page.locator("svg.chart text").evaluate_all(
        "texts => texts.map(text => [text.textContent, text.getBBox().x, text.getBBox().x + text.getBBox().width])"
    )
    assert [text for text, left, right in places if left < -3 or right > 423] == []


def test_nothing_of_a_hostile_file_runs(browser: Browser, tmp_path: Path) -> None:
    with browser.new_context(viewport=PHONE) as context:
        visit = Visit(context.new_page())
        visit.open(make_hostile_profile(), tmp_path)
        visit.page.wait_for_timeout(200)
        assert visit.complaints == []
        assert len(visit.requests) == 1
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        assert "alert" in visit.page.locator("h1").inner_text()
