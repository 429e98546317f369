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

SCHEMA_VERSION: Final = 1
ID_DIGITS: Final = 8  # of the hash that identifies a workload
Bottleneck = Literal["step", "cpu", "io", "transfer", "copy", "epoch"]
DatasetKind = Literal["map", "iterable"]
Phase = Literal["profiling", "search", "validation"]
TrialOutcome = Literal["completed", "stopped_early", "skipped", "failed"]


class WorkloadIdentity(FrozenModel):
    """The workload that a profile was tuned for.

    Attributes:
        dataset: Import string of the factory, called with `dataset_args`; `split` selects one of several results.
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
        return self.dataset if self.split is None else f"{self.dataset} [{self.split}]"

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
    """The configuration that the recommended one is compared with, such as `PyTorch's defaults`, and its median run."""

    description: str
    samples_per_second: BoundedRate
    wait_share: Fraction


class Contribution(FrozenModel):
    """Contribution of settings such as `num_workers=4`: the throughput with them, and over that without them.

    Attributes:
        speedup_ci95: 95% interval of the speedup; None if unknown.
        is_estimate: Whether the model estimated it from the trials of the search.
    """

    setting: str
    samples_per_second: BoundedRate
    speedup: BoundedRate
    speedup_ci95: Interval | None = None
    is_estimate: bool = False


class ValidationRun(FrozenModel):
    """One measurement in a fresh process; runs of several candidates with the same number are next to each other."""

    number: Annotated[BoundedCount, Field(ge=1)]
    samples_per_second: BoundedRate


class CandidateResult(Configured):
    """Raw measurements of one configuration in the validation: runs that completed, and why others failed."""

    runs: tuple[ValidationRun, ...] = ()
    failures: tuple[str, ...] = ()


class BatchWaits(FrozenModel):
    """Percentiles of the wait for a batch, in seconds, without the first batch of each epoch."""

    p50: BoundedSeconds
    p95: BoundedSeconds
    p99: BoundedSeconds


class ProcessWaits(FrozenModel):
    """How one of several training processes kept up with the others: its mean wait for a batch.

    Attributes:
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
        verdict: `faster`, or `no_change` if the speedup is not significant and the baseline is recommended.
        upper_bound_samples_per_second: Throughput if data were always ready.
        wait_share: Share of the time that the training loop waits for data.
        batch_waits: Percentiles of the wait for a batch; None if unknown.
        bottleneck: Training step, CPU-bound or I/O-bound loading, transfer between processes, copy, or epoch restart.
        peak_host_bytes: Peak host memory of the process tree, /dev/shm included.
        peak_gpu_bytes: Peak device memory of the allocator; 0 on the CPU.
        copy_bytes_per_second: Rate of copies to the device, and of copies alone (`copy_bound`); None on the CPU.
        processes: How the training processes kept up with each other, by rank; empty for one process.
        gains: Measured gains of settings that are not at their recommended default or that change training.
        contributions: Contribution of each setting, in the usual order of manual tuning.
        advice: Improvements besides the loader's settings.
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
    """Resource limits of one training process with its workers during tuning; open files are per process."""

    memory_bytes: BoundedBytes
    shm_bytes: BoundedBytes
    nofile: BoundedCount
    gpu_bytes: BoundedBytes | None = None
    max_workers: BoundedCount


class TrialSummary(Configured):
    """One trial of the search.

    Attributes:
        number: Position in the search, from 1.
        outcome: `stopped_early` if it could not become the best, `skipped` if it was predicted to break a limit.
        samples_per_second: Throughput in the warm process of the search; None if it did not complete.
        relative_error: Half-width of its 95% interval as a share; None if unknown.
        peak_host_bytes: Peak host memory; 0 if not sampled.
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
    """Throughput that the model expects at a number of workers, with all other settings as recommended."""

    num_workers: Workers
    samples_per_second: BoundedRate


class SearchRecord(FrozenModel):
    """How the configuration was found.

    Attributes:
        sampler: `model`, or the name of one of Optuna's samplers.
        seconds: Duration of the whole run.
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
        """Class of the machine, such as `h100x1-12c-64g`."""
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
    """The content of dltune.json: a profile for each machine class and workload."""

    schema_version: Literal[1] = SCHEMA_VERSION
    profiles: tuple[TunedProfile, ...] = ()
