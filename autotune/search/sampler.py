"""Asks Optuna what to try next and tells it what came of it.

The study that is asked lives in memory, so that no file or server stands between two trials; `studies` keeps what was
told. A configuration that breaks a limit is told with its value and its constraints, never as a failure: a failed
trial is forgotten by the sampler and proposed again.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, cast

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution

from autotune.config import FrozenModel, LoaderConfig
from autotune.errors import UsageError
from autotune.knobs import KNOBS
from autotune.request import SEEDS, TuningRequest
from autotune.search.space import SearchSpace
from autotune.search.study import StoredStudy, StoredTrial, Warn, open_study
from autotune.search.trial_record import TrialRecord
from autotune.system.hardware import Hardware
from autotune.trial.measurement import TrialResult
from autotune.trial.protocol import RunTrial, TrialRequest
from autotune.trial.resources import RESOURCES

if TYPE_CHECKING:
    from optuna.storages import RDBStorage
    from optuna.trial import FrozenTrial, TrialState

STARTUP_TRIALS: Final = 8  # random ones after the seeds, before TPE has something to learn from
CONSTRAINTS: Final = (*(resource.name for resource in RESOURCES), "works")


class ProposedTrial(FrozenModel):
    """A configuration that Optuna proposes."""

    number: int
    config: LoaderConfig


class SurrogateSampler(optuna.samplers.BaseSampler):
    """Hands Optuna what a model proposes, and random values where the model knows nothing.

    Args:
        distributions: The search space.
        seed: Of the random values.
    """

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


class Search:
    """One search: proposals out, results in, everything kept at once.

    Args:
        study: An Optuna study in memory.
        space: The space it searches.
        kept: Where results are kept; None for nowhere.
    """

    def __init__(self, study: optuna.Study, space: SearchSpace, kept: StoredStudy | None = None) -> None:
        self._study = study
        self._space = space
        self._kept = kept
        self._distributions = _make_distributions(space)
        self._open_trials: dict[int, optuna.Trial] = {}
        self._recalled: list[TrialRecord] = []

    @property
    def name(self) -> str:
        """Name of the study."""
        return self._study.study_name

    def recall(self, trials: Iterable[StoredTrial]) -> None:
        """Take over what earlier runs have measured.

        Args:
            trials: Their trials, in order; each configuration is one of the space.
        """
        for record, grid_id in trials:
            self._recalled.append(record)
            grid = {} if grid_id is None else {"grid_id": grid_id, "search_space": _make_grid(self._space)}
            self._study.add_trial(self._make_trial(record, hidden=grid))

    def _make_trial(
        self, record: TrialRecord, hidden: dict[str, Any] | None = None, shown: dict[str, Any] | None = None
    ) -> FrozenTrial:
        return optuna.create_trial(
            value=record.score,
            params=self._space.params(record.config),
            distributions=self._distributions,
            constraints=_list_constraints(record),
            system_attrs=hidden,
            user_attrs=shown,
        )

    def records(self) -> list[TrialRecord]:
        """List what was taken over from earlier runs, in order."""
        return list(self._recalled)

    def enqueue(self, configs: Iterable[LoaderConfig], *, again: bool = False) -> None:
        """Propose these configurations first.

        Args:
            configs: Configurations.
            again: Whether to propose known ones as well.
        """
        for config in configs:
            self._study.enqueue_trial(self._space.params(config), skip_if_exists=not again)

    def guide(self, propose: Callable[[], LoaderConfig | None]) -> None:
        """Let proposals come from outside, where the study's sampler is the `model`.

        Args:
            propose: Names a configuration, or None when it knows none; a random one is then tried.
        """
        if isinstance(self._study.sampler, SurrogateSampler):
            self._study.sampler.propose = lambda: None if (config := propose()) is None else self._space.params(config)

    def ask(self) -> ProposedTrial:
        """Propose a configuration."""
        trial = self._study.ask(self._distributions)
        self._open_trials[trial.number] = trial
        return ProposedTrial(number=trial.number, config=self._space.build(trial.params))

    def tell(self, record: TrialRecord) -> None:
        """Keep what became of a proposal.

        Args:
            record: Its line of the record.
        """
        trial = self._open_trials.pop(record.number)
        for key, value in _list_constraints(record).items():
            trial.set_constraint(key, value)
        for key, value in record.describe().items():
            trial.set_user_attr(key, value)
        told = self._study.tell(trial, record.score)
        if self._kept is not None:
            self._kept.append(told, record)

    @property
    def next_number(self) -> int:
        """Number of the next trial of the study."""
        return len(self._study.get_trials(deepcopy=False))

    def add(self, record: TrialRecord) -> None:
        """Keep what became of a trial that was never proposed.

        Args:
            record: Its line of the record, under the next number.
        """
        trial = self._make_trial(record, shown=record.describe())
        self._study.add_trial(trial)
        if self._kept is not None:
            self._kept.append(trial, record)

    def sign_at(self, run_trial: RunTrial) -> RunTrial:
        """Say at every measurement that this run is still at work on its study.

        Args:
            run_trial: Measures one configuration.

        Returns:
            The same, signed for.
        """

        def run(request: TrialRequest) -> TrialResult:
            if self._kept is not None:
                self._kept.sign()
            return run_trial(request)

        return run

    def finish(self) -> None:
        """Mark the study as done, so that the next run starts a new one."""
        if self._kept is not None:
            self._kept.finish()


def _list_constraints(record: TrialRecord) -> dict[str, float]:
    """Give every trial the same constraints: a sampler compares them one by one."""
    return {key: record.constraints.get(key, 0.0) for key in CONSTRAINTS}


@contextmanager
def open_search(
    storage: RDBStorage, request: TuningRequest, space: SearchSpace, hardware: Hardware, warn: Warn
) -> Iterator[Search]:
    """Open the search of a request on this hardware, with what an earlier run that was cut short has learned.

    Args:
        storage: Where trials are kept.
        request: What the user asked for.
        space: What is searched.
        hardware: The machine; throughputs of different machines never mix.
        warn: Is told, once, when trials can no longer be kept.

    Yields:
        The search; nobody else works on its study meanwhile.

    Raises:
        StudyError: The study cannot be read, belongs to another request, or another run works on it.
        UsageError: The sampler needs a package that is not installed.
    """
    with open_study(storage, request, hardware, warn) as kept:
        trials = kept.read(space)
        study = optuna.create_study(
            study_name=kept.name, sampler=make_sampler(request, space, len(trials)), direction="maximize"
        )
        search = Search(study, space, kept)
        search.recall(trials)
        yield search


def make_sampler(request: TuningRequest, space: SearchSpace, known: int = 0) -> optuna.samplers.BaseSampler:
    """Make the sampler that a request asks for.

    Args:
        request: Names it, and gives the seed.
        space: What it samples.
        known: Trials taken over from earlier runs: one that draws at random must not draw the same again.

    Returns:
        The sampler; a `model` one still waits for `Search.guide`.

    Raises:
        UsageError: It needs a package that is not installed.
    """
    seed = (request.seed + known) % SEEDS
    if request.sampler == "model":
        return SurrogateSampler(_make_distributions(space), seed)
    if request.sampler == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    if request.sampler == "grid":
        return AskTellGridSampler(_make_grid(space), seed=request.seed)  # the seed orders the grid
    if request.sampler == "gp":
        try:
            import scipy  # type: ignore[import-untyped]  # noqa: F401
        except ImportError:
            raise UsageError("--sampler gp needs scipy: pip install 'dltune[gp]'.") from None
        return optuna.samplers.GPSampler(seed=seed, n_startup_trials=STARTUP_TRIALS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP_TRIALS, multivariate=True)


def _make_grid(space: SearchSpace) -> dict[str, Sequence[Any]]:
    return {knob: list(choices) for knob, choices in space.searched().items()}


def _make_distributions(space: SearchSpace) -> dict[str, BaseDistribution]:
    distributions: dict[str, BaseDistribution] = {}
    for knob, choices in space.searched().items():
        if KNOBS[knob].is_ranged:
            low, high = cast("tuple[int, int]", (choices[0], choices[-1]))
            in_doublings = knob != "num_workers"  # which may be 0 in another run, and a study knows one scale per knob
            distributions[knob] = IntDistribution(low, high, log=in_doublings)
        else:
            distributions[knob] = CategoricalDistribution(choices)
    return distributions
