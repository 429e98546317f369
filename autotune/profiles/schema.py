"""The schema of dltune.json. It stores raw measurements, from which medians and intervals can be derived."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import AwareDatetime, Field

from autotune.config import Configured, Count, Fraction, FrozenModel, Interval, JsonDict, Rate, Seconds, Workers
from autotune.system.machine import Hardware, Software

Bottleneck = Literal["step", "cpu", "io", "transfer", "copy", "epoch"]
Phase = Literal["profiling", "search", "validation"]
Preparer = Literal["accelerate", "transformers"]
MAX_SEARCHED_WORKERS: Final = 64
COMPUTE_BOUND_WAIT_SHARE: Final = 0.1  # of the time; below it, the step is the bottleneck


class WorkloadIdentity(FrozenModel):
    """The workload that a profile was tuned for."""

    dataset: str  # import string of the factory, called with `dataset_args`
    dataset_args: JsonDict = Field(default_factory=dict)
    split: str | None = None  # name of one of several results of the factory
    samples: Count | None  # per epoch; None if an iterable dataset has no length
    sample_bytes: Count  # of tensors per sample, mean
    sample_bytes_error: Count = 0  # half-width of the 99.9% interval of the mean; 0 if unknown
    step: str  # import string of the step, `simulated 35.0 ms` or `built-in`
    kind: Literal["map", "iterable"] = "map"  # a loader can shuffle only a map-style dataset
    is_from_data_module: bool = False  # whether a data module of Lightning returned the loader
    gives_loader: bool = False  # whether the factory returned a plain DataLoader or a Workload with arguments of one
    prepared_by: Preparer | None = None  # what made the loader that the factory returned
    loader_class: str | None = None  # the user's loader class or loader function; None for a plain DataLoader
    loader_decides: tuple[str, ...] = ()  # settings that this loader does not accept
    nproc_per_node: Annotated[int, Field(ge=1, le=2**31)] = 1  # training processes on the host

    @property
    def title(self) -> str:
        """Name of the workload in reports."""
        return self.dataset if self.split is None else f"{self.dataset} [{self.split}]"

    @property
    def id(self) -> str:
        """Hash of dataset, arguments, split, step and number of processes."""
        named = [self.dataset, self.dataset_args, self.split, self.step, self.nproc_per_node]
        return hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()[:8]

    def accepted(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings that the user's own loader accepts."""
        return {name: value for name, value in settings.items() if name not in self.loader_decides}


class Baseline(Configured):
    """The configuration that the recommended one is compared with, such as `PyTorch's defaults`, and its median run."""

    description: str
    samples_per_second: Rate
    wait_share: Fraction
    bottleneck: Bottleneck


class Contribution(FrozenModel):
    """Contribution of settings such as `num_workers=4`: the throughput with them, and over that without them."""

    setting: str
    samples_per_second: Rate
    speedup: Rate
    speedup_ci95: Interval | None = None  # None if unknown
    is_estimate: bool = False  # by the model, from the trials of the search


class CandidateResult(Configured):
    """Raw measurements of one configuration in the validation, in fresh processes, alternating with the others."""

    runs: dict[Count, Rate] = Field(default_factory=dict)  # samples per second by number of the run
    failures: tuple[str, ...] = ()  # why other runs failed


class BatchWaits(FrozenModel):
    """Percentiles of the wait for a batch, in seconds, without the first batch of each epoch."""

    p50: Seconds
    p95: Seconds
    p99: Seconds


class ProfileResult(FrozenModel):
    """Measured result of the recommended configuration; of each process if several share the host."""

    samples_per_second: Rate  # of a training run of `epochs` epochs, median of the validation runs
    samples_per_second_ci95: Interval | None = None  # None without validation
    validation_runs: Count = 0  # alternating runs in fresh processes
    epochs: Annotated[int, Field(ge=1, le=2**63 - 1)]  # length of the training run
    baseline: Baseline | None  # the configuration that it is compared with; None if that failed
    speedup: Rate | None  # over the baseline; None if that failed
    speedup_ci95: Interval | None = None
    decision: Literal["faster", "no_change"]  # `no_change` recommends the baseline: the speedup is not significant
    upper_bound_samples_per_second: Rate | None  # if data were always ready
    wait_share: Fraction  # share of the time that the training loop waits for data
    batch_waits: BatchWaits | None = None  # None if unknown
    bottleneck: Bottleneck  # `cpu` and `io` are data loading, `transfer` is between processes, `epoch` is its restart
    peak_host_bytes: Count = 0  # of the process tree, /dev/shm included
    peak_shm_bytes: Count = 0
    peak_gpu_bytes: Count = 0  # of the allocator; 0 on the CPU
    copy_bytes_per_second: Rate | None = None  # to the device; None on the CPU
    copy_bound_bytes_per_second: Rate | None = None  # of copies alone
    rank_wait_seconds: tuple[Seconds, ...] = ()  # mean wait for a batch by rank; empty for one process
    candidates: tuple[CandidateResult, ...] = ()
    gains: tuple[Contribution, ...] = ()  # measured, of settings that are not recommended defaults or change training
    contributions: tuple[Contribution, ...] = ()  # of each setting, in the usual order of manual tuning
    advice: tuple[str, ...] = ()  # improvements besides the loader's settings
    warnings: tuple[str, ...] = ()


class Budgets(FrozenModel):
    """Resource limits of one training process with its workers during tuning; open files are per process."""

    memory_bytes: Count
    reserve_bytes: Count = 0  # of host memory that must stay available to others
    shm_bytes: Count
    nofile: Count
    gpu_bytes: Count | None = None
    max_workers: Count = MAX_SEARCHED_WORKERS

    def for_ranks(self, count: int) -> Budgets:
        """Return the joint budgets of several training processes."""
        return self.model_copy(update={"memory_bytes": self.memory_bytes * count, "shm_bytes": self.shm_bytes * count})


class TrialSummary(Configured):
    """One trial of the search, stopped early if it could not become the best."""

    number: Count  # position in the search, from 1
    status: Literal["completed", "stopped_early", "skipped", "failed"]  # `skipped`: predicted to break a limit
    samples_per_second: Rate | None = None  # in the warm process of the search; None if it did not complete
    relative_error: Rate | None = None  # half-width of its 95% interval as a share; None if unknown
    predicted_samples_per_second: Rate = 0.0
    peak_host_bytes: Count = 0  # 0 if not sampled
    peak_shm_bytes: Count = 0
    reason: str = ""


class SearchRecord(FrozenModel):
    """How the configuration was found."""

    trials: tuple[TrialSummary, ...] = ()
    sampler: str  # `model`, the name of one of Optuna's samplers, or `training` if a training run was measured
    seed: Count = 0
    seconds: Seconds  # of the whole run
    phase_seconds: dict[Phase, Seconds] = Field(default_factory=dict)
    stop_reason: str
    scaling: dict[Workers, Rate] = Field(default_factory=dict)  # expected samples per second by num_workers
    batch_samples: Annotated[int, Field(ge=1, le=2**63 - 1)] = 1  # a mean if the workload makes its own batches


class TunedProfile(Configured):
    """One profile of dltune.json: the recommended configuration for one workload on one class of machines."""

    label: Annotated[str, Field(min_length=1)] | None = None  # given with `--profile`
    hardware: Hardware
    software: Software
    workload: WorkloadIdentity
    result: ProfileResult
    budgets: Budgets
    search: SearchRecord
    request: JsonDict = Field(default_factory=dict)  # the tuning request, to repeat it
    is_complete: bool = True  # an interrupted run stores its best so far
    created_at: AwareDatetime  # end of the run

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
    def is_from_training(self) -> bool:
        """Whether it was measured in a training run, by the autopilot."""
        return self.search.sampler == "training"

    @property
    def is_validated(self) -> bool:
        """Whether fresh processes measured its throughput often enough for an interval, in a run that ended."""
        result = self.result
        return self.is_complete and result.samples_per_second_ci95 is not None and result.validation_runs > 1


class TunedFile(FrozenModel):
    """The content of dltune.json: a profile for each machine class and workload."""

    schema_version: Literal[1] = 1
    profiles: tuple[TunedProfile, ...] = ()
