"""The sections of a report, made once from a profile; `render` prints them as text, Markdown and HTML."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from autotune.config import Interval
from autotune.profiles.export import translate
from autotune.profiles.loaders import WITHOUT_WORKERS
from autotune.profiles.schema import TunedProfile
from autotune.settings import RANGES, SETTINGS, describe_config
from autotune.units import format_bytes, format_count, format_rate, format_seconds

NO_CHANGE: Final = "No change recommended: no other settings were certainly faster than {}"
NOTHING_YET: Final = "Nothing certainly faster than {} was found before the run ended"
ONLY_BASELINE: Final = "No change recommended: nothing but {} was measured"
BOTTLENECKS: Final = {
    "step": "the training step",
    "cpu": "CPU-bound data loading",
    "io": "I/O",
    "transfer": "inter-process transfer",
    "copy": "copies to the device",
    "epoch": "the start of each epoch",
}


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text below a heading."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that a result says. `step_times` are label, waiting and other seconds of a step's samples."""

    title: str
    headline: str
    throughput: str
    brief: str
    evidence: str
    warnings: tuple[str, ...]
    advice: tuple[str, ...]
    plain_code: str
    load_code: str
    step_times: tuple[tuple[str, float, float], ...]
    tables: tuple[Table, ...]  # the settings come first


def make_report(profile: TunedProfile, file: str, name: str | None = None) -> Report:
    """Make the sections of a profile of a file; `name` selects it if the file holds several workloads."""
    result, samples, processes = profile.result, profile.search.batch_samples, profile.workload.nproc_per_node
    base = result.baseline if result.decision == "faster" else None
    rate = f"{format_rate(result.samples_per_second)} samples/s"
    has_others = any(one.samples_per_second and one.config != profile.config for one in profile.search.trials)
    usual = "your DataLoader's settings" if profile.workload.gives_loader else "PyTorch's defaults"
    kept = usual if result.baseline is None else result.baseline.description
    unchanged = NOTHING_YET if not profile.is_complete else NO_CHANGE if has_others else ONLY_BASELINE
    headline = rate if result.decision == "faster" else unchanged.format(kept)
    throughput = f"{rate} in each of {processes} processes" if processes > 1 else f"{rate} in training"
    throughput += _interval(result.samples_per_second_ci95, format_rate)
    if base is not None and result.speedup is not None:
        speedup = f"{_factor(result.speedup)} faster"
        headline = f"{speedup}: {format_rate(base.samples_per_second)} → {rate}"
        throughput += f", {speedup} than {base.description}{_interval(result.speedup_ci95, _factor)}"
    evidence = "Not validated: autotune.load and dltune report use a validated profile if the file has one."
    if profile.is_validated:
        evidence = f"Validated in {format_count(result.validation_runs, 'alternating run')}."
    elif profile.is_from_training:
        evidence = "Measured in a training run."
    if not profile.is_complete:
        again = "the same command continues, unless it has --fresh"
        evidence += f" Interrupted: {'the next run continues' if profile.is_from_training else again}."
    measured = (("before", base), ("after", result)) if base else (("now", result),)
    bottlenecks = dict.fromkeys(BOTTLENECKS[one.bottleneck] for _, one in measured)
    times = [(label, samples / max(one.samples_per_second, 1e-9), one.wait_share) for label, one in measured]
    memory = f" · peak memory {format_bytes(result.peak_host_bytes)}" if result.peak_host_bytes else ""
    brief = f"waiting for data {' → '.join(f'{share:.0%}' for _, _, share in times)} of the time{memory}"
    subject = f"{profile.workload.title} ({profile.label})" if profile.label else name or profile.workload.title
    return Report(
        title=f"{subject} · {profile.machine_class} · {profile.created_at:%Y-%m-%d %H:%M} UTC",
        headline=headline,
        throughput=throughput,
        brief=f"{brief} · bottleneck: {' → '.join(bottlenecks)}",
        evidence=evidence,
        warnings=tuple(_warnings(profile)),
        advice=result.advice,
        plain_code=plain_code(profile),
        load_code=load_code(profile, file, name),
        step_times=tuple((label, share * seconds, (1 - share) * seconds) for label, seconds, share in times),
        tables=tuple(table for table in _tables(profile) if table.rows),
    )


def _factor(ratio: float) -> str:
    return f"{ratio:.2f}x" if ratio < 1.995 else f"{ratio:,.{1 if ratio < 99.95 else 0}f}x"


def _interval(bounds: Interval | None, write: Callable[[float], str], form: str = " (95% CI {}-{})") -> str:
    return "" if bounds is None else form.format(write(bounds[0]).removesuffix("x"), write(bounds[1]))


def _warnings(profile: TunedProfile) -> Iterator[str]:
    base = profile.result.baseline
    for one in SETTINGS.values():
        value, before = one.read(profile.config), one.read((base or profile).config)
        if one.changes_training and value not in (None, before):
            keep = f"--batch-size {before}" if one.name == "batch_size" else f"--set {one.name}={before}".lower()
            yield f"{one.name}={value} changes training, not only its speed; {keep} keeps it at {before}."
    if base is None and profile.result.validation_runs:
        yield "The baseline could not run, so the speedup is unknown."
    yield from profile.result.warnings


def _tables(profile: TunedProfile) -> Iterator[Table]:
    result, search, budgets = profile.result, profile.search, profile.budgets
    after = profile.config.by_name()
    before = result.baseline.config.by_name() if result.baseline else dict.fromkeys(after)
    names = {setting.name: None for setting in RANGES} | {name: None for name in after if before[name] != after[name]}
    shown = ((name, *(str(values[name]).replace("None", "-") for values in (before, after))) for name in names)
    yield Table("Settings", ("Setting", "Before", "Recommended"), tuple(shown))

    rate, bound, waits = result.samples_per_second, result.upper_bound_samples_per_second, result.batch_waits
    copied, copy_bound = result.copy_bytes_per_second, result.copy_bound_bytes_per_second
    together = profile.workload.nproc_per_node * rate
    length = "" if profile.is_from_training else f" of {format_count(result.epochs, 'epoch')}"
    quantiles = () if waits is None else (("median", waits.p50), ("95th percentile", waits.p95), ("99th", waits.p99))
    peaks = (
        ("Peak host memory", result.peak_host_bytes, budgets.memory_bytes),
        ("Peak /dev/shm", result.peak_shm_bytes, budgets.shm_bytes),
        ("Peak GPU memory", result.peak_gpu_bytes, budgets.gpu_bytes or 0),
    )
    metrics = (
        ("Throughput", f"{format_rate(rate)} samples/s in a training run{length}"),
        ("All processes", f"{format_rate(together)} samples/s" if together > rate else ""),
        ("Waiting for data", f"{result.wait_share:.0%} of the time"),
        ("Wait for a batch", ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds in quantiles)),
        ("Mean wait by rank", ", ".join(map(format_seconds, result.rank_wait_seconds))),
        ("Bottleneck", BOTTLENECKS[result.bottleneck]),
        ("Upper bound", f"{format_rate(bound)} samples/s, {rate / bound:.0%} reached" if bound else ""),
        *((name, f"{format_bytes(peak)} of {format_bytes(limit)}" if peak else "") for name, peak, limit in peaks),
        ("Copies", f"{copied / 1e9:.1f} GB/s of {copy_bound / 1e9:.1f} GB/s" if copied and copy_bound else ""),
    )
    yield Table("Metrics", ("Metric", "Value"), tuple(row for row in metrics if row[1]))

    rows: list[tuple[str, ...]] = []
    for part in (*result.contributions, *result.gains):
        source = "estimated by the model" if part.is_estimate else "measured in the validation"
        ci95 = _interval(part.speedup_ci95, _factor, "{}-{}") or "-"
        rows.append((part.setting, format_rate(part.samples_per_second), _factor(part.speedup), ci95, source))
    yield Table("Contribution of each setting", ("Setting", "Samples/s", "Speedup", "95% CI", "Source"), tuple(rows))

    runs = ((one, ", ".join(map(format_rate, one.runs.values()))) for one in result.candidates)
    rows = [(describe_config(one.config), rates or "-", "; ".join(one.failures) or "-") for one, rates in runs]
    yield Table("Validation runs", ("Configuration", "Samples/s", "Failures"), tuple(rows))

    rows = []
    for one in search.trials:
        rates = "-" if one.samples_per_second is None else format_rate(one.samples_per_second)
        measured = rates, f"{one.relative_error:.1%}" if one.relative_error else "-"
        memory = (format_bytes(peak) if peak else "-" for peak in (one.peak_host_bytes, one.peak_shm_bytes))
        status = one.status.replace("_", " ") + ", recommended" * (one.config == profile.config)
        status += f". {one.reason}" if one.reason else ""
        predicted = format_rate(one.predicted_samples_per_second) if one.predicted_samples_per_second else "-"
        rows.append((str(one.number), describe_config(one.config), *measured, predicted, *memory, status))
    columns = ("Trial", "Configuration", "Samples/s", "±", "Predicted", "Memory", "/dev/shm", "Status")
    yield Table("All trials", columns, tuple(rows))

    machine, software, workload = profile.hardware, profile.software, profile.workload
    gpu = f"{machine.gpu_count}x {machine.gpu}" if machine.gpu else "no GPU"
    sizes = f"{format_bytes(machine.memory_limit_bytes)} RAM, {format_bytes(machine.shm_limit_bytes)} /dev/shm"
    samples = "samples" if workload.samples is None else format_count(workload.samples, "sample")
    size = f" of {format_bytes(workload.sample_bytes)}" if workload.sample_bytes else ""
    trials = format_count(len(search.trials), "trial")
    phases = ", ".join(f"{phase} {format_seconds(seconds)}" for phase, seconds in search.phase_seconds.items())
    facts = (
        ("Machine", f"{machine.cpu or 'unknown CPU'}, {machine.usable_cpus:g} CPUs, {gpu}, {sizes}"),
        ("Software", f"dltune {software.dltune}, torch {software.torch}, Python {software.python}"),
        ("Workload", f"{workload.title}: {samples}{size}, step {workload.step}"),
        ("Search", f"{trials}, sampler {search.sampler}, seed {search.seed}; {search.stop_reason}"),
        ("Time", format_seconds(search.seconds) + f" ({phases})" * bool(phases)),
    )
    yield Table("Run", ("Fact", "Value"), facts)


def plain_code(profile: TunedProfile) -> str:
    """Write the loader in plain PyTorch, with the lines that other settings need; or the arguments of a Trainer."""
    config, workload = profile.config, profile.workload
    if workload.prepared_by == "transformers":
        given, notes = translate(workload, config, "hf")
        line = f"arguments = TrainingArguments(..., {', '.join(f'{name}={value!r}' for name, value in given.items())})"
        return "\n".join([line, *(f"# {note}" for note in notes)])
    kwargs = workload.accepted(config.loader_kwargs())
    if workload.loader_class is None and not workload.gives_loader:  # one of the user's may have other defaults
        off = {name for name, setting in SETTINGS.items() if not setting.is_range}
        kwargs = {name: v for name, v in kwargs.items() if name not in off or v != SETTINGS[name].default}
    base, workers = profile.result.baseline, config.dataloader.num_workers
    is_given = workload.gives_loader or workload.loader_class is not None
    if is_given and base is not None and base.config.dataloader.num_workers > workers == 0:
        none, given = WITHOUT_WORKERS | {"multiprocessing_context": None}, base.config.by_name()
        kwargs |= workload.accepted({one: none[one] for one in none if given[one] != none[one]})  # need workers
    changed = ((setting, setting.read(config)) for setting in SETTINGS.values())
    lines = [one.setup.format(value=value) for one, value in changed if one.setup and value != one.default]
    lines += ["import autotune"] if config.process.device_prefetch else []
    return "\n".join([*lines, _write_loader(profile, "", kwargs)])


def load_code(profile: TunedProfile, file: str, name: str | None = None) -> str:
    """Write the code that loads the recommended settings from a file; `name` is the profile to load."""
    label = name or profile.label
    names = [json.dumps(one, ensure_ascii=False) for one in (file, label) if one is not None]
    tuned = f"autotune.load({', profile='.join(names)})"
    if profile.workload.is_from_data_module:
        return f"import autotune\ndatamodule = {tuned}.apply_to(datamodule)"
    if profile.workload.prepared_by == "transformers":
        return f'import autotune\narguments = TrainingArguments(..., **{tuned}.kwargs_for("hf"))'
    if profile.workload.prepared_by == "accelerate":
        return f"import autotune\n{_add_copies(profile, f'loader = accelerator.prepare({tuned}.apply_to(loader))')}"
    if profile.workload.gives_loader:
        return f"import autotune\n{_add_copies(profile, f'loader = {tuned}.apply_to(loader)')}"
    return f"import autotune\n{_write_loader(profile, f'{tuned}.make_loader', {})}"


def _write_loader(profile: TunedProfile, make_loader: str, settings: dict[str, Any]) -> str:
    """Write the call that makes the loader."""
    workload, choice = profile.workload, ""
    maker = (workload.loader_class or "DataLoader").replace(":", ".")
    short = maker.rpartition(".")[2]
    if short != "DataLoader":
        maker = short
    if not all(part.isidentifier() for part in maker.split(".")):  # no expression from a file becomes code to paste
        maker = "make_loader"
    if ":" in (workload.loader_class or ""):
        arguments = [f"{name}={value!r}" for name, value in workload.dataset_args.items() if name.isidentifier()]
        if workload.split is not None:
            choice = f"[{workload.split if workload.split.isdecimal() else repr(workload.split)}]"
    elif workload.loader_class is not None:
        arguments = ["**your_arguments"]
    elif workload.gives_loader:
        arguments = ["..."]
    elif profile.dataloader.batch_size is None:
        arguments = ["dataset", "batch_size=None" if workload.kind == "iterable" else "batch_sampler=batch_sampler"]
    else:
        sampler = "shuffle=True" if workload.nproc_per_node == 1 else "sampler=DistributedSampler(dataset)"
        arguments = ["dataset", *([sampler] if workload.kind == "map" else [])]  # others cannot be shuffled
    written = [f"{name}={value!r}" for name, value in settings.items()]
    size = [word for word in written if word.startswith("batch_size=")]
    arguments = [*arguments[:1], *size, *arguments[1:], *(word for word in written if word not in size)]
    given = [maker, *arguments] if make_loader and workload.loader_class is not None else arguments
    return _add_copies(profile, f"loader = {make_loader or maker}({', '.join(given)}){choice}")


def _add_copies(profile: TunedProfile, line: str) -> str:
    """Add to the line that makes the loader how batches are copied to the device, if that is a setting."""
    process = profile.config.process
    if process.device_prefetch:
        return f"{line}\nloader = autotune.device_prefetch(loader, device)"
    is_asynchronous = process.non_blocking and profile.hardware.gpu is not None
    return f"{line}\n# copy batches with batch.to(device, non_blocking=True)" if is_asynchronous else line
