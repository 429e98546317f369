"""How long the step waited for batches: as a rule, at worst, and whether they came in bursts."""

from __future__ import annotations

from typing import Final

from autotune.config import BoundedSeconds, Fraction, FrozenModel
from autotune.units import format_seconds

NOTABLE_WAIT_FRACTION: Final = 0.3  # of the run; with less, bursts do no harm


class BatchWaits(FrozenModel):
    """Seconds that the step waited for a batch, by percentile; the first batch of an epoch starts workers, and is out.

    Attributes:
        p50: Half of the waits were no longer.
        p95: 95 % of them were no longer.
        p99: 99 % of them were no longer.
        pause: Mean of the long ones, where most batches were there at once; 0 where they were not.
        pause_share: Share of the batches that came after such a pause; 0 likewise.
    """

    p50: BoundedSeconds
    p95: BoundedSeconds
    p99: BoundedSeconds
    pause: BoundedSeconds = 0.0
    pause_share: Fraction = 0.0

    def describe(self) -> str:
        """Write the percentiles in a few words."""
        return f"{format_seconds(self.p50)} (p50), {format_seconds(self.p95)} (p95), {format_seconds(self.p99)} (p99)"

    def describe_rhythm(self, wait_fraction: float) -> str | None:
        """Say that batches come in bursts, where they do and the run waits for them; else None."""
        if not self.pause_share or not NOTABLE_WAIT_FRACTION <= wait_fraction < 1:
            return None
        return (
            f"Batches come {1 / self.pause_share:.0f} at once, then nothing for {format_seconds(self.pause)}: loading "
            f"is {1 / (1 - wait_fraction):.1f} times too slow for this step, not stuck."
        )
