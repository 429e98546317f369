"""The Optuna study of a search: its storage, its sampler, and trial records as its trials.

A configuration that exceeds a limit gets a value and its constraints, and is never a failed trial: samplers ignore
failed trials and would propose it again.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Final

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from pydantic import Field, ValidationError

from autotune.config import FrozenModel, LoaderConfig, Rate
from autotune.errors import StudyError, UsageError
from autotune.protocol.measurement import TrialResult
from autotune.request import SamplerName, TuningRequest
from autotune.search.plan import Plan
from autotune.search.space import SearchSpace
from autotune.settings import SETTINGS, describe_config

METRIC: Final = "samples per second"
STORED: Final = {"status", "config", "message", "peak_host_bytes", "peak_shm_bytes"}  # of the result of a trial
MIN_SAMPLES_PER_SECOND: Final = 1e-9  # one sample in thirty years; a trial below it delivered nothing
STARTUP_TRIALS: Final = 8  # completed trials, the queued ones included, before TPE and GP stop drawing at random


class TrialRecord(FrozenModel):
    """One trial of the study, measured or skipped."""

    config: LoaderConfig
    samples_per_second: Annotated[float, Field(ge=0, le=1e200)]  # the prediction if it was skipped, 0 if it failed
    predicted: Annotated[float, Field(ge=0, le=1e200)] = 0.0  # samples per second before the trial; 0 if unknown
    relative_error: Rate | None = None  # half-width of the 95% interval as a share; None if unknown
    is_stopped_early: bool = False  # as it could not become the best
    constraints: dict[str, Annotated[float, Field(allow_inf_nan=False)]] = Field(default_factory=dict)  # as in Optuna
    result: TrialResult | None = None  # None if it was skipped; without the measurement if an earlier run made it

    @property
    def is_feasible(self) -> bool:
        """Whether it was measured, completed, and delivered samples."""
        is_completed = self.result is not None and self.result.status == "completed"
        return is_completed and self.samples_per_second >= MIN_SAMPLES_PER_SECOND


def find_best(records: Sequence[TrialRecord]) -> TrialRecord | None:
    """Return the fastest trial; None if none completed."""
    feasible = (record for record in records if record.is_feasible)
    return max(feasible, key=lambda record: record.samples_per_second, default=None)


@contextmanager
def quiet_logs() -> Iterator[None]:
    """Silence the libraries about events that dltune reports itself, and restore their log levels."""
    loggers = {logger: logger.level for logger in map(logging.getLogger, ("optuna", "sqlalchemy.pool"))}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        try:
            for logger in loggers:
                logger.setLevel(logging.CRITICAL)
            yield
        finally:
            for logger, level in loggers.items():
                logger.setLevel(level)


def check_study(request: TuningRequest) -> None:
    """Raise StudyError if the storage cannot be opened, UsageError if there is none for a name, or scipy is missing."""
    if request.sampler == "gp" and importlib.util.find_spec("scipy") is None:
        raise UsageError("--sampler gp needs scipy: pip install scipy.")
    if request.study_name is not None and request.storage is None:
        raise UsageError("--study-name names a study in a storage: give its URL or file with --storage.")
    with quiet_logs(), explain_errors(request, "opened"):
        open_storage(request.storage)


def open_storage(storage: str | None) -> BaseStorage:
    """Open a storage: a URL of a database, or the path of a journal file; None is in memory."""
    if storage is None or "://" in storage:
        return optuna.storages.get_storage(storage)
    if Path(storage).exists() and not Path(storage).is_file():
        raise OSError("it is not a file")
    return JournalStorage(JournalFileBackend(storage))


def open_study(plan: Plan) -> optuna.Study:
    """Open the study of the request; raise StudyError if it cannot be opened or is for another workload or machine."""
    request, workload = plan.request, plan.request.workload
    about: dict[str, Any] = {
        "dataset": workload.dataset,
        "split": workload.split,
        "arguments": workload.dataset_args,
        "step": workload.describe_step(),
        "device": workload.device,
        "processes": workload.nproc_per_node,
        "start method": workload.start_method or "default",
        "machine": plan.hardware.machine_class,
        "epochs": request.epochs,
    }
    with explain_errors(request, "opened"):
        opened: dict[str, Any] = {"storage": open_storage(request.storage), "load_if_exists": not request.fresh}
        try:
            study = optuna.create_study(study_name=request.study_name, direction="maximize", **opened)
        except optuna.exceptions.DuplicatedStudyError:
            raise StudyError(f"Study {request.study_name} exists: with --fresh, give another --study-name.") from None
        for name, value in about.items():
            if (stored := study.user_attrs.get(name, value)) != value:
                difference = f"has {name} {stored}, not {value}"
                raise StudyError(f"Study {study.study_name} {difference}. Give another --study-name.")
            study.set_user_attr(name, value)
        study.set_metric_names([METRIC])
    return study


@contextmanager
def explain_errors(request: TuningRequest, action: str = "used any more") -> Iterator[None]:
    """Turn the error of a storage, which is that of its database, driver or parser, into a StudyError."""
    try:
        yield
    except Exception as error:
        if request.storage is None or isinstance(error, StudyError):
            raise
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        storage, hint = hide_password(request.storage), "sqlite:///FILE or postgresql+psycopg://USER@HOST/DATABASE"
        reason = (str(cause).strip().splitlines() or [type(cause).__name__])[0].rstrip(".")
        text = f"The study in {storage} cannot be {action}: {hide_password(reason)}."
        raise StudyError(f"{text} Check --storage (a journal file, {hint}) and --study-name.") from error


def hide_password(url: str) -> str:
    """Return a storage URL, or a text with one, without its password."""
    url = re.sub(r"://([^:/]*):\S*@", r"://\1:***@", url)  # the name of a user may contain an @
    return re.sub(r"([?&]\w*(?:password|passwd|pwd)=)[^&#]*", r"\1***", url, flags=re.IGNORECASE)


def make_distributions(space: SearchSpace) -> dict[str, BaseDistribution]:
    """Return the distribution of each searched setting; num_workers may be 0, so only the others are logarithmic."""
    return {
        name: IntDistribution(choices[0], choices[-1], log=name != "num_workers")
        if SETTINGS[name].is_range
        else CategoricalDistribution(choices)
        for name, choices in space.searched().items()
    }


def store_record(study: optuna.Study, plan: Plan, record: TrialRecord, trial: optuna.Trial | None = None) -> None:
    """Store a record as the result of a proposed trial; None adds a trial that was not proposed; raises StudyError."""
    fields: dict[str, Any] = dict.fromkeys(TrialRecord.model_fields, True) | {"result": STORED}
    stored = record.model_dump(mode="json", include=fields, exclude_defaults=True)
    attributes = {"config": describe_config(record.config), "record": stored}
    value, constraints, space = record.samples_per_second, record.constraints, make_distributions(plan.space)
    with explain_errors(plan.request):
        if trial is None:
            facts: dict[str, Any] = {"constraints": constraints, "user_attrs": attributes, "distributions": space}
            study.add_trial(optuna.create_trial(value=value, params=plan.space.to_params(record.config), **facts))
            return
        for name, excess in constraints.items():
            trial.set_constraint(name, excess)
        for name, attribute in attributes.items():
            trial.set_user_attr(name, attribute)
        study.tell(trial, value)


def read_records(study: optuna.Study, space: SearchSpace) -> list[TrialRecord]:
    """Return the trials that dltune measured, in the space, without repeated results."""
    records: list[TrialRecord] = []
    for trial in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
        with suppress(ValidationError):
            record = TrialRecord.model_validate_json(json.dumps(trial.user_attrs.get("record")))
            was_tried = record.result is not None  # else it exceeded a limit, which may be higher now
            if was_tried and space.nearest(record.config) == record.config and record not in records:
                records.append(record)
    return records


def make_sampler(name: SamplerName, seed: int) -> optuna.samplers.BaseSampler:
    """Return a sampler; that of `model` is asked only if the cost model has no candidate left to propose."""
    if name == "gp":
        return optuna.samplers.GPSampler(seed=seed, n_startup_trials=STARTUP_TRIALS)
    if name == "tpe":
        return optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP_TRIALS, multivariate=True)
    return optuna.samplers.RandomSampler(seed=seed)
