"""Records of the trials of a search, its outcome, and the values that are read from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import Field

from autotune.config import BoundedBytes, BoundedRate, FrozenModel, LoaderConfig
from autotune.protocol.measurement import TrialResult

if TYPE_CHECKING:  # sampler.py imports this module
    from autotune.search.sampler import TrialModel

MIN_SAMPLES_PER_SECOND: Final = 1e-9  # one sample in thirty years; a trial below it delivered nothing
IMPROVEMENT_RATIO: Final = 1.02  # a smaller improvement is noise

Expected = Annotated[float, Field(ge=0, le=1e200)]


class TrialRecord(FrozenModel):
    """One trial of the study.

    Attributes:
        config: The configuration.
        status: `skipped` if it would exceed a limit; `repeated` if its value is that of an earlier trial.
        samples_per_second: Measured throughput; the prediction if it was skipped, 0 if it failed.
        predicted: Prediction before the trial, in samples per second; 0 if unknown.
        relative_error: Half-width of the 95% interval as a share; None if unknown.
        constraints: Excess over each limit as a share of it; negative below the limit.
        result: None if it was skipped; without the measurement if an earlier run made it.
        peak_gpu_bytes: Peak device memory of the allocator; 0 if unknown.
    """

    config: LoaderConfig
    status: Literal["measured", "skipped", "repeated"]
    samples_per_second: Expected
    predicted: Expected = 0.0
    relative_error: BoundedRate | None = None
    constraints: dict[str, Annotated[float, Field(allow_inf_nan=False)]] = Field(default_factory=dict)
    result: TrialResult | None = None
    peak_gpu_bytes: BoundedBytes = 0

    @property
    def is_feasible(self) -> bool:
        """Whether it was measured, completed, and delivered samples."""
        is_completed = self.result is not None and self.result.kind == "completed"
        return is_completed and self.samples_per_second >= MIN_SAMPLES_PER_SECOND


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """The result of a search, or of the part before it was interrupted.

    Attributes:
        records: Every trial that was measured or skipped, in order.
        stop_reason: Why the search ended.
        warnings: Failures of the workload that the trials found.
        model: The models of throughput and resource use as corrected by these trials.
        interrupted_by: The error that ended the search early; None if it came to its end.
    """

    records: tuple[TrialRecord, ...]
    stop_reason: str
    warnings: tuple[str, ...]
    model: TrialModel
    interrupted_by: BaseException | None = None


def find_best(records: Sequence[TrialRecord]) -> TrialRecord | None:
    """Return the fastest trial; None if none completed."""
    feasible = (record for record in records if record.is_feasible)
    return max(feasible, key=lambda record: record.samples_per_second, default=None)


def trials_since_improvement(records: Sequence[TrialRecord]) -> int:
    """Return the number of completed trials since the last one that is faster than all before it by more than noise."""
    best, since = 0.0, 0
    for rate in (record.samples_per_second for record in records if record.is_feasible):
        since = 0 if rate > IMPROVEMENT_RATIO * best else since + 1
        best = max(best, rate)
    return since
