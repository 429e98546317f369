"""Errors and interrupts that end a phase early; its measurements so far are kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from autotune.errors import StudyError, TrialError, WorkloadError
from autotune.protocol.measurement import TrialResult
from autotune.protocol.messages import RunTrial, TrialRequest
from autotune.system.signals import raise_lost_interrupt


@dataclass(slots=True)
class Interruption:
    """Why a phase ended early; `cause` is None if it did not."""

    cause: KeyboardInterrupt | WorkloadError | TrialError | StudyError | None = None
    reason: str = ""


@contextmanager
def capture_interruption() -> Iterator[Interruption]:
    """Run a phase, and store what ends it early instead of raising it."""
    found = Interruption()
    try:
        yield found
    except KeyboardInterrupt as error:
        found.cause, found.reason = error, "interrupted"
    except WorkloadError as error:
        found.cause, found.reason = error, "the dataset failed"
    except TrialError as error:
        found.cause, found.reason = error, "trials could no longer be run"
    except StudyError as error:
        found.cause, found.reason = error, "the Optuna storage failed"


def raise_on_lost_device(run_trial: RunTrial) -> RunTrial:
    """Wrap `run_trial` to raise TrialError if the device is lost, and a lost interrupt before each trial."""

    def run(request: TrialRequest) -> TrialResult:
        raise_lost_interrupt()
        result = run_trial(request)
        if result.status == "device_lost":
            raise TrialError(f"Trials can no longer be run: the last one {result.message}.", result.details)
        return result

    return run
