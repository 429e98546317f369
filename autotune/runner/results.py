"""Turns the answer of a trial's process, and what was seen of it meanwhile, into the result of the trial."""

from __future__ import annotations

from typing import Any

from autotune.protocol.budgets import DEVICE_MEMORY, Budgets
from autotune.protocol.measurement import TrialResult
from autotune.protocol.messages import FailureReport, Report, TrialReport, TrialRequest
from autotune.runner.diagnosis import TrialFailure, diagnose_error, reclassify_oom_kill
from autotune.runner.resources import ResourceUsage

Answer = Report | TrialFailure


def make_result(
    request: TrialRequest,
    answer: Answer,
    peak: ResourceUsage,
    budgets: Budgets,
    batches: int,
    output: str,
    ranks: int = 1,
) -> TrialResult:
    """Tell what became of a trial that last said to be after so many batches, and printed `output` at its end.

    What all of its ranks used is divided by them: what is told of a trial is told of one training process.
    """
    share = peak.share(ranks)
    seen = {"peak_host_bytes": share.host_bytes, "peak_shm_bytes": share.shm_bytes}
    if isinstance(answer, TrialReport):
        result = TrialResult(kind="completed", config=request.config, measurement=answer.measurement, **seen)
    else:
        failure = reclassify_oom_kill(_diagnose(answer, peak, output), peak, budgets)
        result = TrialResult(
            kind=failure.kind,
            config=request.config,
            message=failure.message,
            details=failure.details,
            **seen,
            **_locate_failure(request, answer, batches),
        )
    return check_gpu_memory(result, budgets)


def _diagnose(answer: Answer, peak: ResourceUsage, output: str) -> TrialFailure:
    if isinstance(answer, FailureReport):
        return diagnose_error(answer, peak.describe_shm(), output).name_rank(answer.rank)
    if isinstance(answer, TrialFailure):
        return answer
    return TrialFailure("crashed", f"was answered out of turn ({type(answer).__name__})")


def _locate_failure(request: TrialRequest, answer: Answer, batches: int) -> dict[str, Any]:
    """Tell how far a failed trial came: what the child tells, or what it told before it died."""
    if isinstance(answer, FailureReport):
        return {"samples": answer.samples, "in_step": answer.where == "running step", "index": answer.index}
    return {"samples": (batches + 1) * (request.config.dataloader.batch_size or 1)}


def check_gpu_memory(result: TrialResult, budgets: Budgets) -> TrialResult:
    """Turn a trial whose allocator went over the device's budget into a failure with the number against the limit."""
    budget = budgets.gpu_bytes
    used = result.measurement.peak_gpu_bytes if result.measurement is not None else 0
    if budget is None or used <= budget:
        return result
    message = DEVICE_MEMORY.describe_excess(used, budget)
    return result.model_copy(update={"kind": DEVICE_MEMORY.outcome, "measurement": None, "message": message})
