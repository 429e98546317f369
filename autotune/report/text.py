"""Puts configurations, failures and results into words. Returns text; prints nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from autotune.trial.budgets import Limits, Violation
from autotune.system.machine import MachineProfile
from autotune.trial.protocol import TrialResult, WorkloadProfile
from autotune.profiles.schema import Contribution, DataLoaderSettings, LoaderConfig, ProfileResult, TunedConfig
from autotune.units import format_bytes, format_percent, format_rate, format_seconds

BOTTLENECKS: Final = {
    "step": "the training step",
    "cpu": "the CPUs, busy loading",
    "waiting": "waiting for the data's source",
    "transfer": "handing batches over between processes",
    "copy": "copying to the device",
    "epoch": "starting over at every epoch",
    "unknown": "unknown",
}


def describe_config(config: LoaderConfig) -> str:
    """Describe a configuration in a few columns, as in `w=11 pf=4 bs=64 pin persistent`."""
    loader = config.dataloader
    words = [f"w={loader.num_workers}"]
    words += [f"pf={loader.prefetch_factor}"] if loader.num_workers else []
    words += [f"bs={loader.batch_size}"] if loader.batch_size is not None else []
    return " ".join([*words, *describe_flags(config)])


def describe_flags(config: LoaderConfig) -> list[str]:
    """List the switches that are not at their defaults, in a word each."""
    loader = config.dataloader
    flags = {
        "pin": loader.pin_memory,
        "persistent": loader.persistent_workers,
        "out-of-order": not loader.in_order,
        "file_system": config.process.sharing_strategy == "file_system",
        "device-prefetch": config.process.device_prefetch,
    }
    return [name for name, is_set in flags.items() if is_set]


def describe_settings(settings: DataLoaderSettings) -> str:
    """Describe loader settings by DataLoader's own argument names."""
    words = [f"num_workers={settings.num_workers}"]
    if settings.num_workers:
        words.append(f"prefetch_factor={settings.prefetch_factor}")
    words += [name for name in ("pin_memory", "persistent_workers") if getattr(settings, name)]
    if not settings.in_order:
        words.append("in_order=False")
    return " ".join(words)


def describe_machine(machine: MachineProfile, limits: Limits) -> str:
    """Describe what the machine allows in one line."""
    return "   ".join(
        (
            f"{machine.usable_cpus:g} of {machine.affinity_cpus} CPUs ({machine.cpu_source})",
            f"RAM cap {format_bytes(limits.memory_bytes)}",
            f"/dev/shm cap {format_bytes(limits.shm_bytes)}",
            f"{limits.nofile:,} files",
        )
    )


def describe_workload(workload: WorkloadProfile, ceiling: float) -> str:
    """Describe what the probe found in one line."""
    size = workload.probe_batch_size
    load, step = workload.load.per_batch(size), workload.step.per_batch(size)
    words = (
        f"batch of {size}: {format_bytes(size * workload.sample_bytes)}",
        f"{format_seconds(load / size)}/sample (CPU {format_percent(workload.cpu_share)})",
        f"step {format_seconds(step)}",
        f"step ceiling {format_rate(ceiling)}",
        "loader-bound" if load > step else "step-bound",
    )
    return "   ".join([*words, *_describe_device(workload)])


def _describe_device(workload: WorkloadProfile) -> list[str]:
    """Name the accelerator and the way to it, where there is one."""
    if workload.accelerator is None:
        return []
    copies = workload.copies
    if copies is None:
        return [workload.accelerator.name]
    rates = f"copies {copies.pageable / 1e9:.1f} GB/s, {copies.pinned / 1e9:.1f} GB/s pinned"
    return [workload.accelerator.name, f"{rates}, {format_percent(copies.overlap)} of one hidden by computing"]


def describe_failure(number: int, result: TrialResult) -> str:
    """Say in one sentence what became of a failed trial."""
    loader = result.config.dataloader
    size = f", batch_size={loader.batch_size}" if loader.batch_size is not None else ""
    return f"Trial {number} (num_workers={loader.num_workers}{size}) {result.message}."


def describe_skip(violations: Iterable[Violation]) -> str:
    """Say which limits a skipped configuration would break."""
    return "; ".join(violation.describe() for violation in violations)


def describe_outcome(
    profile: TunedConfig, kind: str, runner_up: LoaderConfig | None, output: str, *, interrupted: bool
) -> str:
    """Write the summary that ends a run.

    Args:
        profile: The profile as it was saved.
        kind: `map` or `iterable`: only the former can be shuffled by a loader.
        runner_up: A faster configuration passed over for a smaller one within noise.
        output: Path of the tuned file.
        interrupted: Whether the run was cut short.

    Returns:
        Several lines of text.
    """
    lines = [_describe_best(profile), f"  {_describe_numbers(profile.result)}", f"  {_describe_use(profile)}"]
    if runner_up is not None:
        lines.append(f"  {describe_config(runner_up)} was faster within noise; the one that costs less was chosen")
    if interrupted:
        rounds = profile.result.confirmed_rounds
        state = f"confirmed in {rounds} rounds" if rounds else "not confirmed"
        lines.append(f"  cut short: this is the best so far, {state}; run the same command again to continue")
    lines += describe_caveats(profile)
    lines.append(f"Wrote {output} (profile {profile.name}).   Training code:")
    lines.append(f"  {describe_use_in_code(profile, kind, output)}")
    return "\n".join(lines)


def describe_use_in_code(profile: TunedConfig, kind: str, output: str) -> str:
    """Write the line of training code that puts all of the answer in force.

    Args:
        profile: The profile.
        kind: `map` or `iterable`: only the former can be shuffled by a loader.
        output: Path of the tuned file.

    Returns:
        One line of Python.
    """
    if profile.dataloader.batch_size is None:
        own = "**your_own_batching, "
    else:
        own = "shuffle=True, " if kind == "map" else ""
    plain = f'DataLoader(dataset, {own}**autotune.load("{output}").loader_kwargs())'
    if profile.process.sharing_strategy != "file_descriptor":
        plain = f'autotune.load("{output}").make_loader(dataset, {own}'.removesuffix(", ") + ")"
    return f"autotune.device_prefetch({plain}, device)" if profile.process.device_prefetch else plain


def _describe_best(profile: TunedConfig) -> str:
    size = profile.dataloader.batch_size
    batch = "your own batches" if size is None else f"batch_size={size}"
    strategy = profile.process.sharing_strategy
    extra = "" if strategy == "file_descriptor" else f" sharing_strategy={strategy}"
    extra += " device_prefetch" if profile.process.device_prefetch else ""
    label = "Keep:" if profile.result.verdict == "keep" else "Best:"
    return f"{label}  {describe_settings(profile.dataloader)}{extra}   ({batch})"


def _describe_numbers(result: ProfileResult) -> str:
    interval = result.samples_per_second_ci95
    words = [f"{result.samples_per_second:,.0f} samples/s"]
    if interval is not None:
        words[0] += f" [{interval[0]:,.0f}-{interval[1]:,.0f}]"
    base = result.baseline
    if result.verdict == "keep" and base is not None:
        words.append(f"no gain beyond noise over {base.description}")
    elif base is not None and result.speedup is not None:
        words.append(f"{_describe_speedup(result)} x {base.description}")
        words.append(
            f"waiting for data {format_percent(base.data_wait_fraction)} -> {format_percent(result.data_wait_fraction)}"
        )
    elif base is None and result.confirmed_rounds:
        words.append("the baseline could not run here")
    if result.ceiling_samples_per_second:
        words.append(f"{format_percent(result.samples_per_second / result.ceiling_samples_per_second)} of the ceiling")
    return "   ".join(words)


def _describe_speedup(result: ProfileResult) -> str:
    assert result.speedup is not None
    if result.speedup_ci95 is None:
        return f"{result.speedup:.2f}"
    low, high = result.speedup_ci95
    return f"{result.speedup:.2f} [{low:.2f}-{high:.2f}]"


def _describe_use(profile: TunedConfig) -> str:
    result, limits = profile.result, profile.limits
    words = (
        f"peak host {format_bytes(result.peak_host_bytes)} of {format_bytes(limits.memory_bytes)}",
        f"shm {format_bytes(result.peak_shm_bytes)} of {format_bytes(limits.shm_bytes)}",
        f"bound by {BOTTLENECKS[result.bottleneck]}{_describe_copies(result)}",
        f"confirmed in {result.confirmed_rounds} interleaved rounds" if result.confirmed_rounds else "not confirmed",
    )
    return "   ".join(words)


def _describe_copies(result: ProfileResult) -> str:
    """Say how near the copies of a run that they bound come to what copying alone reaches."""
    if result.bottleneck != "copy" or result.copy_bytes_per_second is None or result.copy_ceiling is None:
        return ""
    return f" ({result.copy_bytes_per_second / 1e9:.1f} of {result.copy_ceiling / 1e9:.1f} GB/s)"


def describe_caveats(profile: TunedConfig) -> list[str]:
    """List what the reader must know before using the answer: knobs that change training, and warnings."""
    result = profile.result
    lines = [f"  What each setting gave:  {_describe_contributions(result)}"] if result.contributions else []
    lines += [f"  advice: {sentence}" for sentence in result.advice]
    return lines + [f"  note: {note}" for note in list_notes(profile)]


def list_notes(profile: TunedConfig) -> list[str]:
    """List the warnings of a run, and the knobs that change training beside its speed, each as a sentence."""
    result = profile.result
    notes = [describe_departure(departure) for departure in result.departures] + list(result.warnings)
    if len(result.by_batch_size) > 1:
        best = ", ".join(f"{format_rate(row.samples_per_second)} at {row.batch_size}" for row in result.by_batch_size)
        notes.append(f"batch_size changes training, not only speed; pin it with --batch-size N; best seen: {best}")
    if profile.hardware.gpu is not None and profile.process.non_blocking:
        notes.append("measured with batch.to(device, non_blocking=True): copy so in training code, too")
    if not profile.dataloader.in_order:
        notes.append("in_order=False changes the order of batches; pin it with --fix in_order=true")
    return notes


def _describe_contributions(result: ProfileResult) -> str:
    return "   + ".join(f"{row.setting} {describe_gain(row)}" for row in result.contributions)


def describe_gain(step: Contribution) -> str:
    """Write what a setting gave, as in `1.44x [1.36-1.52]`, and say so where that is within noise."""
    if step.speedup_ci95 is None:
        return f"{step.speedup:.2f}x"
    low, high = step.speedup_ci95
    noise = " (within noise)" if step.is_noise else ""
    return f"{step.speedup:.2f}x [{low:.2f}-{high:.2f}]{noise}"


def describe_departure(departure: Contribution) -> str:
    """Say what leaving a convention gained, as in `in_order=False pays: 1.25x [1.18-1.33] over what is usual`."""
    return f"{departure.setting} pays: {describe_gain(departure)} over the usual setting, measured in the same rounds"


def describe_profile(profile: TunedConfig) -> str:
    """Describe a saved profile for `dltune show`."""
    there, found, software = profile.hardware, profile.search, profile.software
    gpu = f"{there.gpu_count}x {there.gpu}" if there.gpu else "no GPU"
    lines = [
        f"{profile.name}   {profile.workload.dataset}   {profile.created_at:%Y-%m-%d %H:%M} UTC",
        f"  {gpu}   {there.usable_cpus:g} CPUs   RAM {format_bytes(there.memory_limit_bytes)}   "
        f"/dev/shm {format_bytes(there.shm_limit_bytes)}   torch {software.torch}   Python {software.python}",
        f"  {_describe_best(profile)}",
        f"  {_describe_numbers(profile.result)}",
        f"  {_describe_use(profile)}",
        f"  {found.trials} trials ({found.feasible} ok, {found.infeasible} infeasible, {found.skipped} skipped) in "
        f"{format_seconds(found.seconds)}: {found.stopped}",
    ]
    if found.prediction_error is not None:
        lines.append(f"  the model's predictions were {format_percent(found.prediction_error)} off, median")
    return "\n".join([*lines, *describe_caveats(profile)])
