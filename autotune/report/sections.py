"""The sections of a report, made once from a profile; `text` and `html` print them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from autotune.config import Configured, Interval
from autotune.profiles.schema import TunedProfile
from autotune.report.code import format_command, load_code, plain_code
from autotune.settings import RANGES, SETTINGS, describe_config
from autotune.units import format_bytes, format_percent, format_rate, format_seconds

NO_CHANGE: Final = "No change recommended: your settings are within noise of the best"
BOTTLENECKS: Final = {
    "step": "the training step",
    "cpu": "CPU-bound data loading",
    "io": "I/O",
    "transfer": "inter-process transfer",
    "copy": "copies to the device",
    "epoch": "worker restart at every epoch",
}


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text below a heading."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that a result says. `step_times` are label, waiting and other seconds of `step_samples` samples."""

    title: str
    headline: str
    throughput: str
    brief: str
    evidence: str
    settings: Table
    warnings: tuple[str, ...]
    advice: tuple[str, ...]
    plain_code: str
    load_code: str
    step_samples: int
    step_times: tuple[tuple[str, float, float], ...]
    tables: tuple[Table, ...]
    command: str | None


def make_report(profile: TunedProfile, file: str, name: str | None = None) -> Report:
    """Make the sections of a profile.

    Args:
        profile: The profile.
        file: Path by which training code names the tuned file.
        name: Name that selects the profile if the file holds several workloads; None uses its label, if it has one.
    """
    result, work, processes = profile.result, profile.search.batch_time, profile.workload.nproc_per_node
    base = result.baseline if result.verdict == "faster" else None
    rate = f"{number(result.samples_per_second)} samples/s"
    headline = rate if result.verdict == "faster" else NO_CHANGE
    throughput = f"{rate} in each of {processes} processes" if processes > 1 else rate
    throughput += _interval(result.samples_per_second_ci95, number)
    if base is not None and result.speedup is not None:
        headline = f"{factor(result.speedup)} faster: {number(base.samples_per_second)} → {rate}"
        throughput += (
            f", {factor(result.speedup)} faster than {base.description}{_interval(result.speedup_ci95, factor)}"
        )
    validated = f"validated in {result.validation_runs} alternating runs" if result.validation_runs else "not validated"
    validated = "predicted, not measured" if result.is_predicted else validated
    cut = "" if profile.is_complete else " Interrupted: run the same command to continue."
    measured = (("before", base), ("after", result)) if base else (("now", result),)
    samples = work.samples if work is not None else profile.dataloader.batch_size or 1000
    times = [(label, samples / max(one.samples_per_second, 1e-9), one.wait_share) for label, one in measured]
    memory = f" · peak memory {format_bytes(result.peak_host_bytes)}" if result.peak_host_bytes else ""
    brief = f"waiting for data {' → '.join(format_percent(share) for _, _, share in times)}{memory}"
    tables = (_metrics(profile), _contributions(profile), _validation_runs(profile), _trials(profile), _facts(profile))
    return Report(
        title=f"{profile.workload.title} · {profile.machine_class} · {profile.created_at:%Y-%m-%d %H:%M} UTC",
        headline=headline,
        throughput=throughput,
        brief=f"{brief} · bottleneck{' now' if base else ''}: {BOTTLENECKS[result.bottleneck]}",
        evidence=f"{validated.capitalize()}.{cut}",
        settings=_settings(profile),
        warnings=tuple(_warnings(profile)),
        advice=result.advice,
        plain_code=plain_code(profile),
        load_code=load_code(profile, file, name),
        step_samples=samples,
        step_times=tuple((label, share * seconds, (1 - share) * seconds) for label, seconds, share in times),
        tables=tuple(table for table in tables if table.rows),
        command=format_command(profile.request),
    )


def number(samples_per_second: float) -> str:
    """Write a throughput without its unit."""
    return format_rate(samples_per_second).removesuffix("/s")


def factor(ratio: float) -> str:
    """Write a ratio as in `1.25x` or `5.6x`."""
    return f"{ratio:.2f}x" if ratio < 2 else f"{ratio:,.{1 if ratio < 100 else 0}f}x"


def _interval(bounds: Interval | None, write: Callable[[float], str], form: str = " (95% CI {}-{})") -> str:
    return "" if bounds is None else form.format(write(bounds[0]).removesuffix("x"), write(bounds[1]))


def _warnings(profile: TunedProfile) -> Iterator[str]:
    """Yield the settings that change training, and the warnings of the run."""
    base, sizes = profile.result.baseline or profile, profile.result.by_batch_size
    for setting in SETTINGS.values():
        value, before = setting.read(profile.config), setting.read(base.config)
        if setting.changes_training and value not in (None, before):
            keep = f"{setting.name}={before}".lower()
            yield f"{setting.name}={value} changes training, not only its speed; --set {keep} keeps yours."
    if len(sizes) > 1:
        best = ", ".join(f"{number(size.samples_per_second)} with {size.batch_size}" for size in sizes)
        yield f"Best samples/s in the search by batch size: {best}."
    if profile.result.baseline is None and profile.result.validation_runs:
        yield "The baseline could not run, so no speedup is known."
    yield from profile.result.warnings


def _settings(profile: TunedProfile) -> Table:
    """Return the settings that are numbers or that change."""
    before, after = (one.config.by_name() for one in (profile.result.baseline or profile, profile))
    changed = [name for name in after if before[name] != after[name]]
    names = dict.fromkeys([*(setting.name for setting in RANGES), *changed])
    rows = ((name, *(str(values[name]).replace("None", "-") for values in (before, after))) for name in names)
    return Table("Settings", ("Setting", "Before", "Recommended"), tuple(rows))


def _metrics(profile: TunedProfile) -> Table:
    result, budgets, processes = profile.result, profile.budgets, profile.workload.nproc_per_node
    rate, bound, waits = result.samples_per_second, result.upper_bound_samples_per_second, result.batch_waits
    copied, copy_bound = result.copy_bytes_per_second, result.copy_bound_bytes_per_second
    shown = () if waits is None else (("median", waits.p50), ("95th percentile", waits.p95), ("99th", waits.p99))
    peaks = (
        ("Peak host memory", result.peak_host_bytes, budgets.memory_bytes),
        ("Peak /dev/shm", result.peak_shm_bytes, budgets.shm_bytes),
        ("Peak GPU memory", result.peak_gpu_bytes, budgets.gpu_bytes or 0),
    )
    rows = (
        ("Throughput", f"{number(rate)} samples/s in a training run of {result.epochs} epochs"),
        (f"All {processes} processes", f"{number(processes * rate)} samples/s" if processes > 1 else ""),
        ("Waiting for data", f"{format_percent(result.wait_share)} of the time"),
        ("Wait for a batch", ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds in shown)),
        ("Mean wait by rank", ", ".join(format_seconds(process.wait_seconds) for process in result.processes)),
        ("Bottleneck", BOTTLENECKS[result.bottleneck]),
        ("Reached", f"{format_percent(rate / bound)} of the upper bound, {number(bound)} samples/s" if bound else ""),
        *((name, f"{format_bytes(peak)} of {format_bytes(limit)}" if peak else "") for name, peak, limit in peaks),
        ("Copies", f"{copied / 1e9:.1f} GB/s of {copy_bound / 1e9:.1f} GB/s" if copied and copy_bound else ""),
    )
    return Table("Metrics", ("Metric", "Value"), tuple(row for row in rows if row[1]))


def _contributions(profile: TunedProfile) -> Table:
    rows = []
    for part in (*profile.result.contributions, *profile.result.gains):
        source = "estimated by the model" if part.is_estimate else "measured against the default"
        ci95 = _interval(part.speedup_ci95, factor, "{}-{}") or "-"
        rows.append((part.setting, number(part.samples_per_second), factor(part.speedup), ci95, source))
    return Table("Contribution of each setting", ("Setting", "Samples/s", "Speedup", "95% CI", "Source"), tuple(rows))


def _validation_runs(profile: TunedProfile) -> Table:
    rows = []
    for candidate in profile.result.candidates:
        rates = ", ".join(number(run.samples_per_second) for run in candidate.runs)
        rows.append((_name(profile, candidate), rates or "-", "; ".join(candidate.failures) or "-"))
    return Table("Validation runs", ("Configuration", "Samples/s", "Failures"), tuple(rows))


def _trials(profile: TunedProfile) -> Table:
    rows = []
    for trial in profile.search.trials:
        rate, error, peaks = (
            trial.samples_per_second,
            trial.relative_error,
            (trial.peak_host_bytes, trial.peak_shm_bytes),
        )
        rates = ("-" if rate is None else number(rate), f"{error:.1%}" if error else "-")
        memory = (format_bytes(peak) if peak else "-" for peak in peaks)
        outcome = f"{trial.outcome.replace('_', ' ')}. {trial.reason}".strip(". ")
        expected = number(trial.predicted_samples_per_second)
        rows.append((str(trial.number), _name(profile, trial), *rates, expected, *memory, outcome))
    columns = ("Trial", "Configuration", "Samples/s", "±", "Predicted", "Memory", "/dev/shm", "Outcome")
    return Table("All trials", columns, tuple(rows))


def _name(profile: TunedProfile, one: Configured) -> str:
    return describe_config(one.config) + (" (recommended)" if one.config == profile.config else "")


def _facts(profile: TunedProfile) -> Table:
    machine, software, workload, search = profile.hardware, profile.software, profile.workload, profile.search
    gpu = f"{machine.gpu_count}x {machine.gpu}" if machine.gpu else "no GPU"
    memory = f"{format_bytes(machine.memory_limit_bytes)} RAM, {format_bytes(machine.shm_limit_bytes)} /dev/shm"
    samples = "samples" if workload.samples is None else f"{workload.samples:,} samples"
    phases = ", ".join(f"{phase} {format_seconds(seconds)}" for phase, seconds in search.phase_seconds.items())
    rows = (
        ("Machine", f"{machine.cpu or 'unknown CPU'}, {machine.usable_cpus:g} CPUs, {gpu}, {memory}"),
        ("Software", f"dltune {software.dltune}, torch {software.torch}, Python {software.python}"),
        ("Workload", f"{workload.title}: {samples} of {format_bytes(workload.sample_bytes)}, step {workload.step}"),
        ("Search", f"{len(search.trials)} trials, sampler {search.sampler}, seed {search.seed}; {search.stop_reason}"),
        ("Time", f"{format_seconds(search.seconds)} ({phases})"),
    )
    return Table("Reproduce", ("Fact", "Value"), rows)
