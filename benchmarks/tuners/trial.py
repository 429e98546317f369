"""What does one fresh trial predict, made exactly as dltune's confirmation makes it?"""

from __future__ import annotations

import math
from typing import Final

from autotune.config import LoaderConfig
from autotune.request import TuningRequest, WorkloadRequest
from autotune.runner.runner import TrialRunner
from autotune.system.machine import read_machine
from autotune.trial.budgets import plan_budgets
from autotune.trial.measurement import TrialResult
from autotune.trial.protocol import TrialRequest
from autotune.trial.throughput import estimate
from autotune.validation.runs import VALIDATION_PRECISION
from benchmarks.records import Prediction
from benchmarks.workloads.workload import BenchWorkload

ROOT_FOLDER: Final = "."  # from which the benchmarks are started; import strings are resolved there


def make_request(workload: BenchWorkload, seed: int = 0) -> TuningRequest:
    """Make the request that the command line would make of this workload's options."""
    request = TuningRequest(
        workload=WorkloadRequest(
            dataset=workload.dataset,
            dataset_args=workload.dataset_args,
            step=workload.step,
            step_seconds=None if workload.step else workload.step_seconds,
            device=workload.device or "auto",
            working_dir=ROOT_FOLDER,
        ),
        batch_sizes=(workload.batch_size,),
        epochs=workload.epochs,
        seed=seed,
    )
    if workload.trial_seconds is None:
        return request
    return request.model_copy(update={"trial_seconds": workload.trial_seconds})


def predict(workload: BenchWorkload, config: LoaderConfig, epochs: int) -> Prediction:
    """Predict a whole run of so many epochs; a prediction that failed says why."""
    request = make_request(workload)
    trial = TrialRequest(
        config=config,
        epochs=epochs,
        seconds=request.trial_seconds,
        precision=VALIDATION_PRECISION,
        fresh=True,
    )
    with TrialRunner(request.workload, request.stall_seconds) as runner:
        runner.limit(plan_budgets(read_machine(), request))
        return _describe(runner.run(trial), epochs)


def _describe(result: TrialResult, epochs: int) -> Prediction:
    if result.measurement is None:
        return Prediction(seconds=result.seconds, failure=f"{result.kind}: it {result.message}")
    found = estimate(result.measurement, result.config, epochs)
    return Prediction(
        samples_per_second=found.samples_per_second,
        relative_error=found.relative_error if math.isfinite(found.relative_error) else None,
        seconds=result.seconds,
        stopped=result.measurement.stopped,
        epoch_seconds=tuple(trace.end_seconds for trace in result.measurement.epochs),
        epoch_batches=tuple(trace.batches for trace in result.measurement.epochs),
    )
