"""Asks Optuna what to try next and tells it what came of it. The only room that knows Optuna.

A configuration that breaks a limit is told with its value and its constraints, never as a failure: a failed
trial is forgotten by the sampler and proposed again.
"""

from __future__ import annotations

import hashlib
import os
import socket
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, cast

import optuna
import psutil
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState
from pydantic import ValidationError

from autotune.errors import StudyError, UsageError
from autotune.records import TrialRecord
from autotune.request import RANGED_KNOBS, TuningRequest
from autotune.schema import Hardware, LoaderConfig, Value
from autotune.space import SearchSpace

FOLDER: Final = ".dltune"
STARTUP_TRIALS: Final = 8  # random ones after the seeds, before TPE has something to learn from
CONSTRAINTS: Final = ("memory", "shm", "files", "works")
_RECORD: Final = "dltune_record"
_OWNER: Final = "dltune_owner"
_FINISHED: Final = "dltune_finished"


class Asked(Value):
    """A configuration that Optuna proposes."""

    number: int
    config: LoaderConfig


class ModelSampler(optuna.samplers.BaseSampler):
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


class Search:
    """One study: proposals out, results in, everything stored at once.

    Args:
        study: The Optuna study.
        space: The space it searches.
    """

    def __init__(self, study: optuna.Study, space: SearchSpace) -> None:
        self._study = study
        self._space = space
        self._distributions = _make_distributions(space)
        self._open_trials: dict[int, optuna.Trial] = {}

    @property
    def name(self) -> str:
        """Name of the study."""
        return self._study.study_name

    def enqueue(self, configs: Iterable[LoaderConfig]) -> None:
        """Propose these configurations first.

        Args:
            configs: Configurations; known ones are passed over.
        """
        for config in configs:
            self._study.enqueue_trial(self._space.params(config), skip_if_exists=True)

    def guide(self, propose: Callable[[], LoaderConfig | None]) -> None:
        """Let proposals come from outside, where the study's sampler is the `model`.

        Args:
            propose: Names a configuration, or None when it knows none; a random one is then tried.
        """
        if isinstance(self._study.sampler, ModelSampler):
            self._study.sampler.propose = lambda: None if (config := propose()) is None else self._space.params(config)

    def ask(self) -> Asked:
        """Propose a configuration."""
        trial = self._study.ask(self._distributions)
        trial.set_user_attr(_OWNER, _describe_owner())
        self._open_trials[trial.number] = trial
        config = self._space.build(trial.params)
        return Asked(number=trial.number, config=config)

    def tell(self, record: TrialRecord) -> None:
        """Store what became of a proposal.

        Args:
            record: Its line of the record.
        """
        trial = self._open_trials.pop(record.number)
        for key in CONSTRAINTS:
            trial.set_constraint(key, record.constraints.get(key, 0.0))
        trial.set_user_attr(_RECORD, record.model_dump_json())
        self._study.tell(trial, record.score)

    def records(self) -> list[TrialRecord]:
        """Read the record, in order.

        Raises:
            StudyError: The study holds trials that this version cannot read.
        """
        try:
            return [
                TrialRecord.model_validate_json(trial.user_attrs[_RECORD])
                for trial in self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
                if _RECORD in trial.user_attrs
            ]
        except ValidationError as error:
            raise StudyError(
                f"Study {self.name} holds trials of another version of dltune ({error.error_count()} problems). "
                "Start afresh with --no-resume."
            ) from None

    def finish(self) -> None:
        """Mark the study as done, so that the next run starts a new one."""
        self._study.set_user_attr(_FINISHED, True)

    def reap(self) -> int:
        """Close trials whose process is dead, and propose their configurations again.

        Returns:
            How many there were.
        """
        stale = [trial for trial in self._running() if _is_dead(trial.user_attrs.get(_OWNER))]
        for trial in stale:
            self._study.tell(trial.number, state=TrialState.FAIL)
            self._study.enqueue_trial(trial.params)
        return len(stale)

    def _running(self) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))


def open_search(request: TuningRequest, space: SearchSpace, hardware: Hardware) -> Search:
    """Open the study of a request on this hardware, or continue one that was cut short.

    Args:
        request: What the user asked for.
        space: What is searched.
        hardware: The machine; throughputs of different machines never mix in one study.

    Returns:
        The search.

    Raises:
        StudyError: The storage cannot be opened, or the named study searches another space.
        UsageError: The sampler needs a package that is not installed.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = _open_storage(request)
    name = _choose_name(request, space, hardware, storage)
    try:
        study = optuna.create_study(
            storage=storage,
            study_name=name,
            sampler=make_sampler(request, space),
            direction="maximize",
            load_if_exists=True,
        )
    except Exception as error:
        raise StudyError(f"The study {name} cannot be opened: {_first_line(error)}") from error
    _check_space(study, space)
    return Search(study, space)


def _open_storage(request: TuningRequest) -> optuna.storages.BaseStorage:
    url = request.storage
    try:
        if url is None:
            folder = Path(FOLDER)
            folder.mkdir(exist_ok=True)
            (folder / ".gitignore").write_text("*\n")
            url = f"sqlite:///{folder / 'studies.db'}"
        return optuna.storages.get_storage(url)
    except Exception as error:
        raise StudyError(
            f"The record of trials at {url or FOLDER} cannot be opened: {_first_line(error)} "
            "Give another place with --storage sqlite:///FILE."
        ) from error


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def _choose_name(
    request: TuningRequest, space: SearchSpace, hardware: Hardware, storage: optuna.storages.BaseStorage
) -> str:
    """Name the study: the last one of this request if it is to be continued, else a new one."""
    base = request.study_name or _make_name(request, space, hardware)
    runs = {study.study_name: study for study in optuna.get_all_study_summaries(storage, include_best_trial=False)}
    count = 1
    while f"{base}-run{count + 1}" in runs:
        count += 1
    last = base if count == 1 else f"{base}-run{count}"
    if last not in runs or request.resume:
        return last
    finished = runs[last].user_attrs.get(_FINISHED, False)
    return f"{base}-run{count + 1}" if finished or request.resume is False else last


def _make_name(request: TuningRequest, space: SearchSpace, hardware: Hardware) -> str:
    parts = [
        request.workload.model_dump_json(),
        space.model_dump_json(exclude={"notes"}),
        hardware.model_dump_json(),
        f"{request.epochs} {request.trial_seconds} {request.seed} {request.sampler}",
    ]
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]
    return f"{request.workload.dataset}-{digest}"


def make_sampler(request: TuningRequest, space: SearchSpace) -> optuna.samplers.BaseSampler:
    """Make the sampler that a request asks for.

    Args:
        request: Names it, and gives the seed.
        space: What it samples.

    Returns:
        The sampler; a `model` one still waits for `Search.guide`.

    Raises:
        UsageError: It needs a package that is not installed.
    """
    if request.sampler == "model":
        return ModelSampler(_make_distributions(space), request.seed)
    if request.sampler == "random":
        return optuna.samplers.RandomSampler(seed=request.seed)
    if request.sampler == "grid":
        grid = {knob: list(choices) for knob, choices in space.searched().items()}
        return optuna.samplers.GridSampler(cast("Any", grid), seed=request.seed)
    if request.sampler == "gp":
        try:
            import scipy  # type: ignore[import-untyped]  # noqa: F401
        except ImportError:
            raise UsageError("--sampler gp needs scipy: pip install 'dltune[gp]'.") from None
        return optuna.samplers.GPSampler(seed=request.seed, n_startup_trials=STARTUP_TRIALS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.samplers.TPESampler(seed=request.seed, n_startup_trials=STARTUP_TRIALS, multivariate=True)


def _make_distributions(space: SearchSpace) -> dict[str, BaseDistribution]:
    distributions: dict[str, BaseDistribution] = {}
    for knob, choices in space.searched().items():
        if knob in RANGED_KNOBS:
            low, high = cast("tuple[int, int]", (choices[0], choices[-1]))
            distributions[knob] = IntDistribution(low, high, log=low > 0)
        else:
            distributions[knob] = CategoricalDistribution(choices)
    return distributions


def _check_space(study: optuna.Study, space: SearchSpace) -> None:
    wanted = _make_distributions(space)
    for trial in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
        if trial.distributions and trial.distributions != wanted:
            raise StudyError(
                f"Study {study.study_name} searched another space ({', '.join(trial.distributions)}). "
                "Give another --study-name, or start afresh with --no-resume."
            )


def _describe_owner() -> dict[str, Any]:
    return {"host": socket.gethostname(), "pid": os.getpid(), "started": psutil.Process().create_time()}


def _is_dead(owner: Any) -> bool:
    """Whether the process that asked for a trial is gone; one on another machine is taken for alive."""
    if not isinstance(owner, dict) or owner.get("host") != socket.gethostname():
        return owner is None
    try:
        return bool(psutil.Process(owner["pid"]).create_time() != owner["started"])
    except (psutil.Error, KeyError, ValueError, TypeError):
        return True
