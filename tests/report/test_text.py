"""A result as text: transcripts of the end of a run, of a verified result, and of `dltune show`."""

from __future__ import annotations

from textwrap import dedent
from typing import Any

import pytest

from autotune.profiles.schema import BatchWaits, TunedProfile
from autotune.report.render import render_profile, render_summary
from tests.builders import make_config, make_full_profile, make_profile, make_profile_result

NO_CHANGE: dict[str, Any] = {"decision": "no_change", "speedup": 1.0, "speedup_ci95": (0.98, 1.02)}
LOAD = 'import autotune; loader = autotune.load("dltune.json").make_loader(dataset, shuffle=True)'


def make_result_profile(**changes: Any) -> TunedProfile:
    return make_profile(result=make_profile_result(**changes))


def read(text: str) -> str:
    """Remove the indentation of a transcript."""
    return dedent(text).strip("\n")


def test_a_run_ends_with_the_result_one_tip_one_warning_and_lines_to_paste() -> None:
    transcript = """
        Result  batch_size=64, num_workers=4, prefetch_factor=2, persistent_workers=True
                1,800 samples/s in training (95% CI 1,750-1,850), 1.80x faster than PyTorch's defaults (95% CI 1.70-1.90x)
                waiting for data 50% → 10% of the time · peak memory 1.0 GiB · bottleneck: I/O → the training step
        Tip     Use __getitems__.
        Warning batch_size=64 changes training, not only its speed; --batch-size 32 keeps it at 32.
        Saved to dltune.json in 35.0 s. 1 more warning: dltune show. Report: dltune report

        Use it  loader = DataLoader(dataset, batch_size=64, shuffle=True, num_workers=4, prefetch_factor=2, persistent_workers=True)
           or   import autotune; loader = autotune.load("dltune.json").make_loader(dataset, shuffle=True)
    """  # noqa: E501  # lines to paste are not folded
    assert render_summary(make_full_profile(), "dltune.json", width=120) == read(transcript)


def test_no_change_is_one_sentence_and_nothing_is_to_be_pasted() -> None:
    transcript = """
        Result  No change recommended: no other settings were certainly faster than PyTorch's defaults.
                1,800 samples/s in training (95% CI 1,750-1,850)
                waiting for data 10% of the time · peak memory 1.0 GiB · bottleneck: the training step
        Saved to out/dltune.json in 35.0 s. Report: dltune report out/dltune.json
    """
    profile = make_profile(config=make_config(), result=make_profile_result(**NO_CHANGE))
    assert render_summary(profile, "out/dltune.json") == read(transcript)


@pytest.mark.parametrize("width", [80, 100])
def test_all_lines_but_those_to_paste_fit_the_terminal(width: int) -> None:
    sentences = tuple(
        f"{number} is a sentence that fills more than one line of any usual terminal " * 2 for number in "123"
    )
    profile = make_result_profile(advice=sentences, warnings=sentences)
    text, _, usage = render_summary(profile, "all.json", width=width, name="images").partition("\n\n")
    assert all(len(line) <= width for line in text.splitlines())
    assert "2 more tips and 3 more warnings: dltune show all.json --profile images." in " ".join(text.split())
    assert 'autotune.load("all.json", profile="images")' in usage


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"validation_runs": 0, "samples_per_second_ci95": None}, "Not validated: autotune.load and dltune"),
        ({"baseline": None, "speedup": None, "speedup_ci95": None}, "The baseline could not run"),
        ({"speedup": 16.66, "speedup_ci95": (15.0, 123.4)}, "16.7x faster than PyTorch's defaults (95% CI 15.0-123x)"),
        ({"bottleneck": "io"}, "bottleneck: I/O"),
    ],
)
def test_the_end_of_a_run_names_the_evidence_and_the_bottleneck(changes: dict[str, Any], words: str) -> None:
    assert words in " ".join(render_summary(make_result_profile(**changes), "dltune.json").split())


def test_an_interrupted_run_names_the_command_that_continues_it() -> None:
    profile = make_profile(is_complete=False, result=make_profile_result(validation_runs=1))
    words = "if the file has one. Interrupted: the same command continues, unless it has --fresh."
    assert words in render_summary(profile, "dltune.json", width=200)
    assert words in render_profile(profile, "dltune.json")


def test_without_a_baseline_no_settings_before_are_shown() -> None:
    profile = make_result_profile(baseline=None, speedup=None, speedup_ci95=None)
    assert "  num_workers         -       4\n" in render_profile(profile, "dltune.json")
    assert render_summary(profile, "dltune.json").startswith("Result  batch_size=64, num_workers=4")


def test_several_processes_are_shown_with_their_sum_and_their_waits() -> None:
    waits = BatchWaits(p50=0.001, p95=0.002, p99=0.003)
    profile = make_result_profile(rank_wait_seconds=(0.001, 0.004), batch_waits=waits)
    profile = profile.model_copy(update={"workload": profile.workload.model_copy(update={"nproc_per_node": 2})})
    text = render_profile(profile, "dltune.json")
    assert "1,800 samples/s in each of 2 processes (95% CI 1,750-1,850)" in text
    assert "3,600 samples/s" in text
    assert "1.0 ms, 4.0 ms" in text
    assert "median 1.0 ms, 95th percentile 2.0 ms, 99th 3.0 ms" in text


def test_copies_that_limit_a_gpu_are_shown_with_the_rate_of_copies_alone() -> None:
    result = make_profile_result(bottleneck="copy", copy_bytes_per_second=11.8e9, copy_bound_bytes_per_second=12.1e9)
    assert "11.8 GB/s of 12.1 GB/s" in render_profile(make_profile(result=result), "dltune.json")


def test_a_label_is_in_the_title() -> None:
    title = render_profile(make_profile(label="mine"), "dltune.json").splitlines()[0]
    assert title.startswith("pkg.data:make_dataset (mine) · ")
