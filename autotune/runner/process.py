"""One child process: how it is started, talked to, watched, and ended with everything it started.

The child is a plain subprocess, not a `multiprocessing.Process`: inside a spawned child multiprocessing's
default start method becomes the parent's, so the DataLoader's own workers would silently be spawned instead of
forked and take twenty times longer to start.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from autotune.config import FrozenModel
from autotune.runner.failures import TrialFailure, diagnose_exit, diagnose_stall
from autotune.runner.process_tree import TRIAL_ID_VARIABLE, describe_survivors, kill_trial, remove_shm_segments
from autotune.runner.sandbox import SandboxSupport
from autotune.runner.usage import NEAR_BUDGET_POLL_SECONDS, UsageMonitor, Use
from autotune.runner.watchdog import BudgetBreach, Reading, Watchdog
from autotune.system.kernel_files import SHM
from autotune.trial.budgets import Budgets
from autotune.trial.channel import Channel, ChannelClosedError, MessageTooLongError
from autotune.trial.measurement import TrialKind
from autotune.trial.protocol import REPORT, Command, FailureReport, ProgressReport, ReadyReport, Report, TrialReport
from autotune.trial.sandbox_spec import SandboxSpec
from autotune.units import format_bytes

TICK_SECONDS: Final = 0.05
WALLED_TICK_SECONDS: Final = 0.25  # where the kernel holds the budgets, too: a look takes CPU from those who load
LOG_BYTES: Final = 4 * 2**20
LOG_TAIL_BYTES: Final = 4000
SCRATCH_PREFIX: Final = "dltune-"
SCRATCH_NAME: Final = re.compile(rf"{SCRATCH_PREFIX}\d+-[a-z0-9_]{{8}}")  # process number, and what mkdtemp() adds
LOCK_FILE: Final = ".dltune-claim"  # a file in the scratch folder that its owner keeps locked
REAP_SECONDS: Final = 5.0  # for a killed process to be gone
MAX_TMPDIR_LENGTH: Final = 60  # characters; AF_UNIX paths end at 108

OnProgress = Callable[[ProgressReport], None]
OnWarning = Callable[[str], None]


class Usage(FrozenModel):
    """What a command was seen to use at its peak.

    Attributes:
        host_bytes: Host memory, /dev/shm included; 0 when it was never read exactly.
        shm_bytes: The part in /dev/shm.
        shm_size_bytes: Size of the /dev/shm that it had.
        oom_kills: Processes that the kernel's out-of-memory killer took.
    """

    host_bytes: int = 0
    shm_bytes: int = 0
    shm_size_bytes: int = 0
    oom_kills: int = 0

    def describe_shm(self) -> str:
        """Say what was used of /dev/shm, to be put behind a sentence."""
        return f": {format_bytes(self.shm_bytes)} used of {format_bytes(self.shm_size_bytes)}"


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
    """One child process, the line to it, and what is known of its tree.

    Args:
        working_dir: Folder it starts in.
        budgets: Budgets that its walls are built for.
        containment: Which walls can be put up.
        on_progress: Called with each progress report.
        on_warning: Called with a sentence when processes of it cannot be ended.
    """

    def __init__(
        self,
        working_dir: str,
        budgets: Budgets,
        containment: SandboxSupport,
        on_progress: OnProgress,
        on_warning: OnWarning = lambda sentence: None,
    ) -> None:
        self._on_progress = on_progress
        self._on_warning = on_warning
        self._mark = uuid.uuid4().hex
        self.usage = Usage()
        self._on_device = False
        with contextlib.ExitStack() as belongings:  # a child that cannot be started must leave nothing
            self._folder, claim = _make_scratch()
            belongings.callback(os.close, claim)
            belongings.callback(shutil.rmtree, self._folder, ignore_errors=True)
            self._log_path = self._folder / "log"
            self._group = containment.make_group(budgets)
            if self._group is not None:
                belongings.callback(self._group.remove)
            walls = containment.plan_walls(budgets, self._group)
            self._own_shm, self._own_pids = walls.shm_bytes > 0, walls.own_pids
            self._start(walls, working_dir, belongings)
            self._gauge = UsageMonitor(self._process.pid, budgets, self._group, own_shm=self._own_shm)
            self._belongings = belongings.pop_all()
        is_walled = self._group is not None and self._own_shm
        self._tick_seconds = WALLED_TICK_SECONDS if is_walled else TICK_SECONDS

    def _start(self, walls: SandboxSpec, working_dir: str, belongings: contextlib.ExitStack) -> None:
        ours, theirs = socket.socketpair()
        belongings.callback(ours.close)  # a child whose line is closed ends by itself
        self._channel = Channel(ours)
        with theirs, self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                _make_command(theirs.fileno(), walls),
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=working_dir,
                env={**os.environ, TRIAL_ID_VARIABLE: self._mark, "TMPDIR": str(self._folder)},
                start_new_session=True,
            )

    def command(self, command: Command, watch: Watchdog) -> Report | TrialFailure:
        """Give a command and wait for its answer, watching the tree.

        Args:
            command: What to do.
            watch: What it may take.

        Returns:
            The answer, or how the child died or was ended.
        """
        self.send(command)
        return self.receive(watch)

    def send(self, command: Command) -> None:
        """Give a command; `receive` waits for its answer. A child that is gone says so there."""
        with contextlib.suppress(ChannelClosedError):
            self._channel.send(command.model_dump_json())

    def receive(self, watch: Watchdog) -> Report | TrialFailure:
        """Wait for the answer to the command sent, watching the tree.

        Args:
            watch: What it may take.

        Returns:
            The answer, or how the child died or was ended.
        """
        try:
            return self._await_answer(watch)
        except MessageTooLongError as error:
            return self._end_for("crashed", f"sent {error}")
        except ChannelClosedError:
            return self._name_death()
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            place = ".".join(str(part) for part in problem["loc"]) or "the message"
            return self._end_for("crashed", f"sent a message that dltune cannot read ({place}: {problem['msg']})")

    def _await_answer(self, watch: Watchdog) -> Report | TrialFailure:
        pulse = ProgressTimer()
        self.usage = Usage()
        while True:
            line = self._channel.receive(NEAR_BUDGET_POLL_SECONDS if self._gauge.is_near else self._tick_seconds)
            if line is not None:
                report = REPORT.validate_json(line)
                if not isinstance(report, ProgressReport):
                    self._note_end(report, pulse)
                    return report
                pulse.note_progress()
                self._on_progress(report)
            breach = self._watch(pulse, watch)
            if breach is not None:
                return self._end_for(breach.reason, breach.message)
            if line is None and self._process.poll() is not None:
                return self._name_death()

    def _note_end(self, report: Report, pulse: ProgressTimer) -> None:
        """Read the memory of a trial that has just ended: nothing is timed any more, and its workers still live."""
        if isinstance(report, TrialReport):
            self._read(pulse, exact=True)
        elif isinstance(report, FailureReport):
            self._note_use(self._gauge.read())
        elif isinstance(report, ReadyReport):
            self._on_device |= report.on_device

    def _watch(self, pulse: ProgressTimer, watch: Watchdog) -> BudgetBreach | None:
        """Take a reading and judge it: the cheap one at every tick, exact memory when it matters."""
        reading = self._read(pulse)
        if watch.needs_exact_memory(reading):
            reading = self._read(pulse, exact=True)
        self._cap_log()
        return watch.judge(reading)

    def _read(self, pulse: ProgressTimer, *, exact: bool = False) -> Reading:
        use = self._gauge.read(exact=exact)
        self._note_use(use)
        return Reading(
            idle_seconds=pulse.idle_seconds,
            running_seconds=pulse.running_seconds,
            host_bytes=use.host_bytes,
            host_exact=use.exact,
            shm_bytes=use.shm_bytes,
            available_bytes=self._gauge.read_available(),
        )

    def _note_use(self, use: Use) -> None:
        """Keep the peaks: where memory is read exactly but once, the queue may have been longer before."""
        shm_bytes = max(self.usage.shm_bytes, use.shm_bytes)
        host_bytes = use.host_bytes - use.shm_bytes + shm_bytes if use.exact else 0
        self.usage = Usage(
            host_bytes=max(self.usage.host_bytes, host_bytes),
            shm_bytes=shm_bytes,
            shm_size_bytes=self._gauge.shm_size_bytes,
            oom_kills=self._gauge.count_oom_kills(),
        )

    def _cap_log(self) -> None:
        with contextlib.suppress(OSError):
            if self._log_path.stat().st_size > LOG_BYTES:
                os.truncate(self._log_path, 0)

    def _end_for(self, kind: TrialKind, message: str) -> TrialFailure:
        self._halt()
        details = self.read_output()
        self.end()
        if kind == "stalled":
            return diagnose_stall(message, details, self.usage.describe_shm())
        return TrialFailure(kind=kind, message=message, details=details)

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
        status = self._process.poll()
        self._note_use(self._gauge.read())
        details = self.read_output()
        self.end()
        return diagnose_exit(status, details, self.usage.describe_shm(), on_device=self._on_device)

    def read_output(self) -> str:
        """Read the end of what the child's processes printed, without the NUL bytes that torch puts there."""
        with contextlib.suppress(OSError), self._log_path.open("rb") as log:
            log.seek(max(0, self._log_path.stat().st_size - LOG_TAIL_BYTES))
            return log.read().replace(b"\0", b"").decode(errors="replace").strip()
        return ""

    def end(self) -> None:
        """End the child and every process that belongs to it, and remove what they left."""
        if self._process.returncode is None:  # else the number may belong to another process by now
            self._gauge.walk()
        self._channel.close()
        if self._own_pids:
            self._process.kill()  # the namespace goes with it, and with the private /dev/shm nothing is to be cleaned
        else:
            self._process.terminate()  # the keeper then ends those, too, that hide from us
        survivors = kill_trial(self._mark, None if self._own_pids else self._process.pid)
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # not even SIGKILL ends who waits for a dead disk
            self._process.wait(REAP_SECONDS)
        if survivors:
            self._on_warning(describe_survivors(survivors))
        self._belongings.close()
        if not self._own_shm:
            remove_shm_segments(self._gauge.seen, SHM)


def _make_command(descriptor: int, walls: SandboxSpec) -> list[str]:
    program = [sys.executable, "-P", "-m", "autotune.child.server"]
    return [*program, str(descriptor), str(os.getpid()), walls.to_json()]


def _make_scratch() -> tuple[Path, int]:
    """Make a private folder whose path leaves room for the socket names that torch puts there, and lay claim to it."""
    usual = tempfile.gettempdir()
    parent = Path(usual if len(usual) <= MAX_TMPDIR_LENGTH else "/tmp")
    _sweep_scratch(parent)
    folder = Path(tempfile.mkdtemp(prefix=f"{SCRATCH_PREFIX}{os.getpid()}-", dir=parent))
    return folder, _lay_claim(folder)


def _lay_claim(folder: Path) -> int:
    """Put a claim into a folder and give its descriptor; it gets its name when it is locked, so no sweep is earlier."""
    unnamed = folder / f"{LOCK_FILE}-to-be"
    with contextlib.ExitStack() as undo:
        undo.callback(shutil.rmtree, folder, ignore_errors=True)
        claim = os.open(unnamed, os.O_CREAT | os.O_RDWR, 0o600)
        undo.callback(os.close, claim)
        fcntl.flock(claim, fcntl.LOCK_EX)
        unnamed.rename(folder / LOCK_FILE)
        undo.pop_all()
    return claim


def _sweep_scratch(parent: Path) -> None:
    """Remove the folders of our own runs that were killed before they could; a folder without a claim is not ours."""
    for folder in parent.glob(f"{SCRATCH_PREFIX}*"):
        if SCRATCH_NAME.fullmatch(folder.name) and not folder.is_symlink() and _is_abandoned(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    """Tell whether nobody holds our claim: process numbers say nothing where containers share a /tmp."""
    try:
        claim = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.fstat(claim).st_uid == os.geteuid()
    except OSError:
        return False
    finally:
        os.close(claim)
