"""The ways in which tuning cannot go on.

    DltuneError                   exit code 1
    +-- UsageError                2
    +-- WorkloadError             2
    +-- NoFeasibleConfigError     3
    +-- ProfileError              2
    +-- TrialError                1
    +-- OutputError               1
    |   +-- ResultNotSavedError   1
    +-- StudyError                2

A failed trial is a result (`trial.measurement.TrialResult`), not an exception. What stands here ends a run: each class
knows its exit code, and only the command line prints it.
"""

from __future__ import annotations


class DltuneError(Exception):
    """Base of every error that dltune raises on purpose.

    Attributes:
        exit_code: What the `dltune` process exits with when this error ends it.
        details: The traceback or the end of the captured output; empty when there is none.
    """

    exit_code = 1

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.details = details


class UsageError(DltuneError):
    """An option, a setting or their combination cannot be used; the message says why and what can."""

    exit_code = 2


class WorkloadError(DltuneError):
    """The user's own code (factory, dataset, collate or step) failed where no configuration could help."""

    exit_code = 2


class NoFeasibleConfigError(DltuneError):
    """Every configuration that was tried or considered breaks a limit or fails."""

    exit_code = 3


class ProfileError(DltuneError):
    """A tuned file cannot be read, is not valid, or has no profile that may be used here."""

    exit_code = 2


class TrialError(DltuneError):
    """Trials cannot be run any more: the machine refuses a process or a folder; the message says what was kept."""

    exit_code = 1


class OutputError(DltuneError):
    """A result could not be written; the message says where and what was kept."""

    exit_code = 1


class ResultNotSavedError(OutputError):
    """The tuned file could not be written at the end of a run.

    Attributes:
        document: What it should hold, as JSON: the result is not lost.
    """

    def __init__(self, message: str, document: str) -> None:
        super().__init__(message)
        self.document = document


class StudyError(DltuneError):
    """The record of trials (the Optuna storage) cannot be opened or does not fit this run."""

    exit_code = 2
