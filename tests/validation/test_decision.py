"""Selection of candidates, and the rule that decides which of them is recommended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import Mock

import pytest

from autotune.config import Interval, LoaderConfig
from autotune.search.plan import Plan
from autotune.search.study import TrialRecord
from autotune.search.surrogate import Surrogate, TrialModel
from autotune.validation.candidate_runs import CandidateRuns
from autotune.validation.decision import Decision, decide, select_candidates
from autotune.validation.runs import Validation
from tests.builders import GIB, make_candidate, make_config, make_result, make_workload
from tests.search.formulas import make_test_plan

BASELINE = make_config(0)
SLOW = make_candidate(BASELINE, 100.0, 100.0, 100.0)


PLAN = make_test_plan(fixed={})


def try_decide(
    baseline: CandidateRuns, candidates: Sequence[CandidateRuns], surrogate: Surrogate | None = None
) -> Decision | None:
    validation = Validation(baseline, tuple(candidates), measured=(baseline, *candidates), surrogate=surrogate)
    return decide(validation, PLAN)


def choose(baseline: CandidateRuns, *candidates: CandidateRuns) -> Decision:
    decision = try_decide(baseline, candidates)
    assert decision is not None
    return decision


def width(interval: Interval | None) -> float:
    assert interval is not None
    return interval[1] / interval[0]


def usual(workers: int, **changes: Any) -> LoaderConfig:
    """Build a configuration with default values but for some changes."""
    return make_config(workers, **{"persistent_workers": True, **changes})


def make_record(config: LoaderConfig, rate: float, error: float | None = None) -> TrialRecord:
    result = make_result(config, rate)
    return TrialRecord(config=config, samples_per_second=rate, relative_error=error, result=result)


def select(*rates: tuple[LoaderConfig, float], **options: Any) -> list[LoaderConfig]:
    return select_from([make_record(config, rate) for config, rate in rates], **options)


def select_from(
    records: Sequence[TrialRecord], plan: Plan = PLAN, failed: Sequence[LoaderConfig] = (), **options: Any
) -> list[LoaderConfig]:
    measured = {one.config: one.samples_per_second for one in records}
    rates = measured | options.pop("expected", {})
    surrogate: dict[str, Any] = {"predict": lambda configs: [rates[one] for one in configs]}
    surrogate["predict_speedups"] = options.pop("predict_speedups", expect_gain(2.0))
    allowed: dict[str, Any] = {"is_allowed": lambda config: True, **options}
    model = Mock(TrialModel, surrogate=Mock(Surrogate, **surrogate), **allowed)
    return select_candidates(plan, records, model, failed)


def test_those_that_failed_in_the_validation_are_not_selected() -> None:
    records = [make_record(make_config(workers), 100.0 * workers) for workers in (1, 4, 8)]
    assert make_config(8) in select_from(records)
    assert make_config(8) not in select_from(records, failed=[make_config(8)])


def test_the_best_and_the_one_with_the_fewest_workers_near_it_are_selected() -> None:
    rates = {1: 500.0, 2: 930.0, 4: 960.0, 8: 1000.0, 16: 990.0}
    assert select(*((usual(workers), rate) for workers, rate in rates.items())) == [usual(8), usual(2)]
    assert select((usual(2), 1000.0), (usual(4), 960.0), (usual(8), 990.0)) == [usual(2), usual(8)]


def test_the_most_workers_not_far_behind_are_selected_beside_a_step_whose_threads_spin() -> None:
    spinning = make_test_plan(make_workload(cpu_share=1.0, step_cpus=1.9), fixed={})
    rates = ((usual(1), 930.0), (usual(2), 1000.0), (usual(8), 960.0), (usual(16), 800.0), (usual(24), 740.0))
    assert select(*rates, plan=spinning) == [usual(2), usual(1), usual(16)]


def test_the_variants_of_the_best_are_selected_even_if_the_search_never_tried_them() -> None:
    odd, ordered = usual(8, prefetch_factor=4, in_order=False), usual(8, prefetch_factor=4)
    assert select((ordered, 1000.0)) == [ordered, usual(8)]
    assert select((odd, 1000.0), (usual(4), 740.0)) == [ordered, usual(8), odd]


def test_if_all_candidates_have_as_many_workers_the_best_with_another_number_is_one_too() -> None:
    odd = usual(8, prefetch_factor=4)
    assert select((odd, 1000.0), (usual(2), 760.0), (usual(4), 910.0)) == [odd, usual(8), usual(4)]
    assert select((odd, 1000.0), (usual(2), 930.0), (usual(4), 940.0)) == [odd, usual(8), usual(2)]


def test_a_trial_at_the_limit_is_near_the_best_or_a_candidate() -> None:
    assert select((usual(8), 1000.0), (make_config(2, 8), 920.0))[1] == usual(2)
    assert select((usual(8), 1000.0), (usual(2), 750.0)) == [usual(8), usual(2)]
    assert select((usual(8), 1000.0), (usual(1), 500.0)) == [usual(8)]


def expect_gain(gain: float) -> Callable[[Sequence[LoaderConfig]], Sequence[tuple[float, float]]]:
    """Predict this speedup of the second configuration over the first, which has fewer non-default settings."""

    def predict_speedups(path: Sequence[LoaderConfig]) -> Sequence[tuple[float, float]]:
        simpler, other = path
        assert PLAN.default_variant(simpler) == PLAN.default_variant(other)
        assert simpler != other
        return [(gain, 0.04)]

    return predict_speedups


@pytest.mark.parametrize(("gain", "is_replaced"), [(1.01, True), (1.02, False), (1.05, False)])
def test_if_non_default_settings_are_not_expected_to_gain_the_default_variant_replaces_the_best(
    gain: float, is_replaced: bool
) -> None:
    odd, ordered = usual(8, prefetch_factor=4, in_order=False), usual(8, prefetch_factor=4)
    selected = select((odd, 1000.0), (usual(2), 950.0), predict_speedups=expect_gain(gain))
    assert selected == ([usual(8), usual(2)] if is_replaced else [ordered, usual(8), usual(2), odd])


def test_a_variant_over_the_limits_is_not_selected() -> None:
    odd = usual(8, prefetch_factor=1)
    assert select((odd, 1000.0), is_allowed=lambda config: False) == [odd]
    gain = expect_gain(1.0)
    assert select((odd, 1000.0), is_allowed=lambda config: config != usual(8), predict_speedups=gain) == [odd]


def test_if_the_best_changes_training_the_best_that_does_not_is_selected_too_and_measured_first() -> None:
    large = usual(8, batch_size=256)
    for small in (usual(8), usual(4)):
        assert select((large, 1000.0), (small, 900.0)) == [small, large]
    assert select((large, 1000.0)) == [usual(8), large]


def test_an_outlier_does_not_lead_the_candidates_if_its_neighbours_were_slower() -> None:
    rates = ((make_config(8), 1000.0), (make_config(12), 950.0))
    expected = {make_config(8): 900.0, make_config(12): 940.0, make_config(16): 2000.0}
    assert select(*rates, is_allowed=lambda config: False, expected=expected)[0] == make_config(12)


def test_failed_and_skipped_trials_are_not_selected() -> None:
    failure = make_result(make_config(4), status="out_of_memory")
    failed = TrialRecord(config=make_config(4), samples_per_second=0.0, result=failure)
    skipped = TrialRecord(config=make_config(9), samples_per_second=9e9)
    records = [failed, skipped, make_record(usual(2), 100.0)]
    assert select_from(records) == [usual(2)]
    assert select_from([failed, skipped]) == []


def test_the_fastest_wins_with_its_speedup_if_no_other_is_close() -> None:
    fast, slow = make_candidate(make_config(8), 200.0, 203.0, 197.0), make_candidate(make_config(2), 150.0, 150.0)
    decision = choose(make_candidate(BASELINE, 100.0, 101.0, 99.0), slow, fast)
    assert decision.config == make_config(8)
    assert decision.speedup == pytest.approx(2.0)
    assert decision.samples_per_second == pytest.approx(200.0)
    assert decision.speedup_ci95 is not None
    assert decision.speedup_ci95[0] < 2.0 < decision.speedup_ci95[1]


@pytest.mark.parametrize(
    ("simple", "fast"),
    [
        pytest.param(usual(4), usual(8), id="fewer workers"),
        pytest.param(usual(4), usual(4, prefetch_factor=4), id="default prefetch, though it needs more memory"),
        pytest.param(usual(4), usual(4, prefetch_factor=1), id="default prefetch, though another one needs less"),
        pytest.param(usual(4), make_config(4), id="persistent workers"),
        pytest.param(usual(4), usual(4, in_order=False), id="unchanged order"),
    ],
)
def test_of_two_that_tie_the_simpler_one_wins(simple: LoaderConfig, fast: LoaderConfig) -> None:
    first, second = make_candidate(simple, 199.0, 199.0), make_candidate(fast, 200.0, 200.0)
    for candidates in ([first, second], [second, first]):
        assert choose(make_candidate(BASELINE, 100.0, 100.0), *candidates).config == simple


@pytest.mark.parametrize(("expected", "chosen"), [(197.0, 2), (180.0, 8)])
def test_fewer_workers_tie_only_if_the_search_agrees(expected: float, chosen: int) -> None:
    rates = {usual(2): expected, usual(8): 200.0}
    few, many = make_candidate(usual(2), 197.0, 197.0), make_candidate(usual(8), 200.0, 200.0)
    decision = try_decide(SLOW, [few, many], Surrogate(rates.__getitem__))
    assert decision is not None
    assert decision.config == usual(chosen)


@pytest.mark.parametrize(("gain", "is_certain"), [(1.15, True), (1.0, False)])
@pytest.mark.parametrize("change", [{"in_order": False}, {"prefetch_factor": 1}])
def test_a_gain_that_the_runs_show_without_certainty_counts_if_the_search_shows_it_too(
    change: dict[str, Any], gain: float, is_certain: bool
) -> None:
    plain = make_candidate(usual(8), 1000.0, 1060.0, 900.0)
    changed = make_candidate(usual(8, **change), 1150.0, 1060.0, 1160.0)
    assert choose(SLOW, changed, plain).config == usual(8)
    trials = [make_record(usual(count), 1000.0, 0.05) for count in (6, 8, 12)]
    trials += [make_record(usual(count, **change), 1000.0 * gain, 0.05) for count in (6, 8, 12)]
    decision = try_decide(SLOW, [changed, plain], Surrogate(lambda config: 1000.0, trials))
    assert decision is not None
    assert (decision.config == usual(8, **change)) is is_certain
    if is_certain:
        assert (decision.gains[0].speedup_ci95 or (0.0, 0.0))[0] > 1.0


def test_of_two_that_differ_in_memory_only_the_one_that_needs_less_wins() -> None:
    much = make_candidate(usual(4, prefetch_factor=8), 200.0, 200.0, peak_host_bytes=GIB)
    little = make_candidate(usual(4, prefetch_factor=4), 200.0, 200.0, peak_host_bytes=GIB // 2)
    assert choose(SLOW, much, little).config == little.config


ODD, UNORDERED = usual(4, prefetch_factor=4), usual(4, in_order=False)
Rates = float | tuple[float, ...]  # one for each run; a number is that of three runs
CASES: dict[str, tuple[Rates, dict[LoaderConfig, Rates], LoaderConfig]] = {
    "defaults within the tie": (100.0, {ODD: 200.0, usual(4): 195.0}, usual(4)),
    "slower defaults": (100.0, {ODD: 200.0, usual(4): 186.0}, ODD),
    "a gain that may be luck": (50.0, {ODD: (200.0, 290.0, 180.0), usual(4): (190.0, 170.0, 210.0)}, usual(4)),
    "a small gain among quiet runs": (50.0, {ODD: 200.0, usual(4): 188.0, usual(2): 100.0}, ODD),
    "a small gain among runs that scatter": (
        50.0,
        {ODD: 200.0, usual(4): 188.0, usual(2): (60.0, 100.0, 170.0)},
        usual(4),
    ),
    "two losses within the tie do not add up": (
        100.0,
        {usual(8): 200.0, usual(4, prefetch_factor=8): 195.0, usual(4): 193.0},
        usual(8),
    ),
    "order: no gain": (100.0, {usual(4): 200.0, UNORDERED: 202.0}, usual(4)),
    "order: in doubt": (100.0, {usual(4): 200.0, UNORDERED: 210.0}, usual(4)),
    "batch size: in doubt": (100.0, {usual(4): 200.0, usual(4, batch_size=256): 210.0}, usual(4)),
    "order: the gain is of another setting": (
        100.0,
        {
            usual(8, prefetch_factor=4, in_order=False): (252.0, 250.0, 251.0),
            usual(8, prefetch_factor=4): (250.0, 251.0, 252.0),
            usual(8): 150.0,
        },
        usual(8, prefetch_factor=4),
    ),
    "too small a gain": (100.0, {make_config(4): 101.0}, BASELINE),
    "a gain within noise": (100.0, {make_config(4): (90.0, 130.0, 160.0)}, BASELINE),
    "slower": (100.0, {make_config(4): 80.0}, BASELINE),
    "samples that take seconds": (0.25, {make_config(4): 0.5}, make_config(4)),
    "no candidates": ((0.25,), {}, BASELINE),
    "noise that both share": ((100.0, 50.0, 200.0), {make_config(4): (110.0, 55.0, 220.0)}, make_config(4)),
    "fewer workers without a significant gain": (
        (100.0, 100.1, 99.9),
        {usual(2): (104.4, 104.5, 104.3), usual(4): (107.0, 107.1, 106.9)},
        usual(4),
    ),
    "defaults without a significant gain": (100.0, {ODD: 107.0, usual(4): 104.4}, ODD),
}


@pytest.mark.parametrize(("baseline", "candidates", "winner"), CASES.values(), ids=CASES)
def test_the_simplest_of_the_significantly_faster_ones_wins(
    baseline: Rates, candidates: dict[LoaderConfig, Rates], winner: LoaderConfig
) -> None:
    rates = {BASELINE: baseline} | candidates
    runs = [make_candidate(one, *(of if isinstance(of, tuple) else [of] * 3)) for one, of in rates.items()]
    decision = choose(*runs)
    assert decision.config == winner
    assert (decision.speedup == 1.0) == (decision.speedup_ci95 == (1.0, 1.0)) == (winner == BASELINE)


@pytest.mark.parametrize(
    "near",
    [{"peak_host_bytes": int(0.9 * PLAN.budgets.memory_bytes)}, {"peak_shm_bytes": int(0.9 * PLAN.budgets.shm_bytes)}],
    ids=["memory", "shared memory"],
)
def test_a_default_variant_that_nearly_fills_a_budget_loses_against_a_setting_that_does_not(
    near: dict[str, int],
) -> None:
    frugal = make_candidate(usual(4, prefetch_factor=1), 200.0, 200.0, **dict.fromkeys(near, GIB))
    assert choose(SLOW, frugal, make_candidate(usual(4), 200.0, 200.0, **near)).config == frugal.config


def test_each_measured_gain_is_reported_with_its_interval() -> None:
    variant = make_candidate(usual(4), 150.0, 150.0, 150.0)
    ordered = make_candidate(usual(4, prefetch_factor=4), 200.0, 200.0, 200.0)
    unordered = make_candidate(usual(4, prefetch_factor=4, in_order=False), 300.0, 300.0, 300.0)
    decision = choose(SLOW, variant, ordered, unordered)
    assert decision.config == unordered.config
    gains = {gain.setting: gain.speedup for gain in decision.gains}
    assert gains == pytest.approx({"in_order=False": 1.5, "prefetch_factor=4, in_order=False": 2.0})
    assert all(gain.speedup_ci95 and gain.speedup_ci95[0] > 1 and not gain.is_estimate for gain in decision.gains)


def test_the_gain_of_another_batch_size_is_over_the_best_with_unchanged_training() -> None:
    runs = [make_candidate(usual(workers), rate, rate, rate) for workers, rate in ((2, 120.0), (4, 150.0))]
    large = make_candidate(usual(8, batch_size=256), 300.0, 300.0, 300.0)
    (gain,) = choose(SLOW, *runs, large).gains
    assert gain.setting == "batch_size=256, num_workers=8"
    assert gain.speedup == pytest.approx(2.0)


def test_one_run_of_each_proves_no_gain_of_a_change_of_training() -> None:
    small, large = make_candidate(usual(4), 150.0), make_candidate(usual(4, batch_size=256), 180.0)
    assert choose(SLOW, small, large).config == small.config


def test_every_interval_is_wider_if_other_configurations_scatter() -> None:
    unordered, variant = make_candidate(usual(4, in_order=False), *[250.0] * 3), make_candidate(usual(4), *[200.0] * 3)
    quiet, wild = make_candidate(usual(2), 90.0, 90.0, 90.0), make_candidate(usual(2), 80.0, 90.0, 101.0)
    calm, shaky = (choose(SLOW, variant, unordered, other) for other in (quiet, wild))
    assert calm.config == shaky.config == unordered.config
    assert shaky.samples_per_second_ci95 == unordered.ci95([variant, unordered, wild], [SLOW])
    assert width(calm.samples_per_second_ci95) < width(shaky.samples_per_second_ci95)
    assert width(calm.speedup_ci95) < width(shaky.speedup_ci95)
    assert width(calm.gains[0].speedup_ci95) < width(shaky.gains[0].speedup_ci95)


def fail(runs: CandidateRuns, number: int) -> None:
    runs.add(number, make_result(runs.config, status="crashed"), epochs=10)


def test_if_the_baseline_fails_the_best_wins_without_a_speedup() -> None:
    broken = CandidateRuns(BASELINE)
    fail(broken, 1)
    fail(broken, 1)
    decision = choose(broken, make_candidate(make_config(4), 100.0, 100.0))
    assert (decision.config, decision.speedup, decision.speedup_ci95) == (make_config(4), None, None)


def test_a_candidate_that_failed_twice_cannot_win_and_one_that_failed_once_can() -> None:
    shaky, sound = make_candidate(make_config(8), 500.0, 500.0), make_candidate(make_config(4), 150.0, 150.0)
    fail(shaky, 3)
    assert choose(SLOW, shaky, sound).config == make_config(8)
    fail(shaky, 3)
    assert choose(SLOW, shaky, sound).config == make_config(4)


def test_a_baseline_alone_decides_nothing_as_its_run_was_the_first() -> None:
    assert try_decide(SLOW, [CandidateRuns(make_config(4))]) is None
    failed = CandidateRuns(make_config(4))
    fail(failed, 1)
    assert choose(SLOW, failed).config == choose(SLOW).config == BASELINE


def test_if_nothing_ran_nothing_is_decided() -> None:
    assert try_decide(CandidateRuns(BASELINE), [CandidateRuns(make_config(4))]) is None
