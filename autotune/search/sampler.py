"""Which of Optuna's samplers draws the next configuration, and the two that are ours."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution

from autotune.errors import UsageError
from autotune.request import SEED_COUNT, TuningRequest
from autotune.search.space import SearchSpace
from autotune.settings import find_setting

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial, TrialState

STARTUP_TRIALS: Final = 8  # random ones after the seeds, before TPE has something to learn from


class SurrogateSampler(optuna.samplers.BaseSampler):
    """Hands Optuna what a model proposes, and random values where the model knows nothing."""

    def __init__(self, distributions: dict[str, BaseDistribution], seed: int) -> None:
        self.propose: Callable[[], dict[str, Any] | None] = lambda: None
        self._distributions = distributions
        self._random = optuna.samplers.RandomSampler(seed=seed)

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Name the knobs that are proposed together: all of them."""
        return self._distributions

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Propose a value for each knob."""
        return self.propose() or {}

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Draw the value of a knob for which nothing was proposed."""
        return self._random.sample_independent(study, trial, param_name, param_distribution)


class AskTellGridSampler(optuna.samplers.GridSampler):
    """Optuna's grid, for a study that is asked and told: it has no loop to be stopped when the grid is exhausted."""

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """Choose a point; one that was measured before, without a warning, when there is no other."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            super().before_trial(study, trial)

    def after_trial(
        self, study: optuna.Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        """Stop nothing."""


def make_sampler(request: TuningRequest, space: SearchSpace, known: int = 0) -> optuna.samplers.BaseSampler:
    """Make the sampler that a request asks for; a `model` one still waits for `Search.guide`.

    What is drawn at random depends on how many trials are known from earlier runs: it must not be drawn again.
    """
    seed = (request.seed + known) % SEED_COUNT
    if request.sampler == "model":
        return SurrogateSampler(make_distributions(space), seed)
    if request.sampler == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    if request.sampler == "grid":
        return AskTellGridSampler(make_grid(space), seed=request.seed)  # the seed orders the grid
    if request.sampler == "gp":
        try:
            import scipy  # type: ignore[import-untyped]  # noqa: F401
        except ImportError:
            raise UsageError("--sampler gp needs scipy: pip install 'dltune[gp]'.") from None
        return optuna.samplers.GPSampler(seed=seed, n_startup_trials=STARTUP_TRIALS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP_TRIALS, multivariate=True)


def make_grid(space: SearchSpace) -> dict[str, Sequence[Any]]:
    """Give the choices of each searched knob, as Optuna's grid takes them."""
    return {knob: list(choices) for knob, choices in space.searched().items()}


def make_distributions(space: SearchSpace) -> dict[str, BaseDistribution]:
    """Give the distribution of each searched knob."""
    distributions: dict[str, BaseDistribution] = {}
    for knob, choices in space.searched().items():
        if find_setting(knob).is_range:
            low, high = cast("tuple[int, int]", (choices[0], choices[-1]))
            in_doublings = knob != "num_workers"  # which may be 0 in another run, and a study knows one scale per knob
            distributions[knob] = IntDistribution(low, high, log=in_doublings)
        else:
            distributions[knob] = CategoricalDistribution(choices)
    return distributions
