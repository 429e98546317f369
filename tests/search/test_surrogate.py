from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.config import LoaderConfig, ProcessSettings
from autotune.search.study import TrialRecord
from autotune.search.surrogate import Proposal, Surrogate, tabulate
from tests.builders import make_config, make_result

CANDIDATES = [
    make_config(workers, prefetch, persistent_workers=kept, in_order=in_order)
    for workers in (1, 2, 4, 6, 8, 10, 12, 16, 24, 32)
    for prefetch in (1, 2, 4)
    for kept in (False, True)
    for in_order in (False, True)
] + [make_config(0)]


def model(config: LoaderConfig) -> float:
    """Return the prediction of a cost model: throughput grows with workers up to eight."""
    return 100.0 * min(8, max(1, config.dataloader.num_workers))


def truth(config: LoaderConfig) -> float:
    """Return the throughput of a machine that is half as fast, but gains up to sixteen workers and by persistence."""
    loader = config.dataloader
    rate = 50.0 * math.pow(min(16, max(1, loader.num_workers)), 0.9)
    return rate * (1.2 if loader.persistent_workers else 1.0) * (1.05 if not loader.in_order else 1.0)


TABLE = tabulate(CANDIDATES, model)


def make_record(config: LoaderConfig, rate: float | None = None, error: float | None = 0.05) -> TrialRecord:
    """Return a trial of the true throughput, or of another one; 0 has failed."""
    rate = truth(config) if rate is None else rate
    facts = {"samples_per_second": rate, "relative_error": error}
    result = make_result(config, rate) if rate else make_result(config, status="crashed")
    return TrialRecord.model_validate({"config": config, "result": result, **facts})


def learn(*configs: LoaderConfig) -> Surrogate:
    return Surrogate(model, [make_record(config) for config in configs])


def propose(surrogate: Surrogate, tried: Sequence[LoaderConfig] = ()) -> Proposal | None:
    return surrogate.propose(TABLE, lambda config: config not in tried)


def search(trials: int) -> tuple[list[LoaderConfig], list[float]]:
    """Try what is proposed; return the configurations and their expected gains."""
    tried: list[LoaderConfig] = []
    gains = []
    for _ in range(trials):
        proposal = propose(learn(*tried), tried)
        assert proposal is not None
        tried.append(proposal.config)
        gains.append(proposal.gain)
    return tried, gains


def test_before_any_trial_predictions_are_those_of_the_cost_model() -> None:
    assert learn().predict([make_config(4)])[0] == pytest.approx(400)
    proposal = propose(learn())
    assert proposal is not None
    assert proposal.config.dataloader.num_workers >= 8
    ((ratio, log_error),) = learn().predict_speedups([make_config(1), make_config(2)])
    assert ratio == pytest.approx(2.0)
    assert log_error > 0.1


def test_a_trial_moves_the_predictions_of_all_configurations_and_most_those_of_its_neighbours() -> None:
    surrogate = Surrogate(model, [make_record(make_config(8), 400.0, 0.02)])
    itself, near, far = surrogate.predict([make_config(8), make_config(10), make_config(1)])
    assert itself == pytest.approx(400, rel=0.05)
    assert near < 600
    assert near / 800 < far / 100 < 1


def test_a_dozen_trials_find_an_optimum_that_the_cost_model_does_not_know() -> None:
    best = max(truth(config) for config in CANDIDATES)
    assert max(truth(config) for config in search(12)[0]) >= 0.97 * best


def test_every_candidate_is_proposed_once_with_a_shrinking_gain() -> None:
    tried, gains = search(len(CANDIDATES))
    assert len(set(tried)) == len(CANDIDATES)
    assert propose(learn(), CANDIDATES) is None
    assert gains[30] < 0.01 < gains[1]


def test_configurations_that_need_more_than_a_failed_one_are_avoided() -> None:
    def linear(config: LoaderConfig) -> float:
        return 100.0 * max(1, config.dataloader.num_workers)

    tried = [make_config(1), make_config(12, 1)]
    surrogate = Surrogate(linear, [make_record(tried[0], 100.0), make_record(tried[1], 0.0)])
    proposal = surrogate.propose(tabulate(CANDIDATES, linear), lambda config: config not in tried)
    assert proposal is not None
    assert 4 <= proposal.config.dataloader.num_workers < 12


def test_a_measurement_of_unknown_error_has_less_weight() -> None:
    config = make_config(4)
    surely, hardly = (
        Surrogate(model, [make_record(config, 200.0, error)]).predict([config])[0] for error in (0.01, None)
    )
    assert surely < hardly


@given(
    rates=st.dictionaries(
        st.sampled_from(CANDIDATES), st.tuples(st.just(0.0) | st.floats(1e-3, 1e9), st.floats(0, 2)), max_size=20
    )
)
def test_predictions_are_positive_and_finite_for_all_measurements(
    rates: dict[LoaderConfig, tuple[float, float]],
) -> None:
    surrogate = Surrogate(model, [make_record(config, *found) for config, found in rates.items()])
    shared = make_config(4, process=ProcessSettings(sharing_strategy="file_system"))
    assert all(0 < rate < math.inf for rate in surrogate.predict([*CANDIDATES, shared]))
    proposal = propose(surrogate, list(rates))
    assert proposal is None or proposal.gain >= 0


def test_a_measurement_far_below_the_prediction_of_its_neighbours_is_an_outlier_until_it_is_ignored() -> None:
    slow = make_config(16)
    records = [make_record(make_config(workers), error=0.02) for workers in (6, 8, 12, 24)]
    surrogate = Surrogate(model, [*records, make_record(slow, truth(slow) / 2, 0.02)])
    outlier = surrogate.find_outlier()
    assert outlier is not None
    assert outlier.config == slow
    assert outlier.gain > 0.02
    ignored = surrogate.find_outlier({slow})
    assert ignored is None or ignored.config != slow


def test_measurements_that_agree_have_no_outlier() -> None:
    outlier = learn(*(make_config(workers) for workers in (6, 8, 10, 12, 16))).find_outlier()
    assert outlier is None or outlier.gain < 0.006


def test_a_speedup_is_known_better_than_the_two_throughputs() -> None:
    plain, kept, unseen = make_config(8), make_config(8, persistent_workers=True), make_config(8, in_order=False)
    surrogate = Surrogate(model, [make_record(plain, 400.0), make_record(kept, 480.0)])
    ((gained, gained_error),) = surrogate.predict_speedups([plain, kept])
    ((unknown, unknown_error),) = surrogate.predict_speedups([plain, unseen])
    assert 1.05 < gained < 1.2
    assert gained_error < unknown_error
    assert unknown == pytest.approx(1.0, abs=0.1)
