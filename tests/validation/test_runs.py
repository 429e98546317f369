"""Runs of the validation: pairs by their numbers, waits, and how many runs there are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.config import LoaderConfig
from autotune.planning.plan import Plan, make_plan
from autotune.profiles.schema import BatchWaits
from autotune.progress import ProgressListener
from autotune.protocol.measurement import Measurement, RankWaits, TrialResult
from autotune.protocol.messages import TrialRequest
from autotune.validation.runs import (
    MAX_RUNS,
    MAX_SCATTERED_RUNS,
    MIN_RUNS,
    CandidateRuns,
    NoiseMonitor,
    Validation,
    validate,
)
from tests.builders import (
    GIB,
    MIB,
    make_config,
    make_limits,
    make_machine,
    make_measurement,
    make_measurement_of,
    make_request,
    make_result,
    make_trace,
    make_workload,
)

FEW, MANY = make_config(2), make_config(8)


def make_runs(rates: dict[int, float], config: LoaderConfig = FEW) -> CandidateRuns:
    """Build a configuration with throughputs by the number of the run."""
    runs = CandidateRuns(config)
    for number, rate in rates.items():
        runs.add(number, make_result(config, rate), epochs=10)
    return runs


def test_ratios_pair_runs_with_equal_numbers_although_a_candidate_rested_in_one() -> None:
    rested, other = make_runs({1: 110.0, 2: 110.0, 4: 55.0}), make_runs({1: 100.0, 2: 100.0, 3: 100.0, 4: 50.0})
    speedup, interval = rested.compare(other)
    assert speedup == pytest.approx(1.1)
    assert interval is not None
    assert interval[0] > 1.03


def test_configurations_without_a_common_run_are_compared_by_their_medians_without_an_interval() -> None:
    speedup, interval = make_runs({1: 200.0}).compare(make_runs({2: 100.0}))
    assert speedup == pytest.approx(2.0)
    assert interval is None


def test_a_record_keeps_the_numbers_of_the_runs_and_the_failures_in_words() -> None:
    runs = make_runs({1: 100.0, 3: 110.0})
    runs.add(4, make_result(FEW, kind="crashed", message="died of SIGSEGV"), epochs=10)
    record = runs.record()
    assert [(run.number, round(run.samples_per_second)) for run in record.runs] == [(1, 100), (3, 110)]
    assert record.failures == ("crashed: it died of SIGSEGV",)


def test_peaks_are_those_of_all_runs_including_failed_ones() -> None:
    runs = CandidateRuns(FEW)
    runs.add(1, make_result(FEW, 100.0, peak_host_bytes=GIB, peak_shm_bytes=MIB), epochs=10)
    runs.add(2, make_result(FEW, kind="crashed", peak_host_bytes=2 * GIB), epochs=10)
    assert (runs.peak_host_bytes, runs.peak_shm_bytes) == (2 * GIB, MIB)


def wait_for(*waits: float) -> BatchWaits | None:
    """Sum up an epoch in which the training loop waited this long for each batch after the first."""
    seen = (9.0, *waits)
    trace = make_trace([1.0] * len(seen)).model_copy(update={"batch_waits": seen})
    runs = CandidateRuns(FEW)
    runs.add(1, TrialResult(kind="completed", config=FEW, measurement=make_measurement(trace, epoch_batches=None)), 10)
    return runs.batch_waits


def test_percentiles_of_waits_leave_out_the_first_batch() -> None:
    found = wait_for(*(0.01 * number for number in range(101)))
    assert found is not None
    assert (round(found.p50, 3), round(found.p95, 3), round(found.p99, 3)) == (0.5, 0.95, 0.99)


@pytest.mark.parametrize(
    ("waits", "share"),
    [([2.1, 0.0, 0.001, 0.0] * 10, 0.25), ([0.1, 0.12, 0.09] * 10, 0.0), ([0.0] * 40, 0.0), ([1.0, 0.9] * 10, 0.0)],
    ids=["bursts", "alike", "none", "alternating"],
)
def test_pauses_are_found_only_if_batches_arrive_in_bursts(waits: list[float], share: float) -> None:
    found = wait_for(*waits)
    assert found is not None
    assert found.pause_share == share
    assert (found.pause > 0) == (share > 0)


def test_waits_for_a_few_batches_are_unknown() -> None:
    assert wait_for(*[0.1] * 10) is None


@given(st.lists(st.floats(0, 1e6), min_size=30, max_size=200))
def test_any_waits_can_be_summed_up(waits: list[float]) -> None:
    found = wait_for(*waits)
    assert found is not None
    assert found.p50 <= found.p95 <= found.p99
    assert 0 <= found.pause_share <= 1


def make_ranks(*late: int) -> Measurement:
    """Build a measurement of 100 steps in which each rank was last this many times, and waited 1 s and 4 s."""
    ranks = (
        RankWaits(wait_seconds=wait, steps=100, late_steps=count) for count, wait in zip(late, (1, 4), strict=True)
    )
    return make_measurement_of(100.0).model_copy(update={"ranks": tuple(ranks)})


def test_waits_of_training_processes_are_means_over_the_runs() -> None:
    runs = CandidateRuns(FEW)
    for number, measurement in enumerate((make_ranks(10, 90), make_ranks(20, 70)), start=1):
        runs.add(number, TrialResult(kind="completed", config=FEW, measurement=measurement), epochs=10)
    first, second = runs.process_waits
    assert (first.late_share, second.late_share) == (0.15, 0.8)
    assert (first.wait_seconds, second.wait_seconds) == (0.01, 0.04)
    assert make_runs({1: 100.0}).process_waits == ()


Rate = Callable[[LoaderConfig, int], float]


def make_test_plan() -> Plan:
    return make_plan(make_request(fixed={"batch_size": 32}), make_machine(), make_workload(), make_limits())


def validate_two(rate: Rate, monitor: NoiseMonitor | None = None, measurements: int = 1000) -> Validation:
    """Validate two candidates by a formula of the configuration and of the number of its earlier measurements."""
    counts: dict[LoaderConfig, int] = {}

    def run_trial(request: TrialRequest) -> TrialResult:
        assert request.fresh
        counts[request.config] = counts.get(request.config, -1) + 1
        return make_result(request.config, rate(request.config, counts[request.config]))

    def has_time(count: int) -> bool:
        done = sum(counts.values()) + len(counts)
        return done + count <= measurements

    return validate(make_test_plan(), lambda: [FEW, MANY], run_trial, ProgressListener(), monitor, has_time)


def steady(config: LoaderConfig, number: int) -> float:
    return 100.0 + 100.0 * config.dataloader.num_workers


def test_a_quiet_machine_needs_no_more_runs() -> None:
    assert validate_two(steady).runs == MIN_RUNS


def scattered(config: LoaderConfig, number: int) -> float:
    """Return nearly equal rates for the candidates, far above the baseline's, and a third more in every other run."""
    rate = {FEW: 299.0, MANY: 300.0}.get(config, 100.0)
    return rate * (1.3 if number % 2 else 1.0)


def test_if_only_the_runs_of_the_fastest_differ_it_is_measured_once_more_with_the_baseline() -> None:
    found = validate_two(scattered)
    assert found.runs == MAX_SCATTERED_RUNS
    assert {one.config: len(one.rates) for one in found.entrants[1:]} == {FEW: MIN_RUNS, MANY: MAX_SCATTERED_RUNS}
    assert len(found.baseline.rates) == MAX_SCATTERED_RUNS
    assert [one.config for one in found.candidates] == [FEW, MANY]


def test_a_gain_in_doubt_gets_all_runs_of_all_configurations() -> None:
    found = validate_two(lambda config, number: (98.0 if number % 2 else 120.0) if config in (FEW, MANY) else 100.0)
    assert found.runs == MAX_RUNS
    assert {tuple(one.rates) for one in found.entrants} == {tuple(range(1, MAX_RUNS + 1))}


def test_a_slow_candidate_is_not_measured_again() -> None:
    found = validate_two(steady)
    assert [one.config for one in found.candidates] == [MANY]
    assert [tuple(one.rates) for one in found.entrants] == [(1, 2), (1,), (1, 2)]


def validate_with_failures(failures: int) -> Validation:
    """Validate two candidates, of which the faster one fails this many times before it works."""
    left = failures

    def run_trial(request: TrialRequest) -> TrialResult:
        nonlocal left
        if request.config == MANY and left:
            left -= 1
            return make_result(request.config, kind="workload_failed", message="had its port taken")
        return make_result(request.config, steady(request.config, 0))

    return validate(make_test_plan(), lambda: [FEW, MANY], run_trial, ProgressListener())


def test_a_failed_run_is_repeated_under_its_number() -> None:
    found = validate_with_failures(1)
    assert [one.config for one in found.candidates] == [MANY]
    assert tuple(found.candidates[0].rates) == (1, 2)
    assert found.failed == found.candidates


def test_a_configuration_that_fails_twice_is_ruled_out() -> None:
    assert [one.config for one in validate_with_failures(2).candidates] == [FEW]


def test_if_everything_fails_no_further_run_begins() -> None:
    asked: list[LoaderConfig] = []

    def run_trial(request: TrialRequest) -> TrialResult:
        asked.append(request.config)
        return make_result(request.config, kind="crashed")

    found = validate(make_test_plan(), lambda: [FEW], run_trial, ProgressListener())
    assert len(asked) == 4
    assert len(found.failed) == 2


def test_the_default_variant_of_the_fastest_is_measured_as_often_however_slow() -> None:
    odd, variant = make_config(8, 4, persistent_workers=True), make_config(8, 2, persistent_workers=True)

    def run_trial(request: TrialRequest) -> TrialResult:
        return make_result(request.config, 200.0 if request.config == odd else 100.0)

    found = validate(make_test_plan(), lambda: [odd, variant, MANY], run_trial, ProgressListener())
    assert {one.config: len(one.rates) for one in found.candidates} == {odd: MIN_RUNS, variant: MIN_RUNS}


def test_a_machine_that_slows_down_for_all_is_reported() -> None:
    monitor = NoiseMonitor(2.0, read=lambda: None, sleep=lambda seconds: None)
    found = validate_two(lambda config, number: steady(config, number) * 0.8**number, monitor)
    assert len(found.noise) == 1
    assert "slower or faster between runs" in found.noise[0]


@pytest.mark.parametrize("monitor", [None, NoiseMonitor(2.0, read=lambda: None, sleep=lambda seconds: None)])
def test_a_quiet_machine_is_not_reported(monitor: NoiseMonitor | None) -> None:
    assert validate_two(steady, monitor).noise == ()


@pytest.mark.parametrize("measurements", range(12))
def test_no_measurement_begins_without_time_but_one_of_the_baseline_and_of_the_best(measurements: int) -> None:
    found = validate_two(lambda config, number: 100.0, measurements=measurements)
    counts = [len(one.rates) for one in found.entrants]
    assert sum(counts) <= max(2, measurements)
    assert counts[0] > 0 < counts[1]
    assert found.runs == max(1, min(MIN_RUNS, measurements // 3))


def test_a_candidate_that_there_was_no_time_for_is_dropped() -> None:
    assert [one.config for one in validate_two(lambda config, number: 100.0, measurements=2).candidates] == [FEW]


@pytest.mark.parametrize(("factor", "shares"), [(3.0, [1.0, 0.5]), (1.3, [1.0, 1.0])])
def test_a_baseline_that_is_far_behind_gets_less_time_from_the_second_run_on(
    factor: float, shares: list[float]
) -> None:
    asked: list[float] = []
    plan = make_test_plan()

    def run_trial(request: TrialRequest) -> TrialResult:
        if request.config == plan.baseline:
            asked.append(request.seconds / plan.request.trial_seconds)
        return make_result(request.config, 100.0 if request.config == plan.baseline else 100.0 * factor)

    validate(plan, lambda: [FEW, MANY], run_trial, ProgressListener())
    assert asked == shares


def test_an_interrupted_validation_keeps_the_runs_before() -> None:
    asked: list[LoaderConfig] = []

    def run_trial(request: TrialRequest) -> TrialResult:
        asked.append(request.config)
        if len(asked) > 3:
            raise KeyboardInterrupt
        return make_result(request.config, steady(request.config, 0))

    found = validate(make_test_plan(), lambda: [FEW, MANY], run_trial, ProgressListener())
    assert isinstance(found.interrupted_by, KeyboardInterrupt)
    assert (found.runs, [len(one.rates) for one in found.entrants]) == (1, [1, 1, 1])


def test_an_interrupt_during_the_selection_leaves_an_empty_validation() -> None:
    def choose() -> list[LoaderConfig]:
        raise KeyboardInterrupt

    found = validate(make_test_plan(), choose, lambda request: make_result(request.config, 100.0), ProgressListener())
    assert isinstance(found.interrupted_by, KeyboardInterrupt)
    assert (found.runs, len(found.entrants)) == (0, 0)
