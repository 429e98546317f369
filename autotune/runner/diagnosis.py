"""Diagnoses failures of trials, and of loading and profiling, from a wait status or the text of an error.

The source lines that a traceback quotes are no evidence: `except MemoryError:` does not mean that memory ran out.
"""

from __future__ import annotations

import re
import signal
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from autotune.errors import UsageError, WorkloadError
from autotune.protocol.budgets import DEVICE_MEMORY, Budgets
from autotune.protocol.measurement import CODE_FAILURES, TrialKind, TrialResult
from autotune.protocol.messages import FailureReport, Report, TrialReport, TrialRequest
from autotune.request import WorkloadRequest
from autotune.runner.error_patterns import DEVICES, MAX_QUOTED_CHARACTERS, RESOURCES, find_advice, find_pattern
from autotune.runner.hangs import HangReport
from autotune.runner.resources import ResourceUsage
from autotune.system.code_places import find_module, is_library
from autotune.units import format_bytes

UNKNOWN_STALL: Final = (
    "If a worker waits for a lock or a thread that the training process had when it forked, start workers with "
    "--set multiprocessing_context=spawn; if it only needs longer, allow it with --stall-time"
)
_LOST_WORKER: Final = r"\A(?!.*Caught \w+ in DataLoader worker).*(killed by signal|exited unexpectedly|ConnectionReset)"
_DEAD_WORKER: Final = r"(?m)^DataLoader worker \(pid \d+\) (is killed|exited)"  # as the child adds it to an error
_LOST_CONNECTION: Final = r"\A(FileNotFound|ConnectionRefused|BrokenPipe|EOF)\w*Error"
_TORCH_RECEIVING: Final = r"resource_sharer\.py|in rebuild_\w+|multiprocessing[/\\]connection\.py"
_WORKER_END: Final = (
    r"DataLoader worker \([^\n]*(?:killed by signal: [\w ]*\w|with exit code \d+)",
    r"Unexpected [^\n]* encountered in worker",
)


@dataclass(frozen=True, slots=True)
class TrialFailure:
    """A failure of a trial: its kind, and a message that continues a sentence about the trial."""

    kind: TrialKind
    message: str
    details: str = ""

    def name_rank(self, rank: int | None) -> TrialFailure:
        """Return the failure with the rank that it happened in; None if all did, or if there is one."""
        return self if rank is None else replace(self, message=f"in rank {rank} {self.message}")


Answer = Report | TrialFailure


def diagnose_error(failed: FailureReport, shm: str = "", output: str = "") -> TrialFailure:
    """Diagnose an error that the child reported: a resource ran out if the text says so, else the user's code failed.

    `shm` describes the use of /dev/shm, as in `: 64 MiB used of 64 MiB`; `output` may explain the death of a worker.
    """
    details = f"{failed.details}\n{output}".strip()
    is_lost = (
        re.search(_LOST_WORKER, failed.error)
        or re.search(_DEAD_WORKER, failed.error)
        or (re.search(_LOST_CONNECTION, failed.error) and re.search(_TORCH_RECEIVING, failed.details))
    )
    text = _drop_source(f"{failed.error}\n{failed.details}" + (f"\n{output}" if is_lost else ""))
    found = find_pattern(text, *RESOURCES, *(DEVICES if failed.on_device else ()), shm=shm)
    if found is not None:
        return TrialFailure(*found, details)
    error = _find_exception(failed.error)
    if is_lost:
        ends = (re.search(pattern, text) for pattern in _WORKER_END)
        end = next((one[0] for one in ends if one), error.rstrip(". "))
        unknown = "It was killed, or code of the dataset ended it (sys.exit, os._exit)"
        advice = find_advice(end, "crashed", shm) or unknown
        return TrialFailure("crashed", f"lost a worker process: {end}. {advice}", details)
    if "DataLoader timed out after" in failed.error:
        reason = f"{error.rstrip('.')}; this is the DataLoader's own timeout="
        message = f"timed out waiting for a worker ({reason}). Increase it, or find out what the worker is waiting for"
        return TrialFailure("stalled", message, details)
    ours = re.match(r"autotune\.[\w.]+: ", failed.error)
    happened = failed.error[ours.end() :].strip() if ours else f"raised {error}"
    advice = find_advice(_drop_source(failed.error), "workload_failed")
    message = ". ".join(sentence.rstrip(".") for sentence in (happened, advice) if sentence)
    return TrialFailure("workload_failed", message, details)


def diagnose_stall(message: str, output: str, shm: str, found: HangReport) -> TrialFailure:
    """Diagnose a trial that was ended for making no progress, from the end of its output and from its stacks."""
    lines = [line for line in output.splitlines() if line.strip() and not line.startswith((" ", "\t"))]
    last = next((line.strip()[:MAX_QUOTED_CHARACTERS] for line in reversed(lines) if "Warning: " not in line), "")
    happened = "; ".join(filter(None, (message, last and f"the last line of its output: {last}", found.sentence)))
    advice = find_advice(_drop_source(output), "stalled", shm) or found.advice or UNKNOWN_STALL
    return TrialFailure("stalled", f"{happened}. {advice}", "\n\n".join(filter(None, (output, found.stacks))))


def diagnose_exit(status: int | None, output: str, shm: str = "", *, on_device: bool = False) -> TrialFailure:
    """Diagnose the end of a child that reported nothing.

    Args:
        status: As in `subprocess`; None if the child is alive but closed its connection.
        output: The end of what its processes printed.
        shm: Use of /dev/shm, as in `: 64 MiB used of 64 MiB`.
        on_device: Whether the trial uses an accelerator.
    """
    name = "" if status is None or status >= 0 else f"signal {-status}"
    name = next((one.name for one in signal.Signals if status == -one), name)
    advice = find_advice(name, "crashed", shm)
    if not advice:  # nobody asks for such a signal, while an abort may follow an error
        found = find_pattern(_drop_source(output), *RESOURCES, *(DEVICES if on_device else ()), shm=shm)
        if found is not None:
            return TrialFailure(*found, output)
    if name:
        message = f"was killed by {name}" + (f": {advice[0].lower()}{advice[1:]}" if advice else "")
    elif status is None:
        message = "closed its connection to dltune without reporting a result"
    else:
        message = f"exited with code {status} without a result (os._exit or a crash in native code)"
    return TrialFailure("crashed", message, output)


def reclassify_oom_kill(failure: TrialFailure, peak: ResourceUsage, budgets: Budgets) -> TrialFailure:
    """Return a failure as out of memory if the kernel killed for memory; it looks like a lost process or a hang."""
    if not peak.oom_kills or failure.kind not in CODE_FAILURES:
        return failure
    seen = f" at {format_bytes(peak.host_bytes)} of host memory" if peak.host_bytes else ""
    budget = format_bytes(budgets.memory_bytes)
    message = f"was killed by the kernel's out-of-memory killer{seen}, against a budget of {budget}"
    return replace(failure, kind="out_of_memory", message=message)


def reject_report(answer: Answer) -> TrialFailure:
    """Return the failure of a process, or that of one that replied to another command."""
    if isinstance(answer, TrialFailure):
        return answer
    return TrialFailure("crashed", f"sent an unexpected reply ({type(answer).__name__})")


def make_result(
    request: TrialRequest,
    answer: Answer,
    peak: ResourceUsage,
    budgets: Budgets,
    batches: int,
    output: str,
    ranks: int,
) -> TrialResult:
    """Return the result of a trial, with the resources that one of its training processes used.

    Args:
        request: What was to be measured.
        answer: What the child reported, or how it ended.
        peak: Resources that all its processes used.
        budgets: Of all its processes.
        batches: Number that the child last reported.
        output: The end of what its processes printed.
        ranks: Number of training processes.
    """
    seen: dict[str, Any] = {"peak_host_bytes": peak.host_bytes // ranks, "peak_shm_bytes": peak.shm_bytes // ranks}
    if isinstance(answer, TrialReport):
        used, budget = answer.measurement.peak_gpu_bytes, budgets.gpu_bytes
        if budget is None or used <= budget:
            return TrialResult(kind="completed", config=request.config, measurement=answer.measurement, **seen)
        failure = TrialFailure(DEVICE_MEMORY.outcome, DEVICE_MEMORY.describe_excess(used, budget))
    elif isinstance(answer, FailureReport):
        failure = diagnose_error(answer, peak.describe_shm(), output).name_rank(answer.rank)
        seen |= {"samples": answer.samples, "in_step": answer.where == "running step", "index": answer.index}
        seen["cause"] = _find_cause(answer) if failure.kind == "workload_failed" else ""
        failure = reclassify_oom_kill(failure, peak, budgets)
    else:
        failure = reject_report(answer)
        seen["samples"] = (batches + 1) * (request.config.dataloader.batch_size or 1)
    return TrialResult(
        kind=failure.kind, config=request.config, message=failure.message, details=failure.details, **seen
    )


def start_error(answer: Answer, workload: WorkloadRequest) -> UsageError | WorkloadError:
    """Return the error for a workload that could not be loaded or profiled."""
    if not isinstance(answer, FailureReport):
        failure = reject_report(answer)
        advice = {
            "timed_out": " If it needs longer, allow it with --stall-time.",
            "out_of_memory": " Give it more with --max-memory, or make the dataset smaller.",
        }.get(failure.kind, "")
        message = f"While {workload.dataset} was loaded and profiled, its process {failure.message}.{advice}"
        return WorkloadError(message, failure.details)
    advice = _advise_on_missing_module(answer.error, Path(workload.working_dir))
    advice = advice or find_advice(answer.error, "workload_failed")
    text = f"{answer.error}\n{advice}." if advice else answer.error
    kind, _, message = text.partition(": ")
    for ours in (UsageError, WorkloadError):
        if kind.rpartition(".")[2] == ours.__name__:
            return ours(message)
    sources = {
        "running step": f"The training step ({workload.describe_step()}) failed on a batch",
        "step": f"The step factory {workload.step} failed",
        "dataset": f"The dataset factory {workload.dataset} failed",
    }
    usual = f"Loading the first batches of {workload.dataset} in the training process failed"
    return WorkloadError(f"{sources.get(answer.where, usual)}: {text}", answer.details)


def _advise_on_missing_module(error: str, folder: Path) -> str:
    """Return where a missing module lies below a folder, or how to install it; empty if the error is another one."""
    missing = re.search(r"ModuleNotFoundError: No module named '([\w.]+)'", error)
    if missing is None:
        return ""
    found = find_module(missing[1], folder)
    if found is None:
        return (
            f"Install packages for the Python that runs dltune ({sys.executable} -m pip install); a file of yours is "
            "found if its folder is in PYTHONPATH"
        )
    place = found.parents[missing[1].count(".") + (found.name == "__init__.py")]
    return (
        f"There is {found}, which is found from {place}: set PYTHONPATH={place}, or name a script by its path "
        "(FILE.py:NAME), which finds modules in its folder"
    )


def _find_exception(error: str) -> str:
    """Return type and first line of an exception; of the original one if torch sent it from a worker or a thread."""
    is_sent = re.match(r"[\w.]+: Caught \w+ in [^\n]*\.\nOriginal ", error)
    text = error.rpartition("Traceback (most recent call last):\n")[2] if is_sent else error
    pattern = r"(?m)^[^\W\d][\w.<>]*(?::\s*.*)?$"
    found = re.search(pattern, text) or re.search(pattern, error)
    words = found[0] if found else next(iter(error.strip().splitlines()), "")
    return " ".join(words.split())[:MAX_QUOTED_CHARACTERS] or "an exception without a name"


def _find_cause(failed: FailureReport) -> str:
    """Return type and place of an exception in the user's code, as in `ValueError at data.py:12`."""
    frames = re.findall(r'(?m)^[ |]*File "(.*)", line (\d+)', failed.details)
    file, line = next((one for one in reversed(frames) if not is_library(one[0])), frames[-1] if frames else ("", ""))
    kind = _find_exception(failed.error).partition(":")[0].rpartition(".")[2]
    return f"{kind} at {Path(file).name}:{line}" if file else kind


def _drop_source(text: str) -> str:
    """Remove the frames of a traceback and their source lines, which may name any error."""
    return re.sub(r'(?m)^[ |]*File "[^\n]*\n(?:[ |]{4,}[^\n]*\n)*', "", text)
