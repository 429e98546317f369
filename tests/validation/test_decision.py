from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from autotune.config import Interval, LoaderConfig
from autotune.search.defaults import DefaultValues, default_values
from autotune.search.plan import make_plan
from autotune.search.surrogate import SpeedupPrediction
from autotune.search.trial_record import TrialRecord
from autotune.validation.decision import FINALISTS, MIN_SPEEDUP, Decision, decide, select_finalists
from autotune.validation.rounds import Validation
from autotune.validation.runs import CandidateRuns
from tests.builders import (
    GIB,
    make_config,
    make_candidate,
    make_limits,
    make_machine,
    make_request,
    make_result,
    make_workload,
)

BASELINE = make_config(0)
LIMITS = make_limits()


def make_convention(baseline: LoaderConfig = BASELINE, **asked: object) -> DefaultValues:
    """Build what is conventional for an ordinary dataset: prefetch 2, persistent, in order, file descriptors."""
    request = make_request(**asked)
    plan = make_plan(request, make_machine(), make_workload(), LIMITS)
    return default_values(request, plan.space, baseline, pinning=False)


CONVENTION = make_convention()


def choose(baseline: CandidateRuns, finalists: Sequence[CandidateRuns]) -> Decision | None:
    return decide(Validation(baseline, tuple(finalists)), CONVENTION, LIMITS)


def width(interval: Interval | None) -> float:
    assert interval is not None
    return interval[1] / interval[0]


def usual(workers: int, **changes: bool) -> LoaderConfig:
    """Build a configuration that departs from convention only as told."""
    flags = {"persistent_workers": True, **changes}
    return make_config(workers, 2, 32, None, **flags)


def make_record(config: LoaderConfig, score: float, peak_host_bytes: int = 0) -> TrialRecord:
    result = make_result(config, score, peak_host_bytes=peak_host_bytes)
    return TrialRecord(number=0, config=config, status="measured", score=score, constraints={}, result=result)


def pick(records: Sequence[TrialRecord], convention: DefaultValues = CONVENTION) -> list[LoaderConfig]:
    return select_finalists(records, convention, lambda config: True)


def pick_workers(records: Sequence[TrialRecord]) -> list[int]:
    return [config.dataloader.num_workers for config in pick(records)]


def test_the_best_and_the_one_with_the_fewest_workers_close_to_it_enter_the_final_first() -> None:
    scores = {1: 500.0, 2: 930.0, 4: 960.0, 8: 1000.0, 16: 990.0}
    assert pick_workers([make_record(usual(workers), score) for workers, score in scores.items()]) == [8, 2]


def test_where_the_best_has_the_fewest_workers_the_next_best_enters_the_final_beside_it() -> None:
    scores = {1: 500.0, 2: 1000.0, 4: 960.0, 8: 990.0}
    picked = pick_workers([make_record(usual(workers), score) for workers, score in scores.items()])
    assert picked == [2, 8, 4][:FINALISTS]


def test_the_conventional_sibling_of_the_best_is_measured_beside_it_even_if_the_search_never_tried_it() -> None:
    odd = make_config(8, 4, persistent_workers=True)
    assert pick([make_record(odd, 1000.0)]) == [odd, usual(8)]


def test_where_the_best_is_out_of_order_the_same_in_order_is_measured_beside_it() -> None:
    odd = make_config(8, 4, persistent_workers=True, in_order=False)
    ordered = make_config(8, 4, persistent_workers=True)
    assert pick([make_record(odd, 1000.0)]) == [odd, ordered, usual(8)]
    assert pick([make_record(odd, 1000.0), make_record(usual(4), 910.0)]) == [odd, ordered, usual(8)]


def test_who_just_reaches_a_share_of_the_best_is_close_to_it_or_worth_a_look() -> None:
    assert pick([make_record(usual(8), 1000.0), make_record(make_config(2, 8), 920.0)])[1] == usual(2)
    assert pick_workers([make_record(usual(8), 1000.0), make_record(usual(2), 750.0)]) == [8, 2]


def test_out_of_order_is_not_chosen_for_what_another_setting_gave() -> None:
    odd = make_candidate(make_config(8, 4, persistent_workers=True, in_order=False), 252.0, 250.0, 251.0)
    ordered = make_candidate(make_config(8, 4, persistent_workers=True), 250.0, 251.0, 252.0)
    sibling = make_candidate(usual(8), 150.0, 150.0, 150.0)
    decision = choose(make_candidate(BASELINE, 100.0, 100.0, 100.0), [odd, ordered, sibling])
    assert decision is not None
    assert decision.config == ordered.config


def expect_gain(gain: float) -> Callable[[Sequence[LoaderConfig]], Sequence[SpeedupPrediction]]:
    """Expect of the configuration that leaves conventions so much more than of the one that keeps them."""

    def predict_speedups(path: Sequence[LoaderConfig]) -> Sequence[SpeedupPrediction]:
        kept, left = path
        assert len(CONVENTION.list_non_defaults(kept)) < len(CONVENTION.list_non_defaults(left))
        return [SpeedupPrediction(ratio=gain, log_error=0.04)]

    return predict_speedups


@pytest.mark.parametrize(("gain", "is_kept"), [(1.01, True), (1.02, False), (1.05, False)])
def test_where_leaving_conventions_is_not_expected_to_pay_what_keeps_them_enters_the_final_instead(
    gain: float, is_kept: bool
) -> None:
    odd, few = make_config(8, 4, persistent_workers=True, in_order=False), usual(2)
    records = [make_record(odd, 1000.0), make_record(few, 950.0)]
    finalists = select_finalists(
        records,
        CONVENTION,
        lambda config: True,
        predict_speedups=expect_gain(gain),
    )
    assert finalists == (
        [usual(8), few] if is_kept else [odd, make_config(8, 4, persistent_workers=True), usual(8), few]
    )


def test_a_sibling_that_is_not_within_the_limits_does_not_enter_the_final() -> None:
    odd = make_config(8, 1, persistent_workers=True)
    records = [make_record(odd, 1000.0)]
    assert select_finalists(records, CONVENTION, lambda config: False) == [odd]
    assert select_finalists(records, CONVENTION, lambda config: config != usual(8), None, expect_gain(1.0)) == [odd]


def test_where_the_best_changes_training_the_best_that_does_not_is_measured_beside_it() -> None:
    large = make_config(8, batch_size=256, persistent_workers=True)
    for small in (usual(8), usual(4)):
        assert pick([make_record(large, 1000.0), make_record(small, 900.0)]) == [large, small]


def test_where_the_search_tried_nothing_that_trains_as_before_the_best_does_so_beside_itself() -> None:
    assert pick([make_record(make_config(8, batch_size=256, persistent_workers=True), 1000.0)])[1:] == [usual(8)]


def test_a_batch_size_that_was_asked_for_does_not_count_as_a_change_of_training() -> None:
    large = make_config(8, batch_size=256, persistent_workers=True)
    assert make_convention(batch_sizes=(32, 256)).list_training_changes(large) == ()
    assert CONVENTION.list_training_changes(large) == ("batch_size",)


def test_a_lucky_trial_does_not_lead_the_final_when_its_neighbours_were_slower() -> None:
    records = [make_record(make_config(8), 1000.0), make_record(make_config(12), 950.0)]
    finalists = select_finalists(
        records, CONVENTION, lambda config: False, {make_config(8): 900.0, make_config(12): 940.0}
    )
    assert finalists[0] == make_config(12)


def test_who_is_far_behind_does_not_enter_the_final() -> None:
    assert pick_workers([make_record(usual(1), 500.0), make_record(usual(8), 1000.0)]) == [8]


def test_failed_and_skipped_trials_do_not_enter_the_final_whatever_their_score() -> None:
    failed = TrialRecord(
        number=1,
        config=make_config(4),
        status="measured",
        score=0.0,
        constraints={},
        result=make_result(make_config(4), kind="out_of_memory"),
    )
    skipped = TrialRecord(number=2, config=make_config(9), status="skipped", score=9e9, constraints={})
    assert pick_workers([failed, skipped, make_record(usual(2), 100.0)]) == [2]


def test_without_a_trial_that_worked_there_is_no_final() -> None:
    assert pick([]) == []


def test_the_fastest_wins_when_nobody_is_close() -> None:
    fast, slow = (
        make_candidate(make_config(8), 200.0, 203.0, 197.0),
        make_candidate(make_config(2), 150.0, 150.0, 150.0),
    )
    decision = choose(make_candidate(BASELINE, 100.0, 101.0, 99.0), [slow, fast])
    assert decision is not None
    assert (decision.config, decision.verdict, decision.runner_up) == (make_config(8), "faster", None)
    assert decision.speedup == pytest.approx(2.0)
    assert decision.samples_per_second == pytest.approx(200.0)
    assert decision.speedup_ci95 is not None
    assert decision.speedup_ci95[0] < 2.0 < decision.speedup_ci95[1]


@pytest.mark.parametrize(
    ("cheap", "fast"),
    [
        pytest.param(usual(4), usual(8), id="fewer workers"),
        pytest.param(usual(4), make_config(4, 4, persistent_workers=True), id="usual prefetch, though it holds more"),
        pytest.param(usual(4), make_config(4, 1, persistent_workers=True), id="usual prefetch, though another is less"),
        pytest.param(usual(4), make_config(4), id="persistent workers"),
        pytest.param(usual(4), usual(4, in_order=False), id="order as it was"),
    ],
)
def test_of_two_within_noise_the_one_that_costs_less_wins_and_the_faster_is_named(
    cheap: LoaderConfig, fast: LoaderConfig
) -> None:
    small, large = make_candidate(cheap, 199.0, 199.0), make_candidate(fast, 200.0, 200.0)
    for finalists in ([small, large], [large, small]):
        decision = choose(make_candidate(BASELINE, 100.0, 100.0), finalists)
        assert decision is not None
        assert decision.config == cheap
        assert decision.samples_per_second == pytest.approx(199.0)


def test_the_faster_one_that_was_passed_over_for_a_cheaper_one_is_named() -> None:
    small, large = make_candidate(usual(4), 199.0, 199.0), make_candidate(usual(8), 200.0, 200.0)
    decision = choose(make_candidate(BASELINE, 100.0, 100.0), [small, large])
    assert decision is not None
    assert (decision.config, decision.runner_up) == (usual(4), usual(8))


def test_of_two_within_noise_the_one_that_leaves_fewer_conventions_wins_though_it_holds_more() -> None:
    one = make_candidate(make_config(4, 4, persistent_workers=True), 200.0, 200.0, peak_host_bytes=GIB)
    two = make_candidate(make_config(4, 4), 200.0, 200.0, peak_host_bytes=GIB // 2)
    for finalists in ([one, two], [two, one]):
        decision = choose(make_candidate(BASELINE, 100.0, 100.0), finalists)
        assert decision is not None
        assert decision.config == one.config


def test_of_two_alike_but_for_memory_the_one_that_needs_less_of_it_wins() -> None:
    shared = make_config(4, 8, persistent_workers=True), make_config(4, 4, persistent_workers=True)
    much, little = (
        make_candidate(config, 200.0, 200.0, peak_host_bytes=peak)
        for config, peak in zip(shared, (GIB, GIB // 2), strict=True)
    )
    decision = choose(make_candidate(BASELINE, 100.0, 100.0), [much, little])
    assert decision is not None
    assert decision.config == little.config


def test_a_conventional_sibling_within_three_per_cent_wins_and_one_further_behind_does_not() -> None:
    odd = make_candidate(make_config(4, 4, persistent_workers=True), 200.0, 200.0, 200.0)
    for rate, winner in ((195.0, usual(4)), (190.0, odd.config)):
        decision = choose(
            make_candidate(BASELINE, 100.0, 100.0, 100.0), [odd, make_candidate(usual(4), rate, rate, rate)]
        )
        assert decision is not None
        assert decision.config == winner


def test_a_setting_that_may_only_have_been_lucky_does_not_leave_its_convention() -> None:
    lucky = make_candidate(make_config(4, 4, persistent_workers=True), 200.0, 290.0, 180.0)
    sibling = make_candidate(usual(4), 190.0, 170.0, 210.0)
    decision = choose(make_candidate(BASELINE, 50.0, 50.0, 50.0), [lucky, sibling])
    assert decision is not None
    assert decision.config == usual(4)


@pytest.mark.parametrize(("other", "is_left"), [((100.0, 100.0, 100.0), True), ((60.0, 100.0, 170.0), False)])
def test_where_others_scatter_leaving_a_convention_has_to_gain_more(other: tuple[float, ...], is_left: bool) -> None:
    odd = make_candidate(make_config(4, 4, persistent_workers=True), 200.0, 200.0, 200.0)
    sibling = make_candidate(usual(4), 188.0, 188.0, 188.0)
    baseline = make_candidate(BASELINE, 50.0, 50.0, 50.0)
    decision = choose(baseline, [odd, sibling, make_candidate(usual(2), *other)])
    assert decision is not None
    assert decision.config == (odd.config if is_left else usual(4))


def test_fewer_workers_do_not_win_by_a_setting_that_does_not_pay() -> None:
    """Else two losses of 3 % would add up: one for fewer workers, one for the convention."""
    many, few = (
        make_candidate(usual(8), 200.0, 200.0),
        make_candidate(make_config(4, 8, persistent_workers=True), 195.0, 195.0),
    )
    sibling = make_candidate(usual(4), 193.0, 193.0)
    decision = choose(make_candidate(BASELINE, 100.0, 100.0), [many, few, sibling])
    assert decision is not None
    assert decision.config == many.config


@pytest.mark.parametrize(
    "near",
    [{"peak_host_bytes": int(0.9 * LIMITS.memory_bytes)}, {"peak_shm_bytes": int(0.9 * LIMITS.shm_bytes)}],
    ids=["memory", "shared memory"],
)
def test_a_conventional_sibling_that_comes_near_a_budget_yields_to_a_setting_that_does_not(
    near: dict[str, int],
) -> None:
    little = dict.fromkeys(near, GIB)
    frugal = make_candidate(make_config(4, 1, persistent_workers=True), 200.0, 200.0, **little)
    sibling = make_candidate(usual(4), 200.0, 200.0, **near)
    decision = choose(make_candidate(BASELINE, 100.0, 100.0), [frugal, sibling])
    assert decision is not None
    assert decision.config == frugal.config


@pytest.mark.parametrize("gain", [1.01, 1.05])
def test_training_stays_as_it_was_unless_changing_it_gains_more_than_its_interval(gain: float) -> None:
    kept = make_candidate(usual(4), 200.0, 200.0, 200.0)
    for changed in (usual(4, in_order=False), make_config(4, batch_size=256, persistent_workers=True)):
        rival = make_candidate(changed, *[200.0 * gain] * 3)
        decision = choose(make_candidate(BASELINE, 100.0, 100.0, 100.0), [kept, rival])
        assert decision is not None
        assert decision.config == usual(4)


def test_what_leaving_a_convention_gained_is_told_with_its_interval() -> None:
    kept = make_candidate(usual(4), 200.0, 200.0, 200.0)
    unordered = make_candidate(usual(4, in_order=False), 250.0, 250.0, 250.0)
    decision = choose(make_candidate(BASELINE, 100.0, 100.0, 100.0), [kept, unordered])
    assert decision is not None
    assert decision.config == unordered.config
    (gain,) = decision.departures
    assert gain.setting == "in_order=False"
    assert gain.speedup == pytest.approx(1.25)
    assert gain.speedup_ci95 is not None
    assert 1 < gain.speedup_ci95[0] < 1.25 < gain.speedup_ci95[1]


def test_what_each_step_away_from_convention_gained_is_told_by_itself() -> None:
    kept = make_candidate(usual(4), 150.0, 150.0, 150.0)
    ordered = make_candidate(make_config(4, 4, persistent_workers=True), 200.0, 200.0, 200.0)
    unordered = make_candidate(make_config(4, 4, persistent_workers=True, in_order=False), 300.0, 300.0, 300.0)
    decision = choose(make_candidate(BASELINE, 100.0, 100.0, 100.0), [kept, ordered, unordered])
    assert decision is not None
    assert decision.config == unordered.config
    gains = {gain.setting: gain.speedup for gain in decision.departures}
    assert gains == pytest.approx({"in_order=False": 1.5, "prefetch_factor=4 in_order=False": 2.0})


def test_what_another_batch_size_gained_is_told_against_the_best_that_trains_as_before() -> None:
    runs = [make_candidate(usual(workers), rate, rate, rate) for workers, rate in ((2, 120.0), (4, 150.0))]
    large = make_candidate(make_config(8, batch_size=256, persistent_workers=True), 300.0, 300.0, 300.0)
    decision = choose(make_candidate(BASELINE, 100.0, 100.0, 100.0), [*runs, large])
    assert decision is not None
    assert decision.config == large.config
    (gain,) = decision.departures
    assert gain.setting == "batch_size=256 num_workers=8"
    assert gain.speedup == pytest.approx(2.0)


def test_what_is_promised_allows_for_the_scatter_of_everything_that_was_measured_beside_it() -> None:
    unordered = make_candidate(usual(4, in_order=False), 250.0, 250.0, 250.0)
    kept, baseline = make_candidate(usual(4), 200.0, 200.0, 200.0), make_candidate(BASELINE, 100.0, 100.0, 100.0)
    quiet, wild = (make_candidate(usual(2), *rates) for rates in ((90.0, 90.0, 90.0), (70.0, 90.0, 115.0)))
    calm, shaky = (choose(baseline, [kept, unordered, other]) for other in (quiet, wild))
    assert calm is not None
    assert shaky is not None
    assert calm.config == shaky.config == unordered.config
    assert shaky.ci95 == unordered.ci95([kept, unordered, wild], [baseline])
    for widths in (
        [width(decision.ci95) for decision in (calm, shaky)],
        [width(decision.speedup_ci95) for decision in (calm, shaky)],
        [width(decision.departures[0].speedup_ci95) for decision in (calm, shaky)],
    ):
        assert widths == sorted(widths)
        assert widths[0] < widths[1]


@pytest.mark.parametrize(("other", "verdict"), [((105.0, 105.0, 105.0), "faster"), ((60.0, 105.0, 170.0), "no_change")])
def test_a_small_gain_is_in_doubt_where_others_scatter(other: tuple[float, ...], verdict: str) -> None:
    gaining = make_candidate(make_config(4), 106.0, 106.0, 106.0)
    decision = choose(make_candidate(BASELINE, 100.0, 100.0, 100.0), [gaining, make_candidate(usual(8), *other)])
    assert decision is not None
    assert decision.verdict == verdict


def test_an_answer_that_keeps_every_convention_has_nothing_to_tell_of_leaving_them() -> None:
    decision = choose(make_candidate(BASELINE, 100.0, 100.0), [make_candidate(usual(4), 200.0, 200.0)])
    assert decision is not None
    assert decision.departures == ()


@pytest.mark.parametrize(
    "rates",
    [
        pytest.param((101.0, 101.0, 101.0), id="too small a gain"),
        pytest.param((90.0, 130.0, 160.0), id="within noise"),
        pytest.param((80.0, 80.0, 80.0), id="slower"),
    ],
)
def test_the_baseline_is_kept_unless_the_gain_is_beyond_doubt(rates: tuple[float, ...]) -> None:
    decision = choose(make_candidate(BASELINE, 100.0, 100.0, 100.0), [make_candidate(make_config(4), *rates)])
    assert decision is not None
    assert (decision.config, decision.verdict, decision.speedup) == (BASELINE, "no_change", 1.0)
    assert decision.speedup_ci95 == (1.0, 1.0)
    assert decision.samples_per_second == pytest.approx(100.0)


@pytest.mark.parametrize(("rate", "verdict", "speedup"), [(0.5, "faster", 2.0), (0.25, "no_change", 1.0)])
def test_samples_that_take_seconds_each_are_decided_on_as_others_are(rate: float, verdict: str, speedup: float) -> None:
    decision = choose(make_candidate(BASELINE, *[0.25] * 3), [make_candidate(make_config(4), *[rate] * 3)])
    assert decision is not None
    assert decision.verdict == verdict
    assert decision.speedup == pytest.approx(speedup)
    assert choose(make_candidate(BASELINE, 0.25), []) is not None


def test_noise_that_both_share_in_every_round_does_not_hide_a_gain() -> None:
    decision = choose(
        make_candidate(BASELINE, 100.0, 50.0, 200.0), [make_candidate(make_config(4), 110.0, 55.0, 220.0)]
    )
    assert decision is not None
    assert decision.verdict == "faster"
    assert decision.speedup == pytest.approx(1.1)


def test_rounds_that_only_one_of_them_has_seen_are_left_out_of_the_comparison() -> None:
    decision = choose(make_candidate(BASELINE, 100.0, 100.0, 100.0), [make_candidate(make_config(4), 200.0, 200.0)])
    assert decision is not None
    assert decision.speedup == pytest.approx(2.0)


def test_where_the_baseline_cannot_run_the_best_wins_without_a_speedup() -> None:
    broken = CandidateRuns(BASELINE)
    for _ in range(2):
        broken.note(make_result(BASELINE, kind="out_of_memory"), epochs=10)
    decision = choose(broken, [make_candidate(make_config(4), 100.0, 100.0)])
    assert decision is not None
    assert (decision.verdict, decision.speedup, decision.speedup_ci95) == ("faster", None, None)


def test_a_finalist_that_failed_twice_cannot_win_and_one_that_failed_once_can() -> None:
    shaky = make_candidate(make_config(8), 500.0, 500.0)
    shaky.note(make_result(make_config(8), kind="crashed"), epochs=10)
    once = choose(make_candidate(BASELINE, 100.0, 100.0), [shaky, make_candidate(make_config(4), 150.0, 150.0)])
    assert once is not None
    assert once.config == make_config(8)
    shaky.note(make_result(make_config(8), kind="crashed"), epochs=10)
    decision = choose(make_candidate(BASELINE, 100.0, 100.0), [shaky, make_candidate(make_config(4), 150.0, 150.0)])
    assert decision is not None
    assert decision.config == make_config(4)


def test_without_finalists_the_baseline_is_kept() -> None:
    decision = choose(make_candidate(BASELINE, 100.0, 100.0), [])
    assert decision is not None
    assert (decision.config, decision.verdict) == (BASELINE, "no_change")


def test_where_nothing_ran_there_is_nothing_to_choose() -> None:
    assert choose(CandidateRuns(BASELINE), [CandidateRuns(make_config(4))]) is None


def test_a_best_that_is_clearly_faster_is_not_given_up_for_a_smaller_one_that_is_not() -> None:
    baseline = make_candidate(BASELINE, 100.0, 100.1, 99.9)
    small = make_candidate(make_config(2), 104.6, 104.7, 104.5)
    large = make_candidate(make_config(4), 106.7, 106.8, 106.6)
    assert large.is_faster_than(baseline, MIN_SPEEDUP, [small, large])
    assert not small.is_faster_than(baseline, MIN_SPEEDUP, [small, large])
    decision = choose(baseline, [small, large])
    assert decision is not None
    assert (decision.verdict, decision.config) == ("faster", make_config(4))
