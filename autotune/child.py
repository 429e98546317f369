"""One child process: how it is started, talked to, watched, and ended with everything it started.

The child is a plain subprocess, not a `multiprocessing.Process`: inside a spawned child multiprocessing's
default start method becomes the parent's, so the DataLoader's own workers would silently be spawned instead of
forked and take twenty times longer to start.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psutil
from pydantic import ValidationError

from autotune.channel import Channel, ChannelClosedError
from autotune.machine import SHM, MemoryGauge, read_shm
from autotune.messages import REPORT, Command, Measured, Progress, Report, TrialKind
from autotune.process_tree import MARK, bound_memory, end_trial, list_tree, measure_memory, remove_segments
from autotune.schema import Value
from autotune.units import format_bytes
from autotune.verdicts import Death, name_death
from autotune.watchdog import Reading, Watch

TICK_SECONDS: Final = 0.05
TREE_SECONDS: Final = 0.25  # between two walks over the tree: 0.1 ms a process
LOG_BYTES: Final = 4 * 2**20
LOG_TAIL_BYTES: Final = 4000
SCRATCH_PREFIX: Final = "dltune-"
LONGEST_TMPDIR: Final = 60  # characters; AF_UNIX paths end at 108

OnProgress = Callable[[Progress], None]


class Usage(Value):
    """What a command was seen to use at its peak, in bytes."""

    host_bytes: int = 0
    shm_bytes: int = 0

    def describe_shm(self) -> str:
        """Say what was used of /dev/shm, to be put behind a sentence."""
        return f": {format_bytes(self.shm_bytes)} used of {format_bytes(read_shm()[0])}"


class Pulse:
    """Keeps the time of a command: when it last moved, and when which reading of its tree is due."""

    def __init__(self) -> None:
        self._started = self._moved = self._next_walk = time.monotonic()

    @property
    def idle_seconds(self) -> float:
        """Seconds since the child last reported progress."""
        return time.monotonic() - self._moved

    @property
    def running_seconds(self) -> float:
        """Seconds since the command was given."""
        return time.monotonic() - self._started

    def note_progress(self) -> None:
        """Record that the child moved."""
        self._moved = time.monotonic()

    def is_walk_due(self) -> bool:
        """Say whether it is time to walk over the tree, and plan the next walk if so."""
        now = time.monotonic()
        if now < self._next_walk:
            return False
        self._next_walk = now + TREE_SECONDS
        return True


class Child:
    """One child process, the line to it, and what is known of its tree.

    Args:
        working_dir: Folder it starts in.
        on_progress: Called with each progress report.
    """

    def __init__(self, working_dir: str, on_progress: OnProgress) -> None:
        self._on_progress = on_progress
        self._mark = uuid.uuid4().hex
        self._folder = _make_scratch()
        self._seen: set[int] = set()
        self._log_path = self._folder / "log"
        self._shm_free = read_shm()[1]
        self._gauge = MemoryGauge()
        self.usage = Usage()
        ours, theirs = socket.socketpair()
        self._channel = Channel(ours)
        with theirs, self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                _make_command(theirs.fileno()),
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=working_dir,
                env={**os.environ, MARK: self._mark, "TMPDIR": str(self._folder)},
                start_new_session=True,
            )

    def command(self, command: Command, watch: Watch) -> Report | Death:
        """Give a command and wait for its answer, watching the tree.

        Args:
            command: What to do.
            watch: What it may take.

        Returns:
            The answer, or how the child died or was ended.
        """
        try:
            self._channel.send(command.model_dump_json())
            return self._await_answer(watch)
        except ChannelClosedError:
            return self._name_death()
        except ValidationError as error:
            return self._end_for("crashed", f"sent a message that dltune cannot read: {error}")

    def _await_answer(self, watch: Watch) -> Report | Death:
        pulse = Pulse()
        self.usage = Usage()
        while True:
            line = self._channel.receive(TICK_SECONDS)
            if line is not None:
                report = REPORT.validate_json(line)
                if not isinstance(report, Progress):
                    self._note_end(report, pulse, watch)
                    return report
                pulse.note_progress()
                self._on_progress(report)
            breach = watch.judge(self._read(pulse, watch))
            if breach is not None:
                return self._end_for(breach.reason, breach.message)
            if line is None and self._process.poll() is not None:
                return self._name_death()

    def _note_end(self, report: Report, pulse: Pulse, watch: Watch) -> None:
        """Sample the memory of a trial that has just ended: nothing is timed any more, and its workers still live."""
        if isinstance(report, Measured):
            self._read(pulse, watch, exact=True)

    def _read(self, pulse: Pulse, watch: Watch, *, exact: bool = False) -> Reading:
        """Take one reading: the cheap one at every tick, the tree now and then, exact memory when it matters."""
        tree = list_tree(self._process.pid) if exact or pulse.is_walk_due() else []
        self._seen.update(tree)
        shm_bytes = max(0, self._shm_free - read_shm()[1])
        reading = Reading(
            idle_seconds=pulse.idle_seconds,
            running_seconds=pulse.running_seconds,
            host_bytes=bound_memory(tree) + shm_bytes,
            host_exact=False,
            shm_bytes=shm_bytes,
            available_bytes=self._gauge.read(),
        )
        self.usage = Usage(host_bytes=self.usage.host_bytes, shm_bytes=max(self.usage.shm_bytes, shm_bytes))
        if tree and (exact or watch.needs_exact_memory(reading)):
            private = measure_memory(tree)
            peak = max(self.usage.host_bytes, private + self.usage.shm_bytes)  # the queue may have been longer before
            self.usage = Usage(host_bytes=peak, shm_bytes=self.usage.shm_bytes)
            reading = reading.model_copy(update={"host_bytes": private + shm_bytes, "host_exact": True})
        self._cap_log()
        return reading

    def _cap_log(self) -> None:
        with contextlib.suppress(OSError):
            if self._log_path.stat().st_size > LOG_BYTES:
                os.truncate(self._log_path, 0)

    def _end_for(self, kind: TrialKind, message: str) -> Death:
        details = self._read_log_tail()
        self.end()
        last = details.splitlines()[-1].strip() if details else ""
        evidence = f"; the last line of its output: {last}" if kind == "stalled" and last else ""
        return Death(kind=kind, message=message + evidence, details=details)

    def _name_death(self) -> Death:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1.0)
        status = self._process.poll()
        details = self._read_log_tail()
        self.end()
        return name_death(status, details, self.usage.describe_shm())

    def _read_log_tail(self) -> str:
        with contextlib.suppress(OSError), self._log_path.open("rb") as log:
            log.seek(max(0, self._log_path.stat().st_size - LOG_TAIL_BYTES))
            return log.read().replace(b"\0", b"").decode(errors="replace").strip()
        return ""

    def end(self) -> None:
        """End the child and every process that belongs to it, and remove what they left."""
        if self._process.returncode is None:  # else the number may belong to another process by now
            self._seen.update(list_tree(self._process.pid))
        self._channel.close()
        end_trial(self._mark)
        self._process.kill()
        self._process.wait()
        remove_segments(self._seen, SHM)
        shutil.rmtree(self._folder, ignore_errors=True)


def _make_command(descriptor: int) -> list[str]:
    return [sys.executable, "-P", "-m", "autotune.trial_host", str(descriptor), str(os.getpid())]


def _make_scratch() -> Path:
    """Make a private folder whose path leaves room for the socket names that torch puts there."""
    usual = tempfile.gettempdir()
    parent = Path(usual if len(usual) <= LONGEST_TMPDIR else "/tmp")
    _sweep_scratch(parent)
    return Path(tempfile.mkdtemp(prefix=f"{SCRATCH_PREFIX}{os.getpid()}-", dir=parent))


def _sweep_scratch(parent: Path) -> None:
    """Remove the folders of runs that were killed before they could."""
    for folder in parent.glob(f"{SCRATCH_PREFIX}*-*"):
        owner = folder.name.removeprefix(SCRATCH_PREFIX).partition("-")[0]
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            shutil.rmtree(folder, ignore_errors=True)
