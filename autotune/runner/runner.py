"""Gives trials to a child, warm or fresh, and ends it when it fails."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Final, Self

from autotune.errors import UsageError
from autotune.progress import ProgressListener
from autotune.protocol.budgets import Budgets
from autotune.protocol.measurement import CODE_FAILURES, TrialResult
from autotune.protocol.messages import (
    Command,
    FailureReport,
    IdentifyCommand,
    IdentityReport,
    LoadCommand,
    ProbeCommand,
    ProbeReport,
    ReadyReport,
    ReleaseCommand,
    Role,
    TrialRequest,
)
from autotune.protocol.workload_profile import WorkloadProfile
from autotune.request import TuningRequest, WorkloadRequest
from autotune.runner.diagnosis import Answer, TrialFailure, make_result, start_error
from autotune.runner.launcher import Launcher
from autotune.runner.process import OnProgress, OnWarning, TrialProcess
from autotune.runner.resources import Limits
from autotune.system.machine import read_machine
from autotune.units import format_seconds

MAX_RELEASE_SECONDS: Final = 15.0  # hung workers are joined for 5 s each; rather end the child
MAX_PROBE_STALLS: Final = 4.0  # times the stall time: a probe
MAX_LOAD_STALLS: Final = 20.0  # times the stall time: importing torch and calling the dataset's factory
MAX_TRIAL_OVERHEAD: Final = 4.0  # times the trial's seconds: starting workers, draining, a last batch


class TrialRunner:
    """Runs trials of one workload in child processes; leaving its context ends every process that it started.

    `on_warning` is called with a sentence when processes of a trial cannot be ended.
    """

    _limits: Budgets  # of one training process; `probe` or `limit` comes first

    def __init__(
        self,
        workload: WorkloadRequest,
        stall_seconds: float,
        on_progress: OnProgress = lambda progress: None,
        on_warning: OnWarning = lambda sentence: None,
        launcher: Launcher | None = None,
    ) -> None:
        self.start_seconds: float | None = None  # what the last start of a process and of its dataset took
        self._workload = workload
        self._stall_seconds = stall_seconds
        self._on_progress = on_progress
        self._on_warning = on_warning
        self._owns_launcher = launcher is None
        self._launcher = launcher or Launcher(workload.nproc_per_node)
        self._child: TrialProcess | None = None
        self._is_releasing = False
        self._probe_end = math.inf
        self._ranks = 1
        self._role: Role = "main"  # of the living child
        self._profile: WorkloadProfile | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.close()
        finally:
            if self._owns_launcher:
                self._launcher.close()

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
        self, sizes: Sequence[int], budgets: Budgets, usable_cpus: float | None = None, max_seconds: float = math.inf
    ) -> WorkloadProfile:
        """Load the workload and profile it with two batch sizes, if they can be set: the usual and the largest.

        One process reads the dataset itself, another one starts workers, unless there are none to search. Both are a
        single training process.

        Raises:
            UsageError: The workload cannot be what the user meant: no such attribute, no such device; or `max_seconds`,
                which --timeout allows, are too few.
            WorkloadError: The user's code raised, hung or died.
        """
        self._limits, self._ranks = budgets, 1
        self._probe_end = time.monotonic() + max_seconds
        usable_cpus = read_machine().usable_cpus if usable_cpus is None else usable_cpus
        command = ProbeCommand(batch_size=sizes[0], largest=max(sizes), usable_cpus=usable_cpus)
        answer = self._give(command, "main", self._stall_seconds * MAX_PROBE_STALLS)
        if isinstance(answer, ProbeReport):
            self._profile = answer.profile
            if budgets.max_workers and "num_workers" not in answer.profile.fixed_settings:
                facts = {"profile": answer.profile, "digests": answer.digests}
                self._profile = self._probe_workers(answer.profile, command.model_copy(update=facts))
        is_late, self._probe_end = time.monotonic() >= self._probe_end, math.inf
        if isinstance(answer, ProbeReport) and self._profile is not None and not is_late:
            return self._profile
        self.close()
        if is_late and not isinstance(answer, FailureReport):
            raise UsageError(
                f"Nothing could be tried: {self._workload.dataset} was not loaded and profiled after the "
                f"{format_seconds(max_seconds)} that --timeout had left for it. Allow more time."
            )
        raise start_error(answer, self._workload)

    def _probe_workers(self, profile: WorkloadProfile, command: ProbeCommand) -> WorkloadProfile:
        """Have another process complete a profile; if it fails, the workload may still work without workers."""
        answer = self._give(command, "workers", self._stall_seconds * MAX_PROBE_STALLS)
        if isinstance(answer, ProbeReport):
            return answer.profile
        self.close()
        failure = answer.error if isinstance(answer, FailureReport) else None
        if isinstance(answer, TrialFailure) and answer.kind in CODE_FAILURES:
            failure = answer.message
        return profile.model_copy(update={"worker_failure": failure})

    def identify(self, batch_size: int, budgets: Budgets) -> IdentityReport:
        """Load the workload and a few batches, and return its identity; raises what `probe` raises."""
        self._limits, self._ranks = budgets, 1
        command = IdentifyCommand(batch_size=batch_size)
        answer = self._give(command, "main", self._stall_seconds * MAX_PROBE_STALLS)
        if isinstance(answer, IdentityReport):
            return answer
        self.close()
        raise start_error(answer, self._workload)

    def run(self, request: TrialRequest) -> TrialResult:
        """Run one trial; a child that failed is ended with its whole tree, and the next trial gets a new one."""
        started = time.monotonic()
        if request.fresh or self._ranks != self._workload.nproc_per_node:
            self.close()
        self._ranks = self._workload.nproc_per_node
        budgeted = request.model_copy(update={"gpu_bytes": self._limits.gpu_bytes})
        role: Role = "workers" if request.config.dataloader.num_workers else "main"
        answer = self._give(budgeted, role, request.seconds * MAX_TRIAL_OVERHEAD + self._stall_seconds)
        child = self._child
        assert child is not None
        output = child.read_output() if isinstance(answer, FailureReport) else ""
        budgets = self._limits.for_ranks(self._ranks)
        result = make_result(request, answer, child.peak, budgets, child.batches, output, self._ranks)
        if result.kind == "completed":
            child.send(ReleaseCommand())  # its workers are shut down while others go on
            self._is_releasing = True
        else:
            self.close()
        return result.model_copy(update={"seconds": time.monotonic() - started})

    def _give(self, command: Command, role: Role, deadline_seconds: float) -> Answer:
        """Have a child of this role carry out a command; role workers turns into role main, and never back."""
        if role == "workers" and self._role == "main":
            self.close()
        if self._child is not None and self._is_releasing:
            released = self._child.receive(self._watch(MAX_RELEASE_SECONDS, MAX_RELEASE_SECONDS))
            if not isinstance(released, ReadyReport):
                self.close()
        self._is_releasing = False
        self._role = role
        if self._child is None:
            began = time.monotonic()
            self._child = TrialProcess(self._launcher, self._workload.working_dir, self._on_progress, self._on_warning)
            known = self._profile
            load = LoadCommand(
                workload=self._workload,
                role=role,
                ranks=self._ranks,
                counted_samples=known.counted_samples if known and self._ranks == 1 else None,  # ranks may divide them
                reads_worker_info=known is not None and known.reads_worker_info,
                ends_with_sampler=None if known is None else known.ends_with_sampler,
            )
            answer = self._child.command(load, self._watch(math.inf, self._stall_seconds * MAX_LOAD_STALLS))
            if not isinstance(answer, ReadyReport):
                return answer
            self.start_seconds = time.monotonic() - began
        return self._child.command(command, self._watch(deadline_seconds, self._stall_seconds))

    def _watch(self, deadline_seconds: float, stall_seconds: float) -> Limits:
        left_seconds = max(0.0, self._probe_end - time.monotonic())
        budgets = self._limits.for_ranks(self._ranks)
        return Limits(budgets, stall_seconds, min(deadline_seconds, left_seconds))


def start_runner(request: TuningRequest, progress: ProgressListener, launcher: Launcher | None = None) -> TrialRunner:
    """Open the runner of a request's trials."""
    workload, stall_seconds = request.workload, request.stall_seconds
    return TrialRunner(workload, stall_seconds, progress.show_progress, progress.show_warning, launcher)
