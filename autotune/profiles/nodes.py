"""What several equal machines were seen to reach."""

from __future__ import annotations

from typing import Annotated

from pydantic import AwareDatetime, Field

from autotune.config import BoundedRate, FrozenModel, Interval


class NodeReading(FrozenModel):
    """What the answer reached on one of several equal machines.

    Attributes:
        node: Name of the machine.
        samples_per_second: What it reached there.
        created_at: When that was measured.
    """

    node: Annotated[str, Field(min_length=1, max_length=255)]
    samples_per_second: BoundedRate
    created_at: AwareDatetime


class NodeSpread(FrozenModel):
    """How far equal machines differ.

    Attributes:
        readings: The last of each machine that has looked since the tuning.
        samples_per_second_ci95: Where another one is expected, with 95 % confidence.
    """

    readings: Annotated[tuple[NodeReading, ...], Field(min_length=1)]
    samples_per_second_ci95: Interval
