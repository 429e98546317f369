"""The answer in parts, for pages that set them side by side: headline, figures, settings, the code to use it."""

from __future__ import annotations

from typing import Final

from autotune.config import FrozenModel, Interval, LoaderConfig
from autotune.profiles.schema import Baseline, ProfileResult, TunedProfile, WorkloadIdentity
from autotune.report.text import BOTTLENECKS, describe_use_in_code
from autotune.system.hardware import Software
from autotune.units import format_bytes, format_percent, format_rate, format_seconds

DEFAULTS: Final = {
    "prefetch_factor": "None",
    "persistent_workers": "False",
    "in_order": "True",
    "sharing_strategy": "file_descriptor",
    "multiprocessing_context": "None",
    "device_prefetch": "False",
}  # of DataLoader, for what a configuration without workers does not say


class Figure(FrozenModel):
    """One number of the answer.

    Attributes:
        label: What it is.
        number: The number.
        unit: Its unit; may be empty.
        remark: How sure it is, or what to compare it with.
    """

    label: str
    number: str
    unit: str = ""
    remark: str = ""


class Setting(FrozenModel):
    """One setting of the answer.

    Attributes:
        name: As DataLoader calls it.
        value: Its value, as Python writes it.
        was: The baseline's value where that is another one; else None.
    """

    name: str
    value: str
    was: str | None = None


def describe_headline(profile: TunedProfile) -> str:
    """Say the answer in one line."""
    result, base = profile.result, profile.result.baseline
    if result.verdict == "keep" and base is not None:
        return f"Keep {base.description}"
    if base is not None and result.speedup is not None:
        return f"{format_factor(result.speedup)} × the throughput of {base.description}"
    return f"{format_number(result.samples_per_second)} samples per second"


def format_factor(factor: float) -> str:
    """Write a factor with three significant digits."""
    return f"{factor:.{2 if factor < 10 else 1 if factor < 100 else 0}f}"


def format_number(samples_per_second: float) -> str:
    """Write a throughput without its unit."""
    return format_rate(samples_per_second).removesuffix("/s")


def list_figures(profile: TunedProfile) -> list[Figure]:
    """List the numbers of the answer, the promise first."""
    result = profile.result
    figures = (
        _show_throughput(result),
        _show_speedup(result, result.baseline),
        _show_waiting(result, result.baseline),
        _show_ceiling(result),
        _show_memory(profile),
        _show_device_memory(profile),
        _show_copies(result),
    )
    return [figure for figure in figures if figure is not None]


def _show_throughput(result: ProfileResult) -> Figure:
    interval, rounds = result.samples_per_second_ci95, result.confirmed_rounds
    parts = [_describe_interval(interval)] if interval is not None else []
    parts += [f"median of {rounds} rounds in fresh processes" if rounds else "seen once, not confirmed"]
    number = format_number(result.samples_per_second)
    return Figure(label="Throughput", number=number, unit="samples/s", remark=", ".join(parts))


def _describe_interval(interval: Interval) -> str:
    return f"{format_number(interval[0])} to {format_number(interval[1])} (95 %)"


def _show_speedup(result: ProfileResult, base: Baseline | None) -> Figure | None:
    if base is None or result.speedup is None:
        return None
    than = f"{base.description} at {format_rate(base.samples_per_second)}"
    if result.verdict == "keep":
        return Figure(label="Speed-up", number="none", remark=f"no gain beyond noise over {than}")
    interval = ""
    if result.speedup_ci95 is not None:
        low, high = (format_factor(bound) for bound in result.speedup_ci95)
        interval = f"{low} to {high} (95 %) "
    return Figure(label="Speed-up", number=f"{format_factor(result.speedup)} ×", remark=f"{interval}over {than}")


def _show_waiting(result: ProfileResult, base: Baseline | None) -> Figure:
    before = "" if base is None or result.verdict == "keep" else f"{format_percent(base.data_wait_fraction)} before; "
    number, unit = format_percent(result.data_wait_fraction), "of the time"
    remark = f"{before}bound by {BOTTLENECKS[result.bottleneck]}"
    return Figure(label="Waiting for data", number=number, unit=unit, remark=remark)


def _show_ceiling(result: ProfileResult) -> Figure | None:
    ceiling = result.ceiling_samples_per_second
    if not ceiling:
        return None
    share = format_percent(result.samples_per_second / ceiling)
    remark = f"of {format_rate(ceiling)}, which the step reaches on batches that are always ready"
    return Figure(label="Of the step's ceiling", number=share, remark=remark)


def _show_memory(profile: TunedProfile) -> Figure | None:
    result, budgets = profile.result, profile.budgets
    if not result.peak_host_bytes:
        return None
    shm = f"/dev/shm {format_bytes(result.peak_shm_bytes)} of {format_bytes(budgets.shm_bytes)}"
    remark = f"of {format_bytes(budgets.memory_bytes)} allowed; {shm}"
    return Figure(label="Peak host memory", number=format_bytes(result.peak_host_bytes), remark=remark)


def _show_device_memory(profile: TunedProfile) -> Figure | None:
    used, allowed = profile.result.peak_gpu_bytes, profile.budgets.gpu_bytes
    if not used:
        return None
    remark = f"of {format_bytes(allowed)} allowed" if allowed is not None else ""
    return Figure(label="Peak device memory", number=format_bytes(used), remark=remark)


def _show_copies(result: ProfileResult) -> Figure | None:
    if result.copy_bytes_per_second is None or result.copy_ceiling is None:
        return None
    remark = f"of {result.copy_ceiling / 1e9:.1f} GB/s, which copying alone reaches"
    return Figure(
        label="Copied to the device", number=f"{result.copy_bytes_per_second / 1e9:.1f}", unit="GB/s", remark=remark
    )


def list_settings(profile: TunedProfile) -> list[Setting]:
    """List the settings of the answer, and what they were in the baseline."""
    base, values = profile.result.baseline, _list_values(profile.config)
    before = values
    if base is not None:
        before = DEFAULTS | _list_values(base.config)
    return [
        Setting(name=name, value=value, was=before[name] if before[name] != value else None)
        for name, value in values.items()
    ]


def _list_values(config: LoaderConfig) -> dict[str, str]:
    """List what a configuration sets, as Python writes it; the sharing strategy only where it means something."""
    values = config.loader_kwargs()
    order = ("num_workers", "batch_size", "prefetch_factor")
    ranked = {name: values[name] for name in order if name in values} | values
    if config.dataloader.num_workers:
        ranked["sharing_strategy"] = config.process.sharing_strategy
    if config.process.device_prefetch:
        ranked["device_prefetch"] = True
    return {name: str(value) for name, value in ranked.items()}


def usage_snippet(profile: TunedProfile, file: str) -> str:
    """Write the code that loads the answer."""
    return f"import autotune\n\nloader = {describe_use_in_code(profile, profile.workload.kind or 'map', file)}"


def usage_snippet_without_dltune(profile: TunedProfile) -> str:
    """Write the code that says the answer without dltune."""
    lines = []
    if profile.process.sharing_strategy != "file_descriptor":
        lines.append(f"torch.multiprocessing.set_sharing_strategy({profile.process.sharing_strategy!r})")
    arguments = ["dataset"]
    if profile.dataloader.batch_size is None:
        arguments.append("**your_own_batching")
    elif profile.workload.kind != "iterable":  # which DataLoader refuses to shuffle
        arguments.append("shuffle=True")
    arguments += [f"{name}={value!r}" for name, value in profile.config.loader_kwargs().items()]
    lines += ["loader = DataLoader(", *(f"    {argument}," for argument in arguments), ")"]
    if profile.process.device_prefetch:
        lines.append("loader = autotune.device_prefetch(loader, device)")
    return "\n".join(lines)


def provenance(profile: TunedProfile) -> list[tuple[str, str]]:
    """List where and how the answer was found, each with its name."""
    there, software, found = profile.hardware, profile.software, profile.search
    gpu = f"{there.gpu_count}x {there.gpu}" if there.gpu else "no GPU"
    memory = f"RAM {format_bytes(there.memory_limit_bytes)}, /dev/shm {format_bytes(there.shm_limit_bytes)}"
    counts = f"{found.trials} trials: {found.feasible} measured, {found.infeasible} failed, {found.skipped} skipped"
    facts = [
        ("Machine", f"{there.cpu or 'unknown CPU'}, {there.usable_cpus:g} CPUs usable, {gpu}, {memory}"),
        ("Software", _describe_software(software)),
        ("Workload", _describe_workload(profile.workload)),
        ("Step", profile.workload.step),
        ("Stands for", f"a training run of {profile.result.epochs} epochs"),
        ("Search", f"{counts}, in {format_seconds(found.seconds)}, sampler {found.sampler}, seed {found.seed}"),
    ]
    if found.prediction_error is not None:
        facts.append(("Predictions", f"were {format_percent(found.prediction_error)} off before a trial, median"))
    return facts


def _describe_software(software: Software) -> str:
    cuda = f", CUDA {software.cuda}" if software.cuda else ""
    return f"dltune {software.dltune}, torch {software.torch}{cuda}, Python {software.python}, {software.start_method}"


def _describe_workload(workload: WorkloadIdentity) -> str:
    samples = "samples of unknown number" if workload.samples is None else f"{workload.samples:,} samples"
    return f"{workload.dataset}: {samples} of {format_bytes(workload.sample_bytes)}"
