"""Gives trials to a child, warm or fresh, and ends it when it fails."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Final, Self

from autotune.progress import ProgressListener
from autotune.protocol.budgets import Budgets
from autotune.protocol.measurement import CODE_FAILURES, TrialResult
from autotune.protocol.messages import (
    WORKER_PHASE,
    Command,
    FailureReport,
    IdentifyCommand,
    IdentityReport,
    LoadCommand,
    ProbeCommand,
    ProbeReport,
    ProgressReport,
    ReadyReport,
    ReleaseCommand,
    TracesReport,
    TrialCommand,
    TrialRequest,
)
from autotune.protocol.process_spec import SANDBOX_ERROR_PREFIX
from autotune.protocol.workload_profile import WorkloadProfile
from autotune.request import TuningRequest, WorkloadRequest
from autotune.runner.diagnosis import (
    Answer,
    TrialFailure,
    make_result,
    reclassify_oom_kill,
    start_error,
    timeout_error,
)
from autotune.runner.launcher import Starter
from autotune.runner.process import OnProgress, OnWarning, TrialProcess
from autotune.runner.resources import ResourceUsage
from autotune.runner.sandbox import SandboxSupport, detect_sandbox
from autotune.runner.watchdog import Watchdog
from autotune.system.machine import read_machine

MAX_RELEASE_SECONDS: Final = 15.0  # hung workers are joined for 5 s each; rather end the child
MAX_PROBE_STALLS: Final = 4.0  # times the stall time: what a probe may take
MAX_LOAD_STALLS: Final = 20.0  # what importing torch and calling the dataset's factory may take
MAX_TRIAL_OVERHEAD: Final = 4.0  # times the trial's seconds: starting workers, draining, a last batch


class TrialRunner:
    """Runs trials of one workload in child processes; leaving its context ends every process that it started.

    Without a given sandbox, each child gets as much of one as this machine allows. `on_warning` is called with a
    sentence when processes of a trial cannot be ended.
    """

    def __init__(
        self,
        workload: WorkloadRequest,
        stall_seconds: float,
        on_progress: OnProgress = lambda progress: None,
        sandbox: SandboxSupport | None = None,
        on_warning: OnWarning = lambda sentence: None,
        starter: Starter | None = None,
    ) -> None:
        self.start_seconds: float | None = None  # what the last start of a process and of its dataset took
        self._workload = workload
        self._sandbox = detect_sandbox() if sandbox is None else sandbox
        self._stall_seconds = stall_seconds
        self._on_progress = on_progress
        self._on_warning = on_warning
        self._starter = starter or Starter(workload.working_dir)
        self._child: TrialProcess | None = None
        self._is_releasing = False
        self._limits: Budgets | None = None
        self._probe_end = math.inf
        self._ranks = 1
        self._may_warm_up = True
        self._phase = ""
        self._batches = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        finally:
            self._starter.close()

    def close(self) -> None:
        """End the child, if there is one, and everything it started."""
        if self._child is not None:
            self._child.end()
            self._child = None
        self._is_releasing = False

    def limit(self, budgets: Budgets) -> None:
        """Put other budgets in force for the trials to come, those of one training process."""
        self._limits = budgets

    def probe(
        self,
        sizes: Sequence[int],
        budgets: Budgets,
        usable_cpus: float | None = None,
        max_seconds: float = math.inf,
    ) -> WorkloadProfile:
        """Load the workload and profile it with two batch sizes, where they can be set: the usual and the largest.

        It is looked at in one training process, be there several in trials.

        Raises:
            UsageError: The workload cannot be what the user meant: no such attribute, no such device; or `max_seconds`,
                which --timeout allows, are too few.
            WorkloadError: The user's code raised, hung or died.
        """
        self._limits, self._ranks = budgets, 1
        self._probe_end = time.monotonic() + max_seconds
        usable_cpus = read_machine().usable_cpus if usable_cpus is None else usable_cpus
        command = ProbeCommand(
            batch_size=sizes[0],
            largest=max(sizes),
            usable_cpus=usable_cpus,
        )
        answer = self._give_probe(command)
        if isinstance(answer, TracesReport):
            self.close()
            self._may_warm_up = False
            command = command.model_copy(update={"traces": answer.traces})
            answer = self._give_probe(command)
        worker_failure = None
        if isinstance(answer, TrialFailure) and self._phase == WORKER_PHASE:  # it may still work without workers
            worker_failure = answer.message if answer.kind in CODE_FAILURES else None
            answer = self._give_probe(command.model_copy(update={"with_workers": False}))
        is_late, self._probe_end = time.monotonic() >= self._probe_end, math.inf
        if isinstance(answer, ProbeReport) and not is_late:
            if answer.profile.leaves_traces:
                self.close()
            return answer.profile.model_copy(update={"worker_failure": worker_failure})
        self.close()
        if is_late and not isinstance(answer, FailureReport):
            raise timeout_error(max_seconds, self._workload)
        raise start_error(answer, self._workload)

    def identify(self, batch_size: int, budgets: Budgets) -> IdentityReport:
        """Load the workload and a few batches, and tell which workload it is; raises what `probe` raises."""
        self._limits, self._ranks = budgets, 1
        answer = self._give_probe(IdentifyCommand(batch_size=batch_size))
        if isinstance(answer, IdentityReport):
            return answer
        self.close()
        raise start_error(answer, self._workload)

    def _give_probe(self, command: ProbeCommand | IdentifyCommand) -> Answer:
        answer = self._give(command, self._stall_seconds * MAX_PROBE_STALLS)
        if isinstance(answer, TrialFailure):
            answer = reclassify_oom_kill(answer, self._peak, self._budgets)
            self.close()
        return answer

    def run(self, request: TrialRequest) -> TrialResult:
        """Run one trial; a child that failed is ended with its whole tree, and the next trial gets a new one."""
        started = time.monotonic()
        self._batches = 0
        if request.fresh or self._ranks != self._workload.nproc_per_node:
            self.close()
        self._ranks = self._workload.nproc_per_node
        budgeted = request.model_copy(update={"gpu_bytes": self._budgets.gpu_bytes})
        answer = self._give(TrialCommand(trial=budgeted), request.seconds * MAX_TRIAL_OVERHEAD + self._stall_seconds)
        output = self._child.read_output() if self._child is not None and isinstance(answer, FailureReport) else ""
        result = make_result(request, answer, self._peak, self._budgets, self._batches, output, self._ranks)
        self._wind_down(result)
        return result.model_copy(update={"seconds": time.monotonic() - started})

    def _give(self, command: Command, deadline_seconds: float) -> Answer:
        """Have the child, the living one or a new one, carry a command out."""
        self._await_release()
        if self._child is None:
            started = self._start_child()
            if not isinstance(started, ReadyReport):
                return started
        assert self._child is not None
        return self._child.command(command, self._watch(deadline_seconds))

    def _start_child(self) -> Answer:
        """Start a child and have it load the workload."""
        began = time.monotonic()
        child = self._child = TrialProcess(
            self._starter, self._budgets, self._sandbox, self._note_progress, self._on_warning
        )
        order = LoadCommand(workload=self._workload, warm_up=self._may_warm_up, ranks=self._ranks)
        answer = child.command(order, self._watch(self._stall_seconds * MAX_LOAD_STALLS))
        if isinstance(answer, ReadyReport):
            self.start_seconds = time.monotonic() - began
        elif self._sandbox != SandboxSupport() and _is_sandbox_error(answer):
            self._sandbox = SandboxSupport()  # what could be put up a moment ago cannot any more
            return self._start_child()
        return answer

    def _wind_down(self, result: TrialResult) -> None:
        """Have the workers taken down while others go on; a child that failed is ended."""
        if self._child is None:
            return
        if result.kind == "completed":
            self._child.send(ReleaseCommand())
            self._is_releasing = True
        else:
            self.close()

    def _await_release(self) -> None:
        """Wait until the workers of the trial before are down; a child that does not let go of them is ended."""
        if self._child is not None and self._is_releasing:
            watchdog = replace(self._watch(MAX_RELEASE_SECONDS), stall_seconds=MAX_RELEASE_SECONDS)
            if not isinstance(self._child.receive(watchdog), ReadyReport):
                self.close()
        self._is_releasing = False

    def _watch(self, deadline_seconds: float) -> Watchdog:
        left_seconds = max(0.0, self._probe_end - time.monotonic())
        return Watchdog(self._budgets, self._stall_seconds, min(deadline_seconds, left_seconds))

    def _note_progress(self, progress: ProgressReport) -> None:
        self._phase, self._batches = progress.phase, progress.batches
        self._on_progress(progress)

    @property
    def _budgets(self) -> Budgets:
        assert self._limits is not None, "probe() or limit() comes first: a sandbox is built for the budgets"
        return self._limits.of_all(self._ranks)

    @property
    def _peak(self) -> ResourceUsage:
        return ResourceUsage() if self._child is None else self._child.peak


def _is_sandbox_error(answer: Answer) -> bool:
    return isinstance(answer, TrialFailure) and answer.details.startswith(SANDBOX_ERROR_PREFIX)


@contextmanager
def start_runner(
    request: TuningRequest, progress: ProgressListener, starter: Starter | None = None
) -> Iterator[TrialRunner]:
    """Open the runner of a request's trials, in the sandbox that the request asks for."""
    workload, stall_seconds = request.workload, request.stall_seconds
    sandbox = detect_sandbox() if request.isolation == "auto" else SandboxSupport()
    with TrialRunner(
        workload, stall_seconds, progress.show_progress, sandbox, progress.show_warning, starter
    ) as runner:
        yield runner
