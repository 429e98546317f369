"""The display of a run on stderr: the workload's profile, a table of trials, and on a terminal one live line."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from autotune.cli.console import make_printable
from autotune.config import LoaderConfig
from autotune.profiles.schema import TunedProfile
from autotune.progress import ProgressListener
from autotune.search.plan import Plan
from autotune.search.trial_record import TrialRecord
from autotune.settings import SETTINGS, Setting, describe_config, format_arguments
from autotune.system.versions import read_own_version
from autotune.trial.protocol import ProgressReport
from autotune.units import format_bytes, format_rate, format_seconds

VALIDATING: Final = "Validating the best against the baseline in fresh processes"


class StatusDisplay(ProgressListener):
    """Writes warnings, and on a terminal one live line with the current activity below them."""

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        self._clock = clock
        self._live = Live(console=self._console, get_renderable=self._render, refresh_per_second=5, transient=True)
        self._started = clock()
        self._show_activity("starting")

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def close(self) -> None:
        with suppress(OSError):  # the terminal may be closed
            self._live.stop()

    def show_progress(self, progress: ProgressReport) -> None:
        self._show_activity(progress.phase)

    def show_run(self, number: int, config: LoaderConfig, samples_per_second: float | None) -> None:
        self._show_activity(f"validation run {number}: {describe_config(config)}")

    def show_warning(self, sentence: str) -> None:
        self._write(f"Warning: {sentence}")

    def _show_activity(self, activity: str) -> None:
        self._activity, self._began = activity, self._clock()

    def _write(self, text: str) -> None:
        with suppress(OSError):  # a full disk or a closed terminal must not end the run
            self._console.print(Text(make_printable(text)))

    def _render(self) -> Any:
        now = self._clock()
        text = f"{self._activity}  {now - self._began:.0f} s   (total {now - self._started:.0f} s)"
        return Text(make_printable(text), no_wrap=True, overflow="ellipsis", style="dim")


class RunDisplay(StatusDisplay):
    """Writes the workload's profile and a table of trials, the same on a terminal and into a log."""

    def __init__(self, *, verbose: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self._verbose = verbose
        self._table: TrialTable | None = None
        self._number = 0
        self._validation_began: float | None = None

    def show_progress(self, progress: ProgressReport) -> None:
        if not self._number:  # a trial has its configuration as its activity
            super().show_progress(progress)

    def show_plan(self, plan: Plan) -> None:
        self._plan, self._table = plan, TrialTable(plan)
        self._write(_describe_machine(plan))
        self._write(f"Profiled in {format_seconds(self._clock() - self._started)}: {_describe_workload(plan)}")
        for line in _list_details(plan) if self._verbose else ():
            self._write(line)
        self._write("")

    def show_resumed(self, trials: int) -> None:
        self._write(f"Continuing from {trials} trials of the interrupted run.\n")

    def show_trial_start(self, number: int, config: LoaderConfig) -> None:
        self._number = number
        self._show_activity(f"trial {number}: {describe_config(config)}")

    def show_trial(self, number: int, record: TrialRecord, relative_error: float, is_best: bool) -> None:
        self._number, result, remarks = number, record.result, []
        if result is not None and result.kind != "completed":
            remarks.append(f"failed: {result.message}")
        elif result is None and record.status == "skipped":
            remarks.append("skipped: predicted to exceed a limit")
        elif is_best and record.config != self._plan.baseline:
            remarks.append("best so far")
        if self._verbose:
            remarks += [f"±{relative_error:.0%}"] if relative_error < 1 else []
            remarks += [f"predicted {format_rate(record.predicted)}"] if record.predicted else []
        if self._verbose and result is not None:
            used = f"memory {format_bytes(result.peak_host_bytes)}, /dev/shm {format_bytes(result.peak_shm_bytes)}"
            remarks += [used, *([f"\n{result.details.rstrip()}"] if result.details else [])]
        rate = record.samples_per_second if record.is_feasible else None
        self._write_row(str(number), record.config, rate, remarks)

    def show_stop(self, reason: str) -> None:
        if self._number:
            most = self._plan.request.trials
            self._write(f"Stopped after {self._number} of up to {most} trials: {reason.removesuffix('.')}.")

    def show_run(self, number: int, config: LoaderConfig, samples_per_second: float | None) -> None:
        self._validation_began = self._validation_began or self._clock()
        self._show_activity(f"{VALIDATING}: run {number}, {describe_config(config)}")
        if self._verbose and samples_per_second is not None:
            self._write(f"run {number}  {describe_config(config)}  {format_rate(samples_per_second)}")

    def show_result(self, profile: TunedProfile) -> None:
        """Write what ends the table: the recommended configuration if no trial had it, and the validation's time."""

        if self._table is not None and profile.config not in self._table.configs and not profile.result.is_predicted:
            self._write_row("-", profile.config, profile.result.samples_per_second, ["measured in the validation"])
        if self._validation_began is not None:
            self._write(f"{VALIDATING} ... {format_seconds(self._clock() - self._validation_began)}")
        if self._verbose:
            phases = profile.search.phase_seconds.items()
            self._write(" · ".join(f"{phase} {format_seconds(seconds)}" for phase, seconds in phases))
        self._write("")

    def _write_row(self, number: str, config: LoaderConfig, rate: float | None, remarks: list[str]) -> None:
        assert self._table is not None
        if not self._table.configs:
            self._write(self._table.header)
        self._write(self._table.format_row(number, config, rate, remarks))


class TrialTable:
    """Formats the table of trials, with a column for each setting that varies.

    Attributes:
        header: The line of headings.
        configs: The configurations that have a row.
    """

    def __init__(self, plan: Plan) -> None:
        self.configs: set[LoaderConfig] = set()
        self._baseline, self._baseline_rate = plan.baseline, None
        self._remark = f"baseline: {'your DataLoader' if plan.workload.baseline else 'PyTorch defaults'}"
        self._columns: list[tuple[Setting, int]] = []
        headings = []
        for name, choices in plan.space.choices.items():
            setting = SETTINGS[name]
            values = {*choices, setting.read(plan.baseline)}
            if len(values) > 1:
                headings.append(
                    re.sub("^num_|_factor$|_workers$|_memory$|_size$|_strategy$", "", name).replace("_", " ")
                )
                self._columns.append(
                    (setting, max(len(headings[-1]), *(len(_format_value(value)) for value in values)))
                )
        cells = [f"{heading:>{width}}" for heading, (_, width) in zip(headings, self._columns, strict=True)]
        self.header = "  ".join(["trial", *cells, f"{'samples/s':>10}", "vs baseline"])

    def format_row(self, number: str, config: LoaderConfig, rate: float | None, remarks: list[str]) -> str:
        """Format one row; without a rate the trial has failed or was skipped."""

        if config == self._baseline and self._baseline_rate is None:
            self._baseline_rate, remarks = rate, [self._remark, *remarks]
        self.configs.add(config)
        values = [_format_value(one.read(config) if one.is_active(config) else None) for one, _ in self._columns]
        cells = [f"{value:>{width}}" for value, (_, width) in zip(values, self._columns, strict=True)]
        shown = "-" if rate is None else format_rate(rate).removesuffix("/s")
        ratio = "-" if rate is None or not self._baseline_rate else f"{rate / self._baseline_rate:.1f}x"
        return "  ".join([f"{number:>5}", *cells, f"{shown:>10}", f"{ratio:>11}", " · ".join(remarks)]).rstrip()


def _format_value(value: object) -> str:
    return "-" if value is None else {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _describe_machine(plan: Plan) -> str:

    machine, gpu = plan.machine, plan.workload.accelerator
    cpus = f"{machine.usable_cpus:g} CPU{'' if machine.usable_cpus == 1 else 's'}"
    gpus = "no GPU" if gpu is None else f"{gpu.count} x {gpu.name}" if gpu.count > 1 else gpu.name
    memory = f"{machine.memory_limit_bytes / 2**30:.3g} GiB RAM"
    torch = f"torch {plan.workload.software.torch.partition('+')[0]}"
    return " · ".join([f"dltune {read_own_version()}", cpus, memory, gpus, torch])


def _describe_workload(plan: Plan) -> str:
    """Describe what a sample, the step and the copy to the device cost, and what bounds the throughput."""

    workload, size = plan.workload, plan.workload.probe_batch_size
    load, step = workload.load_cost.per_batch(size), workload.step_cost.per_batch(size)
    bound = "CPU-bound" if workload.cpu_share >= 0.5 else "I/O-bound"
    is_simulated = plan.request.workload.step_seconds is not None
    words = [f"{format_seconds(load / size)}/sample, {bound}"]
    words.append(f"step {format_seconds(step)}{' (simulated)' if is_simulated else ''}")
    if workload.h2d is not None:
        words.append(f"copy {workload.h2d.pageable / 1e9:.1f} GB/s, pinned {workload.h2d.pinned / 1e9:.1f} GB/s")
    return " · ".join([*words, f"upper bound {plan.best_upper_bound:,.0f} samples/s"])


def _list_details(plan: Plan) -> Iterator[str]:
    """List what `-v` shows of a plan: limits, searched settings, notes, the prediction before the first trial."""

    budgets, guess = plan.budgets, plan.guess()
    gpu = "" if budgets.gpu_bytes is None else f", GPU memory {format_bytes(budgets.gpu_bytes)}"
    memory = f"memory {format_bytes(budgets.memory_bytes)}, /dev/shm {format_bytes(budgets.shm_bytes)}{gpu}"
    yield f"Limits: {memory}, {budgets.nofile:,} open files, {budgets.max_workers} workers"
    for name, choices in plan.space.searched().items():
        values = [_format_value(choice) for choice in choices]
        yield f"Search: {name} {' | '.join(values) if len(values) < 5 else f'{values[0]} to {values[-1]}'}"
    if plan.left_out:
        total = len(plan.candidates) + plan.left_out
        yield f"Skipping {plan.left_out:,} of {total:,} configurations that would exceed the limits"
    yield from (f"Note: {note}" for note in (*plan.workload.notes, *plan.space.notes))
    low, high = guess.ci95
    rate = f"{format_rate(guess.samples_per_second)} (95% CI {low:,.0f}-{high:,.0f})"
    yield f"Prediction: {rate} with {format_arguments(guess.config, with_batch_size=True)}"
