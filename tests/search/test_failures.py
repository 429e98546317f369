from __future__ import annotations

from collections.abc import Callable

import pytest

from autotune.config import LoaderConfig
from autotune.protocol.measurement import TrialKind, TrialResult
from autotune.search.failures import MAX_TRIALS_WITHOUT_WORKERS, Cause, FailureCheck, describe_failure, find_culprit
from tests.builders import make_config, make_result

CANDIDATES = [make_config(0), make_config(8), make_config(2), make_config(1)]
FEW_SAMPLES = 40  # of the 1,000 that a trial which completes goes through
MANY_SAMPLES = 100_000


class Tries:
    """Answers every trial by a rule, and remembers what was tried."""

    def __init__(self, rule: Callable[[LoaderConfig], TrialResult]) -> None:
        self._rule = rule
        self.configs: list[LoaderConfig] = []

    def __call__(self, config: LoaderConfig) -> TrialResult:
        self.configs.append(config)
        return self._rule(config)


def fail(
    config: LoaderConfig, kind: TrialKind = "workload_failed", samples: int = FEW_SAMPLES, words: str = "'handle'"
) -> TrialResult:
    return TrialResult(kind=kind, config=config, message=f"raised KeyError: {words}", samples=samples)


def complete(config: LoaderConfig) -> TrialResult:
    return make_result(config, 1000.0)


def fail_with_workers(kind: TrialKind, samples: int = FEW_SAMPLES) -> Tries:
    return Tries(lambda config: fail(config, kind, samples) if config.dataloader.num_workers else complete(config))


def judge(check: FailureCheck, *results: TrialResult) -> bool:
    check.trials.extend(results)
    return check.find_cause(results[-1])


@pytest.mark.parametrize("kind", ["workload_failed", "crashed", "stalled"])
def test_code_that_fails_with_one_worker_and_works_without_rules_workers_out_and_says_why(kind: TrialKind) -> None:
    tries = fail_with_workers(kind)
    check = FailureCheck(CANDIDATES, tries)
    assert judge(check, fail(make_config(8), kind))
    assert tries.configs == [make_config(1), make_config(0)]
    assert check.reason is not None
    assert "it works with num_workers=0" in check.reason
    assert "KeyError: 'handle'" in check.reason


@pytest.mark.parametrize("kind", ["workload_failed", "crashed", "stalled"])
def test_code_that_fails_without_workers_as_well_is_not_blamed_on_them(kind: TrialKind) -> None:
    check = FailureCheck(CANDIDATES, Tries(lambda config: fail(config, kind)))
    assert judge(check, fail(make_config(8), kind))
    assert check.reason is None
    assert check.flaw is not None
    assert "with and without workers" in describe_failure(check.trials, check.flaw)


def test_failures_without_workers_that_were_seen_before_save_the_trials() -> None:
    tries = fail_with_workers("crashed")
    check = FailureCheck(CANDIDATES, tries)
    judge(check, fail(make_config(0)), complete(make_config(0)), fail(make_config(8), samples=500))
    assert check.flaw is not None
    assert tries.configs == []


def test_what_fails_without_workers_far_less_often_than_with_them_is_blamed_on_workers() -> None:
    check = FailureCheck(CANDIDATES, fail_with_workers("workload_failed"))
    judge(check, fail(make_config(0)), *[complete(make_config(0))] * 20, fail(make_config(8)))
    assert check.reason is not None
    assert check.flaw is None


def test_as_many_samples_are_run_without_workers_as_it_takes_to_tell() -> None:
    tries = fail_with_workers("workload_failed", samples=700)
    check = FailureCheck(CANDIDATES, tries)
    judge(check, fail(make_config(8), samples=700), fail(make_config(8), samples=700))
    assert tries.configs == [make_config(1), *[make_config(0)] * 3]
    assert check.reason is not None


def test_where_that_would_take_too_long_nobody_is_blamed() -> None:
    tries = fail_with_workers("workload_failed", samples=MANY_SAMPLES)
    check = FailureCheck(CANDIDATES, tries)
    assert not judge(check, fail(make_config(8), samples=MANY_SAMPLES))
    assert not judge(check, fail(make_config(2), samples=MANY_SAMPLES))
    assert tries.configs == [make_config(1), *[make_config(0)] * MAX_TRIALS_WITHOUT_WORKERS]
    assert (check.reason, check.flaw) == (None, None)


def test_where_every_configuration_has_workers_the_data_is_tried_without_them_all_the_same() -> None:
    tries = fail_with_workers("workload_failed")
    judge(FailureCheck([make_config(8, batch_size=16)], tries), fail(make_config(8, batch_size=16)))
    assert tries.configs == [make_config(0, batch_size=16)]


def test_batches_of_one_size_that_fail_with_workers_and_without_say_nothing_of_the_data() -> None:
    check = FailureCheck(CANDIDATES, Tries(complete))
    large = {workers: fail(make_config(workers, batch_size=512), samples=512) for workers in (0, 8)}
    assert not judge(check, complete(make_config(0)), large[0], large[0], large[8], large[8])
    assert (check.reason, check.flaw) == (None, None)


def test_a_failure_that_one_worker_does_not_show_is_about_the_configuration() -> None:
    check = FailureCheck(CANDIDATES, Tries(complete))
    judge(check, fail(make_config(8)))
    assert check.reason is None


@pytest.mark.parametrize("kind", ["out_of_memory", "shm_exhausted", "too_many_files", "timed_out", "completed"])
def test_a_resource_that_ran_out_says_nothing_of_workers(kind: TrialKind) -> None:
    tries = fail_with_workers(kind)
    check = FailureCheck(CANDIDATES, tries)
    judge(check, fail(make_config(8), kind))
    assert tries.configs == []
    assert check.reason is None


def test_a_step_that_fails_says_nothing_of_workers() -> None:
    tries = fail_with_workers("workload_failed")
    judge(FailureCheck(CANDIDATES, tries), fail(make_config(8)).model_copy(update={"in_step": True}))
    assert tries.configs == []


def test_it_is_found_out_only_once() -> None:
    tries = Tries(complete)
    check = FailureCheck(CANDIDATES, tries)
    for workers in (8, 2):
        judge(check, fail(make_config(workers), "stalled"))
    assert len(tries.configs) == 1


def count_runs(check: FailureCheck, *results: TrialResult) -> int:
    """Run a trial that gives these results, and return how often it ran."""
    left = list(results)
    check.run(results[0].config, lambda config: left.pop(0))
    return len(results) - len(left)


def test_a_failure_may_be_bad_luck_until_it_has_repeated_itself() -> None:
    check = FailureCheck(CANDIDATES, Tries(complete))
    first = fail(make_config(8), "crashed")
    assert count_runs(check, first, complete(make_config(8))) == 2
    assert count_runs(check, first, first) == 2
    assert count_runs(check, first, first) == 1
    assert len(check.trials) == 5
    (warning,) = check.warnings
    assert warning.startswith("About 4 of ")


def test_an_error_that_has_repeated_itself_does_not_prevent_the_retry_of_another() -> None:
    check = FailureCheck(CANDIDATES, Tries(complete))
    first = fail(make_config(8))
    assert count_runs(check, first, first) == 2
    other = first.model_copy(update={"message": "raised OSError: stale file handle"})
    assert count_runs(check, other, other) == 2


@pytest.mark.parametrize("kind", ["stalled", "timed_out", "out_of_memory", "completed"])
def test_a_hang_and_a_resource_that_ran_out_are_not_retried(kind: TrialKind) -> None:
    failure = fail(make_config(8), kind)
    assert count_runs(FailureCheck(CANDIDATES, Tries(complete)), failure, failure) == 1


def test_a_failure_without_workers_is_retried() -> None:
    failure = fail(make_config(0))
    assert count_runs(FailureCheck(CANDIDATES, Tries(complete)), failure, failure) == 2


def test_suspected_workers_are_tried_with_the_fewest_before_any_others() -> None:
    check = FailureCheck(CANDIDATES, Tries(complete))
    first = check.order([make_config(8), make_config(0), make_config(2)], is_suspected=True)
    assert first == [make_config(0), make_config(1), make_config(8), make_config(2)]


# Failure rates

ERROR = "raised ValueError: bits is 9. Some advice."


def fail_by(workers: int, samples: int, kind: TrialKind = "workload_failed", message: str = ERROR) -> TrialResult:
    return TrialResult(kind=kind, config=make_config(workers), samples=samples, message=message)


WORKS = make_result(make_config(0), 500.0)  # 1,000 samples


@pytest.mark.parametrize(
    ("results", "culprit"),
    [
        ((), None),
        ((fail_by(0, 40),), None),
        ((fail_by(2, 40),), None),
        ((fail_by(2, 40), WORKS), "workers"),
        ((*[fail_by(2, 300)] * 3, WORKS), "workers"),
        ((*[fail_by(2, 400)] * 3, WORKS), None),
        ((*[fail_by(2, 400)] * 3, WORKS, WORKS), "workers"),
        ((*[fail_by(2, 400)] * 3, WORKS, fail_by(0, 200)), "data"),
        ((*[fail_by(2, 400)] * 3, WORKS, fail_by(0, 200, message="raised KeyError: 'label'")), "workers"),
        ((*[fail_by(2, 30)] * 3, *[WORKS] * 5, fail_by(0, 200)), "workers"),
        ((*[fail_by(2, 0, "stalled")] * 2, fail_by(0, 0, "stalled")), "data"),
    ],
)
def test_who_is_to_blame_is_a_matter_of_the_rate(results: tuple[TrialResult, ...], culprit: str | None) -> None:
    assert find_culprit(results) == culprit


def test_the_rates_do_not_count_a_step_that_fails_as_a_failure_of_workers() -> None:
    assert find_culprit([fail_by(2, 40).model_copy(update={"in_step": True}), WORKS]) is None


def test_a_rate_is_told_with_the_error_and_the_place() -> None:
    trials = [fail_by(2, 300), fail_by(2, 400), fail_by(0, 220).model_copy(update={"index": 17}), WORKS]
    words = "about 3 of 1,920 samples (one is sample 17) raise ValueError: bits is 9, with and without workers"
    assert describe_failure(trials, Cause.of(fail_by(2, 1))) == words


def test_a_process_that_died_is_counted_in_trials() -> None:
    died = fail_by(2, 300, "crashed", "lost a worker process: killed. Advice")
    words = "in 1 of 1 trials it lost a worker process: killed, with workers"
    assert describe_failure([died, WORKS], Cause.of(died)) == words
