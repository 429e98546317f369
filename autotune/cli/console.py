"""Output of the command line: results on stdout; errors and the display of a run on stderr."""

from __future__ import annotations

import errno
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Self

import click

from autotune.errors import DltuneError, OutputError, ResultNotSavedError
from autotune.progress import ProgressListener
from autotune.units import format_bytes, format_count, format_rate, format_seconds

if TYPE_CHECKING:  # importing them takes longer than `dltune --help`
    from rich.console import Console
    from rich.text import Text

    from autotune.config import LoaderConfig
    from autotune.profiles.schema import TunedProfile
    from autotune.protocol.messages import ProgressReport
    from autotune.search.plan import Plan
    from autotune.search.study import TrialRecord
    from autotune.settings import Setting

INTERRUPTED: Final = 130
NOTHING_MEASURED: Final = "Interrupted before any configuration was measured; no result was saved."


def print_result(text: str, saved: str = "") -> None:
    """Print a result on stdout; if that fails, raise OutputError with where else it was `saved`."""
    try:
        click.echo(make_printable(text, getattr(sys.stdout, "encoding", None)).removesuffix("\n"))
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise  # the reader has closed the pipe, as `head` does; click exits quietly
        _discard_stdout()
        raise OutputError(f"stdout cannot be written: {error.strerror}.{saved}") from None


def _discard_stdout() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # flushing the rest at exit would fail again


def make_printable(text: str, encoding: str | None = None) -> str:
    """Escape control characters as JSON does, so that no printed file or message controls the terminal."""
    shown = "".join(mark if mark.isprintable() or mark in "\n\t" else _escape(mark) for mark in text)
    try:
        shown.encode(encoding or "utf-8")
    except UnicodeEncodeError:
        return "".join(mark if mark.isascii() else _escape(mark) for mark in shown)
    return shown


def _escape(mark: str) -> str:
    return f"\\u{ord(mark):04x}" if ord(mark) < 2**16 else json.dumps(mark).strip('"')


@contextmanager
def exit_on_error(exit_code: int | None = None, interrupted: str = "Interrupted.") -> Iterator[None]:
    """Print dltune's own errors as a sentence, and exit with `exit_code` or the error's; 130 after Ctrl-C."""
    try:
        yield
    except ResultNotSavedError as error:
        try:
            print_result(error.details)
        except OutputError:
            print_error(error.details)
        print_error(f"Error: {error} The profile is printed instead.")
        sys.exit(error.exit_code)
    except DltuneError as error:
        print_error(f"{error.details.rstrip()}\nError: {error}".lstrip("\n"))
        sys.exit(error.exit_code if exit_code is None else exit_code)
    except KeyboardInterrupt:
        print_error(interrupted)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        if exit_code is None:
            raise  # click exits with 1, which may be a result of this command
        _discard_stdout()
        sys.exit(exit_code)


def print_error(text: str) -> None:
    """Print a message on stderr."""
    click.echo(make_printable(text), err=True)


class RunDisplay(ProgressListener):
    """Writes the workload's profile, a table of trials, and warnings; on a terminal, one live line below them."""

    _clock: Callable[[], float] = staticmethod(time.monotonic)
    _plan: Plan
    _baseline: LoaderConfig

    def __init__(self, *, verbose: bool = False, quiet: bool = False, console: Console | None = None) -> None:
        from rich.console import Console
        from rich.live import Live

        options: dict[str, Any] = {"quiet": quiet, "force_terminal": os.isatty(2)}  # CI sets FORCE_COLOR
        self._console = console or Console(stderr=True, highlight=False, soft_wrap=True, **options)
        self._verbose, self._started = verbose, self._clock()
        self._activity, self._activity_began = "starting", self._started
        self._rates: dict[LoaderConfig, float | None] = {}
        self._columns: list[tuple[str, int, Setting]] = []  # heading and width; the settings that vary have a column
        self._number = 0
        self._live = Live(console=self._console, get_renderable=self._render, refresh_per_second=5, transient=True)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # the terminal may be closed
            self._live.stop()

    def _show_activity(self, activity: str) -> None:
        if activity != self._activity:
            self._activity, self._activity_began = activity, self._clock()

    def _render(self) -> Text:
        from rich.text import Text

        now = self._clock()
        seconds = f"{now - self._activity_began:.0f} s (total {now - self._started:.0f} s)"
        return Text(make_printable(f"{self._activity}  {seconds}"), no_wrap=True, overflow="ellipsis", style="dim")

    def _write(self, text: str) -> None:
        with suppress(OSError):  # a full disk or a closed terminal must not end the run
            self._console.print(make_printable(text), markup=False, emoji=False, highlight=False)

    def show_progress(self, progress: ProgressReport) -> None:
        if not self._number:  # the activity of a trial is its configuration
            self._show_activity(progress.phase)

    def show_warning(self, sentence: str) -> None:
        self._write(f"Warning: {sentence}")

    def show_plan(self, plan: Plan) -> None:
        from autotune.settings import SETTINGS

        self._plan, self._baseline = plan, plan.space.nearest(plan.baseline)  # as the first trial has it
        for setting in SETTINGS.values():
            values = {*plan.space.choices[setting.name], setting.read(plan.baseline)}
            if setting.heading and len(values) > 1:
                width = max(map(len, (setting.heading, *map(_format_value, values))))
                self._columns.append((setting.heading, width, setting))
        details = _list_details(plan) if self._verbose else ()
        self._write("\n".join([_describe(plan, self._clock() - self._started), *details, ""]))

    def show_resumed(self, trials: int) -> None:
        self._write(f"Continuing after {format_count(trials, 'earlier trial')}.")

    def show_trial_start(self, number: int, config: LoaderConfig) -> None:
        from autotune.settings import describe_config

        self._number = number
        self._show_activity(f"trial {number}: {describe_config(config)}")

    def show_trial(self, number: int, record: TrialRecord, is_best: bool) -> None:
        from autotune.protocol.budgets import RESOURCES
        from autotune.settings import SETTINGS

        self._number, result, remarks = number, record.result, list[str]()
        if record.config == self._baseline and record.config not in self._rates:
            remarks.append(f"baseline: {self._plan.name_baseline(record.config)}")
        elif is_best:
            remarks.append("best so far")
        if result is None:
            over = [one.label for one in RESOURCES if record.constraints.get(one.name, 0) > 0]
            reason = f"predicted to exceed the limit of {', '.join(over)}" if over else "workers fail"
            remarks.append(f"skipped: {reason}")
        elif result.status != "completed":
            remarks.append(f"failed: {result.message}")
        if self._verbose and record.is_feasible and result is not None:
            used = f"memory {format_bytes(result.peak_host_bytes)}, /dev/shm {format_bytes(result.peak_shm_bytes)}"
            remarks += [
                f"±{min(record.relative_error or 9.99, 9.99):.0%}",
                f"predicted {format_rate(record.predicted)}/s",
                used,
            ]
        elif self._verbose and result is not None and result.details:
            remarks.append(f"\n{result.details.rstrip()}")
        others = (one for one in SETTINGS.values() if not one.heading and one.is_active(record.config))
        remarks += [f"{one.name}={one.read(record.config)}" for one in others if one.read(record.config) != one.default]
        self._write_row(str(number), record.config, record.samples_per_second if record.is_feasible else None, remarks)

    def show_stop(self, reason: str) -> None:
        if self._number:
            most = max(self._number, self._plan.request.trials)  # a study may have more trials of earlier runs
            self._write(f"Stopped after {self._number} of up to {most} trials: {reason.removesuffix('.')}.")

    def show_run(self, number: int, config: LoaderConfig, samples_per_second: float | None) -> None:
        from autotune.settings import describe_config

        self._show_activity(f"validation run {number}: {describe_config(config)}")
        if self._verbose and samples_per_second is not None:
            self._write(f"Validation run {number}: {describe_config(config)}  {format_rate(samples_per_second)}/s")

    def show_result(self, profile: TunedProfile) -> None:
        """Write the end of the table: the recommended configuration if no trial had it, and the validation's time."""
        phase_seconds = profile.search.phase_seconds
        if profile.result.validation_runs:
            if profile.config not in self._rates:
                if profile.result.baseline is not None:
                    self._rates[self._baseline] = profile.result.baseline.samples_per_second
                self._write_row("-", profile.config, profile.result.samples_per_second, ["measured in the validation"])
            took = format_seconds(phase_seconds.get("validation", 0.0))
            self._write(f"Validated the best against the baseline in {took}, each run in a new process.")
        phases = [f"{phase} {format_seconds(seconds)}" for phase, seconds in phase_seconds.items()]
        self._write(f"Phases: {' · '.join(phases)}\n" if self._verbose else "")

    def _write_row(self, number: str, config: LoaderConfig, rate: float | None, remarks: list[str]) -> None:
        """Write a row of the table; without a rate the trial has failed or was skipped."""
        widths = (5, *(width for _, width, _ in self._columns), 10, 11, 0)
        rows = [] if self._rates else [("trial", *(one for one, _, _ in self._columns), "samples/s", "vs baseline", "")]
        self._rates.setdefault(config, rate)
        values = [one.read(config) if one.is_active(config) else None for _, _, one in self._columns]
        shown = "-" if rate is None else format_rate(rate)
        baseline = self._rates.get(self._baseline)
        ratio = "-" if rate is None or not baseline else f"{rate / baseline:.1f}x"
        rows.append((number, *map(_format_value, values), shown, ratio, " · ".join(remarks)))
        for row in rows:
            self._write("  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


def _format_value(value: Any) -> str:
    return {"None": "-", "True": "yes", "False": "no"}.get(str(value), str(value))


def _describe(plan: Plan, profiling_seconds: float) -> str:
    from autotune.system.software import read_own_version

    machine, workload, size = plan.machine, plan.workload, plan.workload.probe_batch_size
    request, gpu = plan.request.workload, workload.accelerator
    kind = " (simulated)" if request.step_seconds else "" if request.step else " (built-in; yours with --step)"
    cpus = f"{machine.usable_cpus:g} CPU{'' if machine.usable_cpus == 1 else 's'}"
    device = "no GPU" if gpu is None else f"{f'{gpu.count} x ' if gpu.count > 1 else ''}{gpu.name}"
    here = f"{cpus} · {format_bytes(machine.memory_limit_bytes)} RAM · {device}"
    bound = "CPU-bound" if workload.cpu_share >= 0.5 else "I/O-bound"
    load = f"{format_seconds(workload.load_cost.at(size) / size)}/sample, {bound}"
    step = f"step {format_seconds(workload.step_cost.at(size))}{kind}"
    return (
        f"dltune {read_own_version()} · {here} · torch {workload.software.torch.partition('+')[0]}\n"
        f"Profiled in {format_seconds(profiling_seconds)}: {load} · {step}, "
        f"so at most {format_rate(plan.best_upper_bound)} samples/s"
    )


def _list_details(plan: Plan) -> Iterator[str]:
    budgets = plan.budgets
    memory = f"memory {format_bytes(budgets.memory_bytes)}, /dev/shm {format_bytes(budgets.shm_bytes)}"
    yield f"Limits: {memory}, {budgets.nofile:,} open files, {budgets.max_workers} workers"
    for name, choices in plan.space.searched().items():
        yield f"Search: {name}={','.join(map(str, choices)).lower()}"
    if left_out := len(plan.space.configs) - len(plan.candidates):
        yield f"Skipping {format_count(left_out, 'configuration')} that would exceed the limits"
    notes = (*plan.workload.notes, plan.workload.loader_note, *plan.space.notes)
    yield from (f"Note: {note}" for note in notes if note is not None)
