"""Events of a run. The main flow calls these methods, and displays override them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a listener receives values of every package and belongs to none
    from autotune.config import LoaderConfig
    from autotune.protocol.messages import ProgressReport
    from autotune.search.plan import Plan
    from autotune.search.study import TrialRecord


class ProgressListener:
    """Receives the events of a run and shows nothing."""

    def show_progress(self, progress: ProgressReport) -> None:
        """Called often, with the child's current activity."""

    def show_plan(self, plan: Plan) -> None:
        """Called after profiling, with the workload and the search space."""

    def show_resumed(self, trials: int) -> None:
        """Called when the search continues from the trials of an earlier run."""

    def show_trial_start(self, number: int, config: LoaderConfig) -> None:
        """Called before trial `number`, counted from 1."""

    def show_trial(self, number: int, record: TrialRecord, is_best: bool) -> None:
        """Called after trial `number`, measured, failed or skipped."""

    def show_stop(self, reason: str) -> None:
        """Called when the search ends."""

    def show_run(self, number: int, config: LoaderConfig, samples_per_second: float | None) -> None:
        """Called in the validation before (None) and after run `number` of a configuration; 0 if it failed."""

    def show_warning(self, sentence: str) -> None:
        """Called with something that the user should know and that does not end the run."""
