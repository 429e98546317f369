"""Shows a run on a terminal: a few lines at the bottom are kept up to date, what stays scrolls above them."""

from __future__ import annotations

import time
from contextlib import suppress

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from autotune.cli.display import PlainDisplay, was_hopeless
from autotune.config import LoaderConfig
from autotune.request import TuningRequest
from autotune.search.trial_record import TrialRecord
from autotune.settings import describe_config
from autotune.trial.protocol import ProgressReport
from autotune.units import format_rate, format_seconds


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
        with suppress(OSError):  # the terminal may be gone
            self._live.stop()

    def show_progress(self, progress: ProgressReport) -> None:
        super().show_progress(progress)
        if not self._trial:
            self._current = progress.phase

    def show_start(self, number: int, config: LoaderConfig) -> None:
        self._trial, self._trial_started = number, time.monotonic()
        self._current = describe_config(config)

    def show_result(self, number: int, record: TrialRecord, error: float, is_best: bool) -> None:
        result, score = record.result, record.score
        if result is None:
            return
        if result.kind != "completed":
            self._counts["infeasible"] += 1
            super().show_result(number, record, error, is_best)
            return
        self._counts["ok"] += 1
        self._counts["stopped early"] += was_hopeless(result)
        if is_best:
            share = self._describe_share(score)
            self._best = f"#{number}   {describe_config(result.config)}   {format_rate(score)}{share}"

    def show_skip(self, number: int, config: LoaderConfig, reasons: tuple[str, ...]) -> None:
        self._counts["skipped"] += 1
        if self._verbose:
            super().show_skip(number, config, reasons)

    def show_round(self, number: int, rounds: int, config: LoaderConfig, score: float | None) -> None:
        self._trial = self._request.trials
        self._trial_started = time.monotonic()
        self._current = f"confirming, round {number} of {rounds}: {describe_config(config)}"
        super().show_round(number, rounds, config, score)

    def show_step(self, config: LoaderConfig, score: float | None) -> None:
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
