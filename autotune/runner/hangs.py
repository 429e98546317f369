"""Diagnoses a hang: reads the stacks of a trial's processes, and finds the blocking process and a known fix."""

from __future__ import annotations

import linecache
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from autotune.system.code_places import is_library
from autotune.system.processes import PROC, STACK_SIGNAL, read_text

ANSWER_SECONDS: Final = 0.3  # for a process to write its stacks; one that waits for a disk does not
MAX_PROCESSES: Final = 256
_SPAWN: Final = "--set multiprocessing_context=spawn"
CAUSES: Final = {  # by the calls that do not return and their source, the innermost first
    r"\A.*\bcv2\.": (  # reported of OpenCV 3 and 4 (pytorch/pytorch#1355); version 5 did not hang
        "Threads that OpenCV started in the training process are missing in a worker that was forked: call "
        f"cv2.setNumThreads(0) before the first image, or start workers with {_SPAWN}"
    ),
    r"\A.*\bpl\.|\bpolars\b": (
        f"Polars' threads do not survive a fork: start workers with {_SPAWN}, or use Polars in the workers only"
    ),
    r"[/\\](tokenizers|transformers)[/\\]|\A.*tokeniz": (
        "The threads of tokenizers do not survive a fork: set TOKENIZERS_PARALLELISM=false, or start workers with "
        f"{_SPAWN}"
    ),
    r"\bh5py\b": "A lock or a file of HDF5 was in use when the worker was forked: open the file in the worker",
    r"(threading|queue)\.py:\d+ in |\.acquire\(|\bwith \S*lock\b": (
        "If it waits for a lock or a thread that the training process had when it forked, create it in the worker, or "
        f"start workers with {_SPAWN}"
    ),
    r"\A.*\btorch\.": (
        "Threads of OpenMP that the training process started are missing in a worker that was forked: leave workers at "
        f"one thread (torch.set_num_threads), or start them with {_SPAWN}"
    ),
    r"socket\.py|ssl\.py|urllib|requests|botocore|aiohttp": (
        "It waits for a reply of the network: set a time limit for requests, or allow more with --stall-time"
    ),
}
WAITS_FOR_DISK: Final = (
    "It waits in the kernel for a disk or a network file system that does not respond: check the mount and dmesg"
)
DEADLOCK: Final = "deadlock: the training process waits for a batch while all workers are idle; a batch was lost"
_WAITING_FILES: Final = re.compile(r"[/\\](multiprocessing[/\\]\w+|selectors|threading|queue)\.py$")
_OWN_FILES: Final = re.compile(r"[/\\]autotune[/\\](child|protocol)[/\\]\w+\.py$")
_OWN_WAITING: Final = re.compile(r"[/\\](distributed|messages)\.py$")  # for other ranks, and for commands


class Frame(NamedTuple):
    """A call that has not returned."""

    file: str
    line: int
    function: str

    @property
    def source(self) -> str:
        """The line of source code; empty if it cannot be read."""
        return linecache.getline(self.file, self.line).strip()


Stack = tuple[Frame, ...]  # the innermost call first


class ProcessStacks(NamedTuple):
    """The stacks of a process's threads, and its state, as in `S in futex_wait_queue`."""

    pid: int
    state: str
    threads: tuple[Stack, ...] = ()
    parent: int = 0


class HangReport(NamedTuple):
    """Which process hangs in which call, the fix if the cause is known, and the stacks of all processes."""

    sentence: str = ""
    advice: str = ""
    stacks: str = ""


def diagnose_hang(pids: Iterable[int], stacks: Path) -> HangReport:
    """Read the stacks of the processes of a trial, and find the one that blocks the others."""
    return find_blocking(read_all_stacks(pids, stacks))


def read_all_stacks(pids: Iterable[int], stacks: Path) -> tuple[ProcessStacks, ...]:
    """Read the stacks of each process that has a handler for the signal; they append them to one file."""
    found: list[ProcessStacks] = []
    for pid in sorted(pids)[:MAX_PROCESSES]:
        caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", read_text(PROC / str(pid) / "status"), re.MULTILINE)
        if caught is None or not int(caught[1], 16) >> (STACK_SIGNAL - 1) & 1:
            continue  # the signal would end it
        state, parent, *_ = [*read_text(PROC / str(pid) / "stat").rpartition(")")[2].split()[:2], "?", "0"]
        sleeps_in = read_text(PROC / str(pid) / "wchan").strip()
        state += "" if sleeps_in in ("", "0") else f" in {sleeps_in}"
        found.append(ProcessStacks(pid, state, tuple(read_stacks(_request(pid, STACK_SIGNAL, stacks))), int(parent)))
    return tuple(found)


def _request(pid: int, number: int, stacks: Path) -> str:
    """Have a process write its stacks, and return what it appended."""
    with suppress(OSError), stacks.open("a+b") as file:
        start = size = file.seek(0, os.SEEK_END)
        os.kill(pid, number)
        deadline = time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < deadline:
            time.sleep(0.01)
            before, size = size, file.seek(0, os.SEEK_END)
            if size == before > start:
                break
        file.seek(start)
        return file.read().decode(errors="replace")
    return ""


def read_stacks(text: str) -> Iterator[Stack]:
    """Parse what `faulthandler` writes about the threads of a process."""
    for thread in re.split(r"^(?:Current thread|Thread) 0x[0-9a-f]+.*:$", text, flags=re.MULTILINE)[1:]:
        calls = re.findall(r'^  File "(.*)", line (\d+) in (.*)$', thread, re.MULTILINE)
        if calls:
            yield tuple(Frame(file, int(line), function) for file, line, function in calls)


def write_stack(stack: Stack) -> str:
    """Format the calls of a thread with their source, the innermost first."""
    return "\n".join(f"  {one.file}:{one.line} in {one.function}: {one.source}".rstrip(": ") for one in stack)


def find_blocking(found: Sequence[ProcessStacks]) -> HangReport:
    """Find the process that blocks the others among those of a trial."""
    loading = {one.pid: stack for one in found if (stack := _find_worker_stack(one))}
    names = _name_all(found, loading)
    text = "\n\n".join(
        f"{names[one.pid]} (process {one.pid}), state {one.state}:\n" + "\n\n".join(map(write_stack, one.threads))
        for one in found
    )
    for one in sorted(found, key=lambda one: one.pid not in loading):
        stack = loading.get(one.pid) or _find_busy_stack(one)
        if not stack or (one.pid in loading and all(_WAITING_FILES.search(frame.file) for frame in stack[:-1])):
            continue
        calls = write_stack(stack)
        advice = next((advice for pattern, advice in CAUSES.items() if re.search(pattern, calls, re.IGNORECASE)), "")
        sentence = f"{names[one.pid]} hangs in {_describe_place(stack)} (state {one.state})"
        return HangReport(sentence, WAITS_FOR_DISK if one.state.startswith("D") else advice, text)
    return HangReport(DEADLOCK if loading else "", stacks=text)


def _find_worker_stack(process: ProcessStacks) -> Stack:
    """Return the calls within torch's worker loop; empty in other processes."""
    calls = ((stack, [frame.function for frame in stack]) for stack in process.threads)
    return next((stack[: names.index("_worker_loop") + 1] for stack, names in calls if "_worker_loop" in names), ())


def _find_busy_stack(process: ProcessStacks) -> Stack:
    """Return the calls of a training process within dltune's own; empty if it waits for workers, ranks or commands."""
    for stack in process.threads:
        calls = [depth for depth, frame in enumerate(stack) if _OWN_FILES.search(frame.file)]
        waits = any(frame.function in ("_try_get_data", "_get_data") for frame in stack)
        if calls and not waits and not _OWN_WAITING.search(stack[calls[0]].file):
            return stack[: calls[0] + 1]
    return ()


def _name_all(found: Sequence[ProcessStacks], loading: dict[int, Stack]) -> dict[int, str]:
    """Return a name for each process: the training process, a rank, a worker, or a worker of a rank."""
    own = {one.pid: next((f for s in one.threads for f in s if _OWN_FILES.search(f.file)), None) for one in found}
    launchers = {
        pid for pid, f in own.items() if f and (Path(f.file).name, f.function) == ("distributed.py", "_broadcast")
    }
    ranks = [one.pid for one in found if one.parent in launchers and one.pid not in loading]
    names = dict.fromkeys(own, "the training process") | {pid: f"rank {number}" for number, pid in enumerate(ranks)}
    for one in found:
        if one.pid in loading:
            team = [other.pid for other in found if other.pid in loading and other.parent == one.parent]
            owner = f" of {names[one.parent]}" if one.parent in ranks else ""
            names[one.pid] = f"worker {team.index(one.pid) + 1} of {len(team)}{owner}"
    return names


def _describe_place(stack: Stack) -> str:
    """Return the innermost call, and the line of the user's own code that led there."""
    own = next((frame for frame in stack if not is_library(frame.file)), stack[0])
    source = f": `{own.source}`" if own.source else ""
    place = f"`{own.function}` at {Path(own.file).name}:{own.line}{source}"
    return place if own == stack[0] else f"`{stack[0].function}`, called by {place}"
