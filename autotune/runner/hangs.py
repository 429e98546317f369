"""Diagnoses a hang: reads the stacks of a trial's processes, and finds the blocking process and a known fix."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from traceback import FrameSummary
from typing import Final, NamedTuple

from autotune.system.procfs import PROC, STACK_SIGNAL, read_field, read_text
from autotune.system.software import is_library

REPLY_SECONDS: Final = 3.0  # for all processes to write their stacks; one that waits for a disk does not
MIN_REPLY_SECONDS: Final = 0.3  # for each of them
QUIET_READINGS: Final = 5  # equal sizes of the file, after which a process has written all
MAX_PROCESSES: Final = 256
_SPAWN: Final = "start workers with --set multiprocessing_context=spawn"
FORKED_LOCK: Final = (
    "If it waits for a lock or a thread that the training process had when it forked, create it in the worker, or "
    f"{_SPAWN}"
)
CAUSES: Final = {  # in a worker, by the calls that do not return and their source, the innermost first
    r"\A.*\bcv2\.": (  # reported of OpenCV 3 and 4 (pytorch/pytorch#1355); version 5 did not hang
        f"A forked worker lacks the threads of OpenCV: call cv2.setNumThreads(0) before the first image, or {_SPAWN}"
    ),
    r"\A.*\bpl\.|\bpolars\b": f"Polars' threads do not survive a fork: use it in the workers only, or {_SPAWN}",
    r"[/\\](tokenizers|transformers)[/\\]|\A.*tokeniz": (
        f"The threads of tokenizers do not survive a fork: set TOKENIZERS_PARALLELISM=false, or {_SPAWN}"
    ),
    r"\bh5py\b": "A lock or a file of HDF5 was in use when the worker was forked: open the file in the worker",
    r"(threading|queue)\.py:\d+ in |\.acquire\(|\bwith \S*lock\b": FORKED_LOCK,
    r"\A.*\btorch\.": (
        f"A forked worker lacks the threads of OpenMP: leave it at one (torch.set_num_threads), or {_SPAWN}"
    ),
}
NETWORK: Final = {  # in any process
    r"socket\.py|ssl\.py|urllib|requests|botocore|aiohttp": (
        "It waits for a reply of the network: set a time limit for requests, or allow more with --stall-time"
    ),
}
COMPUTES: Final = "It computes: if it only needs longer, allow it with --stall-time and --timeout"
WAITS_FOR_DISK: Final = "It waits in the kernel for a disk or a network file system: check the mount and dmesg"
STATES: Final = {"D": WAITS_FOR_DISK, "T": "It is stopped: continue it with kill -CONT"}  # causes by the state
DEADLOCK: Final = "deadlock: the training process waits for a batch while all workers are idle; a batch was lost"
_WAITING_FILES: Final = re.compile(r"[/\\](multiprocessing[/\\]\w+|selectors|threading|queue)\.py$")
_OWN_FILES: Final = re.compile(r"[/\\]autotune[/\\](child|protocol)[/\\]\w+\.py$")
_OWN_WAITING: Final = re.compile(r"[/\\](distributed|messages)\.py$")  # for other ranks, and for commands
Stack = tuple[FrameSummary, ...]  # the calls of a thread that have not returned, the innermost first


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


def read_all_stacks(pids: Iterable[int], stacks: Path) -> tuple[ProcessStacks, ...]:
    """Read the stacks of each process that has a handler for the signal; they append them to one file."""
    found, deadline = list[ProcessStacks](), time.monotonic() + REPLY_SECONDS
    for pid in sorted(pids)[:MAX_PROCESSES]:
        folder = PROC / str(pid)
        caught, state, parent = (read_field(folder / "status", name) or "0" for name in ("SigCgt", "State", "PPid"))
        if not int(caught, 16) >> (STACK_SIGNAL - 1) & 1:
            continue  # the signal would end it
        sleeps_in = read_text(folder / "wchan").strip()
        state = state[0] if sleeps_in in ("", "0") else f"{state[0]} in {sleeps_in}"
        found.append(ProcessStacks(pid, state, tuple(read_stacks(_request(pid, stacks, deadline))), int(parent)))
    return tuple(found)


def _request(pid: int, stacks: Path, deadline: float) -> str:
    """Have a process write its stacks, and return what it appended."""
    with suppress(OSError), stacks.open("a+b") as file:
        start = size = file.seek(0, os.SEEK_END)
        os.kill(pid, STACK_SIGNAL)
        deadline, quiet = max(deadline, time.monotonic() + MIN_REPLY_SECONDS), 0
        while time.monotonic() < deadline and quiet < QUIET_READINGS:
            time.sleep(0.01)
            before, size = size, file.seek(0, os.SEEK_END)
            quiet = quiet + 1 if size == before > start else 0
        file.seek(start)
        return file.read().decode(errors="replace")
    return ""


def read_stacks(text: str) -> Iterator[Stack]:
    """Parse what `faulthandler` writes about the threads of a process."""
    for thread in re.split(r"(?m)^(?:Current thread|Thread) 0x[0-9a-f]+.*:$", text)[1:]:
        calls = re.findall(r'(?m)^  File "(.*)", line (\d+) in (.*)$', thread)
        if calls:
            yield tuple(FrameSummary(file, int(line), function) for file, line, function in calls)


def write_stack(stack: Stack) -> str:
    """Format the calls of a thread with their source, the innermost first."""
    return "\n".join(f"  {one.filename}:{one.lineno} in {one.name}: {one.line}".rstrip(": ") for one in stack)


def find_blocking(found: Sequence[ProcessStacks]) -> HangReport:
    """Find the process that blocks the others among those of a trial."""
    loading = {one.pid: stack for one in found if (stack := _find_worker_stack(one))}
    names = _name_all(found, loading)
    text = "\n\n".join(
        f"{names[one.pid]} (process {one.pid}), state {one.state}:\n" + "\n\n".join(map(write_stack, one.threads))
        for one in found
    )
    pids = {one.pid for one in found}
    silent = {one.pid for one in found if not one.threads and one.parent in pids}  # such as a fork that does not return
    for one in sorted(found, key=lambda one: (one.pid not in loading, one.pid not in silent)):
        if one.pid in silent:
            sentence = f"{names[one.pid]} does not respond (state {one.state})"
            return HangReport(sentence, STATES.get(one.state[:1], FORKED_LOCK), text)
        stack = loading.get(one.pid) or _find_busy_stack(one)
        if not stack or (one.pid in loading and all(_WAITING_FILES.search(frame.filename) for frame in stack[:-1])):
            continue
        calls = write_stack(stack)
        causes = (CAUSES if one.pid in loading else {}) | NETWORK
        advice = next((advice for pattern, advice in causes.items() if re.search(pattern, calls, re.IGNORECASE)), "")
        own = next((frame for frame in stack if not is_library(frame.filename)), stack[0])
        source = f": `{own.line}`" if own.line else ""
        place = f"`{own.name}` at {Path(own.filename).name}:{own.lineno}{source}"
        place = place if own == stack[0] else f"`{stack[0].name}`, called by {place}"
        sentence = f"{names[one.pid]} hangs in {place} (state {one.state})"
        if one.state.startswith("R"):
            advice = f"{advice}; or it only computes" if advice else COMPUTES
        return HangReport(sentence, STATES.get(one.state[:1], advice), text)
    return HangReport(DEADLOCK if loading else "", stacks=text)


def _find_worker_stack(process: ProcessStacks) -> Stack:
    """Return the calls within torch's worker loop; empty in other processes."""
    for stack in process.threads:
        names = [frame.name for frame in stack]
        if "_worker_loop" in names:
            return stack[: names.index("_worker_loop") + 1]
    return ()


def _find_busy_stack(process: ProcessStacks) -> Stack:
    """Return the calls of a training process within dltune's own; empty if it waits for workers, ranks or commands."""
    for stack in process.threads:
        calls = [depth for depth, frame in enumerate(stack) if _OWN_FILES.search(frame.filename)]
        waits = any(frame.name in ("_try_get_data", "_get_data") for frame in stack)
        if calls and not waits and not _OWN_WAITING.search(stack[calls[0]].filename):
            return stack[: calls[0] + 1]
    return ()


def _name_all(found: Sequence[ProcessStacks], loading: dict[int, Stack]) -> dict[int, str]:
    """Return a name for each process: the training process, a rank, a worker, or a worker of a rank."""
    own = {one.pid: next((f for s in one.threads for f in s if _OWN_FILES.search(f.filename)), None) for one in found}
    launchers = {
        pid for pid, f in own.items() if f and (Path(f.filename).name, f.name) == ("distributed.py", "_broadcast")
    }
    ranks = [one.pid for one in found if one.parent in launchers and one.pid not in loading]
    names = dict.fromkeys(own, "the training process") | {pid: f"rank {number}" for number, pid in enumerate(ranks)}
    for one in found:
        if one.pid in loading:
            team = [other.pid for other in found if other.pid in loading and other.parent == one.parent]
            owner = f" of {names[one.parent]}" if one.parent in ranks else ""
            names[one.pid] = f"worker {team.index(one.pid) + 1} of {len(team)}{owner}"
        elif not one.threads and one.parent in own:
            names[one.pid] = f"a process forked by {names[one.parent]}"
    return names
