"""What the training processes of a host showed of each other: who waits most, and whether they share the data out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from autotune.profiles.schema import RankResult
from autotune.trial.measurement import Measurement, RankWaits
from autotune.units import format_percent, format_seconds

ONE_RANK_SHARE: Final = 0.8  # of the steps in which some rank was late; above it the late one is always the same
MIN_LATE_SHARE: Final = 0.2  # of all steps; below it nobody is worth naming
MIN_LATE_FRACTION: Final = 0.05  # of the run spent waiting for data; below it, it does not matter who is late
MULTIPLIED_RATIO: Final = 1.5  # of the samples of the dataset that all ranks together deliver in an epoch


def sum_up_ranks(measured: Sequence[Measurement]) -> tuple[RankResult, ...]:
    """Sum up how each rank kept up in some trials; nothing where one process was measured."""
    columns = zip(*(one.ranks for one in measured if one.ranks), strict=False)
    return tuple(_sum_up(column) for column in columns)


def _sum_up(seen: Sequence[RankWaits]) -> RankResult:
    steps = max(1, sum(one.steps for one in seen))
    return RankResult(
        wait_seconds=sum(one.wait_seconds for one in seen) / steps,
        late_share=min(1.0, sum(one.late_steps for one in seen) / steps),
    )


def describe_late_rank(ranks: Sequence[RankResult], wait_share: float) -> str | None:
    """Say which rank the others wait for, and whether that is always the same one; None where nobody is late."""
    late = sum(one.late_share for one in ranks)
    if len(ranks) < 2 or late < MIN_LATE_SHARE or wait_share < MIN_LATE_FRACTION:
        return None
    number, last = max(enumerate(ranks), key=lambda pair: pair[1].late_share)
    if last.late_share < ONE_RANK_SHARE * late:
        return (
            f"In {format_percent(late)} of the steps the others wait for one rank's batch, and it is not always the "
            "same one: loading is slow, or its time varies, on all of them alike."
        )
    others = min(one.wait_seconds for one in ranks)
    return (
        f"Rank {number} gets its batch last in {format_percent(last.late_share)} of the steps: it waits "
        f"{format_seconds(last.wait_seconds)} for a batch, another one {format_seconds(others)}. Look at that rank's "
        "data, its CPU mask and its disk; settings that all ranks share cannot make up for it."
    )


def describe_multiplied_data(measured: Sequence[Measurement], samples: int | None) -> str | None:
    """Warn where each rank goes through all of the data, which is `samples` for all of them; None where none does."""
    delivered = max((sum(rank.samples for rank in one.ranks) for one in measured), default=0)
    if not samples or delivered <= MULTIPLIED_RATIO * samples:
        return None
    ranks = max(len(one.ranks) for one in measured)
    return (
        f"{ranks} ranks together delivered {delivered:,} samples in an epoch of a dataset of {samples:,}: each goes "
        "through all of it. Give the loader a DistributedSampler, or share an iterable dataset out by the rank"
    )
