"""Small functions that build valid values, so that a test names only what it is about."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from typing import Any

from autotune.config import DataLoaderSettings, LoaderConfig, ProcessSettings
from autotune.profiles.schema import (
    Baseline,
    Budgets,
    CandidateResult,
    Contribution,
    ProfileResult,
    SearchRecord,
    TrialSummary,
    TunedFile,
    TunedProfile,
    WorkloadIdentity,
)
from autotune.protocol.measurement import EpochTrace, Measurement, TrialResult, TrialStatus
from autotune.protocol.workload_profile import H2DBandwidth, LinearCost, WorkloadProfile
from autotune.request import TuningRequest, WorkloadRequest
from autotune.system.cgroups import CpuCounters, CpuThrottling
from autotune.system.machine import Accelerator, Hardware, MachineProfile, Software
from autotune.validation.candidate_runs import CandidateRuns

KIB = 1024
MIB = 1024**2
GIB = 1024**3


def make_machine(**changes: Any) -> MachineProfile:
    """Build a machine of 4 CPUs, 16 GiB and 8 GiB of /dev/shm."""
    usual: dict[str, Any] = {
        "cpu": "Test CPU",
        "affinity_cpus": 4,
        "quota_cpus": None,
        "memory_limit_bytes": 16 * GIB,
        "memory_available_bytes": 12 * GIB,
        "shm_limit_bytes": 8 * GIB,
        "shm_free_bytes": 8 * GIB,
        "shm_writable": True,
        "nofile_limit": 1024,
    }
    return MachineProfile(**usual | changes)


def make_counters(
    busy: float = 0.0, total: float = 0.0, steal: float = 0.0, quotas: Sequence[tuple[int, int]] = ()
) -> CpuCounters:
    """Build counters of CPU time; each quota is a pair of periods and throttled periods."""
    uses = tuple(CpuThrottling(periods=periods, throttled_periods=throttled) for periods, throttled in quotas)
    return CpuCounters(busy_seconds=busy, total_seconds=total, steal_seconds=steal, throttling=uses)


def make_software() -> Software:
    return Software(dltune="0.1.0", torch="2.13.0", cuda=None, python="3.11.7", start_method="fork")


def make_cost(sample_seconds: float, fixed_seconds: float = 0.0) -> LinearCost:
    return LinearCost(fixed=fixed_seconds, per_item=sample_seconds)


def make_workload(**changes: Any) -> WorkloadProfile:
    """Build a map-style workload of 1,000 samples of 4 KiB that take 1 ms each, before a step of 2 ms."""
    usual: dict[str, Any] = {
        "description": "Images",
        "kind": "map",
        "samples": 1000,
        "batching": "batch_size",
        "probe_batch_size": 32,
        "load_cost": make_cost(1e-3),
        "cpu_share": 1.0,
        "step_cost": make_cost(0.0, 2e-3),
        "sample_bytes": 4096,
        "batch_tensors": 2,
        "software": make_software(),
        "rss_bytes": 256 * MIB,
    }
    return WorkloadProfile(**usual | changes)


def make_gpu_workload(**changes: Any) -> WorkloadProfile:
    """Build samples of 1 MB for a GPU of 80 GiB: copied at 4 GB/s, at 12 GB/s from pinned memory."""
    usual: dict[str, Any] = {
        "accelerator": Accelerator(name="NVIDIA H100 80GB HBM3", memory_bytes=80 * GIB),
        "gpu_free_bytes": 78 * GIB,
        "gpu_bytes": LinearCost(fixed=GIB, per_item=8 * MIB),
        "pinning": True,
        "h2d": H2DBandwidth(pageable=4e9, pinned=12e9),
        "sample_bytes": 1_000_000,
        "load_cost": make_cost(1e-4),
        "step_cost": make_cost(5e-5),
    }
    return make_workload(**usual | changes)


def make_limits(**changes: Any) -> Budgets:
    usual: dict[str, Any] = {
        "memory_bytes": 8 * GIB,
        "reserve_bytes": GIB // 2,
        "shm_bytes": 4 * GIB,
        "nofile": 1024,
        "max_workers": 64,
    }
    return Budgets(**usual | changes)


def make_request(**changes: Any) -> TuningRequest:
    return TuningRequest(**{"workload": WorkloadRequest(dataset="pkg.data:make_dataset")} | changes)


def make_multi_process_request(processes: int, **changes: Any) -> TuningRequest:
    """Build a request for this many training processes on the host."""
    workload = WorkloadRequest(dataset="pkg.data:make_dataset", nproc_per_node=processes)
    return TuningRequest(workload=workload, **changes)


def make_config(
    num_workers: int = 0,
    prefetch_factor: int = 2,
    batch_size: int | None = 32,
    process: ProcessSettings | None = None,
    **flags: bool,
) -> LoaderConfig:
    """Build a configuration; `prefetch_factor` counts only where there are workers."""
    extra: dict[str, Any] = {"prefetch_factor": prefetch_factor} if num_workers else {}
    loader = DataLoaderSettings(batch_size=batch_size, num_workers=num_workers, **extra, **flags)
    return LoaderConfig(dataloader=loader, process=process or ProcessSettings())


def make_trace(
    gaps: Sequence[float],
    turnover_seconds: float = 0.0,
    closed_after: int | None = None,
    samples_per_batch: int = 32,
    wait_seconds: float = 0.0,
) -> EpochTrace:
    """Build the trace of an epoch from the seconds between its batches."""
    times = tuple(accumulate(gaps))
    return EpochTrace(
        batch_seconds=times,
        end_seconds=(times[-1] if times else 0.0) + turnover_seconds,
        wait_seconds=wait_seconds,
        samples=len(times) * samples_per_batch,
        closed_after=closed_after,
    )


def make_measurement(*epochs: EpochTrace, epoch_batches: int | None) -> Measurement:
    return Measurement(epochs=epochs, epoch_batches=epoch_batches, stopped="done")


def make_measurement_of(rate: float, wait_share: float = 0.0) -> Measurement:
    """Build a measurement whose throughput is exactly `rate` samples per second, for any number of epochs."""
    seconds = 1000 / rate
    trace = make_trace([seconds / 10] * 10, samples_per_batch=100, wait_seconds=wait_share * seconds)
    return make_measurement(trace, epoch_batches=10)


def make_result(
    config: LoaderConfig, rate: float | None = None, status: TrialStatus = "completed", **changes: Any
) -> TrialResult:
    measurement = make_measurement_of(rate) if rate else None
    return TrialResult(status=status, config=config, measurement=measurement, **changes)


def make_candidate(config: LoaderConfig, *rates: float, **peaks: Any) -> CandidateRuns:
    """Build a candidate that was measured at these throughputs, one per run, with these peaks of memory."""
    candidate = CandidateRuns(config)
    for number, rate in enumerate(rates, start=1):
        candidate.add(number, make_result(config, rate, **peaks), epochs=10)
    return candidate


def make_hardware(**changes: Any) -> Hardware:
    return make_machine().hardware(None).model_copy(update=changes)


def make_profile(**changes: Any) -> TunedProfile:
    """Build a profile: 4 workers, batches of 64, 1.8x faster than the baseline."""
    usual: dict[str, Any] = {
        "hardware": make_hardware(),
        "software": make_software(),
        "workload": WorkloadIdentity(
            dataset="pkg.data:make_dataset", samples=1000, sample_bytes=4096, step="simulated 2.0 ms"
        ),
        "config": LoaderConfig(
            dataloader=changes.pop("dataloader", make_config(4, 2, 64, persistent_workers=True).dataloader),
            process=changes.pop("process", ProcessSettings()),
        ),
        "result": make_profile_result(),
        "budgets": Budgets(memory_bytes=8 * GIB, shm_bytes=4 * GIB, nofile=1024, max_workers=64),
        "search": make_search_record(),
        "request": make_request().record(),
        "created_at": datetime(2026, 1, 2, 3, 4, tzinfo=UTC),
    }
    return TunedProfile(**usual | changes)


def make_profile_result(**changes: Any) -> ProfileResult:
    usual: dict[str, Any] = {
        "samples_per_second": 1800.0,
        "samples_per_second_ci95": (1750.0, 1850.0),
        "validation_runs": 3,
        "epochs": 10,
        "baseline": Baseline(
            description="PyTorch's defaults",
            config=make_config(),
            samples_per_second=1000.0,
            wait_share=0.5,
            bottleneck="io",
        ),
        "speedup": 1.8,
        "speedup_ci95": (1.7, 1.9),
        "decision": "faster",
        "upper_bound_samples_per_second": 2000.0,
        "wait_share": 0.1,
        "bottleneck": "step",
        "peak_host_bytes": GIB,
        "peak_shm_bytes": 64 * MIB,
        "peak_gpu_bytes": 0,
    }
    return ProfileResult(**usual | changes)


def make_trial_summary(number: int = 1, config: LoaderConfig | None = None, **changes: Any) -> TrialSummary:
    """Build the summary of a trial that completed."""
    usual: dict[str, Any] = {
        "status": "completed",
        "samples_per_second": 1500.0,
        "relative_error": 0.05,
        "predicted_samples_per_second": 1400.0,
        "peak_host_bytes": GIB,
        "peak_shm_bytes": 32 * MIB,
    }
    return TrialSummary(number=number, config=config or make_config(4), **usual | changes)


def make_failed_summary(number: int, config: LoaderConfig, reason: str) -> TrialSummary:
    unknown = {"samples_per_second": None, "relative_error": None, "peak_host_bytes": 0, "peak_shm_bytes": 0}
    return make_trial_summary(number, config, status="failed", reason=reason, **unknown)


def make_search_record(**changes: Any) -> SearchRecord:
    """Build the search behind `make_profile`: five trials, of which one is its configuration and one failed."""
    usual: dict[str, Any] = {
        "trials": (
            make_trial_summary(1, make_config(), samples_per_second=990.0, peak_shm_bytes=0),
            make_trial_summary(2, make_config(4, 2, 64, persistent_workers=True), samples_per_second=1790.0),
            make_trial_summary(3, make_config(8, 2, 64, persistent_workers=True), samples_per_second=1750.0),
            make_trial_summary(4, make_config(2, 4, 32), samples_per_second=1200.0, status="stopped_early"),
            make_failed_summary(5, make_config(16, 8, 64), "It filled /dev/shm: 64 MiB used of 64 MiB."),
        ),
        "sampler": "model",
        "seed": 0,
        "seconds": 35.0,
        "phase_seconds": {"profiling": 5.0, "search": 20.0, "validation": 10.0},
        "stop_reason": "less than 2% gain in the last 4 trials",
        "scaling": {0: 980.0, 2: 1400.0, 4: 1780.0, 8: 1760.0},
        "batch_samples": 64,
    }
    return SearchRecord(**usual | changes)


def count_trials(profile: TunedProfile, outcome: str) -> int:
    """Count the trials of a search with this outcome."""
    return sum(trial.status == outcome for trial in profile.search.trials)


def make_candidate_result(config: LoaderConfig, *rates: float) -> CandidateResult:
    return CandidateResult(config=config, runs=dict(enumerate(rates, start=1)))


def make_contribution(setting: str, rate: float, speedup: float) -> Contribution:
    interval = 0.94 * speedup, 1.06 * speedup
    return Contribution(
        setting=setting, samples_per_second=rate, speedup=speedup, speedup_ci95=interval, is_estimate=True
    )


def make_full_profile(**changes: Any) -> TunedProfile:
    """Build a profile with everything that a report can show."""
    usual: dict[str, Any] = {
        "request": make_request(search={"batch_size": (32, 64)}).record(),
        "result": make_profile_result(
            candidates=(
                make_candidate_result(make_config(), 990.0, 1000.0, 1010.0),
                make_candidate_result(make_config(4, 2, 64, persistent_workers=True), 1790.0, 1800.0, 1815.0),
                CandidateResult(config=make_config(8), failures=("crashed: it died",)),
            ),
            gains=(
                Contribution(setting="batch_size=64", samples_per_second=1800.0, speedup=1.2, speedup_ci95=(1.1, 1.3)),
            ),
            contributions=(  # a gain, another one, a loss
                make_contribution("num_workers=4", 1600.0, 1.6),
                make_contribution("batch_size=64", 1920.0, 1.2),
                make_contribution("persistent_workers=True", 1800.0, 0.9375),
            ),
            advice=("Use __getitems__.",),
            warnings=("The samples differ in size.",),
        ),
    }
    return make_profile(**usual | changes)


def write_files(root: Path, files: dict[str, str]) -> Path:
    """Write a folder of small files, given by their paths below it."""
    root.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def write_profiles(folder: Path, *profiles: TunedProfile) -> Path:
    """Write a tuned file that holds these profiles."""
    path = folder / "dltune.json"
    path.write_text(TunedFile(profiles=profiles).model_dump_json(indent=2))
    return path
