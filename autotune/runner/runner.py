"""Gives trials to a child, warm or fresh, and turns what comes back into results with a named kind."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Self

from autotune.errors import UsageError, WorkloadError
from autotune.progress import ProgressListener
from autotune.request import TuningRequest, WorkloadRequest
from autotune.runner.failures import TrialFailure, advice_for, diagnose_error
from autotune.runner.process import OnProgress, OnWarning, TrialProcess, Usage
from autotune.runner.sandbox import SandboxSupport, detect_sandbox
from autotune.runner.watchdog import Watchdog
from autotune.system.machine import read_machine
from autotune.trial.budgets import Budgets
from autotune.trial.measurement import CODE_FAILURES, TrialResult
from autotune.trial.protocol import (
    WORKER_PHASE,
    FailureReport,
    LoadCommand,
    ProbeCommand,
    ProbeReport,
    ProgressReport,
    ReadyReport,
    ReleaseCommand,
    Report,
    TrialCommand,
    TrialReport,
    TrialRequest,
)
from autotune.trial.resources import DEVICE_MEMORY
from autotune.trial.workload_profile import WorkloadProfile
from autotune.units import format_bytes, format_seconds

RELEASE_SECONDS: Final = 15.0  # hung workers are joined for 5 s each; rather end the child
EXIT_HINT: Final = (
    "\nSomething called sys.exit(): code at the top of a module that reads sys.argv, perhaps. "
    'Guard it with if __name__ == "__main__".'
)
SANDBOX_ERROR_PREFIX: Final = "isolation: "  # how trial_host says that its walls could not be put up
TRIAL_OVERHEAD: Final = 4.0  # of the trial's seconds: starting workers, draining, a last batch


class TrialRunner:
    """Runs trials of one workload in child processes.

    Use it as a context manager; leaving it ends every process it started.

    Args:
        workload: What the child loads.
        stall_seconds: Most seconds without progress.
        on_progress: Called with what the child reports while it works.
        containment: Walls to put up around each child; None for all that this machine allows.
        on_warning: Called with a sentence when processes of a trial cannot be ended.
    """

    def __init__(
        self,
        workload: WorkloadRequest,
        stall_seconds: float,
        on_progress: OnProgress = lambda progress: None,
        containment: SandboxSupport | None = None,
        on_warning: OnWarning = lambda sentence: None,
    ) -> None:
        self._workload = workload
        self._containment = detect_sandbox() if containment is None else containment
        self._stall_seconds = stall_seconds
        self._on_progress = on_progress
        self._on_warning = on_warning
        self._phase = ""
        self._batches = 0
        self._child: TrialProcess | None = None
        self._is_releasing = False
        self._limits: Budgets | None = None
        self._probe_end = math.inf
        self.start_seconds: float | None = None  # what the last start of a process and of its dataset took

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
        self._is_releasing = False

    def probe(
        self,
        sizes: Sequence[int],
        budgets: Budgets,
        usable_cpus: float | None = None,
        most_seconds: float = math.inf,
    ) -> WorkloadProfile:
        """Load the workload and profile it.

        Args:
            sizes: Batch sizes to measure with, where they can be set: the usual one, and the largest.
            budgets: Budgets.
            usable_cpus: CPUs that can be kept busy; None for those of this machine.
            most_seconds: What --timeout allows for it, in seconds.

        Returns:
            The profile.

        Raises:
            UsageError: The workload cannot be what the user meant: no such attribute, no such device; or --timeout
                allows too little.
            WorkloadError: The user's code raised, hung or died.
        """
        self._limits = budgets
        self._probe_end = time.monotonic() + most_seconds
        usable_cpus = read_machine().usable_cpus if usable_cpus is None else usable_cpus
        order = ProbeCommand(batch_size=sizes[0], largest=max(sizes), usable_cpus=usable_cpus)
        outcome = self._give_probe(order)
        failure = None
        if isinstance(outcome, TrialFailure) and self._phase == WORKER_PHASE:  # it may still work without workers
            failure = outcome.message if outcome.kind in CODE_FAILURES else None
            outcome = self._give_probe(order.model_copy(update={"with_workers": False}))
        is_late, self._probe_end = time.monotonic() >= self._probe_end, math.inf
        if isinstance(outcome, ProbeReport) and not is_late:
            return outcome.profile.model_copy(update={"worker_failure": failure})
        self.close()
        if is_late and not isinstance(outcome, FailureReport):
            raise UsageError(_describe_spent_time(most_seconds, self._workload.dataset))
        raise _explain_start(outcome, self._workload)

    def _give_probe(self, order: ProbeCommand) -> TrialProcess | Report | TrialFailure:
        outcome = self._obtain_child()
        if isinstance(outcome, TrialProcess):
            outcome = outcome.command(order, self._watch(self._stall_seconds * 4))
        if isinstance(outcome, TrialFailure):
            outcome = reclassify_oom_kill(outcome, self._usage, self._budgets)
            self.close()
        return outcome

    def _note_progress(self, progress: ProgressReport) -> None:
        self._phase, self._batches = progress.phase, progress.batches
        self._on_progress(progress)

    def run(self, request: TrialRequest) -> TrialResult:
        """Run one trial.

        Args:
            request: What to measure.

        Returns:
            What became of it. A child that failed is ended with its whole tree; the next trial gets a new one.
        """
        started = time.monotonic()
        self._batches = 0
        if request.fresh:
            self.close()
        outcome = self._obtain_child()
        if isinstance(outcome, TrialProcess):
            deadline = request.seconds * TRIAL_OVERHEAD + self._stall_seconds
            budgeted = request.model_copy(update={"gpu_bytes": self._budgets.gpu_bytes})
            outcome = outcome.command(TrialCommand(trial=budgeted), self._watch(deadline))
        output = self._child.read_output() if self._child is not None and isinstance(outcome, FailureReport) else ""
        result = _make_result(request, outcome, self._usage, self._budgets, output)
        result = check_gpu_memory(self._count_samples(result, outcome), self._budgets)
        self._wind_down(result)
        return result.model_copy(update={"seconds": time.monotonic() - started})

    def _count_samples(self, result: TrialResult, outcome: TrialProcess | Report | TrialFailure) -> TrialResult:
        """Add how far a failed trial came: what the child tells, or what it told before it died."""
        if isinstance(outcome, FailureReport):
            in_step = outcome.where == "running step"
            return result.model_copy(update={"samples": outcome.samples, "in_step": in_step, "index": outcome.index})
        if result.measurement is not None:
            return result
        return result.model_copy(update={"samples": (self._batches + 1) * (result.config.dataloader.batch_size or 1)})

    @property
    def _budgets(self) -> Budgets:
        assert self._limits is not None, "probe() or limit() comes first: walls are built for the limits"
        return self._limits

    @property
    def _usage(self) -> Usage:
        return Usage() if self._child is None else self._child.usage

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
            watch = self._watch(RELEASE_SECONDS).model_copy(update={"stall_seconds": RELEASE_SECONDS})
            if not isinstance(self._child.receive(watch), ReadyReport):
                self.close()
        self._is_releasing = False

    def _watch(self, deadline_seconds: float) -> Watchdog:
        most_seconds = min(deadline_seconds, max(0.0, self._probe_end - time.monotonic()))
        return Watchdog(budgets=self._budgets, stall_seconds=self._stall_seconds, deadline_seconds=most_seconds)

    def limit(self, budgets: Budgets) -> None:
        """Put other budgets in force for the trials to come."""
        self._limits = budgets

    def _obtain_child(self) -> TrialProcess | Report | TrialFailure:
        """Give the living child, or start one and have it load the workload."""
        self._await_release()
        if self._child is not None:
            return self._child
        began = time.monotonic()
        child = TrialProcess(
            self._workload.working_dir, self._budgets, self._containment, self._note_progress, self._on_warning
        )
        self._child = child
        answer = child.command(LoadCommand(workload=self._workload), self._watch(self._stall_seconds * 20))
        if (
            isinstance(answer, TrialFailure)
            and answer.details.startswith(SANDBOX_ERROR_PREFIX)
            and self._containment != SandboxSupport()
        ):
            self._containment = SandboxSupport()  # what could be put up a moment ago cannot any more
            self._child = None
            return self._obtain_child()
        if not isinstance(answer, ReadyReport):
            return answer
        self.start_seconds = time.monotonic() - began
        return child


@contextmanager
def start_runner(request: TuningRequest, progress: ProgressListener) -> Iterator[TrialRunner]:
    """Open what runs the trials of a request, in the sandbox that it asks for; leaving ends every process it started.

    Args:
        request: What to tune, and how.
        progress: Is told what happens.
    """
    sandbox = detect_sandbox() if request.isolation == "auto" else SandboxSupport()
    with TrialRunner(
        request.workload, request.stall_seconds, progress.show_progress, sandbox, progress.show_warning
    ) as runner:
        yield runner


def _describe_spent_time(seconds: float, dataset: str) -> str:
    return (
        f"Nothing could be tried: {dataset} was not loaded and profiled after the {format_seconds(seconds)} that "
        "--timeout had left for it. Allow more time."
    )


def _make_result(
    request: TrialRequest, outcome: TrialProcess | Report | TrialFailure, usage: Usage, budgets: Budgets, output: str
) -> TrialResult:
    seen = {"peak_host_bytes": usage.host_bytes, "peak_shm_bytes": usage.shm_bytes}
    if isinstance(outcome, TrialReport):
        return TrialResult(kind="completed", config=request.config, measurement=outcome.measurement, **seen)
    death = diagnose_error(outcome, usage.describe_shm(), output) if isinstance(outcome, FailureReport) else outcome
    if not isinstance(death, TrialFailure):
        death = TrialFailure(kind="crashed", message=f"was answered out of turn ({type(outcome).__name__})")
    death = reclassify_oom_kill(death, usage, budgets)
    return TrialResult(kind=death.kind, config=request.config, message=death.message, details=death.details, **seen)


def reclassify_oom_kill(death: TrialFailure, usage: Usage, budgets: Budgets) -> TrialFailure:
    """Let a kernel that killed for memory explain what looks like a lost process or a hang.

    Args:
        death: What the trial's end looked like.
        usage: What was counted meanwhile.
        budgets: Budgets.

    Returns:
        The same, or an `out_of_memory` one.
    """
    if not usage.oom_kills or death.kind not in ("crashed", "stalled", "workload_failed"):
        return death
    seen = f" at {format_bytes(usage.host_bytes)} of host memory" if usage.host_bytes else ""
    budget = format_bytes(budgets.memory_bytes)
    message = f"was struck by the kernel's out-of-memory killer{seen}, against a budget of {budget}"
    return death.model_copy(update={"kind": "out_of_memory", "message": message})


def check_gpu_memory(result: TrialResult, budgets: Budgets) -> TrialResult:
    """Turn a trial whose allocator went over the device's budget into a failure.

    Args:
        result: What became of the trial.
        budgets: Budgets.

    Returns:
        The result, or an `out_of_memory` one with the number against the limit.
    """
    budget = budgets.gpu_bytes
    used = result.measurement.peak_gpu_bytes if result.measurement is not None else 0
    if budget is None or used <= budget:
        return result
    message = DEVICE_MEMORY.describe_excess(used, budget)
    return result.model_copy(update={"kind": DEVICE_MEMORY.outcome, "measurement": None, "message": message})


def _explain_start(
    outcome: TrialProcess | Report | TrialFailure, workload: WorkloadRequest
) -> UsageError | WorkloadError:
    """Say why the workload could not be loaded or profiled, in the words the user needs."""
    if isinstance(outcome, FailureReport):
        return _explain_failure(outcome, workload)
    if not isinstance(outcome, TrialFailure):
        return WorkloadError(f"{workload.dataset}: its process answered out of turn ({type(outcome).__name__}).")
    source = f"While {workload.dataset} was loaded and profiled, its process"
    advice = {
        "timed_out": " If it needs longer, allow it with --stall-time.",
        "out_of_memory": " Give it more with --max-memory, or make the dataset smaller.",
    }.get(outcome.kind, "")
    return WorkloadError(f"{source} {outcome.message}.{advice}", outcome.details)


def _explain_failure(failed: FailureReport, workload: WorkloadRequest) -> UsageError | WorkloadError:
    words = "\n".join(filter(None, (failed.error, advice_for(failed.error))))
    kind, _, text = words.partition(": ")
    if kind.rpartition(".")[2] == "UsageError":
        return UsageError(text)
    if kind.rpartition(".")[2] == "WorkloadError":
        return WorkloadError(text)
    hint = EXIT_HINT if kind == "SystemExit" else ""
    if failed.where == "running step":
        source = f"The training step ({workload.describe_step()}) failed on a batch"
        return WorkloadError(f"{source}: {words}", failed.details)
    if failed.where == "step":
        source = f"The step factory {workload.step}"
    elif failed.where == "dataset":
        source = f"The dataset factory {workload.dataset}"
    else:
        source = f"Loading the first batches of {workload.dataset} in the training process"
    return WorkloadError(f"{source} failed: {words}{hint}", failed.details)
