"""A result in words, for the terminal: the sentences of it, and all of them, as `dltune show` says them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from autotune.config import Interval, LoaderConfig
from autotune.profiles.nodes import NodeSpread
from autotune.profiles.schema import AblationStep, ProfileResult, TunedProfile
from autotune.profiles.search_record import PhaseTime
from autotune.settings import SETTINGS, describe_loader
from autotune.system.hardware import Hardware
from autotune.units import format_bytes, format_percent, format_rate, format_seconds

BOTTLENECKS: Final = {
    "step": "the training step",
    "cpu": "the CPUs, busy loading",
    "io": "waiting for input and output (I/O-bound)",
    "transfer": "handing batches over between processes",
    "copy": "copying to the device",
    "epoch": "starting over at every epoch",
}
ACTIVITIES: Final = {
    "starting": "starting processes",
    "warming_up": "warming up",
    "measuring": "measuring",
    "taking_down": "taking down",
    "own": "dltune itself",
}


def describe_best(profile: TunedProfile) -> str:
    """Say which settings are the answer."""
    size = profile.dataloader.batch_size
    batch = "your own batches" if size is None else f"batch_size={size}"
    label = "Keep:" if profile.result.verdict == "no_change" else "Best:"
    settings = " ".join([describe_loader(profile.config), *_list_process_settings(profile.config)])
    return f"{label}  {settings}   ({batch})"


def _list_process_settings(config: LoaderConfig) -> list[str]:
    """List what is set beside the loader and not at its default, as in `sharing_strategy=file_system`."""
    beside = [(knob, knob.read(config)) for knob in SETTINGS.values() if knob.section == "process"]
    return [knob.name if value is True else f"{knob.name}={value}" for knob, value in beside if value != knob.default]


def describe_numbers(result: ProfileResult) -> str:
    """Say what the answer reaches, and how much faster that is."""
    interval = result.samples_per_second_ci95
    certainty = "" if interval is None else f" [{interval[0]:,.0f}-{interval[1]:,.0f}]"
    words = [f"{'predicted ' if result.is_predicted else ''}{result.samples_per_second:,.0f} samples/s{certainty}"]
    base = result.baseline
    if result.verdict == "no_change" and base is not None:
        words.append(f"no gain beyond noise over {base.description}")
    elif base is not None and result.speedup is not None:
        words.append(f"{_describe_speedup(result.speedup, result.speedup_ci95)} x {base.description}")
        before, after = (format_percent(found.wait_share) for found in (base, result))
        words.append(f"waiting for data {before} -> {after}")
    elif base is None and result.validation_runs:
        words.append("the baseline could not run here")
    if result.upper_bound_samples_per_second:
        words.append(
            f"{format_percent(result.samples_per_second / result.upper_bound_samples_per_second)} of the ceiling"
        )
    return "   ".join(words)


def list_ranks(profile: TunedProfile) -> list[str]:
    """Say what the training processes of the host reach together; nothing for one."""
    ranks = profile.workload.nproc_per_node
    if ranks == 1:
        return []
    together = format_rate(ranks * profile.result.samples_per_second)
    return [f"  {describe_workers(profile)}; {ranks} processes reach {together}{describe_rank_waits(profile)}"]


def describe_workers(profile: TunedProfile) -> str:
    """Say how many workers each of several training processes starts, and all of them together."""
    ranks, workers = profile.workload.nproc_per_node, profile.dataloader.num_workers
    return f"num_workers {workers} per process, {ranks * workers} on this host"


def describe_rank_waits(profile: TunedProfile) -> str:
    """Say how long each rank waited for a batch, mean, to be put behind a sentence; nothing where that is not known."""
    waits = [f"{format_seconds(one.wait_seconds)} in rank {number}" for number, one in enumerate(profile.result.ranks)]
    return f"; waiting for a batch: {', '.join(waits)}" if waits else ""


def _describe_speedup(speedup: float, interval: Interval | None) -> str:
    return f"{speedup:.2f}" if interval is None else f"{speedup:.2f} [{interval[0]:.2f}-{interval[1]:.2f}]"


def describe_bound(result: ProfileResult) -> str:
    """Say what keeps the answer from being faster, and how sure the answer is."""
    sure = f"confirmed in {result.validation_runs} interleaved rounds" if result.validation_runs else "not confirmed"
    sure = "predicted, nothing was measured" if result.is_predicted else sure
    return f"bound by {BOTTLENECKS[result.bottleneck]}{_describe_copies(result)}   {sure}"


def list_peaks(profile: TunedProfile) -> list[str]:
    """Say how much memory was used at most, of what was allowed; nothing where nothing was measured."""
    result, budgets = profile.result, profile.budgets
    if result.is_predicted:
        return []
    host = f"peak host {format_bytes(result.peak_host_bytes)} of {format_bytes(budgets.memory_bytes)}"
    return [f"  {host}   shm {format_bytes(result.peak_shm_bytes)} of {format_bytes(budgets.shm_bytes)}"]


def _describe_copies(result: ProfileResult) -> str:
    """Say how near the copies of a run that they bound come to what copying alone reaches."""
    if result.bottleneck != "copy" or result.copy_bytes_per_second is None or result.copy_ceiling is None:
        return ""
    return f" ({result.copy_bytes_per_second / 1e9:.1f} of {result.copy_ceiling / 1e9:.1f} GB/s)"


def describe_warnings(profile: TunedProfile) -> list[str]:
    """List what the reader must know before using the answer: knobs that change training, and warnings."""
    lines = list_gains(profile.result)
    lines += [] if profile.nodes is None else [f"  {_describe_nodes(profile.nodes)}"]
    return lines + list_advice(profile) + list_notes(profile)


def list_gains(result: ProfileResult) -> list[str]:
    """Say what each setting gave, in one line; nothing where that is not known."""
    gains = "   + ".join(f"{step.setting} {describe_gain(step)}" for step in result.ablation)
    return [f"  What each setting gave{_tell_source(result)}:   {gains}"] if gains else []


def list_advice(profile: TunedProfile) -> list[str]:
    """List what would help beyond the settings, each in a line."""
    return [f"  advice: {sentence}" for sentence in profile.result.advice]


def list_notes(profile: TunedProfile) -> list[str]:
    """List the warnings of a run, each in a line."""
    return [f"  note: {note}" for note in warnings_of(profile)]


def _describe_nodes(nodes: NodeSpread) -> str:
    """Say how far equal machines differ."""
    rates = [one.samples_per_second for one in nodes.readings]
    low, high = nodes.samples_per_second_ci95
    count = f"{len(rates)} machine{'s' if len(rates) > 1 else ''} like it"
    seen = f"measured again on {count}: {min(rates):,.0f}-{max(rates):,.0f} samples/s"
    return f"{seen}; another is expected at {low:,.0f}-{high:,.0f}"


def _tell_source(result: ProfileResult) -> str:
    return ", estimated from the trials (--explain full measures it)" if is_estimated(result.ablation) else ""


def is_estimated(steps: Sequence[AblationStep]) -> bool:
    """Tell whether what each setting gave was not measured, but is expected by what the search has learnt."""
    return any(step.is_estimate for step in steps)


def warnings_of(profile: TunedProfile) -> list[str]:
    """List the warnings of a run, and the knobs that change training beside its speed, each as a sentence."""
    result = profile.result
    notes = [_describe_departure(departure) for departure in result.departures] + list(result.warnings)
    if len(result.by_batch_size) > 1:
        best = ", ".join(f"{format_rate(row.samples_per_second)} at {row.batch_size}" for row in result.by_batch_size)
        notes.append(f"batch_size changes training, not only speed; pin it with --batch-size N; best seen: {best}")
    if profile.hardware.gpu is not None and profile.process.non_blocking:
        notes.append("measured with batch.to(device, non_blocking=True): copy so in training code, too")
    if not profile.dataloader.in_order:
        notes.append("in_order=False changes the order of batches; pin it with --fix in_order=true")
    return notes


def describe_gain(step: AblationStep) -> str:
    """Write what a setting gave, as in `1.44x [1.36-1.52]`, and say so where that is within noise."""
    if step.speedup_ci95 is None:
        return f"{step.speedup:.2f}x"
    low, high = step.speedup_ci95
    noise = " (within noise)" if step.is_noise else ""
    return f"{step.speedup:.2f}x [{low:.2f}-{high:.2f}]{noise}"


def _describe_departure(departure: AblationStep) -> str:
    """Say what leaving a convention gained, as in `in_order=False pays: 1.25x [1.18-1.33] over what is usual`."""
    return f"{departure.setting} pays: {describe_gain(departure)} over the usual setting, measured in the same rounds"


def describe_profile(profile: TunedProfile) -> str:
    """Describe a saved profile for `dltune show`."""
    there, found, software = profile.hardware, profile.search, profile.software
    lines = [
        f"{profile.name}   {profile.workload.title}   {profile.created_at:%Y-%m-%d %H:%M} UTC",
        f"  {describe_gpu(there)}   {there.usable_cpus:g} CPUs   RAM {format_bytes(there.memory_limit_bytes)}   "
        f"/dev/shm {format_bytes(there.shm_limit_bytes)}   torch {software.torch}   Python {software.python}",
        f"  {describe_best(profile)}",
        f"  {describe_numbers(profile.result)}",
        *list_ranks(profile),
        f"  {describe_bound(profile.result)}",
        *list_peaks(profile),
        f"  {found.trials} trials ({found.feasible} ok, {found.infeasible} infeasible, {found.skipped} skipped) in "
        f"{format_seconds(found.seconds)}: {found.stopped}",
    ]
    if found.prediction_error is not None:
        lines.append(f"  the model's predictions were {format_percent(found.prediction_error)} off, median")
    return "\n".join([*lines, *describe_warnings(profile)])


def describe_time_spent(spent: PhaseTime) -> str:
    """Say what a phase of a run took, and what of that went where, the largest part first."""
    parts = sorted(((getattr(spent, name), name) for name in ACTIVITIES), reverse=True)
    words = ", ".join(f"{format_seconds(seconds)} {ACTIVITIES[name]}" for seconds, name in parts if seconds)
    return f"{format_seconds(sum(seconds for seconds, _ in parts))}: {words}"


def describe_gpu(hardware: Hardware) -> str:
    """Name the accelerators of a machine, as in `2x NVIDIA H100`."""
    return f"{hardware.gpu_count}x {hardware.gpu}" if hardware.gpu else "no GPU"
