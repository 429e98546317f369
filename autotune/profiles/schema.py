"""What stands in dltune.json, and the configuration that everything else talks about.

Every value is frozen and refuses unknown fields, so that a typo never passes for a setting. A
configuration that `DataLoader` would refuse cannot be built here.

History of `schema_version`:
    1: first version.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, model_validator

SCHEMA_VERSION: Final = 1
SCHEMA_ID: Final = f"urn:dltune:schema:{SCHEMA_VERSION}"

SharingStrategy = Literal["file_descriptor", "file_system"]
StartMethod = Literal["fork", "spawn", "forkserver"]
DatasetKind = Literal["map", "iterable"]
Bottleneck = Literal["step", "cpu", "waiting", "transfer", "copy", "epoch", "unknown"]

Count = Annotated[int, Field(ge=0)]
Bytes = Annotated[int, Field(ge=0)]
Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]

# What a file or another process tells is not trusted: these bounds are beyond every machine, and keep sums and products
# of such numbers within what a float holds, and loops over them short.
ToldCount = Annotated[int, Field(ge=0, le=2**63 - 1)]
ToldBytes = ToldCount
MOST_RATE: Final = 1e30
ToldRate = Annotated[float, Field(ge=0, le=MOST_RATE)]
Product = ToldRate  # of numbers that were told
ToldSeconds = Annotated[float, Field(ge=0, le=1e9)]
ToldCpus = Annotated[float, Field(ge=1e-4, le=1e6)]
BatchSize = Annotated[int, Field(ge=1, le=2**31 - 1)]
Prefetch = Annotated[int, Field(ge=1, le=2**16)]
MOST_WORKERS: Final = 4096
Workers = Annotated[int, Field(ge=0, le=MOST_WORKERS)]


def _refuse_reversed_bounds(bounds: tuple[float, float]) -> tuple[float, float]:
    low, high = bounds
    if not low <= high:
        raise ValueError(f"the upper bound {high} is below the lower bound {low}")
    return bounds


Bounded = Annotated[float, Field(ge=-1e30, le=1e30)]
Interval = Annotated[tuple[Bounded, Bounded], AfterValidator(_refuse_reversed_bounds)]
"""A 95 % confidence interval: lower and upper bound in the unit of the value it belongs to."""


class Value(BaseModel):
    """Base of all values that cross a room: frozen, strict about unknown fields.

    What pydantic needs to check one is built when the first is made: half of them are never made by code that loads.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class DataLoaderSettings(Value):
    """Arguments of `torch.utils.data.DataLoader`, in a combination it accepts.

    Attributes:
        batch_size: Samples per batch and per process. None leaves batching to the training code, which
            passes its own `batch_sampler` (or `batch_size=None`).
        num_workers: Worker processes; 0 loads in the training process.
        prefetch_factor: Batches that each worker prepares ahead; None without workers.
        pin_memory: Whether batches are copied into page-locked memory.
        persistent_workers: Whether workers live on from one epoch to the next.
        in_order: Whether batches arrive in the sampler's order.
    """

    batch_size: BatchSize | None
    num_workers: Workers = 0
    prefetch_factor: Prefetch | None = None
    pin_memory: bool = False
    persistent_workers: bool = False
    in_order: bool = True

    @model_validator(mode="after")
    def _refuse_what_dataloader_refuses(self) -> Self:
        if self.num_workers == 0:
            if self.prefetch_factor is not None:
                raise ValueError("prefetch_factor needs num_workers > 0")
            if self.persistent_workers:
                raise ValueError("persistent_workers needs num_workers > 0")
            if not self.in_order:
                raise ValueError("in_order=False needs num_workers > 0")
        elif self.prefetch_factor is None:
            raise ValueError("prefetch_factor is required with num_workers > 0")
        return self


class ProcessSettings(Value):
    """Settings of the training process beside the loader's: how workers start, and how batches travel.

    Attributes:
        sharing_strategy: Argument of `torch.multiprocessing.set_sharing_strategy`.
        multiprocessing_context: Start method for the workers; None is the interpreter's default.
        non_blocking: Whether training code must copy with `batch.to(device, non_blocking=True)`, which lets the host
            go on during a copy from pinned memory.
        device_prefetch: Whether training code must go through `autotune.device_prefetch(loader, device)`, which
            copies the next batch while the step computes on this one.
    """

    sharing_strategy: SharingStrategy = "file_descriptor"
    multiprocessing_context: StartMethod | None = None
    non_blocking: bool = False
    device_prefetch: bool = False


class LoaderConfig(Value):
    """One point of the search: what the loader is given and how its process is set up."""

    dataloader: DataLoaderSettings
    process: ProcessSettings = Field(default_factory=ProcessSettings)

    def loader_kwargs(self) -> dict[str, Any]:
        """Give the arguments for `DataLoader`, leaving out those it refuses in this combination.

        Returns:
            Keyword arguments that `DataLoader` takes beside `dataset`, `shuffle`, `sampler`, `drop_last`
            and `collate_fn`. `batch_size` is absent when the configuration leaves batching alone.
        """
        settings = self.dataloader
        kwargs: dict[str, Any] = {"num_workers": settings.num_workers, "pin_memory": settings.pin_memory}
        if settings.batch_size is not None:
            kwargs["batch_size"] = settings.batch_size
        if settings.num_workers:
            kwargs |= {
                "prefetch_factor": settings.prefetch_factor,
                "persistent_workers": settings.persistent_workers,
                "in_order": settings.in_order,
            }
            if self.process.multiprocessing_context is not None:
                kwargs["multiprocessing_context"] = self.process.multiprocessing_context
        return kwargs


class Accelerator(Value):
    """What a process sees of the accelerator in use.

    Attributes:
        name: Its model, with the slice of it where it is partitioned (MIG).
        count: Accelerators of that name that are visible.
        memory_bytes: Memory of one; 0 where it does not tell.
        compute_capability: CUDA's, as in `9.0`; None elsewhere.
        uuid: By which the driver knows it; None where it does not tell.
        driver: Version of the driver; None where NVML is not at hand.
        pcie: Its link, as in `gen5 x16`; None likewise.
        other_processes: Processes of others that compute on it, as far as NVML tells.
        others_busy: Share of the moment before the probe in which they kept it computing, likewise.
    """

    name: str
    count: ToldCount = 1
    memory_bytes: ToldBytes = 0
    compute_capability: str | None = None
    uuid: str | None = None
    driver: str | None = None
    pcie: str | None = None
    other_processes: ToldCount = 0
    others_busy: Fraction = 0.0


class Hardware(Value):
    """The machine a profile was measured on, as far as it decides about the loader.

    Attributes:
        gpu: Name of the accelerator; None on a machine without one.
        gpu_count: Accelerators of that name.
        gpu_memory_bytes: Memory of one; 0 where it does not tell.
        compute_capability: CUDA's, as in `9.0`; None elsewhere.
        pcie: Its link, as in `gen5 x16`; None where NVML is not at hand.
        cpu: Model name of the processor; None when the system does not tell.
        usable_cpus: CPUs this process may use: affinity and every cgroup quota, in CPUs.
        memory_limit_bytes: Smallest of physical memory and every cgroup limit.
        shm_limit_bytes: Size of /dev/shm.
        nofile_limit: Soft limit of open files.
    """

    gpu: str | None
    gpu_count: ToldCount
    gpu_memory_bytes: ToldBytes = 0
    compute_capability: str | None = None
    pcie: str | None = None
    cpu: str | None
    usable_cpus: ToldCpus
    memory_limit_bytes: ToldBytes
    shm_limit_bytes: ToldBytes
    nofile_limit: ToldCount


class Software(Value):
    """Versions and the start method under which a profile was measured."""

    dltune: str
    torch: str
    cuda: str | None
    driver: str | None = None
    python: str
    start_method: StartMethod


class WorkloadIdentity(Value):
    """What was tuned: which dataset, how many samples of what size, and which step consumed them.

    Attributes:
        dataset: Import string of the factory.
        dataset_args: Its arguments.
        samples: Samples in an epoch; None when an iterable dataset does not tell.
        sample_bytes: Bytes of tensors in one sample, mean.
        step: Import string of the step, `emulated 35.0 ms` or `built-in`.
        kind: `map` or `iterable`: only the former can be shuffled by a loader; None in files of earlier versions.
    """

    dataset: str
    dataset_args: dict[str, Any] = Field(default_factory=dict)
    samples: ToldCount | None
    sample_bytes: ToldBytes
    step: str
    kind: DatasetKind | None = None


class Baseline(Value):
    """What the tuned configuration is compared with."""

    description: str
    dataloader: DataLoaderSettings
    process: ProcessSettings = Field(default_factory=ProcessSettings)
    samples_per_second: ToldRate
    data_wait_fraction: Fraction


class BatchSizeResult(Value):
    """The best configuration measured for one batch size."""

    batch_size: BatchSize | None
    dataloader: DataLoaderSettings
    samples_per_second: ToldRate


class Contribution(Value):
    """What one setting gave, measured beside the configuration without it, in the same rounds.

    Attributes:
        setting: The setting and its new value, as in `num_workers=12`.
        samples_per_second: Throughput with it and all those before it.
        speedup: Over the configuration without it.
        speedup_ci95: Its 95 % interval; one that holds 1 is within noise. None in files of earlier versions.
    """

    setting: str
    samples_per_second: ToldRate
    speedup: ToldRate
    speedup_ci95: Interval | None = None

    @property
    def is_noise(self) -> bool:
        """Whether the measurement cannot tell it from no effect."""
        return self.speedup_ci95 is not None and self.speedup_ci95[0] <= 1 <= self.speedup_ci95[1]


class ConfirmedRounds(Value):
    """What the confirmation measured of one configuration: the raw numbers behind every figure of the result.

    Attributes:
        dataloader: Its settings.
        process: Its process settings.
        samples_per_second: Throughput of each round in a fresh process, in their order from the first round on; a
            configuration that fell behind has fewer than others.
        failures: How trials of it failed, in words; each was tried once more.
    """

    dataloader: DataLoaderSettings
    process: ProcessSettings = Field(default_factory=ProcessSettings)
    samples_per_second: tuple[ToldRate, ...] = ()
    failures: tuple[str, ...] = ()


class ProfileResult(Value):
    """What was measured for the tuned configuration.

    Attributes:
        samples_per_second: Throughput of a training run of `epochs` epochs, samples per second, median of
            the confirming rounds.
        samples_per_second_ci95: Its 95 % interval; None when the run was not confirmed.
        confirmed_rounds: Interleaved rounds in fresh processes; 0 when the run was cut short.
        epochs: Length of the training run that the numbers stand for, in epochs.
        baseline: What it is compared with; None when the baseline could not run.
        speedup: Throughput over the baseline's, from pairs of the same round.
        speedup_ci95: Its 95 % interval.
        verdict: `faster`, or `keep` when the gain is within noise and the baseline was kept.
        ceiling_samples_per_second: What the step alone reaches on a batch that is always ready.
        data_wait_fraction: Share of the run that the step spent waiting for data.
        bottleneck: What bounds the tuned run.
        peak_host_bytes: Largest host memory seen: private and shared pages of the process tree.
        peak_shm_bytes: Largest use of /dev/shm seen.
        peak_gpu_bytes: Largest device memory the allocator held; 0 on the CPU.
        copy_bytes_per_second: What the run copies to the device, bytes per second; None on the CPU.
        copy_ceiling: What copying alone reaches with memory pinned or pageable as in the answer; None likewise.
        by_batch_size: Best configuration per batch size searched.
        rounds: What the confirmation measured, round by round, of the baseline and each finalist; the medians and
            intervals above are derived from it. Empty in files of earlier versions.
        departures: What settings gave that left their convention, or that change training, over the configuration that
            keeps it, in the same rounds.
        contributions: What each setting gave, cumulatively, in the order in which a careful hand would set them.
        advice: What would help beyond the settings of a loader.
        warnings: Sentences the reader of this profile must know.
    """

    samples_per_second: ToldRate
    samples_per_second_ci95: Interval | None
    confirmed_rounds: ToldCount
    epochs: Annotated[int, Field(ge=1, le=2**63 - 1)]
    baseline: Baseline | None
    speedup: ToldRate | None
    speedup_ci95: Interval | None
    verdict: Literal["faster", "keep"]
    ceiling_samples_per_second: ToldRate | None
    data_wait_fraction: Fraction
    bottleneck: Bottleneck
    peak_host_bytes: ToldBytes
    peak_shm_bytes: ToldBytes
    peak_gpu_bytes: ToldBytes
    copy_bytes_per_second: ToldRate | None = None
    copy_ceiling: ToldRate | None = None
    by_batch_size: tuple[BatchSizeResult, ...] = ()
    rounds: tuple[ConfirmedRounds, ...] = ()
    departures: tuple[Contribution, ...] = ()
    contributions: tuple[Contribution, ...] = ()
    advice: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class LimitsRecord(Value):
    """The budgets under which the profile was tuned."""

    memory_bytes: ToldBytes
    shm_bytes: ToldBytes
    nofile: ToldCount
    gpu_bytes: ToldBytes | None = None
    max_workers: ToldCount


class SearchRecord(Value):
    """How the configuration was found.

    Attributes:
        trials: Configurations asked for: feasible + infeasible + skipped.
        feasible: Trials that completed.
        infeasible: Trials that broke a limit or failed.
        skipped: Configurations predicted to break a limit, rejected without a trial.
        sampler: Optuna sampler.
        seed: Its seed.
        study: Name of the Optuna study.
        seconds: Wall time of the whole run so far, in seconds.
        prediction_error: Median relative distance between the throughput predicted before a trial and the one it
            measured; None when nothing was measured.
        stopped: Why the search ended.
    """

    trials: ToldCount
    feasible: ToldCount
    infeasible: ToldCount
    skipped: ToldCount
    sampler: str
    seed: ToldCount
    study: str
    seconds: ToldSeconds
    prediction_error: ToldRate | None = None
    stopped: str


class TrialLine(Value):
    """One line of the search, for people who ask why a configuration was not chosen.

    Attributes:
        number: In the order in which it was tried, from 1.
        dataloader: What was tried.
        process: How its process shared batches.
        fate: `completed`, `stopped_early` when hopeless, `skipped` without a trial, or `failed`.
        samples_per_second: What it reached, in the warm process of the search; None when it did not complete.
        relative_error: Half-width of the 95 % interval, as a share; None where unknown.
        expected: Samples per second expected of it before.
        peak_host_bytes: Largest host memory seen; 0 when not sampled.
        peak_shm_bytes: Largest /dev/shm use seen; 0 when not sampled.
        reason: Why it was skipped or failed; empty otherwise.
    """

    number: ToldCount
    dataloader: DataLoaderSettings
    process: ProcessSettings = Field(default_factory=ProcessSettings)
    fate: Literal["completed", "stopped_early", "skipped", "failed"]
    samples_per_second: ToldRate | None = None
    relative_error: ToldRate | None = None
    expected: ToldRate = 0.0
    peak_host_bytes: ToldBytes = 0
    peak_shm_bytes: ToldBytes = 0
    reason: str = ""


class CurvePoint(Value):
    """What the model, as corrected by the trials, expects at a number of workers, all else as in the answer.

    Attributes:
        num_workers: The number.
        samples_per_second: The expectation.
        relative_error: One standard deviation, as a share of it.
    """

    num_workers: Workers
    samples_per_second: ToldRate
    relative_error: ToldRate


class BatchTime(Value):
    """Where the time of one batch goes, in seconds, at the tuned batch size, measured by the probe.

    Attributes:
        samples: Samples in that batch; a mean where the workload makes its own batches.
        load: Fetching its samples, in one process.
        collate: Putting them together.
        transfer: From a worker to the training process.
        copy_seconds: From there to the device; 0 on the CPU.
        step: The training step on a batch that is on the device.
    """

    samples: Annotated[int, Field(ge=1, le=2**63 - 1)]
    load: Product
    collate: Product
    transfer: Product
    copy_seconds: Product = 0.0
    step: Product


class Evidence(Value):
    """What the answer rests on.

    Attributes:
        trials: Every configuration that was proposed.
        curve: Expected throughput against the number of workers.
        batch_time: Where a batch's time goes; None where the probe could not tell.
        importance: For each knob, by how much the expected throughput varies along it, all else as in the answer, as
            a share of the sum over all knobs.
    """

    trials: tuple[TrialLine, ...] = ()
    curve: tuple[CurvePoint, ...] = ()
    batch_time: BatchTime | None = None
    importance: dict[str, Fraction] = Field(default_factory=dict)


class PastResult(Value):
    """What an earlier tuning of the same profile had found."""

    created_at: AwareDatetime
    dataloader: DataLoaderSettings
    process: ProcessSettings
    samples_per_second: ToldRate
    torch: str


class TunedConfig(Value):
    """One profile of dltune.json: the best configuration for one workload on one machine.

    Attributes:
        evidence: What the answer rests on; None in files of earlier versions.
        request: What was asked for, to ask for it again; None likewise.
        history: Earlier results of this profile, oldest first.
    """

    name: Annotated[str, Field(min_length=1)]
    hardware: Hardware
    software: Software
    workload: WorkloadIdentity
    dataloader: DataLoaderSettings
    process: ProcessSettings
    result: ProfileResult
    limits: LimitsRecord
    search: SearchRecord
    evidence: Evidence | None = None
    request: dict[str, Any] | None = None
    history: tuple[PastResult, ...] = ()
    created_at: AwareDatetime

    @property
    def config(self) -> LoaderConfig:
        """The tuned configuration as one value."""
        return LoaderConfig(dataloader=self.dataloader, process=self.process)


class TunedFile(Value):
    """The whole of dltune.json."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    schema_id: str = Field(default=SCHEMA_ID, alias="$schema")
    schema_version: Literal[1]
    profiles: tuple[TunedConfig, ...] = ()
