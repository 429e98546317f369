"""The drawings of the report: where marks lie, and what is said to those who do not see them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree.ElementTree import Element, fromstring

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.config import LoaderConfig, ProcessSettings
from autotune.profiles.schema import SearchEvidence, TunedProfile
from autotune.report.bars import draw_ablation, draw_batch_time, draw_importance
from autotune.report.charts import draw_memory, draw_throughput, is_alike
from autotune.report.svg import BOTTOM, LEFT, RIGHT, TOP, Bar, Row, draw_rows, make_doubling_scale, make_scale, shorten
from tests.builders import (
    GIB,
    MIB,
    make_config,
    make_evidence,
    make_failed_line,
    make_full_profile,
    make_profile,
    make_profile_result,
    make_trial_line,
)

HOSTILE = "<script>alert('1')</script>\"&--"


def read(drawing: str | None) -> Element:
    """Parse a drawing, which must be well formed and must not bring along what its texts hold."""
    assert drawing is not None
    chart = fromstring(drawing)
    assert chart.tag == "svg"
    assert chart.find(".//script") is None
    return chart


def find(chart: Element, kind: str) -> list[Element]:
    """List the elements of which every word of `kind` is a class."""
    wanted = set(kind.split())
    return [element for element in chart.iter() if wanted <= set(element.get("class", "").split())]


def list_texts(chart: Element) -> list[str]:
    return [element.text or "" for element in chart.iter("text")]


def list_all() -> Iterator[tuple[str, str | None]]:
    """Draw every chart of a profile that has everything."""
    profile, evidence = make_full_profile(), make_evidence()
    yield "throughput", draw_throughput(profile, evidence)
    yield "memory", draw_memory(profile, evidence)
    yield "batch-time", draw_batch_time(profile)
    yield "ablation", draw_ablation(profile)
    yield "importance", draw_importance(evidence)


@pytest.mark.parametrize(("name", "drawing"), list(list_all()), ids=[name for name, _ in list_all()])
def test_every_chart_has_a_name_and_says_what_it_shows(name: str, drawing: str | None) -> None:
    chart = read(drawing)
    assert chart.get("role") == "img"
    named = {element.get("id"): element.text for element in chart}
    assert named[chart.get("aria-labelledby")]
    assert len(named[chart.get("aria-describedby")] or "") > 20
    assert chart.get("id") == name


@pytest.mark.parametrize(("name", "drawing"), list(list_all()), ids=[name for name, _ in list_all()])
def test_no_chart_carries_a_style_that_the_pages_policy_would_refuse(name: str, drawing: str | None) -> None:
    assert [element for element in read(drawing).iter() if "style" in element.attrib] == []


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


def test_a_doubling_scale_gives_equal_room_to_equal_factors() -> None:
    scale = make_doubling_scale(100 * MIB, 9 * GIB, 0, 100)
    assert scale.low <= 100 * MIB < 9 * GIB <= scale.high
    assert scale.place(2 * GIB) - scale.place(GIB) == pytest.approx(scale.place(GIB) - scale.place(GIB // 2))
    assert scale.place(0) == 0


def test_every_trial_has_a_mark_and_every_interval_is_drawn() -> None:
    chart = read(draw_throughput(make_full_profile(), make_evidence()))
    assert len(find(chart, "mark alike")) == 2
    assert len(find(chart, "mark other")) == 2  # of another batch size than the answer
    assert len(find(chart, "mark failed")) == 1
    assert len(find(chart, "interval")) == 4 + 1
    assert len(find(chart, "mark answer")) == len(find(chart, "mark before")) == 1
    assert len(find(chart, "curve")) == len(find(chart, "band")) == 1


def test_a_faster_trial_lies_higher_and_one_with_more_workers_further_right() -> None:
    slow, fast = make_config(2), make_config(8)
    trials = (make_trial_line(1, slow, samples_per_second=500), make_trial_line(2, fast, samples_per_second=1500))
    chart = read(draw_throughput(make_profile(), SearchEvidence(trials=trials)))
    first, second = (element for element in chart.iter("circle"))
    assert float(first.get("cx", "")) < float(second.get("cx", ""))
    assert float(first.get("cy", "")) > float(second.get("cy", ""))


def test_trials_with_as_many_workers_lie_side_by_side() -> None:
    trials = tuple(make_trial_line(number, make_config(4, prefetch)) for number, prefetch in enumerate((1, 2, 4, 8)))
    chart = read(draw_throughput(make_profile(), SearchEvidence(trials=trials)))
    places = [element.get("cx") for element in chart.iter("circle")]
    assert len(set(places)) == len(places) == 4


def test_nothing_is_drawn_outside_the_plot() -> None:
    wild = make_trial_line(1, make_config(4), samples_per_second=1800, relative_error=5.0)
    chart = read(draw_throughput(make_full_profile(), make_evidence(trials=(wild,))))
    (trial,) = chart.iter("circle")
    assert LEFT <= float(trial.get("cx", "")) <= RIGHT
    ends = re.match(r"M\S+ (\S+)V([\d.]+)", find(chart, "interval other")[0].get("d", ""))
    assert ends is not None
    assert TOP <= float(ends[2]) < float(trial.get("cy", "")) < float(ends[1]) <= BOTTOM


def test_the_ceiling_is_drawn_where_it_is_near_and_left_out_where_it_would_flatten_the_rest() -> None:
    near, far = (
        make_full_profile(result=make_profile_result(ceiling_samples_per_second=ceiling)) for ceiling in (2000.0, 9e4)
    )
    assert len(find(read(draw_throughput(near, make_evidence())), "ceiling")) == 1
    assert find(read(draw_throughput(far, make_evidence())), "ceiling") == []


def test_a_baseline_that_was_kept_is_drawn_once() -> None:
    kept = make_full_profile(result=make_profile_result(verdict="keep", speedup=1.0, speedup_ci95=(1.0, 1.0)))
    chart = read(draw_throughput(kept, make_evidence()))
    assert find(chart, "mark before") == []
    assert any(text.startswith("kept") for text in list_texts(chart))


def test_a_trial_is_like_the_answer_when_only_the_workers_differ() -> None:
    profile = make_profile(dataloader=make_config(4, 2, 64, persistent_workers=True).dataloader)
    shared = ProcessSettings(sharing_strategy="file_system")

    def alike(config: LoaderConfig) -> bool:
        return is_alike(make_trial_line(1, config), profile)

    assert alike(make_config(8, 2, 64, persistent_workers=True))
    assert alike(make_config(0, 2, 64))
    assert not alike(make_config(8, 4, 64, persistent_workers=True))
    assert not alike(make_config(0, 2, 32))
    assert not alike(make_config(8, 2, 64, shared, persistent_workers=True))


def test_memory_is_drawn_with_both_limits_and_what_the_answer_uses() -> None:
    chart = read(draw_memory(make_full_profile(), make_evidence()))
    assert "limit of host memory 8.0 GiB" in list_texts(chart)
    assert "limit of /dev/shm 4.0 GiB" in list_texts(chart)
    assert len(find(chart, "mark alike")) == 4
    assert len(find(chart, "mark shm")) == 3
    assert len(find(chart, "mark answer")) == 2


def test_where_no_memory_was_sampled_there_is_no_chart_of_it() -> None:
    blind = make_full_profile(result=make_profile_result(peak_host_bytes=0, peak_shm_bytes=0))
    trials = (make_trial_line(1, peak_host_bytes=0, peak_shm_bytes=0),)
    assert draw_memory(blind, make_evidence(trials=trials)) is None


def test_the_time_of_a_batch_is_split_before_and_after() -> None:
    texts = list_texts(read(draw_batch_time(make_full_profile())))
    assert "fetch 60.0 ms · collate 4.0 ms · send 1.0 ms · step 32.0 ms" in texts
    assert "waiting for data 44.8 ms · step and the rest 19.2 ms" in texts  # 64 samples at 1,000/s, 70 % waiting
    assert "waiting for data 3.6 ms · step and the rest 32.0 ms" in texts  # at 1,800/s, 10 % waiting


def test_without_evidence_the_time_is_that_of_the_tuned_batch() -> None:
    texts = list_texts(read(draw_batch_time(make_profile())))
    assert texts.count("64.0 ms") == 1
    assert not any("collate" in text for text in texts)


def test_bars_are_as_long_as_what_they_stand_for() -> None:
    rows = [
        Row(label="a", value="1", bars=(Bar(length=1, kind="bar"),)),
        Row(label="b", value="4", bars=(Bar(length=3, kind="bar"), Bar(length=1, kind="bar"))),
    ]
    first, second, third = (float(bar.get("width", "")) for bar in find(read(draw_rows("x", "x", "x", rows)), "bar"))
    assert second == pytest.approx(3 * first, abs=0.1)
    assert third == pytest.approx(first, abs=0.1)


def test_a_setting_that_cost_throughput_is_drawn_as_a_loss() -> None:
    chart = read(draw_ablation(make_full_profile()))
    assert len(find(chart, "bar gained")) == 2
    assert len(find(chart, "bar lost")) == 1
    assert "1,350/s   0.90x [0.85-0.95]" in list_texts(chart)


@pytest.mark.parametrize("changes", [{"ablation": ()}, {"baseline": None, "speedup": None, "speedup_ci95": None}])
def test_without_measured_steps_nothing_is_claimed_of_the_settings(changes: dict[str, object]) -> None:
    assert draw_ablation(make_profile(result=make_profile_result(**changes))) is None


def test_the_most_important_knob_stands_first() -> None:
    evidence = SearchEvidence(knob_importance={"in_order": 0.1, "num_workers": 0.7, "batch_size": 0.2})
    labels = [text for text in list_texts(read(draw_importance(evidence))) if "%" not in text]
    assert labels == ["num_workers", "batch_size", "in_order"]


def make_hostile() -> TunedProfile:
    base = make_profile_result().baseline
    assert base is not None
    steps = [step.model_copy(update={"setting": HOSTILE}) for step in make_full_profile().result.ablation]
    result = make_profile_result(baseline=base.model_copy(update={"description": HOSTILE}), ablation=tuple(steps))
    return make_full_profile(result=result)


def test_hostile_texts_stay_texts() -> None:
    evidence = make_evidence(
        trials=(make_trial_line(), make_failed_line(2, make_config(), HOSTILE)), knob_importance={HOSTILE: 1.0}
    )
    profile = make_hostile()
    for drawing in (
        draw_throughput(profile, evidence),
        draw_memory(profile, evidence),
        draw_ablation(profile),
        draw_importance(evidence),
    ):
        assert "<script" not in (drawing or "")
        read(drawing)


@pytest.mark.parametrize(("text", "short"), [("num_workers", "num_workers"), ("num_workers=12 pin", "num_worke…")])
def test_a_text_that_is_cut_shows_that_it_was_cut(text: str, short: str) -> None:
    assert shorten(text, 11 if text == short else 10) == short
