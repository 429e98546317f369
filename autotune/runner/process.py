"""One child process: how it is talked to, watched, and ended with everything it started."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
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
from autotune.protocol.process_spec import STACKS_FILE, SandboxSpec
from autotune.runner.diagnosis import TrialFailure, diagnose_exit, diagnose_stall
from autotune.runner.hangs import diagnose_hang
from autotune.runner.launcher import Starter
from autotune.runner.process_tree import describe_survivors, kill_trial, list_trial_processes
from autotune.runner.resources import NEAR_BUDGET_POLL_SECONDS, ResourceUsage, UsageMonitor
from autotune.runner.sandbox import SandboxSupport
from autotune.runner.scratch import make_scratch
from autotune.runner.watchdog import BudgetBreach, Watchdog
from autotune.system.processes import remove_shm_segments

TICK_SECONDS: Final = 0.05
SANDBOXED_TICK_SECONDS: Final = 0.25  # where the kernel holds the budgets, too: a look takes CPU from those who load
MAX_LOG_BYTES: Final = 4 * 2**20
LOG_TAIL_BYTES: Final = 4000
REAP_SECONDS: Final = 5.0  # for a killed process to be gone

OnProgress = Callable[[ProgressReport], None]
OnWarning = Callable[[str], None]


class ProgressTimer:
    """Keeps the time of a command: when it was given, and when it last moved."""

    def __init__(self) -> None:
        self._started = self._moved = time.monotonic()

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


class TrialProcess:
    """One child process in a sandbox that is built for its budgets, the line to it, and what is known of its tree."""

    def __init__(
        self,
        starter: Starter,
        budgets: Budgets,
        sandbox: SandboxSupport,
        on_progress: OnProgress,
        on_warning: OnWarning = lambda sentence: None,
    ) -> None:
        self._on_progress = on_progress
        self._on_warning = on_warning
        self._on_device = False
        with contextlib.ExitStack() as belongings:  # a child that cannot be started must leave nothing
            self._folder = belongings.enter_context(make_scratch())
            self._log_path = self._folder / "log"
            cgroup = sandbox.make_cgroup(budgets)
            if cgroup is not None:
                belongings.callback(cgroup.remove)
            spec = sandbox.make_spec(budgets, cgroup)
            self._own_shm, self._own_pids = spec.shm_bytes > 0, spec.own_pids
            self._start(spec, starter, belongings)
            self._monitor = UsageMonitor(self._process.pid, budgets, cgroup, own_shm=self._own_shm)
            self._belongings = belongings.pop_all()
        self._tick_seconds = SANDBOXED_TICK_SECONDS if cgroup is not None and self._own_shm else TICK_SECONDS

    def _start(self, spec: SandboxSpec, starter: Starter, belongings: contextlib.ExitStack) -> None:
        ours, theirs = socket.socketpair()
        belongings.callback(ours.close)  # a child whose line is closed ends by itself
        self._channel = Channel(ours)
        with theirs, self._log_path.open("ab") as log:
            self._started = starter.start(spec, str(self._folder), theirs.fileno(), log)
        self._process = self._started.process

    @property
    def peak(self) -> ResourceUsage:
        """What the last command was seen to use at most."""
        return self._monitor.peak

    def command(self, command: Command, watchdog: Watchdog) -> Report | TrialFailure:
        """Give a command and wait for its answer, or for how the child died or was ended."""
        self.send(command)
        return self.receive(watchdog)

    def send(self, command: Command) -> None:
        """Give a command; `receive` waits for its answer. A child that is gone says so there."""
        with contextlib.suppress(ChannelClosedError):
            self._channel.send(command.model_dump_json())

    def receive(self, watchdog: Watchdog) -> Report | TrialFailure:
        """Wait for the answer to the command sent, or for how the child died or was ended."""
        try:
            answer = self._await_answer(watchdog)
            return self._name_end(answer.status, answer.rank) if isinstance(answer, LostRankReport) else answer
        except MessageTooLongError as error:
            return self._end_for("crashed", f"sent {error}")
        except ChannelClosedError:
            return self._name_death()
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            place = ".".join(str(part) for part in problem["loc"]) or "the message"
            return self._end_for("crashed", f"sent a message that dltune cannot read ({place}: {problem['msg']})")

    def _await_answer(self, watchdog: Watchdog) -> Report | TrialFailure:
        timer = ProgressTimer()
        self._monitor.reset_peak()
        while True:
            line = self._channel.receive(
                NEAR_BUDGET_POLL_SECONDS if self._monitor.is_near_budget else self._tick_seconds
            )
            if line is not None:
                report = REPORT.validate_json(line)
                if not isinstance(report, ProgressReport):
                    self._note_answer(report)
                    return report
                timer.note_progress()
                self._on_progress(report)
            self._cap_log()
            breach = self._judge_usage(watchdog, timer)
            if breach is not None:
                return self._end_for(breach.reason, breach.message)
            if line is None and self._process.poll() is not None:
                return self._name_death()

    def _note_answer(self, report: Report) -> None:
        """Read the memory of a trial that has just ended: nothing is timed any more, and its workers still live."""
        if isinstance(report, TrialReport | FailureReport):
            self._monitor.read(exact=isinstance(report, TrialReport))
        elif isinstance(report, ReadyReport):
            self._on_device |= report.on_device

    def _judge_usage(self, watchdog: Watchdog, timer: ProgressTimer) -> BudgetBreach | None:
        """Take a reading and judge it: the cheap one at every tick, exact memory when it matters."""
        usage = self._monitor.read()
        if watchdog.needs_exact_memory(usage):
            usage = self._monitor.read(exact=True)
        return watchdog.judge(usage, timer.idle_seconds, timer.running_seconds)

    def _cap_log(self) -> None:
        with contextlib.suppress(OSError):
            if self._log_path.stat().st_size > MAX_LOG_BYTES:
                os.truncate(self._log_path, 0)

    def _end_for(self, kind: TrialKind, message: str) -> TrialFailure:
        found = None
        if kind == "stalled":
            found = diagnose_hang(list_trial_processes(self._started.trial_id), self._folder / STACKS_FILE)
        self._halt()
        output = self.read_output()
        self.end()
        if found is not None:
            return diagnose_stall(message, output, self.peak.describe_shm(), found)
        return TrialFailure(kind, message, output)

    def _halt(self) -> None:
        """Bring the trial to a halt at once; finding all that must end takes a moment."""
        if self._own_pids:
            self._process.kill()  # the namespace goes with it; the trial is in a group of its own there
            return
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGSTOP)

    def _name_death(self) -> TrialFailure:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1.0)
        return self._name_end(self._process.poll())

    def _name_end(self, status: int | None, rank: int | None = None) -> TrialFailure:
        """Name the end of the child, or of one of the ranks that it has started."""
        self._monitor.read()
        output = self.read_output()
        self.end()
        return diagnose_exit(status, output, self.peak.describe_shm(), on_device=self._on_device).name_rank(rank)

    def read_output(self) -> str:
        """Read the end of what the child's processes printed, without the NUL bytes that torch puts there."""
        with contextlib.suppress(OSError), self._log_path.open("rb") as log:
            log.seek(max(0, self._log_path.stat().st_size - LOG_TAIL_BYTES))
            return log.read().replace(b"\0", b"").decode(errors="replace").strip()
        return ""

    def end(self) -> None:
        """End the child and every process that belongs to it, and remove what they left."""
        if self._process.returncode is None:  # else the number may belong to another process by now
            self._monitor.walk()
        self._channel.close()
        if self._own_pids:
            self._process.kill()  # the namespace goes with it, and with the private /dev/shm nothing is to be cleaned
        else:
            self._process.terminate()  # the keeper then ends those, too, that hide from us
        keeper = None if self._own_pids else self._process.pid
        survivors = kill_trial(self._started.trial_id, keeper, self._started.server)
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # not even SIGKILL ends who waits for a dead disk
            self._process.wait(REAP_SECONDS)
        if survivors:
            self._on_warning(describe_survivors(survivors))
        self._belongings.close()
        if not self._own_shm:
            remove_shm_segments(self._monitor.seen)
