"""Shows a run on stderr while it goes on: live on a terminal, one plain line a trial elsewhere."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from autotune.config import LoaderConfig
from autotune.knobs import describe_config
from autotune.progress import ProgressListener
from autotune.request import TuningRequest
from autotune.search.plan import Plan
from autotune.search.trial_record import TrialRecord
from autotune.system.machine import MachineProfile
from autotune.trial.budgets import Budgets
from autotune.trial.measurement import TrialResult
from autotune.trial.protocol import ProgressReport
from autotune.trial.workload_profile import WorkloadProfile
from autotune.units import format_bytes, format_percent, format_rate, format_seconds


class ConfirmationDisplay(ProgressListener):
    """Writes one line for each measurement of a confirmation, and nothing else."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False, soft_wrap=True)

    def _write(self, text: str) -> None:
        with suppress(OSError):  # a full disk under the log, or a terminal that is gone, must not cost the run
            self._console.print(Text(text))

    def show_round(self, number: int, rounds: int, config: LoaderConfig, score: float | None) -> None:
        """Write a measurement of the confirmation."""
        if score is not None:
            self._write(f"confirm {number}/{rounds}  {describe_config(config)}  {format_rate(score)}")

    def show_warning(self, sentence: str) -> None:
        """Write what went wrong."""
        self._write(f"warning  {sentence}")


class PlainDisplay(ConfirmationDisplay):
    """Writes one line for each thing that happens."""

    def __init__(self, request: TuningRequest, *, verbose: bool = False, console: Console | None = None) -> None:
        super().__init__(console)
        self._request = request
        self._verbose = verbose
        self._phase = ""
        self._ceiling = 0.0

    def show_machine(self, machine: MachineProfile, budgets: Budgets) -> None:
        """Write what is tuned and what the machine allows."""
        self._write(f"dltune   {self._request.workload.dataset}   {describe_machine(machine, budgets)}")

    def show_plan(self, plan: Plan) -> None:
        """Write what the probe found and what is searched."""
        workload, space, self._ceiling = plan.workload, plan.space, plan.best_step_bound
        self._write(f"probe    {describe_workload(workload, plan.best_step_bound)}")
        ranges = (_describe_choices(knob, choices) for knob, choices in space.searched().items())
        self._write(f"search   {'   '.join(ranges)}")
        for note in (*workload.notes, *space.notes):
            self._write(f"note     {note}")
        if plan.left_out:
            of = len(plan.candidates) + plan.left_out
            self._write(f"note     {plan.left_out} of {of} configurations are left out: predicted over a limit")

    def show_resumed(self, study: str, trials: int) -> None:
        """Write what is taken over from an earlier run."""
        if trials:
            self._write(f"resumed  {trials} trials of study {study}")

    def show_progress(self, progress: ProgressReport) -> None:
        """Write each new phase when verbose."""
        if self._verbose and progress.phase != self._phase:
            self._write(f"         {progress.phase}")
        self._phase = progress.phase

    def show_result(self, number: int, record: TrialRecord, error: float, is_best: bool) -> None:
        """Write a trial's outcome, and what was expected of it."""
        result, score = record.result, record.score
        if result is None:
            return
        head = f"trial {number:>2}/{self._request.trials}"
        if result.kind != "completed":
            self._write(f"{head}  {describe_config(result.config)}  {result.kind}: {describe_failure(number, result)}")
            if self._verbose and result.details:
                self._write(result.details)
            return
        ceiling = f" ({format_percent(score / self._ceiling)} of ceiling)" if self._ceiling else ""
        use = f"host {format_bytes(result.peak_host_bytes)}  shm {format_bytes(result.peak_shm_bytes)}"
        stopped = result.measurement.stopped if result.measurement else ""
        early = "  stopped early" if stopped == "hopeless" else ""
        best = "  best" if is_best else ""
        rate = f"{format_rate(score)} {_describe_error(error)} (expected {format_rate(record.predicted)})"
        line = f"{head}  {describe_config(result.config)}  {rate}{ceiling}  {use}"
        self._write(line + early + best)

    def show_finding(self, sentence: str) -> None:
        """Write what trials showed of the workload."""
        self._write(f"note     {sentence}")

    def show_skip(self, number: int, config: LoaderConfig, reasons: tuple[str, ...]) -> None:
        """Write why a configuration was not tried."""
        self._write(
            f"trial {number:>2}/{self._request.trials}  {describe_config(config)}  skipped: {'; '.join(reasons)}"
        )

    def show_stop(self, reason: str) -> None:
        """Write why the search ended."""
        self._write(f"search ended: {reason}")

    def show_step(self, config: LoaderConfig, score: float | None) -> None:
        """Write a step from the baseline to the answer."""
        if score is not None:
            self._write(f"explain      {describe_config(config)}  {format_rate(score)}")


def _describe_choices(knob: str, choices: tuple[Any, ...]) -> str:
    if len(choices) > 4:
        return f"{knob} {choices[0]}..{choices[-1]}"
    return f"{knob} {'|'.join(str(choice).lower() for choice in choices)}"


def _describe_error(error: float) -> str:
    return f"±{error:.1%}" if error < 1 else "±?"


class LiveDisplay(PlainDisplay):
    """Keeps a few lines at the bottom of the terminal up to date; notes and failures scroll above them."""

    def __init__(self, request: TuningRequest, *, verbose: bool = False, console: Console | None = None) -> None:
        super().__init__(request, verbose=verbose, console=console)
        self._started = time.monotonic()
        self._counts = dict.fromkeys(("ok", "infeasible", "skipped", "stopped early"), 0)
        self._current = "starting"
        self._trial = 0
        self._trial_started = time.monotonic()
        self._best = ""
        self._live = Live(console=self._console, get_renderable=self._render, refresh_per_second=5, transient=True)
        self._live.start()

    def close(self) -> None:
        """Take the live lines away."""
        with suppress(OSError):  # the terminal may be gone
            self._live.stop()

    def show_progress(self, progress: ProgressReport) -> None:
        """Show what the child is doing."""
        super().show_progress(progress)
        if not self._trial:
            self._current = progress.phase

    def show_start(self, number: int, config: LoaderConfig) -> None:
        """Show the trial under way."""
        self._trial, self._trial_started = number, time.monotonic()
        self._current = describe_config(config)

    def show_result(self, number: int, record: TrialRecord, error: float, is_best: bool) -> None:
        """Count a trial; write only failures and new bests above the live lines."""
        result, score = record.result, record.score
        if result is None:
            return
        if result.kind != "completed":
            self._counts["infeasible"] += 1
            super().show_result(number, record, error, is_best)
            return
        self._counts["ok"] += 1
        self._counts["stopped early"] += result.measurement is not None and result.measurement.stopped == "hopeless"
        if is_best:
            share = f" ({format_percent(score / self._ceiling)} of ceiling)" if self._ceiling else ""
            self._best = f"#{number}   {describe_config(result.config)}   {format_rate(score)}{share}"

    def show_skip(self, number: int, config: LoaderConfig, reasons: tuple[str, ...]) -> None:
        """Count a skipped configuration."""
        self._counts["skipped"] += 1
        if self._verbose:
            super().show_skip(number, config, reasons)

    def show_round(self, number: int, rounds: int, config: LoaderConfig, score: float | None) -> None:
        """Show the confirmation under way."""
        self._trial = self._request.trials
        self._trial_started = time.monotonic()
        self._current = f"confirming, round {number} of {rounds}: {describe_config(config)}"
        super().show_round(number, rounds, config, score)

    def show_step(self, config: LoaderConfig, score: float | None) -> None:
        """Show the step under way."""
        self._trial_started = time.monotonic()
        self._current = f"explaining the answer: {describe_config(config)}"
        super().show_step(config, score)

    def _render(self) -> Group:
        elapsed = time.monotonic() - self._started
        counts = "   ".join(f"{count} {name}" for name, count in self._counts.items() if count)
        return Group(
            self._render_trial(),
            Text(f"best  {self._best or '-'}      elapsed {format_seconds(elapsed)}{self._estimate_left(elapsed)}"),
            Text(counts or "no trial finished yet"),
        )

    def _render_trial(self) -> Table:
        row = Table.grid(padding=(0, 2))
        done = min(1.0, (time.monotonic() - self._trial_started) / (self._request.trial_seconds + 0.5))
        row.add_row(
            Text(f"trial {self._trial}/{self._request.trials}" if self._trial else "probe"),
            Text(self._current),
            ProgressBar(total=1.0, completed=done if self._trial else 0.0, width=20),
        )
        return row

    def _estimate_left(self, elapsed: float) -> str:
        finished = sum(self._counts[name] for name in ("ok", "infeasible", "skipped"))
        if not finished or finished >= self._request.trials:
            return ""
        left = elapsed / finished * (self._request.trials - finished)
        return f"   left at most ~{format_seconds(left)}"


def describe_machine(machine: MachineProfile, budgets: Budgets) -> str:
    """Describe what the machine allows in one line."""
    return "   ".join(
        (
            f"{machine.usable_cpus:g} of {machine.affinity_cpus} CPUs ({machine.cpu_source})",
            f"RAM cap {format_bytes(budgets.memory_bytes)}",
            f"/dev/shm cap {format_bytes(budgets.shm_bytes)}",
            f"{budgets.nofile:,} files",
        )
    )


def describe_workload(workload: WorkloadProfile, ceiling: float) -> str:
    """Describe what the probe found in one line."""
    size = workload.probe_batch_size
    load, step = workload.load_cost.per_batch(size), workload.step_cost.per_batch(size)
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
    copies = workload.h2d
    if copies is None:
        return [workload.accelerator.name]
    rates = f"copies {copies.pageable / 1e9:.1f} GB/s, {copies.pinned / 1e9:.1f} GB/s pinned"
    return [workload.accelerator.name, f"{rates}, {format_percent(copies.overlap)} of one hidden by computing"]


def describe_failure(number: int, result: TrialResult) -> str:
    """Say in one sentence what became of a failed trial."""
    loader = result.config.dataloader
    size = f", batch_size={loader.batch_size}" if loader.batch_size is not None else ""
    return f"Trial {number} (num_workers={loader.num_workers}{size}) {result.message}."
