"""Starts the child, gives it trials, watches it, and names how it died. The only room that owns processes.

The child is a plain subprocess, not a `multiprocessing.Process`: inside a spawned child multiprocessing's
default start method becomes the parent's, so the DataLoader's own workers would silently be spawned instead of
forked and take twenty times longer to start.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psutil
from pydantic import ValidationError

from autotune.channel import Channel, ChannelClosedError
from autotune.errors import UsageError, WorkloadError
from autotune.limits import Limits
from autotune.machine import SHM, read_available_memory, read_shm
from autotune.messages import (
    REPORT,
    Command,
    Failed,
    Hello,
    Measured,
    Probe,
    Probed,
    Progress,
    Ready,
    Release,
    Report,
    Run,
    TrialKind,
    TrialRequest,
    TrialResult,
    WorkloadProfile,
)
from autotune.process_tree import MARK, bound_memory, end_trial, list_tree, measure_memory, remove_segments
from autotune.request import WorkloadRequest
from autotune.schema import Value
from autotune.units import format_bytes
from autotune.verdicts import Death, judge_failure, name_death
from autotune.watchdog import Reading, Watch

TICK_SECONDS: Final = 0.05
TREE_SECONDS: Final = 0.25  # between two walks over the tree: 0.1 ms a process
SAMPLE_AFTER_SECONDS: Final = 0.4  # of measuring: the queue is full then
LOG_BYTES: Final = 4 * 2**20
LOG_TAIL_BYTES: Final = 4000
RELEASE_SECONDS: Final = 15.0  # hung workers are joined for 5 s each; rather end the child
TRIAL_OVERHEAD: Final = 4.0  # of the trial's seconds: starting workers, draining, a last batch
SCRATCH_PREFIX: Final = "dltune-"
LONGEST_TMPDIR: Final = 60  # characters; AF_UNIX paths end at 108

OnProgress = Callable[[Progress], None]


class TrialRunner:
    """Runs trials of one workload in child processes.

    Use it as a context manager; leaving it ends every process it started.

    Args:
        workload: What the child loads.
        stall_seconds: Most seconds without progress.
        on_progress: Called with what the child reports while it works.
    """

    def __init__(
        self, workload: WorkloadRequest, stall_seconds: float, on_progress: OnProgress = lambda progress: None
    ) -> None:
        self._workload = workload
        self._stall_seconds = stall_seconds
        self._on_progress = on_progress
        self._child: Child | None = None
        self._limits: Limits | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the child, if there is one, and everything it started."""
        if self._child is not None:
            self._child.end()
            self._child = None

    def probe(self, sizes: Sequence[int], limits: Limits) -> WorkloadProfile:
        """Load the workload and profile it.

        Args:
            sizes: Batch sizes to measure with, where they can be set: the usual one, and the largest.
            limits: Budgets.

        Returns:
            The profile.

        Raises:
            UsageError: The workload cannot be what the user meant: no such attribute, no such device.
            WorkloadError: The user's code raised, hung or died.
        """
        self._limits = limits
        outcome = self._obtain_child()
        if isinstance(outcome, Child):
            outcome = outcome.command(
                Probe(batch_size=sizes[0], largest=max(sizes)), self._watch(self._stall_seconds * 4)
            )
        if isinstance(outcome, Probed):
            return outcome.profile
        self.close()
        raise _explain_start(outcome, self._workload)

    def run(self, request: TrialRequest) -> TrialResult:
        """Run one trial.

        Args:
            request: What to measure.

        Returns:
            What became of it. A child that failed is ended with its whole tree; the next trial gets a new one.
        """
        started = time.monotonic()
        if request.fresh:
            self.close()
        outcome = self._obtain_child()
        usage = Usage()
        if isinstance(outcome, Child):
            deadline = request.seconds * TRIAL_OVERHEAD + self._stall_seconds
            outcome = outcome.command(Run(trial=request), self._watch(deadline))
            usage = self._child.usage if self._child is not None else usage
        result = _check_gpu(_make_result(request, outcome, usage), self._limits)
        self._wind_down(result)
        return result.model_copy(update={"seconds": time.monotonic() - started})

    def _wind_down(self, result: TrialResult) -> None:
        """Have the workers taken down; a child that failed or does not let go of them is ended."""
        if self._child is None:
            return
        if result.kind == "completed":
            watch = self._watch(RELEASE_SECONDS).model_copy(update={"stall_seconds": RELEASE_SECONDS})
            if isinstance(self._child.command(Release(), watch), Ready):
                return
        self.close()

    def _watch(self, deadline_seconds: float) -> Watch:
        assert self._limits is not None, "probe() comes first: it sets the limits"
        return Watch(limits=self._limits, stall_seconds=self._stall_seconds, deadline_seconds=deadline_seconds)

    def limit(self, limits: Limits) -> None:
        """Put other budgets in force for the trials to come."""
        self._limits = limits

    def _obtain_child(self) -> Child | Report | Death:
        """Give the living child, or start one and have it load the workload."""
        if self._child is not None:
            return self._child
        child = Child(self._workload.working_dir, self._on_progress)
        self._child = child
        answer = child.command(Hello(workload=self._workload), self._watch(self._stall_seconds * 20))
        return child if isinstance(answer, Ready) else answer


class Usage(Value):
    """What a command was seen to use at its peak, in bytes."""

    host_bytes: int = 0
    shm_bytes: int = 0


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
        started = moved = time.monotonic()
        next_walk, sampled = started, False
        measuring_since: float | None = None
        self.usage = Usage()
        while True:
            line = self._channel.receive(TICK_SECONDS)
            now = time.monotonic()
            report = None if line is None else REPORT.validate_json(line)
            if report is not None and not isinstance(report, Progress):
                if isinstance(report, Measured):  # nothing is timed any more, and the workers still live
                    self._read(now - moved, now - started, watch, walk=True, exact=True)
                return report
            if report is not None:
                moved = now
                measuring_since = measuring_since or (now if report.batches else None)
                self._on_progress(report)
            exact = measuring_since is not None and not sampled and now - measuring_since > SAMPLE_AFTER_SECONDS
            sampled = sampled or exact
            walk = now >= next_walk or exact
            next_walk = now + TREE_SECONDS if walk else next_walk
            reading = self._read(now - moved, now - started, watch, walk=walk, exact=exact)
            breach = watch.judge(reading)
            if breach is not None:
                return self._end_for(breach.reason, breach.message)
            if line is None and self._process.poll() is not None:
                return self._name_death()

    def _read(self, idle: float, running: float, watch: Watch, *, walk: bool, exact: bool) -> Reading:
        """Take one reading: the cheap one at every tick, the tree now and then, exact memory when it matters."""
        tree = list_tree(self._process.pid) if walk else []
        self._seen.update(tree)
        reading = Reading(
            idle_seconds=idle,
            running_seconds=running,
            host_bytes=bound_memory(tree) + self._read_shm_used(),
            host_exact=False,
            shm_bytes=self._read_shm_used(),
            available_bytes=read_available_memory(),
        )
        if tree and (exact or watch.needs_exact_memory(reading)):
            exact_bytes = measure_memory(tree) + reading.shm_bytes
            reading = reading.model_copy(update={"host_bytes": exact_bytes, "host_exact": True})
        self.usage = Usage(
            host_bytes=max(self.usage.host_bytes, reading.host_bytes if reading.host_exact else 0),
            shm_bytes=max(self.usage.shm_bytes, reading.shm_bytes),
        )
        self._cap_log()
        return reading

    def _read_shm_used(self) -> int:
        return max(0, self._shm_free - read_shm()[1])

    def _cap_log(self) -> None:
        with contextlib.suppress(OSError):
            if self._log_path.stat().st_size > LOG_BYTES:
                os.truncate(self._log_path, 0)

    def _end_for(self, kind: TrialKind, message: str) -> Death:
        details = self._read_log_tail()
        self.end()
        return Death(kind=kind, message=message, details=details)

    def _name_death(self) -> Death:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1.0)
        status = self._process.poll()
        details = self._read_log_tail()
        self.end()
        return name_death(status, details)

    def _read_log_tail(self) -> str:
        with contextlib.suppress(OSError), self._log_path.open("rb") as log:
            log.seek(max(0, self._log_path.stat().st_size - LOG_TAIL_BYTES))
            return log.read().replace(b"\0", b"").decode(errors="replace").strip()
        return ""

    def end(self) -> None:
        """End the child and every process that belongs to it, and remove what they left."""
        self._seen.update(list_tree(self._process.pid))
        self._channel.close()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
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


def _make_result(request: TrialRequest, outcome: Child | Report | Death, usage: Usage) -> TrialResult:
    seen = {"peak_host_bytes": usage.host_bytes, "peak_shm_bytes": usage.shm_bytes}
    if isinstance(outcome, Measured):
        return TrialResult(kind="completed", config=request.config, measurement=outcome.measurement, **seen)
    death = judge_failure(outcome) if isinstance(outcome, Failed) else outcome
    assert isinstance(death, Death), f"a trial was answered by {type(outcome).__name__}"
    return TrialResult(kind=death.kind, config=request.config, message=death.message, details=death.details, **seen)


def _check_gpu(result: TrialResult, limits: Limits | None) -> TrialResult:
    """Turn a trial whose allocator went over the device's budget into a failure."""
    budget = limits.gpu_bytes if limits is not None else None
    used = result.measurement.peak_gpu_bytes if result.measurement is not None else 0
    if budget is None or used <= budget:
        return result
    message = f"used {format_bytes(used)} of device memory against a budget of {format_bytes(budget)}"
    return result.model_copy(update={"kind": "out_of_memory", "measurement": None, "message": message})


def _explain_start(outcome: Child | Report | Death, workload: WorkloadRequest) -> UsageError | WorkloadError:
    """Say why the workload could not be loaded or profiled, in the words the user needs."""
    if isinstance(outcome, Failed):
        return _explain_failure(outcome, workload)
    assert isinstance(outcome, Death)
    source = f"While {workload.dataset} was loaded and profiled, its process"
    advice = {
        "stalled": " If it needs longer, allow it with --stall-time.",
        "timed_out": " If it needs longer, allow it with --stall-time.",
        "out_of_memory": " Give it more with --max-memory, or make the dataset smaller.",
    }.get(outcome.kind, "")
    return WorkloadError(f"{source} {outcome.message}.{advice}", outcome.details)


def _explain_failure(failed: Failed, workload: WorkloadRequest) -> UsageError | WorkloadError:
    kind, _, text = failed.error.partition(": ")
    if kind.rpartition(".")[2] == "UsageError":
        return UsageError(text)
    if kind.rpartition(".")[2] == "WorkloadError":
        return WorkloadError(text)
    if failed.where == "step":
        source = f"The step factory {workload.step}"
    elif failed.where == "dataset":
        source = f"The dataset factory {workload.dataset}"
    else:
        source = f"Loading the first batches of {workload.dataset} in the training process"
    return WorkloadError(f"{source} failed: {failed.error}", failed.details)
