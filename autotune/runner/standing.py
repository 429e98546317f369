"""Where does each process of a trial stand? Asked of Python, by a signal, and of the kernel."""

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

from autotune.system.kernel_files import PROC, read_text
from autotune.trial.stacks import STACK_SIGNAL

ANSWER_SECONDS: Final = 0.3  # for a process to write its stacks; one that waits for a disk does not
LOOK_SECONDS: Final = 0.01  # from one look at what was written to the next
MAX_ASKED: Final = 256  # processes
_THREAD: Final = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+.*:$")
_FRAME: Final = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$')


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
class StandingProcess:
    """Where a process stands.

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


def ask_where(pids: Iterable[int], stacks: Path, proc: Path = PROC) -> tuple[StandingProcess, ...]:
    """Ask each process in turn where it stands, as far as it listens; they append their stacks to one file."""
    listening = [pid for pid in sorted(pids) if _listens(pid, proc)]
    return tuple(_ask(pid, stacks, proc) for pid in listening[:MAX_ASKED])


def _listens(pid: int, proc: Path) -> bool:
    """Tell whether a process has a handler for the signal, which would end it otherwise."""
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", read_text(proc / str(pid) / "status"), re.MULTILINE)
    return STACK_SIGNAL is not None and caught is not None and bool(int(caught[1], 16) >> (STACK_SIGNAL - 1) & 1)


def _ask(pid: int, stacks: Path, proc: Path) -> StandingProcess:
    state, parent, *_ = [*read_text(proc / str(pid) / "stat").rpartition(")")[2].split()[:2], "?", "0"]
    sleeps_in = read_text(proc / str(pid) / "wchan").strip()
    threads = tuple(read_stacks(_request(pid, stacks)))
    return StandingProcess(pid, state, sleeps_in if sleeps_in != "0" else "", threads, int(parent))


def _request(pid: int, stacks: Path) -> str:
    """Have a process write its stacks, and read what it appended."""
    before = _measure(stacks)
    assert STACK_SIGNAL is not None  # nobody listens otherwise
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
