"""The schema of dltune.json. It stores raw measurements, from which medians and intervals can be derived."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import AwareDatetime, Field

from autotune.config import (
    BoundedBytes,
    BoundedCount,
    BoundedRate,
    BoundedSeconds,
    Configured,
    Fraction,
    FrozenModel,
    Interval,
    Workers,
)
from autotune.system.machine import Hardware, Software
from autotune.workload import join_title

SCHEMA_VERSION: Final = 1
ID_DIGITS: Final = 8  # of the hash that identifies a workload
Bottleneck = Literal["step", "cpu", "io", "transfer", "copy", "epoch"]
DatasetKind = Literal["map", "iterable"]
Phase = Literal["profiling", "search", "validation"]
TrialOutcome = Literal["completed", "stopped_early", "skipped", "failed"]


class WorkloadIdentity(FrozenModel):
    """The workload that a profile was tuned for.

    Attributes:
        dataset: Import string of the factory.
        dataset_args: Its keyword arguments.
        split: Name of one of several loaders or datasets that the factory returns.
        samples: Samples per epoch; None if an iterable dataset has no length.
        sample_bytes: Bytes of tensors per sample, mean.
        step: Import string of the step, `simulated 35.0 ms` or `built-in`.
        kind: `map` or `iterable`; a loader can shuffle only the former.
        loader_class: The user's own loader class or loader function; None for a plain DataLoader.
        loader_decides: Settings that this loader determines and does not accept.
        nproc_per_node: Training processes on the host, each with its own loader.
    """

    dataset: str
    dataset_args: dict[str, Any] = Field(default_factory=dict)
    split: str | None = None
    samples: BoundedCount | None
    sample_bytes: BoundedBytes
    step: str
    kind: DatasetKind = "map"
    loader_class: str | None = None
    loader_decides: tuple[str, ...] = ()
    nproc_per_node: Annotated[int, Field(ge=1, le=2**31)] = 1

    @property
    def title(self) -> str:
        """Name of the workload in reports."""
        return join_title(self.dataset, self.split)

    @property
    def id(self) -> str:
        """Hash of dataset, arguments, split, step and number of processes."""
        named = [self.dataset, self.dataset_args, self.split, self.step, self.nproc_per_node]
        return hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()[:ID_DIGITS]

    @property
    def has_loader_function(self) -> bool:
        """Whether a function of the settings makes its loader, not a class."""
        return self.loader_class is not None and ":" in self.loader_class

    def accepted(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings that the user's own loader accepts."""
        return {name: value for name, value in settings.items() if name not in self.loader_decides}


class Baseline(Configured):
    """The configuration that the recommended one is compared with.

    Attributes:
        config: Its settings.
        description: Its name, such as `PyTorch's defaults`.
        samples_per_second: Its throughput in the validation, median.
        wait_share: Share of its time that the training loop waits for data.
    """

    description: str
    samples_per_second: BoundedRate
    wait_share: Fraction


class Contribution(FrozenModel):
    """Contribution of one or a few settings to the throughput.

    Attributes:
        setting: The setting, such as `num_workers=4`.
        samples_per_second: Throughput with it.
        speedup: Throughput over the configuration without it.
        speedup_ci95: Its 95% interval; None if unknown.
        is_estimate: Whether the model estimated it from the trials of the search.
    """

    setting: str
    samples_per_second: BoundedRate
    speedup: BoundedRate
    speedup_ci95: Interval | None = None
    is_estimate: bool = False


class ValidationRun(FrozenModel):
    """One measurement in a fresh process.

    Attributes:
        number: Number of the run; candidates with the same number ran next to each other.
        samples_per_second: Measured throughput.
    """

    number: Annotated[BoundedCount, Field(ge=1)]
    samples_per_second: BoundedRate


class CandidateResult(Configured):
    """Raw measurements of one configuration in the validation.

    Attributes:
        config: Its settings.
        runs: Runs that completed.
        failures: Failed runs, in words.
    """

    runs: tuple[ValidationRun, ...] = ()
    failures: tuple[str, ...] = ()


class BatchWaits(FrozenModel):
    """Time that the training loop waited for a batch, in seconds, without the first batch of each epoch.

    Attributes:
        p50: Median.
        p95: 95th percentile.
        p99: 99th percentile.
        pause: Mean of the long waits if batches arrive in bursts; else 0.
        pause_share: Share of batches that follow such a wait; else 0.
    """

    p50: BoundedSeconds
    p95: BoundedSeconds
    p99: BoundedSeconds
    pause: BoundedSeconds = 0.0
    pause_share: Fraction = 0.0


class ProcessWaits(FrozenModel):
    """How one of several training processes on the host kept up with the others.

    Attributes:
        wait_seconds: Mean wait for a batch, in seconds.
        late_share: Share of the steps in which its batch arrived last, at least a millisecond after the first.
    """

    wait_seconds: BoundedSeconds
    late_share: Fraction


class ProfileResult(FrozenModel):
    """Measured result of the recommended configuration; of each process if several share the host.

    Attributes:
        samples_per_second: Throughput of a training run of `epochs` epochs, median of the validation runs.
        samples_per_second_ci95: Its 95% interval; None without validation.
        validation_runs: Alternating runs in fresh processes; 0 without validation.
        epochs: Length of the training run, in epochs.
        baseline: The configuration that it is compared with; None if the baseline failed.
        speedup: Throughput over the baseline's; None if the baseline failed.
        speedup_ci95: Its 95% interval; None without validation.
        verdict: `faster`, or `no_change` if the speedup is not significant and the baseline is recommended.
        upper_bound_samples_per_second: Throughput if data were always ready.
        wait_share: Share of the time that the training loop waits for data.
        batch_waits: Percentiles of the wait for a batch; None if unknown.
        bottleneck: Training step, CPU-bound or I/O-bound loading, transfer between processes, copy, or epoch restart.
        peak_host_bytes: Peak host memory of the process tree, /dev/shm included.
        peak_shm_bytes: Peak use of /dev/shm.
        peak_gpu_bytes: Peak device memory of the allocator; 0 on the CPU.
        copy_bytes_per_second: Rate of copies to the device; None on the CPU.
        copy_bound_bytes_per_second: Rate of copies alone; None on the CPU.
        processes: How the training processes kept up with each other, by rank; empty for one process.
        candidates: Raw validation runs of the baseline and every candidate.
        gains: Measured gains of settings that are not at their recommended default or that change training.
        contributions: Contribution of each setting, in the usual order of manual tuning.
        advice: Improvements besides the loader's settings.
        warnings: Warnings about the workload, the machine or the measurement.
    """

    samples_per_second: BoundedRate
    samples_per_second_ci95: Interval | None
    validation_runs: BoundedCount
    epochs: Annotated[int, Field(ge=1, le=2**63 - 1)]
    baseline: Baseline | None
    speedup: BoundedRate | None
    speedup_ci95: Interval | None
    verdict: Literal["faster", "no_change"]
    upper_bound_samples_per_second: BoundedRate | None
    wait_share: Fraction
    batch_waits: BatchWaits | None = None
    bottleneck: Bottleneck
    peak_host_bytes: BoundedBytes
    peak_shm_bytes: BoundedBytes
    peak_gpu_bytes: BoundedBytes = 0
    copy_bytes_per_second: BoundedRate | None = None
    copy_bound_bytes_per_second: BoundedRate | None = None
    processes: tuple[ProcessWaits, ...] = ()
    candidates: tuple[CandidateResult, ...] = ()
    gains: tuple[Contribution, ...] = ()
    contributions: tuple[Contribution, ...] = ()
    advice: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class RecordedBudgets(FrozenModel):
    """Resource limits of one training process during tuning.

    Attributes:
        memory_bytes: Host memory of the process and its workers.
        shm_bytes: Their use of /dev/shm.
        nofile: Open files per process.
        gpu_bytes: Device memory; None on the CPU.
        max_workers: Maximum of num_workers.
    """

    memory_bytes: BoundedBytes
    shm_bytes: BoundedBytes
    nofile: BoundedCount
    gpu_bytes: BoundedBytes | None = None
    max_workers: BoundedCount


class TrialSummary(Configured):
    """One trial of the search.

    Attributes:
        config: The configuration.
        number: Position in the search, from 1.
        outcome: `stopped_early` if it could not become the best, `skipped` if it was predicted to break a limit.
        samples_per_second: Throughput in the warm process of the search; None if it did not complete.
        relative_error: Half-width of its 95% interval as a share; None if unknown.
        predicted_samples_per_second: Prediction before the trial.
        peak_host_bytes: Peak host memory; 0 if not sampled.
        peak_shm_bytes: Peak use of /dev/shm; 0 if not sampled.
        reason: Why it failed or was skipped; else empty.
    """

    number: BoundedCount
    outcome: TrialOutcome
    samples_per_second: BoundedRate | None = None
    relative_error: BoundedRate | None = None
    predicted_samples_per_second: BoundedRate = 0.0
    peak_host_bytes: BoundedBytes = 0
    peak_shm_bytes: BoundedBytes = 0
    reason: str = ""


class ScalingPoint(FrozenModel):
    """Expected throughput at a number of workers, with all other settings as recommended.

    Attributes:
        num_workers: Number of workers.
        samples_per_second: Expectation of the model after the search.
        relative_error: One standard deviation as a share.
    """

    num_workers: Workers
    samples_per_second: BoundedRate
    relative_error: BoundedRate


class SearchRecord(FrozenModel):
    """How the configuration was found.

    Attributes:
        trials: Every trial of the search, in order.
        sampler: `model`, or the name of one of Optuna's samplers.
        seed: Seed of the sampler.
        seconds: Duration of the whole run.
        phase_seconds: Duration of each phase.
        stop_reason: Why the search ended.
        scaling: Expected throughput over the number of workers.
        batch_samples: Samples in a batch; a mean if the workload makes its own batches.
    """

    trials: tuple[TrialSummary, ...] = ()
    sampler: str
    seed: BoundedCount
    seconds: BoundedSeconds
    phase_seconds: dict[Phase, BoundedSeconds] = Field(default_factory=dict)
    stop_reason: str
    scaling: tuple[ScalingPoint, ...] = ()
    batch_samples: Annotated[int, Field(ge=1, le=2**63 - 1)] = 1


class TunedProfile(Configured):
    """One profile of dltune.json: the recommended configuration for one workload on one class of machines.

    Attributes:
        config: The recommended configuration.
        label: Name given with `--profile`; None identifies the profile by machine class and workload.
        hardware: The machine that it was measured on.
        software: Versions that it was measured with.
        workload: The workload.
        result: The measurements.
        budgets: Resource limits of the run.
        search: How it was found.
        request: The tuning request, to repeat it.
        is_complete: Whether the run came to its end; an interrupted run stores its best so far.
        created_at: End of the run.
    """

    label: Annotated[str, Field(min_length=1)] | None = None
    hardware: Hardware
    software: Software
    workload: WorkloadIdentity
    result: ProfileResult
    budgets: RecordedBudgets
    search: SearchRecord
    request: dict[str, Any] = Field(default_factory=dict)
    is_complete: bool = True
    created_at: AwareDatetime

    @property
    def machine_class(self) -> str:
        """Accelerators, CPUs and memory of the machine, such as `h100x1-12c-64g`."""
        return self.hardware.machine_class

    @property
    def workload_id(self) -> str:
        """The label, or the hash of the workload."""
        return self.label or self.workload.id

    @property
    def id(self) -> str:
        """Identifier of the profile: machine class and workload."""
        return f"{self.machine_class}/{self.workload_id}"

    @property
    def is_validated(self) -> bool:
        """Whether its throughput was measured in fresh processes, in a run that came to its end."""
        return self.is_complete and self.result.validation_runs > 0


class TunedFile(FrozenModel):
    """The content of dltune.json.

    Attributes:
        schema_version: Version of the schema.
        profiles: One for each machine class and workload.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    profiles: tuple[TunedProfile, ...] = ()
