"""The record of a run: one line for every configuration that was proposed.

Lines are read back by later runs, so what changes their meaning changes `RECORD_FORMAT`; its history:
    1: first format.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, model_validator

from autotune.config import BoundedCount, FrozenModel, LoaderConfig
from autotune.trial.measurement import TrialResult

RECORD_FORMAT: Final = 1
MIN_SCORE: Final = 1e-9  # samples per second, one in thirty years; below it a trial delivered nothing
IMPROVEMENT_RATIO: Final = 1.02  # an improvement smaller than this is noise and does not count as one
MAX_SCORE: Final = 1e30  # no machine measures that; with it, what is predicted from measurements stays a number

Fate = Literal["measured", "skipped", "repeated"]
Expected = Annotated[float, Field(ge=0, le=1e200)]


class TrialRecord(FrozenModel):
    """One line of the record that outlives the process."""

    number: BoundedCount  # of the trial in its study, from 0
    config: LoaderConfig
    status: Fate  # `skipped` without a trial, `repeated` from an earlier record
    score: Expected  # samples per second; predicted when skipped, 0 when failed
    predicted: Expected = 0.0  # samples per second; 0 when not known
    constraints: dict[str, Annotated[float, Field(allow_inf_nan=False)]]  # share over each limit; negative under it
    result: TrialResult | None = None

    @model_validator(mode="after")
    def _refuse_what_was_never_measured(self) -> Self:
        if self.result is not None and self.result.config != self.config:
            raise ValueError("the result is that of another configuration")
        if self.result is not None and self.score > MAX_SCORE:
            raise ValueError("nothing is that fast")
        return self

    @property
    def is_feasible(self) -> bool:
        """Whether it was measured, completed, and delivered something."""
        result = self.result
        was_measured = result is not None and result.kind == "completed" and result.measurement is not None
        return was_measured and self.score >= MIN_SCORE

    def describe(self) -> dict[str, Any]:
        """Give what a person reads of it in a dashboard, by names that carry their units; only what is known."""
        result = self.result
        found: dict[str, Any] = {
            "outcome": self.status if result is None else result.kind,
            "expected_samples_per_second": round(self.predicted, 1),
        }
        if result is not None:
            peaks = {"peak_host_bytes": result.peak_host_bytes, "peak_shm_bytes": result.peak_shm_bytes}
            found |= peaks | {"reason": result.message}
        elif self.status == "skipped":
            found["reason"] = self._describe_skip()
        return {name: value for name, value in found.items() if value}

    def _describe_skip(self) -> str:
        over = [name for name, distance in self.constraints.items() if distance > 0]
        return "workers are ruled out" if "works" in over else f"predicted over a limit: {', '.join(over)}"


def find_best(records: Sequence[TrialRecord]) -> TrialRecord | None:
    """Find the fastest configuration that was measured; None when none works."""
    return max((record for record in records if record.is_feasible), key=lambda record: record.score, default=None)


def trials_since_improvement(records: Sequence[TrialRecord]) -> int:
    """Count the measured trials since the last one that improved on all before it by more than noise."""
    best, since = 0.0, 0
    for record in (record for record in records if record.is_feasible):
        since = 0 if record.score > IMPROVEMENT_RATIO * best else since + 1
        best = max(best, record.score)
    return since


def measure_prediction_error(records: Sequence[TrialRecord]) -> float | None:
    """Give the median relative distance between what was predicted before a trial and what it measured."""
    distances = [
        abs(record.predicted / record.score - 1) for record in records if record.is_feasible and record.predicted > 0
    ]
    return statistics.median(distances) if distances else None
