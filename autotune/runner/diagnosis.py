"""Names how a trial failed, by evidence: a wait status or the text of an error, never a guess.

The lines of source code that a traceback quotes are no evidence: `except MemoryError:` does not say that memory ran
out.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, replace
from typing import Final

from autotune.protocol.budgets import Budgets
from autotune.protocol.measurement import CODE_FAILURES, TrialKind
from autotune.protocol.messages import FailureReport
from autotune.runner.error_patterns import (
    MAX_QUOTED_CHARACTERS,
    STALLS,
    STATUS_ADVICE,
    SUGGESTIONS,
    UNKNOWN_STALL,
    WORKER_ADVICE,
    find_symptom,
    pick_advice,
)
from autotune.runner.hangs import HangReport
from autotune.runner.resources import ResourceUsage
from autotune.units import format_bytes

_LOST_WORKER: Final = r"^(?!.*Caught \w+ in DataLoader worker).*(killed by signal|exited unexpectedly|ConnectionReset)"
_SEEN_DEAD: Final = r"^DataLoader worker \(pid \d+\) (is killed|exited)"  # what a look at its exit status adds
_LOST_LINE: Final = r"^(FileNotFound|ConnectionRefused|BrokenPipe|EOF)\w*Error"  # when a worker's socket is gone
_TORCH_RECEIVING: Final = r"resource_sharer\.py|in rebuild_\w+|multiprocessing[/\\]connection\.py"


@dataclass(frozen=True, slots=True)
class TrialFailure:
    """How a trial failed: its outcome, and what happened as the rest of a sentence that starts with the trial."""

    kind: TrialKind
    message: str
    details: str = ""

    def name_rank(self, rank: int | None) -> TrialFailure:
        """Say in which of several training processes it happened; None for all of them, or the only one."""
        return self if rank is None else replace(self, message=f"in rank {rank} {self.message}")


def diagnose_error(failed: FailureReport, shm: str = "", output: str = "") -> TrialFailure:
    """Judge an error that the child reported: a resource ran out where the text says so, else the user's code failed.

    The end of what its processes printed tells more of a worker that died than the report can; `shm` says what was
    used of /dev/shm, as in `: 64 MiB used of 64 MiB`.
    """
    details = f"{failed.details}\n{output}".strip() if output else failed.details
    lost = _is_lost_worker(failed)
    spoken = _drop_source(f"{failed.error}\n{failed.details}" + (f"\n{output}" if lost else ""))
    found = find_symptom(spoken, shm, on_device=failed.on_device)
    if found is not None:
        return TrialFailure(*found, details)
    error = _last_line(failed.error)
    if lost:
        return TrialFailure("crashed", _describe_lost_worker(spoken, error), details)
    if re.search(r"DataLoader timed out after", failed.error):
        message = (
            f"waited in vain for a worker: {error}, the workload's own timeout. Raise it, or see what it waits for"
        )
        return TrialFailure("stalled", message, details)
    sentences = (_quote(failed.error), advice_for(failed.error))
    message = ". ".join(sentence.rstrip(".") for sentence in sentences if sentence)
    return TrialFailure("workload_failed", message, details)


def diagnose_stall(message: str, output: str, shm: str = "", found: HangReport | None = None) -> TrialFailure:
    """Name what a child hung on that was ended for making no progress.

    What tells is the end of what its processes printed, and where they stand.
    """
    found = found or HangReport()
    printed = pick_advice(STALLS, _drop_source(output)).format(shm=shm)
    last = _find_last_words(output)
    evidence = (f"the last line of its output: {last}" if last else "", found.sentence)
    happened = "; ".join((message, *filter(None, evidence)))
    details = "\n\n".join(filter(None, (output, found.stacks)))
    return TrialFailure("stalled", f"{happened}. {printed or found.advice or UNKNOWN_STALL}", details)


def diagnose_exit(status: int | None, output: str, shm: str = "", *, on_device: bool = False) -> TrialFailure:
    """Name the end of a child that reported nothing, by its wait status and the end of what it printed.

    The status is as `subprocess` gives it; None when the child still lives but closed the line.
    """
    name = _name_signal(status)
    if name not in STATUS_ADVICE:
        found = find_symptom(_drop_source(output), shm, on_device=on_device)
        if found is not None:
            return TrialFailure(*found, output)
    if name is not None:
        message = f"was killed by {name}{STATUS_ADVICE.get(name, '').format(shm=shm)}"
    elif status is None:
        message = "closed its line to dltune without a word"
    else:
        message = f"exited with code {status} without a result (os._exit or a crash in native code)"
    return TrialFailure("crashed", message, output)


def reclassify_oom_kill(failure: TrialFailure, peak: ResourceUsage, budgets: Budgets) -> TrialFailure:
    """Let a kernel that killed for memory explain what looks like a lost process or a hang."""
    if not peak.oom_kills or failure.kind not in CODE_FAILURES:
        return failure
    seen = f" at {format_bytes(peak.host_bytes)} of host memory" if peak.host_bytes else ""
    budget = format_bytes(budgets.memory_bytes)
    message = f"was struck by the kernel's out-of-memory killer{seen}, against a budget of {budget}"
    return replace(failure, kind="out_of_memory", message=message)


def advice_for(text: str) -> str:
    """Name the way out of an error of the user's code, given its last lines; nothing where none is known."""
    return pick_advice(SUGGESTIONS, text)


def _is_lost_worker(failed: FailureReport) -> bool:
    """Tell whether the error is what remains of a worker that is gone, not one that a dataset raised."""
    if re.search(_LOST_WORKER, failed.error) or re.search(_SEEN_DEAD, failed.error, re.MULTILINE):
        return True
    return bool(re.search(_LOST_LINE, failed.error) and re.search(_TORCH_RECEIVING, failed.details))


def _describe_lost_worker(spoken: str, error: str) -> str:
    """Say how a worker ended, where any error of the chain tells, and what does that."""
    told = re.search(r"DataLoader worker \([^\n]*(?:killed by signal: [\w ]*\w|with exit code \d+)", spoken)
    told_by_handler = re.search(r"Unexpected [^\n]* encountered in worker", spoken)
    words = (told or told_by_handler or [error.rstrip(". ")])[0]
    return f"lost a worker process: {words}. {pick_advice(WORKER_ADVICE, words)}"


def _drop_source(text: str) -> str:
    """Leave out the frames of a traceback: where it was and the source line, which may name any error."""
    return re.sub(r'^[ |]*File "[^\n]*\n(?:[ |]{4,}[^\n]*\n)*', "", text, flags=re.MULTILINE)


def _quote(error: str) -> str:
    """Put an error into a sentence: one of dltune's own is a sentence already."""
    ours = re.match(r"autotune\.[\w.]+: ", error)
    return error[ours.end() :].strip().rstrip(".") if ours else f"raised {_last_line(error)}"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return lines[-1][:MAX_QUOTED_CHARACTERS] if lines else "an exception without a name"


def _find_last_words(output: str) -> str:
    """Find the last line that says something; a warning, and the source line under it, does not explain a hang."""
    lines = [line for line in output.splitlines() if line.strip() and not line.startswith((" ", "\t"))]
    return next((line.strip()[:MAX_QUOTED_CHARACTERS] for line in reversed(lines) if "Warning: " not in line), "")


def _name_signal(status: int | None) -> str | None:
    """Name the signal that a wait status stands for; None where it was none."""
    if status is None or status >= 0:
        return None
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
