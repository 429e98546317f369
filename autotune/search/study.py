"""Keeps trials where the next run finds them: in a study of an Optuna storage, one run at a time.

The search itself works on a copy in memory (`sampler`). What it is told is added here, a trial at a time and each in
one transaction: a run that is killed loses the trial under way and nothing else, and a storage that fails in mid-run
costs the record, not the run. What is read is not trusted: it may come from another version, another machine, another
hand.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import optuna
from optuna.trial import FrozenTrial, TrialState
from pydantic import ValidationError

from autotune.errors import StudyError
from autotune.request import TuningRequest, WorkloadRequest
from autotune.search.space import SearchSpace
from autotune.search.storage import HINT_ELSEWHERE, explain, find_file, find_reason, name_place
from autotune.search.study_claim import StudyClaim, hold_study
from autotune.search.trial_record import RECORD_FORMAT, TrialRecord
from autotune.system.hardware import Hardware
from autotune.units import format_bytes

if TYPE_CHECKING:
    from optuna.storages import RDBStorage

ASKED: Final = {
    *("trial_seconds", "seed", "sampler", "batch_sizes", "fixed", "ranges"),
    *("max_workers", "max_memory", "max_shm", "max_gpu_memory"),
}  # what makes another search of the same workload, and so a study of its own unless the user names one
CAME_LATER: Final = ("split", "knobs", "main", "start_method", "ranks", "cold")  # fields of a workload
METRIC: Final = "samples per second"
RECORD: Final = "dltune_record"
_FORMAT: Final = "dltune_format"
_IDENTITY: Final = "dltune_identity"
_FINISHED: Final = "dltune_finished"
HINT_AFRESH: Final = "Start afresh with --no-resume, or give another --study-name."

Warn = Callable[[str], None]


class StoredTrial(NamedTuple):
    """A trial of an earlier run.

    Attributes:
        record: Its line of the record.
        grid_id: Its place in the grid, where the grid was searched that is searched now.
    """

    record: TrialRecord
    grid_id: int | None


class StoredStudy:
    """A study of the storage, while this run works on it.

    Args:
        study: The Optuna study.
        place: Where it lies, for messages.
        warn: Is told, once, when nothing more can be stored.
        claim: Keeps others out where no lock does.
    """

    def __init__(self, study: optuna.Study, place: str, warn: Warn, claim: StudyClaim | None = None) -> None:
        self._study = study
        self._place = place
        self._warn = warn
        self._claim = claim
        self._is_lost = False

    @property
    def name(self) -> str:
        """Name of the study."""
        return self._study.study_name

    def read(self, space: SearchSpace) -> list[StoredTrial]:
        """Read the trials of earlier runs whose configurations are in the space, in order.

        What is worth trying depends on what the probe measures and on the memory that is free at the moment, so two
        runs of one request search spaces that differ a little.
        """
        with explain(f"The trials of study {self.name} cannot be read", HINT_AFRESH):
            trials = self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
            found = ((trial, get_record(trial)) for trial in trials)
            kept = [(trial, self._check(trial, text)) for trial, text in found if text is not None]
        return [
            StoredTrial(record, _find_place(trial, space))
            for trial, record in kept
            if space.nearest(record.config) == record.config
        ]

    def _check(self, trial: FrozenTrial, text: str) -> TrialRecord:
        try:
            return TrialRecord.model_validate_json(text)
        except ValidationError as error:
            raise StudyError(
                f"Study {self.name} holds trials of another version of dltune, or damaged ones: "
                f"{error.error_count()} problems in trial {trial.number}. {HINT_AFRESH}"
            ) from None

    def append(self, trial: FrozenTrial, record: TrialRecord) -> None:
        """Store a finished trial with its record; what cannot be stored is said once and then let go."""
        trial.system_attrs = trial.system_attrs | {RECORD: record.model_dump_json()}  # no dashboard shows these
        self._write(lambda: self._study.add_trial(trial))

    def sign(self) -> None:
        """Say that this run is still at work; to be called before each measurement, of whatever part of the run."""
        if self._claim is not None:
            self._write(self._claim.renew)

    def finish(self) -> None:
        """Mark the study as done, so that the next run starts a new one."""
        self._write(lambda: self._study.set_user_attr(_FINISHED, True))

    def close(self) -> None:
        """Leave the study to others."""
        if self._claim is not None and not self._is_lost:
            with suppress(Exception):  # whatever a database raises: the mark grows old by itself
                self._claim.drop()

    def _write(self, write: Callable[[], None]) -> None:
        if self._is_lost:
            return
        try:
            write()
        except Exception as error:  # whatever a database raises: the run must not die of it
            self._is_lost = True
            self._warn(
                f"Trials can no longer be stored in {self._place}: {find_reason(error)}. The run goes on and writes "
                "its result at the end; but if it is cut short, the next run cannot continue it from here."
            )


def _find_place(trial: FrozenTrial, space: SearchSpace) -> int | None:
    """Give the place of a trial in the grid; None where another grid was searched, or none."""
    grid_id, grid = (trial.system_attrs.get(key) for key in ("grid_id", "search_space"))
    is_same = grid == {knob: list(choices) for knob, choices in space.searched().items()}
    return grid_id if is_same and isinstance(grid_id, int) else None


def get_record(trial: FrozenTrial) -> str | None:
    """Give the record that a trial was stored with, as JSON; None where it is not one of ours."""
    text = trial.system_attrs.get(RECORD, trial.user_attrs.get(RECORD))  # the latter in studies of earlier versions
    return text if text is None or isinstance(text, str) else "not a record"


@contextmanager
def open_study(storage: RDBStorage, request: TuningRequest, hardware: Hardware, warn: Warn) -> Iterator[StoredStudy]:
    """Open the study of a request on this hardware, or continue one that was cut short, and keep others out of it.

    Raises:
        StudyError: It cannot be opened, another run works on it, or it belongs to another request, machine or version.
    """
    identity = _identify(request, hardware)
    base = request.study_name or _make_name(request, identity)
    file = find_file(storage)
    with ExitStack() as stack:
        if file is not None:
            stack.enter_context(hold_study(file, base))
        with explain(f"The study {base} cannot be opened", f"Move the record of trials away. {HINT_ELSEWHERE}"):
            name = _choose_name(request, base, storage)
            study = optuna.create_study(storage=storage, study_name=name, direction="maximize", load_if_exists=True)
            _refuse_strangers(study, identity)
            claim = StudyClaim(study, storage, request) if file is None else None
            if claim is not None:
                claim.stake()
            _label(study, {_FORMAT: RECORD_FORMAT, _IDENTITY: identity, **_describe(request, hardware)})
        kept = StoredStudy(study, name_place(request.storage), warn, claim)
        stack.callback(kept.close)
        yield kept


def _identify(request: TuningRequest, hardware: Hardware) -> str:
    """Give what must be the same for trials to be comparable: workload, machine, length of the training run."""
    usual = WorkloadRequest(dataset=request.workload.dataset)  # what earlier versions did not ask is left out with it
    later = {name for name in CAME_LATER if getattr(request.workload, name) == getattr(usual, name)}
    workload = request.workload.model_dump_json(exclude=later)
    text = "\n".join([workload, hardware.model_dump_json(), str(request.epochs)])
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _make_name(request: TuningRequest, identity: str) -> str:
    text = f"{identity} {request.model_dump_json(include=ASKED)}"
    return f"{request.workload.dataset}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _choose_name(request: TuningRequest, base: str, storage: RDBStorage) -> str:
    """Name the study: the last one of this request if it is to be continued, else a new one."""
    runs = {study.study_name: study for study in storage.get_all_studies()}
    count = 1
    while f"{base}-run{count + 1}" in runs:
        count += 1
    last = base if count == 1 else f"{base}-run{count}"
    if last not in runs or request.resume:
        return last
    finished = runs[last].user_attrs.get(_FINISHED, False)
    return f"{base}-run{count + 1}" if finished or request.resume is False else last


def _refuse_strangers(study: optuna.Study, identity: str) -> None:
    known = study.user_attrs
    version = known.get(_FORMAT, RECORD_FORMAT)
    if version != RECORD_FORMAT:
        raise StudyError(
            f"Study {study.study_name} was written by a newer dltune (format {version}; this one reads "
            f"{RECORD_FORMAT}). Update dltune, or leave the study to it: {HINT_AFRESH}"
        )
    if known.get(_IDENTITY, identity) != identity:
        raise StudyError(
            f"Study {study.study_name} belongs to another workload, machine or length of training, and throughputs "
            f"of different ones cannot be compared. {HINT_AFRESH}"
        )


def _label(study: optuna.Study, words: dict[str, Any]) -> None:
    """Write on a study what it is about, where that does not stand there yet."""
    known = study.user_attrs
    for key, value in words.items():
        if key not in known:
            study.set_user_attr(key, value)
    if study.metric_names is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study.set_metric_names([METRIC])


def _describe(request: TuningRequest, hardware: Hardware) -> dict[str, str]:
    """Say for people, in a dashboard, what was tuned and where."""
    gpus = f"{hardware.gpu_count}x {hardware.gpu}" if hardware.gpu is not None else "no GPU"
    sizes = f"{format_bytes(hardware.memory_limit_bytes)}, /dev/shm {format_bytes(hardware.shm_limit_bytes)}"
    return {
        "dataset": request.workload.title,
        "step": request.workload.describe_step(),
        "machine": f"{gpus}, {hardware.usable_cpus:g} CPUs, {sizes}",
    }
