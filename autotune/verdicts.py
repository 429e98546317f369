"""Names how a trial failed, by evidence: a wait status or the text of an error, never a guess.

torch reports a full /dev/shm, a lost worker or an exhausted descriptor table only in words, and the
words end in a number that differs between systems; so they are matched without it.
"""

from __future__ import annotations

import re
import signal
from typing import Final

from autotune.messages import Failed, TrialKind
from autotune.schema import Value

_SYMPTOMS: Final[tuple[tuple[TrialKind, str, str], ...]] = (
    (
        "too_many_files",
        r"Too many open files|\[Errno 24\]",
        "ran out of open files. Raise the limit (ulimit -n) or tune with --fix sharing_strategy=file_system",
    ),
    (
        "shm_exhausted",
        r"unable to (allocate|open) shared memory|bus error|No space left on device.*torch_|out of shared memory",
        "filled /dev/shm{shm}. Give the container more (--shm-size=1g) or tune with fewer --max-workers",
    ),
    (
        "out_of_memory",
        r"torch\.OutOfMemoryError|CUDA error: out of memory|CUDA out of memory|can't allocate memory|MemoryError",
        "ran out of memory. Use a smaller --batch-size or fewer --max-workers",
    ),
    (
        "crashed",
        r"^(?!.*Caught \w+ in DataLoader worker).*(killed by signal|exited unexpectedly|ConnectionResetError)",
        "lost a worker process: {error}",
    ),
)


class Death(Value):
    """How a trial failed.

    Attributes:
        kind: The outcome.
        message: What happened, as the rest of a sentence that starts with the trial.
        details: Traceback or captured output.
    """

    kind: TrialKind
    message: str
    details: str = ""


def judge_failure(failed: Failed, shm: str = "") -> Death:
    """Judge an error that the child reported.

    Args:
        failed: The child's report.
        shm: What was used of /dev/shm, as in `: 64 MiB used of 64 MiB`.

    Returns:
        The outcome: a resource that ran out where the text says so, else a failure of the user's code.
    """
    text = f"{failed.error}\n{failed.details}"
    for kind, pattern, message in _SYMPTOMS:
        if re.search(pattern, text if kind != "crashed" else failed.error, re.IGNORECASE):
            words = message.format(shm=shm, error=_last_line(failed.error))
            return Death(kind=kind, message=words, details=failed.details)
    return Death(kind="workload_failed", message=f"raised {_last_line(failed.error)}", details=failed.details)


def _last_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1] if lines else "an exception without a name"


def name_death(status: int | None, output: str, shm: str = "") -> Death:
    """Name the end of a child that reported nothing.

    Args:
        status: Its wait status as `subprocess` gives it; None when it still lives but closed the line.
        output: The end of what it printed.
        shm: What was used of /dev/shm, as in `: 64 MiB used of 64 MiB`.

    Returns:
        The outcome.
    """
    for kind, pattern, message in _SYMPTOMS[:3]:
        if re.search(pattern, output, re.IGNORECASE):
            return Death(kind=kind, message=message.format(shm=shm), details=output)
    return Death(kind="crashed", message=_describe_status(status), details=output)


def _describe_status(status: int | None) -> str:
    if status is None:
        return "closed its line to dltune without a word"
    if status >= 0:
        return f"exited with code {status} without a result (os._exit or a crash in native code)"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    hint = " (the kernel's out-of-memory killer does this)" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"
