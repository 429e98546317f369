"""Diagnoses a hang: asks every process of a trial for its stacks, and finds the blocking one and a known fix."""

from __future__ import annotations

import linecache
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from autotune.runner.error_patterns import pick_advice
from autotune.system.code_places import is_library
from autotune.system.processes import PROC, STACK_SIGNAL, read_text

ANSWER_SECONDS: Final = 0.3  # for a process to write its stacks; one that waits for a disk does not
LOOK_SECONDS: Final = 0.01  # from one look at what was written to the next
MAX_ASKED: Final = 256  # processes
_THREAD: Final = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+.*:$")
_FRAME: Final = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$')
_SPAWN: Final = "--set multiprocessing_context=spawn"
CAUSES: Final = {  # what a call that does not return waits for, by the calls and their source, the innermost first
    r"\A.*\bcv2\.": (  # reported of OpenCV 3 and 4 (pytorch/pytorch#1355); its version 5 was not seen to hang
        "Threads that OpenCV started in the training process are missing in a worker that was forked: call "
        f"cv2.setNumThreads(0) before the first image, or start workers with {_SPAWN}"
    ),
    r"\A.*\bpl\.|\bpolars\b": (
        f"Polars' threads do not survive a fork: start workers with {_SPAWN}, or read by Polars in the workers only"
    ),
    r"[/\\](tokenizers|transformers)[/\\]|\A.*tokeniz": (
        "The threads of tokenizers do not survive a fork: set TOKENIZERS_PARALLELISM=false, or start workers with "
        f"{_SPAWN}"
    ),
    r"\bh5py\b": (
        "A lock or a file of HDF5 was in use when the worker was forked: open the file in the worker, where it is read"
    ),
    r"(threading|queue)\.py:\d+ in |\.acquire\(|\bwith \S*lock\b": (
        "If it waits for a lock or a thread that the training process had when it forked, make it in the worker, or "
        f"start workers with {_SPAWN}"
    ),
    r"\A.*\btorch\.": (
        "Threads of OpenMP that the training process started are missing in a worker that was forked: leave workers at "
        f"one thread (torch.set_num_threads), or start them with {_SPAWN}"
    ),
    r"socket\.py|ssl\.py|urllib|requests|botocore|aiohttp": (
        "It waits for an answer of the network: give its requests a time limit, or allow it more with --stall-time"
    ),
}
WAITS_FOR_DISK: Final = (
    "It waits in the kernel for a disk or a network file system that does not answer: look at the mount and at dmesg"
)
UNKNOWN_PLACE: Final = "the training process waits for a batch, and its workers wait for work: one was lost on its way"
_WORKER_LOOP: Final = "_worker_loop"
_WAITING_FILES: Final = re.compile(r"[/\\](multiprocessing[/\\]\w+|selectors|threading|queue)\.py$")
_WAITS_FOR_DATA: Final = ("_try_get_data", "_get_data")
_OWN_FILES: Final = re.compile(r"[/\\]autotune[/\\](child|protocol)[/\\]\w+\.py$")
_OWN_WAITING: Final = re.compile(r"[/\\](distributed|messages)\.py$")  # where dltune waits: for ranks, and for commands


class Frame(NamedTuple):
    """A call that is under way."""

    file: str
    line: int
    function: str

    @property
    def source(self) -> str:
        """The line of source code; empty where the file is not to be had."""
        return linecache.getline(self.file, self.line).strip()


Stack = tuple[Frame, ...]  # the innermost call first


@dataclass(frozen=True, slots=True)
class ProcessStacks:
    """State and stacks of a process.

    Attributes:
        pid: Its number.
        state: One letter, as in /proc/PID/stat: `S` asleep, `R` running, `D` waiting for a disk or a network.
        kernel_function: What it sleeps in, as /proc/PID/wchan names it; empty where the system does not tell.
        threads: The stacks of its threads.
        parent: The process that started it; 0 where the system does not tell.
    """

    pid: int
    state: str
    kernel_function: str
    threads: tuple[Stack, ...] = ()
    parent: int = 0

    def describe_state(self) -> str:
        """Name the state, and what it sleeps in."""
        return f"state {self.state}" + (f" in {self.kernel_function}" if self.kernel_function else "")


def read_all_stacks(pids: Iterable[int], stacks: Path, proc: Path = PROC) -> tuple[ProcessStacks, ...]:
    """Read the stacks of each process that has a handler for the signal; they append them to one file."""
    listening = [pid for pid in sorted(pids) if _listens(pid, proc)]
    return tuple(_ask(pid, stacks, proc) for pid in listening[:MAX_ASKED])


def _listens(pid: int, proc: Path) -> bool:
    """Tell whether a process has a handler for the signal, which would end it otherwise."""
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", read_text(proc / str(pid) / "status"), re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (STACK_SIGNAL - 1) & 1)


def _ask(pid: int, stacks: Path, proc: Path) -> ProcessStacks:
    state, parent, *_ = [*read_text(proc / str(pid) / "stat").rpartition(")")[2].split()[:2], "?", "0"]
    sleeps_in = read_text(proc / str(pid) / "wchan").strip()
    threads = tuple(read_stacks(_request(pid, stacks)))
    return ProcessStacks(pid, state, sleeps_in if sleeps_in != "0" else "", threads, int(parent))


def _request(pid: int, stacks: Path) -> str:
    """Have a process write its stacks, and read what it appended."""
    before = _measure(stacks)
    with suppress(OSError):
        os.kill(pid, STACK_SIGNAL)
    deadline, seen = time.monotonic() + ANSWER_SECONDS, before
    while time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
        size = _measure(stacks)
        if size == seen > before:
            break
        seen = size
    with suppress(OSError), stacks.open("rb") as file:
        file.seek(before)
        return file.read().decode(errors="replace")
    return ""


def _measure(file: Path) -> int:
    with suppress(OSError):
        return file.stat().st_size
    return 0


def read_stacks(text: str) -> Iterator[Stack]:
    """Read what `faulthandler` writes of the threads of a process."""
    frames: list[Frame] | None = None
    for line in text.splitlines():
        if _THREAD.match(line):
            if frames:
                yield tuple(frames)
            frames = []
        elif frames is not None and (found := _FRAME.match(line)):
            frames.append(Frame(found["file"], int(found["line"]), found["function"]))
    if frames:
        yield tuple(frames)


def write_stack(stack: Sequence[Frame]) -> list[str]:
    """Write the calls of a thread, the innermost first, with their source."""
    return [f"  {frame.file}:{frame.line} in {frame.function}: {frame.source}".rstrip(": ") for frame in stack]


@dataclass(frozen=True, slots=True)
class HangReport:
    """Diagnosis of a hang.

    Attributes:
        sentence: Which process hangs, and in which call; empty if no process answered.
        advice: A fix, if the cause is known; else empty.
        stacks: Stacks of all processes, for the details.
    """

    sentence: str = ""
    advice: str = ""
    stacks: str = ""


def diagnose_hang(pids: Iterable[int], stacks: Path) -> HangReport:
    """Read the stacks of the processes of a trial, and find the one that blocks the others."""
    return find_blocking(read_all_stacks(pids, stacks))


def find_blocking(found: Sequence[ProcessStacks]) -> HangReport:
    """Find the process that blocks the others among those of a trial."""
    workers = [one for one in found if _find_worker_stack(one)]
    busy = [one for one in workers if not _waits_for_work(_find_worker_stack(one))]
    others = [one for one in found if one not in workers]
    names = _name_all(workers, _list_ranks(others))
    text = "\n\n".join(_write_process(one, names.get(one.pid, "the training process")) for one in found)
    for one in (*busy, *(one for one in others if _find_busy_stack(one))):
        stack = _find_worker_stack(one) or _find_busy_stack(one)
        advice = WAITS_FOR_DISK if one.state == "D" else pick_advice(CAUSES, "\n".join(write_stack(stack)))
        name = names.get(one.pid, "the training process")
        return HangReport(f"{name} {_describe_place(one, stack)}", advice, text)
    return HangReport(UNKNOWN_PLACE if workers else "", stacks=text)


def _find_worker_stack(process: ProcessStacks) -> Stack:
    """Find the stack of the thread that loads, without the calls that brought it there; empty in other processes."""
    for stack in process.threads:
        for depth, frame in enumerate(stack):
            if frame.function == _WORKER_LOOP:
                return stack[: depth + 1]
    return ()


def _find_busy_stack(process: ProcessStacks) -> Stack:
    """Find the stack of the training process within dltune's own calls; empty where it only waits for its workers."""
    for stack in process.threads:
        calls = [depth for depth, frame in enumerate(stack) if _OWN_FILES.search(frame.file)]
        if not calls or _OWN_WAITING.search(stack[calls[0]].file):
            continue
        if not any(frame.function in _WAITS_FOR_DATA for frame in stack):
            return stack[: calls[0] + 1]
    return ()


def _list_ranks(processes: Sequence[ProcessStacks]) -> list[ProcessStacks]:
    """List the training processes that another one has started and passes orders on to, in the order of their ranks."""
    launchers = {one.pid for one in processes if any(_passes_on(stack) for stack in one.threads)}
    return [one for one in processes if one.parent in launchers]


def _passes_on(stack: Stack) -> bool:
    own = next((frame for frame in stack if _OWN_FILES.search(frame.file)), None)
    return own is not None and own.file.endswith("distributed.py") and own.function == "_poll"


def _waits_for_work(stack: Stack) -> bool:
    """Tell whether a worker waits for the next batch to be asked of it."""
    return all(_WAITING_FILES.search(frame.file) for frame in stack[:-1])


def _name_all(workers: Sequence[ProcessStacks], trainers: Sequence[ProcessStacks]) -> dict[int, str]:
    """Name each process by what it is to its user."""
    ranks = {one.pid: f"rank {number}" for number, one in enumerate(trainers)}
    names = dict(ranks)
    for one in workers:
        team = [other.pid for other in workers if other.parent == one.parent]
        owner = f" of {ranks[one.parent]}" if one.parent in ranks else ""
        names[one.pid] = f"worker {team.index(one.pid) + 1} of {len(team)}{owner}"
    return names


def _describe_place(process: ProcessStacks, stack: Stack) -> str:
    """Return the innermost call of a process, and the line of the user's own code that led there."""
    inner = stack[0]
    own = next((frame for frame in stack if not is_library(frame.file)), None)
    if own is None or own == inner:
        return f"hangs in {_write_place(inner)} ({process.describe_state()})"
    return f"hangs in `{inner.function}`, called by {_write_place(own)} ({process.describe_state()})"


def _write_place(frame: Frame) -> str:
    source = f": `{frame.source}`" if frame.source else ""
    return f"`{frame.function}` at {Path(frame.file).name}:{frame.line}{source}"


def _write_process(process: ProcessStacks, name: str) -> str:
    lines = [f"{name} (process {process.pid}), {process.describe_state()}:"]
    for stack in process.threads:
        lines += [*write_stack(stack), ""]
    return "\n".join(lines).rstrip()
