"""The report as a page: what stands in it, and that it can be read."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest

from autotune.config import LoaderConfig
from autotune.profiles.schema import BatchSizeResult, PastResult
from autotune.profiles.search_record import SearchEvidence
from autotune.report.summary import describe_headline, format_factor, list_figures, list_settings
from autotune.report.usage import usage_snippet_without_dltune
from tests.builders import make_config, make_full_profile, make_profile, make_profile_result, make_trial_line
from tests.report.page_reader import read


def test_the_answer_stands_first() -> None:
    text = read(make_full_profile()).text
    for words in ("1.80 × the throughput of PyTorch's defaults", "1,800 samples/s", "1,750 to 1,850 (95 %)"):
        assert 0 <= text.index(words) < text.index("Throughput against workers")
    assert 'tuned = autotune.load("dltune.json") loader = tuned.make_loader(dataset, shuffle=True)' in text


def test_all_parts_are_there_when_there_is_something_to_say() -> None:
    page = read(make_full_profile())
    assert page.texts["h2"] == [
        "Paste into your training code",
        "What else would help",
        "Before you use it",
        "The numbers",
        "Throughput against workers",
        "What each setting gave",
        "Where the time of a batch goes",
        "Which settings matter",
        "The confirmation, round by round",
        "Every trial",
        "The same again",
    ]
    assert "--batch-size 32,64" in page.text


def test_a_file_without_evidence_gives_a_report_with_what_there_is() -> None:
    page = read(make_profile())
    assert "written by an earlier dltune" in page.text
    assert "The request was not recorded" in page.text
    assert page.count("table") == 1
    assert "Where the time of a batch goes" in page.texts["h2"]


def test_an_answer_that_was_never_confirmed_says_so() -> None:
    bare = make_profile_result(
        samples_per_second_ci95=None, validation_runs=0, baseline=None, speedup=None, speedup_ci95=None
    )
    text = read(make_full_profile(result=bare)).text
    assert "1,800 samples per second" in text
    assert "not confirmed" in text


def test_a_baseline_that_was_kept_is_the_headline() -> None:
    kept = make_profile_result(verdict="no_change", speedup=1.0, speedup_ci95=(1.0, 1.0))
    assert describe_headline(make_profile(result=kept)) == "Keep PyTorch's defaults"
    assert "no gain beyond noise" in read(make_full_profile(result=kept)).text


def test_the_headline_stands_on_what_was_reached_before_and_how_sure_that_is() -> None:
    assert "1,800 samples/s instead of 1,000; 1.70 to 1.90 × with 95 % certainty" in read(make_full_profile()).text
    unsure = make_profile_result(speedup_ci95=None, validation_runs=0)
    assert "instead of 1,000, not confirmed" in read(make_full_profile(result=unsure)).text


def test_what_binds_the_answer_is_told_with_what_is_advised_or_that_nothing_is() -> None:
    bound = "Bound by the training step; waiting for data takes 10 % of the time."
    assert f"{bound} Use __getitems__." in read(make_full_profile()).text
    assert f"{bound} Nothing beyond the settings stood out." in read(make_profile()).text


def test_settings_that_did_not_change_stand_aside() -> None:
    assert "As before: pin_memory=False , in_order=True" in read(make_full_profile()).text
    kept = make_profile_result(verdict="no_change", speedup=1.0, speedup_ci95=(1.0, 1.0))
    same = make_profile(config=make_config(), result=kept)
    assert "As before" not in read(same).text


def test_the_best_of_each_batch_size_and_earlier_answers_are_tables() -> None:
    rows = tuple(
        BatchSizeResult(batch_size=size, config=make_config(4, 2, size), samples_per_second=rate)
        for size, rate in ((32, 900.0), (64, 1777.0))
    )
    past = PastResult(
        created_at=datetime(2025, 5, 6, tzinfo=UTC),
        config=make_config(2),
        samples_per_second=1234.0,
        torch="2.9.1",
    )
    page = read(make_full_profile(result=make_profile_result(by_batch_size=rows), history=(past,)))
    assert page.count("table") == 5
    assert "1,777/s" in page.text
    assert "2025-05-06 1,234/s num_workers=2 prefetch_factor=2 2.9.1" in page.text


def test_the_rounds_of_the_confirmation_are_shown_as_they_were_measured() -> None:
    text = read(make_full_profile()).text
    assert "990/s 1,000/s 1,010/s" in text
    assert "crashed: it died" in text


def test_a_setting_is_shown_with_what_it_was_before() -> None:
    settings = {setting.name: (setting.value, setting.was) for setting in list_settings(make_profile())}
    assert settings["num_workers"] == ("4", "0")
    assert settings["batch_size"] == ("64", "32")
    assert settings["prefetch_factor"] == ("2", "unset")
    assert settings["persistent_workers"] == ("True", "False")
    assert settings["in_order"] == ("True", None)
    assert settings["sharing_strategy"] == ("file_descriptor", None)


@pytest.mark.parametrize("config", [make_config(), make_config(2, batch_size=None), make_config(3, 4, 16)])
def test_the_code_without_dltune_gives_the_same_arguments(config: LoaderConfig) -> None:
    given: dict[str, Any] = {}
    code = usage_snippet_without_dltune(make_profile(dataloader=config.dataloader))
    exec(code, {"DataLoader": lambda dataset, **kwargs: given.update(kwargs), "dataset": 0, "your_own_batching": {}})
    assert {name: value for name, value in given.items() if name != "shuffle"} == config.loader_kwargs()


@pytest.mark.parametrize(("factor", "text"), [(1.234, "1.23"), (16.66, "16.7"), (123.4, "123")])
def test_a_factor_has_three_digits(factor: float, text: str) -> None:
    assert format_factor(factor) == text


def test_a_number_is_left_out_where_it_is_not_known() -> None:
    known = [figure.label for figure in list_figures(make_profile())]
    bare = make_profile_result(
        upper_bound_samples_per_second=None, baseline=None, speedup=None, speedup_ci95=None, peak_host_bytes=0
    )
    unknown = [figure.label for figure in list_figures(make_profile(result=bare))]
    assert known == ["Throughput", "Speed-up", "Waiting for data", "Of the step's ceiling", "Peak host memory"]
    assert unknown == ["Throughput", "Waiting for data"]


def test_every_symbol_of_a_chart_is_explained_and_no_other() -> None:
    lines = ("trial, all but the workers", "failed or skipped", "expected by the model", "lost", "95 % interval")
    full = read(make_full_profile()).text
    assert all(words in full for words in lines)
    bare = read(make_full_profile(evidence=SearchEvidence(trials=(make_trial_line(1, make_config(4, 8)),)))).text
    assert "something else differs" in bare
    assert not any(words in bare for words in lines[:3])


def test_a_ceiling_far_above_the_chart_is_told_beside_it() -> None:
    far = make_full_profile(result=make_profile_result(upper_bound_samples_per_second=9e4))
    assert "The step alone would reach 90,000/s, far above this chart." in read(far).text
    assert "far above" not in read(make_full_profile()).text


def read_colours() -> dict[str, dict[str, str]]:
    """Read the colours of both schemes from the page's style."""
    style = "".join(read(make_profile()).texts["style"])
    light, dark = re.findall(r":root \{([^}]*)\}", style)[:2]
    schemes = {"light": dict(re.findall(r"--([\w-]+): (#\w{6})", light))}
    schemes["dark"] = schemes["light"] | dict(re.findall(r"--([\w-]+): (#\w{6})", dark))
    return schemes


def measure_contrast(one: str, other: str) -> float:
    """Give the contrast of two colours as WCAG 2.2 defines it."""

    def shine(colour: str) -> float:
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((shine(one), shine(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_stand_out_from_what_is_behind_them(scheme: str) -> None:
    colours = read_colours()[scheme]
    for ground in ("page", "card", "code", "note"):
        assert measure_contrast(colours["text"], colours[ground]) >= 7, ground
        assert measure_contrast(colours["muted"], colours[ground]) >= 4.5, ground
    assert measure_contrast(colours["answer"], colours["card"]) >= 4.5


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_marks_and_bars_stand_out_from_the_card(scheme: str) -> None:
    colours = read_colours()[scheme]
    marks = ("answer", "trial", "bad", "before")
    for mark in (*marks, "strong-line"):
        assert measure_contrast(colours[mark], colours["card"]) >= 3, mark
