"""What ends a run, as the terminal shows it."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.config import LoaderConfig, ProcessSettings
from autotune.profiles.schema import RankResult, TunedProfile
from autotune.report.outcome import MAX_LINES, WIDTH, describe_outcome, describe_standing, fold
from autotune.report.text import describe_profile
from tests.builders import GIB, make_ablation, make_config, make_full_profile, make_profile, make_profile_result

FILE_SYSTEM = ProcessSettings(sharing_strategy="file_system")


def outcome(profile: TunedProfile, runner_up: LoaderConfig | None = None, *, interrupted: bool = False) -> str:
    return describe_outcome(profile, "map", runner_up, "out/dltune.json", interrupted=interrupted)


def make_outcome_profile(**changes: Any) -> TunedProfile:
    return make_profile(result=make_profile_result(**changes))


def test_the_outcome_gives_settings_numbers_evidence_and_how_to_use_them() -> None:
    assert outcome(make_profile("cpu-4c")).splitlines() == [
        "Best:  num_workers=4 prefetch_factor=2 persistent_workers   (batch_size=64)",
        "  1,800 samples/s [1,750-1,850]   1.80 [1.70-1.90] x PyTorch's defaults",
        "      waiting for data 70 % -> 10 %   90 % of the ceiling",
        "  bound by the training step   confirmed in 3 interleaved rounds",
        "  peak host 1.0 GiB of 8.0 GiB   shm 64.0 MiB of 4.0 GiB",
        "Wrote out/dltune.json (profile cpu-4c).   All of it: dltune show out/dltune.json",
        "    Charts: dltune report out/dltune.json",
        "Training code, after import autotune:",
        '  loader = autotune.load("out/dltune.json").make_loader(dataset, shuffle=True)',
    ]


def make_talkative_profile(advice: int, notes: int) -> TunedProfile:
    """Build a profile that has more to say than the end of a run has lines for."""
    words = "is a sentence that somebody should read before training begins, and it fills two lines of a terminal."
    return make_full_profile(
        result=make_profile_result(
            ablation=make_ablation(),
            advice=tuple(f"Advice {number} {words}" for number in range(advice)),
            warnings=tuple(f"Note {number} {words}" for number in range(notes)),
        )
    )


@pytest.mark.parametrize(("advice", "notes"), [(0, 0), (1, 1), (1, 9), (9, 1), (5, 5)])
@pytest.mark.parametrize("width", [80, 100, 200])
def test_the_outcome_has_few_lines_that_fit_and_the_one_to_paste_is_the_last(
    advice: int, notes: int, width: int
) -> None:
    profile = make_talkative_profile(advice, notes)
    lines = describe_outcome(profile, "map", None, "dltune.json", interrupted=False, width=width).splitlines()
    assert len(lines) <= MAX_LINES
    assert all(len(line) <= width for line in lines)
    assert lines[-1] == '  loader = autotune.load("dltune.json").make_loader(dataset, shuffle=True)'


def test_what_is_left_out_is_counted_and_shown_by_the_command_that_is_named() -> None:
    profile = make_talkative_profile(advice=2, notes=6)
    text = describe_outcome(profile, "map", None, "dltune.json", interrupted=False)
    told = text.count("advice: ") + text.count("note: ")
    assert f"{8 - told} more notes: dltune show   Charts: dltune report" in text
    shown = describe_profile(profile)
    assert (shown.count("advice: "), shown.count("note: ")) == (2, 6)


def test_some_advice_is_told_however_many_notes_there_are() -> None:
    text = outcome(make_talkative_profile(advice=1, notes=9))
    assert "advice: Advice 0" in text
    assert "note: Note 0" in text
    assert "What each setting gave" not in text


def test_what_each_setting_gave_is_told_where_there_is_room() -> None:
    assert "What each setting gave:   num_workers=4 1.50x" in outcome(make_talkative_profile(0, 0))


def test_a_long_line_is_broken_between_its_parts_and_a_long_part_between_words() -> None:
    assert fold("  one two   three four   five", 20) == ["  one two", "      three four", "      five"]
    assert fold("  note: one two three four", 16) == ["  note: one two", "      three four"]
    assert fold("  short", 16) == ["  short"]


def test_a_standing_answer_ends_with_the_line_to_paste_as_well() -> None:
    lines = describe_standing(make_profile(), "dltune.json", 1790.0).splitlines()
    assert lines[-1] == '  loader = autotune.load("dltune.json").make_loader(dataset, shuffle=True)'
    assert any("still holds: 1,790/s now, 1,800/s then" in line for line in lines)
    assert all(len(line) <= WIDTH for line in lines)


def test_keeping_the_baseline_is_said_plainly_and_without_a_speedup() -> None:
    text = outcome(make_outcome_profile(verdict="no_change", speedup=1.0, speedup_ci95=(1.0, 1.0)))
    assert text.startswith("Keep:")
    assert "no gain beyond noise over PyTorch's defaults" in text
    assert "1.00" not in text


def test_a_baseline_that_could_not_run_is_named_as_such() -> None:
    text = outcome(make_outcome_profile(baseline=None, speedup=None, speedup_ci95=None))
    assert "the baseline could not run here" in text


def test_a_run_that_was_cut_short_says_so_and_how_to_go_on() -> None:
    text = outcome(make_outcome_profile(validation_runs=0, samples_per_second_ci95=None), interrupted=True)
    assert "not confirmed" in text
    assert "run the same command again" in text


def test_a_run_that_was_cut_short_does_not_claim_that_the_baseline_could_not_run() -> None:
    unconfirmed = make_outcome_profile(
        baseline=None, speedup=1.5, speedup_ci95=None, validation_runs=0, samples_per_second_ci95=None
    )
    assert "could not run" not in outcome(unconfirmed, interrupted=True)


def test_a_faster_configuration_that_was_passed_over_is_named() -> None:
    assert "w=16 pf=4 bs=64 was faster within noise" in outcome(make_profile(), make_config(16, 4, 64))


def test_a_strategy_that_is_not_the_default_is_part_of_the_answer() -> None:
    assert "sharing_strategy=file_system" in outcome(make_profile(process=FILE_SYSTEM)).splitlines()[0]


def test_own_batches_are_called_the_users_own() -> None:
    profile = make_profile(dataloader=make_config(4, 2, None).dataloader)
    assert "(your own batches)" in outcome(profile).splitlines()[0]


def test_peak_use_is_written_against_its_budget() -> None:
    text = outcome(make_outcome_profile(peak_host_bytes=3 * GIB))
    assert "peak host 3.0 GiB of 8.0 GiB" in text


def test_the_line_of_training_code_suits_the_workload() -> None:
    own = make_profile(dataloader=make_config(2, batch_size=None).dataloader)

    def last_line(profile: TunedProfile, kind: str) -> str:
        return describe_outcome(profile, kind, None, "x.json", interrupted=False).splitlines()[-1].strip()

    assert last_line(make_profile(), "map") == 'loader = autotune.load("x.json").make_loader(dataset, shuffle=True)'
    assert last_line(make_profile(), "iterable") == 'loader = autotune.load("x.json").make_loader(dataset)'
    assert "**your_own_batching" in last_line(own, "map")


def test_an_answer_that_copies_bound_says_how_near_they_come_to_copying_alone() -> None:
    result = make_profile_result(bottleneck="copy", copy_bytes_per_second=11.8e9, copy_ceiling=12.1e9)
    outcome = describe_outcome(make_profile(result=result), "map", None, "dltune.json", interrupted=False)
    assert "bound by copying to the device (11.8 of 12.1 GB/s)" in outcome


def make_ranks_profile() -> TunedProfile:
    """Build the profile of four training processes, of which the last one waits longest."""
    waits = tuple(RankResult(wait_seconds=seconds, late_share=0.25) for seconds in (0.001, 0.001, 0.001, 0.004))
    profile = make_profile(result=make_profile_result(ranks=waits))
    return profile.model_copy(update={"workload": profile.workload.model_copy(update={"local_world_size": 4})})


def test_what_each_of_several_processes_does_is_told_beside_what_the_host_does() -> None:
    line = (
        "  num_workers 4 per process, 16 on this host; 4 processes reach 7,200/s; waiting for a batch: "
        "1.0 ms in rank 0, 1.0 ms in rank 1, 1.0 ms in rank 2, 4.0 ms in rank 3"
    )
    assert line in describe_profile(make_ranks_profile())
    assert line.split() == " ".join(outcome(make_ranks_profile()).splitlines()[4:6]).split()
    assert "per process" not in outcome(make_profile())
