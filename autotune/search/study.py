"""The Optuna study of a search: its storage, and trial records as its trials.

A configuration that exceeds a limit gets a value and its constraints, and is never a failed trial: samplers ignore
failed trials and would propose it again.
"""

from __future__ import annotations

import importlib.util
import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from pydantic import ValidationError

from autotune.config import LoaderConfig
from autotune.errors import StudyError, UsageError
from autotune.planning.plan import Plan
from autotune.planning.space import SearchSpace
from autotune.protocol.measurement import TrialResult
from autotune.request import TuningRequest
from autotune.search.trial_record import TrialRecord
from autotune.settings import SETTINGS, describe_config

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

METRIC: Final = "samples per second"
RECORD_FIELDS: Final = {"status", "predicted", "relative_error", "peak_gpu_bytes"}  # stored as user attributes
RESULT_FIELDS: Final = {"kind", "message", "peak_host_bytes", "peak_shm_bytes"}
STORAGE_HINT: Final = (
    "Check --storage (a journal file, sqlite:///FILE or postgresql+psycopg://USER@HOST/DATABASE) and --study-name."
)


@contextmanager
def quiet_logs() -> Iterator[None]:
    """Silence the libraries about events that dltune reports itself, and restore their log levels."""
    levels = {name: logging.getLogger(name).level for name in ("optuna", "sqlalchemy.pool")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        try:
            for name in levels:
                logging.getLogger(name).setLevel(logging.CRITICAL)
            yield
        finally:
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)


def check_study(request: TuningRequest) -> None:
    """Check the storage and the sampler of a request before anything is measured.

    Raises:
        StudyError: The storage cannot be opened.
        UsageError: The sampler needs a package that is not installed.
    """
    if request.sampler == "gp" and importlib.util.find_spec("scipy") is None:
        raise UsageError("--sampler gp needs scipy: pip install 'dltune[gp]'.")
    with quiet_logs(), explain_errors(request, "opened", STORAGE_HINT):
        open_storage(request.storage)


def open_storage(storage: str | None) -> BaseStorage:
    """Open a storage: a URL of a database, or the path of a journal file; None is in memory."""
    if storage is None or "://" in storage:
        return optuna.storages.get_storage(storage)
    return JournalStorage(JournalFileBackend(storage))


def open_study(plan: Plan) -> optuna.Study:
    """Open the study of the request, in memory unless it names a storage.

    Raises:
        StudyError: It cannot be opened, or it is for another workload or machine.
    """
    request = plan.request
    about = {
        "dataset": request.workload.title,
        "step": request.workload.describe_step(),
        "machine": plan.hardware.machine_class,
        "epochs": request.epochs,
    }
    with explain_errors(request, "opened", STORAGE_HINT):
        study = optuna.create_study(
            storage=open_storage(request.storage),
            study_name=request.study_name,
            load_if_exists=not request.fresh,
            direction="maximize",
        )
        stored = study.user_attrs
        if not stored:
            study.set_metric_names([METRIC])
            for name, value in about.items():
                study.set_user_attr(name, value)
    for name, value in about.items():
        if stored.get(name, value) != value:
            difference = f"is for another {name}: {stored[name]}, not {value}"
            raise StudyError(f"Study {study.study_name} {difference}. Give another --study-name.")
    return study


@contextmanager
def explain_errors(request: TuningRequest, action: str = "used any more", hint: str = "") -> Iterator[None]:
    """Turn the error of a storage, which is that of its database, driver or parser, into a StudyError."""
    try:
        yield
    except Exception as error:
        if request.storage is None:
            raise
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        reason = (str(cause).strip().splitlines() or [type(cause).__name__])[0].rstrip(".")
        text = f"The study in {hide_password(request.storage)} cannot be {action}: {hide_password(reason)}. {hint}"
        raise StudyError(text.rstrip()) from error


def hide_password(url: str) -> str:
    """Return a storage URL without its password."""
    url = re.sub(r"://([^:/@]*):[^@]*@", r"://\1:***@", url)
    return re.sub(r"([?&]\w*(?:password|passwd|pwd)=)[^&#]*", r"\1***", url, flags=re.IGNORECASE)


def make_distributions(space: SearchSpace) -> dict[str, BaseDistribution]:
    """Return the distribution of each searched setting; num_workers may be 0, so only the others are logarithmic."""
    return {
        name: IntDistribution(choices[0], choices[-1], log=name != "num_workers")
        if SETTINGS[name].is_range
        else CategoricalDistribution(choices)
        for name, choices in space.searched().items()
    }


def make_trial(record: TrialRecord, space: SearchSpace) -> FrozenTrial:
    """Return the trial of Optuna that stores a record; its user attributes are readable in a dashboard."""
    attributes = record.model_dump(include=RECORD_FIELDS, exclude_defaults=True)
    if record.result is not None:
        attributes |= record.result.model_dump(include=RESULT_FIELDS, exclude_defaults=True)
    return optuna.create_trial(
        value=record.samples_per_second,
        params=space.to_params(record.config),
        distributions=make_distributions(space),
        constraints=record.constraints,
        user_attrs={"config": describe_config(record.config), **attributes},
    )


def enqueue(study: optuna.Study, plan: Plan, config: LoaderConfig, user_attrs: dict[str, Any] | None = None) -> None:
    """Queue a configuration, which `ask` returns before any proposal of the sampler; raises StudyError."""
    with explain_errors(plan.request):
        study.enqueue_trial(plan.space.to_params(config), user_attrs=user_attrs)


def ask(study: optuna.Study, plan: Plan) -> optuna.Trial:
    """Ask for the next configuration: a queued one, or the proposal of the sampler; raises StudyError."""
    with explain_errors(plan.request):
        return study.ask(make_distributions(plan.space))


def store_record(study: optuna.Study, plan: Plan, record: TrialRecord, trial: optuna.Trial | None) -> None:
    """Store a record as the result of a proposed trial; None adds a trial that was not proposed; raises StudyError."""
    made = make_trial(record, plan.space)
    with explain_errors(plan.request):
        if trial is None:
            study.add_trial(made)
            return
        for name, excess in record.constraints.items():
            trial.set_constraint(name, excess)
        for name, value in made.user_attrs.items():
            trial.set_user_attr(name, value)
        study.tell(trial, record.samples_per_second)


def read_records(study: optuna.Study, space: SearchSpace) -> list[TrialRecord]:
    """Return the completed trials of a study whose configurations are in the space."""
    trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return [record for trial in trials if (record := _read_record(trial, space)) is not None]


def _read_record(trial: FrozenTrial, space: SearchSpace) -> TrialRecord | None:
    """Return the record of a trial; None if it is of another space, or was not written by this version."""
    config, stored = space.from_params(trial.params), trial.user_attrs
    if stored.get("config") != describe_config(config):  # a setting that is not searched is not a parameter
        return None
    fields: dict[str, Any] = {name: stored[name] for name in RECORD_FIELDS & stored.keys()}
    result = {name: stored[name] for name in RESULT_FIELDS & stored.keys()}
    try:
        return TrialRecord(
            config=config,
            samples_per_second=trial.value,
            constraints=trial.constraints,
            result=TrialResult(config=config, **result) if result else None,
            **fields,
        )
    except ValidationError:
        return None
