"""How the answer of a profile was found, and what it rests on."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from autotune.config import (
    BoundedBytes,
    BoundedCount,
    BoundedRate,
    BoundedSeconds,
    Configured,
    Fraction,
    FrozenModel,
    Product,
    Workers,
)


class PhaseTime(FrozenModel):
    """What a phase of a run spent its seconds on.

    Attributes:
        phase: `probe`, `search`, `confirmation` or `explanation`.
        starting: Starting processes, with their imports and the user's factory.
        warming_up: What a process pays once, before anything is timed.
        measuring: Trials themselves.
        taking_down: Ending workers and processes.
        own: Work of the tuner itself.
    """

    phase: str
    starting: BoundedSeconds = 0.0
    warming_up: BoundedSeconds = 0.0
    measuring: BoundedSeconds = 0.0
    taking_down: BoundedSeconds = 0.0
    own: BoundedSeconds = 0.0


class SearchRecord(FrozenModel):
    """How the configuration was found.

    Attributes:
        trials: The feasible, the infeasible and the skipped ones.
        feasible: Those that ran within the limits.
        infeasible: Those that broke a limit or failed.
        skipped: Those that were predicted to break a limit, and not started.
        sampler: What proposed them: `model`, or one of Optuna's samplers by name.
        seed: Seed of that sampler.
        study: Name of the study that holds them.
        seconds: Of the whole run so far.
        time_spent: Where the seconds of each phase went; empty in files of earlier versions.
        prediction_error: Median relative distance between the throughput predicted before a trial and the one it
            measured; None when nothing was measured.
        stopped: Why the search ended.
    """

    trials: BoundedCount
    feasible: BoundedCount
    infeasible: BoundedCount
    skipped: BoundedCount
    sampler: str
    seed: BoundedCount
    study: str
    seconds: BoundedSeconds
    time_spent: tuple[PhaseTime, ...] = ()
    prediction_error: BoundedRate | None = None
    stopped: str


class TrialSummary(Configured):
    """One line of the search, for people who ask why a configuration was not chosen.

    Attributes:
        config: What was tried.
        number: In the order in which it was tried, from 1.
        outcome: `stopped_early` when it could not become the best, `skipped` without a trial.
        samples_per_second: In the warm process of the search; None when it did not complete.
        relative_error: Half-width of the 95 % interval, as a share; None where unknown.
        expected_samples_per_second: What was expected of it beforehand.
        peak_host_bytes: Largest host memory seen; 0 when not sampled.
        peak_shm_bytes: Largest use of `/dev/shm` seen.
        reason: Why it failed or was skipped, in words; empty for others.
    """

    number: BoundedCount
    outcome: Literal["completed", "stopped_early", "skipped", "failed"]
    samples_per_second: BoundedRate | None = None
    relative_error: BoundedRate | None = None
    expected_samples_per_second: BoundedRate = 0.0
    peak_host_bytes: BoundedBytes = 0
    peak_shm_bytes: BoundedBytes = 0
    reason: str = ""


class ScalingPoint(FrozenModel):
    """What the model, corrected by the trials, expects at a number of workers.

    Attributes:
        num_workers: The number of workers, all else as in the answer.
        samples_per_second: What is expected.
        relative_error: One standard deviation, as a share.
    """

    num_workers: Workers
    samples_per_second: BoundedRate
    relative_error: BoundedRate


class BatchTimeBreakdown(FrozenModel):
    """Where the time of one batch goes, in seconds, at the tuned batch size, measured by the probe.

    Attributes:
        samples: In that batch; a mean where the workload makes its own.
        load: Fetching its samples, in one process.
        collate: Putting them together.
        transfer: From a worker to the training process.
        copy_seconds: From there to the device; 0 on the CPU.
        step: The training step.
    """

    samples: Annotated[int, Field(ge=1, le=2**63 - 1)]
    load: Product
    collate: Product
    transfer: Product
    copy_seconds: Product = 0.0
    step: Product


class SearchEvidence(FrozenModel):
    """What the answer rests on.

    Attributes:
        trials: Every trial of the search.
        scaling_curve: Throughput over the number of workers.
        batch_time: Where a batch's time goes; None where the probe could not tell.
        knob_importance: By how much the expected throughput varies along each knob, all else as in the answer, as a
            share of the sum over all knobs.
    """

    trials: tuple[TrialSummary, ...] = ()
    scaling_curve: tuple[ScalingPoint, ...] = ()
    batch_time: BatchTimeBreakdown | None = None
    knob_importance: dict[str, Fraction] = Field(default_factory=dict)
