"""Runs trials in child processes: commands and reports, limits, and the end of a child with all that it started."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import time
from collections.abc import Sequence
from multiprocessing.connection import wait
from typing import Final, Literal, Self

from pydantic import ValidationError

from autotune.errors import TrialError, UsageError
from autotune.profiles.schema import Budgets
from autotune.progress import ProgressListener
from autotune.protocol import messages
from autotune.protocol.measurement import CODE_FAILURES, TrialResult, TrialStatus
from autotune.protocol.messages import ChannelClosedError, FailureReport, ProbeReport, TrialRequest
from autotune.protocol.workload_profile import WorkloadProfile
from autotune.request import WorkloadRequest
from autotune.runner import diagnosis
from autotune.runner.diagnosis import Reply, TrialFailure
from autotune.runner.hangs import find_blocking, read_all_stacks
from autotune.runner.resources import Limits, ResourceMonitor
from autotune.runner.supervisor_client import SupervisorClient, select_torch_variables
from autotune.system.procfs import LOG_FILE, PROC, STACKS_FILE, read_text, remove_folder, signal_all
from autotune.system.signals import raise_lost_interrupt
from autotune.units import format_seconds

Role = Literal["main", "workers"]  # main reads the dataset itself; workers leaves that to those that it starts
MAX_LOG_BYTES: Final = 4 * 2**20
LOG_TAIL_BYTES: Final = 4000
EXIT_SECONDS: Final = 5.0  # between the end of a process's connection and its exit code: it gives its device back
MAX_RELEASE_SECONDS: Final = 15.0  # hung workers are joined for 5 s each; rather end the child
MAX_PROBE_STALLS: Final = 4.0  # times the stall time: a probe
MAX_LOAD_STALLS: Final = 20.0  # times the stall time: importing torch and calling the dataset's factory
EXIT_HANDLER_SECONDS: Final = 1.0  # for those of the user's code, before all processes are killed
STALL_SHARE: Final = 0.5  # of the time that --timeout leaves: a hang must not take all of it
MIN_STALL_SECONDS: Final = 15.0  # for the start of workers in a late trial
MAX_TICK_SECONDS: Final = 10.0  # between readings; if more pass, dltune itself was stopped, as with Ctrl-Z
MAX_TRIAL_OVERHEAD: Final = 4.0  # times the trial's seconds: starting workers, draining, a last batch


class TrialProcess:
    """A child that serves trials one after another."""

    def __init__(self, supervisor: SupervisorClient, working_dir: str, progress: ProgressListener) -> None:
        self.batches = 0  # that the running command last reported
        self._is_busy = False  # with a command
        self._supervisor = supervisor
        self._progress = progress
        self._on_device, self._is_sampled = False, True
        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as on_error, theirs:
            on_error.callback(ours.close)
            self._pidfd, self._folder = supervisor.start(theirs.fileno(), working_dir)
            on_error.pop_all()
        self._log_path = self._folder / LOG_FILE
        self._channel = messages.Channel(ours)
        self.monitor = ResourceMonitor(supervisor.supervisor_pid)

    def command(self, command: messages.Command, limits: Limits) -> Reply:
        """Send a command, and wait for the report, or for how the process ended."""
        self.send(command)
        return self.receive(limits)

    def send(self, command: messages.Command) -> None:
        """Send a command; `receive` waits for the report, also if the process has ended."""
        keeps_workers = isinstance(command, TrialRequest) and command.config.dataloader.persistent_workers
        self._is_sampled, self._is_busy = not keeps_workers, not isinstance(command, messages.ReleaseCommand)
        with contextlib.suppress(ChannelClosedError):
            self._channel.send(command.model_dump_json())

    def receive(self, limits: Limits) -> Reply:
        """Wait for the report of the command sent, or for how the process ended."""
        self.monitor.start_command(is_sampled=self._is_sampled)
        self.batches = 0
        reply: Reply
        try:
            reply = self._await_report(limits)
            self._is_busy = False
        except ChannelClosedError:
            reply = self._describe_exit(limits, self._poll(EXIT_SECONDS))
        except ValidationError as error:
            reply = self._end_for("crashed", f"sent an invalid message ({error.errors()[0]['msg']})")
        if isinstance(reply, TrialFailure):
            reply = diagnosis.reclassify_oom_kill(reply, self.monitor.peak, limits.budgets)
        return reply

    def _await_report(self, limits: Limits) -> Reply:
        started = progressed = ticked = time.monotonic()
        while True:
            line = self._channel.receive(self.monitor.tick_seconds)
            if line is not None:
                report = messages.REPORT.validate_json(line)
                if isinstance(report, messages.LostRankReport):
                    return self._describe_exit(limits, report.status, report.rank)
                if not isinstance(report, messages.ProgressReport):
                    if isinstance(report, messages.TrialReport | FailureReport):  # workers live, and nothing is timed
                        self.monitor.read(limits.budgets, exact=isinstance(report, messages.TrialReport))
                    self._on_device |= isinstance(report, messages.ReadyReport) and report.on_device
                    return report
                progressed, self.batches = time.monotonic(), report.batches
                self._progress.show_progress(report)
            with contextlib.suppress(OSError):
                if self._log_path.stat().st_size > MAX_LOG_BYTES:
                    os.truncate(self._log_path, 0)
            usage, now = self.monitor.read(limits.budgets), time.monotonic()
            pause, ticked = now - ticked, now
            if pause > MAX_TICK_SECONDS:
                started, progressed = started + pause, progressed + pause
            excess = limits.find_excess(usage, now - progressed, now - started)
            if excess is not None:
                return self._end_for(*excess)
            if line is None and (status := self._poll()) is not None:
                return self._describe_exit(limits, status)

    def _poll(self, seconds: float = 0.0) -> int | None:
        """Return the exit code of the process if it ends within so many seconds."""
        return self._supervisor.read_status() if wait([self._pidfd], seconds) else None

    def _end_for(self, status: TrialStatus, message: str) -> TrialFailure:
        processes = self.monitor.list_processes()
        found = find_blocking(read_all_stacks(processes, self._folder / STACKS_FILE)) if status == "stalled" else None
        signal_all(processes, signal.SIGSTOP)  # at once; the supervisor kills some of them later
        output = self.read_output()
        self.end()
        if found is not None:
            return diagnosis.diagnose_stall(message, output, found)
        return TrialFailure(status, message, output)

    def _describe_exit(self, limits: Limits, status: int | None, rank: int | None = None) -> TrialFailure:
        self.monitor.read(limits.budgets)
        output = self.read_output()
        self.end()
        shm = self.monitor.peak.describe_shm()
        return diagnosis.diagnose_exit(status, output, shm, on_device=self._on_device).name_rank(rank)

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
        if not self._is_busy:
            wait([self._pidfd], EXIT_HANDLER_SECONDS)
        if survivors := self._supervisor.end_trial(self.monitor.list_owners()):
            self._progress.show_warning(describe_survivors(survivors))
        os.close(self._pidfd)
        self._pidfd = -1
        remove_folder(self._folder)  # if the supervisor was killed


class TrialRunner:
    """Runs trials of one workload in child processes; leaving its context ends every process that it started."""

    _limits: Budgets  # of one training process; `probe` or `limit` comes first

    def __init__(
        self,
        workload: WorkloadRequest,
        stall_seconds: float,
        progress: ProgressListener | None = None,
        supervisor: SupervisorClient | None = None,
    ) -> None:
        self.start_seconds: float | None = None  # what the last start of a process and of its dataset took
        self._workload = workload
        self._stall_seconds = stall_seconds
        self.progress = progress or ProgressListener()
        self._owns_supervisor = supervisor is None
        self._supervisor = supervisor or SupervisorClient(workload)
        self._child: TrialProcess | None = None
        self._is_releasing = False
        self._end = self._probe_end = math.inf
        self._ranks = 1
        self._role: Role = "main"  # of the living child
        self._profile: WorkloadProfile | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.close()
        finally:
            if self._owns_supervisor:
                self._supervisor.close()

    def close(self) -> None:
        """End the child, if there is one, and everything it started."""
        if self._child is not None:
            self._child.end()
            self._child = None
        self._is_releasing = False

    def limit(self, budgets: Budgets, profile: WorkloadProfile | None = None) -> None:
        """Set the budgets of one training process, and the profile if it is known, for the trials that follow."""
        self._limits = budgets
        self._profile = profile or self._profile

    def probe(
        self, batch_sizes: Sequence[int], budgets: Budgets, usable_cpus: float = 2.0, max_seconds: float = math.inf
    ) -> WorkloadProfile:
        """Load the workload and profile it; with no `batch_sizes`, with those of the workload or the default ones.

        One process reads the dataset itself, another one starts workers, unless there are none to search. Raises
        UsageError if there is no such workload, or `max_seconds` are too few, WorkloadError if the user's code fails.
        """
        self._limits, self._ranks = budgets, 1
        self._end = self._probe_end = time.monotonic() + max_seconds
        command = messages.ProbeCommand(
            batch_sizes=tuple(batch_sizes),
            usable_cpus=usable_cpus,
            memory_bytes=budgets.memory_bytes,
            max_workers=budgets.max_workers,
        )
        reply = self._give(command, "main", self._stall_seconds * MAX_PROBE_STALLS)
        if isinstance(reply, ProbeReport):
            self._profile = reply.profile
            if select_torch_variables(reply.environment):
                self.close()
                self._supervisor.close()  # what they have imported of torch did not read these variables
            self._supervisor.import_once(reply.libraries, reply.environment)
            if budgets.max_workers and "num_workers" not in reply.profile.fixed_settings:
                facts = {"profile": reply.profile, "digests": reply.digests}
                self._profile = self._probe_workers(reply.profile, command.model_copy(update=facts))
        is_late, self._probe_end = time.monotonic() >= self._probe_end, math.inf
        if isinstance(reply, ProbeReport) and self._profile is not None and not is_late:
            return self._profile
        output = "" if self._child is None else self._child.read_output()
        self.close()
        if is_late and not isinstance(reply, FailureReport):
            raise UsageError(
                f"Nothing could be tried: {self._workload.dataset} was not loaded and profiled after the "
                f"{format_seconds(max_seconds)} that --timeout had left for it. Allow more time; a script that "
                'trains when it is imported needs if __name__ == "__main__".'
            )
        raise diagnosis.start_error(reply, self._workload, output)

    def _probe_workers(self, profile: WorkloadProfile, command: messages.ProbeCommand) -> WorkloadProfile:
        """Have another process complete a profile; if it fails, the workload may still work without workers."""
        reply = self._give(command, "workers", self._stall_seconds * MAX_PROBE_STALLS)
        if isinstance(reply, ProbeReport):
            if reply.profile.shared_by_workers is not None:
                self.close()  # a trial without workers would read what workers have asked for
            return reply.profile
        self.close()
        failure = reply.error if isinstance(reply, FailureReport) else None
        if isinstance(reply, TrialFailure):
            if reply.status not in CODE_FAILURES:
                note = f"The data of workers was not checked: the process that started them {reply.message}."
                return profile.model_copy(update={"notes": (*profile.notes, note)})
            failure = reply.message
        return profile.model_copy(update={"worker_failure": failure})

    def run(self, request: TrialRequest) -> TrialResult:
        """Run one trial; a child that failed is ended with its whole tree, and the next trial gets a new one.

        Raises TrialError if the machine does not allow it, or has lost its device, and a lost KeyboardInterrupt.
        """
        raise_lost_interrupt()
        if request.new_process or self._ranks != self._workload.nproc_per_node:
            self.close()
        self._ranks = self._workload.nproc_per_node
        budgeted = request.model_copy(update={"gpu_bytes": self._limits.gpu_bytes})
        role: Role = "workers" if request.config.dataloader.num_workers else "main"
        reply = self._give(budgeted, role, request.seconds * MAX_TRIAL_OVERHEAD + self._stall_seconds)
        child = self._child
        assert child is not None
        output = child.read_output() if isinstance(reply, FailureReport) else ""
        budgets = self._limits.for_ranks(self._ranks)
        result = diagnosis.make_result(request, reply, child.monitor.peak, budgets, child.batches, output, self._ranks)
        if result.status == "completed":
            child.send(messages.ReleaseCommand())  # its workers are shut down while others go on
            self._is_releasing = True
        else:
            self.close()
        if result.status == "device_lost":
            raise TrialError(f"Trials can no longer be run: the last one {result.message}.", result.details)
        return result

    def _give(self, command: messages.Command, role: Role, deadline_seconds: float) -> Reply:
        """Have a child of this role carry out a command; role workers turns into role main, and never back."""
        if role == "workers" and self._role == "main":
            self.close()
        if self._child is not None and self._is_releasing:
            released = self._child.receive(self._watch(MAX_RELEASE_SECONDS, MAX_RELEASE_SECONDS))
            if not isinstance(released, messages.ReadyReport):
                self.close()
        self._is_releasing = False
        self._role = role
        if self._child is None:
            began = time.monotonic()
            folder = self._workload.working_dir
            try:
                self._child = TrialProcess(self._supervisor, folder, self.progress)
            except OSError as error:  # no space for a folder, no process left
                where = f" ({error.filename})" if error.filename is not None else ""
                raise TrialError(f"Trials can no longer be run: {error.strerror or error}{where}.") from None
            load = messages.LoadCommand(workload=self._workload, ranks=self._ranks, known=self._profile)
            reply = self._child.command(load, self._watch(math.inf, self._stall_seconds * MAX_LOAD_STALLS))
            if self._has_lost_device(reply):
                return TrialFailure("device_lost", "lost its device: torch no longer finds it. Look at nvidia-smi")
            if not isinstance(reply, messages.ReadyReport):
                return reply
            self.start_seconds = time.monotonic() - began
        patience_seconds = max(STALL_SHARE * (self._end - time.monotonic()), MIN_STALL_SECONDS)
        return self._child.command(command, self._watch(deadline_seconds, min(self._stall_seconds, patience_seconds)))

    def _has_lost_device(self, reply: Reply) -> bool:
        """Return whether a new process found no accelerator, which that of the profile had: it would use the CPU."""
        if self._profile is None or self._profile.accelerator is None:
            return False
        if isinstance(reply, messages.ReadyReport):
            return not reply.on_device
        return isinstance(reply, FailureReport) and reply.stage == "device"

    def _watch(self, deadline_seconds: float, stall_seconds: float) -> Limits:
        left_seconds = max(0.0, self._probe_end - time.monotonic())
        budgets = self._limits.for_ranks(self._ranks)
        return Limits(budgets, stall_seconds, min(deadline_seconds, left_seconds))


def describe_survivors(pids: Sequence[int]) -> str:
    """Describe the processes of a trial that could not be killed, with the next step."""
    names = ", ".join(f"{pid} ({read_text(PROC / str(pid) / 'comm').strip() or 'unknown'})" for pid in pids)
    return (
        f"Processes of a trial are still running after SIGKILL: {names}. They wait for a disk or a network, or run as "
        f"another user, and may disturb the measurements. Before training: kill -9 {' '.join(map(str, pids))}"
    )
