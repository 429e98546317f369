"""A result in words, as the terminal shows it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from autotune.config import LoaderConfig, ProcessSettings
from autotune.profiles.nodes import NodeReading, NodeSpread
from autotune.profiles.schema import BatchSizeResult, RankResult, TunedProfile
from autotune.report.text import describe_outcome, describe_profile, describe_warnings, warnings_of
from autotune.report.usage import describe_use_in_code
from autotune.system.hardware import Accelerator
from tests.builders import (
    GIB,
    make_ablation,
    make_config,
    make_full_profile,
    make_hardware,
    make_machine,
    make_profile,
    make_profile_result,
)

FILE_SYSTEM = ProcessSettings(sharing_strategy="file_system")


def outcome(profile: TunedProfile, runner_up: LoaderConfig | None = None, *, interrupted: bool = False) -> str:
    return describe_outcome(profile, "map", runner_up, "out/dltune.json", interrupted=interrupted)


def make_outcome_profile(**changes: Any) -> TunedProfile:
    return make_profile(result=make_profile_result(**changes))


def test_the_outcome_gives_settings_numbers_evidence_and_how_to_use_them() -> None:
    lines = outcome(make_profile("cpu-4c")).splitlines()
    assert lines[0] == "Best:  num_workers=4 prefetch_factor=2 persistent_workers   (batch_size=64)"
    assert lines[1] == (
        "  1,800 samples/s [1,750-1,850]   1.80 [1.70-1.90] x PyTorch's defaults   "
        "waiting for data 70 % -> 10 %   90 % of the ceiling"
    )
    assert lines[2] == (
        "  peak host 1.0 GiB of 8.0 GiB   shm 64.0 MiB of 4.0 GiB   bound by the training step   "
        "confirmed in 3 interleaved rounds"
    )
    assert lines[3] == "Wrote out/dltune.json (profile cpu-4c).   Training code:"
    assert 'autotune.load("out/dltune.json").loader_kwargs()' in lines[4]


def test_keeping_the_baseline_is_said_plainly_and_without_a_speedup() -> None:
    text = outcome(make_outcome_profile(verdict="keep", speedup=1.0, speedup_ci95=(1.0, 1.0)))
    assert text.startswith("Keep:")
    assert "no gain beyond noise over PyTorch's defaults" in text
    assert "1.00" not in text


def test_a_baseline_that_could_not_run_is_named_as_such() -> None:
    text = outcome(make_outcome_profile(baseline=None, speedup=None, speedup_ci95=None))
    assert "the baseline could not run here" in text


def test_a_run_that_was_cut_short_says_so_and_how_to_go_on() -> None:
    text = outcome(make_outcome_profile(confirmed_rounds=0, samples_per_second_ci95=None), interrupted=True)
    assert "not confirmed" in text
    assert "run the same command again" in text


def test_a_run_that_was_cut_short_does_not_claim_that_the_baseline_could_not_run() -> None:
    unconfirmed = make_outcome_profile(
        baseline=None, speedup=1.5, speedup_ci95=None, confirmed_rounds=0, samples_per_second_ci95=None
    )
    assert "could not run" not in outcome(unconfirmed, interrupted=True)


def test_a_faster_configuration_that_was_passed_over_is_named() -> None:
    assert "w=16 pf=4 bs=64 was faster within noise" in outcome(make_profile(), make_config(16, 4, 64))


def test_knobs_that_change_training_come_with_the_option_that_pins_them() -> None:
    rows = tuple(
        BatchSizeResult(batch_size=size, config=make_config(4, 2, size), samples_per_second=rate)
        for size, rate in ((32, 900.0), (64, 1800.0))
    )
    profile = make_profile(
        dataloader=make_config(4, 2, 64, in_order=False).dataloader,
        result=make_profile_result(by_batch_size=rows, warnings=("the samples differ in size",)),
    )
    text = "\n".join(describe_warnings(profile))
    assert "the samples differ in size" in text
    assert "--batch-size" in text
    assert "900/s at 32, 1,800/s at 64" in text
    assert "--fix in_order=true" in text


def test_an_answer_that_changes_nothing_about_training_has_no_caveats() -> None:
    assert describe_warnings(make_profile()) == []


def test_a_saved_profile_is_shown_with_where_and_how_it_was_found() -> None:
    hardware = make_machine().hardware(Accelerator(name="NVIDIA H100", count=2))
    text = describe_profile(make_profile("h100x2", hardware=hardware))
    assert "h100x2   pkg.data:make_dataset   2026-01-02 03:04 UTC" in text
    assert "2x NVIDIA H100   4 CPUs   RAM 16.0 GiB   /dev/shm 8.0 GiB   torch 2.13.0   Python 3.11.7" in text
    assert "20 trials (17 ok, 1 infeasible, 2 skipped) in 1m35: all 20 trials done" in text


def test_a_strategy_that_is_not_the_default_is_part_of_the_answer() -> None:
    assert "sharing_strategy=file_system" in outcome(make_profile(process=FILE_SYSTEM)).splitlines()[0]


def test_own_batches_are_called_the_users_own() -> None:
    profile = make_profile(dataloader=make_config(4, 2, None).dataloader)
    assert "(your own batches)" in outcome(profile).splitlines()[0]


def test_peak_use_is_written_against_its_budget() -> None:
    text = outcome(make_outcome_profile(peak_host_bytes=3 * GIB))
    assert "peak host 3.0 GiB of 8.0 GiB" in text


def test_the_line_of_training_code_suits_the_workload() -> None:
    shared = make_profile(process=ProcessSettings(sharing_strategy="file_system"))
    own = make_profile(dataloader=make_config(2, batch_size=None).dataloader)

    def last_line(profile: TunedProfile, kind: str) -> str:
        return describe_outcome(profile, kind, None, "x.json", interrupted=False).splitlines()[-1].strip()

    assert (
        last_line(make_profile(), "map")
        == 'DataLoader(dataset, shuffle=True, **autotune.load("x.json").loader_kwargs())'
    )
    assert last_line(make_profile(), "iterable") == 'DataLoader(dataset, **autotune.load("x.json").loader_kwargs())'
    assert last_line(shared, "map") == 'autotune.load("x.json").make_loader(dataset, shuffle=True)'
    assert last_line(shared, "iterable") == 'autotune.load("x.json").make_loader(dataset)'
    assert "**your_own_batching" in last_line(own, "map")


def test_an_answer_that_copies_bound_says_how_near_they_come_to_copying_alone() -> None:
    result = make_profile_result(bottleneck="copy", copy_bytes_per_second=11.8e9, copy_ceiling=12.1e9)
    outcome = describe_outcome(make_profile(result=result), "map", None, "dltune.json", interrupted=False)
    assert "bound by copying to the device (11.8 of 12.1 GB/s)" in outcome


def test_an_answer_that_copies_ahead_comes_with_the_call_that_does() -> None:
    process = ProcessSettings(non_blocking=True, device_prefetch=True)
    profile = make_profile(process=process, hardware=make_hardware(gpu="NVIDIA H100", gpu_count=1))
    used = describe_use_in_code(profile, "map", "dltune.json")
    assert used.startswith("autotune.device_prefetch(DataLoader(dataset, shuffle=True, ")
    assert any("non_blocking=True" in note for note in warnings_of(profile))


def test_what_each_setting_gave_comes_with_its_interval_and_noise_is_called_so() -> None:
    steps = make_ablation()
    unclear = steps[1].model_copy(update={"speedup": 1.01, "speedup_ci95": (0.95, 1.07)})
    profile = make_profile(result=make_profile_result(ablation=(steps[0], unclear)))
    (line,) = [line for line in describe_warnings(profile) if "each setting gave" in line]
    assert "num_workers=4 1.50x [1.41-1.59]" in line
    assert "batch_size=64 1.01x [0.95-1.07] (within noise)" in line


def test_a_setting_that_left_its_convention_is_told_with_what_it_gained() -> None:
    notes = warnings_of(make_full_profile())
    assert any("batch_size=64 pays: 1.20x [1.10-1.30] over the usual setting" in note for note in notes)


def make_ranks_profile() -> TunedProfile:
    """Build the profile of four training processes, of which the last one waits longest."""
    waits = tuple(RankResult(wait_seconds=seconds, late_share=0.25) for seconds in (0.001, 0.001, 0.001, 0.004))
    profile = make_profile(result=make_profile_result(ranks=waits))
    return profile.model_copy(update={"workload": profile.workload.model_copy(update={"local_world_size": 4})})


def test_what_each_of_several_processes_does_is_told_beside_what_the_host_does() -> None:
    line = outcome(make_ranks_profile()).splitlines()[2]
    assert line == (
        "  num_workers 4 per process, 16 on this host; 4 processes reach 7,200/s; waiting for a batch: "
        "1.0 ms in rank 0, 1.0 ms in rank 1, 1.0 ms in rank 2, 4.0 ms in rank 3"
    )
    assert line in describe_profile(make_ranks_profile())
    assert "per process" not in outcome(make_profile())


def test_how_far_equal_machines_differ_is_told() -> None:
    now = datetime(2026, 6, 1, tzinfo=UTC)
    readings = tuple(
        NodeReading(node=name, samples_per_second=rate, created_at=now) for name, rate in (("a", 1700.0), ("b", 1900.0))
    )
    nodes = NodeSpread(readings=readings, samples_per_second_ci95=(1500.0, 2100.0))
    words = "measured again on 2 machines like it: 1,700-1,900 samples/s; another is expected at 1,500-2,100"
    assert words in describe_profile(make_profile().model_copy(update={"nodes": nodes}))
