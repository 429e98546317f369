"""The report as a page: its sections, its chart, and hostile files that stay text."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any
from xml.etree.ElementTree import Element, fromstring

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.profiles.schema import ProfileResult, SearchRecord, TunedProfile
from autotune.report.render import make_ticks, render_html, render_markdown, render_profile, render_summary
from tests.builders import make_config, make_full_profile, make_profile_result, make_search_record, make_trial_summary
from tests.report.hostile import HOSTILE, make_hostile_profile

VOID = {"meta", "img", "br", "link"}
NO_CHANGE: dict[str, Any] = {"decision": "no_change", "speedup": 1.0, "speedup_ci95": (1.0, 1.0)}


class Page(HTMLParser):
    """A page: its elements with their attributes, and the text in each kind of element."""

    def __init__(self, profile: TunedProfile, file: str = "dltune.json") -> None:
        super().__init__()
        self.source = render_html(profile, file)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(self.source)
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

    def read_text(self) -> str:
        return " ".join(" ".join(self.texts["main"]).split())


def draw(profile: TunedProfile) -> tuple[Element, Element]:
    """Parse the chart and the bar of a page, which must be well formed."""
    chart, bar = (fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", render_html(profile, "x"), re.DOTALL))
    return chart, bar


def find(chart: Element, kind: str) -> list[Element]:
    return [element for element in chart.iter() if element.get("class") == kind]


def test_the_result_comes_first_and_the_sections_follow() -> None:
    page = Page(make_full_profile())
    assert page.texts["h1"] == ["1.80x faster: 1,000 → 1,800 samples/s"]
    sections = ["Metrics", "Contribution of each setting", "Validation runs", "All trials", "Run"]
    assert page.texts["h2"] == ["Tips", *sections]
    first = page.read_text()[: page.read_text().index("Tips")]
    for words in ("95% CI 1,750-1,850", "num_workers 0 4", "The samples differ in size.", "num_workers=4", "waiting"):
        assert words in first


def test_a_baseline_that_is_kept_is_the_headline_and_is_drawn_once() -> None:
    profile = make_full_profile(result=make_profile_result(**NO_CHANGE))
    chart, bar = draw(profile)
    assert Page(profile).texts["h1"] == [
        "No change recommended: no other settings were certainly faster than PyTorch's defaults"
    ]
    assert find(chart, "baseline") == []
    assert [element.tag.endswith("rect") for element in find(bar, "waiting")].count(True) == 1


def test_every_trial_is_a_mark_and_the_chosen_point_has_an_interval() -> None:
    chart, _ = draw(make_full_profile())
    counts = {kind: len(find(chart, kind)) for kind in ("trial", "failed", "baseline", "chosen", "interval", "curve")}
    assert counts == {"trial": 4, "failed": 1, "baseline": 1, "chosen": 1, "interval": 1, "curve": 1}
    assert len(find(chart, "curve")[0].get("points", "").split()) == 4


def test_a_faster_trial_is_higher_and_one_with_more_workers_is_further_right() -> None:
    rates = {2: 500.0, 8: 1500.0}
    trials = tuple(make_trial_summary(n, make_config(n), samples_per_second=rate) for n, rate in rates.items())
    chart, _ = draw(make_full_profile(search=make_search_record(trials=trials)))
    (left, low), (right, high) = ([float(mark.get(name, "")) for name in ("cx", "cy")] for mark in find(chart, "trial"))
    assert high < low
    assert (right - 58) == pytest.approx(4 * (left - 58), abs=0.5)  # 58 is where the axis starts


def test_a_baseline_with_the_most_workers_is_within_the_chart() -> None:
    result = make_profile_result()
    assert result.baseline is not None
    baseline = result.baseline.model_copy(update={"config": make_config(512)})
    chart, _ = draw(make_full_profile(result=result.model_copy(update={"baseline": baseline})))
    (mark,) = find(chart, "baseline")
    assert float(mark.get("transform", "").partition("(")[2].split()[0]) <= 58 + 350


def test_bars_are_as_long_as_the_seconds() -> None:
    _, bar = draw(make_full_profile())
    waiting, step = (
        [float(one.get("width", "")) for one in find(bar, kind) if one.tag == "rect"] for kind in ("waiting", "step")
    )
    assert waiting[0] == pytest.approx(0.5 * 420, abs=0.2)
    assert waiting[0] + step[0] == pytest.approx(420, abs=0.2)
    assert waiting[1] + step[1] == pytest.approx(420 / 1.8, abs=0.2)
    assert "before 64.0 ms:" in "".join(bar.itertext())


@given(st.floats(min_value=1e-3, max_value=1e9))
def test_ticks_are_few_round_numbers_that_cover_the_largest_value(high: float) -> None:
    ticks = make_ticks(high)
    assert ticks[-1] >= high * (1 - 1e-6)
    assert 2 <= len(ticks) <= 6
    assert float(f"{ticks[1]:.1g}") == pytest.approx(ticks[1])


def test_hostile_text_neither_runs_nor_adds_an_element() -> None:
    page, plain = Page(make_hostile_profile(), HOSTILE), Page(make_full_profile())
    assert [page.count(tag) for tag in ("script", "style", "img")] == [1, 1, 0]
    assert page.texts["script"] == plain.texts["script"]
    assert page.read_text().count("<script>alert('1')</script>") > 10
    assert "{{ 7 * 7 }}" in page.read_text()
    for tag, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on") or name in ("style", "src", "href")], tag


def test_the_policy_allows_the_pages_own_script_and_style_and_nothing_else() -> None:
    metas = [attributes for tag, attributes in Page(make_full_profile()).elements if tag == "meta"]
    (policy,) = [meta["content"] for meta in metas if meta.get("http-equiv") == "Content-Security-Policy"]
    digest, nothing = r"'sha256-[\w+/]{43}='", "base-uri 'none'; form-action 'none'"
    assert re.fullmatch(f"default-src 'none'; style-src {digest}; script-src {digest}; {nothing}", policy or "")


RATES = st.just(0.0) | st.floats(min_value=1e-6, max_value=1e12)
INTERVALS = st.none() | st.tuples(RATES, RATES).map(sorted).map(tuple)
BYTES = st.just(0) | st.integers(min_value=1, max_value=1 << 50)
CONFIGS = st.builds(make_config, st.integers(0, 500), st.integers(1, 9), st.none() | st.integers(1, 10**6))
TRIALS = st.builds(
    make_trial_summary,
    st.integers(0, 10**6),
    CONFIGS,
    status=st.sampled_from(["completed", "failed"]),
    samples_per_second=st.none() | RATES,
    relative_error=st.none() | RATES,
    predicted_samples_per_second=RATES,
    peak_host_bytes=BYTES,
)
SEARCHES = st.builds(
    make_search_record,
    trials=st.lists(TRIALS, max_size=5).map(tuple),
    scaling=st.dictionaries(st.integers(0, 500), RATES, max_size=4),
    batch_samples=st.integers(1, 10**6),
)
RESULTS = st.builds(
    make_profile_result,
    samples_per_second=RATES,
    samples_per_second_ci95=INTERVALS,
    speedup=st.none() | RATES,
    upper_bound_samples_per_second=st.none() | RATES,
    decision=st.sampled_from(["faster", "no_change"]),
    peak_host_bytes=BYTES,
)


@given(search=SEARCHES, result=RESULTS, config=CONFIGS)
@settings(max_examples=60)
def test_every_valid_file_has_a_report_in_every_form(search: SearchRecord, result: ProfileResult, config: Any) -> None:
    profile = make_full_profile(search=search, result=result, config=config)
    page = Page(profile)
    assert not re.search(r'="[^"]*\b(nan|inf)\b', page.source)
    assert "Run" in page.texts["h2"]
    assert render_markdown(profile, "dltune.json").startswith("### dltune")
    assert render_profile(profile, "dltune.json")
    assert render_summary(profile, "dltune.json")
