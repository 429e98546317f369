"""One prediction: a fresh trial exactly as dltune's confirmation makes it."""

from __future__ import annotations

import math
from typing import Final

from autotune.config import LoaderConfig
from autotune.confirm.confirmation import CONFIRM_FACTOR, CONFIRM_PRECISION
from autotune.request import TuningRequest, WorkloadRequest
from autotune.runner.runner import TrialRunner
from autotune.system.machine import read_machine
from autotune.trial.budgets import plan_budgets
from autotune.trial.measurement import TrialResult
from autotune.trial.protocol import TrialRequest
from autotune.trial.throughput import estimate
from benchmarks.records import Prediction
from benchmarks.workloads import BenchWorkload

ROOT_FOLDER: Final = "."  # from which the suite is started; import strings are resolved there


def make_request(workload: BenchWorkload, seed: int = 0) -> TuningRequest:
    """Make the request that the command line would make of this workload's options."""
    return TuningRequest(
        workload=WorkloadRequest(
            dataset=workload.dataset,
            step=workload.step,
            step_seconds=None if workload.step else workload.step_seconds,
            working_dir=ROOT_FOLDER,
        ),
        batch_sizes=(workload.batch_size,),
        epochs=workload.epochs,
        seed=seed,
    )


def predict(workload: BenchWorkload, config: LoaderConfig, epochs: int) -> Prediction:
    """Predict a whole run by one trial in a fresh process.

    Args:
        workload: What is trained on.
        config: The configuration.
        epochs: Length of the run in epochs.

    Returns:
        The prediction; one that failed says why.
    """
    return predict_run(make_request(workload), config, epochs)


def predict_run(request: TuningRequest, config: LoaderConfig, epochs: int) -> Prediction:
    """Predict a whole run of what a request names by one trial in a fresh process.

    Args:
        request: What is trained on, and how long a trial is.
        config: The configuration.
        epochs: Length of the run in epochs.

    Returns:
        The prediction; one that failed says why.
    """
    trial = TrialRequest(
        config=config,
        epochs=epochs,
        seconds=CONFIRM_FACTOR * request.trial_seconds,
        precision=CONFIRM_PRECISION,
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
