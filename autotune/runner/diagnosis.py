"""Diagnoses failures of trials, and of loading and profiling, from an exit status or the text of an error.

torch reports a full /dev/shm, a lost worker or an exhausted descriptor table only in words, which end in a number that
differs between systems, so they are matched without it. The source lines that a traceback quotes are no evidence:
`except MemoryError:` does not mean that memory ran out.
"""

from __future__ import annotations

import re
import resource
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from autotune.errors import UsageError, WorkloadError
from autotune.profiles.schema import Budgets
from autotune.protocol.budgets import DEVICE_MEMORY
from autotune.protocol.measurement import CODE_FAILURES, PICKLE_ADVICE, TrialResult, TrialStatus
from autotune.protocol.messages import FailureReport, Report, Stage, TrialReport, TrialRequest
from autotune.request import WorkloadRequest
from autotune.runner.hangs import FORKED_LOCK, HangReport
from autotune.runner.resources import ResourceUsage
from autotune.system.software import is_library
from autotune.units import format_bytes

MAX_QUOTED_CHARACTERS: Final = 600  # of an error, in a sentence
RESOURCES: Final[tuple[TrialStatus, ...]] = ("too_many_files", "shm_exhausted", "out_of_memory")
DEVICES: Final[tuple[TrialStatus, ...]] = ("device_lost", "device_failed")  # if the trial uses an accelerator
_PINNING_FRAME: Final = r"torch/utils/data/_utils/pin_memory\.py\", line \d+, in pin_memory"
_CUDA: Final = r"(?:CUDA (?:driver )?error|Triton Error \[CUDA\]):"
_HARMLESS: Final = (  # errors of one call, after which the device works on
    r"invalid (?:argument|configuration argument|device ordinal|resource handle|value)|initialization error|"
    r"operation not (?:permitted|supported)|too many resources"
)
_NO_PICKLE: Final = (
    r"cannot pickle|can't pickle|PicklingError|can't get (?:attribute|local object)|Cowardly refusing to serialize"
)

# Messages of failed resources and devices, as the rest of a sentence that starts with the trial; advice on the others,
# by the words of a lost worker or a signal, and the error of the user's code
PATTERNS: Final[dict[TrialStatus, dict[str, str]]] = {
    "too_many_files": {
        r"Too many open files|\[Errno 24\]|received \d+ items of ancdata": (
            "ran out of open files (limit {files}). Raise it (ulimit -n) or use --set sharing_strategy=file_system"
        ),
    },
    "shm_exhausted": {
        r"unable to open shared memory.*No space left": (
            "ran out of names in /dev/shm, one per tensor. Mount it with more (nr_inodes=) or use fewer --max-workers"
        ),
        r"\[Errno 30\] [^:\n]*$|\[Errno 30\].*'/psm_|shared memory.*\(30\)": (  # a semaphore's error names no file
            "could not write to /dev/shm: it is mounted read-only. Mount it writable, or tune with --max-workers 0"
        ),
        r"killed by signal: Bus error|Unexpected bus error encountered in worker": (
            "lost a worker to a bus error (SIGBUS): /dev/shm was full{shm}, or a memory-mapped file became shorter. "
            "Give the container more (--shm-size=1g), tune with fewer --max-workers, and do not change the files"
        ),
        r"unable to allocate shared memory|out of shared memory": (
            "filled /dev/shm{shm}. Give the container more (--shm-size=1g) or tune with fewer --max-workers"
        ),
    },
    "out_of_memory": {
        r"(?s)pin.memory.*CUDA error: out of memory|CUDA error: out of memory.*pin.memory": (
            "ran out of page-locked memory. Use fewer --max-workers, a smaller --batch-size, or --set pin_memory=false"
        ),
        rf"torch\.OutOfMemoryError|({_CUDA}|(CUDA|HIP|XPU)( error:)?) out of memory|_STATUS_ALLOC_FAILED|"
        r"NVML_SUCCESS == .*INTERNAL ASSERT FAILED": (  # torch cannot ask for the free memory, as in a part of a GPU
            "ran out of device memory{asked}. Use a smaller --batch-size"
        ),
        r"can't allocate memory|Cannot allocate memory|Unable to allocate .* for an array|\bMemoryError": (
            "ran out of memory{asked}. Use a smaller --batch-size or fewer --max-workers"
        ),
        r"can't start new thread|BlockingIOError: \[Errno 11\]": (
            "reached the limit of processes and threads. Raise it (ulimit -u, a container's pids limit), or use fewer "
            "--max-workers"
        ),
    },
    "device_lost": {
        rf"NVMLError_GpuIsLost|RuntimeError: No CUDA GPUs are available|{_CUDA} (uncorrectable|GPU is lost|"
        r"no CUDA-capable device|CUDA-capable device\(s\) is/are busy|all CUDA-capable|unknown error|system not yet)": (
            "lost its device: {error}. Look at nvidia-smi and the kernel's log (Xid); the GPU may need a reset"
        ),
    },
    "device_failed": {
        r"CUDA error: no kernel image is available": (
            "cannot run code on this device: {error}. Install a build of torch that supports it: "
            "torch.cuda.get_arch_list() lists the architectures"
        ),
        rf"{_CUDA} (?!{_HARMLESS})|(CUBLAS|CUDNN)_STATUS_(EXECUTION|INTERNAL)|device-side assert": (
            "left the device in an error that only a new process clears: {error}. An index out of range in the step "
            "does this; CUDA_LAUNCH_BLOCKING=1 shows where"
        ),
    },
    "crashed": {
        r"SIGKILL|signal: Killed": (
            "The kernel's out-of-memory killer does this; use fewer --max-workers or a smaller --batch-size"
        ),
        r"SIGBUS": "/dev/shm was full{shm}, or a memory-mapped file became shorter",
        r"SIGSEGV|signal: (Segmentation|Aborted|Floating|Illegal)|Unexpected (segmentation|floating)": (
            "Native code of the dataset or step crashed; if a fork breaks it, use --set multiprocessing_context=spawn"
        ),
        r"SIGTERM|signal: Terminated": "Another process ended it",
        r"exited unexpectedly": (
            "Code of the dataset ended it: sys.exit(), os._exit() or a KeyboardInterrupt; or it could not be started"
        ),
    },
    "workload_failed": {
        r"A worker could not send this": (
            "In training, a loader waits forever for a batch or an error that cannot be pickled "
            "(pytorch/pytorch#142884): return tensors, and raise errors whose class can be imported"
        ),
        r"stack expects each tensor to be equal size|should be of equal size|storage that is not resizable": (
            "The samples of a batch differ in size: pad them in a collate_fn, and return a DataLoader that has it, or "
            "autotune.Workload(dataset=..., collate_fn=...)"
        ),
        r"default_collate: batch must contain": (
            "torch cannot collate such samples: return tensors, numbers or dicts from the dataset, or "
            "autotune.Workload(dataset=..., collate_fn=...) from the factory"
        ),
        r"set_epoch\(\) missing": "dltune calls set_epoch(epoch), as trainers do: its other parameters need defaults",
        r"don't support automatic differentiation|non-leaf tensor which requires_grad": (
            "A worker cannot send a sample that needs a gradient: return sample.detach()"
        ),
        rf"{_NO_PICKLE}|import of module .* failed": PICKLE_ADVICE,
        r"daemonic processes are not allowed to have children": (
            "A worker must not start processes: start none in the dataset, or tune with --max-workers 0"
        ),
        r"\ASystemExit": (
            "Code called sys.exit(): raise an error instead, and guard calls at the top of a module with "
            'if __name__ == "__main__"'
        ),
        r"^KeyError: \d+$": "Samples are numbered from 0 to len(dataset) - 1; of a DataFrame, return frame.iloc[index]",
        r"StopIteration": "It silently ends an epoch if __getitem__ or collate_fn raises it: raise another error",
        r"Caught \w+ in pin memory thread": "The batch could not be pinned: tune with --set pin_memory=false",
        r"ModuleNotFoundError: No module named": (
            "Install it in the environment that trains; if it is yours, add its folder to PYTHONPATH"
        ),
        r"attempted relative import": (
            "Name the module with its package, PACKAGE.MODULE:NAME, and run dltune in the folder above the package"
        ),
        r"Cannot re-initialize CUDA in forked subprocess|CUDA error: initialization error": (
            "The training process and the workers forked from it both use CUDA: load samples on the CPU and move "
            "batches in the step, or start workers with --set multiprocessing_context=spawn"
        ),
        r"Found no NVIDIA driver|not compiled with CUDA enabled|No CUDA GPUs are available": (
            "A module, the factory or the dataset needs CUDA, which is not available: use a device in the step only"
        ),
        r"URLError|gaierror|name resolution|Name or service not known|Network is unreachable|Max retries exceeded|"
        r"HTTP Error \d|LocalEntryNotFoundError|OfflineModeIsEnabled": (
            "It needs the network, as would every trial: call the factory once with a network, to read from disk later"
        ),
        r"You can use download=True": "The data is missing: call the dataset once with download=True",
        r"out of memory|can't allocate memory|\bMemoryError": "Use a smaller --batch-size, or smaller samples",
        r"Too many open files": "Raise the limit (ulimit -n)",
    },
}
_LOST_WORKER: Final = (  # in torch's words, or as the child adds them to an error
    r"\A(?!.*Caught \w+ in DataLoader worker).*"
    r"((DataLoader worker|Pin memory thread).* (killed by signal|exited unexpectedly)|(?P<reset>ConnectionReset))|"
    r"(?m:^DataLoader worker \(pid \d+\) (is killed|exited))"
)
_WORKER_END: Final = (
    r"DataLoader worker \([^\n]*(?:killed by signal: [\w ]*\w|with exit code \d+)",
    r"Unexpected [^\n]* encountered in worker",
)


@dataclass(frozen=True, slots=True)
class TrialFailure:
    """A failure of a trial: its status, and a message that continues a sentence about the trial."""

    status: TrialStatus
    message: str
    details: str = ""

    def name_rank(self, rank: int | None) -> TrialFailure:
        """Return the failure with the rank that it happened in; None if all did, or if there is one."""
        return self if rank is None else replace(self, message=f"in rank {rank} {self.message}")


Reply = Report | TrialFailure


def diagnose_error(failed: FailureReport, shm: str = "", output: str = "", *, has_workers: bool = True) -> TrialFailure:
    """Diagnose an error that the child reported: a resource ran out if the text says so, else the user's code failed.

    `shm` describes the use of /dev/shm, as in `: 64 MiB used of 64 MiB`; `output` may explain the death of a worker.
    """
    details = f"{failed.details}\n{output}".strip()
    is_own = failed.stage == "running step" or not has_workers  # the connection that is reset
    is_lost = not all(is_own and one["reset"] for one in re.finditer(_LOST_WORKER, failed.error))
    text = _drop_source(f"{failed.error}\n{failed.details}" + (f"\n{output}" if is_lost else ""))
    if re.search(_PINNING_FRAME, failed.details):  # without workers, only the traceback shows where memory ran out
        text = f"pin memory\n{text}"
    found = find_pattern(text, *RESOURCES, *(DEVICES if failed.on_device else ()), shm=shm)
    if found is not None:
        return TrialFailure(*found, details)
    error = _find_exception(failed.error)
    if is_lost:
        ends = (re.search(pattern, text) for pattern in _WORKER_END)
        end = next((one[0] for one in ends if one), error.rstrip(". "))
        advice = find_advice(end, "crashed", shm) or "It was killed, or code of the dataset ended it (os._exit)"
        return TrialFailure("crashed", f"lost a worker process: {end}. {advice}", details)
    if "DataLoader timed out after" in failed.error:
        message = f"waited for a worker until the DataLoader's own timeout= ({error.rstrip('.')})"
        return TrialFailure("stalled", f"{message}. Increase it, or find out what the worker is waiting for", details)
    ours = re.match(r"autotune\.[\w.]+: ", failed.error)
    happened = failed.error[ours.end() :].strip() if ours else f"raised {error}"
    advice = find_advice(_drop_source(failed.error), "workload_failed")
    message = ". ".join(sentence.rstrip(".") for sentence in (happened, advice) if sentence)
    return TrialFailure("workload_failed", message, details)


def diagnose_stall(message: str, output: str, found: HangReport) -> TrialFailure:
    """Diagnose a trial that was ended for making no progress, from the end of its output and from its stacks."""
    lines = [line for line in output.splitlines() if line.strip() and not line.startswith((" ", "\t"))]
    last = next((line.strip()[:MAX_QUOTED_CHARACTERS] for line in reversed(lines) if "Warning: " not in line), "")
    happened = "; ".join(filter(None, (message, last and f"the last line of its output: {last}", found.sentence)))
    usual = f"{FORKED_LOCK}; if it only needs longer, allow it with --stall-time and --timeout"
    return TrialFailure(
        "stalled", f"{happened}. {found.advice or usual}", "\n\n".join(filter(None, (output, found.stacks)))
    )


def diagnose_exit(status: int | None, output: str, shm: str = "", *, on_device: bool = False) -> TrialFailure:
    """Diagnose the end of a child that reported nothing, from its output and its exit status as in `subprocess`.

    The status is None if the child is alive but closed its connection.
    """
    unknown = "" if status is None or status >= 0 else f"signal {-status}"
    name = next((one.name for one in signal.Signals if status == -one), unknown)
    advice = find_advice(name, "crashed", shm)
    if not advice:  # an abort may follow an error
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
    if not peak.oom_kills or failure.status not in CODE_FAILURES:
        return failure
    seen = f" at {format_bytes(peak.host_bytes)} of host memory" if peak.host_bytes else ""
    message = f"was killed by the kernel's out-of-memory killer{seen}, against a budget of "
    return replace(failure, status="out_of_memory", message=message + format_bytes(budgets.memory_bytes))


def reject_report(reply: Reply) -> TrialFailure:
    """Return the failure of a process, or that of one that replied to another command."""
    if isinstance(reply, TrialFailure):
        return reply
    return TrialFailure("crashed", f"sent an unexpected reply ({type(reply).__name__})")


def make_result(
    request: TrialRequest, reply: Reply, peak: ResourceUsage, budgets: Budgets, batches: int, output: str, ranks: int
) -> TrialResult:
    """Return the result of a trial, with the share of one of its training processes (`ranks`) in the peak of all.

    `batches` is the number that the child last reported, and `output` the end of what its processes printed.
    """
    seen: dict[str, Any] = {"peak_host_bytes": peak.host_bytes // ranks, "peak_shm_bytes": peak.shm_bytes // ranks}
    if isinstance(reply, TrialReport):
        used, budget = reply.measurement.peak_gpu_bytes, budgets.gpu_bytes
        if budget is None or used <= budget:
            return TrialResult(status="completed", config=request.config, measurement=reply.measurement, **seen)
        failure = TrialFailure(DEVICE_MEMORY.status, DEVICE_MEMORY.describe_excess(used, budget))
    elif isinstance(reply, FailureReport):
        has_workers = request.config.dataloader.num_workers > 0
        failure = diagnose_error(reply, peak.describe_shm(), output, has_workers=has_workers).name_rank(reply.rank)
        seen["samples"] = reply.samples
        seen["in_step"] = reply.stage == "running step" and failure.status != "crashed"  # a worker dies at any time
        seen["cause"] = _find_cause(reply) if failure.status == "workload_failed" else ""
        failure = reclassify_oom_kill(failure, peak, budgets)
    else:
        failure = reject_report(reply)
        seen["samples"] = (batches + 1) * (request.config.dataloader.batch_size or 1)
    seen |= {"message": failure.message, "details": failure.details}
    return TrialResult(status=failure.status, config=request.config, **seen)


def start_error(reply: Reply, workload: WorkloadRequest, output: str = "") -> UsageError | WorkloadError:
    """Return the error for a workload that could not be loaded or profiled; `output` may say why it called sys.exit."""
    if not isinstance(reply, FailureReport):
        failure = reject_report(reply)
        advice = {
            "timed_out": " If it needs longer, allow it with --stall-time.",
            "out_of_memory": " Give it more with --max-memory, or make the dataset smaller.",
        }.get(failure.status, "")
        advice = advice if failure.status != "out_of_memory" or "memory" in failure.message else ""
        message = f"While {workload.dataset} was loaded and profiled, its process {failure.message}.{advice}"
        return WorkloadError(message, failure.details)
    if reply.on_device and (found := find_pattern(_drop_source(reply.error), *DEVICES)):
        return WorkloadError(f"While {workload.dataset} was profiled, its process {found[1]}.", reply.details)
    advice = find_advice(reply.error, "workload_failed")
    text = f"{reply.error}\n{advice}." if advice else reply.error
    kind, _, message = text.partition(": ")
    for ours in (UsageError, WorkloadError):
        if kind == f"{ours.__module__}.{ours.__name__}":
            return ours(message)
    usual = f"Loading the first batches of {workload.dataset} in the training process failed"
    sources: dict[Stage, str] = {
        "running step": f"The training step ({workload.describe_step()}) failed on a batch",
        "step": usual if workload.step is None else f"The step factory {workload.step} failed",
        "dataset": f"The dataset factory {workload.dataset} failed",
    }
    details = f"{output}\n{reply.details}" if kind == "SystemExit" else reply.details
    return WorkloadError(f"{sources.get(reply.stage, usual)}: {text}", details)


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


def find_pattern(text: str, *statuses: TrialStatus, shm: str = "") -> tuple[TrialStatus, str] | None:
    """Return status and message of the first pattern of these statuses in a text; None if there is none."""
    for status in statuses:
        for pattern, message in PATTERNS[status].items():
            if found := re.search(pattern, text, re.IGNORECASE | re.MULTILINE):
                start, end = text.rfind("\n", 0, found.start()) + 1, f"{text}\n".find("\n", found.end())
                error = text[start:end].strip()[:MAX_QUOTED_CHARACTERS].rstrip(".")
                files = f"{resource.getrlimit(resource.RLIMIT_NOFILE)[0]:,}"  # the child inherited it
                return status, message.format(shm=shm, asked=_describe_amount(text), files=files, error=error)
    return None


def find_advice(text: str, status: TrialStatus, shm: str = "") -> str:
    """Return the message of the first pattern of a status that a text contains; empty if none does."""
    found = find_pattern(text, status, shm=shm)
    return "" if found is None else found[1]


def _describe_amount(text: str) -> str:
    found = re.search(r"(?:[Tt]ried|Unable) to allocate (?:(\d{1,18}) bytes|([\d.]+ [KMGT]?i?B))", text)
    return f": it asked for {found[2] or format_bytes(int(found[1]))} more" if found else ""
