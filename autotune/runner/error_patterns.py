"""What torch, Python and the kernel say when something goes wrong, and the way out.

torch reports a full /dev/shm, a lost worker or an exhausted descriptor table only in words, and the
words end in a number that differs between systems; so they are matched without it.
"""

from __future__ import annotations

import re
import resource
from collections.abc import Mapping
from typing import Final

from autotune.protocol.measurement import TrialKind
from autotune.units import format_bytes

MAX_QUOTED_CHARACTERS: Final = 600  # of an error, in a sentence
_NO_PICKLE: Final = r"cannot pickle|can't pickle|PicklingError|can't get attribute|Cowardly refusing to serialize"

SYMPTOMS: Final[tuple[tuple[TrialKind, str, str], ...]] = (
    (
        "too_many_files",
        r"Too many open files|\[Errno 24\]|received \d+ items of ancdata",
        "ran out of open files (limit {files}). Raise the limit (ulimit -n) or tune with "
        "--set sharing_strategy=file_system",
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
        "--set pin_memory=false",
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
WORKER_ADVICE: Final = {  # what ends a worker so
    r"signal: Killed": (
        "The kernel's out-of-memory killer does this: use fewer --max-workers or a smaller --batch-size"
    ),
    r"signal: (Segmentation|Aborted|Floating|Illegal)|Unexpected (segmentation|floating)": (
        "Native code that the dataset calls crashed: --set multiprocessing_context=spawn helps if it does not survive "
        "a fork"
    ),
    r"signal: Terminated": "Something told it to end",
    r"exited unexpectedly": (
        "Code of the dataset ended it: sys.exit(), os._exit() or a KeyboardInterrupt; or it could not be started, "
        "for the reason that it printed"
    ),
    r"": "It was killed, or code of the dataset ended it (sys.exit, os._exit)",
}
SUGGESTIONS: Final = {  # for errors of the user's code that are common enough to be known
    r"stack expects each tensor to be equal size|should be of equal size|storage that is not resizable": (
        "The samples of a batch differ in size: give a collate_fn that pads them, as with --collate PKG.MOD:FUNCTION."
    ),
    r"default_collate: batch must contain": (
        "torch's own collate cannot stack such samples: return tensors, numbers, or tuples and dicts of them, or give "
        "a collate_fn with --collate PKG.MOD:FUNCTION."
    ),
    r"don't support automatic differentiation|non-leaf tensor which requires_grad": (
        "A worker cannot hand over a sample that needs a gradient: return sample.detach()."
    ),
    rf"{_NO_PICKLE}|import of module .* failed": (
        "What goes to a spawned worker is pickled: use classes and functions that can be imported by their names, or "
        "leave the start method at fork."
    ),
    r"daemonic processes are not allowed to have children": (
        "A worker must not start processes: start none in the dataset, or tune with --max-workers 0."
    ),
    r"StopIteration": (
        "A StopIteration raised inside __getitem__ or collate_fn ends an epoch without a word: let it raise another "
        "error."
    ),
    r"Caught \w+ in pin memory thread": "The batch could not be pinned: tune with --set pin_memory=false.",
    r"attempted relative import": (
        "A file that imports from its own package is named with it, from the folder above: PACKAGE.MODULE:NAME."
    ),
    r"Cannot re-initialize CUDA in forked subprocess": (
        "CUDA is used before the workers are forked, at the top of a module or by the dataset, and by the workers "
        "again: load samples on the CPU and move batches in the step, or start workers with "
        "--set multiprocessing_context=spawn."
    ),
    r"Found no NVIDIA driver|not compiled with CUDA enabled|No CUDA GPUs are available": (
        "Code at the top of a module, the factory or the dataset asks for CUDA, which is not here: ask for a device in "
        "the step only, which is given one."
    ),
    r"URLError|gaierror|name resolution|Name or service not known|Network is unreachable|Max retries exceeded|"
    r"HTTP Error \d|LocalEntryNotFoundError|OfflineModeIsEnabled": (
        "It asks the network for something, as every start of a trial would: fetch it once beforehand, by a call of "
        "the factory where there is a network, and let it read from disk."
    ),
    r"You can use download=True": (
        "The data is not there yet: fetch it once beforehand, by a call of the dataset with download=True."
    ),
    r"out of memory|can't allocate memory|\bMemoryError": "Use a smaller --batch-size, or smaller samples.",
    r"Too many open files": "Raise the limit (ulimit -n).",
}
STALLS: Final = {  # what a hung process may have printed
    rf"{_NO_PICKLE}|cannot serialize": (
        "A batch or an error that cannot be pickled never arrives (pytorch/pytorch#142884): deliver tensors, and raise "
        "errors whose class can be imported"
    ),
    r"unable to (allocate|open) shared memory|No space left on device": (
        "/dev/shm is full{shm}. Give the container more (--shm-size=1g) or tune with fewer --max-workers"
    ),
    r"AF_UNIX path too long": "Sockets cannot be made in so long a TMPDIR: set a shorter one",
}
UNKNOWN_STALL: Final = (
    "If a worker waits for a lock or a thread that the training process had when it forked, start workers with "
    "--set multiprocessing_context=spawn; if it only needs longer, allow it with --stall-time"
)
STATUS_ADVICE: Final = {  # signals that nobody asks for by an error's words
    "SIGKILL": " (the kernel's out-of-memory killer does this)",
    "SIGBUS": ": /dev/shm was full{shm}, or a memory-mapped file became shorter",
    "SIGSEGV": ": native code that the dataset or the step calls crashed",
    "SIGTERM": ": something told it to end",
}


def find_symptom(spoken: str, shm: str, *, on_device: bool) -> tuple[TrialKind, str] | None:
    """Find what ran out or broke by what was said: the outcome, and a message with the numbers that are known."""
    for kind, pattern, message in SYMPTOMS:
        if kind in _OF_DEVICES and not on_device:
            continue
        if re.search(pattern, spoken, re.IGNORECASE | re.MULTILINE):
            files_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]  # which the child has inherited
            error, asked = _find_line(pattern, spoken), _describe_amount(spoken)
            return kind, message.format(shm=shm, asked=asked, files=f"{files_limit:,}", error=error)
    return None


def _find_line(pattern: str, text: str) -> str:
    """Give the line in which a pattern is found, shortened for a sentence."""
    lines = (line.strip() for line in text.splitlines())
    found = next((line for line in lines if re.search(pattern, line, re.IGNORECASE)), "")
    return found[:MAX_QUOTED_CHARACTERS].rstrip(".")


def _describe_amount(text: str) -> str:
    """Say how much was asked for, where the error tells."""
    found = re.search(r"tried to allocate (\d+) bytes", text)
    if found:
        return f": it asked for {format_bytes(int(found[1]))} more"
    found = re.search(r"(?:Tried|Unable) to allocate ([\d.]+ [KMGT]?i?B)", text)
    return f": it asked for {found[1]} more" if found else ""


def pick_advice(table: Mapping[str, str], text: str) -> str:
    """Give the advice of the first pattern of a table that is found in a text; nothing where none is."""
    return next((advice for pattern, advice in table.items() if re.search(pattern, text, re.IGNORECASE)), "")
