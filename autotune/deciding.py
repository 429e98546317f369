"""Picks who goes into the final and who wins it: the smallest configuration within noise of the best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

from autotune.confirming import Contestant
from autotune.records import TrialRecord
from autotune.schema import Interval, LoaderConfig, Value
from autotune.scoring import bound_rounds, ratio_of_pairs

FINALISTS: Final = 3
TIE: Final = 0.98  # of the best; above it the smaller configuration wins
NEAR: Final = 0.92  # of the best in the search, whose trials know their throughput to about 5 %
WORTHY: Final = 0.75  # of the best in the search, which may have been lucky; the next best above it is a finalist
LEAST_GAIN: Final = 1.02  # over the baseline; below it the baseline stays


class Decision(Value):
    """The answer.

    Attributes:
        config: The configuration to use.
        verdict: `faster`, or `keep` the baseline.
        samples_per_second: Its throughput, median of the rounds.
        interval: 95 % interval of that; None without at least two rounds.
        wait_fraction: Share of the run spent waiting for data.
        speedup: Over the baseline; None when the baseline could not run.
        speedup_interval: Its 95 % interval.
        runner_up: A faster configuration that was passed over for a smaller one within noise, if any.
    """

    config: LoaderConfig
    verdict: Literal["faster", "keep"]
    samples_per_second: float
    interval: Interval | None
    wait_fraction: float
    speedup: float | None
    speedup_interval: Interval | None
    runner_up: LoaderConfig | None = None


def pick_finalists(
    records: Sequence[TrialRecord], expected: Mapping[LoaderConfig, float] | None = None
) -> list[LoaderConfig]:
    """Pick the configurations that deserve a second look.

    Args:
        records: The search's record.
        expected: What each is expected to reach, in samples per second; what it measured where absent.

    Returns:
        The best, the smallest one close to it, and the next best, at most `FINALISTS`; empty when none works.
    """
    feasible = list(
        {record.config: record for record in records if record.is_feasible}.values()
    )  # the last look counts
    rates = {record.config: record.score for record in feasible} | dict(expected or {})
    ranked = sorted(feasible, key=lambda record: rates[record.config], reverse=True)
    if not ranked:
        return []
    best = rates[ranked[0].config]
    close = [record for record in ranked if rates[record.config] >= NEAR * best]
    worthy = [record.config for record in ranked if rates[record.config] >= WORTHY * best]
    smallest = min(close, key=lambda record: _size(record.config, _peak(record)))
    return list(dict.fromkeys([ranked[0].config, smallest.config, *worthy]))[:FINALISTS]


def _peak(record: TrialRecord) -> int:
    return record.result.peak_host_bytes if record.result is not None else 0


def _size(config: LoaderConfig, peak_bytes: int) -> tuple[int, int, int, bool]:
    """Order configurations by what they cost: workers, then batches ahead, then memory; in order first."""
    loader = config.dataloader
    return loader.num_workers, loader.prefetch_factor or 0, peak_bytes, not loader.in_order


def decide(baseline: Contestant, finalists: Sequence[Contestant]) -> Decision | None:
    """Decide by what the final measured.

    Args:
        baseline: The baseline's rounds; they may have failed.
        finalists: The others' rounds.

    Returns:
        The decision, or None when neither the baseline nor any finalist ran.
    """
    running = [contestant for contestant in finalists if contestant.rate > 0]
    if not running:
        return _keep(baseline) if baseline.rate > 0 else None
    best = max(running, key=lambda contestant: contestant.rate)
    ties = [contestant for contestant in running if contestant.rate >= TIE * best.rate]
    smallest = min(ties, key=lambda contestant: _size(contestant.config, contestant.peak_host_bytes))
    if baseline.rate <= 0:
        return _announce(smallest, None, None, best)
    for winner in (smallest, best):
        speedup, interval = _compare(winner, baseline)
        if speedup >= LEAST_GAIN and (interval is None or interval[0] > 1):
            return _announce(winner, speedup, interval, best)
    return _keep(baseline)


def _compare(winner: Contestant, baseline: Contestant) -> tuple[float, Interval | None]:
    rounds = min(len(winner.scores), len(baseline.scores))
    return ratio_of_pairs(winner.scores[:rounds], baseline.scores[:rounds])


def _announce(winner: Contestant, speedup: float | None, interval: Interval | None, best: Contestant) -> Decision:
    return Decision(
        config=winner.config,
        verdict="faster",
        samples_per_second=winner.rate,
        interval=bound_rounds(winner.scores),
        wait_fraction=sum(winner.waits) / len(winner.waits),
        speedup=speedup,
        speedup_interval=interval,
        runner_up=best.config if best is not winner else None,
    )


def _keep(baseline: Contestant) -> Decision:
    decision = _announce(baseline, 1.0, (1.0, 1.0), baseline)
    return decision.model_copy(update={"verdict": "keep"})
