"""Exceptions that end a run, or a phase of it early; a failed trial is a result, not an exception.

Only the command line prints an exception and exits with its code.
"""

from __future__ import annotations

from typing import Final


class DltuneError(Exception):
    """Base class of dltune's exceptions; `details` is a traceback or the end of the captured output."""

    exit_code = 1  # of the `dltune` process

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.details = details


class UsageError(DltuneError):
    """An option, a setting or a combination of them cannot be used."""

    exit_code = 2


class WorkloadError(DltuneError):
    """The user's code (factory, dataset, collate or step) fails with every configuration."""

    exit_code = 2


class NoFeasibleConfigError(DltuneError):
    """Every configuration breaks a limit or fails."""

    exit_code = 3


class ProfileError(DltuneError):
    """A tuned file cannot be read, is invalid, or has no profile that can be used here."""

    exit_code = 2


class TrialError(DltuneError):
    """The machine does not allow to run trials any more."""


class OutputError(DltuneError):
    """A result cannot be written."""


class ResultNotSavedError(OutputError):
    """The tuned file cannot be written at the end of a run; `details` is its content as JSON."""


class StudyError(DltuneError):
    """The Optuna storage cannot be opened, or its study does not fit this run."""

    exit_code = 2


INTERRUPTIONS: Final[dict[type[BaseException], str]] = {  # end a phase early; what was measured until then counts
    KeyboardInterrupt: "interrupted",
    WorkloadError: "the dataset failed",
    TrialError: "trials could no longer be run",
    StudyError: "the Optuna storage failed",
}
