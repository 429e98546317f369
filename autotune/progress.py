"""What a run tells whoever watches it. The story calls these; a display decides what to show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:  # a listener is told values of every wing, and belongs to none
    from autotune.config import LoaderConfig
    from autotune.search.plan import Plan
    from autotune.search.trial_record import TrialRecord
    from autotune.system.machine import MachineProfile
    from autotune.trial.budgets import Budgets
    from autotune.trial.protocol import ProgressReport


class ProgressListener:
    """Watches a run and shows nothing. Displays override what they care about.

    As a context manager it is closed at the end, however that comes: a display may have taken the terminal over.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def show_machine(self, machine: MachineProfile, budgets: Budgets) -> None:
        """Called first, with what the machine allows and the budgets."""

    def show_plan(self, plan: Plan) -> None:
        """Called after the probe, with what it found and what is searched."""

    def show_resumed(self, study: str, trials: int) -> None:
        """Called when `trials` trials of an earlier run are taken over."""

    def show_progress(self, progress: ProgressReport) -> None:
        """Called often, with what the child is doing."""

    def show_start(self, number: int, config: LoaderConfig) -> None:
        """Called before trial `number`, counted from 1."""

    def show_result(self, number: int, record: TrialRecord, error: float, is_best: bool) -> None:
        """Called after trial `number`; its score is 0 for a failed trial, `error` relative."""

    def show_finding(self, sentence: str) -> None:
        """Called when trials show something of the workload that the user should know."""

    def show_warning(self, sentence: str) -> None:
        """Called when something went wrong that does not end the run."""

    def show_skip(self, number: int, config: LoaderConfig, reasons: tuple[str, ...]) -> None:
        """Called when a configuration is rejected without a trial."""

    def show_stop(self, reason: str) -> None:
        """Called when the search ends."""

    def show_round(self, number: int, rounds: int, config: LoaderConfig, score: float | None) -> None:
        """Called in the confirmation: before (score None) and after each measurement."""

    def show_step(self, config: LoaderConfig, score: float | None) -> None:
        """Called before (score None) and after each step from the baseline to the answer."""

    def close(self) -> None:
        """Called when the run is over, however it ended."""
