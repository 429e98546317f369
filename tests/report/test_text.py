from __future__ import annotations

from typing import Any

import pytest

from autotune.commands.display import describe_failure, describe_machine, describe_workload
from autotune.config import LoaderConfig, ProcessSettings
from autotune.knobs import describe_config, describe_loader
from autotune.profiles.schema import BatchSizeResult, TunedProfile
from autotune.report.text import (
    describe_outcome,
    describe_profile,
    describe_warnings,
    warnings_of,
)
from autotune.report.usage import describe_use_in_code
from autotune.search.demand import BudgetViolation, describe_violations
from autotune.system.hardware import Accelerator
from autotune.trial.resources import OPEN_FILES, SHARED_MEMORY
from tests.builders import (
    GIB,
    MIB,
    make_ablation,
    make_config,
    make_cost,
    make_full_profile,
    make_gpu_workload,
    make_hardware,
    make_limits,
    make_machine,
    make_profile,
    make_profile_result,
    make_result,
    make_workload,
)

FILE_SYSTEM = ProcessSettings(sharing_strategy="file_system")


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (make_config(0), "w=0 bs=32"),
        (make_config(11, 4, 64, pin_memory=True, persistent_workers=True), "w=11 pf=4 bs=64 pin persistent"),
        (make_config(2, 1, None, in_order=False, process=FILE_SYSTEM), "w=2 pf=1 out-of-order file_system"),
    ],
)
def test_a_configuration_is_described_by_what_differs_from_the_defaults(config: LoaderConfig, text: str) -> None:
    assert describe_config(config) == text


def test_settings_are_described_by_the_names_that_data_loader_uses() -> None:
    settings = make_config(4, 8, pin_memory=True, in_order=False).dataloader
    assert describe_loader(settings) == "num_workers=4 prefetch_factor=8 pin_memory in_order=False"
    assert describe_loader(make_config(0).dataloader) == "num_workers=0"


def test_the_machine_is_described_by_what_may_be_used_and_who_decides() -> None:
    machine = make_machine(affinity_cpus=16, quota_cpus=2.5)
    text = describe_machine(machine, make_limits(nofile=20_000))
    assert text == "2.5 of 16 CPUs (cgroup)   RAM cap 8.0 GiB   /dev/shm cap 4.0 GiB   20,000 files"


@pytest.mark.parametrize(("step_seconds", "words"), [(0.001, "loader-bound"), (1.0, "step-bound")])
def test_the_workload_is_described_by_whether_loader_or_step_takes_longer(step_seconds: float, words: str) -> None:
    workload = make_workload(load_cost=make_cost(1e-3), step_cost=make_cost(0.0, step_seconds), cpu_share=0.25)
    text = describe_workload(workload, ceiling=32 / step_seconds)
    assert text.startswith("batch of 32: 128 KiB   1.0 ms/sample (CPU 25 %)")
    assert text.endswith(words)


def test_a_failed_trial_is_one_sentence_with_its_number_and_its_settings() -> None:
    result = make_result(make_config(12, 2, 256), kind="shm_exhausted", message="filled /dev/shm")
    assert describe_failure(7, result) == "Trial 7 (num_workers=12, batch_size=256) filled /dev/shm."


def test_a_failed_trial_over_own_batches_does_not_speak_of_a_batch_size() -> None:
    result = make_result(make_config(2, 2, None), kind="crashed", message="was killed by SIGBUS")
    assert describe_failure(1, result) == "Trial 1 (num_workers=2) was killed by SIGBUS."


def test_a_skipped_configuration_is_explained_by_every_limit_it_would_break() -> None:
    violations = (
        BudgetViolation(resource=SHARED_MEMORY, needed=96 * MIB, limit=64 * MIB),
        BudgetViolation(resource=OPEN_FILES, needed=1500, limit=1024),
    )
    assert describe_violations(violations) == (
        "/dev/shm: 96.0 MiB needed of 64.0 MiB; open files: 1,500 needed of 1,024"
    )


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


def test_the_probe_of_a_gpu_names_it_and_the_way_to_it() -> None:
    line = describe_workload(make_gpu_workload(), ceiling=1000.0)
    assert "NVIDIA H100 80GB HBM3   copies 4.0 GB/s, 12.0 GB/s pinned, 100 % of one hidden by computing" in line


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
