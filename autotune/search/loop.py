"""Search loop: propose, screen and measure configurations until no further gain is expected."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from autotune.config import LoaderConfig
from autotune.profiles.schema import TunedProfile
from autotune.progress import ProgressListener
from autotune.search.plan import Plan
from autotune.search.surrogate import Prediction, SpeedupPrediction
from autotune.search.trial_record import TrialRecord
from autotune.trial.protocol import RunTrial


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """The result of a search, or of the part before it was interrupted.

    Attributes:
        records: Every trial that was measured or skipped, in order.
        stop_reason: Why the search ended.
        warnings: Failures of the workload that the trials found.
        expected: Expected samples per second of the measured configurations, smoothed over their neighbours.
        predict: Predicts throughputs by the model as corrected by the trials.
        predict_speedups: Predicts the speedup of each configuration over the one before it.
        is_legal: Whether a configuration is expected to work within the limits.
        interrupted_by: The error that ended the search early; None if it came to its end.
    """

    records: tuple[TrialRecord, ...]
    stop_reason: str
    warnings: tuple[str, ...]
    expected: Mapping[LoaderConfig, float]
    predict: Callable[[Sequence[LoaderConfig]], list[Prediction]]
    predict_speedups: Callable[[Sequence[LoaderConfig]], list[SpeedupPrediction]]
    is_legal: Callable[[LoaderConfig], bool]
    interrupted_by: BaseException | None = None


def search(
    plan: Plan,
    run_trial: RunTrial,
    progress: ProgressListener,
    has_time: Callable[[int], bool] = lambda tried: True,
    earlier: TunedProfile | None = None,
) -> SearchOutcome:
    """Try configurations until nothing more is to be gained."""
    raise NotImplementedError
