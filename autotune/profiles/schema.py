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
    Configured,
    Fraction,
    FrozenModel,
    Interval,
)
from autotune.profiles.batch_waits import BatchWaits
from autotune.profiles.identity import WorkloadIdentity
from autotune.profiles.nodes import NodeSpread
from autotune.profiles.search_record import SearchEvidence, SearchRecord
from autotune.system.hardware import Hardware, Software

SCHEMA_VERSION: Final = 2
SCHEMA_ID: Final = f"urn:dltune:schema:{SCHEMA_VERSION}"
Bottleneck = Literal["step", "cpu", "io", "transfer", "copy", "epoch"]


class Baseline(Configured):
    """What the tuned configuration is compared with.

    Attributes:
        config: Its settings.
        description: What it is, in words, as `PyTorch's defaults`.
        samples_per_second: Its throughput in the same rounds, median.
        data_wait_fraction: Share of its run that the step spent waiting for data.
    """

    description: str
    samples_per_second: BoundedRate
    data_wait_fraction: Fraction


class BatchSizeResult(Configured):
    """The best configuration measured for one batch size.

    Attributes:
        config: Its settings.
        batch_size: The batch size; None where the training code makes its own batches.
        samples_per_second: What it reached in the search.
    """

    batch_size: BatchSize | None
    samples_per_second: BoundedRate


class AblationStep(FrozenModel):
    """What one setting gave: measured beside the configuration without it, or as the trials of the search let expect.

    Attributes:
        setting: The setting, as in `num_workers=4`.
        samples_per_second: With it and all those before it.
        speedup: Over the configuration without it.
        speedup_ci95: Its 95 % interval; one that holds 1 is within noise; None in files of earlier versions.
        is_estimate: Whether it is the model's, as corrected by the trials; nothing was measured for it then.
    """

    setting: str
    samples_per_second: BoundedRate
    speedup: BoundedRate
    speedup_ci95: Interval | None = None
    is_estimate: bool = False

    @property
    def is_noise(self) -> bool:
        """Whether the measurement cannot tell it from no effect."""
        return self.speedup_ci95 is not None and self.speedup_ci95[0] <= 1 <= self.speedup_ci95[1]


class ConfirmedRounds(Configured):
    """What the confirmation measured of one configuration: the raw numbers behind every figure of the result.

    Attributes:
        config: Its settings.
        samples_per_second: Of each round from the first on, until it fell behind.
        failures: In words; each of these trials was tried once more.
    """

    samples_per_second: tuple[BoundedRate, ...] = ()
    failures: tuple[str, ...] = ()


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
        epochs: Length of the training run that it is the throughput of.
        is_predicted: Whether nothing was measured, and all is what the probe lets expect.
        baseline: What it is compared with; None when the baseline could not run.
        speedup: Throughput over the baseline's, from pairs of the same round; None when the baseline could not run.
        speedup_ci95: Its 95 % interval; None when the run was not confirmed.
        verdict: `faster`, or `keep` when the gain is within noise and the baseline was kept.
        ceiling_samples_per_second: What the step alone reaches on a batch that is always ready.
        data_wait_fraction: Share of the run that the step spent waiting for data.
        batch_waits: How long it waited for single batches; None where that is not known.
        bottleneck: What bounds it: the training step, the CPUs, waiting for input and output, the transfer from
            workers, the copy to the device, or starting epochs.
        peak_host_bytes: Largest host memory seen: private and shared pages of the process tree.
        peak_shm_bytes: Largest use of `/dev/shm` seen.
        peak_gpu_bytes: Largest device memory the allocator held; 0 on the CPU.
        copy_bytes_per_second: What the run copies to the device, bytes per second; None on the CPU.
        copy_ceiling: What copying alone reaches with memory pinned or pageable as in the answer; None likewise.
        by_batch_size: The best measured for each batch size, where several were searched.
        ranks: How those processes kept up with each other, by their number; empty for one process.
        rounds: What the confirmation measured of the baseline and each finalist; the medians and intervals above are
            derived from it. Empty in files of earlier versions.
        departures: What settings gave that left their convention, or that change training, over the configuration that
            keeps it, in the same rounds.
        ablation: What each setting gave, cumulatively, in the order in which a careful hand would set them.
        advice: What would help beyond the settings of a loader.
        warnings: What to know of the workload, the machine or the measurement.
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
    """The budgets under which a profile was tuned, for one training process.

    Attributes:
        memory_bytes: Host memory of the process and its workers.
        shm_bytes: Their use of `/dev/shm`.
        nofile: Open files of each process.
        gpu_bytes: Device memory; None on the CPU.
        max_workers: The most workers that were considered.
    """

    memory_bytes: BoundedBytes
    shm_bytes: BoundedBytes
    nofile: BoundedCount
    gpu_bytes: BoundedBytes | None = None
    max_workers: BoundedCount


class PastResult(Configured):
    """What an earlier tuning of the same profile had found.

    Attributes:
        config: Its answer.
        created_at: When it ended.
        samples_per_second: What it promised.
        torch: Version of torch then.
    """

    created_at: AwareDatetime
    samples_per_second: BoundedRate
    torch: str


class TunedProfile(Configured):
    """One profile of dltune.json: the best configuration for one workload on one machine.

    Attributes:
        config: The answer.
        name: Name of the profile, made of the machine and a digest of the workload.
        hardware: The machine that it was measured on.
        software: The versions that it was measured with.
        workload: What was tuned.
        result: What was measured of the answer.
        budgets: Within which it was found.
        search: How it was found.
        evidence: What it rests on.
        nodes: What it was seen to reach on machines like that one; None where nobody has looked.
        request: What was asked for, to ask for it again; None in files of earlier versions, as is evidence.
        history: Earlier results of this profile, oldest first.
        created_at: When the tuning ended.
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
    """The whole of dltune.json.

    Attributes:
        $schema: Name of this schema.
        schema_version: Version of it; files of earlier ones are read as well.
        profiles: One for each machine and workload.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    schema_id: str = Field(default=SCHEMA_ID, alias="$schema")
    schema_version: Literal[2]
    profiles: tuple[TunedProfile, ...] = ()
