"""Keeps trials where the next run finds them: in a study of an Optuna storage, one run at a time.

The search itself works on a copy in memory (`search`). What it is told is added here, a trial at a time and each in one
transaction: a run that is killed loses the trial under way and nothing else, and a storage that fails in mid-run costs
the record, not the run. What is read is not trusted: it may come from another version, another machine, another hand.
"""

from __future__ import annotations

import hashlib
import logging
import re
import socket
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import optuna
import psutil
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState
from pydantic import ValidationError

from autotune.errors import StudyError
from autotune.request import TuningRequest, hide_password
from autotune.search.space import SearchSpace
from autotune.search.trial_record import RECORD_FORMAT, TrialRecord
from autotune.system.hardware import Hardware
from autotune.system.locks import LockedError, hold
from autotune.units import format_bytes

FOLDER: Final = ".dltune"
DATABASE: Final = "studies.db"
MAX_STORAGE_BYTES: Final = 2**31  # of a SQLite file; a thousand runs leave less, and a study is read as a whole
SPARE_SECONDS: Final = 900.0  # beyond what a measurement may take, after which a silent run elsewhere is taken for dead
LOADING_STALLS: Final = 21  # stall times that a measurement may take: 20 to load the dataset, one in the trial
TRIAL_OVERHEAD: Final = 4  # times its own seconds that a trial may take
CLOCK_SECONDS: Final = 2.0  # by which two readings of one process's start may differ, where the clock is being set
RETRY_DELAYS: Final = (0.1, 0.2, 0.4, 0.8, 1.6)  # seconds; another run makes its tables in a few tenths
ASKED: Final = {
    *("trial_seconds", "seed", "sampler", "batch_sizes", "fixed", "ranges"),
    *("max_workers", "max_memory", "max_shm", "max_gpu_memory", "world_size"),
}  # what makes another search of the same workload, and so a study of its own unless the user names one
METRIC: Final = "samples per second"
RECORD: Final = "dltune_record"
_FORMAT: Final = "dltune_format"
_IDENTITY: Final = "dltune_identity"
_OWNER: Final = "dltune_owner"
_FINISHED: Final = "dltune_finished"
TRANSIENT_DB_ERROR: Final = re.compile(r"already exists|unique constraint|duplicate|is locked", re.IGNORECASE)
HINT_ELSEWHERE: Final = "Give another place with --storage sqlite:///FILE."
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
        describe_owner: Says who works on the study, where for want of a lock the study itself must tell.
    """

    def __init__(
        self,
        study: optuna.Study,
        place: str,
        warn: Warn,
        describe_owner: Callable[[], dict[str, Any]] | None = None,
    ) -> None:
        self._study = study
        self._place = place
        self._warn = warn
        self._describe_owner = describe_owner
        self._is_lost = False

    @property
    def name(self) -> str:
        """Name of the study."""
        return self._study.study_name

    def read(self, space: SearchSpace) -> list[StoredTrial]:
        """Read the trials of earlier runs, in order.

        What is worth trying depends on what the probe measures and on the memory that is free at the moment, so two
        runs of one request search spaces that differ a little.

        Args:
            space: What this run searches.

        Returns:
            The trials whose configurations are in the space.

        Raises:
            StudyError: They cannot be read, or come from another version.
        """
        with _explain(f"The trials of study {self.name} cannot be read", HINT_AFRESH):
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
        describe = self._describe_owner
        if describe is not None:
            self._write(lambda: self._study.set_user_attr(_OWNER, describe()))

    def finish(self) -> None:
        """Mark the study as done, so that the next run starts a new one."""
        self._write(lambda: self._study.set_user_attr(_FINISHED, True))

    def close(self) -> None:
        """Leave the study to others."""
        if self._describe_owner is not None and not self._is_lost:
            with suppress(Exception):  # whatever a database raises: the mark grows old by itself
                self._study.set_user_attr(_OWNER, None)

    def _write(self, write: Callable[[], None]) -> None:
        if self._is_lost:
            return
        try:
            write()
        except Exception as error:  # whatever a database raises: the run must not die of it
            self._is_lost = True
            self._warn(
                f"Trials can no longer be stored in {self._place}: {_find_reason(error)}. The run goes on and writes "
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
def open_storage(url: str | None) -> Iterator[RDBStorage]:
    """Open the storage that holds the studies, and make it where it does not exist.

    Args:
        url: Optuna storage URL; None for SQLite under `.dltune/`.

    Yields:
        The storage.

    Raises:
        StudyError: It cannot be opened, or it is larger than what can be read.
    """
    with _hush_logs():
        with _explain(f"The record of trials at {_name_place(url)} cannot be opened", HINT_ELSEWHERE):
            storage = _connect(url or _make_default())
        try:
            _refuse_a_giant(storage)
            yield storage
        finally:
            storage.remove_session()
            storage.engine.dispose()


@contextmanager
def _hush_logs() -> Iterator[None]:
    """Keep the libraries from logging what dltune says itself, and leave the caller's levels as they were."""
    pool = logging.getLogger("sqlalchemy.pool")  # shows where an interrupt cut it off
    before = optuna.logging.get_verbosity(), pool.level
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    pool.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before[0])
        pool.setLevel(before[1])


def _connect(url: str) -> RDBStorage:
    """Connect to a storage and make its tables; try again where another run was making them at the same moment."""
    for pause in RETRY_DELAYS:
        try:
            return RDBStorage(url)
        except Exception as error:  # each database says it in its own words
            if not TRANSIENT_DB_ERROR.search(_find_reason(error)):
                raise
        time.sleep(pause)
    return RDBStorage(url)


def _make_default() -> str:
    folder = Path(FOLDER)
    folder.mkdir(exist_ok=True)
    ignore = folder / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n")
    return f"sqlite:///{folder / DATABASE}"


def _name_place(url: str | None) -> str:
    """Name a storage as the user knows it, without the password in it."""
    return f"{FOLDER}/{DATABASE}" if url is None else hide_password(url)


def _find_file(storage: RDBStorage) -> Path | None:
    """Find the file of a SQLite storage; None for a server, or a database in memory."""
    url = storage.engine.url
    in_memory = url.database in (None, "", ":memory:") or str(url.database).startswith("file:")
    return None if url.get_backend_name() != "sqlite" or in_memory else Path(str(url.database))


def _refuse_a_giant(storage: RDBStorage) -> None:
    file = _find_file(storage)
    size = file.stat().st_size if file is not None and file.exists() else 0
    if size > MAX_STORAGE_BYTES:
        raise StudyError(
            f"The record of trials at {file} holds {format_bytes(size)}, which is more than the "
            f"{format_bytes(MAX_STORAGE_BYTES)} that can be read. Move it away, or give another place with --storage "
            "sqlite:///FILE."
        )


@contextmanager
def open_study(storage: RDBStorage, request: TuningRequest, hardware: Hardware, warn: Warn) -> Iterator[StoredStudy]:
    """Open the study of a request on this hardware, or continue one that was cut short, and keep others out of it.

    Args:
        storage: Where it lies.
        request: What the user asked for.
        hardware: The machine; throughputs of different machines never mix in one study.
        warn: Is told, once, when nothing more can be stored.

    Yields:
        The study.

    Raises:
        StudyError: It cannot be opened, another run works on it, or it belongs to another request, machine or version.
    """
    identity = _identify(request, hardware)
    base = request.study_name or _make_name(request, identity)
    with _keep_others_out(storage, base):
        kept = _open(storage, request, hardware, base, identity, warn)
        try:
            yield kept
        finally:
            kept.close()


def _open(
    storage: RDBStorage, request: TuningRequest, hardware: Hardware, base: str, identity: str, warn: Warn
) -> StoredStudy:
    describe_owner = partial(_describe_owner, storage, request) if _find_file(storage) is None else None
    with _explain(f"The study {base} cannot be opened", f"Move the record of trials away. {HINT_ELSEWHERE}"):
        name = _choose_name(request, base, storage)
        study = optuna.create_study(storage=storage, study_name=name, direction="maximize", load_if_exists=True)
        _refuse_strangers(study, identity)
        if describe_owner is not None:
            _refuse_while_owned(study, storage)
        _label(study, {_FORMAT: RECORD_FORMAT, _IDENTITY: identity, **_describe(request, hardware)})
        if describe_owner is not None:
            study.set_user_attr(_OWNER, describe_owner())
    return StoredStudy(study, _name_place(request.storage), warn, describe_owner)


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
        "dataset": request.workload.dataset,
        "step": request.workload.describe_step(),
        "machine": f"{gpus}, {hardware.usable_cpus:g} CPUs, {sizes}",
    }


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


def _identify(request: TuningRequest, hardware: Hardware) -> str:
    """Give what must be the same for trials to be comparable: workload, machine, length of the training run."""
    text = "\n".join([request.workload.model_dump_json(), hardware.model_dump_json(), str(request.epochs)])
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _make_name(request: TuningRequest, identity: str) -> str:
    text = f"{identity} {request.model_dump_json(include=ASKED)}"
    return f"{request.workload.dataset}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


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


@contextmanager
def _keep_others_out(storage: RDBStorage, name: str) -> Iterator[None]:
    """Hold the lock of a study beside its SQLite file; a server's studies say themselves who works on them."""
    file = _find_file(storage)
    with ExitStack() as stack:
        if file is not None:
            digest = hashlib.sha256(name.encode()).hexdigest()[:8]
            try:
                stack.enter_context(hold(file.with_name(f".{file.name}-{digest}.lock")))
            except LockedError as error:
                raise StudyError(_describe_busy(name, f"process {error.holder or 'unknown'}")) from None
            except OSError as error:
                raise StudyError(f"The study {name} cannot be locked: {error.strerror}. {HINT_ELSEWHERE}") from None
        yield


def _describe_busy(name: str, who: str) -> str:
    return f"Study {name} is being worked on by another dltune ({who}). Wait for it, or give another --study-name."


def _refuse_while_owned(study: optuna.Study, storage: RDBStorage) -> None:
    owner = study.user_attrs.get(_OWNER)
    if owner is not None and not _is_dead(owner, storage):
        where = "" if owner.get("host") == socket.gethostname() else f" on {owner.get('host')}"
        raise StudyError(_describe_busy(study.study_name, f"process {owner.get('pid')}{where}"))


def _describe_owner(storage: RDBStorage, request: TuningRequest) -> dict[str, Any]:
    process = psutil.Process()
    return {
        "host": socket.gethostname(),
        "pid": process.pid,
        "started": process.create_time(),
        "seen": _read_clock(storage),
        "silent": SPARE_SECONDS + LOADING_STALLS * request.stall_seconds + TRIAL_OVERHEAD * request.trial_seconds,
    }


def _is_dead(owner: Any, storage: RDBStorage) -> bool:
    """Tell whether the run that signed a study is gone; one on another machine is by its silence."""
    try:
        if owner["host"] != socket.gethostname():
            return bool(_read_clock(storage) - owner["seen"] > owner["silent"])
        return bool(abs(psutil.Process(owner["pid"]).create_time() - owner["started"]) > CLOCK_SECONDS)
    except (psutil.Error, LookupError, ValueError, TypeError, OverflowError):
        return True


def _read_clock(storage: RDBStorage) -> float:
    """Read the clock of the database, in seconds: those of the machines that share it may differ by hours."""
    with storage.engine.connect() as connection:
        told = connection.exec_driver_sql("SELECT CURRENT_TIMESTAMP").scalar_one()
    moment = datetime.fromisoformat(str(told))
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


@contextmanager
def _explain(failure: str, advice: str) -> Iterator[None]:
    """Turn whatever a storage raises into a sentence: it raises what its database, its driver and its parser do."""
    try:
        yield
    except StudyError:
        raise
    except Exception as error:
        raise StudyError(f"{failure}: {_find_reason(error)}. {advice}") from error


def _find_reason(error: BaseException) -> str:
    """Give the first line of the innermost error: the database's own words."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = str(error).strip()
    return text.splitlines()[0].rstrip(".") if text else type(error).__name__
