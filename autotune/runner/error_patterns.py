"""Table of the errors that torch, Python and the kernel print: the kind of failure, and the way out.

torch reports a full /dev/shm, a lost worker or an exhausted descriptor table only in words, which end in a number that
differs between systems, so they are matched without it.
"""

from __future__ import annotations

import re
import resource
from typing import Final

from autotune.protocol.measurement import TrialKind
from autotune.units import format_bytes

MAX_QUOTED_CHARACTERS: Final = 600  # of an error, in a sentence
RESOURCES: Final[tuple[TrialKind, ...]] = ("too_many_files", "shm_exhausted", "out_of_memory")
DEVICES: Final[tuple[TrialKind, ...]] = ("device_lost", "device_failed")  # if the trial uses an accelerator
_NO_PICKLE: Final = r"cannot pickle|can't pickle|PicklingError|can't get attribute|Cowardly refusing to serialize"

# Messages of failed resources and devices, as the rest of a sentence that starts with the trial; advice on the others,
# by the words of a lost worker or a signal, the output of processes that hang, and the error of the user's code
PATTERNS: Final[dict[TrialKind, dict[str, str]]] = {
    "too_many_files": {
        r"Too many open files|\[Errno 24\]|received \d+ items of ancdata": (
            "ran out of open files (limit {files}). Raise the limit (ulimit -n) or tune with "
            "--set sharing_strategy=file_system"
        ),
    },
    "shm_exhausted": {
        r"unable to open shared memory.*No space left": (
            "ran out of names in /dev/shm: every tensor of a batch needs one. Mount it with more (nr_inodes=), return "
            "fewer tensors per batch, or tune with fewer --max-workers"
        ),
        r"\[Errno 30\] [^:\n]*$|\[Errno 30\].*'/psm_|shared memory.*\(30\)": (  # a semaphore's error names no file
            "could not write to /dev/shm: it is mounted read-only. Mount it writable, or tune with --max-workers 0"
        ),
        r"killed by signal: Bus error|Unexpected bus error encountered in worker": (
            "lost a worker to a bus error (SIGBUS): /dev/shm was full{shm}, or a memory-mapped file became shorter. "
            "Give the container more (--shm-size=1g), tune with fewer --max-workers, and do not change the files "
            "meanwhile"
        ),
        r"unable to (allocate|open) shared memory|No space left on device.*torch_|out of shared memory": (
            "filled /dev/shm{shm}. Give the container more (--shm-size=1g) or tune with fewer --max-workers"
        ),
    },
    "out_of_memory": {
        r"(?s)pin.memory.*CUDA error: out of memory|CUDA error: out of memory.*pin.memory": (
            "ran out of page-locked memory. Tune with fewer --max-workers, a smaller --batch-size, or "
            "--set pin_memory=false"
        ),
        r"torch\.OutOfMemoryError|(CUDA|HIP|XPU)( error:)? out of memory": (
            "ran out of device memory{asked}. Use a smaller --batch-size"
        ),
        r"can't allocate memory|Cannot allocate memory|Unable to allocate .* for an array|\bMemoryError": (
            "ran out of memory{asked}. Use a smaller --batch-size or fewer --max-workers"
        ),
    },
    "device_lost": {
        r"NVMLError_GpuIsLost|RuntimeError: No CUDA GPUs are available|CUDA error: (uncorrectable|hardware|GPU is lost|"
        r"no CUDA-capable device|CUDA-capable device\(s\) is/are busy|all CUDA-capable|unknown error|system not yet)": (
            "lost its device: {error}. Look at nvidia-smi and the kernel's log (Xid); a driver that lost a GPU needs "
            "a reset or a reboot"
        ),
    },
    "device_failed": {
        r"CUDA error: (?!invalid argument)|(CUBLAS|CUDNN)_STATUS_(EXECUTION|INTERNAL)|device-side assert": (
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
            "Native code that the dataset or the step calls crashed; --set multiprocessing_context=spawn helps if it "
            "does not survive a fork"
        ),
        r"SIGTERM|signal: Terminated": "Something told it to end",
        r"exited unexpectedly": (
            "Code of the dataset ended it: sys.exit(), os._exit() or a KeyboardInterrupt; or it could not be started, "
            "for the reason that it printed"
        ),
    },
    "stalled": {
        rf"{_NO_PICKLE}|cannot serialize": (
            "A batch or an error that cannot be pickled never arrives (pytorch/pytorch#142884): return tensors, and "
            "raise errors whose class can be imported"
        ),
        r"unable to (allocate|open) shared memory|No space left on device": (
            "/dev/shm is full{shm}. Give the container more (--shm-size=1g) or tune with fewer --max-workers"
        ),
        r"AF_UNIX path too long": "TMPDIR is too long for sockets: set a shorter one",
    },
    "workload_failed": {
        r"stack expects each tensor to be equal size|should be of equal size|storage that is not resizable": (
            "The samples of a batch differ in size: pass a collate_fn that pads them, as with "
            "--collate PKG.MOD:FUNCTION"
        ),
        r"default_collate: batch must contain": (
            "torch's own collate cannot stack such samples: return tensors, numbers, or tuples and dicts of them, or "
            "pass a collate_fn with --collate PKG.MOD:FUNCTION"
        ),
        r"don't support automatic differentiation|non-leaf tensor which requires_grad": (
            "A worker cannot send a sample that needs a gradient: return sample.detach()"
        ),
        rf"{_NO_PICKLE}|import of module .* failed": (
            "Objects for a spawned worker are pickled: use classes and functions that can be imported by their names, "
            "or leave the start method at fork"
        ),
        r"daemonic processes are not allowed to have children": (
            "A worker must not start processes: start none in the dataset, or tune with --max-workers 0"
        ),
        r"\ASystemExit": (
            "Something called sys.exit(): code at the top of a module that reads sys.argv, perhaps. Guard it with "
            'if __name__ == "__main__"'
        ),
        r"StopIteration": (
            "A StopIteration raised inside __getitem__ or collate_fn silently ends an epoch: raise another error"
        ),
        r"Caught \w+ in pin memory thread": "The batch could not be pinned: tune with --set pin_memory=false",
        r"attempted relative import": "Name the file with its package, from the folder above: PACKAGE.MODULE:NAME",
        r"Cannot re-initialize CUDA in forked subprocess": (
            "The training process and the workers forked from it both use CUDA: load samples on the CPU and move "
            "batches in the step, or start workers with --set multiprocessing_context=spawn"
        ),
        r"Found no NVIDIA driver|not compiled with CUDA enabled|No CUDA GPUs are available": (
            "Code at the top of a module, the factory or the dataset needs CUDA, which is not available: use a device "
            "in the step only"
        ),
        r"URLError|gaierror|name resolution|Name or service not known|Network is unreachable|Max retries exceeded|"
        r"HTTP Error \d|LocalEntryNotFoundError|OfflineModeIsEnabled": (
            "It needs the network, as every start of a trial would: call the factory once with a network, so that it "
            "reads from disk afterwards"
        ),
        r"You can use download=True": "The data is missing: call the dataset once with download=True",
        r"out of memory|can't allocate memory|\bMemoryError": "Use a smaller --batch-size, or smaller samples",
        r"Too many open files": "Raise the limit (ulimit -n)",
    },
}


def find_pattern(text: str, *kinds: TrialKind, shm: str = "") -> tuple[TrialKind, str] | None:
    """Return the kind and the message of the first pattern of these kinds that a text contains; None if none does."""
    for kind, patterns in PATTERNS.items():
        for pattern, message in patterns.items() if kind in kinds else ():
            if found := re.search(pattern, text, re.IGNORECASE | re.MULTILINE):
                start, end = text.rfind("\n", 0, found.start()) + 1, f"{text}\n".find("\n", found.end())
                error = text[start:end].strip()[:MAX_QUOTED_CHARACTERS].rstrip(".")
                files = f"{resource.getrlimit(resource.RLIMIT_NOFILE)[0]:,}"  # the child inherited it
                return kind, message.format(shm=shm, asked=_describe_amount(text), files=files, error=error)
    return None


def find_advice(text: str, kind: TrialKind, shm: str = "") -> str:
    """Return the message of the first pattern of a kind that a text contains; empty if none does."""
    found = find_pattern(text, kind, shm=shm)
    return "" if found is None else found[1]


def _describe_amount(text: str) -> str:
    found = re.search(r"(?:[Tt]ried|Unable) to allocate (?:(\d{1,18}) bytes|([\d.]+ [KMGT]?i?B))", text)
    return f": it asked for {found[2] or format_bytes(int(found[1]))} more" if found else ""
