"""Shows a run on stderr, one line for each thing that happens; `live_display` does so on a terminal."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from rich.console import Console
from rich.text import Text

from autotune.config import LoaderConfig
from autotune.progress import ProgressListener
from autotune.request import TuningRequest
from autotune.search.plan import Guess, Plan
from autotune.search.trial_record import TrialRecord
from autotune.settings import describe_config
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
        if score is not None:
            self._write(f"confirm {number}/{rounds}  {describe_config(config)}  {format_rate(score)}")

    def show_warning(self, sentence: str) -> None:
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
        self._write(f"dltune   {self._request.workload.title}   {describe_machine(machine, budgets)}")

    def show_plan(self, plan: Plan) -> None:
        workload, space, self._ceiling = plan.workload, plan.space, plan.best_upper_bound
        self._write(f"probe    {describe_workload(workload, plan.best_upper_bound)}")
        self._write(f"expected {describe_guess(plan.guess())}")
        ranges = (_describe_choices(knob, choices) for knob, choices in space.searched().items())
        self._write(f"search   {'   '.join(ranges)}")
        for note in (*workload.notes, *space.notes):
            self._write(f"note     {note}")
        if plan.left_out:
            of = len(plan.candidates) + plan.left_out
            self._write(f"note     {plan.left_out} of {of} configurations are left out: predicted over a limit")

    def show_resumed(self, study: str, trials: int) -> None:
        if trials:
            self._write(f"resumed  {trials} trials of study {study}")

    def show_progress(self, progress: ProgressReport) -> None:
        if self._verbose and progress.phase != self._phase:
            self._write(f"         {progress.phase}")
        self._phase = progress.phase

    def show_result(self, number: int, record: TrialRecord, error: float, is_best: bool) -> None:
        result, score = record.result, record.score
        if result is None:
            return
        if result.kind != "completed":
            self._write_trial(number, result.config, f"{result.kind}: {describe_failure(number, result)}")
            if self._verbose and result.details:
                self._write(result.details)
            return
        rate = f"{format_rate(score)} {_describe_error(error)} (expected {format_rate(record.predicted)})"
        use = f"host {format_bytes(result.peak_host_bytes)}  shm {format_bytes(result.peak_shm_bytes)}"
        early = "  stopped early" if was_hopeless(result) else ""
        best = "  best" if is_best else ""
        self._write_trial(number, result.config, f"{rate}{self._describe_share(score)}  {use}{early}{best}")

    def _write_trial(self, number: int, config: LoaderConfig, text: str) -> None:
        self._write(f"trial {number:>2}/{self._request.trials}  {describe_config(config)}  {text}")

    def _describe_share(self, score: float) -> str:
        return f" ({format_percent(score / self._ceiling)} of ceiling)" if self._ceiling else ""

    def show_finding(self, sentence: str) -> None:
        self._write(f"note     {sentence}")

    def show_skip(self, number: int, config: LoaderConfig, reasons: tuple[str, ...]) -> None:
        self._write_trial(number, config, f"skipped: {'; '.join(reasons)}")

    def show_stop(self, reason: str) -> None:
        self._write(f"search ended: {reason}")

    def show_step(self, config: LoaderConfig, score: float | None) -> None:
        if score is not None:
            self._write(f"explain      {describe_config(config)}  {format_rate(score)}")


def _describe_choices(knob: str, choices: tuple[Any, ...]) -> str:
    if len(choices) > 4:
        return f"{knob} {choices[0]}..{choices[-1]}"
    return f"{knob} {'|'.join(str(choice).lower() for choice in choices)}"


def was_hopeless(result: TrialResult) -> bool:
    """Tell whether a trial was cut short because it could not become the best."""
    return result.measurement is not None and result.measurement.stopped == "hopeless"


def _describe_error(error: float) -> str:
    return f"±{error:.1%}" if error < 1 else "±?"


def describe_machine(machine: MachineProfile, budgets: Budgets) -> str:
    """Describe what the machine allows in one line."""
    cpus = f"{machine.usable_cpus:g} of {machine.affinity_cpus} CPUs ({machine.cpu_source})"
    caps = f"RAM cap {format_bytes(budgets.memory_bytes)}   /dev/shm cap {format_bytes(budgets.shm_bytes)}"
    return f"{cpus}   {caps}   {budgets.nofile:,} files"


def describe_guess(guess: Guess) -> str:
    """Say what is expected before anything was tried."""
    low, high = guess.ci95
    rate = f"about {format_rate(guess.samples_per_second)} ({low:,.0f} to {high:,.0f})"
    return f"{rate} with {describe_config(guess.config)}"


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
