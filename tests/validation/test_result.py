"""The profile that is built from the trials and the validation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.config import Interval, LoaderConfig, ProcessSettings
from autotune.errors import NoFeasibleConfigError, TrialError, UsageError
from autotune.profiles.schema import Contribution, TunedProfile
from autotune.protocol.measurement import RankWaits, TrialResult
from autotune.request import TuningRequest, ValueRange
from autotune.search.loop import SearchOutcome
from autotune.search.plan import Plan, make_plan
from autotune.search.study import TrialRecord
from autotune.validation.candidate_runs import CandidateRuns
from autotune.validation.decision import Decision
from autotune.validation.result import GUESS_ERROR, build_profile, estimate_contributions, trace_workers
from autotune.validation.runs import Validation
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
from tests.search.formulas import make_test_plan

BASELINE, BEST = make_config(0), make_config(4, 2, persistent_workers=True)
FAR = make_config(12, 4, persistent_workers=True)
IO_BOUND, LARGE_SAMPLES = make_workload(cpu_share=0.05), make_workload(cpu_share=0.05, sample_bytes=MIB // 8)


def make_record(result: TrialResult | None, config: LoaderConfig = BEST, rate: float = 1000.0) -> TrialRecord:
    return TrialRecord(config=config, samples_per_second=rate, result=result, predicted=900.0, relative_error=0.05)


def predict_by_workers(configs: Sequence[LoaderConfig]) -> list[float]:
    return [100.0 * (1 + config.dataloader.num_workers) for config in configs]


def predict_nothing(path: Sequence[LoaderConfig]) -> list[tuple[float, float]]:
    return [(1.0, 0.01) for _ in path[1:]]


def find(
    *records: TrialRecord,
    predict: Callable[..., Any] = predict_by_workers,
    predict_speedups: Callable[..., Any] = predict_nothing,
    interrupted_by: BaseException | None = None,
) -> SearchOutcome:
    model: Any = SimpleNamespace(surrogate=SimpleNamespace(predict=predict, predict_speedups=predict_speedups))
    return SearchOutcome(records, "stopped early", (), model, interrupted_by)


def make_validation(*candidates: CandidateRuns, runs: int = 3, **changes: Any) -> Validation:
    baseline = make_candidate(BASELINE, 100.0, 100.0, 100.0)
    return Validation(baseline, candidates, (baseline, *candidates), runs, **changes)


VALIDATED = make_validation(make_candidate(BEST, 400.0, 400.0, 400.0, peak_host_bytes=GIB))
NOT_VALIDATED = Validation(CandidateRuns(BASELINE))
TRIAL = make_record(make_result(BEST, 1000.0, peak_shm_bytes=MIB))


def build(
    *records: TrialRecord, validation: Validation = VALIDATED, plan: Plan | None = None, **found: Any
) -> TunedProfile:
    phases: Any = {"profiling": 1.0, "search": 2.0}
    outcome = find(*(records or (TRIAL,)), **found)
    return build_profile(plan or make_test_plan(IO_BOUND), outcome, validation, phase_seconds=phases, seconds=3.0)


def test_the_validation_decides() -> None:
    profile = build()
    assert (profile.config, profile.is_complete, profile.result.warnings) == (BEST, True, ())
    assert profile.result.speedup == pytest.approx(4.0)


def test_without_a_validation_the_best_trial_is_recommended_with_a_warning() -> None:
    found = build(TRIAL, make_record(make_result(BASELINE, 500.0), BASELINE, 500.0), validation=NOT_VALIDATED)
    assert (found.config, found.result.speedup, found.result.samples_per_second_ci95) == (BEST, 2.0, None)
    assert found.result.warnings == ("--timeout left time for 0 of 2 validation runs: results may be off.",)
    assert found.result.peak_shm_bytes == MIB


def test_a_trial_of_an_earlier_run_is_recommended_although_its_measurement_is_gone() -> None:
    found = build(make_record(TrialResult(status="completed", config=BEST)), validation=NOT_VALIDATED)
    assert (found.config, found.result.samples_per_second) == (BEST, 1000.0)
    assert found.search.trials[0].status == "completed"


def test_a_validation_that_was_cut_short_by_the_time_limit_has_a_warning() -> None:
    short = make_validation(make_candidate(BEST, 400.0), runs=1)
    assert "1 of 2 validation runs" in build(validation=short).result.warnings[0]
    interrupted = build(validation=replace(short, interrupted_by=KeyboardInterrupt()))
    assert (interrupted.result.warnings, interrupted.is_complete) == ((), False)


def test_if_only_fresh_processes_fail_the_best_trial_is_recommended_with_the_failure() -> None:
    baseline = CandidateRuns(BASELINE)
    for _ in range(2):
        baseline.add(1, make_result(BASELINE, status="crashed", message="had its port taken."), epochs=10)
    found = build(validation=Validation(baseline, (), (baseline,), runs=1))
    assert (found.config, found.result.validation_runs) == (BEST, 0)
    assert found.result.warnings[0].startswith("This is the best trial of the search, not validated")
    assert "it had its port taken)." in found.result.warnings[0]


def test_without_a_result_the_reason_is_raised() -> None:
    with pytest.raises(UsageError, match="--timeout"):
        build_profile(make_test_plan(IO_BOUND), find(), NOT_VALIDATED, phase_seconds={}, seconds=1.0)
    failed = make_record(make_result(BEST, status="crashed", message="died of SIGSEGV"), rate=0.0)
    with pytest.raises(NoFeasibleConfigError, match=r"1 tried, 1 skipped.\n  crashed: it died of SIGSEGV"):
        build(failed, make_record(None), validation=NOT_VALIDATED)
    with pytest.raises(TrialError, match="lost"):
        build(failed, validation=NOT_VALIDATED, interrupted_by=TrialError("lost"))


@pytest.mark.parametrize(
    "options",
    [{"fixed": {"num_workers": 8, "in_order": True}}, {"search": {"num_workers": ValueRange(low=8, high=16)}}],
)
def test_the_baseline_is_named_with_the_settings_that_the_request_asks_for(options: dict[str, Any]) -> None:
    plan = make_test_plan(IO_BOUND, **options)
    assert plan.name_baseline(plan.baseline) == "PyTorch's defaults with num_workers=8"


def test_a_profile_has_the_raw_runs_the_phases_and_the_request() -> None:
    plan = make_test_plan(IO_BOUND, profile="night", trials=12)
    profile = build(plan=plan)
    assert profile.label == "night"
    assert [len(one.runs) for one in profile.result.candidates] == [3, 3]
    assert profile.result.peak_host_bytes == GIB
    assert profile.result.baseline is not None
    assert profile.result.baseline.description == "PyTorch's defaults"
    assert profile.search.phase_seconds == {"profiling": 1.0, "search": 2.0}
    assert TuningRequest.model_validate(profile.request) == plan.request
    assert TunedProfile.model_validate_json(profile.model_dump_json()) == profile


def test_a_profile_warns_of_noise_failed_runs_and_repeated_data() -> None:
    best = make_candidate(BEST, 400.0)
    best.add(2, make_result(BEST, status="crashed", message="died"), epochs=10)
    rank = RankWaits(wait_seconds=1.0, steps=100, samples=1000)
    repeated = make_measurement_of(400.0).model_copy(update={"ranks": (rank, rank)})
    best.add(2, TrialResult(status="completed", config=BEST, measurement=repeated), epochs=10)
    warnings = build(validation=make_validation(best, noise=("The machine is busy.",))).result.warnings
    assert warnings[:2] == ("The machine is busy.", "w=4 pf=2 bs=32 persistent: 1 of 3 validation runs failed: it died")
    assert "delivered 2,000 samples in an epoch of a dataset of 1,000" in warnings[2]


@pytest.mark.parametrize("kind", ["iterable", "map"])
@pytest.mark.parametrize(("workers", "ends"), [(4, False), (4, True), (1, False)])
def test_a_profile_warns_if_no_run_of_several_workers_reached_the_end_of_a_stream(
    kind: str, workers: int, ends: bool
) -> None:
    config, measurement = make_config(workers), make_measurement_of(400.0)
    plan = make_test_plan(IO_BOUND.model_copy(update={"kind": kind}))
    best = CandidateRuns(config)
    for number in (1, 2):
        measurement = measurement.model_copy(update={"epoch_batches": 10 if ends else None})
        best.add(number, TrialResult(status="completed", config=config, measurement=measurement), epochs=10)
    warnings = build(make_record(make_result(config)), validation=make_validation(best), plan=plan).result.warnings
    is_expected = kind == "iterable" and workers > 1 and not ends
    assert any("No run reached the end of an epoch" in one for one in warnings) == is_expected


def test_a_result_without_workers_says_that_shm_is_not_writable() -> None:
    request = make_request(fixed={"batch_size": 32})
    plan = make_plan(request, make_machine(shm_writable=False), IO_BOUND, make_limits())
    warnings = build(plan=plan, validation=make_validation(make_candidate(BASELINE, 400.0))).result.warnings
    assert any("they need /dev/shm, which is not writable" in one for one in warnings)


def test_the_rates_of_copies_are_those_of_the_device() -> None:
    result = build(plan=make_test_plan(make_gpu_workload())).result
    assert result.copy_bytes_per_second == pytest.approx(400e6)
    assert result.copy_bound_bytes_per_second == 4e9


FULL = make_result(BEST, status="shm_exhausted", message="filled /dev/shm: 64 MiB of 64 MiB")


@pytest.mark.parametrize(
    ("result", "rate", "outcome", "reason"),
    [
        (make_result(BEST, 1000.0), 1000.0, "completed", ""),
        (FULL, None, "failed", "It filled /dev/shm: 64 MiB of 64 MiB."),
        (None, None, "skipped", "Ruled out by earlier trials."),
    ],
)
def test_a_trial_is_stored_with_its_outcome(
    result: TrialResult | None, rate: float | None, outcome: str, reason: str
) -> None:
    record = make_record(result, rate=rate or 0.0)
    (line,) = build(record).search.trials
    assert (line.number, line.config, line.predicted_samples_per_second) == (1, BEST, 900.0)
    assert (line.status, line.reason, line.samples_per_second) == (outcome, reason, rate)


def test_a_trial_that_was_stopped_early_is_stored_as_such() -> None:
    record = make_record(make_result(BEST, 1000.0)).model_copy(update={"is_stopped_early": True})
    assert build(record).search.trials[0].status == "stopped_early"


def test_a_skipped_configuration_is_stored_with_every_limit_that_it_would_exceed() -> None:
    plan = make_test_plan(LARGE_SAMPLES, make_limits(shm_bytes=64 * MIB, nofile=70))
    large = make_config(4, 8, 256, persistent_workers=True)
    reason = build(make_record(None, large), plan=plan).search.trials[0].reason
    assert reason.startswith("Predicted over a limit: ")
    for words in ("/dev/shm: ", "needed of 64.0 MiB", "open files: ", "needed of 70"):
        assert words in reason


def scale(plan: Plan, config: LoaderConfig) -> tuple[list[LoaderConfig], list[int]]:
    """Return the configurations of the curve over the number of workers, and its numbers of workers."""
    asked: list[LoaderConfig] = []

    def predict(configs: Sequence[LoaderConfig]) -> list[float]:
        asked.extend(configs)
        return predict_by_workers(configs)

    points = trace_workers(plan, find(predict=predict), config)
    assert list(points.values()) == predict_by_workers(asked)
    return asked, list(points)


def test_the_curve_varies_the_workers_and_nothing_else() -> None:
    asked, workers = scale(make_test_plan(IO_BOUND), make_config(4, 8, persistent_workers=True))
    assert workers == sorted(set(workers))
    assert {0, 4} < set(workers)
    assert {config.dataloader.prefetch_factor for config in asked if config.dataloader.num_workers} == {8}


def test_the_curve_ends_at_the_limits() -> None:
    large, small = (make_test_plan(LARGE_SAMPLES, make_limits(shm_bytes=size)) for size in (GIB, 64 * MIB))
    assert scale(large, BEST)[1][-1] > scale(small, BEST)[1][-1] >= 4


def test_without_workers_in_the_result_the_curve_has_default_values() -> None:
    asked, _ = scale(make_test_plan(IO_BOUND, fixed={"batch_size": 32, "prefetch_factor": 8}), BASELINE)
    assert asked[0] == BASELINE
    assert all(config.dataloader.persistent_workers for config in asked[1:])
    assert {config.dataloader.prefetch_factor for config in asked[1:]} == {8}


def estimate(
    config: LoaderConfig,
    *tried: LoaderConfig,
    validation: Validation = VALIDATED,
    speedup: float | None = 4.0,
    speedup_ci95: Interval | None = (3.9, 4.1),
) -> tuple[Contribution, ...]:
    """Estimate contributions if workers are certain to treble the throughput, and nothing else is known to matter."""

    def predict_speedups(path: Sequence[LoaderConfig]) -> list[tuple[float, float]]:
        return [(3.0, 0.05), *((1.02, 0.001) for _ in path[2:])]

    records = [make_record(make_result(one, 100.0), one, 100.0) for one in tried]
    decision = Decision(config, 400.0, None, speedup, speedup_ci95)
    found = find(*records, predict_speedups=predict_speedups)
    return estimate_contributions(make_test_plan(IO_BOUND), found, validation, decision)


def test_contributions_change_one_setting_at_a_time_and_end_at_the_measured_throughput() -> None:
    shared = ProcessSettings(sharing_strategy="file_system")
    rows = estimate(make_config(12, 4, persistent_workers=True, process=shared), BASELINE, make_config(12, 2))
    assert [row.setting.partition("=")[0] for row in rows] == [
        *("num_workers", "prefetch_factor", "persistent_workers", "sharing_strategy")
    ]
    assert [row.speedup for row in rows] == [3.0, 1.02, 1.02, 1.02]
    assert rows[-1].samples_per_second == 400.0
    assert rows[0].samples_per_second == pytest.approx(400.0 / 1.02**3)
    assert all(row.is_estimate for row in rows)


def test_a_step_that_was_never_tried_is_as_uncertain_as_a_guess() -> None:
    rows = estimate(FAR, BASELINE, make_config(12, 2), make_config(12, 4))
    widths = [row.speedup_ci95[1] / row.speedup for row in rows if row.speedup_ci95]
    assert widths == pytest.approx([math.exp(1.96 * 0.05), 1.002, math.exp(1.96 * GUESS_ERROR)], rel=1e-3)
    assert [row.speedup_ci95 is not None and row.speedup_ci95[0] > 1 for row in rows] == [True, True, False]


def test_a_single_setting_contributes_the_measured_speedup() -> None:
    (row,) = estimate(make_config(12, 2))
    assert (row.speedup, row.speedup_ci95, row.is_estimate) == (4.0, (3.9, 4.1), False)


def test_a_single_step_that_was_measured_once_has_no_interval() -> None:
    (row,) = estimate(make_config(12, 2), speedup_ci95=None)
    assert (row.speedup, row.speedup_ci95) == (4.0, None)


def test_without_a_validated_gain_there_are_no_contributions() -> None:
    assert estimate(FAR, validation=replace(VALIDATED, runs=0)) == ()
    assert estimate(FAR, validation=replace(VALIDATED, interrupted_by=KeyboardInterrupt())) == ()
    assert estimate(BASELINE) == estimate(FAR, speedup=None) == ()
