from __future__ import annotations

from collections.abc import Callable

import pytest

from autotune.config import LoaderConfig
from autotune.progress import ProgressListener
from autotune.search.plan import Plan, make_plan
from autotune.trial.measurement import TrialResult
from autotune.trial.protocol import TrialRequest
from autotune.validation.interference import InterferenceMonitor
from autotune.validation.rounds import MAX_ROUNDS, MAX_SCATTERED_ROUNDS, ROUNDS, Validation, confirm
from tests.builders import make_config, make_limits, make_machine, make_request, make_result, make_workload

Rate = Callable[[LoaderConfig, int], float]
FEW, MANY = make_config(2), make_config(8)


def make_test_plan() -> Plan:
    return make_plan(make_request(batch_sizes=(32,)), make_machine(), make_workload(), make_limits())


def confirm_two(rate: Rate, watch: InterferenceMonitor | None = None, measurements: int = 1000) -> Validation:
    """Confirm two finalists by a formula of the configuration and of how often it was measured before.

    There is time for so many measurements.
    """
    counts: dict[LoaderConfig, int] = {}

    def run_trial(request: TrialRequest) -> TrialResult:
        assert request.fresh
        counts[request.config] = counts.get(request.config, -1) + 1
        return make_result(request.config, rate(request.config, counts[request.config]))

    def has_time(count: int) -> bool:
        done = sum(counts.values()) + len(counts)
        return done + count <= measurements

    return confirm(make_test_plan(), [FEW, MANY], run_trial, ProgressListener(), watch, has_time)


def steady(config: LoaderConfig, round_number: int) -> float:
    return 100.0 + 100.0 * config.dataloader.num_workers


def test_a_quiet_machine_needs_no_more_rounds() -> None:
    assert confirm_two(steady).rounds == ROUNDS


def scattered(config: LoaderConfig, round_number: int) -> float:
    """Give the two finalists nearly the same rate, far above the baseline's, and every other round a third more."""
    rate = {FEW: 299.0, MANY: 300.0}.get(config, 100.0)
    return rate * (1.3 if round_number % 2 else 1.0)


def test_where_only_the_rounds_of_the_best_lie_far_apart_it_is_measured_once_more_beside_the_baseline() -> None:
    found = confirm_two(scattered)
    assert found.rounds == MAX_SCATTERED_ROUNDS
    counts = {one.config: len(one.scores) for one in found.entrants[1:]}
    assert counts == {FEW: ROUNDS, MANY: MAX_SCATTERED_ROUNDS}
    assert len(found.baseline.scores) == MAX_SCATTERED_ROUNDS


def test_a_finalist_that_was_measured_often_enough_may_still_win() -> None:
    assert [one.config for one in confirm_two(scattered).finalists] == [FEW, MANY]


def test_a_verdict_in_doubt_is_given_all_rounds_by_all() -> None:
    found = confirm_two(lambda config, number: (98.0 if number % 2 else 120.0) if config in (FEW, MANY) else 100.0)
    assert found.rounds == MAX_ROUNDS
    assert {len(one.scores) for one in found.entrants} == {MAX_ROUNDS}


def test_who_is_behind_is_not_measured_again() -> None:
    found = confirm_two(steady)
    assert [finalist.config for finalist in found.finalists] == [MANY]
    assert len(found.finalists[0].scores) == ROUNDS


def confirm_with_failures(failures: int) -> Validation:
    """Confirm two finalists, of which the faster one fails so many times before it works."""
    left = failures

    def run_trial(request: TrialRequest) -> TrialResult:
        nonlocal left
        if request.config == MANY and left:
            left -= 1
            return make_result(request.config, kind="workload_failed", message="had its port taken")
        return make_result(request.config, steady(request.config, 0))

    return confirm(make_test_plan(), [FEW, MANY], run_trial, ProgressListener())


def test_a_trial_that_failed_is_looked_at_once_more_before_its_configuration_is_given_up() -> None:
    found = confirm_with_failures(1)
    assert [finalist.config for finalist in found.finalists] == [MANY]
    assert len(found.finalists[0].scores) == ROUNDS


def test_a_configuration_that_fails_twice_is_given_up() -> None:
    assert [finalist.config for finalist in confirm_with_failures(2).finalists] == [FEW]


def test_what_of_ours_still_runs_is_ended_before_others_are_looked_at() -> None:
    order: list[str] = []
    watch = InterferenceMonitor(
        2.0,
        read=lambda: order.append("read"),
        sleep=lambda seconds: None,
        settle=lambda: order.append("settle"),
    )
    watch.measure_others()
    assert order[0] == "settle"


def test_the_conventional_sibling_of_the_best_is_measured_as_often_as_the_best_however_far_behind() -> None:
    odd, sibling = make_config(8, 4, persistent_workers=True), make_config(8, 2, persistent_workers=True)

    def run_trial(request: TrialRequest) -> TrialResult:
        return make_result(request.config, 200.0 if request.config == odd else 100.0)

    final = confirm(make_test_plan(), [odd, sibling, MANY], run_trial, ProgressListener())
    assert {one.config: len(one.scores) for one in final.finalists} == {odd: ROUNDS, sibling: ROUNDS}


def test_a_machine_that_slows_down_for_all_is_told_to_the_user() -> None:
    watch = InterferenceMonitor(2.0, read=lambda: None, sleep=lambda seconds: None)
    found = confirm_two(lambda config, number: steady(config, number) * 0.8**number, watch)
    assert len(found.noise) == 1
    assert "slower or faster between rounds" in found.noise[0]


@pytest.mark.parametrize("watch", [None, InterferenceMonitor(2.0, read=lambda: None, sleep=lambda seconds: None)])
def test_a_quiet_machine_is_not_complained_about(watch: InterferenceMonitor | None) -> None:
    assert confirm_two(steady, watch).noise == ()


def flat(config: LoaderConfig, round_number: int) -> float:
    return 100.0


@pytest.mark.parametrize("measurements", range(12))
def test_no_measurement_is_begun_that_there_is_no_time_for_but_one_of_baseline_and_best(measurements: int) -> None:
    found = confirm_two(flat, measurements=measurements)
    results = [len(entrant.results) for entrant in found.entrants]
    assert sum(results) <= max(2, measurements)
    assert [len(entrant.results) > 0 for entrant in found.entrants[:2]] == [True, True]
    assert found.rounds == max(1, min(ROUNDS, measurements // 3))


def test_a_finalist_that_there_was_no_time_for_is_out() -> None:
    found = confirm_two(flat, measurements=2)
    assert [finalist.config for finalist in found.finalists] == [FEW]


@pytest.mark.parametrize(("factor", "shares"), [(3.0, [1.0, 0.5]), (1.3, [1.0, 1.0])])
def test_a_baseline_that_is_far_behind_is_given_less_time_from_the_second_round_on(
    factor: float, shares: list[float]
) -> None:
    asked: list[float] = []
    plan = make_test_plan()

    def run_trial(request: TrialRequest) -> TrialResult:
        if request.config == plan.baseline:
            asked.append(request.seconds / plan.request.trial_seconds)
        return make_result(request.config, 100.0 if request.config == plan.baseline else 100.0 * factor)

    confirm(plan, [FEW, MANY], run_trial, ProgressListener())
    assert asked == shares
