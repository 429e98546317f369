"""The process of a trial as the tuner sees it: commands and reports, limits, and its end with all that it started."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Sequence
from typing import Final

from pydantic import ValidationError

from autotune.protocol.budgets import Budgets
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
    Report,
    TrialReport,
)
from autotune.runner.diagnosis import TrialFailure, diagnose_exit, diagnose_stall
from autotune.runner.hangs import diagnose_hang
from autotune.runner.launcher import Launcher, make_folder
from autotune.runner.resources import NEAR_BUDGET_POLL_SECONDS, Limits, ResourceMonitor, ResourceUsage
from autotune.system.processes import PROC, STACKS_FILE, read_text

TICK_SECONDS: Final = 0.05
MAX_LOG_BYTES: Final = 4 * 2**20
LOG_TAIL_BYTES: Final = 4000
EXIT_SECONDS: Final = 1.0  # between the end of a process's connection and its exit code

OnProgress = Callable[[ProgressReport], None]
OnWarning = Callable[[str], None]


class TrialProcess:
    """One child process, which serves trials one after another.

    Args:
        launcher: Starts and ends it.
        budgets: What all its processes may use.
        working_dir: Where it runs.
        on_progress: Receives its progress reports.
        on_warning: Receives a sentence if processes cannot be ended.
        interpreter: Whether it is a new interpreter instead of a fork.

    Raises:
        OSError: The machine does not allow to start a process.
    """

    def __init__(
        self,
        launcher: Launcher,
        budgets: Budgets,
        working_dir: str,
        on_progress: OnProgress = lambda report: None,
        on_warning: OnWarning = lambda sentence: None,
        *,
        interpreter: bool = False,
    ) -> None:
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
                self._process = launcher.start(theirs.fileno(), log, self._folder, working_dir, interpreter=interpreter)
            on_error.pop_all()
        self._channel = Channel(ours)
        self._monitor = ResourceMonitor(launcher.supervisor_pid, budgets)

    @property
    def peak(self) -> ResourceUsage:
        """Peaks of the last command."""
        return self._monitor.peak

    def command(self, command: Command, limits: Limits) -> Report | TrialFailure:
        """Send a command, and wait for the report, or for how the process ended."""
        self.send(command)
        return self.receive(limits)

    def send(self, command: Command) -> None:
        """Send a command; `receive` waits for the report, also if the process is gone."""
        with contextlib.suppress(ChannelClosedError):
            self._channel.send(command.model_dump_json())

    def receive(self, limits: Limits) -> Report | TrialFailure:
        """Wait for the report of the command sent, or for how the process ended."""
        try:
            report = self._await_report(limits)
            return self._describe_exit(report.status, report.rank) if isinstance(report, LostRankReport) else report
        except MessageTooLongError as error:
            return self._end_for("crashed", f"sent {error}")
        except ChannelClosedError:
            return self._describe_exit(self._process.poll(EXIT_SECONDS))
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            place = ".".join(str(part) for part in problem["loc"]) or "the message"
            return self._end_for("crashed", f"sent an invalid message ({place}: {problem['msg']})")

    def _await_report(self, limits: Limits) -> Report | TrialFailure:
        started = progressed = time.monotonic()
        self._monitor.reset_peak()
        while True:
            line = self._channel.receive(NEAR_BUDGET_POLL_SECONDS if self._monitor.is_near_budget else TICK_SECONDS)
            if line is not None:
                report = REPORT.validate_json(line)
                if not isinstance(report, ProgressReport):
                    self._note_report(report)
                    return report
                progressed = time.monotonic()
                self._on_progress(report)
            self._cap_log()
            now = time.monotonic()
            excess = limits.find_excess(self._monitor, now - progressed, now - started)
            if excess is not None:
                return self._end_for(excess.reason, excess.message)
            if line is None and self._process.poll() is not None:
                return self._describe_exit(self._process.returncode)

    def _note_report(self, report: Report) -> None:
        """Measure the memory at the end of a trial, when nothing is timed and its workers still live."""
        if isinstance(report, TrialReport | FailureReport):
            self._monitor.read(exact=isinstance(report, TrialReport))
        elif isinstance(report, ReadyReport):
            self._on_device |= report.on_device

    def _cap_log(self) -> None:
        with contextlib.suppress(OSError):
            if self._log_path.stat().st_size > MAX_LOG_BYTES:
                os.truncate(self._log_path, 0)

    def _end_for(self, kind: TrialKind, message: str) -> TrialFailure:
        processes = self._monitor.list_processes()
        found = diagnose_hang(processes, self._folder / STACKS_FILE) if kind == "stalled" else None
        for pid in processes:  # at once; the supervisor may spare some of them for a moment
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGSTOP)
        output = self.read_output()
        self.end()
        if found is not None:
            return diagnose_stall(message, output, self.peak.describe_shm(), found)
        return TrialFailure(kind, message, output)

    def _describe_exit(self, status: int | None, rank: int | None = None) -> TrialFailure:
        """Describe the end of the process, or of one of several training processes."""
        self._monitor.read()
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
        self._channel.close()
        if survivors := self._launcher.end_trial(self._monitor.seen):
            self._on_warning(describe_survivors(survivors))
        self._process.close()
        shutil.rmtree(self._folder, ignore_errors=True)  # if the supervisor was killed


def describe_survivors(pids: Sequence[int]) -> str:
    """Describe the processes of a trial that could not be killed, with the next step."""
    names = ", ".join(f"{pid} ({read_text(PROC / str(pid) / 'comm').strip() or 'unknown'})" for pid in pids)
    return (
        f"Processes of a trial are still running after SIGKILL: {names}. They wait for a disk or network that does not "
        f"respond, or run as another user, and may disturb the measurements. Before training: "
        f"kill -9 {' '.join(map(str, pids))}"
    )
