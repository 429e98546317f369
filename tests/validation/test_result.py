"""The result of a run, and the profile that is built from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.config import LoaderConfig, ProcessSettings
from autotune.errors import NoFeasibleConfigError, TrialError, UsageError
from autotune.planning.plan import GUESS_ERROR, Plan, make_plan
from autotune.profiles.schema import Contribution, TunedProfile
from autotune.protocol.measurement import RankWaits, TrialResult
from autotune.request import TuningRequest
from autotune.search.loop import SearchOutcome
from autotune.search.study import TrialRecord
from autotune.search.surrogate import Prediction, SpeedupPrediction
from autotune.validation.decision import Decision
from autotune.validation.result import Result, build_profile, decide_result
from autotune.validation.runs import CandidateRuns, Validation
from tests.builders import (
    GIB,
    MIB,
    make_candidate,
    make_config,
    make_gpu_workload,
    make_limits,
    make_machine,
    make_measurement_of,
    make_request,
    make_result,
    make_workload,
)

BASELINE, BEST = make_config(0), make_config(4, 2, persistent_workers=True)
SHARED = ProcessSettings(sharing_strategy="file_system")


def make_test_plan(
    workload: dict[str, Any] | None = None, budgets: dict[str, Any] | None = None, **request: Any
) -> Plan:
    request["fixed"] = {"batch_size": 32} | request.get("fixed", {}) if "search" not in request else {}
    profile = make_workload(**{"cpu_share": 0.05, **(workload or {})})
    return make_plan(make_request(**request), make_machine(), profile, make_limits(**budgets or {}))


def make_record(
    result: TrialResult | None, config: LoaderConfig = BEST, rate: float = 1000.0, **changes: Any
) -> TrialRecord:
    usual: dict[str, Any] = {"status": "measured", "predicted": 900.0, "relative_error": 0.05}
    return TrialRecord(**usual | {"config": config, "samples_per_second": rate, "result": result} | changes)


def predict_by_workers(configs: Sequence[LoaderConfig]) -> list[Prediction]:
    return [Prediction(100.0 * (1 + config.dataloader.num_workers), 0.1) for config in configs]


def make_model(predict: Callable[..., Any], predict_speedups: Callable[..., Any]) -> Any:
    """Make a model of trials that predicts by these functions."""
    surrogate = SimpleNamespace(predict=predict, predict_speedups=predict_speedups)
    return SimpleNamespace(surrogate=surrogate)


def predict_nothing(path: Sequence[LoaderConfig]) -> list[SpeedupPrediction]:
    return [SpeedupPrediction(1.0, 0.01) for _ in path[1:]]


def find(
    *records: TrialRecord,
    predict_speedups: Callable[[Sequence[LoaderConfig]], list[SpeedupPrediction]] = predict_nothing,
    interrupted_by: BaseException | None = None,
) -> SearchOutcome:
    return SearchOutcome(records, "stopped early", (), make_model(predict_by_workers, predict_speedups), interrupted_by)


def make_validation(*candidates: CandidateRuns, runs: int = 3, **changes: Any) -> Validation:
    baseline = make_candidate(BASELINE, 100.0, 100.0, 100.0)
    return Validation(baseline, candidates, (baseline, *candidates), runs, **changes)


VALIDATED = make_validation(make_candidate(BEST, 400.0, 400.0, 400.0, peak_host_bytes=GIB))
TRIAL = make_record(make_result(BEST, 1000.0, peak_shm_bytes=MIB))


def build(plan: Plan, found: SearchOutcome, result: Result) -> TunedProfile:
    phases: Any = {"profiling": 1.0, "search": 2.0}
    return build_profile(plan, found, result, phase_seconds=phases, seconds=3.0, is_complete=True)


def test_the_validation_decides() -> None:
    result = decide_result(make_test_plan(), find(TRIAL), VALIDATED)
    assert result.decision.config == BEST
    assert result.decision.speedup == pytest.approx(4.0)
    assert (result.validation, result.warnings) == (VALIDATED, ())


def test_without_a_validation_the_best_trial_is_recommended_with_a_warning() -> None:
    plan = make_test_plan()
    records = TRIAL, make_record(make_result(BASELINE, 500.0), BASELINE, 500.0)
    result = decide_result(plan, find(*records), Validation.empty(plan.baseline))
    assert (result.decision.config, result.decision.speedup, result.decision.ci95) == (BEST, 2.0, None)
    assert result.warnings == ("--timeout left time for 0 of 2 validation runs: results may be off.",)
    assert build(plan, find(*records), result).result.peak_shm_bytes == MIB


def test_a_trial_of_an_earlier_run_is_recommended_although_its_measurement_is_gone() -> None:
    plan = make_test_plan()
    stored = make_record(TrialResult(kind="completed", config=BEST))
    result = decide_result(plan, find(stored), Validation.empty(plan.baseline))
    assert (result.decision.config, result.decision.samples_per_second) == (BEST, 1000.0)
    profile = build(plan, find(stored), result)
    assert profile.search.trials[0].outcome == "completed"


def test_a_validation_that_was_cut_short_by_the_time_limit_has_a_warning() -> None:
    found = make_validation(make_candidate(BEST, 400.0), runs=1)
    assert "1 of 2 validation runs" in decide_result(make_test_plan(), find(TRIAL), found).warnings[0]
    interrupted = replace(found, interrupted_by=KeyboardInterrupt())
    assert decide_result(make_test_plan(), find(TRIAL), interrupted).warnings == ()


def make_broken(config: LoaderConfig) -> CandidateRuns:
    runs = CandidateRuns(config)
    for _ in range(2):
        runs.add(1, make_result(config, kind="crashed", message="had its port taken."), epochs=10)
    return runs


def test_if_only_fresh_processes_fail_the_best_trial_is_recommended_with_the_failure() -> None:
    baseline = make_broken(BASELINE)
    result = decide_result(make_test_plan(), find(TRIAL), Validation(baseline, (), (baseline,), runs=1))
    assert result.decision.config == BEST
    assert result.validation.runs == 0
    assert result.warnings[0].startswith("This is the best trial of the search, not validated")
    assert "it had its port taken)." in result.warnings[0]


def test_without_a_result_the_reason_is_raised() -> None:
    plan = make_test_plan()
    empty = Validation.empty(plan.baseline)
    with pytest.raises(UsageError, match="--timeout"):
        decide_result(plan, find(), empty)
    failed = make_record(make_result(BEST, kind="crashed", message="died of SIGSEGV"), rate=0.0)
    with pytest.raises(NoFeasibleConfigError, match=r"1 tried, 1 skipped.\n  crashed: it died of SIGSEGV"):
        decide_result(plan, find(failed, make_record(None, status="skipped")), empty)
    with pytest.raises(TrialError, match="lost"):
        decide_result(plan, find(failed, interrupted_by=TrialError("lost")), empty)


def test_a_profile_has_the_raw_runs_the_trials_and_the_request() -> None:
    plan = make_test_plan(profile="night", trials=12)
    found = find(TRIAL)
    profile = build(plan, found, decide_result(plan, found, VALIDATED))
    assert profile.label == "night"
    assert [len(one.runs) for one in profile.result.candidates] == [3, 3]
    assert profile.result.peak_host_bytes == GIB
    assert profile.result.baseline is not None
    assert profile.result.baseline.description == "PyTorch's defaults"
    assert profile.search.phase_seconds == {"profiling": 1.0, "search": 2.0}
    assert TuningRequest.model_validate(profile.request) == plan.request
    assert TunedProfile.model_validate_json(profile.model_dump_json()) == profile


def test_a_profile_warns_of_noise_failed_runs_growing_device_memory_and_repeated_data() -> None:
    best, plan = make_candidate(BEST, 400.0), make_test_plan()
    best.add(2, make_result(BEST, kind="crashed", message="died"), epochs=10)
    rank = RankWaits(wait_seconds=1.0, steps=100, late_steps=0, samples=1000)
    growing = make_measurement_of(400.0).model_copy(update={"gpu_growth_bytes": MIB, "ranks": (rank, rank)})
    best.add(2, TrialResult(kind="completed", config=BEST, measurement=growing), epochs=10)
    validation = make_validation(best, noise=("The machine is busy.",))
    warnings = build(plan, find(TRIAL), decide_result(plan, find(TRIAL), validation)).result.warnings
    assert warnings[:2] == (
        "The machine is busy.",
        "w=4 pf=2 bs=32 persistent: 1 of 3 validation runs failed: it died",
    )
    assert warnings[2].startswith("Device memory grew by 1.0 MiB")
    assert "delivered 2,000 samples in an epoch of a dataset of 1,000" in warnings[3]


def test_the_rates_of_copies_are_those_of_the_device() -> None:
    plan = make_plan(make_request(fixed={"batch_size": 32}), make_machine(), make_gpu_workload(), make_limits())
    profile = build(plan, find(TRIAL), decide_result(plan, find(TRIAL), VALIDATED))
    assert profile.result.copy_bytes_per_second == pytest.approx(400e6)
    assert profile.result.copy_bound_bytes_per_second == 4e9


def summarize(record: TrialRecord, **budgets: Any) -> Any:
    plan = make_test_plan(budgets=budgets)
    return build(plan, find(record), decide_result(plan, find(record), VALIDATED)).search.trials[0]


def test_a_trial_is_stored_with_its_throughput_its_prediction_and_its_peaks() -> None:
    line = summarize(make_record(make_result(BEST, 1000.0, peak_host_bytes=2 * GIB, peak_shm_bytes=3 * MIB)))
    assert (line.number, line.outcome, line.config, line.reason) == (1, "completed", BEST, "")
    assert (line.samples_per_second, line.predicted_samples_per_second) == (1000.0, 900.0)
    assert (line.relative_error, line.peak_host_bytes, line.peak_shm_bytes) == (0.05, 2 * GIB, 3 * MIB)


def test_a_trial_that_could_not_become_the_best_is_stored_as_stopped_early() -> None:
    result = make_result(BEST, 500.0)
    assert result.measurement is not None
    pruned = result.model_copy(update={"measurement": result.measurement.model_copy(update={"stopped": "pruned"})})
    assert summarize(make_record(pruned)).outcome == "stopped_early"


def test_a_failed_trial_is_stored_with_its_reason_and_without_throughput() -> None:
    result = make_result(BEST, kind="shm_exhausted", message="filled /dev/shm: 64 MiB of 64 MiB")
    line = summarize(make_record(result, rate=0.0))
    assert (line.outcome, line.samples_per_second) == ("failed", None)
    assert line.reason == "It filled /dev/shm: 64 MiB of 64 MiB."


def test_a_skipped_configuration_is_stored_with_every_limit_that_it_would_exceed() -> None:
    tight = {"shm_bytes": 64 * MIB, "nofile": 70}
    large = make_config(4, 8, 256, persistent_workers=True)
    plan = make_test_plan(workload={"sample_bytes": MIB // 8}, budgets=tight)
    found = find(make_record(None, large, status="skipped"))
    line = build(plan, found, decide_result(plan, found, VALIDATED)).search.trials[0]
    assert line.outcome == "skipped"
    assert line.reason.startswith("Predicted over a limit: ")
    assert "/dev/shm: " in line.reason
    assert "needed of 64.0 MiB" in line.reason
    assert "open files: " in line.reason
    assert "needed of 70" in line.reason


def test_a_configuration_within_its_limits_was_skipped_because_of_earlier_trials() -> None:
    assert summarize(make_record(None, status="skipped")).reason == "Ruled out by earlier trials."


def scale(plan: Plan, config: LoaderConfig) -> tuple[list[LoaderConfig], list[int]]:
    """Return the configurations of the curve over the number of workers, and its numbers of workers."""
    asked: list[LoaderConfig] = []

    def predict(configs: Sequence[LoaderConfig]) -> list[Prediction]:
        asked.extend(configs)
        return predict_by_workers(configs)

    decision = Decision(config, 400.0, None, 4.0, (3.9, 4.1))
    profile = build(plan, replace(find(), model=make_model(predict, predict_nothing)), Result(decision, VALIDATED))
    assert [point.samples_per_second for point in profile.search.scaling] == [
        100.0 * (1 + config.dataloader.num_workers) for config in asked
    ]
    return asked, [point.num_workers for point in profile.search.scaling]


def test_the_curve_varies_the_workers_and_nothing_else() -> None:
    asked, workers = scale(make_test_plan(), make_config(4, 8, persistent_workers=True))
    assert workers == sorted(set(workers))
    assert {0, 4} < set(workers)
    assert {config.dataloader.prefetch_factor for config in asked if config.dataloader.num_workers} == {8}


def test_the_curve_ends_at_the_limits() -> None:
    large, small = (
        make_test_plan(workload={"sample_bytes": MIB // 8}, budgets={"shm_bytes": size}) for size in (GIB, 64 * MIB)
    )
    assert scale(large, BEST)[1][-1] > scale(small, BEST)[1][-1] >= 4


def test_without_workers_in_the_result_the_curve_has_default_values() -> None:
    asked, _ = scale(make_test_plan(fixed={"prefetch_factor": 8}), BASELINE)
    assert asked[0] == BASELINE
    assert all(config.dataloader.persistent_workers for config in asked[1:])
    assert {config.dataloader.prefetch_factor for config in asked[1:]} == {8}


def estimate(
    config: LoaderConfig, *tried: LoaderConfig, validation: Validation = VALIDATED, **changes: Any
) -> tuple[Contribution, ...]:
    """Estimate contributions if workers are certain to treble the throughput, and nothing else is known to matter."""

    def predict_speedups(path: Sequence[LoaderConfig]) -> list[SpeedupPrediction]:
        return [SpeedupPrediction(3.0, 0.05), *(SpeedupPrediction(1.02, 0.001) for _ in path[2:])]

    records = [make_record(make_result(one, 100.0), one, 100.0) for one in tried]
    facts: dict[str, Any] = {"samples_per_second": 400.0, "speedup": 4.0} | changes
    decision = Decision(config=config, ci95=None, speedup_ci95=(3.9, 4.1), **facts)
    found = find(*records, predict_speedups=predict_speedups)
    return build(make_test_plan(), found, Result(decision, validation)).result.contributions


FAR = make_config(12, 4, persistent_workers=True)


def test_contributions_change_one_setting_at_a_time_and_end_at_the_measured_throughput() -> None:
    rows = estimate(FAR, BASELINE, make_config(12, 2))
    assert [row.setting for row in rows] == ["num_workers=12", "prefetch_factor=4", "persistent_workers=True"]
    assert [row.speedup for row in rows] == [3.0, 1.02, 1.02]
    assert rows[-1].samples_per_second == 400.0
    assert rows[0].samples_per_second == pytest.approx(400.0 / 1.02**2)
    assert all(row.is_estimate for row in rows)


def test_settings_of_the_process_contribute_last() -> None:
    rows = estimate(make_config(12, 4, persistent_workers=True, in_order=False, process=SHARED))
    assert [row.setting for row in rows][2:] == [
        "persistent_workers=True",
        "in_order=False",
        "sharing_strategy=file_system",
    ]


def test_a_step_that_was_never_tried_is_as_uncertain_as_a_guess() -> None:
    rows = estimate(FAR, BASELINE, make_config(12, 2), make_config(12, 4))
    widths = [row.speedup_ci95[1] / row.speedup for row in rows if row.speedup_ci95]
    assert widths == pytest.approx([math.exp(1.96 * 0.05), 1.002, math.exp(1.96 * GUESS_ERROR)], rel=1e-3)
    assert [row.speedup_ci95 is not None and row.speedup_ci95[0] > 1 for row in rows] == [True, True, False]


def test_a_single_setting_contributes_the_measured_speedup() -> None:
    (row,) = estimate(make_config(12, 2))
    assert (row.speedup, row.speedup_ci95, row.is_estimate) == (4.0, (3.9, 4.1), False)


def test_without_a_validated_gain_there_are_no_contributions() -> None:
    assert estimate(FAR, validation=replace(VALIDATED, runs=0)) == ()
    assert estimate(FAR, validation=replace(VALIDATED, interrupted_by=KeyboardInterrupt())) == ()
    assert estimate(BASELINE) == ()
    assert estimate(FAR, speedup=None) == ()
