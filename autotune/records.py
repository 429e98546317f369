"""The record of a run: one line for every configuration that was proposed."""

from __future__ import annotations

from typing import Literal

from autotune.messages import TrialResult
from autotune.schema import LoaderConfig, Value

Fate = Literal["measured", "skipped", "repeated"]


class TrialRecord(Value):
    """One line of the record that outlives the process.

    Attributes:
        number: Number of the trial in its study, from 0.
        config: The configuration.
        fate: `measured`, `skipped` without a trial, or `repeated` from an earlier record.
        score: Throughput in samples per second; predicted when skipped, 0 when failed.
        predicted: Throughput expected before it was measured, in samples per second; 0 when not known.
        constraints: How far over each limit (positive) or under it.
        result: The outcome; None when skipped or repeated.
    """

    number: int
    config: LoaderConfig
    fate: Fate
    score: float
    predicted: float = 0.0
    constraints: dict[str, float]
    result: TrialResult | None = None

    @property
    def is_feasible(self) -> bool:
        """Whether it was measured and completed."""
        return self.result is not None and self.result.kind == "completed"
