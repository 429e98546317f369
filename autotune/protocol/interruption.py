"""What may cut a phase of measuring short; what the phase has measured until then is kept beside it."""

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
    """How a phase ended before its time, for the code and in words; `cause` stays None where it did not."""

    cause: KeyboardInterrupt | WorkloadError | TrialError | StudyError | None = None
    reason: str = ""


@contextmanager
def capture_interruption() -> Iterator[Interruption]:
    """Run a phase; what cuts it short ends the phase, and is for the caller to look at."""
    found = Interruption()
    try:
        yield found
    except KeyboardInterrupt as error:
        found.cause, found.reason = error, "interrupted"
    except WorkloadError as error:
        found.cause, found.reason = error, "the dataset failed"
    except TrialError as error:
        found.cause, found.reason = error, "the device was lost"
    except StudyError as error:
        found.cause, found.reason = error, "the Optuna storage failed"
    except OSError as error:  # no room for a folder, no process left
        found.cause, found.reason = spawn_error(error), "trials could no longer be run"


def spawn_error(error: OSError) -> TrialError:
    """Say that the machine refuses to run trials."""
    where = f" ({error.filename})" if error.filename is not None else ""
    return TrialError(f"Trials can no longer be run: {error.strerror or error}{where}.")


def raise_on_lost_device(run_trial: RunTrial) -> RunTrial:
    """Give the same trials, but a lost device ends the run by TrialError, rather than each trial after the other.

    So does an interrupt that was lost: after one that was not, no trial begins.
    """

    def run(request: TrialRequest) -> TrialResult:
        raise_lost_interrupt()
        result = run_trial(request)
        if result.kind == "device_lost":
            raise TrialError(f"Trials can no longer be run: the last one {result.message}.", result.details)
        return result

    return run
