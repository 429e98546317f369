"""Runs of the validation: pairs by their numbers, waits, and how many runs there are."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from autotune.config import Interval, LoaderConfig
from autotune.profiles.schema import BatchWaits
from autotune.progress import ProgressListener
from autotune.protocol.measurement import RankWaits, TrialResult
from autotune.protocol.messages import TrialRequest
from autotune.validation.candidate_runs import MIN_WAITS, CandidateRuns
from autotune.validation.comparison import Comparison
from autotune.validation.noise import NoiseMonitor, measure_change
from autotune.validation.runs import (
    MAX_RUNS,
    MAX_SCATTERED_RUNS,
    MIN_RUNS,
    Validation,
    measure_run,
    validate,
)
from tests.builders import (
    GIB,
    MIB,
    make_config,
    make_counters,
    make_measurement,
    make_measurement_of,
    make_result,
    make_trace,
)
from tests.search.formulas import make_test_plan

FEW, MANY = make_config(2), make_config(8)


def make_runs(rates: dict[int, float], config: LoaderConfig = FEW) -> CandidateRuns:
    """Build a configuration with throughputs by the number of the run."""
    runs = CandidateRuns(config)
    for number, rate in rates.items():
        runs.add(number, make_result(config, rate), epochs=10)
    return runs


def test_ratios_pair_runs_with_equal_numbers_although_a_candidate_rested_in_one() -> None:
    rested, other = make_runs({1: 110.0, 2: 110.0, 4: 55.0}), make_runs({1: 100.0, 2: 100.0, 3: 100.0, 4: 50.0})
    speedup, interval = Comparison().speedup(rested, other)
    assert speedup == pytest.approx(1.1)
    assert interval is not None
    assert interval[0] > 1.02


def test_configurations_without_a_common_run_are_compared_by_their_medians_without_an_interval() -> None:
    speedup, interval = Comparison().speedup(make_runs({1: 200.0}), make_runs({2: 100.0}))
    assert (round(speedup, 6), interval) == (2.0, None)


def test_the_pace_of_the_machine_changed_by_the_median_of_the_configurations_that_both_phases_measured() -> None:
    measured = [make_runs({1: rate}, make_config(workers)) for workers, rate in ((0, 50.0), (2, 80.0), (4, 300.0))]
    trials = {make_config(workers): rate for workers, rate in ((0, 100.0), (2, 100.0), (4, 200.0), (8, 100.0))}
    assert measure_change(measured, trials) == pytest.approx(0.8)
    assert measure_change(measured, {}) == 1.0


def test_an_interval_is_wider_the_more_the_pace_of_the_machine_changed_before_the_runs() -> None:
    runs = make_runs({1: 100.0, 2: 101.0})
    widths = [high / low for low, high in filter(None, (runs.ci95(change=change) for change in (1.001, 0.8, 0.6)))]
    assert widths == sorted(widths)
    assert widths[2] > 1.3 * widths[0]
    assert make_runs({1: 100.0}).ci95(change=0.8) is None  # of one run


def test_runs_of_a_few_batches_do_not_show_how_much_the_machine_varies() -> None:
    runs, slow = make_runs({1: 100.0, 2: 101.0}), CandidateRuns(MANY)
    for number, seconds in ((1, 0.1), (2, 0.3)):
        trace = make_trace([seconds, 2 * seconds, seconds / 2], closed_after=3)
        measurement = make_measurement(trace, epoch_batches=None)
        slow.add(number, TrialResult(status="completed", config=MANY, measurement=measurement), epochs=10)
    assert slow.rates[1] > 2 * slow.rates[2]
    assert runs.ci95(others=[slow]) == runs.ci95()
    assert measure_change([slow], {MANY: 1.0}) == 1.0
    assert runs.ci95(others=[make_runs(slow.rates, MANY)]) != runs.ci95()


def test_peaks_are_those_of_all_runs_including_failed_ones() -> None:
    runs = CandidateRuns(FEW)
    runs.add(1, make_result(FEW, 100.0, peak_host_bytes=GIB, peak_shm_bytes=MIB), epochs=10)
    runs.add(2, make_result(FEW, status="crashed", peak_host_bytes=2 * GIB), epochs=10)
    assert (runs.peak_host_bytes, runs.peak_shm_bytes) == (2 * GIB, MIB)


@pytest.mark.parametrize("count", [MIN_WAITS - 1, 101])
def test_percentiles_of_many_waits_leave_out_the_first_batch(count: int) -> None:
    seen = (9.0, *(0.01 * number for number in range(count)))
    trace = make_trace([1.0] * len(seen)).model_copy(update={"batch_waits": seen})
    runs = CandidateRuns(FEW)
    runs.add(
        1, TrialResult(status="completed", config=FEW, measurement=make_measurement(trace, epoch_batches=None)), 10
    )
    expected = None if count < MIN_WAITS else BatchWaits(p50=0.5, p95=0.95, p99=0.99)
    assert runs.batch_waits == expected


def test_waits_of_training_processes_are_means_over_the_runs() -> None:
    runs = CandidateRuns(FEW)
    for number, steps in enumerate((100, 300), start=1):
        ranks = [RankWaits(wait_seconds=4.0**rank, steps=steps) for rank in range(2)]
        measurement = make_measurement_of(100.0).model_copy(update={"ranks": tuple(ranks)})
        runs.add(number, TrialResult(status="completed", config=FEW, measurement=measurement), epochs=10)
    assert runs.rank_wait_seconds == pytest.approx((0.005, 0.02))
    assert make_runs({1: 100.0}).rank_wait_seconds == ()


PLAN = make_test_plan()
Rate = Callable[[LoaderConfig, int], float | None]


def validate_with(
    rate: Rate,
    *configs: LoaderConfig,
    monitor: NoiseMonitor | None = None,
    measurements: int = 1000,
) -> tuple[Validation, list[TrialRequest]]:
    """Validate candidates by a formula of the configuration and of the number of its earlier measurements.

    Returns the requests of the measurements, too; a rate of None is a failure.
    """
    asked: list[TrialRequest] = []

    def run_trial(request: TrialRequest) -> TrialResult:
        assert request.new_process
        found = rate(request.config, sum(one.config == request.config for one in asked))
        asked.append(request)
        return make_result(request.config, found, "completed" if found else "crashed")

    def has_time(count: int) -> bool:
        return len(asked) + count <= measurements

    candidates = configs or (FEW, MANY)
    return validate(PLAN, lambda failed: candidates, run_trial, ProgressListener(), monitor, has_time), asked


def steady(config: LoaderConfig, number: int) -> float:
    return 100.0 + 100.0 * config.dataloader.num_workers


@pytest.mark.parametrize(("epoch_batches", "again"), [(10, True), (None, False)])
def test_the_end_of_an_epoch_is_sought_again_if_it_came_in_time(epoch_batches: int | None, again: bool) -> None:
    asked, runs = list[TrialRequest](), CandidateRuns(FEW)

    def run_trial(request: TrialRequest) -> TrialResult:
        asked.append(request)
        measurement = make_measurement_of(100.0).model_copy(update={"epoch_batches": epoch_batches})
        return make_result(request.config, 100.0).model_copy(update={"measurement": measurement})

    for number in (1, 2):
        measure_run(PLAN.request, runs, run_trial, ProgressListener(), number)
    assert [request.seeks_end for request in asked] == [True, again]


def test_a_quiet_machine_needs_no_more_runs_and_a_slow_candidate_is_not_measured_again() -> None:
    found, _ = validate_with(steady)
    assert found.runs == MIN_RUNS
    assert [one.config for one in found.candidates] == [MANY]
    assert [tuple(one.rates) for one in found.measured] == [(1,), (1,), (1, 2)]


def scattered(config: LoaderConfig, number: int) -> float:
    """Return nearly equal rates for the candidates, far above the baseline's, and a third more in every other run."""
    rate = {FEW: 299.0, MANY: 300.0}.get(config, 100.0)
    return rate * (1.3 if number % 2 else 1.0)


def test_if_only_the_runs_of_the_fastest_differ_it_is_measured_once_more() -> None:
    found, _ = validate_with(scattered)
    assert found.runs == MAX_SCATTERED_RUNS
    assert {one.config: len(one.rates) for one in found.measured[1:]} == {FEW: MIN_RUNS, MANY: MAX_SCATTERED_RUNS}
    assert [one.config for one in found.candidates] == [FEW, MANY]


def test_an_uncertain_gain_gets_all_runs_of_the_fastest_and_of_the_baseline() -> None:
    found, _ = validate_with(
        lambda config, number: (104.0 if number % 2 else 107.0) if config in (FEW, MANY) else 100.0
    )
    assert found.runs == MAX_RUNS
    baseline, fastest, other = found.measured
    assert tuple(baseline.rates) == tuple(fastest.rates) == tuple(range(1, MAX_RUNS + 1))
    assert len(other.rates) == MIN_RUNS


def test_while_the_gain_over_the_baseline_is_uncertain_the_variants_of_the_fastest_rest() -> None:
    odd, variant = make_config(8, 4, persistent_workers=True), make_config(8, 2, persistent_workers=True)
    rates = {odd: (104.0, 107.0), variant: (101.0, 101.0)}
    found, _ = validate_with(lambda config, number: rates.get(config, (100.0, 100.0))[number % 2], odd, variant)
    assert [len(one.rates) for one in found.measured] == [MAX_RUNS, MAX_RUNS, MIN_RUNS]


@pytest.mark.parametrize(("rates", "runs"), [((101.0, 101.0), 2), ((102.0, 102.5), 2), ((98.0, 120.0), 4)])
def test_runs_end_when_five_could_not_show_the_gain_either(rates: tuple[float, float], runs: int) -> None:
    found, _ = validate_with(lambda config, number: rates[number % 2] if config in (FEW, MANY) else 100.0)
    assert found.runs == runs


def test_a_large_gain_is_uncertain_if_its_runs_scatter_so_far_that_its_interval_includes_one() -> None:
    found, _ = validate_with(
        lambda config, number: (300.0 if number % 2 else 120.0) if config in (FEW, MANY) else 100.0
    )
    assert found.runs == MAX_RUNS


@pytest.mark.parametrize(("gain", "is_measured_again"), [(1.02, False), (1.08, True), (2.0, False)])
def test_a_gain_of_another_order_is_measured_until_it_is_certain(gain: float, is_measured_again: bool) -> None:
    unordered = make_config(8, in_order=False)
    found, _ = validate_with(
        lambda config, _: gain * 900.0 if config == unordered else steady(config, 0), unordered, MANY
    )
    _, other, *_ = found.measured
    assert (found.runs > MIN_RUNS) == is_measured_again
    assert len(found.baseline.rates) == 1
    assert len(other.rates) == found.runs


def test_a_failed_run_is_repeated_under_its_number_and_a_second_failure_rules_the_configuration_out() -> None:
    once, _ = validate_with(lambda config, number: None if (config, number) == (MANY, 0) else steady(config, number))
    assert [one.config for one in once.candidates] == [MANY]
    assert tuple(once.candidates[0].rates) == (1, 2)
    assert [len(one.failures) for one in once.candidates] == [1]
    twice, _ = validate_with(lambda config, number: None if config == MANY else steady(config, number))
    assert [one.config for one in twice.candidates] == [FEW]


def test_a_baseline_that_fails_twice_after_one_run_is_compared_no_more() -> None:
    rates = [None, 100.0, None]
    found, _ = validate_with(lambda config, number: rates[number] if config == PLAN.baseline else 110.0)
    assert (found.baseline.rate, len(found.baseline.rates)) == (0.0, 1)
    assert [len(one.rates) for one in found.candidates] == [MIN_RUNS, MIN_RUNS]


def test_if_everything_fails_no_further_run_begins() -> None:
    found, asked = validate_with(lambda config, number: None, FEW)
    assert (len(asked), [len(one.failures) for one in found.measured]) == (4, [2, 2])


def test_the_default_variant_of_the_fastest_is_measured_as_often_however_slow() -> None:
    odd, variant = make_config(8, 4, persistent_workers=True), make_config(8, 2, persistent_workers=True)
    found, _ = validate_with(lambda config, number: 200.0 if config == odd else 100.0, odd, variant, MANY)
    assert {one.config: len(one.rates) for one in found.candidates} == {odd: MIN_RUNS, variant: MIN_RUNS}


def test_the_fastest_with_unchanged_training_is_measured_as_often_whatever_its_workers() -> None:
    odd, same = make_config(8, in_order=False), make_config(4)
    found, _ = validate_with(lambda config, number: 900.0 if config == odd else 100.0, same, odd)
    assert {one.config: len(one.rates) for one in found.candidates} == {same: MIN_RUNS, odd: MIN_RUNS}


def test_others_are_measured_if_the_fastest_all_fail() -> None:
    few, many = make_config(2), make_config(8)
    choices = {(): [many], (many,): [few, many, PLAN.baseline]}

    def run_trial(request: TrialRequest) -> TrialResult:
        rate = None if request.config == many else steady(request.config, 0)
        return make_result(request.config, rate, "completed" if rate else "crashed")

    found = validate(PLAN, lambda failed: choices[tuple(failed)], run_trial, ProgressListener())
    assert [one.config for one in found.measured] == [PLAN.baseline, many, few]
    assert [(one.config, len(one.rates)) for one in found.candidates] == [(few, MIN_RUNS)]


def test_each_step_down_to_unchanged_training_is_measured() -> None:
    plan = make_test_plan(fixed={})
    same, large = make_config(4), make_config(4, batch_size=256)
    both = make_config(4, batch_size=256, in_order=False)
    rates = {plan.baseline: 100.0, same: 900.0, large: 960.0, both: 1000.0}
    choices = [same, large, both]

    def run_trial(request: TrialRequest) -> TrialResult:
        return make_result(request.config, rates[request.config])

    found = validate(plan, lambda failed: choices, run_trial, ProgressListener())
    assert [one.config for one in found.candidates] == choices


@pytest.mark.parametrize("pace", [1.0, 0.8])
def test_a_machine_that_slows_down_for_all_is_reported_and_a_quiet_one_is_not(pace: float) -> None:
    monitor = NoiseMonitor(2.0, read=make_counters, sleep=lambda seconds: None)
    found, _ = validate_with(lambda config, number: steady(config, number) * pace**number, monitor=monitor)
    assert ["The speed of the machine changed" in sentence for sentence in found.noise] == [True] * (pace < 1)


@pytest.mark.parametrize("measurements", range(12))
def test_no_measurement_begins_without_time_but_one_of_the_baseline_and_of_the_best(measurements: int) -> None:
    rate = {PLAN.baseline: 80.0}
    found, asked = validate_with(lambda config, number: rate.get(config, 100.0), measurements=measurements)
    counts = [len(one.rates) for one in found.measured]
    assert sum(counts) == len(asked) <= max(2, measurements)
    assert counts[0] > 0 < counts[1]
    assert found.runs == max(1, min(MIN_RUNS, measurements // 3))
    assert [one.config for one in found.candidates] == ([FEW] if measurements < 3 else [FEW, MANY])


@pytest.mark.parametrize(("factor", "runs"), [(3.0, 1), (1.3, 2)])
def test_a_baseline_that_is_far_behind_is_measured_once(factor: float, runs: int) -> None:
    found, asked = validate_with(lambda config, number: 100.0 if config == PLAN.baseline else 100.0 * factor)
    assert sum(request.config == PLAN.baseline for request in asked) == len(found.baseline.rates) == runs


def test_a_baseline_that_is_far_behind_is_measured_again_if_the_runs_of_the_fastest_differ_by_as_much() -> None:
    rates = {PLAN.baseline: [147.0], FEW: [263.0, 389.0, 255.0, 270.0, 260.0], MANY: [203.0]}
    found, _ = validate_with(lambda config, number: rates[config][min(number, len(rates[config]) - 1)])
    assert len(found.baseline.rates) > 1
    assert found.comparison.is_faster(found.candidates[0], found.baseline)


def measure_slowly(config: LoaderConfig, batches: int) -> TrialResult:
    """Measure a few slow batches of a long epoch."""
    trace = make_trace([4.0] * batches + [1.0] * batches, closed_after=2 * batches)
    measurement = make_measurement(trace, epoch_batches=10_000)
    return TrialResult(status="completed", config=config, measurement=measurement)


def test_a_baseline_that_is_far_behind_is_measured_again_if_its_run_had_a_few_slow_batches() -> None:
    asked: list[LoaderConfig] = []

    def run_trial(request: TrialRequest) -> TrialResult:
        asked.append(request.config)
        is_slow = request.config == PLAN.baseline
        return measure_slowly(request.config, 8) if is_slow else make_result(request.config, 100.0)

    validate(PLAN, lambda failed: [FEW, MANY], run_trial, ProgressListener())
    assert asked.count(PLAN.baseline) == 2


def test_the_sampling_error_of_slow_runs_falls_with_their_number_and_is_at_most_a_factor_of_two() -> None:
    runs = CandidateRuns(FEW)
    assert runs.sampling_error == 0.0
    runs.add(1, measure_slowly(FEW, 8), epochs=10)
    alone = runs.sampling_error
    runs.add(2, measure_slowly(FEW, 8), epochs=10)
    assert 0.15 < alone == pytest.approx(runs.sampling_error * math.sqrt(2))
    few = CandidateRuns(FEW)
    trace = make_trace([1.0, 2.0], closed_after=2)
    measurement = make_measurement(trace, epoch_batches=None)
    few.add(1, TrialResult(status="completed", config=FEW, measurement=measurement), epochs=10)
    assert few.sampling_error == 1.0
    assert make_runs({1: 100.0}).sampling_error == 0.0


def test_reported_intervals_include_the_sampling_error_of_slow_runs() -> None:
    precise, slow, other = make_runs({1: 20.0, 2: 20.5}), CandidateRuns(MANY), make_runs({1: 10.0, 2: 10.1}, MANY)
    for number in (1, 2):
        slow.add(number, measure_slowly(MANY, 8), epochs=10)
    like_slow = make_runs(slow.rates, MANY)

    def half_width(interval: Interval | None) -> float:
        assert interval is not None
        return math.log(interval[1] / interval[0]) / 2

    extra = math.log1p(slow.sampling_error)
    assert half_width(slow.ci95()) == pytest.approx(math.hypot(half_width(like_slow.ci95()), extra))
    comparison = Comparison([precise, other])
    (ratio, wide), (same, narrow) = comparison.report_speedup(precise, slow), comparison.speedup(precise, slow)
    assert ratio == same
    assert half_width(wide) == pytest.approx(math.hypot(half_width(narrow), extra))
    assert comparison.report_speedup(precise, other) == comparison.speedup(precise, other)


def test_the_interval_of_a_ratio_to_one_run_is_wide_and_shows_how_much_other_runs_vary() -> None:
    once, quiet = make_runs({1: 100.0}), make_runs({1: 300.0, 2: 303.0}, MANY)
    noisy = make_runs({1: 250.0, 2: 360.0}, MANY)
    found = [Comparison([one]).speedup(one, once)[1] for one in (quiet, noisy)]
    widths = [high / low for low, high in filter(None, found)]
    assert 1.3 < widths[0] < widths[1]
    assert Comparison([once]).speedup(make_runs({1: 300.0}, MANY), once)[1] is None


def test_an_interrupted_validation_has_the_runs_before() -> None:
    def interrupt_later(config: LoaderConfig, number: int) -> float:
        if number:
            raise KeyboardInterrupt
        return steady(config, number)

    found, _ = validate_with(interrupt_later)
    assert isinstance(found.interrupted_by, KeyboardInterrupt)
    assert (found.runs, [len(one.rates) for one in found.measured]) == (1, [1, 1, 1])
