from __future__ import annotations

from collections.abc import Callable

import pytest

from autotune.config import LoaderConfig
from autotune.protocol.measurement import PICKLE_ADVICE, TrialResult, TrialStatus
from autotune.search.failures import (
    ADVICE,
    MAX_TRIALS_WITHOUT_WORKERS,
    FailureCheck,
    cause_of,
    describe_failure,
    find_culprit,
)
from tests.builders import make_config, make_result

CANDIDATES = [make_config(0), make_config(8), make_config(2), make_config(1)]
FEW_SAMPLES = 40  # of the 1,000 of a completed trial
MANY_SAMPLES = 100_000
CODE_FAILURES = pytest.mark.parametrize("kind", ["workload_failed", "crashed", "stalled"])


class Trials:
    """Returns the result of each trial by a rule, and stores what was tried."""

    def __init__(self, rule: Callable[[LoaderConfig], TrialResult]) -> None:
        self._rule = rule
        self.configs: list[LoaderConfig] = []

    def __call__(self, config: LoaderConfig) -> TrialResult:
        self.configs.append(config)
        return self._rule(config)


def fail(
    workers: int,
    kind: TrialStatus = "workload_failed",
    samples: int = FEW_SAMPLES,
    *,
    batch_size: int = 32,
    message: str = "raised KeyError: 'handle'. Some advice.",
    cause: str = "KeyError at data.py:3",
) -> TrialResult:
    config, cause = make_config(workers, batch_size=batch_size), cause if kind == "workload_failed" else ""
    return TrialResult(status=kind, config=config, message=message, samples=samples, cause=cause)


def complete(config: LoaderConfig) -> TrialResult:
    return make_result(config, 1000.0)


WORKS = complete(make_config(0))  # 1,000 samples


def fail_with_workers(kind: TrialStatus = "workload_failed", samples: int = FEW_SAMPLES) -> Trials:
    failure = fail(1, kind, samples)
    return Trials(
        lambda one: failure.model_copy(update={"config": one}) if one.dataloader.num_workers else complete(one)
    )


def judge(check: FailureCheck, *results: TrialResult) -> bool:
    check.trials.extend(results)
    return check.find_cause(results[-1])


@CODE_FAILURES
def test_code_that_fails_with_one_worker_and_works_without_rules_workers_out(kind: TrialStatus) -> None:
    trials = fail_with_workers(kind)
    check = FailureCheck(CANDIDATES, trials)
    assert judge(check, fail(8, kind))
    assert trials.configs == [make_config(1), make_config(0)]
    assert check.reason is not None
    assert "num_workers=1: it raised KeyError: 'handle'); it works with num_workers=0" in check.reason


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (f"PicklingError: Can't pickle a lambda. {PICKLE_ADVICE}.", f"{PICKLE_ADVICE}."),
        ("UnpicklingError: pickle data was truncated.", ADVICE["workload_failed"]),  # of a file that workers share
        ("KeyError: 'St. Gallen'.", ADVICE["workload_failed"]),
    ],
)
def test_an_error_of_pickling_is_not_blamed_on_a_shared_file(error: str, expected: str) -> None:
    failure = fail(1, message=f"raised {error}")
    check = FailureCheck(CANDIDATES, Trials(lambda one: failure if one.dataloader.num_workers else complete(one)))
    judge(check, failure)
    assert check.reason is not None
    assert check.reason.endswith(f"it works with num_workers=0. {expected}")


@CODE_FAILURES
def test_code_that_fails_without_workers_too_is_a_flaw_of_the_data(kind: TrialStatus) -> None:
    check = FailureCheck(CANDIDATES, Trials(lambda config: fail(config.dataloader.num_workers, kind)))
    assert judge(check, fail(8, kind))
    assert check.reason is None
    assert check.flaw is not None
    assert "with and without workers" in str(check.make_error(check.flaw))


def test_trials_without_workers_go_on_until_the_rates_decide() -> None:
    check = FailureCheck(CANDIDATES, trials := fail_with_workers(samples=700))
    judge(check, *[fail(8, samples=700)] * 2)
    assert trials.configs == [make_config(1), *[make_config(0)] * 3]
    assert check.reason is not None


def test_rates_that_take_too_long_decide_nothing() -> None:
    check = FailureCheck(CANDIDATES, trials := fail_with_workers(samples=MANY_SAMPLES))
    assert not judge(check, fail(8, samples=MANY_SAMPLES))
    assert not judge(check, fail(2, samples=MANY_SAMPLES))
    assert trials.configs == [make_config(1), *[make_config(0)] * MAX_TRIALS_WITHOUT_WORKERS]
    assert (check.reason, check.flaw) == (None, None)


def test_the_data_is_tried_without_workers_even_if_every_candidate_has_some() -> None:
    trials = fail_with_workers()
    judge(FailureCheck([make_config(8, batch_size=16)], trials), fail(8, batch_size=16))
    assert trials.configs == [make_config(0, batch_size=16)]


def test_batches_of_one_size_that_always_fail_are_no_flaw_of_the_data() -> None:
    check = FailureCheck(CANDIDATES, Trials(complete))
    large = {workers: fail(workers, batch_size=512, samples=512) for workers in (0, 8)}
    assert not judge(check, WORKS, large[0], large[0], large[8], large[8])
    assert (check.reason, check.flaw) == (None, None)


def test_a_failure_that_the_fewest_workers_do_not_show_is_tested_once_and_about_the_configuration() -> None:
    check = FailureCheck(CANDIDATES, trials := Trials(complete))
    for workers in (8, 2):
        judge(check, fail(workers, "stalled"))
    assert check.reason is None
    assert trials.configs == [make_config(1)]


@pytest.mark.parametrize(
    "failure",
    [
        *(fail(8, kind) for kind in ("out_of_memory", "shm_exhausted", "too_many_files", "timed_out")),
        complete(make_config(8)),
        fail(8).model_copy(update={"in_step": True}),
    ],
)
def test_a_resource_that_ran_out_or_a_step_that_fails_is_not_about_workers(failure: TrialResult) -> None:
    trials = fail_with_workers()
    assert not judge(FailureCheck(CANDIDATES, trials), failure)
    assert trials.configs == []


def count_runs(check: FailureCheck, *results: TrialResult) -> int:
    """Run a trial with these results, and return how often it ran."""
    left = list(results)
    check.run(results[0].config, lambda config: left.pop(0))
    return len(results) - len(left)


def test_a_failure_is_retried_until_it_has_repeated_itself() -> None:
    check = FailureCheck(CANDIDATES, Trials(complete))
    first = fail(8, "crashed")
    assert count_runs(check, first, complete(make_config(8))) == 2
    assert count_runs(check, first, first) == 2
    assert count_runs(check, first, first) == 1
    assert len(check.trials) == 5
    (warning,) = check.warnings
    assert warning.startswith("In 4 of 5 trials ")


@pytest.mark.parametrize(
    ("other", "runs"),
    [
        (fail(8, message="raised KeyError: 'label'"), 1),
        (fail(8, cause="KeyError at data.py:9"), 2),
        (fail(8, cause="OSError at data.py:3"), 2),
    ],
)
def test_failures_are_equal_if_type_and_place_are(other: TrialResult, runs: int) -> None:
    check = FailureCheck(CANDIDATES, Trials(complete))
    assert count_runs(check, fail(8), fail(8)) == 2
    assert count_runs(check, other, other) == runs


@pytest.mark.parametrize(
    ("failure", "runs"),
    [(fail(0), 2), (fail(8, "stalled"), 1), (fail(8, "out_of_memory"), 1), (complete(make_config(8)), 1)],
)
def test_a_hang_and_a_resource_that_ran_out_are_not_retried(failure: TrialResult, runs: int) -> None:
    assert count_runs(FailureCheck(CANDIDATES, Trials(complete)), failure, failure) == runs


@pytest.mark.parametrize(
    ("results", "culprit"),
    [
        ((), None),
        ((fail(0),), None),
        ((fail(2),), None),
        ((fail(2), WORKS), "workers"),
        ((fail(2).model_copy(update={"in_step": True}), WORKS), None),
        ((*[fail(2, samples=300)] * 3, WORKS), "workers"),
        ((*[fail(2, samples=400)] * 3, WORKS), None),
        ((*[fail(2, samples=400)] * 3, WORKS, WORKS), "workers"),
        ((*[fail(2, samples=400)] * 3, WORKS, fail(0, samples=200)), "data"),
        ((*[fail(2, samples=400)] * 3, WORKS, fail(0, samples=200, cause="OSError at data.py:3")), "workers"),
        ((*[fail(2, samples=30)] * 3, *[WORKS] * 5, fail(0, samples=200)), "workers"),
        ((*[fail(2, "stalled", 0)] * 2, fail(0, "stalled", 0)), "data"),
    ],
)
def test_the_rates_of_equal_failures_decide(results: tuple[TrialResult, ...], culprit: str | None) -> None:
    assert find_culprit(results) == culprit


@pytest.mark.parametrize(
    ("trials", "text"),
    [
        (
            [fail(2, samples=300), fail(2, samples=400), fail(0, samples=220), WORKS],
            "in 3 of 4 trials (1,920 samples) it raised KeyError: 'handle', with and without workers",
        ),
        (
            [fail(2, "crashed", message="lost a worker process: killed. Advice"), WORKS],
            "in 1 of 1 trials (40 samples) it lost a worker process: killed, with workers",
        ),
        (
            [fail(2).model_copy(update={"in_step": True})],
            "in 1 of 1 trials (40 samples) the training step raised KeyError: 'handle'",
        ),
    ],
)
def test_a_failure_is_described_with_its_rate(trials: list[TrialResult], text: str) -> None:
    assert describe_failure(trials, cause_of(trials[0])) == text


@pytest.mark.parametrize(("works", "warns"), [(32, True), (64, False)])
def test_a_step_that_fails_twice_with_a_batch_size_that_works_is_reported(works: int, warns: bool) -> None:
    check = FailureCheck(CANDIDATES, complete)
    failure = fail(2).model_copy(update={"in_step": True})
    assert not judge(check, complete(make_config(0, batch_size=works)), failure, failure)
    text = "In 2 of 3 trials (1,080 samples) the training step raised KeyError: 'handle'. A training run may"
    assert [sentence.startswith(text) for sentence in check.warnings] == [True] * warns
