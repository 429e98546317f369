"""Names how a trial failed, by evidence: a wait status or the text of an error, never a guess.

torch reports a full /dev/shm, a lost worker or an exhausted descriptor table only in words, and the
words end in a number that differs between systems; so they are matched without it. The lines of source code
that a traceback quotes are no evidence: `except MemoryError:` does not say that memory ran out.
"""

from __future__ import annotations

import re
import resource
import signal
from typing import Final

from autotune.config import FrozenModel
from autotune.trial.measurement import TrialKind
from autotune.trial.protocol import FailureReport
from autotune.units import format_bytes

MAX_QUOTED: Final = 600  # characters of an error that go into a sentence
NO_PICKLE: Final = r"cannot pickle|can't pickle|PicklingError|can't get attribute|Cowardly refusing to serialize"

_SYMPTOMS: Final[tuple[tuple[TrialKind, str, str], ...]] = (
    (
        "too_many_files",
        r"Too many open files|\[Errno 24\]|received \d+ items of ancdata",
        "ran out of open files (limit {files}). Raise the limit (ulimit -n) or tune with "
        "--fix sharing_strategy=file_system",
    ),
    (
        "shm_exhausted",
        r"unable to open shared memory.*No space left",
        "ran out of names in /dev/shm: every tensor of a batch needs one. Mount it with more (nr_inodes=), deliver "
        "fewer tensors a batch, or tune with fewer --max-workers",
    ),
    (
        "shm_exhausted",
        r"\[Errno 30\] [^:\n]*$|\[Errno 30\].*'/psm_|shared memory.*\(30\)",  # a semaphore's error names no file
        "could not write to /dev/shm: it is mounted read-only. Mount it writable, or tune with --max-workers 0",
    ),
    (
        "shm_exhausted",
        r"killed by signal: Bus error|Unexpected bus error encountered in worker",
        "lost a worker to a bus error (SIGBUS): /dev/shm was full{shm}, or a memory-mapped file became shorter. Give "
        "the container more (--shm-size=1g), tune with fewer --max-workers, and let nobody change the files meanwhile",
    ),
    (
        "shm_exhausted",
        r"unable to (allocate|open) shared memory|No space left on device.*torch_|out of shared memory",
        "filled /dev/shm{shm}. Give the container more (--shm-size=1g) or tune with fewer --max-workers",
    ),
    (
        "out_of_memory",
        r"(?s)pin.memory.*CUDA error: out of memory|CUDA error: out of memory.*pin.memory",
        "could get no more page-locked memory. Tune with fewer --max-workers, a smaller --batch-size, or "
        "--fix pin_memory=false",
    ),
    (
        "out_of_memory",
        r"torch\.OutOfMemoryError|(CUDA|HIP|XPU)( error:)? out of memory",
        "ran out of device memory{asked}. Use a smaller --batch-size",
    ),
    (
        "device_lost",
        r"NVMLError_GpuIsLost|RuntimeError: No CUDA GPUs are available|CUDA error: (uncorrectable|hardware|GPU is lost|"
        r"no CUDA-capable device|CUDA-capable device\(s\) is/are busy|all CUDA-capable|unknown error|system not yet)",
        "lost its device: {error}. Look at nvidia-smi and the kernel's log (Xid); a driver that lost a GPU needs a "
        "reset or a reboot",
    ),
    (
        "device_failed",
        r"CUDA error: (?!invalid argument)|(CUBLAS|CUDNN)_STATUS_(EXECUTION|INTERNAL)|device-side assert",
        "left the device in an error that only a new process clears: {error}. An index out of range in the step does "
        "this; CUDA_LAUNCH_BLOCKING=1 shows where",
    ),
    (
        "out_of_memory",
        r"can't allocate memory|Cannot allocate memory|Unable to allocate .* for an array|\bMemoryError",
        "ran out of memory{asked}. Use a smaller --batch-size or fewer --max-workers",
    ),
)
_OF_DEVICES: Final[tuple[TrialKind, ...]] = ("device_lost", "device_failed")  # not without one: a text says it, then
_LOST_WORKER: Final = r"^(?!.*Caught \w+ in DataLoader worker).*(killed by signal|exited unexpectedly|ConnectionReset)"
_SEEN_DEAD: Final = r"^DataLoader worker \(pid \d+\) (is killed|exited)"  # what a look at its exit status adds
_LOST_LINE: Final = r"^(FileNotFound|ConnectionRefused|BrokenPipe|EOF)\w*Error"  # when a worker's socket is gone
_TORCH_RECEIVING: Final = r"resource_sharer\.py|in rebuild_\w+|multiprocessing[/\\]connection\.py"
_WORKER_ADVICE: Final = (
    (
        r"signal: Killed",
        "The kernel's out-of-memory killer does this: use fewer --max-workers or a smaller --batch-size",
    ),
    (
        r"signal: (Segmentation|Aborted|Floating|Illegal)|Unexpected (segmentation|floating)",
        "Native code that the dataset calls crashed: multiprocessing_context='spawn' in a Workload helps where it "
        "does not survive a fork",
    ),
    (r"signal: Terminated", "Something told it to end"),
    (
        r"exited unexpectedly",
        "Code of the dataset ended it: sys.exit(), os._exit() or a KeyboardInterrupt; or it could not be started, "
        "for the reason that it printed",
    ),
    (r"", "It was killed, or code of the dataset ended it (sys.exit, os._exit)"),
)
_SUGGESTIONS: Final = (
    (
        r"stack expects each tensor to be equal size|should be of equal size|storage that is not resizable",
        "The samples of a batch differ in size: give a collate_fn that pads them, as with --collate PKG.MOD:FUNCTION.",
    ),
    (
        r"default_collate: batch must contain",
        "torch's own collate cannot stack such samples: return tensors, numbers, or tuples and dicts of them, or give "
        "a collate_fn with --collate PKG.MOD:FUNCTION.",
    ),
    (
        r"don't support automatic differentiation|non-leaf tensor which requires_grad",
        "A worker cannot hand over a sample that needs a gradient: return sample.detach().",
    ),
    (
        rf"{NO_PICKLE}|import of module .* failed",
        "What goes to a spawned worker is pickled: use classes and functions that can be imported by their names, or "
        "leave multiprocessing_context at fork.",
    ),
    (
        r"daemonic processes are not allowed to have children",
        "A worker must not start processes: start none in the dataset, or tune with --max-workers 0.",
    ),
    (
        r"StopIteration",
        "A StopIteration raised inside __getitem__ or collate_fn ends an epoch without a word: let it raise another "
        "error.",
    ),
    (r"Caught \w+ in pin memory thread", "The batch could not be pinned: tune with --fix pin_memory=false."),
    (r"out of memory|can't allocate memory|\bMemoryError", "Use a smaller --batch-size, or smaller samples."),
    (r"Too many open files", "Raise the limit (ulimit -n)."),
)
_STALLS: Final = (
    (
        rf"{NO_PICKLE}|cannot serialize",
        "A batch or an error that cannot be pickled never arrives (pytorch/pytorch#142884): deliver tensors, and raise "
        "errors whose class can be imported",
    ),
    (
        r"unable to (allocate|open) shared memory|No space left on device",
        "/dev/shm is full{shm}. Give the container more (--shm-size=1g) or tune with fewer --max-workers",
    ),
    (r"AF_UNIX path too long", "Sockets cannot be made in so long a TMPDIR: set a shorter one"),
    (
        r"",
        "If a worker waits for a lock or a thread that the training process had when it forked, start workers with "
        "multiprocessing_context='spawn' in a Workload; if it only needs longer, allow it with --stall-time",
    ),
)
_STATUS_ADVICE: Final = {
    "SIGKILL": " (the kernel's out-of-memory killer does this)",
    "SIGBUS": ": /dev/shm was full{shm}, or a memory-mapped file became shorter",
    "SIGSEGV": ": native code that the dataset or the step calls crashed",
    "SIGTERM": ": something told it to end",
}
_CONCLUSIVE: Final = ("SIGKILL", "SIGBUS", "SIGSEGV", "SIGTERM")  # nobody asks for these by an error's words


class TrialFailure(FrozenModel):
    """How a trial failed.

    Attributes:
        kind: The outcome.
        message: What happened, as the rest of a sentence that starts with the trial.
        details: Traceback or captured output.
    """

    kind: TrialKind
    message: str
    details: str = ""


def diagnose_error(failed: FailureReport, shm: str = "", output: str = "") -> TrialFailure:
    """Judge an error that the child reported.

    Args:
        failed: The child's report.
        shm: What was used of /dev/shm, as in `: 64 MiB used of 64 MiB`.
        output: The end of what its processes printed; it tells more of a worker that died than the report can.

    Returns:
        The outcome: a resource that ran out where the text says so, else a failure of the user's code.
    """
    details = f"{failed.details}\n{output}".strip() if output else failed.details
    error = _last_line(failed.error)
    lost = _is_lost_worker(failed)
    spoken = _drop_source(f"{failed.error}\n{failed.details}" + (f"\n{output}" if lost else ""))
    found = _find_symptom(spoken, shm, on_device=failed.on_device)
    if found is not None:
        return found.model_copy(update={"details": details})
    if lost:
        return TrialFailure(kind="crashed", message=_describe_lost_worker(spoken, error), details=details)
    if re.search(r"DataLoader timed out after", failed.error):
        message = (
            f"waited in vain for a worker: {error}, the workload's own timeout. Raise it, or see what it waits for"
        )
        return TrialFailure(kind="stalled", message=message, details=details)
    sentences = (_quote(failed.error), advice_for(failed.error))
    message = ". ".join(sentence.rstrip(".") for sentence in sentences if sentence)
    return TrialFailure(kind="workload_failed", message=message, details=details)


def _find_symptom(spoken: str, shm: str, *, on_device: bool) -> TrialFailure | None:
    for kind, pattern, message in _SYMPTOMS:
        if kind in _OF_DEVICES and not on_device:
            continue
        if re.search(pattern, spoken, re.IGNORECASE | re.MULTILINE):
            error = _find_line(pattern, spoken)
            words = message.format(shm=shm, asked=_describe_amount(spoken), files=_read_files_limit(), error=error)
            return TrialFailure(kind=kind, message=words)
    return None


def _find_line(pattern: str, text: str) -> str:
    """Give the line in which a pattern is found, shortened for a sentence."""
    lines = (line.strip() for line in text.splitlines())
    found = next((line for line in lines if re.search(pattern, line, re.IGNORECASE)), "")
    return found[:MAX_QUOTED].rstrip(".")


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
    advice = next(advice for pattern, advice in _WORKER_ADVICE if re.search(pattern, words))
    return f"lost a worker process: {words}. {advice}"


def _drop_source(text: str) -> str:
    """Leave out the frames of a traceback: where it was and the source line, which may name any error."""
    return re.sub(r'^[ |]*File "[^\n]*\n(?:[ |]{4,}[^\n]*\n)*', "", text, flags=re.MULTILINE)


def _describe_amount(text: str) -> str:
    """Say how much was asked for, where the error tells."""
    found = re.search(r"tried to allocate (\d+) bytes", text)
    if found:
        return f": it asked for {format_bytes(int(found[1]))} more"
    found = re.search(r"(?:Tried|Unable) to allocate ([\d.]+ [KMGT]?i?B)", text)
    return f": it asked for {found[1]} more" if found else ""


def _read_files_limit() -> str:
    """Read the limit of open files, which the child has inherited from this process."""
    return f"{resource.getrlimit(resource.RLIMIT_NOFILE)[0]:,}"


def advice_for(text: str) -> str:
    """Name the way out of an error of the user's code that is common enough to be known.

    Args:
        text: The error, as its traceback's last lines have it.

    Returns:
        A sentence, or nothing.
    """
    return next((advice for pattern, advice in _SUGGESTIONS if re.search(pattern, text, re.IGNORECASE)), "")


def _quote(error: str) -> str:
    """Put an error into a sentence: one of dltune's own is a sentence already."""
    ours = re.match(r"autotune\.[\w.]+: ", error)
    return error[ours.end() :].strip().rstrip(".") if ours else f"raised {_last_line(error)}"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return lines[-1][:MAX_QUOTED] if lines else "an exception without a name"


def _find_last_words(output: str) -> str:
    """Find the last line that says something; a warning, and the source line under it, does not explain a hang."""
    lines = [line for line in output.splitlines() if line.strip() and not line.startswith((" ", "\t"))]
    return next((line.strip()[:MAX_QUOTED] for line in reversed(lines) if "Warning: " not in line), "")


def diagnose_stall(message: str, output: str, shm: str = "") -> TrialFailure:
    """Name what a child hung on that was ended for making no progress.

    Args:
        message: How long it was waited for, against which limit.
        output: The end of what its processes printed.
        shm: What was used of /dev/shm, as in `: 64 MiB used of 64 MiB`.

    Returns:
        The outcome, with the last line of the output as evidence and the next step.
    """
    spoken = _drop_source(output)
    advice = next(advice for pattern, advice in _STALLS if re.search(pattern, spoken, re.IGNORECASE))
    last = _find_last_words(output)
    evidence = f"; the last line of its output: {last}" if last else ""
    return TrialFailure(kind="stalled", message=f"{message}{evidence}. {advice.format(shm=shm)}", details=output)


def diagnose_exit(status: int | None, output: str, shm: str = "", *, on_device: bool = False) -> TrialFailure:
    """Name the end of a child that reported nothing.

    Args:
        status: Its wait status as `subprocess` gives it; None when it still lives but closed the line.
        output: The end of what it printed.
        shm: What was used of /dev/shm, as in `: 64 MiB used of 64 MiB`.
        on_device: Whether it used an accelerator.

    Returns:
        The outcome.
    """
    found = None
    if _name_signal(status) not in _CONCLUSIVE:
        found = _find_symptom(_drop_source(output), shm, on_device=on_device)
    if found is not None:
        return found.model_copy(update={"details": output})
    return TrialFailure(kind="crashed", message=_describe_status(status).format(shm=shm), details=output)


def _name_signal(status: int | None) -> str | None:
    """Name the signal that a wait status stands for; None where it was none."""
    if status is None or status >= 0:
        return None
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


def _describe_status(status: int | None) -> str:
    name = _name_signal(status)
    if name is not None:
        return f"was killed by {name}{_STATUS_ADVICE.get(name, '')}"
    if status is None:
        return "closed its line to dltune without a word"
    return f"exited with code {status} without a result (os._exit or a crash in native code)"
