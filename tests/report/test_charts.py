"""The charts of the page: where marks lie, and what is said to those who do not see them."""

from __future__ import annotations

import re
from xml.etree.ElementTree import Element, fromstring

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.config import LoaderConfig, ProcessSettings
from autotune.profiles.schema import TunedProfile
from autotune.profiles.search_record import SearchEvidence, TrialSummary
from autotune.report.axes import PLOT, make_scale
from autotune.report.html import render_html
from autotune.report.throughput_chart import differs_only_in_workers
from tests.builders import (
    make_config,
    make_evidence,
    make_failed_line,
    make_full_profile,
    make_profile,
    make_profile_result,
    make_trial_line,
)

HOSTILE = "<script>alert('1')</script>\"&--"
CHARTS = ("throughput", "ablation")


def draw(profile: TunedProfile) -> dict[str, Element]:
    """Parse the charts of a page by name; they must be well formed and must not bring along what their texts hold."""
    drawings = re.findall(r'<svg[^>]*class="chart".*?</svg>', render_html(profile, "dltune.json"), re.DOTALL)
    charts = [fromstring(drawing) for drawing in drawings]
    assert all(chart.find(".//script") is None for chart in charts)
    return {chart.get("id", ""): chart for chart in charts}


def draw_throughput(*trials: TrialSummary) -> Element:
    """Draw the chart of these trials, without a curve."""
    return draw(make_full_profile(evidence=SearchEvidence(trials=trials)))["throughput"]


def find(chart: Element, kind: str) -> list[Element]:
    """List the elements of which every word of `kind` is a class."""
    wanted = set(kind.split())
    return [element for element in chart.iter() if wanted <= set(element.get("class", "").split())]


def list_texts(chart: Element) -> list[str]:
    return [element.text or "" for element in chart.iter("text")]


def measure(bars: list[Element]) -> list[float]:
    return [float(bar.get("width", "")) for bar in bars]


@pytest.mark.parametrize("name", CHARTS)
def test_every_chart_has_a_name_and_says_what_it_shows(name: str) -> None:
    chart = draw(make_full_profile())[name]
    assert chart.get("role") == "img"
    named = {element.get("id"): element.text for element in chart}
    assert named[chart.get("aria-labelledby")]
    assert len(named[chart.get("aria-describedby")] or "") > 20


@pytest.mark.parametrize("name", CHARTS)
def test_no_chart_carries_a_style_that_the_pages_policy_would_refuse(name: str) -> None:
    assert [element for element in draw(make_full_profile())[name].iter() if "style" in element.attrib] == []


@given(st.floats(min_value=1e-3, max_value=1e9))
def test_a_scale_holds_what_it_was_made_for_and_ends_at_a_round_number(high: float) -> None:
    scale = make_scale(high, 0, 100)
    assert scale.high >= high * (1 - 1e-6)
    assert 2 <= len(scale.ticks) <= 7
    assert float(f"{scale.ticks[1]:.1g}") == pytest.approx(scale.ticks[1])


def test_a_scale_of_nothing_is_a_scale_still() -> None:
    assert make_scale(0, 0, 100).place(0) == 0


def test_a_value_outside_a_scale_is_placed_at_its_end() -> None:
    scale = make_scale(10, 50, 150)
    assert (scale.place(-3), scale.place(5), scale.place(99)) == (50, 100, 150)


def test_every_trial_has_a_mark_and_every_interval_is_drawn() -> None:
    chart = draw(make_full_profile())["throughput"]
    assert len(find(chart, "mark alike")) == 2
    assert len(find(chart, "mark other")) == 2  # of another batch size than the answer
    assert len(find(chart, "mark failed")) == 1
    assert len(find(chart, "interval")) == 4 + 1
    assert len(find(chart, "mark answer")) == len(find(chart, "mark before")) == 1
    assert len(find(chart, "curve")) == len(find(chart, "band")) == 1


def test_a_faster_trial_lies_higher_and_one_with_more_workers_further_right() -> None:
    slow, fast = make_config(2), make_config(8)
    trials = (make_trial_line(1, slow, samples_per_second=500), make_trial_line(2, fast, samples_per_second=1500))
    chart = draw_throughput(*trials)
    first, second = chart.iter("circle")
    assert float(first.get("cx", "")) < float(second.get("cx", ""))
    assert float(first.get("cy", "")) > float(second.get("cy", ""))


def test_trials_with_as_many_workers_lie_side_by_side() -> None:
    trials = tuple(make_trial_line(number, make_config(4, prefetch)) for number, prefetch in enumerate((1, 2, 4, 8)))
    chart = draw_throughput(*trials)
    places = [element.get("cx") for element in chart.iter("circle")]
    assert len(set(places)) == len(places) == 4


def test_nothing_is_drawn_outside_the_plot() -> None:
    wild = make_trial_line(1, make_config(4), samples_per_second=1800, relative_error=5.0)
    chart = draw_throughput(wild)
    (trial,) = chart.iter("circle")
    assert PLOT.left <= float(trial.get("cx", "")) <= PLOT.right
    ends = re.match(r"M\S+ (\S+)V([\d.]+)", find(chart, "interval other")[0].get("d", ""))
    assert ends is not None
    assert PLOT.top <= float(ends[2]) < float(trial.get("cy", "")) < float(ends[1]) <= PLOT.bottom


def test_the_ceiling_is_drawn_where_it_is_near_and_left_out_where_it_would_flatten_the_rest() -> None:
    near, far = (
        draw(make_full_profile(result=make_profile_result(upper_bound_samples_per_second=ceiling)))["throughput"]
        for ceiling in (2000.0, 9e4)
    )
    assert len(find(near, "ceiling")) == 1
    assert find(far, "ceiling") == []


def test_a_baseline_that_was_kept_is_drawn_once() -> None:
    kept = make_full_profile(result=make_profile_result(verdict="no_change", speedup=1.0, speedup_ci95=(1.0, 1.0)))
    chart = draw(kept)["throughput"]
    assert find(chart, "mark before") == []
    assert any(text.startswith("kept") for text in list_texts(chart))


def test_a_trial_is_like_the_answer_when_only_the_workers_differ() -> None:
    profile = make_profile(dataloader=make_config(4, 2, 64, persistent_workers=True).dataloader)
    shared = ProcessSettings(sharing_strategy="file_system")

    def alike(config: LoaderConfig) -> bool:
        return differs_only_in_workers(make_trial_line(1, config), profile)

    assert alike(make_config(8, 2, 64, persistent_workers=True))
    assert alike(make_config(0, 2, 64))
    assert not alike(make_config(8, 4, 64, persistent_workers=True))
    assert not alike(make_config(0, 2, 32))
    assert not alike(make_config(8, 2, 64, shared, persistent_workers=True))


def test_bars_are_as_long_as_what_they_stand_for() -> None:
    chart = draw(make_full_profile())["ablation"]
    before, after_gain, after_loss, last = measure(find(chart, "bar before"))
    (first_gain, last_gain), (loss,) = measure(find(chart, "bar gained")), measure(find(chart, "bar lost"))
    assert after_gain == before
    assert first_gain == pytest.approx(before / 2, abs=0.1)  # from 1,000/s to 1,500/s
    assert after_loss == last == pytest.approx(1.35 * before, abs=0.1)
    assert loss == pytest.approx(0.15 * before, abs=0.2)
    assert last_gain == pytest.approx(0.45 * before, abs=0.2)


def test_the_interval_of_each_setting_lies_around_the_end_of_its_bar() -> None:
    chart = draw(make_full_profile())["ablation"]
    (scale,) = {width / 1000 for width in measure(find(chart, "bar before"))[:1]}
    ends = [re.match(r"M(\S+) \d+H([\d.]+)M", path.get("d", "")) for path in find(chart, "interval step")]
    assert len(ends) == 3
    for end, rate in zip(ends, (1500, 1350, 1800), strict=True):
        assert end is not None
        assert float(end[1]) < rate * scale < float(end[2]) <= PLOT.width


def test_a_step_without_an_interval_is_a_bar_alone() -> None:
    steps = tuple(step.model_copy(update={"speedup_ci95": None}) for step in make_full_profile().result.ablation)
    chart = draw(make_full_profile(result=make_profile_result(ablation=steps)))["ablation"]
    assert find(chart, "interval") == []
    assert len(find(chart, "bar gained")) == 2


def test_a_setting_that_cost_throughput_is_drawn_as_a_loss() -> None:
    chart = draw(make_full_profile())["ablation"]
    assert len(find(chart, "bar gained")) == 2
    assert len(find(chart, "bar lost")) == 1
    assert "1,350/s   0.90x" in list_texts(chart)
    assert any((title.text or "").endswith("1,350/s   0.90x [0.85-0.95]") for title in chart.iter("title"))


def test_a_setting_within_noise_is_called_so_beside_its_name() -> None:
    steps = [step.model_copy(update={"speedup_ci95": (0.9, 1.6)}) for step in make_full_profile().result.ablation]
    chart = draw(make_full_profile(result=make_profile_result(ablation=tuple(steps))))["ablation"]
    assert "+ persistent_workers=True" in list_texts(chart)
    assert "1,800/s   1.33x, noise" in list_texts(chart)


@pytest.mark.parametrize("changes", [{"ablation": ()}, {"baseline": None, "speedup": None, "speedup_ci95": None}])
def test_without_measured_steps_nothing_is_claimed_of_the_settings(changes: dict[str, object]) -> None:
    assert "ablation" not in draw(make_full_profile(result=make_profile_result(**changes)))


def test_without_recorded_trials_there_is_no_chart_of_them() -> None:
    assert draw(make_profile()) == {}


def test_a_setting_that_is_cut_shows_that_it_was_cut_and_is_told_whole_to_who_points_at_it() -> None:
    long = "sharing_strategy=file_descriptor_and_system"
    steps = [step.model_copy(update={"setting": long}) for step in make_full_profile().result.ablation]
    chart = draw(make_full_profile(result=make_profile_result(ablation=tuple(steps))))["ablation"]
    assert any(re.fullmatch(r"\+ sharing_strategy=file_\w+…", text) for text in list_texts(chart))
    assert any((title.text or "").startswith(f"{long}: 1,800/s") for title in chart.iter("title"))


def make_hostile() -> TunedProfile:
    base = make_profile_result().baseline
    assert base is not None
    steps = [step.model_copy(update={"setting": HOSTILE}) for step in make_full_profile().result.ablation]
    result = make_profile_result(baseline=base.model_copy(update={"description": HOSTILE}), ablation=tuple(steps))
    trials = (make_trial_line(), make_failed_line(2, make_config(), HOSTILE))
    return make_full_profile(result=result, evidence=make_evidence(trials=trials, knob_importance={HOSTILE: 1.0}))


def test_hostile_texts_stay_texts() -> None:
    assert set(draw(make_hostile())) == set(CHARTS)
    drawings = re.findall(r"<svg.*?</svg>", render_html(make_hostile(), "dltune.json"), re.DOTALL)
    assert not any("<script" in drawing for drawing in drawings)
    assert any(HOSTILE in (title.text or "") for title in draw(make_hostile())["ablation"].iter("title"))
