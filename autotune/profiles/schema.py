"""What stands in dltune.json.

Every value is frozen and refuses unknown fields, so that a typo never passes for a setting.

History of `schema_version`:
    1: first version.
    2: settings stand in one `config`; `budgets`, `ablation`, `scaling_curve`, `knob_importance` and the `outcome` of
        trials have these names; a run bound by input and output says `io`.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import AwareDatetime, ConfigDict, Field

from autotune.config import (
    BatchSize,
    BoundedBytes,
    BoundedCount,
    BoundedRate,
    BoundedSeconds,
    DataLoaderSettings,
    Fraction,
    FrozenModel,
    Interval,
    LoaderConfig,
    ProcessSettings,
    Product,
    Workers,
)
from autotune.profiles.batch_waits import BatchWaits
from autotune.profiles.identity import WorkloadIdentity
from autotune.profiles.nodes import NodeSpread
from autotune.system.hardware import Hardware, Software

SCHEMA_VERSION: Final = 2
SCHEMA_ID: Final = f"urn:dltune:schema:{SCHEMA_VERSION}"
Bottleneck = Literal["step", "cpu", "io", "transfer", "copy", "epoch"]


class Configured(FrozenModel):
    """Something that is told of a configuration."""

    config: LoaderConfig

    @property
    def dataloader(self) -> DataLoaderSettings:
        """What the loader is given."""
        return self.config.dataloader

    @property
    def process(self) -> ProcessSettings:
        """How its process is set up."""
        return self.config.process


class Baseline(Configured):
    """What the tuned configuration is compared with."""

    description: str
    samples_per_second: BoundedRate
    data_wait_fraction: Fraction


class BatchSizeResult(Configured):
    """The best configuration measured for one batch size."""

    batch_size: BatchSize | None
    samples_per_second: BoundedRate


class AblationStep(FrozenModel):
    """What one setting gave: measured beside the configuration without it, or as the trials of the search let expect.

    An estimate is the model's as corrected by the trials, with its own interval; nothing was measured for it.
    """

    setting: str
    samples_per_second: BoundedRate  # with it and all those before it
    speedup: BoundedRate
    speedup_ci95: Interval | None = None  # one that holds 1 is within noise; None in files of earlier versions
    is_estimate: bool = False

    @property
    def is_noise(self) -> bool:
        """Whether the measurement cannot tell it from no effect."""
        return self.speedup_ci95 is not None and self.speedup_ci95[0] <= 1 <= self.speedup_ci95[1]


class ConfirmedRounds(Configured):
    """What the confirmation measured of one configuration: the raw numbers behind every figure of the result."""

    samples_per_second: tuple[BoundedRate, ...] = ()  # of each round from the first on, until it fell behind
    failures: tuple[str, ...] = ()  # in words; each of these trials was tried once more


class RankResult(FrozenModel):
    """How one of several training processes on the host kept up with the others, over the confirming rounds.

    Attributes:
        wait_seconds: For a batch, mean.
        late_share: Share of the steps in which it got its batch last, a millisecond or more after the first of them.
    """

    wait_seconds: BoundedSeconds
    late_share: Fraction


class ProfileResult(FrozenModel):
    """What was measured for the tuned configuration: where several training processes share the host, of each of them.

    Attributes:
        samples_per_second: Throughput of a training run of `epochs` epochs, median of the confirming rounds.
        samples_per_second_ci95: Its 95 % interval; None when the run was not confirmed.
        confirmed_rounds: Interleaved rounds in fresh processes; 0 when the run was cut short.
        is_predicted: Whether nothing was measured, and all is what the probe lets expect.
        baseline: What it is compared with; None when the baseline could not run.
        speedup: Throughput over the baseline's, from pairs of the same round.
        verdict: `faster`, or `keep` when the gain is within noise and the baseline was kept.
        ceiling_samples_per_second: What the step alone reaches on a batch that is always ready.
        data_wait_fraction: Share of the run that the step spent waiting for data.
        batch_waits: How long it waited for single batches; None where that is not known.
        peak_host_bytes: Largest host memory seen: private and shared pages of the process tree.
        peak_gpu_bytes: Largest device memory the allocator held; 0 on the CPU.
        copy_bytes_per_second: What the run copies to the device, bytes per second; None on the CPU.
        copy_ceiling: What copying alone reaches with memory pinned or pageable as in the answer; None likewise.
        ranks: How those processes kept up with each other, by their number; empty for one process.
        rounds: What the confirmation measured of the baseline and each finalist; the medians and intervals above are
            derived from it. Empty in files of earlier versions.
        departures: What settings gave that left their convention, or that change training, over the configuration that
            keeps it, in the same rounds.
        ablation: What each setting gave, cumulatively, in the order in which a careful hand would set them.
        advice: What would help beyond the settings of a loader.
    """

    samples_per_second: BoundedRate
    samples_per_second_ci95: Interval | None
    confirmed_rounds: BoundedCount
    epochs: Annotated[int, Field(ge=1, le=2**63 - 1)]
    is_predicted: bool = False
    baseline: Baseline | None
    speedup: BoundedRate | None
    speedup_ci95: Interval | None
    verdict: Literal["faster", "keep"]
    ceiling_samples_per_second: BoundedRate | None
    data_wait_fraction: Fraction
    batch_waits: BatchWaits | None = None
    bottleneck: Bottleneck
    peak_host_bytes: BoundedBytes
    peak_shm_bytes: BoundedBytes
    peak_gpu_bytes: BoundedBytes
    copy_bytes_per_second: BoundedRate | None = None
    copy_ceiling: BoundedRate | None = None
    by_batch_size: tuple[BatchSizeResult, ...] = ()
    ranks: tuple[RankResult, ...] = ()
    rounds: tuple[ConfirmedRounds, ...] = ()
    departures: tuple[AblationStep, ...] = ()
    ablation: tuple[AblationStep, ...] = ()
    advice: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class RecordedBudgets(FrozenModel):
    """The budgets under which a profile was tuned; on the CPU there is none for device memory."""

    memory_bytes: BoundedBytes
    shm_bytes: BoundedBytes
    nofile: BoundedCount
    gpu_bytes: BoundedBytes | None = None
    max_workers: BoundedCount


class PhaseTime(FrozenModel):
    """What a phase of a run spent its seconds on."""

    phase: str
    starting: BoundedSeconds = 0.0  # processes, their imports, the user's factory
    warming_up: BoundedSeconds = 0.0
    measuring: BoundedSeconds = 0.0
    taking_down: BoundedSeconds = 0.0  # workers and processes
    own: BoundedSeconds = 0.0  # work of the tuner itself


class SearchRecord(FrozenModel):
    """How the configuration was found.

    Attributes:
        time_spent: Where the seconds of each phase went; empty in files of earlier versions.
        prediction_error: Median relative distance between the throughput predicted before a trial and the one it
            measured; None when nothing was measured.
    """

    trials: BoundedCount  # feasible + infeasible + skipped
    feasible: BoundedCount
    infeasible: BoundedCount  # they broke a limit or failed
    skipped: BoundedCount  # they were predicted to break a limit
    sampler: str
    seed: BoundedCount
    study: str
    seconds: BoundedSeconds  # of the whole run so far
    time_spent: tuple[PhaseTime, ...] = ()
    prediction_error: BoundedRate | None = None
    stopped: str  # why


class TrialSummary(Configured):
    """One line of the search, for people who ask why a configuration was not chosen."""

    number: BoundedCount  # in the order in which it was tried, from 1
    outcome: Literal["completed", "stopped_early", "skipped", "failed"]  # early when hopeless, skipped without a trial
    samples_per_second: BoundedRate | None = None  # in the warm process of the search; None when it did not complete
    relative_error: BoundedRate | None = None  # half-width of the 95 % interval, as a share; None where unknown
    expected_samples_per_second: BoundedRate = 0.0
    peak_host_bytes: BoundedBytes = 0  # 0 when not sampled
    peak_shm_bytes: BoundedBytes = 0
    reason: str = ""


class ScalingPoint(FrozenModel):
    """What the model, corrected by the trials, expects at a number of workers; its error is one standard deviation."""

    num_workers: Workers
    samples_per_second: BoundedRate
    relative_error: BoundedRate


class BatchTimeBreakdown(FrozenModel):
    """Where the time of one batch goes, in seconds, at the tuned batch size, measured by the probe."""

    samples: Annotated[int, Field(ge=1, le=2**63 - 1)]  # in that batch; a mean where the workload makes its own
    load: Product  # fetching its samples, in one process
    collate: Product
    transfer: Product  # from a worker to the training process
    copy_seconds: Product = 0.0  # from there to the device; 0 on the CPU
    step: Product


class SearchEvidence(FrozenModel):
    """What the answer rests on.

    Attributes:
        batch_time: Where a batch's time goes; None where the probe could not tell.
        knob_importance: By how much the expected throughput varies along each knob, all else as in the answer, as a
            share of the sum over all knobs.
    """

    trials: tuple[TrialSummary, ...] = ()
    scaling_curve: tuple[ScalingPoint, ...] = ()
    batch_time: BatchTimeBreakdown | None = None
    knob_importance: dict[str, Fraction] = Field(default_factory=dict)


class PastResult(Configured):
    """What an earlier tuning of the same profile had found."""

    created_at: AwareDatetime
    samples_per_second: BoundedRate
    torch: str


class TunedProfile(Configured):
    """One profile of dltune.json: the best configuration for one workload on one machine.

    Attributes:
        nodes: What it was seen to reach on machines like that one; None where nobody has looked.
        request: What was asked for, to ask for it again; None in files of earlier versions, as is evidence.
        history: Earlier results of this profile, oldest first.
    """

    name: Annotated[str, Field(min_length=1)]
    hardware: Hardware
    software: Software
    workload: WorkloadIdentity
    result: ProfileResult
    budgets: RecordedBudgets
    search: SearchRecord
    evidence: SearchEvidence | None = None
    nodes: NodeSpread | None = None
    request: dict[str, Any] | None = None
    history: tuple[PastResult, ...] = ()
    created_at: AwareDatetime

    @property
    def promised_ci95(self) -> Interval | None:
        """Where its throughput is expected, with 95 % confidence: on any machine like it, where several were seen."""
        return self.result.samples_per_second_ci95 if self.nodes is None else self.nodes.samples_per_second_ci95


class TunedFile(FrozenModel):
    """The whole of dltune.json."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    schema_id: str = Field(default=SCHEMA_ID, alias="$schema")
    schema_version: Literal[2]
    profiles: tuple[TunedProfile, ...] = ()
