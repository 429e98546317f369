"""A profile in parts, for pages that set them side by side: headline, figures, settings, where they come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autotune.config import CONFIDENCE, LoaderConfig
from autotune.profiles.identity import WorkloadIdentity
from autotune.profiles.schema import TunedProfile
from autotune.report.reproduce import describe_command
from autotune.report.text import (
    BOTTLENECKS,
    describe_gpu,
    describe_rank_waits,
    describe_time_spent,
    describe_workers,
    is_estimated,
    warnings_of,
)
from autotune.report.usage import usage_snippet
from autotune.settings import process_settings
from autotune.system.hardware import Hardware, Software
from autotune.units import format_bytes, format_percent, format_rate, format_seconds


def collect_parts(profile: TunedProfile, file: str) -> dict[str, Any]:
    """Give what both forms of the report are filled with, by the names that their templates use."""
    return {
        "profile": profile,
        "headline": describe_headline(profile),
        "figures": list_figures(profile),
        "settings": list_settings(profile),
        "use": usage_snippet(profile, file),
        "notes": warnings_of(profile),
        "is_estimated": is_estimated(profile.result.ablation),
        "command": describe_command(profile.request),
        "facts": provenance(profile),
    }


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of the result, and how sure it is or what to compare it with."""

    label: str
    number: str
    unit: str = ""
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting as Python writes it, and what it was in the baseline where that is another value."""

    name: str
    value: str
    was: str | None = None


def describe_headline(profile: TunedProfile) -> str:
    """Say the result in one line."""
    result, base = profile.result, profile.result.baseline
    if result.verdict == "no_change" and base is not None:
        return f"Keep {base.description}"
    if base is not None and result.speedup is not None:
        return f"{format_factor(result.speedup)} × the throughput of {base.description}"
    return f"{format_number(result.samples_per_second)} samples per second"


def describe_gain_found(profile: TunedProfile) -> str:
    """Say what stands behind the headline: what was reached before and is now, and how sure that is."""
    result, base = profile.result, profile.result.baseline
    if base is None or result.speedup is None:
        return ""
    reached = f"{format_number(result.samples_per_second)} samples/s"
    if result.verdict == "no_change":
        return f"{reached}; no gain beyond noise was found"
    before = f"{reached} instead of {format_number(base.samples_per_second)}"
    if result.speedup_ci95 is None:
        return f"{before}, not confirmed"
    low, high = (format_factor(bound) for bound in result.speedup_ci95)
    return f"{before}; {low} to {high} × with {format_percent(CONFIDENCE)} certainty"


def describe_what_binds(profile: TunedProfile) -> str:
    """Say in a sentence or two what keeps the answer from being faster, before what is advised about it."""
    result = profile.result
    waits = format_percent(result.wait_share)
    bound = f"Bound by {BOTTLENECKS[result.bottleneck]}; waiting for data takes {waits} of the time."
    return bound if result.advice else f"{bound} Nothing beyond the settings stood out."


def format_factor(factor: float) -> str:
    """Write a factor with three significant digits."""
    return f"{factor:.{2 if factor < 10 else 1 if factor < 100 else 0}f}"


def format_number(samples_per_second: float) -> str:
    """Write a throughput without its unit."""
    return format_rate(samples_per_second).removesuffix("/s")


def list_figures(profile: TunedProfile) -> list[Figure]:
    """List the numbers of the result, the throughput first."""
    shows = (_show_throughput, _show_ranks, _show_speedup, _show_waiting, _show_ceiling)
    more = (_show_memory, _show_device_memory, _show_copies)
    return [figure for show in (*shows, *more) if (figure := show(profile)) is not None]


def _show_throughput(profile: TunedProfile) -> Figure:
    result, parts = profile.result, []
    if result.samples_per_second_ci95 is not None:
        low, high = (format_number(bound) for bound in result.samples_per_second_ci95)
        parts.append(f"{low} to {high} ({format_percent(CONFIDENCE)})")
    rounds = result.validation_runs
    unconfirmed = "predicted from the probe, not measured" if result.is_predicted else "seen once, not confirmed"
    parts.append(f"median of {rounds} rounds in fresh processes" if rounds else unconfirmed)
    return Figure("Throughput", format_number(result.samples_per_second), "samples/s", ", ".join(parts))


def _show_ranks(profile: TunedProfile) -> Figure | None:
    ranks = profile.workload.nproc_per_node
    if ranks == 1:
        return None
    together = format_number(ranks * profile.result.samples_per_second)
    remark = f"{describe_workers(profile)}{describe_rank_waits(profile)}"
    return Figure(f"All {ranks} training processes", together, "samples/s", remark)


def _show_speedup(profile: TunedProfile) -> Figure | None:
    result, base = profile.result, profile.result.baseline
    if base is None or result.speedup is None:
        return None
    than = f"over {base.description} at {format_rate(base.samples_per_second)}"
    if result.verdict == "no_change":
        return Figure("Speed-up", "none", remark=f"no gain beyond noise {than}")
    if result.speedup_ci95 is not None:
        low, high = (format_factor(bound) for bound in result.speedup_ci95)
        than = f"{low} to {high} ({format_percent(CONFIDENCE)}) {than}"
    return Figure("Speed-up", f"{format_factor(result.speedup)} ×", remark=than)


def _show_waiting(profile: TunedProfile) -> Figure:
    result, base = profile.result, profile.result.baseline
    before = "" if base is None or result.verdict == "no_change" else f"{format_percent(base.wait_share)} before; "
    tails = "" if result.batch_waits is None else f"; for a batch {result.batch_waits.describe()}"
    remark = f"{before}bound by {BOTTLENECKS[result.bottleneck]}{tails}"
    return Figure("Waiting for data", format_percent(result.wait_share), "of the time", remark)


def _show_ceiling(profile: TunedProfile) -> Figure | None:
    ceiling = profile.result.upper_bound_samples_per_second
    if not ceiling:
        return None
    remark = f"of {format_rate(ceiling)}, which the step reaches on batches that are always ready"
    share = format_percent(profile.result.samples_per_second / ceiling)
    return Figure("Of the step's ceiling", share, remark=remark)


def _show_memory(profile: TunedProfile) -> Figure | None:
    result, budgets = profile.result, profile.budgets
    if not result.peak_host_bytes:
        return None
    shm = f"/dev/shm {format_bytes(result.peak_shm_bytes)} of {format_bytes(budgets.shm_bytes)}"
    remark = f"of {format_bytes(budgets.memory_bytes)} allowed; {shm}"
    return Figure("Peak host memory", format_bytes(result.peak_host_bytes), remark=remark)


def _show_device_memory(profile: TunedProfile) -> Figure | None:
    used, allowed = profile.result.peak_gpu_bytes, profile.budgets.gpu_bytes
    if not used:
        return None
    remark = f"of {format_bytes(allowed)} allowed" if allowed is not None else ""
    return Figure("Peak device memory", format_bytes(used), remark=remark)


def _show_copies(profile: TunedProfile) -> Figure | None:
    rate, ceiling = profile.result.copy_bytes_per_second, profile.result.copy_ceiling
    if rate is None or ceiling is None:
        return None
    remark = f"of {ceiling / 1e9:.1f} GB/s, which copying alone reaches"
    return Figure("Copied to the device", f"{rate / 1e9:.1f}", "GB/s", remark)


def list_settings(profile: TunedProfile) -> list[Setting]:
    """List the tuned settings, and what they were in the baseline; those of workers only where there are some."""
    config, base = profile.config, profile.result.baseline
    values = config.loader_kwargs()
    values = {
        name: values[name] for name in ("num_workers", "batch_size", "prefetch_factor") if name in values
    } | values
    values |= process_settings(config) | config.knobs
    return [_make_setting(name, value, config if base is None else base.config) for name, value in values.items()]


def _make_setting(name: str, value: Any, base: LoaderConfig) -> Setting:
    was = base.by_name().get(name)
    return Setting(name, str(value), None if was == value else "unset" if was is None else str(was))


def provenance(profile: TunedProfile) -> list[tuple[str, str]]:
    """List where and how the configuration was found, each with its name."""
    found = profile.search
    counts = f"{found.trials} trials: {found.feasible} measured, {found.infeasible} failed, {found.skipped} skipped"
    facts = [
        ("Machine", _describe_machine(profile.hardware)),
        ("Software", _describe_software(profile.software)),
        ("Workload", _describe_workload(profile.workload)),
        ("Step", profile.workload.step),
        ("Stands for", f"a training run of {profile.result.epochs} epochs"),
        ("Search", f"{counts}, in {format_seconds(found.seconds)}, sampler {found.sampler}, seed {found.seed}"),
    ]
    facts += [(f"Time of {spent.phase}", describe_time_spent(spent)) for spent in found.time_spent]
    if found.prediction_error is not None:
        facts.append(("Predictions", f"were {format_percent(found.prediction_error)} off before a trial, median"))
    return facts


def _describe_machine(there: Hardware) -> str:
    memory = f"RAM {format_bytes(there.memory_limit_bytes)}, /dev/shm {format_bytes(there.shm_limit_bytes)}"
    return f"{there.cpu or 'unknown CPU'}, {there.usable_cpus:g} CPUs usable, {describe_gpu(there)}, {memory}"


def _describe_software(software: Software) -> str:
    cuda = f", CUDA {software.cuda}" if software.cuda else ""
    return f"dltune {software.dltune}, torch {software.torch}{cuda}, Python {software.python}, {software.start_method}"


def _describe_workload(workload: WorkloadIdentity) -> str:
    samples = "samples of unknown number" if workload.samples is None else f"{workload.samples:,} samples"
    return f"{workload.title}: {samples} of {format_bytes(workload.sample_bytes)}"
