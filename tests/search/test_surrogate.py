from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from autotune.planning.candidates import CandidateTable
from hypothesis import given
from hypothesis import strategies as st

from autotune.config import LoaderConfig, ProcessSettings
from autotune.search.surrogate import Observation, Proposal, Surrogate
from tests.builders import make_config

WORKERS = (0, 1, 2, 4, 6, 8, 10, 12, 16, 24, 32)
CANDIDATES = [
    make_config(workers, prefetch, persistent_workers=kept, in_order=in_order)
    for workers in WORKERS
    for prefetch in (1, 2, 4)
    for kept in (False, True)
    for in_order in (False, True)
    if workers
] + [make_config(0)]


def model(config: LoaderConfig) -> float:
    """Return the prediction of a cost model: throughput grows with workers up to eight."""
    return 100.0 * min(8, max(1, config.dataloader.num_workers))


def truth(config: LoaderConfig) -> float:
    """Return the throughput of a machine that is half as fast, but gains up to sixteen workers, and by keeping them."""
    loader = config.dataloader
    rate = 50.0 * math.pow(min(16, max(1, loader.num_workers)), 0.9)
    return rate * (1.2 if loader.persistent_workers else 1.0) * (1.05 if not loader.in_order else 1.0)


TABLE = CandidateTable.of(CANDIDATES, model)


def learn(*configs: LoaderConfig, error: float = 0.05, **changes: float) -> Surrogate:
    """Have a surrogate learn the true throughputs, or `rate` of all, of some configurations."""
    return Surrogate(model, {config: Observation(changes.get("rate", truth(config)), error) for config in configs})


def propose(surrogate: Surrogate, tried: Sequence[LoaderConfig] = ()) -> Proposal | None:
    return surrogate.propose(TABLE, np.array([config not in tried for config in CANDIDATES]))


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


def test_before_any_trial_the_prediction_is_that_of_the_cost_model() -> None:
    assert learn().predict([make_config(4)])[0].samples_per_second == pytest.approx(400)
    proposal = propose(learn())
    assert proposal is not None
    assert proposal.config.dataloader.num_workers >= 8


def test_a_trial_moves_the_predictions_of_all_configurations_and_most_those_of_its_neighbours() -> None:
    surrogate = learn(make_config(8), rate=400.0, error=0.02)
    itself, near, far = surrogate.predict([make_config(8), make_config(10), make_config(1)])
    assert itself.samples_per_second == pytest.approx(400, rel=0.05)
    assert near.samples_per_second < 600
    assert near.samples_per_second / 800 < far.samples_per_second / 100 < 1
    assert itself.relative_error < near.relative_error < far.relative_error


def test_a_dozen_trials_find_an_optimum_that_the_cost_model_does_not_know() -> None:
    best = max(truth(config) for config in CANDIDATES)
    assert max(truth(config) for config in search(12)[0]) >= 0.97 * best


def test_nothing_is_proposed_twice_and_nothing_after_all_was_tried() -> None:
    tried, _ = search(len(CANDIDATES))
    assert len(set(tried)) == len(CANDIDATES)
    assert propose(learn(), CANDIDATES) is None


def test_the_expected_gain_shrinks_as_the_space_is_known() -> None:
    _, gains = search(30)
    assert gains[-1] < 0.01 < gains[1]


def test_configurations_that_need_more_than_a_failed_one_are_avoided() -> None:
    def linear(config: LoaderConfig) -> float:
        return 100.0 * max(1, config.dataloader.num_workers)

    failed = make_config(12, 1)
    surrogate = Surrogate(linear, {make_config(1): Observation(100.0, 0.05)}, [failed])
    is_open = np.array([config not in (make_config(1), failed) for config in CANDIDATES])
    proposal = surrogate.propose(CandidateTable.of(CANDIDATES, linear), is_open)
    assert proposal is not None
    assert 4 <= proposal.config.dataloader.num_workers < 12


def test_a_measurement_of_unknown_error_has_less_weight() -> None:
    sure, unsure = (learn(make_config(4), rate=200.0, error=error) for error in (0.01, math.inf))
    surely, hardly = (which.predict([make_config(4)])[0] for which in (sure, unsure))
    assert surely.samples_per_second < hardly.samples_per_second
    assert surely.relative_error < hardly.relative_error


def test_configurations_outside_the_candidates_correct_the_model_as_well() -> None:
    surrogate = learn(make_config(7, 2), rate=70.0, error=0.02)
    assert surrogate.predict([make_config(8, 2)])[0].samples_per_second < 400


@given(
    rates=st.dictionaries(
        st.sampled_from(CANDIDATES), st.builds(Observation, st.floats(1e-3, 1e9), st.floats(0, 2)), max_size=20
    ),
    failed=st.lists(st.sampled_from(CANDIDATES), max_size=3),
)
def test_predictions_are_positive_and_finite_for_all_measurements(
    rates: dict[LoaderConfig, Observation], failed: list[LoaderConfig]
) -> None:
    surrogate = Surrogate(model, rates, failed)
    shared = make_config(4, process=ProcessSettings(sharing_strategy="file_system"))
    for found in surrogate.predict([*CANDIDATES, shared]):
        assert 0 < found.samples_per_second < math.inf
        assert 0 <= found.relative_error < math.inf
    proposal = propose(surrogate, list(rates))
    assert proposal is None or proposal.gain >= 0


def measure(workers: Sequence[int], slow: int | None = None) -> Surrogate:
    """Have a surrogate learn configurations with so many workers; one of them at half of its speed."""
    rates = {make_config(count): truth(make_config(count)) * (0.5 if count == slow else 1.0) for count in workers}
    return Surrogate(model, {config: Observation(rate, 0.02) for config, rate in rates.items()})


def test_a_measurement_far_below_the_prediction_of_its_neighbours_is_an_outlier() -> None:
    outlier = measure((6, 8, 12, 16, 24), slow=16).find_outlier()
    assert outlier is not None
    assert outlier.config == make_config(16)
    assert outlier.gain > 0.02


def test_an_outlier_that_was_measured_again_is_ignored() -> None:
    outlier = measure((6, 8, 12, 16, 24), slow=16).find_outlier({make_config(16)})
    assert outlier is None or outlier.config != make_config(16)


def test_measurements_that_agree_have_no_outlier() -> None:
    outlier = measure((6, 8, 10, 12, 16)).find_outlier()
    assert outlier is None or outlier.gain < 0.006


def test_a_speedup_is_known_better_than_the_two_throughputs() -> None:
    plain, kept, unseen = make_config(8), make_config(8, persistent_workers=True), make_config(8, in_order=False)
    surrogate = Surrogate(model, {plain: Observation(400.0, 0.05), kept: Observation(480.0, 0.05)})
    gained, unknown = surrogate.predict_speedups([plain, kept])[0], surrogate.predict_speedups([plain, unseen])[0]
    assert 1.05 < gained.ratio < 1.2
    assert gained.log_error < unknown.log_error
    assert gained.log_error < surrogate.predict([kept])[0].relative_error + surrogate.predict([plain])[0].relative_error
    assert unknown.ratio == pytest.approx(1.0, abs=0.1)


def test_before_any_trial_a_speedup_is_that_of_the_cost_model_and_as_uncertain() -> None:
    (gain,) = learn().predict_speedups([make_config(1), make_config(2)])
    assert gain.ratio == pytest.approx(2.0)
    assert gain.log_error > 0.1
