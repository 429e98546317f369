"""Nothing of a file can act in the page, and whatever numbers it holds there is one."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.config import LoaderConfig
from autotune.profiles.schema import AblationStep, ProfileResult
from autotune.profiles.search_record import BatchTimeBreakdown, ScalingPoint, SearchEvidence
from autotune.report.html import render_html
from autotune.report.markdown import render_markdown
from tests.builders import make_config, make_evidence, make_full_profile, make_profile_result, make_trial_line
from tests.report.hostile import HOSTILE, make_hostile_profile
from tests.report.page_reader import Reader, read


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
    upper_bound_samples_per_second=st.none() | RATES,
    verdict=st.sampled_from(["faster", "no_change"]),
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
