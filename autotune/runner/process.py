"""The process of a trial as the tuner sees it: commands and reports, limits, and its end with all that it started."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from typing import Final

from pydantic import ValidationError

from autotune.protocol.measurement import TrialKind
from autotune.protocol.messages import (
    REPORT,
    Channel,
    ChannelClosedError,
    Command,
    FailureReport,
    LostRankReport,
    MessageTooLongError,
    ProgressReport,
    ReadyReport,
    TrialReport,
)
from autotune.runner.diagnosis import Answer, TrialFailure, diagnose_exit, diagnose_stall, reclassify_oom_kill
from autotune.runner.hangs import find_blocking, read_all_stacks
from autotune.runner.launcher import Launcher, make_folder
from autotune.runner.resources import Limits, ResourceMonitor, ResourceUsage
from autotune.system.processes import PROC, STACKS_FILE, read_text

MAX_LOG_BYTES: Final = 4 * 2**20
LOG_TAIL_BYTES: Final = 4000
EXIT_SECONDS: Final = 1.0  # between the end of a process's connection and its exit code

OnProgress = Callable[[ProgressReport], None]
OnWarning = Callable[[str], None]


class TrialProcess:
    """A child process that serves trials one after another: a fork of the supervisor, or a new interpreter.

    `on_warning` is called with a sentence when processes cannot be ended. If the machine does not allow to start a
    process, OSError is raised.
    """

    def __init__(
        self,
        launcher: Launcher,
        working_dir: str,
        on_progress: OnProgress = lambda report: None,
        on_warning: OnWarning = lambda sentence: None,
        *,
        interpreter: bool = False,
    ) -> None:
        self.batches = 0  # that the running command last reported
        self._launcher = launcher
        self._on_progress = on_progress
        self._on_warning = on_warning
        self._on_device = False
        self._folder = make_folder()
        self._log_path = self._folder / "log"
        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as on_error:
            on_error.callback(shutil.rmtree, self._folder, ignore_errors=True)
            on_error.callback(ours.close)
            with theirs, self._log_path.open("ab") as log:
                self._pidfd = launcher.start(theirs.fileno(), log, self._folder, working_dir, interpreter=interpreter)
            on_error.pop_all()
        self._channel = Channel(ours)
        self._monitor = ResourceMonitor(launcher.supervisor_pid)

    @property
    def peak(self) -> ResourceUsage:
        """Peaks of the last command."""
        return self._monitor.peak

    def command(self, command: Command, limits: Limits) -> Answer:
        """Send a command, and wait for the report, or for how the process ended."""
        self.send(command)
        return self.receive(limits)

    def send(self, command: Command) -> None:
        """Send a command; `receive` waits for the report, also if the process is gone."""
        with contextlib.suppress(ChannelClosedError):
            self._channel.send(command.model_dump_json())

    def receive(self, limits: Limits) -> Answer:
        """Wait for the report of the command sent, or for how the process ended."""
        self._monitor.peak, self.batches = ResourceUsage(), 0
        answer: Answer
        try:
            answer = self._await_report(limits)
        except MessageTooLongError as error:
            answer = self._end_for("crashed", f"sent {error}")
        except ChannelClosedError:
            answer = self._describe_exit(limits, self._poll(EXIT_SECONDS))
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            place = ".".join(str(part) for part in problem["loc"]) or "the message"
            answer = self._end_for("crashed", f"sent an invalid message ({place}: {problem['msg']})")
        return reclassify_oom_kill(answer, self.peak, limits.budgets) if isinstance(answer, TrialFailure) else answer

    def _await_report(self, limits: Limits) -> Answer:
        started = progressed = time.monotonic()
        while True:
            line = self._channel.receive(self._monitor.tick_seconds)
            if line is not None:
                report = REPORT.validate_json(line)
                if isinstance(report, LostRankReport):
                    return self._describe_exit(limits, report.status, report.rank)
                if not isinstance(report, ProgressReport):
                    if isinstance(report, TrialReport | FailureReport):  # workers live, and nothing is timed
                        self._monitor.read(limits.budgets, exact=isinstance(report, TrialReport))
                    self._on_device |= isinstance(report, ReadyReport) and report.on_device
                    return report
                progressed, self.batches = time.monotonic(), report.batches
                self._on_progress(report)
            with contextlib.suppress(OSError):
                if self._log_path.stat().st_size > MAX_LOG_BYTES:
                    os.truncate(self._log_path, 0)
            usage, now = self._monitor.read(limits.budgets), time.monotonic()
            excess = limits.find_excess(usage, now - progressed, now - started)
            if excess is not None:
                return self._end_for(*excess)
            if line is None and (status := self._poll()) is not None:
                return self._describe_exit(limits, status)

    def _poll(self, seconds: float = 0.0) -> int | None:
        """Return the exit code of the process if it ends within so many seconds."""
        return self._launcher.read_status() if wait([self._pidfd], seconds) else None

    def _end_for(self, kind: TrialKind, message: str) -> TrialFailure:
        processes = self._monitor.list_processes()
        stacks = read_all_stacks(processes, self._folder / STACKS_FILE) if kind == "stalled" else ()
        for pid in processes:  # at once; the supervisor may spare some of them for a moment
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGSTOP)
        output = self.read_output()
        self.end()
        if kind == "stalled":
            return diagnose_stall(message, output, self.peak.describe_shm(), find_blocking(stacks))
        return TrialFailure(kind, message, output)

    def _describe_exit(self, limits: Limits, status: int | None, rank: int | None = None) -> TrialFailure:
        """Describe the end of the process, or of one of several training processes."""
        self._monitor.read(limits.budgets)
        output = self.read_output()
        self.end()
        return diagnose_exit(status, output, self.peak.describe_shm(), on_device=self._on_device).name_rank(rank)

    def read_output(self) -> str:
        """Return the end of the output of its processes, without the NUL bytes that torch writes."""
        with contextlib.suppress(OSError), self._log_path.open("rb") as log:
            log.seek(max(0, self._log_path.stat().st_size - LOG_TAIL_BYTES))
            return log.read().replace(b"\0", b"").decode(errors="replace").strip()
        return ""

    def end(self) -> None:
        """End it with every process that it started, and remove what they left."""
        if self._pidfd < 0:
            return
        self._channel.close()
        if survivors := self._launcher.end_trial(self._monitor.seen):
            self._on_warning(describe_survivors(survivors))
        os.close(self._pidfd)
        self._pidfd = -1
        shutil.rmtree(self._folder, ignore_errors=True)  # if the supervisor was killed


def describe_survivors(pids: Sequence[int]) -> str:
    """Describe the processes of a trial that could not be killed, with the next step."""
    names = ", ".join(f"{pid} ({read_text(PROC / str(pid) / 'comm').strip() or 'unknown'})" for pid in pids)
    return (
        f"Processes of a trial are still running after SIGKILL: {names}. They wait for a disk or network that does not "
        f"respond, or run as another user, and may disturb the measurements. Before training: "
        f"kill -9 {' '.join(map(str, pids))}"
    )
