"""Gives trials to a child, warm or fresh, and turns what comes back into results with a named kind."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

from autotune.child import Child, OnProgress, Usage
from autotune.errors import UsageError, WorkloadError
from autotune.limits import Limits
from autotune.messages import (
    WORKER_PHASE,
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
    TrialRequest,
    TrialResult,
    WorkloadProfile,
)
from autotune.request import WorkloadRequest
from autotune.units import format_bytes
from autotune.verdicts import Death, judge_failure
from autotune.watchdog import Watch

RELEASE_SECONDS: Final = 15.0  # hung workers are joined for 5 s each; rather end the child
EXIT_HINT: Final = (
    "\nSomething called sys.exit(): code at the top of a module that reads sys.argv, perhaps. "
    'Guard it with if __name__ == "__main__".'
)
TRIAL_OVERHEAD: Final = 4.0  # of the trial's seconds: starting workers, draining, a last batch


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
        self._phase = ""
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
        order = Probe(batch_size=sizes[0], largest=max(sizes))
        outcome = self._give_probe(order)
        if isinstance(outcome, Death) and self._phase == WORKER_PHASE:  # it may still work without workers
            outcome = self._give_probe(order.model_copy(update={"with_workers": False}))
        if isinstance(outcome, Probed):
            return outcome.profile
        self.close()
        raise _explain_start(outcome, self._workload)

    def _give_probe(self, order: Probe) -> Child | Report | Death:
        outcome = self._obtain_child()
        if isinstance(outcome, Child):
            outcome = outcome.command(order, self._watch(self._stall_seconds * 4))
        if isinstance(outcome, Death):
            self.close()
        return outcome

    def _note_progress(self, progress: Progress) -> None:
        self._phase = progress.phase
        self._on_progress(progress)

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
        result = check_gpu_memory(_make_result(request, outcome, usage), self._limits)
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
        child = Child(self._workload.working_dir, self._note_progress)
        self._child = child
        answer = child.command(Hello(workload=self._workload), self._watch(self._stall_seconds * 20))
        return child if isinstance(answer, Ready) else answer


def _make_result(request: TrialRequest, outcome: Child | Report | Death, usage: Usage) -> TrialResult:
    seen = {"peak_host_bytes": usage.host_bytes, "peak_shm_bytes": usage.shm_bytes}
    if isinstance(outcome, Measured):
        return TrialResult(kind="completed", config=request.config, measurement=outcome.measurement, **seen)
    death = judge_failure(outcome, usage.describe_shm()) if isinstance(outcome, Failed) else outcome
    if not isinstance(death, Death):
        death = Death(kind="crashed", message=f"was answered out of turn ({type(outcome).__name__})")
    return TrialResult(kind=death.kind, config=request.config, message=death.message, details=death.details, **seen)


def check_gpu_memory(result: TrialResult, limits: Limits | None) -> TrialResult:
    """Turn a trial whose allocator went over the device's budget into a failure.

    Args:
        result: What became of the trial.
        limits: Budgets; None where none were set.

    Returns:
        The result, or an `out_of_memory` one with the number against the limit.
    """
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
    if not isinstance(outcome, Death):
        return WorkloadError(f"{workload.dataset}: its process answered out of turn ({type(outcome).__name__}).")
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
    hint = EXIT_HINT if kind == "SystemExit" else ""
    if failed.where == "running step":
        source = f"The training step ({workload.describe_step()}) failed on a batch"
        return WorkloadError(f"{source}: {failed.error}", failed.details)
    if failed.where == "step":
        source = f"The step factory {workload.step}"
    elif failed.where == "dataset":
        source = f"The dataset factory {workload.dataset}"
    else:
        source = f"Loading the first batches of {workload.dataset} in the training process"
    return WorkloadError(f"{source} failed: {failed.error}{hint}", failed.details)
