"""The report as a page: what stands in it, and that nothing of the file can act in it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import Any
from xml.etree.ElementTree import fromstring

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from autotune.config import LoaderConfig
from autotune.profiles.schema import (
    AblationStep,
    BatchSizeResult,
    BatchTimeBreakdown,
    PastResult,
    ProfileResult,
    ScalingPoint,
    SearchEvidence,
    TunedProfile,
)
from autotune.report.html import render_html
from autotune.report.markdown import render_markdown
from autotune.report.summary import describe_headline, format_factor, list_figures, list_settings
from autotune.report.usage import usage_snippet_without_dltune
from tests.builders import (
    make_config,
    make_evidence,
    make_failed_line,
    make_full_profile,
    make_profile,
    make_profile_result,
    make_request,
    make_trial_line,
)

HOSTILE = "</title></style><script>alert('1')</script><img src=x onerror=\"alert(2)\">{{ 7 * 7 }}&"
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


def test_the_answer_stands_first() -> None:
    text = read(make_full_profile()).text
    for words in ("1.80 × the throughput of PyTorch's defaults", "1,800 samples/s", "1,750 to 1,850 (95 %)"):
        assert 0 <= text.index(words) < text.index("Throughput against workers")
    assert 'autotune.load("dltune.json").loader_kwargs()' in text


def test_all_parts_are_there_when_there_is_something_to_say() -> None:
    page = read(make_full_profile())
    assert page.texts["h2"] == [
        "Before you use it",
        "Throughput against workers",
        "What each setting gave",
        "Where the time of a batch goes",
        "Which settings matter",
        "What would help beyond the settings",
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
        samples_per_second_ci95=None, confirmed_rounds=0, baseline=None, speedup=None, speedup_ci95=None
    )
    text = read(make_full_profile(result=bare)).text
    assert "1,800 samples per second" in text
    assert "not confirmed" in text


def test_a_baseline_that_was_kept_is_the_headline() -> None:
    kept = make_profile_result(verdict="keep", speedup=1.0, speedup_ci95=(1.0, 1.0))
    assert describe_headline(make_profile(result=kept)) == "Keep PyTorch's defaults"
    assert "no gain beyond noise" in read(make_full_profile(result=kept)).text


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
    assert settings["prefetch_factor"] == ("2", "None")
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
        ceiling_samples_per_second=None, baseline=None, speedup=None, speedup_ci95=None, peak_host_bytes=0
    )
    unknown = [figure.label for figure in list_figures(make_profile(result=bare))]
    assert known == ["Throughput", "Speed-up", "Waiting for data", "Of the step's ceiling", "Peak host memory"]
    assert unknown == ["Throughput", "Waiting for data"]


@dataclass(frozen=True)
class Cell:
    text: str
    value: str | None


def read_trials(profile: TunedProfile) -> list[dict[str, Cell]]:
    """Read the table of trials: the cells of each row by their headings."""
    page = render_html(profile, "dltune.json")
    table = fromstring(page[page.index('<table id="trial-table">') :].partition("</table>")[0] + "</table>")
    headings = ["".join(head.itertext()) for head in table.iter("th")]
    rows = [
        [Cell("".join(cell.itertext()), cell.get("data-value")) for cell in row.iter("td")] for row in table.iter("tr")
    ]
    return [dict(zip(headings, row, strict=True)) for row in rows if row]


def read_fates(profile: TunedProfile) -> list[str]:
    return [row["What became of it"].text for row in read_trials(profile)]


def test_every_trial_is_a_row_and_the_answer_is_marked() -> None:
    assert [row["Trial"].text for row in read_trials(make_full_profile())] == ["1", "2", "3", "4", "5"]
    marked = ["This is the answer." in fate for fate in read_fates(make_full_profile())]
    assert marked == [False, True, False, False, False]
    assert ("tr", {"class": "answer"}) in read(make_full_profile()).elements


def test_a_trial_is_told_with_its_settings() -> None:
    row = read_trials(make_full_profile())[1]
    settings = [row[heading].text for heading in ("Workers", "Prefetch", "Batch", "Flags")]
    assert settings == ["4", "2", "64", "persistent"]
    assert [row["±"].text, row["Expected"].text, row["/dev/shm"].text] == ["5 %", "1,400", "32.0 MiB"]


def test_a_rejected_trial_says_why() -> None:
    skipped = make_trial_line(6, outcome="skipped", samples_per_second=None, reason="Predicted over a limit: /dev/shm.")
    fates = read_fates(make_full_profile(evidence=make_evidence(trials=(*make_evidence().trials, skipped))))
    assert fates[3].startswith("Stopped early")
    assert fates[4] == "Failed. It filled /dev/shm: 64 MiB used of 64 MiB."
    assert fates[5] == "Skipped. Predicted over a limit: /dev/shm."


def test_a_cell_is_sorted_by_its_number_and_not_by_its_words() -> None:
    rows = read_trials(make_full_profile())
    assert rows[1]["Memory"] == Cell("1.0 GiB", str(1 << 30))
    assert rows[1]["Samples/s"] == Cell("1,790", "1790.0")
    assert rows[4]["Samples/s"] == Cell("-", "")
    assert rows[0]["Prefetch"] == Cell("-", "")
    assert rows[0]["Workers"] == Cell("0", "0")


def test_memory_is_told_of_every_trial_beside_both_limits_and_of_the_answer() -> None:
    text = read(make_full_profile()).text
    assert "A trial may use 8.0 GiB of host memory and 4.0 GiB of /dev/shm." in text
    assert "1.0 GiB of 8.0 GiB allowed; /dev/shm 64.0 MiB of 4.0 GiB" in text
    assert [row["Memory"].text for row in read_trials(make_full_profile())] == ["1.0 GiB"] * 4 + ["-"]
    assert [row["/dev/shm"].text for row in read_trials(make_full_profile())] == ["-"] + ["32.0 MiB"] * 3 + ["-"]


def test_where_no_memory_was_sampled_nothing_is_said_of_it() -> None:
    blind = make_profile_result(peak_host_bytes=0, peak_shm_bytes=0)
    trials = (make_trial_line(1, peak_host_bytes=0, peak_shm_bytes=0),)
    profile = make_full_profile(result=blind, evidence=make_evidence(trials=trials))
    assert "Peak host memory" not in read(profile).text
    assert [row["Memory"] for row in read_trials(profile)] == [Cell("-", "")]


def test_the_time_of_a_batch_is_split_before_and_after() -> None:
    text = read(make_full_profile()).text
    assert "99.0 ms" not in text
    assert "97.0 ms fetch 60.0 ms · collate 4.0 ms · send to the training process 1.0 ms · step 32.0 ms" in text
    assert "64.0 ms waiting for data 44.8 ms · step and the rest 19.2 ms" in text  # 64 samples at 1,000/s, 70 % waiting
    assert "35.6 ms waiting for data 3.6 ms · step and the rest 32.0 ms" in text  # at 1,800/s, 10 % waiting
    assert "copy to the device" not in text


def test_copies_to_the_device_are_a_part_of_the_time_of_a_batch() -> None:
    work = BatchTimeBreakdown(samples=64, load=0.06, collate=0.004, transfer=0.001, copy_seconds=0.002, step=0.032)
    assert "copy to the device 2.0 ms" in read(make_full_profile(evidence=make_evidence(batch_time=work))).text


def test_without_evidence_the_time_is_that_of_the_tuned_batch() -> None:
    text = read(make_profile()).text
    assert text.count("64.0 ms") == 1
    assert "For 64 samples." in text
    assert "collate" not in text


def test_a_baseline_that_was_kept_has_one_time() -> None:
    kept = make_profile_result(verdict="keep", speedup=1.0, speedup_ci95=(1.0, 1.0))
    text = read(make_full_profile(result=kept)).text
    assert "Kept, in training" in text
    assert "Before, in training" not in text


def test_the_most_important_knob_stands_first() -> None:
    importance = {"in_order": 0.1, "num_workers": 0.7, "batch_size": 0.2}
    text = read(make_full_profile(evidence=SearchEvidence(knob_importance=importance))).text
    assert "num_workers 70 % batch_size 20 % in_order 10 %" in text


def test_every_symbol_of_a_chart_is_explained_and_no_other() -> None:
    lines = ("trial, all but the workers", "failed or skipped", "expected by the model", "lost", "95 % interval")
    full = read(make_full_profile()).text
    assert all(words in full for words in lines)
    bare = read(make_full_profile(evidence=SearchEvidence(trials=(make_trial_line(1, make_config(4, 8)),)))).text
    assert "something else differs" in bare
    assert not any(words in bare for words in lines[:3])


def test_a_ceiling_far_above_the_chart_is_told_beside_it() -> None:
    far = make_full_profile(result=make_profile_result(ceiling_samples_per_second=9e4))
    assert "The step alone would reach 90,000/s, far above this chart." in read(far).text
    assert "far above" not in read(make_full_profile()).text


def poison(value: Any) -> Any:
    """Put a hostile text into every field that takes one."""
    if isinstance(value, BaseModel):
        names = type(value).model_fields
        return value.model_copy(update={name: poison(getattr(value, name)) for name in names})
    if isinstance(value, dict):
        return {HOSTILE: HOSTILE}
    if isinstance(value, tuple):
        return tuple(poison(part) for part in value)
    return HOSTILE if isinstance(value, str) else value


def make_hostile_profile() -> TunedProfile:
    """Build a profile that is hostile in every text, but for those that only take a few words."""
    trials = (make_trial_line(), make_failed_line(2, make_config(2), HOSTILE))
    evidence = make_evidence(trials=trials, knob_importance={HOSTILE: 1.0})
    good = make_full_profile()
    bad: TunedProfile = poison(good)
    return bad.model_copy(
        update={
            "evidence": evidence,
            "result": bad.result.model_copy(update={"verdict": "faster", "bottleneck": "cpu"}),
            "process": good.process,
            "request": make_request(profile=HOSTILE, study_name=HOSTILE).record(),
        }
    )


def test_the_hostile_profile_is_hostile_wherever_a_text_can_stand() -> None:
    hostile = make_hostile_profile()
    assert hostile.name == hostile.workload.dataset == hostile.hardware.cpu == hostile.search.stopped == HOSTILE
    assert hostile.result.warnings == hostile.result.advice == (HOSTILE,)


def test_hostile_texts_neither_run_nor_draw_nor_leave_their_place() -> None:
    page, plain = read(make_hostile_profile(), file=HOSTILE), read(make_full_profile())
    assert page.count("script") == plain.count("script") == 1
    assert page.count("style") == plain.count("style") == 1
    assert page.count("img") == 0
    assert page.texts["script"] == plain.texts["script"]
    assert page.text.count("<script>alert('1')</script>") > 10
    assert "49" not in page.texts["h1"][0]


def test_no_element_has_a_handler_a_style_or_an_address() -> None:
    for profile in (make_full_profile(), make_hostile_profile()):
        for tag, attributes in read(profile, file=HOSTILE).elements:
            assert not [name for name in attributes if name.startswith("on") or name in ("style", "src", "href")], tag


def test_the_policy_allows_the_pages_own_script_and_style_and_nothing_else() -> None:
    metas = [attributes for tag, attributes in read(make_full_profile()).elements if tag == "meta"]
    (policy,) = [meta["content"] for meta in metas if meta.get("http-equiv") == "Content-Security-Policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in (policy or "").split(";"))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert re.fullmatch(r"'sha256-[\w+/]{43}='", rules["style-src"])
    assert re.fullmatch(r"'sha256-[\w+/]{43}='", rules["script-src"])
    assert set(rules) == {"default-src", "base-uri", "form-action", "style-src", "script-src"}


RATES = st.just(0.0) | st.floats(min_value=1e-6, max_value=1e12)
BYTES = st.just(0) | st.integers(min_value=1, max_value=1 << 50)
CONFIGS = st.builds(
    make_config, st.integers(0, 500), st.integers(1, 9), st.none() | st.integers(1, 10**6), pin_memory=st.booleans()
)
TRIALS = st.builds(
    make_trial_line,
    st.integers(0, 10**6),
    CONFIGS,
    outcome=st.sampled_from(["completed", "stopped_early", "skipped", "failed"]),
    samples_per_second=st.none() | RATES,
    relative_error=st.none() | RATES,
    expected_samples_per_second=RATES,
    peak_host_bytes=BYTES,
    peak_shm_bytes=BYTES,
)
POINTS = st.builds(ScalingPoint, num_workers=st.integers(0, 500), samples_per_second=RATES, relative_error=RATES)
TIMES = st.builds(
    BatchTimeBreakdown,
    samples=st.integers(1, 10**6),
    load=RATES,
    collate=RATES,
    transfer=RATES,
    copy_seconds=RATES,
    step=RATES,
)
EVIDENCE = st.builds(
    make_evidence,
    trials=st.lists(TRIALS, max_size=5).map(tuple),
    scaling_curve=st.lists(POINTS, max_size=4).map(tuple),
    batch_time=st.none() | TIMES,
    knob_importance=st.dictionaries(st.text(max_size=9), st.floats(0, 1), max_size=3),
)
STEPS = st.builds(
    AblationStep,
    setting=st.text(max_size=60),
    samples_per_second=RATES,
    speedup=RATES,
    speedup_ci95=st.none() | st.tuples(RATES, RATES).map(sorted).map(tuple),
)
RESULTS = st.builds(
    make_profile_result,
    samples_per_second=RATES,
    samples_per_second_ci95=st.none() | st.tuples(RATES, RATES).map(sorted).map(tuple),
    baseline=st.none() | st.just(make_profile_result().baseline),
    speedup=st.none() | RATES,
    ceiling_samples_per_second=st.none() | RATES,
    verdict=st.sampled_from(["faster", "keep"]),
    ablation=st.lists(STEPS, max_size=3).map(tuple),
    peak_host_bytes=BYTES,
    peak_shm_bytes=BYTES,
)


@given(evidence=EVIDENCE, result=RESULTS, config=CONFIGS)
@settings(max_examples=150, deadline=None)
def test_whatever_numbers_a_file_may_hold_there_is_a_report(
    evidence: SearchEvidence, result: ProfileResult, config: LoaderConfig
) -> None:
    profile = make_full_profile(evidence=evidence, result=result, dataloader=config.dataloader)
    page = render_html(profile, "dltune.json")
    assert not re.search(r'="[^"]*\b(nan|inf)\b', page)
    assert Reader(page).count("table") == 1 + bool(evidence.trials) + bool(evidence.knob_importance)
    assert render_markdown(profile, "dltune.json").startswith("### dltune")


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
