"""Keeps a study to one run: by a lock beside its SQLite file; on a server by what the run itself writes into it."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

from autotune.errors import StudyError
from autotune.request import TuningRequest
from autotune.search.storage import HINT_ELSEWHERE
from autotune.system.locks import LockedError, hold

if TYPE_CHECKING:
    import optuna
    from optuna.storages import RDBStorage

SPARE_SECONDS: Final = 900.0  # beyond what a measurement may take, after which a silent run elsewhere is taken for dead
LOADING_STALLS: Final = 21  # stall times that a measurement may take: 20 to load the dataset, one in the trial
TRIAL_OVERHEAD: Final = 4  # times its own seconds that a trial may take
MAX_START_DIFFERENCE_SECONDS: Final = 2.0  # of two readings of one process's start, where the clock is being set
_OWNER: Final = "dltune_owner"


@contextmanager
def hold_study(file: Path, name: str) -> Iterator[None]:
    """Hold the lock of a study beside the file that it is kept in."""
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    with ExitStack() as stack:
        try:
            stack.enter_context(hold(file.with_name(f".{file.name}-{digest}.lock")))
        except LockedError as error:
            raise _busy_error(name, f"process {error.holder or 'unknown'}") from None
        except OSError as error:
            raise StudyError(f"The study {name} cannot be locked: {error.strerror}. {HINT_ELSEWHERE}") from None
        yield


def _busy_error(name: str, who: str) -> StudyError:
    return StudyError(
        f"Study {name} is being worked on by another dltune ({who}). Wait for it, or give another --study-name."
    )


class StudyClaim:
    """This run's claim to a study of a server, where no lock can lie; it holds for as long as the run is heard of."""

    def __init__(self, study: optuna.Study, storage: RDBStorage, request: TuningRequest) -> None:
        self._study = study
        self._storage = storage
        self._silent_seconds = (
            SPARE_SECONDS + LOADING_STALLS * request.stall_seconds + TRIAL_OVERHEAD * request.trial_seconds
        )

    def stake(self) -> None:
        """Take the study; raises StudyError while another run works on it."""
        owner = self._study.user_attrs.get(_OWNER)
        if owner is not None and not self._is_dead(owner):
            where = "" if owner.get("host") == socket.gethostname() else f" on {owner.get('host')}"
            raise _busy_error(self._study.study_name, f"process {owner.get('pid')}{where}")
        self.renew()

    def renew(self) -> None:
        """Write down that this run is at work."""
        process = psutil.Process()
        signature = {
            "host": socket.gethostname(),
            "pid": process.pid,
            "started": process.create_time(),
            "seen": self._read_clock(),
            "silent": self._silent_seconds,
        }
        self._study.set_user_attr(_OWNER, signature)

    def drop(self) -> None:
        """Leave the study to others."""
        self._study.set_user_attr(_OWNER, None)

    def _is_dead(self, owner: Any) -> bool:
        """Tell whether the run that signed the study is gone; one on another machine is by its silence."""
        try:
            if owner["host"] != socket.gethostname():
                return bool(self._read_clock() - owner["seen"] > owner["silent"])
            difference = abs(psutil.Process(owner["pid"]).create_time() - owner["started"])
            return bool(difference > MAX_START_DIFFERENCE_SECONDS)
        except (psutil.Error, LookupError, ValueError, TypeError, OverflowError):
            return True

    def _read_clock(self) -> float:
        """Read the clock of the database, in seconds: those of the machines that share it may differ by hours."""
        with self._storage.engine.connect() as connection:
            told = connection.exec_driver_sql("SELECT CURRENT_TIMESTAMP").scalar_one()
        moment = datetime.fromisoformat(str(told))
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
