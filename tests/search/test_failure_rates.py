from __future__ import annotations

import pytest

from autotune.search.failure_rates import Blamed, FailureRates, name_cause
from autotune.trial.measurement import TrialKind, TrialResult
from tests.builders import make_config, make_result

ERROR = "raised ValueError: bits is 9. Some advice."


def fail(workers: int, samples: int, kind: TrialKind = "workload_failed", message: str = ERROR) -> TrialResult:
    return TrialResult(kind=kind, config=make_config(workers), samples=samples, message=message)


def count(*results: TrialResult) -> FailureRates:
    rates = FailureRates()
    for result in results:
        rates.note(result)
    return rates


WORKS = make_result(make_config(0), 500.0)  # 1,000 samples


@pytest.mark.parametrize(
    ("results", "blamed"),
    [
        ((), None),
        ((fail(0, 40),), None),
        ((fail(2, 40),), None),
        ((fail(2, 40), WORKS), "workers"),
        ((*[fail(2, 300)] * 3, WORKS), "workers"),
        ((*[fail(2, 400)] * 3, WORKS), None),
        ((*[fail(2, 400)] * 3, WORKS, WORKS), "workers"),
        ((*[fail(2, 400)] * 3, WORKS, fail(0, 200)), "data"),
        ((*[fail(2, 400)] * 3, WORKS, fail(0, 200, message="raised KeyError: 'label'")), "workers"),
        ((*[fail(2, 30)] * 3, *[WORKS] * 5, fail(0, 200)), "workers"),
        ((*[fail(2, 0, "stalled")] * 2, fail(0, 0, "stalled")), "data"),
    ],
)
def test_who_is_to_blame_is_a_matter_of_the_rate(results: tuple[TrialResult, ...], blamed: Blamed | None) -> None:
    assert count(*results).blame() == blamed


def test_a_step_that_fails_says_nothing_of_workers() -> None:
    assert count(fail(2, 40).model_copy(update={"in_step": True}), WORKS).blame() is None


def test_a_rate_is_told_with_the_error_and_the_place() -> None:
    rates = count(fail(2, 300), fail(2, 400), fail(0, 220).model_copy(update={"index": 17}), WORKS)
    words = "about 3 of 1,920 samples (one is sample 17) raise ValueError: bits is 9, with and without workers"
    assert rates.describe(name_cause(fail(2, 1))) == words


def test_a_process_that_died_is_counted_in_trials() -> None:
    died = fail(2, 300, "crashed", "lost a worker process: killed. Advice")
    assert (
        count(died, WORKS).describe(name_cause(died))
        == "in 1 of 1 trials it lost a worker process: killed, with workers"
    )
