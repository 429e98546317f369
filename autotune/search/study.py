"""The Optuna study of a search: its storage, and trial records as its trials.

A configuration that exceeds a limit gets a value and its constraints, and is never a failed trial: samplers ignore
failed trials and would propose it again.
"""

from __future__ import annotations

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

from autotune.errors import StudyError
from autotune.search.plan import Plan
from autotune.search.space import SearchSpace
from autotune.search.trial_record import TrialRecord
from autotune.settings import SETTINGS, describe_config
from autotune.trial.measurement import TrialResult

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

METRIC: Final = "samples per second"
NO_WORKERS: Final = "num_workers > 0 fails with this dataset"


@contextmanager
def quiet_logs() -> Iterator[None]:
    """Keep the libraries from logging the events that dltune reports itself, and restore their levels."""
    pool = logging.getLogger("sqlalchemy.pool")  # logs a traceback when an interrupt ends a query
    before = optuna.logging.get_verbosity(), pool.level
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    pool.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before[0])
        pool.setLevel(before[1])


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
    try:
        study = optuna.create_study(
            storage=request.storage,
            study_name=request.study_name,
            load_if_exists=not request.fresh,
            direction="maximize",
        )
        stored = study.user_attrs
        differing = [name for name, value in about.items() if stored.get(name, value) != value]
        if not differing:
            study.set_metric_names([METRIC])
            for name, value in about.items():
                study.set_user_attr(name, value)
    except Exception as error:  # a storage raises the errors of its database, its driver and its parser
        raise StudyError(
            f"The study in {hide_password(request.storage or 'memory')} cannot be opened: {describe_error(error)}. "
            "Check --storage (such as sqlite:///studies.db or postgresql+psycopg://USER@HOST/DATABASE) and --study-name."
        ) from error
    if differing:
        name = differing[0]
        raise StudyError(
            f"Study {study.study_name} is for another {name}: {stored[name]}, not {about[name]}. Give another --study-name."
        )
    return study


def hide_password(url: str) -> str:
    """Return a storage URL without its password."""
    url = re.sub(r"://([^:/@]*):[^@]*@", r"://\1:***@", url)
    return re.sub(r"([?&]\w*(?:password|passwd|pwd)=)[^&#]*", r"\1***", url, flags=re.IGNORECASE)


def describe_error(error: BaseException) -> str:
    """Return the first line of the innermost error, in the words of the database."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = str(error).strip()
    return hide_password(text.splitlines()[0].rstrip(".")) if text else type(error).__name__


def make_distributions(space: SearchSpace) -> dict[str, BaseDistribution]:
    """Return the distribution of each searched setting."""
    distributions: dict[str, BaseDistribution] = {}
    for name, choices in space.searched().items():
        if SETTINGS[name].is_range:
            is_log = name != "num_workers"  # which may be 0 in another run of the study
            distributions[name] = IntDistribution(choices[0], choices[-1], log=is_log)
        else:
            distributions[name] = CategoricalDistribution(choices)
    return distributions


def user_attributes(record: TrialRecord) -> dict[str, Any]:
    """Return the attributes of a trial that people read in a dashboard, and from which `read_records` restores it."""
    result = record.result
    outcome = record.status if result is None else result.kind
    if result is not None and result.measurement is not None and result.measurement.stopped == "pruned":
        outcome = "stopped_early"
    over = ", ".join(name for name, excess in record.constraints.items() if excess > 0)
    attributes: dict[str, Any] = {
        "config": describe_config(record.config),
        "outcome": outcome,
        "predicted_samples_per_second": round(record.predicted, 1),
        "relative_error": record.relative_error and round(record.relative_error, 4),
        "peak_gpu_bytes": record.peak_gpu_bytes,
    }
    if result is not None:
        peaks = {"peak_host_bytes": result.peak_host_bytes, "peak_shm_bytes": result.peak_shm_bytes}
        attributes |= peaks | {"reason": result.message}
    elif record.status == "skipped":
        attributes["reason"] = f"predicted to exceed a limit: {over}" if over != "works" else NO_WORKERS
    return {name: value for name, value in attributes.items() if value}


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
    """Restore a record; None if it belongs to another space, or if this version did not write it."""
    config, attributes = space.from_params(trial.params), trial.user_attrs
    if attributes.get("config") != describe_config(config):  # settings that are not searched are not parameters
        return None
    outcome, peaks = attributes.get("outcome"), ("peak_host_bytes", "peak_shm_bytes")
    try:
        result = None
        if outcome not in ("skipped", "repeated"):
            result = TrialResult.model_validate(
                {"kind": "completed" if outcome == "stopped_early" else outcome, "config": config, "message": attributes.get("reason", "")}
                | {name: attributes.get(name, 0) for name in peaks}
            )
        return TrialRecord.model_validate(
            {
                "number": trial.number,
                "config": config,
                "status": outcome if result is None else "measured",
                "samples_per_second": trial.value,
                "predicted": attributes.get("predicted_samples_per_second", 0.0),
                "relative_error": attributes.get("relative_error"),
                "constraints": trial.constraints,
                "result": result,
                "peak_gpu_bytes": attributes.get("peak_gpu_bytes", 0),
            }
        )
    except ValidationError:
        return None
