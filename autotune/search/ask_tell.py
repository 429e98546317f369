"""Asks Optuna what to try next and tells it what came of it.

The study that is asked lives in memory, so that no file or server stands between two trials; `study` keeps what was
told. A configuration that breaks a limit is told with its value and its constraints, never as a failure: a failed
trial is forgotten by the sampler and proposed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import optuna

from autotune.config import LoaderConfig
from autotune.request import TuningRequest
from autotune.search.sampler import SurrogateSampler, make_distributions, make_grid, make_sampler
from autotune.search.space import SearchSpace
from autotune.search.study import StoredStudy, StoredTrial, Warn, open_study
from autotune.search.trial_record import TrialRecord
from autotune.system.hardware import Hardware
from autotune.trial.measurement import TrialResult
from autotune.trial.protocol import RunTrial, TrialRequest
from autotune.trial.resources import RESOURCES

if TYPE_CHECKING:
    from optuna.storages import RDBStorage
    from optuna.trial import FrozenTrial

CONSTRAINTS: Final = (*(resource.name for resource in RESOURCES), "works")


@dataclass(frozen=True, slots=True)
class ProposedTrial:
    """A configuration that Optuna proposes."""

    number: int
    config: LoaderConfig


class Search:
    """One search: proposals out of an Optuna study in memory, results into it, and kept at once where there is room."""

    def __init__(self, study: optuna.Study, space: SearchSpace, kept: StoredStudy | None = None) -> None:
        self._study = study
        self._space = space
        self._kept = kept
        self._distributions = make_distributions(space)
        self._open_trials: dict[int, optuna.Trial] = {}
        self._recalled: list[TrialRecord] = []

    @property
    def name(self) -> str:
        """Name of the study."""
        return self._study.study_name

    def recall(self, trials: Iterable[StoredTrial]) -> None:
        """Take over what earlier runs have measured, in order; each configuration is one of the space."""
        for record, grid_id in trials:
            self._recalled.append(record)
            grid = {} if grid_id is None else {"grid_id": grid_id, "search_space": make_grid(self._space)}
            self._study.add_trial(self._make_trial(record, hidden=grid))

    def _make_trial(
        self, record: TrialRecord, hidden: dict[str, Any] | None = None, shown: dict[str, Any] | None = None
    ) -> FrozenTrial:
        return optuna.create_trial(
            value=record.score,
            params=self._space.to_params(record.config),
            distributions=self._distributions,
            constraints=_list_constraints(record),
            system_attrs=hidden,
            user_attrs=shown,
        )

    def records(self) -> list[TrialRecord]:
        """List what was taken over from earlier runs, in order."""
        return list(self._recalled)

    def enqueue(self, configs: Iterable[LoaderConfig], *, again: bool = False) -> None:
        """Propose these configurations first; known ones only if they are to be measured again."""
        for config in configs:
            self._study.enqueue_trial(self._space.to_params(config), skip_if_exists=not again)

    def guide(self, propose: Callable[[], LoaderConfig | None]) -> None:
        """Let proposals come from outside, where the sampler is the `model`; for None it tries a random one."""
        if isinstance(self._study.sampler, SurrogateSampler):
            self._study.sampler.propose = lambda: (
                None if (config := propose()) is None else self._space.to_params(config)
            )

    def ask(self) -> ProposedTrial:
        """Propose a configuration."""
        trial = self._study.ask(self._distributions)
        self._open_trials[trial.number] = trial
        return ProposedTrial(number=trial.number, config=self._space.from_params(trial.params))

    def tell(self, record: TrialRecord) -> None:
        """Keep what became of a proposal."""
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
        """Keep what became of a trial that was never proposed, under the next number."""
        trial = self._make_trial(record, shown=record.describe())
        self._study.add_trial(trial)
        if self._kept is not None:
            self._kept.append(trial, record)

    def sign_at(self, run_trial: RunTrial) -> RunTrial:
        """Give the same trials, but at each one say that this run is still at work on its study."""

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

    Nobody else works on its study meanwhile. The user is warned, once, when trials can no longer be kept.

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
