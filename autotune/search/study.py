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
from optuna.trial import TrialState
from pydantic import ValidationError

from autotune.errors import StudyError, UsageError
from autotune.request import TuningRequest
from autotune.search.plan import Plan
from autotune.search.space import SearchSpace
from autotune.search.trial_record import TrialRecord
from autotune.settings import SETTINGS, describe_config
from autotune.trial.measurement import TrialResult

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

METRIC: Final = "samples per second"
RECORD_FIELDS: Final = {"status", "predicted", "relative_error", "peak_gpu_bytes"}  # stored as user attributes
RESULT_FIELDS: Final = {"kind", "message", "peak_host_bytes", "peak_shm_bytes"}


@contextmanager
def quiet_logs() -> Iterator[None]:
    """Silence the libraries about events that dltune reports itself, and restore their log levels."""
    loggers = (
        logging.getLogger("optuna"),
        logging.getLogger("sqlalchemy.pool"),
    )  # the latter reports interrupted queries
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        try:
            for logger in loggers:
                logger.setLevel(logging.CRITICAL)
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def check_study(request: TuningRequest) -> None:
    """Check the storage and the sampler of a request before anything is measured.

    Raises:
        StudyError: The storage cannot be opened.
        UsageError: The sampler needs a package that is not installed.
    """
    if request.sampler == "gp" and importlib.util.find_spec("scipy") is None:
        raise UsageError("--sampler gp needs scipy: pip install 'dltune[gp]'.")
    with quiet_logs(), _explain_errors(request):
        optuna.storages.get_storage(request.storage)


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
    with _explain_errors(request):
        study = optuna.create_study(
            storage=request.storage,
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
def _explain_errors(request: TuningRequest) -> Iterator[None]:
    """Turn the errors of a storage, which are those of its database, its driver and its parser, into a sentence."""
    try:
        yield
    except Exception as error:
        raise StudyError(
            f"The study in {hide_password(request.storage or 'memory')} cannot be opened: {describe_error(error)}. "
            "Check --storage (such as sqlite:///FILE or postgresql+psycopg://USER@HOST/DATABASE) and --study-name."
        ) from error


def hide_password(url: str) -> str:
    """Return a storage URL without its password."""
    url = re.sub(r"://([^:/@]*):[^@]*@", r"://\1:***@", url)
    return re.sub(r"([?&]\w*(?:password|passwd|pwd)=)[^&#]*", r"\1***", url, flags=re.IGNORECASE)


def describe_error(error: BaseException) -> str:
    """Return the first line of the innermost error, in the words of the database."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return hide_password(lines[0].rstrip("."))


def make_distributions(space: SearchSpace) -> dict[str, BaseDistribution]:
    """Return the distribution of each searched setting; num_workers may be 0, so only the others are logarithmic."""
    return {
        name: IntDistribution(choices[0], choices[-1], log=name != "num_workers")
        if SETTINGS[name].is_range
        else CategoricalDistribution(choices)
        for name, choices in space.searched().items()
    }


def user_attributes(record: TrialRecord) -> dict[str, Any]:
    """Return the user attributes of a trial: for people in a dashboard, and for `read_records`."""
    attributes = record.model_dump(include=RECORD_FIELDS, exclude_defaults=True)
    if record.result is not None:
        attributes |= record.result.model_dump(include=RESULT_FIELDS, exclude_defaults=True)
    return {"config": describe_config(record.config), **attributes}


def make_trial(record: TrialRecord, space: SearchSpace) -> FrozenTrial:
    """Return the trial of Optuna that stores a record."""
    return optuna.create_trial(
        value=record.samples_per_second,
        params=space.to_params(record.config),
        distributions=make_distributions(space),
        constraints=record.constraints,
        user_attrs=user_attributes(record),
    )


def read_records(study: optuna.Study, space: SearchSpace) -> list[TrialRecord]:
    """Return the completed trials of a study whose configurations are in the space."""
    trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return [record for trial in trials if (record := _read_record(trial, space)) is not None]


def _read_record(trial: FrozenTrial, space: SearchSpace) -> TrialRecord | None:
    """Return the record of a trial; None if it is of another space, or was not written by this version."""
    config, stored = space.from_params(trial.params), trial.user_attrs
    if stored.get("config") != describe_config(config):  # a setting that is not searched is not a parameter
        return None
    fields, result = (
        {name: stored[name] for name in names & stored.keys()} for names in (RECORD_FIELDS, RESULT_FIELDS)
    )
    fields |= {"number": trial.number, "samples_per_second": trial.value, "constraints": trial.constraints}
    try:
        found = TrialResult(config=config, **result) if result else None
        return TrialRecord(config=config, result=found, **fields)
    except ValidationError:
        return None
