from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.config import LoaderConfig, ProcessSettings
from autotune.search.coordinates import Coordinates
from autotune.search.surrogate import Surrogate
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
    """A cost model: throughput grows with workers up to eight."""
    return 100.0 * min(8, max(1, config.dataloader.num_workers))


def truth(config: LoaderConfig) -> float:
    """A machine that is half as fast, goes on to gain up to sixteen workers, and gains by keeping them."""
    loader = config.dataloader
    rate = 50.0 * math.pow(min(16, max(1, loader.num_workers)), 0.9)
    return rate * (1.2 if loader.persistent_workers else 1.0) * (1.05 if not loader.in_order else 1.0)


def search(machine: Callable[[LoaderConfig], float], trials: int) -> list[LoaderConfig]:
    surrogate = Surrogate(CANDIDATES, model)
    tried = []
    for _ in range(trials):
        proposal = surrogate.propose()
        assert proposal is not None
        tried.append(proposal.config)
        surrogate.observe(proposal.config, machine(proposal.config), 0.05)
    return tried


def test_before_any_trial_the_model_is_believed() -> None:
    surrogate = Surrogate(CANDIDATES, model)
    assert surrogate.predict([make_config(4)])[0].samples_per_second == pytest.approx(400)
    proposal = surrogate.propose()
    assert proposal is not None
    assert proposal.config.dataloader.num_workers >= 8


def test_a_trial_moves_the_expectation_of_all_configurations_and_most_that_of_its_neighbours() -> None:
    surrogate = Surrogate(CANDIDATES, model)
    surrogate.observe(make_config(8), 400.0, 0.02)
    itself, near, far = surrogate.predict([make_config(8), make_config(10), make_config(1)])
    assert itself.samples_per_second == pytest.approx(400, rel=0.05)
    assert near.samples_per_second < 600
    assert near.samples_per_second / 800 < far.samples_per_second / 100 < 1
    assert itself.relative_error < near.relative_error < far.relative_error


def test_a_dozen_trials_find_an_optimum_that_the_model_does_not_know() -> None:
    best = max(truth(config) for config in CANDIDATES)
    assert max(truth(config) for config in search(truth, 12)) >= 0.97 * best


def test_nothing_is_proposed_twice_and_nothing_when_all_was_tried() -> None:
    tried = search(truth, len(CANDIDATES))
    assert len(set(tried)) == len(CANDIDATES)
    surrogate = Surrogate(CANDIDATES, model)
    surrogate.exclude(CANDIDATES)
    assert surrogate.propose() is None


def test_the_gain_to_be_expected_shrinks_as_the_space_is_known() -> None:
    surrogate = Surrogate(CANDIDATES, model)
    gains = []
    for _ in range(30):
        proposal = surrogate.propose()
        assert proposal is not None
        gains.append(proposal.gain)
        surrogate.observe(proposal.config, truth(proposal.config), 0.05)
    assert gains[-1] < 0.01 < gains[1]


def test_what_asks_for_more_than_a_failed_configuration_is_avoided() -> None:
    surrogate = Surrogate(CANDIDATES, lambda config: 100.0 * max(1, config.dataloader.num_workers))
    surrogate.observe(make_config(1), 100.0, 0.05)
    surrogate.observe_failure(make_config(12, 1))
    proposal = surrogate.propose()
    assert proposal is not None
    assert 4 <= proposal.config.dataloader.num_workers < 12


def test_a_measurement_of_unknown_precision_is_believed_less() -> None:
    sure, unsure = Surrogate(CANDIDATES, model), Surrogate(CANDIDATES, model)
    sure.observe(make_config(4), 200.0, 0.01)
    unsure.observe(make_config(4), 200.0, math.inf)
    surely, hardly = (which.predict([make_config(4)])[0] for which in (sure, unsure))
    assert surely.samples_per_second < hardly.samples_per_second
    assert surely.relative_error < hardly.relative_error


def test_configurations_outside_the_candidates_teach_as_well() -> None:
    surrogate = Surrogate(CANDIDATES, model)
    surrogate.observe(make_config(7, 2), 70.0, 0.02)
    assert surrogate.predict([make_config(8, 2)])[0].samples_per_second < 400


@given(
    rates=st.lists(st.tuples(st.sampled_from(CANDIDATES), st.floats(1e-3, 1e9), st.floats(0, 2)), max_size=20),
)
def test_whatever_was_measured_predictions_are_positive_and_finite(
    rates: list[tuple[LoaderConfig, float, float]],
) -> None:
    surrogate = Surrogate(CANDIDATES, model)
    for config, rate, error in rates:
        surrogate.observe(config, rate, error)
    shared = make_config(4, process=ProcessSettings(sharing_strategy="file_system"))
    for found in surrogate.predict([*CANDIDATES, shared]):
        assert 0 < found.samples_per_second < math.inf
        assert 0 <= found.relative_error < math.inf
    proposal = surrogate.propose()
    assert proposal is None or proposal.gain >= 0


def learn_all(surrogate: Surrogate, workers: tuple[int, ...], struck: int | None = None) -> None:
    for count in workers:
        rate = truth(make_config(count)) * (0.5 if count == struck else 1.0)
        surrogate.observe(make_config(count), rate, 0.02)


def test_a_measurement_far_below_what_its_neighbours_say_is_doubted() -> None:
    surrogate = Surrogate(CANDIDATES, model)
    learn_all(surrogate, (6, 8, 12, 16, 24), struck=16)
    doubt = surrogate.most_doubtful_observation()
    assert doubt is not None
    assert doubt.config == make_config(16)
    assert doubt.gain > 0.02


def test_measurements_that_agree_are_not_doubted() -> None:
    surrogate = Surrogate(CANDIDATES, model)
    learn_all(surrogate, (6, 8, 10, 12, 16))
    doubt = surrogate.most_doubtful_observation()
    assert doubt is None or doubt.gain < 0.006


def test_a_second_look_replaces_the_first() -> None:
    surrogate = Surrogate(CANDIDATES, model)
    learn_all(surrogate, (6, 8, 12, 16, 24), struck=16)
    learn_all(surrogate, (16,))
    assert surrogate.predict([make_config(16)])[0].samples_per_second == pytest.approx(truth(make_config(16)), rel=0.05)


def test_what_a_setting_gained_is_surer_than_the_throughputs_it_is_told_from() -> None:
    surrogate = Surrogate(CANDIDATES, model)
    plain, kept, unseen = make_config(8), make_config(8, persistent_workers=True), make_config(8, in_order=False)
    surrogate.observe(plain, 400.0, 0.05)
    surrogate.observe(kept, 480.0, 0.05)
    gained, unknown = surrogate.predict_speedups([plain, kept])[0], surrogate.predict_speedups([plain, unseen])[0]
    assert 1.05 < gained.ratio < 1.2
    assert gained.log_error < unknown.log_error
    assert gained.log_error < surrogate.predict([kept])[0].relative_error + surrogate.predict([plain])[0].relative_error
    assert unknown.ratio == pytest.approx(1.0, abs=0.1)


def test_before_any_trial_what_a_setting_gains_is_the_models_and_as_unsure_as_the_model() -> None:
    (gain,) = Surrogate(CANDIDATES, model).predict_speedups([make_config(1), make_config(2)])
    assert gain.ratio == pytest.approx(2.0)
    assert gain.log_error > 0.1


@pytest.mark.parametrize(("choices", "places"), [((2, 4, 8), (0.0, 1.0, 2.0)), (tuple(range(41)), (0.0, 0.2, 0.4))])
def test_numbers_that_are_listed_in_small_steps_lie_nearer_to_each_other(
    choices: tuple[int, ...], places: tuple[float, ...]
) -> None:
    laid_out = Coordinates.of([make_config(2).model_copy(update={"knobs": {"size": one}}) for one in choices])
    assert tuple(laid_out.own["size"][one] for one in choices[:3]) == pytest.approx(places)
