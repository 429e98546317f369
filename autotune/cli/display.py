"""The display of a run on stderr: the workload's profile, a table of trials, and on a terminal one live line."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from autotune.cli.console import make_printable
from autotune.config import LoaderConfig
from autotune.planning.plan import Plan
from autotune.profiles.schema import TunedProfile
from autotune.progress import ProgressListener
from autotune.protocol.messages import ProgressReport
from autotune.settings import SETTINGS, Setting, describe_config
from autotune.system.software import read_own_version
from autotune.units import format_bytes, format_rate, format_seconds

if TYPE_CHECKING:  # `dltune check` never imports Optuna
    from autotune.search.study import TrialRecord

VALIDATING: Final = "Validating the best against the baseline in fresh processes"


class RunDisplay(ProgressListener):
    """Writes the workload's profile, a table of trials, and warnings; on a terminal, one live line below them."""

    _clock: Callable[[], float] = staticmethod(time.monotonic)
    _plan: Plan

    def __init__(self, *, verbose: bool = False, quiet: bool = False, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False, soft_wrap=True, quiet=quiet)
        self._verbose, self._started = verbose, self._clock()
        self._activity, self._activity_began = "starting", self._started
        self._rates: dict[LoaderConfig, float | None] = {}
        self._number = 0
        self._validation_began: float | None = None
        self._live = Live(console=self._console, get_renderable=self._render, refresh_per_second=5, transient=True)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def close(self) -> None:
        with suppress(OSError):  # the terminal may be closed
            self._live.stop()

    def _show_activity(self, activity: str) -> None:
        if activity != self._activity:
            self._activity, self._activity_began = activity, self._clock()

    def _render(self) -> Text:
        now = self._clock()
        seconds = f"{now - self._activity_began:.0f} s (total {now - self._started:.0f} s)"
        return Text(make_printable(f"{self._activity}  {seconds}"), no_wrap=True, overflow="ellipsis", style="dim")

    def _write(self, text: str) -> None:
        with suppress(OSError):  # a full disk or a closed terminal must not end the run
            self._console.print(Text(make_printable(text)))

    def show_progress(self, progress: ProgressReport) -> None:
        if not self._number:  # the activity of a trial is its configuration
            self._show_activity(progress.phase)

    def show_warning(self, sentence: str) -> None:
        self._write(f"Warning: {sentence}")

    def show_plan(self, plan: Plan) -> None:
        self._plan, self._columns = plan, _choose_columns(plan)
        details = _list_details(plan) if self._verbose else ()
        self._write("\n".join([_describe(plan, self._clock() - self._started), *details, ""]))

    def show_resumed(self, trials: int) -> None:
        self._write(f"Continuing after {trials} trials of the interrupted run.")

    def show_trial_start(self, number: int, config: LoaderConfig) -> None:
        self._number = number
        self._show_activity(f"trial {number}: {describe_config(config)}")

    def show_trial(self, number: int, record: TrialRecord, relative_error: float, is_best: bool) -> None:
        self._number, result, remarks = number, record.result, []
        if record.config == self._plan.baseline and record.config not in self._rates:
            remarks.append(f"baseline: {'your DataLoader' if self._plan.workload.baseline else 'PyTorch defaults'}")
        elif is_best:
            remarks.append("best so far")
        if result is None:
            over = [name for name, excess in record.constraints.items() if excess > 0]
            reason = "workers fail" if "works" in over else f"predicted to exceed the limit of {', '.join(over)}"
            remarks.append(f"skipped: {reason}")
        elif result.kind != "completed":
            remarks.append(f"failed: {result.message}")
        if self._verbose and record.is_feasible and result is not None:
            used = f"memory {format_bytes(result.peak_host_bytes)}, /dev/shm {format_bytes(result.peak_shm_bytes)}"
            remarks += [f"±{min(relative_error, 9.99):.0%}", f"predicted {format_rate(record.predicted)}", used]
        elif self._verbose and result is not None and result.details:
            remarks.append(f"\n{result.details.rstrip()}")
        self._write_row(str(number), record.config, record.samples_per_second if record.is_feasible else None, remarks)

    def show_stop(self, reason: str) -> None:
        if self._number:
            most = self._plan.request.trials
            self._write(f"Stopped after {self._number} of up to {most} trials: {reason.removesuffix('.')}.")

    def show_run(self, number: int, config: LoaderConfig, samples_per_second: float | None) -> None:
        self._validation_began = self._validation_began or self._clock()
        self._show_activity(f"validation run {number}: {describe_config(config)}")
        if self._verbose and samples_per_second is not None:
            self._write(f"Validation run {number}: {describe_config(config)}  {format_rate(samples_per_second)}")

    def show_result(self, profile: TunedProfile) -> None:
        """Write the end of the table: the recommended configuration if no trial had it, and the validation's time."""
        if profile.config not in self._rates and profile.result.validation_runs:
            self._write_row("-", profile.config, profile.result.samples_per_second, ["measured in the validation"])
        if self._validation_began is not None:
            self._write(f"{VALIDATING} ... {format_seconds(self._clock() - self._validation_began)}")
        phases = [f"{phase} {format_seconds(seconds)}" for phase, seconds in profile.search.phase_seconds.items()]
        self._write(f"Phases: {' · '.join(phases)}\n" if self._verbose else "")

    def _write_row(self, number: str, config: LoaderConfig, rate: float | None, remarks: list[str]) -> None:
        """Write a row of the table; without a rate the trial has failed or was skipped."""
        if not self._rates:
            self._write(self._join("trial", [heading for heading, _, _ in self._columns], "samples/s", "vs baseline"))
        self._rates.setdefault(config, rate)
        values = [one.read(config) if one.is_active(config) else None for _, _, one in self._columns]
        shown = "-" if rate is None else format_rate(rate).removesuffix("/s")
        baseline = self._rates.get(self._plan.baseline)
        ratio = "-" if rate is None or not baseline else f"{rate / baseline:.1f}x"
        self._write(self._join(number, map(_format_value, values), shown, ratio, " · ".join(remarks)))

    def _join(self, number: str, cells: Iterable[str], rate: str, ratio: str, remark: str = "") -> str:
        aligned = [f"{cell:>{width}}" for cell, (_, width, _) in zip(cells, self._columns, strict=True)]
        return "  ".join([f"{number:>5}", *aligned, f"{rate:>10}", f"{ratio:>11}", remark]).rstrip()


def _choose_columns(plan: Plan) -> list[tuple[str, int, Setting]]:
    """Return heading, width and setting of each column; the settings that vary have one."""
    columns = []
    for name, choices in plan.space.choices.items():
        setting = SETTINGS[name]
        values = {*choices, setting.read(plan.baseline)}
        if len(values) > 1:
            heading = re.sub("^num_|_factor$|_workers$|_memory$|_size$|_strategy$", "", name).replace("_", " ")
            columns.append((heading, max(map(len, (heading, *map(_format_value, values)))), setting))
    return columns


def _format_value(value: object) -> str:
    return {None: "-", True: "yes", False: "no"}[value] if value is None or isinstance(value, bool) else str(value)


def _describe(plan: Plan, profiling_seconds: float) -> str:
    """Describe the machine, the cost of a sample and of the step, and the throughput that the step allows."""
    machine, workload, size = plan.machine, plan.workload, plan.workload.probe_batch_size
    gpu, is_simulated = workload.accelerator, plan.request.workload.step_seconds is not None
    here = [
        f"dltune {read_own_version()}",
        f"{machine.usable_cpus:g} CPU{'' if machine.usable_cpus == 1 else 's'}",
        f"{machine.memory_limit_bytes / 2**30:.3g} GiB RAM",
        "no GPU" if gpu is None else f"{f'{gpu.count} x ' if gpu.count > 1 else ''}{gpu.name}",
        f"torch {workload.software.torch.partition('+')[0]}",
    ]
    load = f"{format_seconds(workload.load_cost.per_batch(size) / size)}/sample"
    step = f"step {format_seconds(workload.step_cost.per_batch(size))}{' (simulated)' if is_simulated else ''}"
    costs = [f"{load}, {'CPU' if workload.cpu_share >= 0.5 else 'I/O'}-bound", step]
    costs.append(f"upper bound {plan.best_upper_bound:,.0f} samples/s")
    return f"{' · '.join(here)}\nProfiled in {format_seconds(profiling_seconds)}: {' · '.join(costs)}"


def _list_details(plan: Plan) -> Iterator[str]:
    """List what `-v` shows of a plan: limits, searched settings and notes."""
    budgets = plan.budgets
    memory = f"memory {format_bytes(budgets.memory_bytes)}, /dev/shm {format_bytes(budgets.shm_bytes)}"
    yield f"Limits: {memory}, {budgets.nofile:,} open files, {budgets.max_workers} workers"
    for name, choices in plan.space.searched().items():
        yield f"Search: {name}={','.join(map(str, choices)).lower()}"
    if left_out := len(plan.space.configs) - len(plan.candidates):
        yield f"Skipping {left_out:,} configurations that would exceed the limits"
    yield from (f"Note: {note}" for note in (*plan.workload.notes, *plan.space.notes))
